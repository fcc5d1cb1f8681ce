"""Deployments on a real engine: the smoke engine in all its moods, switch-over, failure, the way back."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time

import pytest
import requests
from smoke_image import ROOT, twin

from builder.console import Console
from builder.deploy.history import read_history
from builder.deploy.serve import rollback_image, serve, stop
from builder.deploy.spec import Placement
from builder.deploy.status import status
from builder.errors import DeployError
from builder.models.record import image_reference
from builder.registry.publish import immutable_tag
from builder.verify.trace import trace

pytestmark = pytest.mark.engine


def test_a_served_image_answers_streams_and_can_be_traced(engine, start, published, profile, records, tmp_path):
    done = start()
    with requests.post(
        f"{done.url}/v1/chat/completions",
        json={"model": "smoke", "messages": [{"role": "user", "content": "hi"}], "stream": True},
        timeout=30,
        stream=True,
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == b"data: [DONE]"
    walked = trace(engine, done.container, records=records)
    assert walked.broken is None
    assert published.commit in walked.text()
    assert status(engine, profile, state=tmp_path).state == "ready"


def test_a_file_that_is_edited_in_the_running_container_breaks_its_chain(engine, start, records):
    done = start()
    # the container's user may not write there, so the file is put in from outside
    subprocess.run(
        [
            "docker",
            "cp",
            str(ROOT / "CHANGELOG.md"),
            f"{done.container}:/usr/local/lib/python3.13/dist-packages/smoke_engine/api.py",
        ],
        check=True,
        env=dict(engine.environment) or None,
    )
    assert trace(engine, done.container, records=records).broken.name == "files"


def test_a_slow_start_is_waited_for(start):
    assert start(SMOKE_START_SECONDS="3").answer.seconds > 3


@pytest.mark.parametrize(
    ("mood", "words"),
    [
        ({"SMOKE_START_FAILS": "1"}, "Engine core initialization failed"),
        ({"SMOKE_OUT_OF_MEMORY": "1"}, "HIP out of memory"),
        ({"SMOKE_DIES_AT_PROMPT": "1"}, "ended with status 134"),
        ({"SMOKE_NEVER_READY": "1", "within": 4}, "not ready after 4 s"),
    ],
    ids=["fails", "out of memory", "dies at the first prompt", "never ready"],
)
def test_when_the_new_deployment_fails_the_old_one_answers_again(engine, start, profile, tmp_path, mood, words):
    start()
    with pytest.raises(DeployError, match=words) as caught:
        start(**mood)
    assert "the deployment before it runs again" in caught.value.message
    assert status(engine, profile, state=tmp_path).state == "ready"
    assert [entry.event for entry in read_history(tmp_path, profile.name).entries] == ["ready", "failed"]


def test_a_first_deployment_that_fails_leaves_nothing(engine, start, profile, tmp_path):
    with pytest.raises(DeployError, match="nothing runs"):
        start(SMOKE_START_FAILS="1")
    assert status(engine, profile, state=tmp_path).state == "none"


def test_a_port_that_is_taken_is_told_and_the_old_one_stays(engine, start, profile, tmp_path):
    with socket.create_server(("127.0.0.1", profile.port)), pytest.raises(DeployError, match="address already in use"):
        start()
    assert status(engine, profile, state=tmp_path).state == "none"


def test_rollback_goes_back_to_the_image_before(engine, start, profile, published, built, tmp_path):
    start()
    newer = twin(engine, f"gfx1100/smoke:{immutable_tag(built)}", "LABEL newer=1\nUSER 10001", tmp_path)
    serve(engine, profile, newer, reference=newer.id, state=tmp_path, console=Console())
    image, entry = rollback_image(engine, profile, state=tmp_path)
    assert (image.id, entry.image) == (built.image_id, image_reference(published))


class Told(Console):
    """A console that keeps its steps and calls back at one of them."""

    def __init__(self, at="", call=lambda: None):
        super().__init__()
        self.steps, self.at, self.call = [], at, call

    def step(self, text):
        self.steps.append(text)
        if self.at and self.at in text:
            self.call()
            self.at = ""


@pytest.fixture
def run(engine, published, profile, tmp_path):
    """Return a function that serves the smoke image, with more variables and with any of serve's own arguments."""

    def call(console=None, wanted=profile, environment=None, **more):
        reference = image_reference(published)
        return serve(
            engine,
            wanted.model_copy(update={"environment": {**wanted.environment, **(environment or {})}}),
            engine.image(reference),
            reference=reference,
            state=tmp_path,
            console=console or Told(),
            **more,
        )

    yield call
    for name in (profile.name, f"{profile.name}b"):
        stop(engine, name, state=tmp_path)


