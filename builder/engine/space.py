"""How much room is left where an engine keeps its data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.engine.port import Engine

SECONDS = 60.0


def free_bytes(engine: Engine, *, ask: str | None) -> int | None:
    """Return the bytes that are free where the engine keeps its data, or None when nobody can tell.

    Args:
        engine: The engine, which may be on another machine.
        ask: An image of that engine with a shell, which is asked when the engine is on another machine.
    """
    data_root = engine.data_root()
    if is_here(engine, data_root, engine.capacity()[1]):
        disk = os.statvfs(data_root)
        return disk.f_bavail * disk.f_frsize
    if ask is None:
        return None
    told = engine.run_once(ask, ["stat", "--file-system", "--format", "%a %S", "/"], files={}, timeout=SECONDS)
    numbers = told.stdout.split()
    return int(numbers[0]) * int(numbers[1]) if len(numbers) == 2 and told.returncode == 0 else None  # noqa: PLR2004


def keeps_data_beside(engine: Engine, folder: Path) -> bool:
    """Return whether the engine keeps its data on the same disk of this host as a folder."""
    data_root = engine.data_root()
    return is_here(engine, data_root, engine.capacity()[1]) and data_root.stat().st_dev == folder.stat().st_dev


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
