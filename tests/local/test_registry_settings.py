"""Where a stack is published to and pulled from, how much room an engine has, and the layers of a finished stage."""

import json
from pathlib import Path

import pytest
from fake_engine import FakeEngine

from builder.build.run import Job, build_stage
from builder.cli.export import _newest
from builder.cli.publishing import repository_of
from builder.cli.serving import _image
from builder.cli.state import State
from builder.console import Console
from builder.engine.address import is_here
from builder.engine.buildkit import Builder
from builder.engine.port import Output
from builder.errors import UsageError, VerifyError
from builder.models.profile import load_profile
from builder.models.record import Published, write_record
from builder.models.stack import stack_names
from builder.registry.room import free_bytes
from builder.settings import load_settings
from builder.stage.render import dockerfile_path


@pytest.fixture
def state(tmp_path, monkeypatch):
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"GFX1100_{name}_DIR", str(tmp_path))
    monkeypatch.delenv("GFX1100_REGISTRY", raising=False)
    return State(root=tmp_path, console=Console(), yes=False)


def test_a_registry_with_the_stacks_place_serves_all_stacks(state, monkeypatch):
    monkeypatch.setenv("GFX1100_REGISTRY", "registry.example/me/gfx1100-{stack}")
    assert repository_of(state, "vllm") == "registry.example/me/gfx1100-vllm"


def test_without_a_setting_the_newest_record_says_where(state, record):
    for number, day in ((1, "02"), (2, "01"), (3, "03")):
        place = Published(repository=f"127.0.0.1:5000/app{number}", tag="t", digest="sha256:" + "d" * 64)
        made = record.model_copy(
            update={
                "image_id": f"sha256:{number}{'0' * 63}",
                "created": f"2026-01-{day}T00:00:00+00:00",
                "published": None if number == 3 else place,
            }
        )
        write_record(state.records, made)
    assert repository_of(state, "smoke") == "127.0.0.1:5000/app1"


@pytest.mark.parametrize("verdict", ["failed", None])
def test_what_failed_or_was_not_verified_is_neither_served_nor_exported(state, record, monkeypatch, verdict):
    found = verdict and record.verification.model_copy(update={"verdict": verdict})
    made = record.model_copy(update={"verification": found})
    monkeypatch.setattr("builder.cli.publishing.newest_record", lambda *_: made)
    profile = load_profile(Path(__file__).parents[2], "smoke")
    for take in (lambda: _image(state, profile, None), lambda: _newest(state, profile)):
        with pytest.raises(VerifyError, match=r"of smoke (failed its verification|was never verified)"):
            take()


def test_when_nothing_says_where_the_setting_is_named(state):
    with pytest.raises(UsageError, match="where vllm is published") as caught:
        repository_of(state, "vllm")
    assert "{stack}" in caught.value.hint


class TestSpace:
    class Engine(FakeEngine):
        environment = {"DOCKER_HOST": "unix:///run/docker.sock"}  # noqa: RUF012 - a test's constant
        root = Path("/nowhere")

        def data_root(self):
            return self.root

        def capacity(self):
            told = Path("/proc/meminfo").read_text().split()
            return 2, int(told[told.index("MemTotal:") + 1]) * 1024

    def test_an_engine_of_this_machine_is_measured_here(self, tmp_path):
        engine = self.Engine()
        engine.root = tmp_path
        assert free_bytes(engine, ask=None) > 0
        assert engine.calls == []

    def test_a_socket_that_leads_to_another_machine_is_not_this_one(self, tmp_path):
        engine = self.Engine()
        assert is_here(engine, tmp_path, engine.capacity()[1])
        assert not is_here(engine, tmp_path, engine.capacity()[1] * 2)
        assert not is_here(engine, Path("/nowhere"), engine.capacity()[1])

    @pytest.mark.parametrize(
        ("answer", "found"), [(Output(returncode=0, stdout="10 4096\n", stderr=""), 40960), (None, None)]
    )
    def test_elsewhere_an_image_is_asked(self, answer, found):
        engine = self.Engine()
        engine.answer = answer or Output(returncode=127, stdout="", stderr="no stat")
        assert free_bytes(engine, ask="sha256:x") == found
        assert free_bytes(engine, ask=None) is None


def test_a_finished_stage_is_taken_from_the_registry(tmp_path):
    words = Builder(kind="docker", program="docker", version="20").argv(
        tmp_path,
        dockerfile=tmp_path / "Dockerfile",
        tags=(),
        labels={},
        secrets={},
        build_args=[],
        made=tmp_path / "made",
        cache_from=["127.0.0.1:5000/cache:smoke"],
    )
    assert words[words.index("--cache-from") + 1] == "127.0.0.1:5000/cache:smoke"


def test_a_stage_needs_a_place_with_a_tag(state, monkeypatch):
    monkeypatch.setenv("GFX1100_BUILD_CACHE", "127.0.0.1:5000/cache")
    job = Job(
        root=state.root,
        stack=None,
        lock=None,
        engine=FakeEngine(),
        origin=None,
        settings=load_settings(state.root),
        console=Console(),
    )
    with pytest.raises(UsageError, match="has no tag"):
        build_stage(job, "native-build")


def test_the_workflow_never_runs_for_a_pull_request_and_signs_what_it_publishes():
    import yaml

    text = (Path(__file__).parents[2] / ".github/workflows/images.yml").read_text()
    value = yaml.load(text, Loader=yaml.BaseLoader)
    assert set(value["on"]) == {"push", "workflow_dispatch"}
    assert value["permissions"] == {}
    assert json.dumps(value["jobs"]["native"]["permissions"]).count("write") == 1
    assert "--sign keyless" in text
    # every stack can be asked for, also one that compiles nothing
    root = Path(__file__).parents[2]
    assert sorted(value["on"]["workflow_dispatch"]["inputs"]["stack"]["options"]) == sorted(stack_names(root))
    stages = {name: " AS native-build\n" in dockerfile_path(root, name).read_text() for name in stack_names(root)}
    assert [name for name, compiles in stages.items() if not compiles] == ["vllm-upstream"]
    assert "grep --quiet ' AS native-build$' \"dockerfiles/$STACK/Dockerfile\"" in text
