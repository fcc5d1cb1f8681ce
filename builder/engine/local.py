"""A container engine and a registry on a bare machine: used when there, else installed, started and stopped."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from builder.engine import address, packages
from builder.engine.daemon import Daemon
from builder.engine.docker import connect
from builder.errors import HostError
from builder.files import sha256, write_atomic
from builder.process import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.console import Console
    from builder.engine.port import Engine

# docker.io is one package in Debian 12; later releases keep the command line and BuildKit's plugin apart
ENGINE_PACKAGES = ("docker.io", "docker-cli", "docker-buildx", "iptables")
SERVICES = ("docker.service", "docker.socket")
SYSTEMD = Path("/run/systemd/system")
SERVICE_SECONDS = 120
PING_SECONDS = 5.0
# of the range that IANA leaves to private use; stable, so that a second run pushes to the same name
REGISTRY_PORT = 53017
REGISTRY_CONFIG = """\
version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: "{data}"}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@contextlib.contextmanager
def ensure_engine(*, install: bool, console: Console, state: Path, keep: bool = False) -> Iterator[Engine]:
    """Yield the container engine of this machine, installed and started when it must be.

    One that answers is used as it is. Else it is installed from the distribution's packages, and started: by systemd,
    or without a service manager as an own ``dockerd`` whose data lies in ``state`` and serves the next run too. What
    was started is stopped at the end.

    Args:
        install: Whether packages may be installed.
        console: Where that is said.
        state: The state folder.
        keep: Leave running what was started.

    Raises:
        HostError: There is none and it may not be installed, or it does not start; says what to do.
    """
    where = address.resolve_address(os.environ)
    if _listens(where) or not _may_start(where):
        yield connect()
        return
    if packages.program("dockerd") is None:
        packages.install(
            ENGINE_PACKAGES, allowed=install, why="no container engine answers, and none is installed", console=console
        )
    with _service(where, console, keep=keep) if SYSTEMD.is_dir() else _own_daemon(state, console, keep=keep) as engine:
        yield engine


@contextlib.contextmanager
def ensure_registry(*, install: bool, console: Console, state: Path, keep: bool = False) -> Iterator[str]:
    """Yield the address of a registry on loopback, ``127.0.0.1:<port>``, started here and stopped at the end.

    Args:
        install: Whether the program may be fetched from the distribution's packages; it is unpacked into ``state``,
            not installed, because the package would start a registry that is open to the network.
        console: Where that is said.
        state: The state folder; the registry's data lies in it and serves the next run too.
        keep: Leave it running.

    Raises:
        HostError: The program is missing and may not be fetched, or it does not start.
    """
    folder = state / "registry"
    program = registry_program(folder, install=install, console=console)
    config, pidfile = folder / "config.yml", folder / "pid"
    daemon = Daemon([program, "serve", str(config)], pidfile=pidfile, log=folder / "log")

    def begin() -> None:
        port = _free_port()
        write_atomic(config, REGISTRY_CONFIG.format(data=folder / "data", port=port))
        daemon.start(lambda: _answers(port))
        console.step(f"started a registry at 127.0.0.1:{port}")

    with daemon.shared(begin, folder=folder, keep=keep):
        at = re.findall(r"127\.0\.0\.1:\d+", config.read_text())[-1]
        if keep:
            console.note(f"the registry stays at {at}; stop it with `kill {pidfile.read_text().strip()}`")
        yield at


def _listens(where: address.Address) -> bool:
    try:
        address.check_listening(where, os.environ)
    except HostError:
        return False
    return True


def _pings(where: address.Address) -> bool:
    """Whether an engine answers; its socket takes connections before that."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(PING_SECONDS)
        try:
            asked.connect(where.url.removeprefix("unix://"))
            asked.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return asked.recv(64).split()[1:2] == [b"200"]
        except OSError:
            return False


def _may_start(where: address.Address) -> bool:
    """Whether nobody chose an engine, and the default socket is not merely closed to this user."""
    path = Path(where.url.removeprefix("unix://"))
    return where.url == address.DEFAULT and (not path.exists() or os.access(path, os.R_OK | os.W_OK))


@contextlib.contextmanager
def _service(where: address.Address, console: Console, *, keep: bool) -> Iterator[Engine]:
    root, systemctl = packages.as_root(), packages.program("systemctl") or "systemctl"
    if not _listens(where):
        console.step("starting the docker service")
        run([*root, systemctl, "start", "docker.service"], timeout=SERVICE_SECONDS, failure=HostError)
    try:
        yield connect()
    finally:
        if keep:
            console.note("the docker service stays; stop it with `sudo systemctl stop docker.service docker.socket`")
        else:
            run([*root, systemctl, "stop", *SERVICES], timeout=SERVICE_SECONDS, failure=HostError)


@contextlib.contextmanager
def _own_daemon(state: Path, console: Console, *, keep: bool) -> Iterator[Engine]:
    root = packages.as_root()
    # a state's own, below /run, as socket paths are limited to 107 bytes
    run_folder = Path("/run") / f"gfx1100-{sha256(str(state.absolute()))[:12]}"
    own = address.Address(url=f"unix://{run_folder}/docker.sock", origin="an engine that this program started")
    folder = state / "engine"
    dockerd = packages.program("dockerd")
    if dockerd is None:
        raise HostError("dockerd is not installed", hint="install docker.io, or name an engine with DOCKER_HOST")
    pidfile, log = run_folder / "pid", folder / "dockerd.log"
    daemon = Daemon(
        [
            dockerd,
            f"--data-root={folder / 'data'}",
            f"--exec-root={run_folder / 'exec'}",
            f"--pidfile={run_folder / 'exec.pid'}",
            f"--host={own.url}",
            f"--group={os.getgid()}",
        ],
        pidfile=pidfile,
        log=log,
        prefix=root,
        scratch=run_folder,
    )

    def begin() -> None:
        console.step("starting dockerd, as there is no service manager")
        run([*root, "mkdir", "-p", str(run_folder)], timeout=60, failure=HostError)
        try:
            daemon.start(lambda: _pings(own))
        except HostError as trouble:
            raise HostError(trouble.message, hint=_remedy(trouble.message)) from trouble

    with daemon.shared(begin, folder=folder, keep=keep):
        if keep:
            console.note(
                f"the engine stays; reach it with `export DOCKER_HOST={own.url}`, "
                f"stop it with `sudo kill {pidfile.read_text().strip()}`"
            )
        yield connect({**os.environ, **own.environment()})


def _remedy(said: str) -> str:
    """Return the next step for the end of a dockerd log."""
    if "iptables" in said:
        return "install iptables, and check that the kernel has its modules"
    if "cgroup" in said:
        return "install and run cgroupfs-mount: control groups are not mounted"
    return "read the log; docker's own check-config.sh tells what the kernel lacks"


def registry_program(folder: Path, *, install: bool, console: Console) -> str:
    """Return the registry's program: the system's, else the one that is unpacked into a folder, perhaps only now."""
    own = folder / "program" / "usr/bin/docker-registry"
    found = packages.program("docker-registry") or (str(own) if own.is_file() else None)
    if found is None:
        packages.unpack("docker-registry", folder / "program", allowed=install, why="to publish to", console=console)
        found = str(own)
    return found


def _free_port() -> int:
    """Return the preferred port, or another one when somebody has it."""
    for wanted in (REGISTRY_PORT, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", wanted))
            return int(probe.getsockname()[1])
    raise HostError("no port is free on 127.0.0.1")


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()
