"""The host before a build: space, inodes, memory, bases and the network, each a line with what to do."""

import os
import socket
import types
from pathlib import Path

import pytest

from builder.build import preflight as station
from builder.build.preflight import GIB, Needs, choose_jobs, preflight
from builder.engine.base import base_reference, base_tar
from builder.engine.buildkit import Builder
from builder.engine.port import Image, Output
from builder.errors import HostError, RegistryError
from builder.models.stack import load_stack
from builder.settings import Settings

BUILDER = Builder(kind="buildx", program="/x/docker", version="0.13")
LITTLE = Needs(free_bytes=1, free_inodes=1)


class Engine:
    """An engine on this host, or with ``remote`` on another one."""

    name = "a test's engine"

    def __init__(self, root, *, remote=False, images=(), registry=()):
        self.environment = {"DOCKER_HOST": "ssh://box" if remote else "unix:///x.sock"}
        self.root, self.images, self.registry = root, images, registry

    def data_root(self):
        return self.root

    def capacity(self):
        meminfo = Path("/proc/meminfo").read_text()
        return 8, int(next(line for line in meminfo.splitlines() if "MemTotal" in line).split()[1]) * 1024

    def image(self, reference):
        return Image(id="sha256:i") if reference in self.images else None

    def remote_digest(self, reference):
        if reference not in self.registry:
            raise RegistryError(f"the registry has no {reference}", hint="pin another")
        return "sha256:i"

    def run_once(self, image, argv, *, files, timeout):
        return Output(returncode=0, stdout="1000 4096 77\nMemTotal: 9000000 kB\nMemAvailable: 6291456 kB\n", stderr="")


@pytest.fixture
def local(tmp_path):
    return Settings(state_dir=str(tmp_path), cache_dir=str(tmp_path))


