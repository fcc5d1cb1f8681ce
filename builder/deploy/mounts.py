"""A model folder in a container: the folder itself, and the folders that its links lead to."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.engine.port import Image

LINKS = 16  # symbolic links in a row, fewer than the kernel's 40


def model_mounts(folder: Path, at: str) -> dict[Path, tuple[str, bool]]:
    """Return the read-only mounts that make a model folder whole in a container.

    A checkpoint that ``checkpoint fix`` wrote, or a snapshot in a hub's cache, is a folder of symbolic links: inside
    the container they lead nowhere unless the folders that they point to are there as well, where they point to.

    Args:
        folder: The model folder on this machine.
        at: Where the container has it.

    Raises:
        UsageError: The folder is not there, a link leads nowhere, or to where nothing may be mounted.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder on this machine", hint="name the checkpoint with --model DIR")
    root, inside = folder.resolve(), PurePosixPath(at)
    mounts: dict[Path, tuple[str, bool]] = {root: (at, True)}
    for path in sorted(root.rglob("*")):
        for host, there in _hops(path, inside / path.relative_to(root).as_posix()):
            if there.is_relative_to(inside):
                continue
            if inside.is_relative_to(there) or len(there.parts) < 2:  # noqa: PLR2004 - the root itself
                raise UsageError(
                    f"{path} is a link to {host}, which cannot be mounted beside {at}",
                    hint="write the checkpoint with `gfx1100 checkpoint fix --copy` or --hard-links",
                )
            mounts[host] = (str(there), True)
    return mounts


def check_readable(folder: Path, image: Image) -> None:
    """Return when the image's user can read every file of a model folder.

    Raises:
        UsageError: It cannot; with the command that changes that.
    """
    user = image.user.partition(":")[0]
    if not user or user in {"0", "root"} or not folder.is_dir():
        return
    number = int(user) if user.isdigit() else -1
    for path in (folder.resolve(), *sorted(folder.resolve().rglob("*"))):
        told = path.stat()
        needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(told.st_mode) else 0)
        if told.st_uid != number and told.st_mode & needed != needed:
            raise UsageError(
                f"{path} has mode {stat.S_IMODE(told.st_mode):o}: the image's user {user} cannot read it",
                hint=f"chmod -R a+rX {folder}",
            )


def _hops(path: Path, there: PurePosixPath) -> list[tuple[Path, PurePosixPath]]:
    """Return the folders that a link leads through, on this machine and in the container."""
    hops = []
    first = path
    for _ in range(LINKS):
        if not path.is_symlink():
            break
        text = path.readlink()
        path = Path(os.path.normpath(path.parent / text))
        there = PurePosixPath(os.path.normpath(there.parent / text))
        hops.append((path.parent, there.parent))
    if not path.exists():
        raise UsageError(f"{first} is a link that leads nowhere ({path})", hint="the weights it points to were moved")
    return hops
