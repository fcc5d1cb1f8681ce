"""Which engine is meant: DOCKER_HOST, else DOCKER_CONTEXT, else the active context, else the default socket.

The order is the docker CLI's own (https://docs.docker.com/engine/manage-resources/contexts/), so that this program
and the command line never talk to different hosts.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import HostError, UsageError
from builder.files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.port import Engine

DEFAULT = "unix:///var/run/docker.sock"


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where an engine listens.

    Attributes:
        url: ``unix://``, ``tcp://`` or ``ssh://``.
        certificates: Folder with ca.pem, cert.pem and key.pem for TLS, or None.
        origin: What named it, for messages.
    """

    url: str
    certificates: Path | None = None
    origin: str

    def environment(self) -> dict[str, str]:
        """Return the variables that make the docker command line talk to this very engine."""
        named = {"DOCKER_HOST": self.url}
        if self.certificates is not None:
            named |= {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(self.certificates)}
        return named


def resolve_address(environ: Mapping[str, str]) -> Address:
    """Return the address of the engine that this environment means.

    Raises:
        UsageError: The context that is named does not exist, or its file does not fit.
    """
    folder = _config_folder(environ)
    if environ.get("DOCKER_HOST"):
        tls = bool(environ.get("DOCKER_TLS_VERIFY"))
        certificates = Path(environ.get("DOCKER_CERT_PATH") or folder) if tls else None
        return Address(url=environ["DOCKER_HOST"], certificates=certificates, origin="DOCKER_HOST")
    name, origin = environ.get("DOCKER_CONTEXT"), "DOCKER_CONTEXT"
    if not name:
        path, config = docker_config(environ)
        name, origin = config.get("currentContext"), f"the active context in {path}"
    if not name or name == "default":
        return Address(url=DEFAULT, origin="the default socket")
    return _context(folder / "contexts", name, origin)


def docker_config(environ: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    """Return the path of the docker command line's configuration and what is in it; nothing when there is none.

    Raises:
        UsageError: It is damaged.
    """
    path = _config_folder(environ) / "config.json"
    return path, _json(path) if path.is_file() else {}


def check_listening(address: Address, environ: Mapping[str, str]) -> None:
    """Return when the address's socket accepts a connection; other schemes than ``unix`` are left to the client.

    Raises:
        HostError: Nothing listens there; says whether an engine is missing, stopped, or not open to this user.
    """
    if not address.url.startswith("unix://"):
        return
    path = address.url.removeprefix("unix://")
    where = f"{path} ({address.origin})"
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.settimeout(10)
    try:
        probe.connect(path)
    except PermissionError as trouble:
        raise HostError(
            f"permission denied on the container engine's socket {where}",
            hint="run `sudo usermod -aG docker $USER`, log in again (or `newgrp docker`), and try again",
        ) from trouble
    except OSError as trouble:
        search = environ.get("PATH")
        if any(shutil.which(program, path=search) for program in ("dockerd", "docker", "podman")):
            raise HostError(
                f"no container engine answers at {where}: {trouble.strerror}",
                hint="start it (`sudo systemctl start docker`; without a service manager `sudo dockerd`), "
                "or name another with DOCKER_HOST",
            ) from trouble
        raise HostError(
            f"no container engine is installed, and nothing answers at {where}",
            hint="install it (`sudo apt-get install docker.io`), or name one with DOCKER_HOST",
        ) from trouble
    finally:
        probe.close()


def is_here(engine: Engine, data_root: Path, memory: int) -> bool:
    """Return whether the engine's host is this one: a socket of this machine alone may lead into a virtual machine.

    Args:
        engine: The engine.
        data_root: Where it keeps its data.
        memory: Bytes of memory of its host.
    """
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    own = int(next(line for line in lines if line.startswith("MemTotal:")).split()[1]) * 1024
    on_socket = engine.environment.get("DOCKER_HOST", "").startswith("unix://")
    return on_socket and data_root.is_dir() and abs(own - memory) < own // 100


def _config_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME", "/root")) / ".docker")


def _context(folder: Path, name: str, origin: str) -> Address:
    """Read a context of the CLI: ``meta/<sha256 of the name>/meta.json`` and ``tls/<same>/docker/``."""
    key = hashlib.sha256(name.encode()).hexdigest()
    path = folder / "meta" / key / "meta.json"
    if not path.is_file():
        raise UsageError(
            f"{origin} names the docker context {name!r}, which does not exist ({path})",
            hint="list the contexts with `docker context ls`, choose one with `docker context use`",
        )
    url = ((_json(path).get("Endpoints") or {}).get("docker") or {}).get("Host")
    if not isinstance(url, str) or "://" not in url:
        raise UsageError(f"the docker context {name!r} names no host ({path})")
    certificates = folder / "tls" / key / "docker"
    return Address(
        url=url, certificates=certificates if certificates.is_dir() else None, origin=f"the docker context {name!r}"
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as trouble:
        raise UsageError(f"{path} is not JSON: {trouble}") from trouble
    if not isinstance(value, dict):
        raise UsageError(f"{path}: a mapping is expected, found {type(value).__name__}")
    return value
