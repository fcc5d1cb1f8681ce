"""What a tree may hold, checked before a byte of it is written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.source.git import Entry

FILE, PROGRAM, LINK, SUBMODULE = "100644", "100755", "120000", "160000"
# path components and link targets that Linux can hold (limits.h: NAME_MAX, PATH_MAX with its final NUL)
_NAME_BYTES = 255
_TARGET_BYTES = 4095
_HOPS = 40


def check_names(entries: Iterable[Entry]) -> None:
    """Refuse a tree that cannot be written out safely.

    Raises:
        UsageError: A path is absolute or climbs, names git's own folder, holds control characters, stands twice, or
            is a file and a folder at once; or an entry is of a kind that a folder cannot hold.
    """
    paths: set[bytes] = set()
    folders: set[bytes] = set()
    for entry in entries:
        above, slash, name = entry.path.rpartition(b"/")
        while slash and above not in folders:
            folders.add(above)
            above, slash, _ = above.rpartition(b"/")
        if entry.path in paths:
            raise _refused(entry.path, "stands twice in the tree")
        paths.add(entry.path)
        why = _strange(name)
        if why:
            raise _refused(entry.path, why)
        if not entry.mode.startswith("100") and entry.mode not in {LINK, SUBMODULE}:
            raise _refused(entry.path, f"has the mode {entry.mode}, which is no file, link or submodule")
    for folder in folders:
        why = _strange(folder.rpartition(b"/")[2]) or ("is a file and a folder" if folder in paths else "")
        if why:
            raise _refused(folder, why)


def check_links(targets: Mapping[bytes, bytes]) -> None:
    """Refuse links that lead out of the tree, also when they do so through another link.

    Args:
        targets: Each link's path and what it points to.

    Raises:
        UsageError: A link is absolute, climbs out of the tree, or is no link that Linux can hold.
    """
    for path, target in targets.items():
        if not target or b"\0" in target or len(target) > _TARGET_BYTES:
            raise _refused(path, "is a link to nothing that can be named")
        if _leaves(path, targets):
            raise _refused(path, f"is a link out of the tree, to {os.fsdecode(target)!r}")


def _strange(name: bytes) -> str:
    """Return what is wrong with one component of a path; empty when nothing is."""
    if name in {b"", b".", b".."}:
        return "does not stay inside the tree"
    # also as file systems without case, or that drop a final dot or space, would read it
    if name.lower().rstrip(b". ") == b".git" or name.lower() == b"git~1":
        return "names git's own folder"
    if b"\\" in name or any(mark < 0x20 or mark == 0x7F for mark in name):  # noqa: PLR2004 - ASCII controls
        return "holds a control character or a backslash"
    if len(name) > _NAME_BYTES:
        return f"has a name longer than {_NAME_BYTES} bytes"
    return ""


def _leaves(path: bytes, targets: Mapping[bytes, bytes]) -> bool:
    """Whether following the link at ``path`` ever stands above the tree's root; a circle never does."""
    here = path.split(b"/")[:-1]
    left = _steps(targets[path])
    if targets[path].startswith(b"/"):
        return True
    hops = 1
    while left:
        step = left.pop()
        if step == b"..":
            if not here:
                return True
            here.pop()
            continue
        here.append(step)
        target = targets.get(b"/".join(here))
        if target is not None:
            hops += 1
            if target.startswith(b"/"):
                return True
            if hops > _HOPS:
                return False
            here.pop()
            left += _steps(target)
    return False


def _steps(target: bytes) -> list[bytes]:
    """Return a link target's components, the first one last."""
    return [step for step in reversed(target.split(b"/")) if step not in {b"", b"."}]


def _refused(path: bytes, why: str) -> UsageError:
    return UsageError(f"the tree is refused: {os.fsdecode(path)!r} {why}")
