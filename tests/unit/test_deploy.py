"""Deployments on a fake engine with a real server on loopback: switch-over, failure, the way back."""

import http.server
import json
import threading
from dataclasses import replace

import pytest
from fake_engine import FakeEngine, image

from builder.console import Console
from builder.deploy import ready, warm_up
from builder.deploy.history import read_history
from builder.deploy.labels import TARGET, container_name
from builder.deploy.progress import Progress, likely_cause
from builder.deploy.serve import rollback_image, serve, stop
from builder.deploy.spec import Placement
from builder.deploy.status import status
from builder.errors import DeployError, UsageError
from builder.models.profile import Profile

OLD, NEW = image(1, repo_digests=("reg/x@sha256:" + "1" * 64,)), image(2, repo_digests=("reg/x@sha256:" + "2" * 64,))


class Server(http.server.BaseHTTPRequestHandler):
    """Answers like an engine; ``mood`` of the server decides how well."""

    def do_GET(self):
        if self.path == "/metrics":
            self.server.generated += 10
            self.reply(200, f"vllm:num_requests_running 1.0\nvllm:generation_tokens_total {self.server.generated}\n")
            return
        model = {"id": "smoke", "max_model_len": self.server.longest}
        self.reply(503 if self.server.mood == "loading" else 200, json.dumps({"data": [model]}))

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        length = len(asked["prompt"]) if isinstance(asked["prompt"], list) else 1
        code = {
            "dies": 500,
            "dies at long prompts": 500 if length > 1 else 200,
            "text only": 400 if length > 1 else 200,
        }
        self.reply(code.get(self.server.mood, 200), json.dumps({"choices": [{"text": "hello"}]}))

    def reply(self, code, text):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(ready, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(ready, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(ready, "READ_SECONDS", 0.0)
    monkeypatch.setattr(warm_up, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr("builder.deploy.status.SAMPLE_SECONDS", 0.05)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        running.mood, running.asked, running.generated, running.longest = "fine", [], 0, 4096
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def profile(server):
    return Profile(
        name="smoke",
        title="t",
        stack="smoke",
        command=("--port", "1"),
        port=server.server_address[1],
        gpus=0,
        ready=ready_within(5),
    )


def ready_within(seconds):
    from builder.models.profile import Ready

    return Ready(timeout=seconds)


def start(engine, profile, what, tmp_path, **more):
    return serve(engine, profile, what, reference=what.repo_digests[0], state=tmp_path, console=Console(), **more)


def test_each_line_of_a_starts_log_is_read_once_through_the_warm_up(profile, server, tmp_path, monkeypatch):
    read, feed = [], Progress.feed
    monkeypatch.setattr(Progress, "feed", lambda self, lines, *, at: read.extend(lines) or feed(self, lines, at=at))
    engine = FakeEngine([NEW])
    engine.log["c0"] = "one\ntwo"
    assert start(engine, profile, NEW, tmp_path).warmed
    assert read == ["one", "two"]


def test_a_deployment_is_ready_only_when_it_has_answered_a_sampled_prompt(profile, server, tmp_path):
    engine = FakeEngine([NEW])
    done = start(engine, profile, NEW, tmp_path)
    assert (done.answer.model, done.answer.text) == ("smoke", "hello")
    assert server.asked[0]["temperature"] > 0


def test_the_restart_policy_comes_after_the_first_ready(profile, tmp_path):
    engine = FakeEngine([NEW])
    start(engine, profile, NEW, tmp_path)
    running = engine.container("gfx1100-smoke")
    assert engine.policies == {running.id: True}


def test_a_switch_over_keeps_the_old_container_on_disk_and_writes_history(profile, tmp_path):
    engine = FakeEngine([OLD, NEW])
    start(engine, profile, OLD, tmp_path)
    start(engine, profile, NEW, tmp_path)
    assert engine.container("gfx1100-smoke").image_id == NEW.id
    assert engine.container("gfx1100-smoke-previous").image_id == OLD.id
    assert engine.container("gfx1100-smoke-previous").state == "exited"
    assert [entry.event for entry in read_history(tmp_path, "smoke").entries] == ["ready", "ready"]


def dead_when(what):
    def become(box):
        return replace(box, state="exited", exit_code=1) if box.image_id == what.id else box

    return become


def test_when_the_new_one_dies_the_old_one_runs_again(profile, tmp_path):
    engine = FakeEngine([OLD, NEW], on_start=dead_when(NEW))
    start(engine, profile, OLD, tmp_path)
    engine.log["c1"] = "torch.OutOfMemoryError: HIP out of memory"
    with pytest.raises(DeployError, match="the deployment before it runs again") as caught:
        start(engine, profile, NEW, tmp_path)
    assert "HIP out of memory" in caught.value.message
    assert "--gpu-memory-utilization" in caught.value.hint
    back = engine.container("gfx1100-smoke")
    assert (back.image_id, back.state, engine.policies[back.id]) == (OLD.id, "running", True)
    assert engine.container("gfx1100-smoke-next") is None
    assert [entry.event for entry in read_history(tmp_path, "smoke").entries] == ["ready", "failed"]


def test_a_green_health_that_answers_no_prompt_is_a_failure(profile, server, tmp_path):
    server.mood = "dies"
    with pytest.raises(DeployError, match="healthy but did not answer a prompt"):
        start(FakeEngine([NEW]), profile, NEW, tmp_path)


def test_a_server_that_is_never_ready_is_given_up_in_time(profile, server, tmp_path):
    server.mood = "loading"
    hurried = profile.model_copy(update={"ready": ready_within(1)})
    engine = FakeEngine([NEW])
    with pytest.raises(DeployError, match="not ready after 1 s"):
        start(engine, hurried, NEW, tmp_path)
    assert engine.boxes == {}


def test_an_interrupt_brings_the_old_one_back_and_is_not_swallowed(profile, tmp_path, monkeypatch):
    engine = FakeEngine([OLD, NEW])
    start(engine, profile, OLD, tmp_path)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("builder.deploy.serve.wait_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(engine, profile, NEW, tmp_path)
    assert engine.container("gfx1100-smoke").state == "running"
    assert read_history(tmp_path, "smoke").entries[-1].note == "KeyboardInterrupt"


def test_an_interrupt_while_the_old_one_ends_waits_for_its_end_and_starts_it_again(profile, tmp_path, capsys):
    class Interrupted(FakeEngine):
        """Its first stop of the old one is interrupted: that goes on running for a while."""

        def stop(self, container_id, *, timeout):
            if self.boxes[container_id].name == "gfx1100-smoke" and ("stop", "gfx1100-smoke") not in self.calls:
                self.calls.append(("stop", "gfx1100-smoke"))
                raise KeyboardInterrupt
            super().stop(container_id, timeout=timeout)

    engine = Interrupted([OLD, NEW])
    start(engine, profile, OLD, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        start(engine, profile, NEW, tmp_path)
    own = [call for call in engine.calls if call in {("stop", "gfx1100-smoke"), ("start", "gfx1100-smoke")}]
    assert own[-3:] == [("stop", "gfx1100-smoke"), ("stop", "gfx1100-smoke"), ("start", "gfx1100-smoke")]
    assert engine.container("gfx1100-smoke").state == "running"
    assert "smoke was interrupted; the deployment before it runs again" in capsys.readouterr().err


def test_what_a_killed_run_left_is_cleared(profile, tmp_path):
    engine = FakeEngine([OLD, NEW])
    start(engine, profile, OLD, tmp_path)
    box = engine.container("gfx1100-smoke")
    engine.boxes["left"] = replace(box, id="left", name="gfx1100-smoke-next")
    start(engine, profile, NEW, tmp_path)
    assert ("remove", "gfx1100-smoke-next") in engine.calls


def test_a_container_of_somebody_else_is_not_touched(profile, tmp_path):
    engine = FakeEngine([NEW])
    start(engine, profile, NEW, tmp_path)
    box = engine.container("gfx1100-smoke")
    engine.boxes[box.id] = replace(box, labels={})
    with pytest.raises(UsageError, match="is not ours"):
        start(engine, profile, NEW, tmp_path)
    assert engine.container("gfx1100-smoke").state == "running"


def test_rollback_finds_the_last_ready_image_that_is_not_the_present_one(profile, tmp_path):
    engine = FakeEngine([OLD, NEW])
    start(engine, profile, OLD, tmp_path)
    start(engine, profile, NEW, tmp_path)
    found, entry = rollback_image(engine, profile, state=tmp_path)
    assert (found.id, entry.image) == (OLD.id, OLD.repo_digests[0])


def test_rollback_without_history_says_so(profile, tmp_path):
    with pytest.raises(UsageError, match="no earlier deployment"):
        rollback_image(FakeEngine(), profile, state=tmp_path)


def test_rollback_to_an_image_that_is_gone_says_so(profile, tmp_path):
    engine = FakeEngine([OLD, NEW])
    start(engine, profile, OLD, tmp_path)
    start(engine, profile, NEW, tmp_path)
    del engine.images[OLD.id]
    with pytest.raises(UsageError, match="is not on this host any more"):
        rollback_image(engine, profile, state=tmp_path)


def test_stop_removes_what_is_ours_and_says_whether_it_ran(profile, tmp_path):
    engine = FakeEngine([NEW])
    start(engine, profile, NEW, tmp_path)
    assert stop(engine, "smoke", state=tmp_path) is True
    assert stop(engine, "smoke", state=tmp_path) is False
    assert engine.boxes == {}


def test_status_tells_ready_starting_stopped_dead_and_none_apart(profile, server, tmp_path):
    engine = FakeEngine([NEW])
    assert status(engine, profile, state=tmp_path).state == "none"
    start(engine, profile, NEW, tmp_path)
    assert status(engine, profile, state=tmp_path).state == "ready"
    server.mood = "loading"
    assert status(engine, profile, state=tmp_path).state == "starting"
    box = engine.container(container_name("smoke"))
    for code, state in ((0, "stopped"), (137, "dead")):
        engine.boxes[box.id] = replace(box, state="exited", exit_code=code)
        assert status(engine, profile, state=tmp_path).state == state


def test_a_container_that_has_not_taken_over_is_starting_whatever_its_health_says(profile, tmp_path):
    engine = FakeEngine([NEW])
    start(engine, profile, NEW, tmp_path)
    box = engine.container("gfx1100-smoke")
    engine.boxes[box.id] = replace(box, name="gfx1100-smoke-next")
    assert status(engine, profile, state=tmp_path).state == "starting"


def test_status_shows_uptime_restarts_and_the_speed_of_the_last_second(profile, tmp_path):
    engine = FakeEngine([NEW])
    start(engine, profile, NEW, tmp_path)
    box = engine.container("gfx1100-smoke")
    engine.boxes[box.id] = replace(box, started_at="2020-01-01T00:00:00.123456789Z", restarts=3)
    found = status(engine, profile, state=tmp_path)
    assert found.uptime_seconds > 86400
    assert found.restarts == 3
    assert found.load.running == 1
    assert found.load.tokens_per_second > 0
    assert [entry["event"] for entry in found.as_json()["history"]] == ["ready"]
    assert "1 running, 0 waiting" in found.text()


def test_a_damaged_history_is_an_error_and_is_not_overwritten(profile, tmp_path):
    path = tmp_path / "deployments" / "smoke.json"
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(UsageError, match="is no JSON"):
        read_history(tmp_path, "smoke")
    assert path.read_text() == "{"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("OSError: [Errno 98] Address already in use", "port"),
        ("RuntimeError: Failed to infer device type", "no GPU"),
        ("something else", "read the log"),
    ],
)
def test_the_likely_cause_is_read_off_the_log(log, cause):
    assert cause in likely_cause(log, out_of_memory=False)


def test_a_warm_up_asks_one_prompt_for_each_context_that_the_model_allows(profile, server, tmp_path):
    done = start(FakeEngine([NEW]), profile, NEW, tmp_path)
    assert [one.tokens for one in done.warmed] == [512, 2048]
    assert [len(asked["prompt"]) for asked in server.asked[1:]] == [512, 2048]
    first = [asked["prompt"][0] for asked in server.asked[1:]]
    assert len(set(first)) == 2, "a common beginning would be answered from the prefix cache"


def test_a_model_that_dies_of_a_long_prompt_does_not_take_over(profile, server, tmp_path):
    engine = FakeEngine([OLD, NEW])
    start(engine, profile, OLD, tmp_path)
    server.mood = "dies at long prompts"
    with pytest.raises(DeployError, match="did not answer a prompt of 512 tokens"):
        start(engine, profile, NEW, tmp_path)
    assert engine.container("gfx1100-smoke").image_id == OLD.id


def test_a_server_that_takes_no_token_ids_is_told_and_stays(profile, server, tmp_path):
    server.mood = "text only"
    done = start(FakeEngine([NEW]), profile, NEW, tmp_path)
    assert [one.seconds for one in done.warmed] == [None, None]
    assert "HTTP 400" in done.warmed[0].note


def other(profile, server, **more):
    return profile.model_copy(update={"name": "other", **more})


def test_another_profile_on_the_same_port_makes_room_and_is_told_of(profile, server, tmp_path):
    engine = FakeEngine([OLD, NEW])
    start(engine, profile, OLD, tmp_path)
    done = start(engine, other(profile, server), NEW, tmp_path)
    assert done.stopped == ("smoke",)
    assert engine.container("gfx1100-smoke").state == "exited"
    assert engine.policies[engine.container("gfx1100-smoke").id] is False
    last = read_history(tmp_path, "smoke").entries[-1]
    assert (last.event, last.note) == ("stopped", "made room for other")


def test_another_profile_comes_back_when_the_new_one_fails(profile, server, tmp_path):
    engine = FakeEngine([OLD, NEW], on_start=dead_when(NEW))
    start(engine, profile, OLD, tmp_path)
    with pytest.raises(DeployError, match="smoke runs again"):
        start(engine, other(profile, server), NEW, tmp_path)
    assert engine.container("gfx1100-smoke").state == "running"
    assert engine.policies[engine.container("gfx1100-smoke").id] is True


@pytest.mark.parametrize(
    ("cards", "runs_on"), [((("render128",), ("render129",)), True), ((("render128",), ("render128",)), False)]
)
def test_what_holds_other_cards_and_another_port_runs_on(profile, server, tmp_path, cards, runs_on):
    engine = FakeEngine([OLD, NEW])
    first, second = (Placement(devices=("/dev/kfd", *one)) for one in cards)
    start(engine, profile, OLD, tmp_path, placement=first)
    box = engine.container("gfx1100-smoke")
    elsewhere = json.dumps({**json.loads(box.labels[TARGET]), "port": 1})
    engine.boxes[box.id] = replace(box, labels={**box.labels, TARGET: elsewhere})
    start(engine, other(profile, server), NEW, tmp_path, placement=second)
    assert (engine.container("gfx1100-smoke").state == "running") is runs_on


def test_a_shm_that_the_engine_made_smaller_is_a_failure(profile, tmp_path):
    engine = FakeEngine([NEW], on_start=lambda box: replace(box, shm_bytes=64 << 20))
    with pytest.raises(DeployError, match="/dev/shm of 67,108,864 bytes, 1,073,741,824 were asked"):
        start(engine, profile.model_copy(update={"shm_bytes": 1 << 30}), NEW, tmp_path)
    assert engine.boxes == {}


def test_a_container_gets_devices_groups_and_a_cache_of_its_image_alone(profile, tmp_path):
    engine = FakeEngine([OLD, NEW])
    wanted = profile.model_copy(update={"engine": "vllm", "gpus": 1, "shm_bytes": 1 << 30})
    spot = Placement(devices=("/dev/kfd", "/dev/dri/renderD129"), groups=(109, 44))
    start(engine, wanted, OLD, tmp_path, placement=spot)
    start(engine, wanted, NEW, tmp_path, placement=spot)
    first, second = engine.specs.values()
    assert (first.devices, first.groups) == (("/dev/kfd", "/dev/dri/renderD129"), (109, 44))
    assert (first.shm_bytes, first.host_ipc) == (1 << 30, False)
    assert first.volumes == {"gfx1100-cache-1111111111111111": "/var/cache/gfx1100"}
    assert second.volumes == {"gfx1100-cache-2222222222222222": "/var/cache/gfx1100"}
    assert first.environment["TRITON_CACHE_DIR"] == "/var/cache/gfx1100/triton"


def test_an_engine_on_another_machine_needs_a_port_that_it_opens(profile, tmp_path):
    engine = FakeEngine([NEW])
    engine.environment = {"DOCKER_HOST": "ssh://me@gpubox"}
    with pytest.raises(UsageError, match="cannot be prompted from here") as caught:
        start(engine, profile, NEW, tmp_path)
    assert "gpubox" in caught.value.hint
    assert engine.boxes == {}