def inside(engine, container, code):
    """Run a line of Python in a container and return what it prints."""
    words = ["docker", "exec", container, "python3", "-c", code]
    return subprocess.run(
        words, check=True, capture_output=True, text=True, env={**os.environ, **engine.environment}
    ).stdout.strip()


def wait_for(reached, seconds=30):
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


KILL = "import os; [os.kill(int(p), 9) for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]"


def test_the_live_view_tells_the_steps_and_the_warm_up_asks_long_prompts(run):
    console = Told()
    done = run(console, environment={"SMOKE_START_SECONDS": "4"})
    told = " ".join(step.partition(" (")[0] for step in console.steps)
    assert re.search(r"loading shards \d/8", told), console.steps
    assert re.search(r"capturing graphs \d/4|the KV cache is allocated", told), console.steps
    assert [(one.tokens, one.note) for one in done.warmed] == [(512, ""), (2048, "")]
    assert done.figures == {"kv_tokens": 65536}


def test_while_it_starts_its_status_is_starting(engine, run, profile, tmp_path):
    seen = []
    console = Told("loading shards", lambda: seen.append(status(engine, profile, state=tmp_path).state))
    run(console, environment={"SMOKE_START_SECONDS": "3"})
    assert seen == ["starting"]


def test_a_server_that_is_killed_while_it_starts_is_told_and_the_old_one_answers(engine, run, profile, tmp_path):
    run()
    console = Told("loading shards", lambda: inside(engine, f"gfx1100-{profile.name}-next", KILL))
    with pytest.raises(DeployError, match="ended with status 137") as caught:
        run(console, environment={"SMOKE_START_SECONDS": "6"})
    assert "the deployment before it runs again" in caught.value.message
    assert status(engine, profile, state=tmp_path).state == "ready"


def test_a_ready_server_that_is_killed_comes_back_and_its_restarts_are_counted(engine, run, profile, tmp_path):
    done = run()
    inside(engine, done.container, KILL)
    wait_for(lambda: (found := status(engine, profile, state=tmp_path)).state == "ready" and found.restarts == 1)


def test_a_server_under_load_shows_its_speed(engine, run, profile, tmp_path):
    done = run(environment={"SMOKE_TOKEN_SECONDS": "0.01"})
    body = {"model": "smoke", "prompt": "hi", "max_tokens": 400, "ignore_eos": True}
    asking = threading.Thread(target=lambda: requests.post(f"{done.url}/v1/completions", json=body, timeout=60))
    asking.start()
    try:
        wait_for(lambda: (status(engine, profile, state=tmp_path).load.tokens_per_second or 0) > 10)
    finally:
        asking.join()


def test_the_container_has_only_what_it_was_given(engine, client, run, profile):
    done = run(
        wanted=profile.model_copy(update={"shm_bytes": 96 << 20}),
        placement=Placement(devices=("/dev/null",), groups=(12345, 44)),
    )
    host = client.inspect_container(done.container)["HostConfig"]
    assert [device["PathInContainer"] for device in host["Devices"]] == ["/dev/null"]
    assert host["GroupAdd"] == ["12345", "44"]
    assert (host["Privileged"], host["Init"], host["CapAdd"]) == (False, True, None)
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    assert host["ShmSize"] == 96 << 20
    size = "import os; s = os.statvfs('/dev/shm'); print(s.f_frsize * s.f_blocks)"
    assert int(inside(engine, done.container, size)) == 96 << 20


