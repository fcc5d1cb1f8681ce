"""A bare machine's engine and registry: started here, gone at the end, and with their data the next time."""

import os
import tarfile
import urllib.request
from pathlib import Path

import pytest

from builder.console import Console
from builder.engine import address, local, packages
from builder.errors import HostError

pytestmark = pytest.mark.engine


@pytest.fixture
def bare(tmp_path, monkeypatch, engine):
    """A machine whose default socket nobody serves, without systemd, in a network of its own.

    The engine that other tests use goes on beside it; two of them in one network would share a bridge.
    """
    root = packages.as_root()
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(address, "DEFAULT", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr(local, "SYSTEMD", tmp_path / "no-systemd")
    monkeypatch.setattr(packages, "as_root", lambda: [*root, "unshare", "--net"])
    return tmp_path


def processes(word):
    """Return the command lines of the processes of this machine that hold a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in text:
            found.append(text)
    return found


def socket_folder(engine):
    return str(Path(engine.environment["DOCKER_HOST"].removeprefix("unix://")).parent)


@pytest.fixture
def tiny(tmp_path):
    """The tar of an image of one static program, the init that comes with the engine."""
    with tarfile.open(tmp_path / "tiny.tar", "w") as tar:
        tar.add(os.path.realpath(packages.program("docker-init")), "init")
    return tmp_path / "tiny.tar"


def test_an_engine_of_ours_works_keeps_its_images_and_leaves_nothing_running(bare, tiny):
    for known in (False, True):
        with local.ensure_engine(install=False, console=Console(), state=bare) as engine:
            assert (engine.image("tiny:1") is not None) == known
            made = engine.import_image(tiny, "tiny:1", labels={})
            assert engine.run_once(made.id, ["/init", "--version"], files={}, timeout=60).stdout.startswith("tini ")
            assert len(processes(socket_folder(engine))) >= 2  # dockerd and its containerd
        assert processes(socket_folder(engine)) == []
        assert not Path(socket_folder(engine)).exists()


@pytest.mark.parametrize("keep", [False, True])
def test_with_systemd_the_service_is_started_and_stopped_again_unless_kept(bare, monkeypatch, engine, keep):
    service = bare / "none.sock"
    there = engine.environment["DOCKER_HOST"].removeprefix("unix://")
    stub = bare / "systemctl"
    stub.write_text(f'#!/bin/sh\ncase "$1" in start) ln -s {there} {service};; stop) rm {service};; esac\n')
    stub.chmod(0o755)
    real = packages.program
    monkeypatch.setattr(local, "SYSTEMD", bare)
    monkeypatch.setattr(packages, "as_root", list)
    monkeypatch.setattr(packages, "program", lambda name: str(stub) if name == "systemctl" else real(name))
    with local.ensure_engine(install=False, console=Console(), state=bare, keep=keep) as found:
        assert found.capacity() == engine.capacity()
    assert service.exists() == keep


def test_an_engine_that_is_kept_is_found_again_and_said_how_to_stop(bare, capsys):
    with local.ensure_engine(install=False, console=Console(), state=bare, keep=True) as engine:
        folder = Path(socket_folder(engine))
    try:
        assert f"export DOCKER_HOST=unix://{folder}/docker.sock" in capsys.readouterr().err
        with local.ensure_engine(install=False, console=Console(), state=bare) as same:
            assert same.name == engine.name
        assert processes(str(folder)) != []
    finally:
        (bare / "engine" / "kept").unlink()
        with local.ensure_engine(install=False, console=Console(), state=bare):
            pass
    assert processes(str(folder)) == []


def test_an_engine_that_does_not_come_up_shows_its_log(bare):
    (bare / "engine").mkdir()
    (bare / "engine" / "data").write_text("in the way")
    with (
        pytest.raises(HostError, match=r"(?s)dockerd ended at once; the end of .*points to a file"),
        local.ensure_engine(install=False, console=Console(), state=bare),
    ):
        pytest.fail("it cannot work")


def test_without_an_engine_and_without_leave_to_install_it_says_what_to_do(bare, monkeypatch):
    monkeypatch.setattr(packages, "program", lambda _: None)
    with (
        pytest.raises(HostError, match=r"docker\.io is not installed") as caught,
        local.ensure_engine(install=False, console=Console(), state=bare),
    ):
        pytest.fail("there is none")
    assert "sudo apt-get install --no-install-recommends docker.io" in caught.value.hint


def test_an_engine_that_somebody_named_is_never_replaced_by_another(bare, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{bare}/gone.sock")
    with (
        pytest.raises(HostError, match=r"no container engine answers at .*gone\.sock \(DOCKER_HOST\)"),
        local.ensure_engine(install=True, console=Console(), state=bare),
    ):
        pytest.fail("it does not answer")


def test_an_engine_that_answers_is_used_and_runs_on(engine, tmp_path):
    with local.ensure_engine(install=False, console=Console(), state=tmp_path) as same:
        assert same.name == engine.name
    assert same.capacity()[0] == os.cpu_count()
    assert list(tmp_path.iterdir()) == []


def answers(at):
    try:
        with urllib.request.urlopen(f"http://{at}/v2/", timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_a_registry_on_loopback_is_there_inside_the_block_and_gone_after_it(tmp_path, monkeypatch):
    # any free port: the preferred one may be wanted by another run on this machine at the same moment
    monkeypatch.setattr(local, "REGISTRY_PORT", 0)
    with local.ensure_registry(install=True, console=Console(), state=tmp_path) as at:
        assert at.startswith("127.0.0.1:")
        assert answers(at)
        with local.ensure_registry(install=True, console=Console(), state=tmp_path) as same:
            assert same == at
        assert answers(at)
    assert not answers(at)


def test_a_registry_whose_port_is_taken_takes_another(tmp_path, registry):
    taken = int(registry.split(":")[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "REGISTRY_PORT", taken)
        with local.ensure_registry(install=True, console=Console(), state=tmp_path) as at:
            assert at != registry
            assert answers(at)
            assert answers(registry)


def test_a_registry_that_may_not_be_fetched_says_what_to_do(tmp_path, monkeypatch):
    real = packages.program
    monkeypatch.setattr(packages, "program", lambda name: None if name == "docker-registry" else real(name))
    with (
        pytest.raises(HostError, match="docker-registry is not here") as caught,
        local.ensure_registry(install=False, console=Console(), state=tmp_path),
    ):
        pytest.fail("there is none")
    assert "apt-get install docker-registry" in caught.value.hint