def disk(monkeypatch, *, gib=100, inodes=10**7, files=10**8):
    told = types.SimpleNamespace(f_bavail=gib * GIB // 4096, f_frsize=4096, f_favail=inodes, f_files=files)
    monkeypatch.setattr(os, "statvfs", lambda _: told)


def test_a_fit_host_gets_its_jobs_and_a_line_for_each_thing(tmp_path, local):
    ready = preflight(Engine(tmp_path), BUILDER, LITTLE, local)
    assert ready.jobs >= 1
    assert any(line.startswith(f"jobs: {ready.jobs} of ") for line in ready.lines)
    assert [line.split(":")[0] for line in ready.lines] == ["engine", "builder", "space", "jobs"]


def test_too_little_space_is_said_with_both_figures(tmp_path, local, monkeypatch):
    disk(monkeypatch, gib=3)
    with pytest.raises(HostError, match=r"space: 3 GiB free at .*, 6 GiB needed: make room"):
        preflight(Engine(tmp_path), BUILDER, Needs(free_bytes=6 * GIB, free_inodes=1), local)


def test_inodes_run_out_although_there_is_space(tmp_path, local, monkeypatch):
    disk(monkeypatch, inodes=5)
    with pytest.raises(HostError, match="inodes: 5 free"):
        preflight(Engine(tmp_path), BUILDER, Needs(free_bytes=1, free_inodes=6), local)


def test_a_file_system_without_a_fixed_number_of_inodes_is_fine(tmp_path, local, monkeypatch):
    disk(monkeypatch, inodes=0, files=0)
    assert preflight(Engine(tmp_path), BUILDER, Needs(free_bytes=1, free_inodes=6), local).jobs >= 1


def test_all_that_is_wrong_is_said_at_once(tmp_path, local, monkeypatch):
    disk(monkeypatch, gib=3, inodes=5)
    needs = Needs(free_bytes=6 * GIB, free_inodes=6, images=("reg/x@sha256:1",))
    with pytest.raises(HostError) as caught:
        preflight(Engine(tmp_path), BUILDER, needs, local)
    assert [line.split(":")[0].strip() for line in caught.value.message.splitlines()[1:]] == ["space", "inodes", "base"]


@pytest.mark.parametrize(
    ("cores", "free", "jobs"), [(8, 64, 8), (8, 10, 4), (2, 24, 2), (8, 3, 1), (1, 0, 1), (16, 24, 11)]
)
def test_jobs_follow_cores_and_memory(cores, free, jobs):
    assert choose_jobs(cores, free * GIB, None)[0] == jobs


def test_the_reason_shows_the_arithmetic():
    assert choose_jobs(2, 22 * GIB, None)[1] == "jobs: 2 of 2 cores, 22 GiB free, 2 GiB each"


def test_jobs_that_were_asked_for_win():
    assert choose_jobs(2, GIB, 64) == (64, "jobs: 64 as asked for, of 2 cores, 1 GiB free")


def test_no_memory_for_a_single_job_is_not_ready(tmp_path, local, monkeypatch):
    monkeypatch.setattr(station, "_available", lambda _: GIB // 2)
    monkeypatch.setattr(station, "is_here", lambda *_: True)
    engine = Engine(tmp_path)
    with pytest.raises(HostError, match=r"memory: 0\.5 GiB free"):
        preflight(engine, BUILDER, LITTLE, local)


def test_a_remote_engine_is_asked_inside_a_container(tmp_path, local):
    needs = Needs(free_bytes=1, free_inodes=1, suites=("trixie",))
    engine = Engine(tmp_path, remote=True, images=(base_reference("trixie"),))
    ready = preflight(engine, BUILDER, needs, local)
    assert ready.jobs == 2
    assert "jobs: 2 of 8 cores, 6 GiB free, 2 GiB each" in ready.lines
    with pytest.raises(HostError, match="inodes: 77 free"):
        preflight(engine, BUILDER, Needs(free_bytes=1, free_inodes=78, suites=("trixie",)), local)


def test_a_remote_engine_without_an_image_says_that_its_space_is_unknown(tmp_path, local):
    ready = preflight(Engine(tmp_path, remote=True), BUILDER, LITTLE, local)
    assert any(line.startswith("space: unknown") for line in ready.lines)


def test_a_virtual_machine_behind_a_local_socket_is_not_taken_for_this_host(tmp_path, local):
    engine = Engine(tmp_path)
    engine.capacity = lambda: (8, 3 * GIB)
    assert any(line.startswith("space: unknown") for line in preflight(engine, BUILDER, LITTLE, local).lines)


def test_a_base_that_left_its_registry_stops_the_build(tmp_path, local):
    needs = Needs(free_bytes=1, free_inodes=1, images=("reg/x@sha256:1",))
    with pytest.raises(HostError, match=r"base: the registry has no reg/x@sha256:1: pin another"):
        preflight(Engine(tmp_path), BUILDER, needs, local)
    assert preflight(Engine(tmp_path, registry=needs.images), BUILDER, needs, local).jobs >= 1
    assert preflight(Engine(tmp_path, images=needs.images), BUILDER, needs, local).jobs >= 1


@pytest.fixture
def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


@pytest.fixture
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def mirror(local, url):
    return local.model_copy(update={"apt_mirror": url})


def test_a_base_that_must_be_made_needs_its_mirror(tmp_path, local, closed_port, no_proxy):
    needs = Needs(free_bytes=1, free_inodes=1, suites=("trixie",))
    settings = mirror(local, f"http://127.0.0.1:{closed_port}/debian")
    with pytest.raises(HostError, match=rf"network: 127\.0\.0\.1:{closed_port} cannot be reached .* check the network"):
        preflight(Engine(tmp_path), BUILDER, needs, settings)


def test_a_base_in_the_cache_needs_no_network(tmp_path, local, closed_port, no_proxy):
    needs = Needs(free_bytes=1, free_inodes=1, suites=("trixie",))
    base_tar(local.cache, "trixie").parent.mkdir()
    base_tar(local.cache, "trixie").touch()
    settings = mirror(local, f"http://127.0.0.1:{closed_port}/debian")
    assert preflight(Engine(tmp_path), BUILDER, needs, settings).jobs >= 1


def test_a_host_behind_a_proxy_is_asked_for_at_the_proxy(tmp_path, local, no_proxy, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("https_proxy", f"http://user:secret@{at}")
        ready = preflight(
            Engine(tmp_path), BUILDER, Needs(free_bytes=1, free_inodes=1, urls=("https://far.invalid/",)), local
        )
    assert ready.lines[-1] == f"network: far.invalid over the proxy {at} answers"


def test_an_index_that_cannot_be_reached_is_told_but_cached_steps_may_do_without(
    tmp_path, local, closed_port, no_proxy
):
    needs = Needs(free_bytes=1, free_inodes=1, urls=(f"http://127.0.0.1:{closed_port}/",))
    assert "cannot be reached" in preflight(Engine(tmp_path), BUILDER, needs, local).lines[-1]


def test_a_stack_from_packages_needs_less_than_one_from_a_registry():
    needs = Needs.of(load_stack(Path(__file__).parents[2], "smoke"))
    assert needs.suites == ("trixie",)
    assert needs.free_bytes == station.SMALL_BYTES