def test_the_cache_belongs_to_the_images_user_and_outlives_a_new_container(engine, client, run, profile):
    cached = profile.model_copy(update={"engine": "vllm"})
    done = run(wanted=cached)
    volume = next(iter(mount["Name"] for mount in client.inspect_container(done.container)["Mounts"]))
    try:
        made = "import os; open('/var/cache/gfx1100/triton/kernel', 'w').write('k'); print(os.getuid())"
        assert inside(engine, done.container, made) == "10001"
        again = run(wanted=cached)
        assert inside(engine, again.container, "print(open('/var/cache/gfx1100/triton/kernel').read())") == "k"
    finally:
        for container in client.containers(all=True, filters={"volume": volume}):
            client.remove_container(container["Id"], force=True)
        client.remove_volume(volume)


def test_another_profile_on_the_port_makes_room_and_comes_back_when_the_new_one_fails(engine, run, profile, tmp_path):
    run()
    second = profile.model_copy(update={"name": f"{profile.name}b"})
    with pytest.raises(DeployError, match=f"{profile.name} runs again"):
        run(wanted=second, environment={"SMOKE_START_FAILS": "1"})
    assert status(engine, profile, state=tmp_path).state == "ready"
    assert run(wanted=second).stopped == (profile.name,)
    assert status(engine, profile, state=tmp_path).state == "stopped"


def test_a_profile_with_another_port_runs_beside_it(engine, run, profile, tmp_path):
    run()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = tuple(str(port) if word == str(profile.port) else word for word in profile.command)
    second = profile.model_copy(update={"name": f"{profile.name}b", "port": port, "command": command})
    assert run(wanted=second).stopped == ()
    assert [status(engine, one, state=tmp_path).state for one in (profile, second)] == ["ready", "ready"]


def gfx1100(*words, state):
    """Run the program as a person does and return its exit status and its JSON document."""
    done = subprocess.run(
        [sys.executable, "-m", "builder", "--root", str(ROOT), "--json", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "GFX1100_STATE_DIR": str(state)},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_program_serves_shows_logs_and_stops(engine, published, profile, tmp_path):
    path = tmp_path / f"{profile.name}.yaml"
    keep = {"name", "title", "stack", "command", "port", "gpus"}
    path.write_text(json.dumps(profile.model_dump(mode="json", include=keep)))
    image = ["--image", image_reference(published)]
    name = str(path)
    try:
        code, shown = gfx1100("serve", name, *image, "--dry-run", state=tmp_path)
        assert (code, shown["port"], shown["devices"]) == (0, profile.port, [])
        assert gfx1100("status", name, state=tmp_path)[1]["state"] == "none"
        code, done = gfx1100("serve", name, *image, "--warm-up", "64", state=tmp_path)
        assert (code, [one["tokens"] for one in done["warm_up"]]) == (0, [64])
        code, found = gfx1100("status", name, state=tmp_path)
        assert (code, found["state"], found["digest"]) == (0, "ready", published.published.digest)
        assert found["load"]["generated"] > 0
        assert any("Ready: smoke" in line for line in gfx1100("logs", name, state=tmp_path)[1]["lines"])
        assert gfx1100("rollback", name, state=tmp_path)[0] == 2
        assert gfx1100("stop", name, state=tmp_path) == (0, {"stopped": True})
        assert gfx1100("status", name, state=tmp_path)[0] == 9
    finally:
        stop(engine, profile.name, state=tmp_path)


def test_logs_are_followed_until_the_server_ends(engine, start, profile, tmp_path):
    done = start()
    lines = []
    reading = threading.Thread(target=lambda: lines.extend(engine.follow(done.container, tail=3)))
    reading.start()
    wait_for(lambda: len(lines) >= 3)
    stop(engine, profile.name, state=tmp_path)
    reading.join(30)
    assert len(lines) >= 3
    assert not reading.is_alive()
