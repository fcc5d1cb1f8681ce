"""The whole way of serve on made-up hosts: what is checked, in which order, and what would be started."""

import json

import pytest
from checkpoint_twin import PLUS, tiny, twin
from fake_engine import FakeEngine, image
from made_hosts import GIB, no_kfd, wrong_gids, xtx

from builder.checkpoint import fix
from builder.cli.state import find_root
from builder.console import Console
from builder.deploy.history import Entry, append
from builder.deploy.launch import check_checkpoint, launch, wait_for_cards
from builder.engine.port import Output
from builder.errors import HostError, UsageError
from builder.host import reader
from builder.host.host import read_host
from builder.models.profile import load_profile

ROOT = find_root(None)
OCTAVE = load_profile(ROOT, "vllm-octave-256k")
IMAGE = image(7, user="10001:10001")
REFERENCE = "registry.example/vllm@sha256:" + "7" * 64


class Told(Console):
    """A console that keeps what it was told."""

    def __init__(self):
        super().__init__()
        self.said = []

    def step(self, text):
        self.said.append(text)

    note = step


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Return a function that makes a host of the made-up ones and lets this machine be it."""

    def make(how=xtx, **more):
        folder = how(tmp_path / "host", **more)
        read = read_host(folder)
        monkeypatch.setattr("builder.host.host.read_host", lambda: read)
        return read

    return make


@pytest.fixture
def try_it(tmp_path):
    """Return a function that launches without starting; it gives what would be started and what was said."""
    asked = []

    def call(profile=OCTAVE, model=None, engine=None, **more):
        console = Told()
        found = lambda: asked.append("image") or (IMAGE, REFERENCE)  # noqa: E731
        engine = engine or FakeEngine([IMAGE])
        shown = launch(
            engine, profile, found, root=ROOT, state=tmp_path, console=console, model=model, dry_run=True, **more
        )
        assert engine.boxes == {}
        return shown, console.said

    call.asked = asked
    return call


@pytest.fixture
def fixed(tmp_path):
    """A checkpoint of the model of record whose MTP rules were rewritten: a folder of links."""
    return fix(twin(tmp_path / "qwen")).output


def test_a_fit_host_and_a_fixed_checkpoint_show_what_would_be_started(host, try_it, fixed, tmp_path):
    host()
    shown, said = try_it(model=fixed)
    value = shown.as_json()
    assert value["devices"] == ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"]
    assert value["groups"] == [992]
    assert value["shm_bytes"] == 17179869184
    assert {mount["at"] for mount in value["mounts"]} == {"/models/model", "/models/qwen"}
    assert all(mount["read_only"] for mount in value["mounts"])
    assert list(value["volumes"]) == ["gfx1100-cache-7777777777777777"]
    assert any("KV tokens" in line for line in said)


def test_a_checkpoint_whose_rules_must_be_rewritten_stops_with_the_command(host, try_it, tmp_path):
    host()
    model = twin(tmp_path / "qwen")
    with pytest.raises(UsageError, match="would not load") as caught:
        try_it(model=model)
    assert caught.value.hint.startswith(f"gfx1100 checkpoint fix {model}, then --model {model}-mtp-fixed")
    assert try_it.asked == [], "nothing is pulled for what will not run"


def test_a_host_without_the_driver_is_refused_before_anything_else(host, try_it, tmp_path):
    host(no_kfd)
    with pytest.raises(HostError, match="/dev/kfd is not there") as caught:
        try_it(model=tmp_path / "missing")
    assert "modprobe" in caught.value.hint


def test_wrong_groups_are_refused_with_the_cure(host, try_it, fixed):
    host(wrong_gids)
    with pytest.raises(HostError, match="render-group"):
        try_it(model=fixed)


def test_too_few_cards_are_refused(host, try_it, fixed):
    host(count=1)
    with pytest.raises(HostError, match="needs 2 gfx1100 cards, 1 are there"):
        try_it(model=fixed)


def test_an_error_in_the_command_is_refused_with_its_rule(host, try_it, fixed):
    host()
    flags = tuple("TRITON_ATTN" if word == "ROCM_OCTAVE" else word for word in OCTAVE.command)
    with pytest.raises(UsageError, match="octave") as caught:
        try_it(profile=OCTAVE.model_copy(update={"command": flags}), model=fixed)
    assert "ROCM_OCTAVE" in caught.value.hint


def test_too_little_ram_is_refused_with_the_flag_to_change(host, try_it, fixed):
    host(ram=24, free=16)
    with pytest.raises(HostError, match="does not fit") as caught:
        try_it(model=fixed)
    assert caught.value.hint


def test_memory_that_the_old_deployment_holds_counts_as_free(host, try_it, fixed, tmp_path):
    host(ram=64, free=16)
    engine = FakeEngine([IMAGE])
    engine.containers = lambda _: [running_octave()]
    shown, _ = try_it(model=fixed, engine=engine)
    assert shown.spec.devices


def running_octave():
    from builder.deploy.labels import labels_of
    from builder.engine.port import Container

    labels = labels_of(OCTAVE, REFERENCE, ["/dev/kfd", "/dev/dri/renderD128"])
    return Container(id="o", name="gfx1100-vllm-octave-256k", image_id=IMAGE.id, state="running", labels=labels)


def test_the_model_of_the_last_deployment_is_taken_again(host, try_it, fixed, tmp_path):
    host()
    entry = Entry(at="2026-01-01T00:00:00+00:00", event="ready", image=REFERENCE, image_id=IMAGE.id, model=str(fixed))
    append(tmp_path, OCTAVE.name, entry)
    shown, _ = try_it()
    assert fixed.resolve() in shown.spec.mounts


def test_a_profile_without_a_model_folder_asks_for_it(host, try_it):
    host()
    with pytest.raises(UsageError, match="needs a folder at /models/model"):
        try_it()


def test_an_engine_on_another_machine_is_read_there_and_its_folders_are_taken_unseen(try_it, tmp_path):
    open_profile = OCTAVE.model_copy(update={"address": "0.0.0.0"})
    engine = FakeEngine([IMAGE])
    engine.environment = {"DOCKER_HOST": "ssh://me@gpubox"}
    engine.answer = Output(returncode=0, stdout=json.dumps(reader.read(xtx(tmp_path / "host"))), stderr="")
    shown, _ = try_it(profile=open_profile, model=tmp_path / "only-there", engine=engine)
    assert shown.url == "http://gpubox:8080"
    assert shown.spec.mounts == {tmp_path / "only-there": ("/models/model", True)}
    assert try_it.asked == ["image"], "the host is read in a container of the image"


def test_the_smoke_profile_needs_no_card(host, try_it):
    host(no_kfd)
    shown, _ = try_it(profile=load_profile(ROOT, "smoke"))
    assert shown.spec.devices == ()
    assert shown.spec.volumes == {}


def test_refuse_stops_only_the_engine_that_would_not_load_it(tmp_path):
    packed = {"mtp.fc.qweight": ("I32", [8, 64]), "mtp.fc.scales": ("F16", [1, 64]), "mtp.fc.qzeros": ("I32", [1, 8])}
    wrong = tiny(tmp_path / "wrong", {"-:.*mtp.*": {}}, mtp=packed)
    with pytest.raises(UsageError, match="would not load with vllm"):
        check_checkpoint(OCTAVE, wrong, Told())
    right = tiny(tmp_path / "right", PLUS, mtp=packed)
    check_checkpoint(OCTAVE, right, Told())


def test_an_unknown_quantization_is_a_warning(tmp_path):
    console = Told()
    folder = tiny(tmp_path / "m", config=json.dumps({"quantization_config": {"quant_method": "brandnew"}}))
    check_checkpoint(OCTAVE, folder, console)
    assert any("brandnew" in line for line in console.said)


def test_cards_are_waited_for_until_their_memory_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr("builder.deploy.launch.POLL_SECONDS", 0.0)
    states = [read_host(xtx(tmp_path / "full")), read_host(xtx(tmp_path / "free"))]
    for used in (tmp_path / "full").glob("sys/bus/pci/devices/*/mem_info_vram_used"):
        used.write_text(str(20 * GIB))
    states[0] = read_host(tmp_path / "full")
    console, reads = Told(), iter(states)
    wait_for_cards(lambda: next(reads), ("/dev/kfd", "/dev/dri/renderD128"), console=console)
    assert next(reads, None) is None
    assert console.said == []


def test_cards_that_stay_full_are_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr("builder.deploy.launch.POLL_SECONDS", 0.0)
    monkeypatch.setattr("builder.deploy.launch.FREE_SECONDS", 0.0)
    xtx(tmp_path)
    for used in tmp_path.glob("sys/bus/pci/devices/*/mem_info_vram_used"):
        used.write_text(str(20 * GIB))
    console = Told()
    wait_for_cards(lambda: read_host(tmp_path), ("/dev/dri/renderD128",), console=console)
    assert "20.0 GiB" in console.said[0]
