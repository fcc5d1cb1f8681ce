"""Deployments on a fake engine with a real server on loopback: switch-over, failure, the way back."""

import http.server
import json
import threading
from dataclasses import replace

import pytest
from fake_engine import FakeEngine, image

from builder.console import Console
from builder.deploy import ready
from builder.deploy.history import read_history
from builder.deploy.serve import container_name, rollback_image, serve, status, stop
from builder.errors import DeployError, UsageError
from builder.models.profile import Profile

OLD, NEW = image(1, repo_digests=("reg/x@sha256:" + "1" * 64,)), image(2, repo_digests=("reg/x@sha256:" + "2" * 64,))


class Server(http.server.BaseHTTPRequestHandler):
    """Answers like an engine; ``mood`` of the server decides how well."""

    def do_GET(self):
        healthy = self.server.mood != "loading"
        self.send_response(200 if healthy else 503)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": "smoke"}]}).encode())

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        self.send_response(500 if self.server.mood == "dies" else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"choices": [{"text": "hello"}]}).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(ready, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(ready, "REQUEST_SECONDS", 0.5)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        running.mood, running.asked = "fine", []
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


def start(engine, profile, what, tmp_path):
    return serve(engine, profile, what, reference=what.repo_digests[0], state=tmp_path, console=Console())


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
    waits = iter([KeyboardInterrupt, None])
    real = ready.wait_ready

    def interrupted(*arguments, **named):
        trouble = next(waits)
        if trouble:
            raise trouble
        return real(*arguments, **named)

    monkeypatch.setattr("builder.deploy.serve.wait_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(engine, profile, NEW, tmp_path)
    assert engine.container("gfx1100-smoke").state == "running"


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
    found, reference = rollback_image(engine, profile, state=tmp_path)
    assert (found.id, reference) == (OLD.id, OLD.repo_digests[0])


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
    assert status(engine, profile).state == "none"
    start(engine, profile, NEW, tmp_path)
    assert status(engine, profile).state == "ready"
    server.mood = "loading"
    assert status(engine, profile).state == "starting"
    box = engine.container(container_name("smoke"))
    for code, state in ((0, "stopped"), (137, "dead")):
        engine.boxes[box.id] = replace(box, state="exited", exit_code=code)
        assert status(engine, profile).state == state


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
    assert cause in ready.likely_cause(log, out_of_memory=False)
