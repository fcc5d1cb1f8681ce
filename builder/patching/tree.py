"""A tree as a series sees it: the files that it touches, with what earlier patches made of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from builder.errors import HostError, UsageError
from builder.files import MIB, sha256
from builder.patching.swap import NewFile
from builder.patching.text import Source

LARGEST = 32 * MIB
"""Bytes of the largest file that is patched; the largest source file of either engine is below 1 MiB."""


class Refused(Exception):  # noqa: N818 - a finding about the tree, not an error of the program
    """A file of the tree that no patch touches: a link, a folder, or a very large file."""


class View:
    """The files of a tree, read when asked for, with changes kept in memory.

    Raises:
        UsageError: There is no such folder.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise UsageError(f"the source tree {root} is no folder")
        self._root = root
        self._old: dict[str, Source | None] = {}
        self._new: dict[str, tuple[Source | None, bool]] = {}

    def copy(self) -> View:
        """Return a view whose changes do not come into this one."""
        other = View(self._root)
        other._old, other._new = self._old, dict(self._new)
        return other

    def source(self, name: str) -> Source | None:
        """Return a file as it is now, or None when there is none.

        Raises:
            Refused: It is, or lies below, a link; it is no regular file; or it is too large.
        """
        if name in self._new:
            return self._new[name][0]
        if name not in self._old:
            data = _read(self._root, name)
            self._old[name] = None if data is None else Source.of(data)
        return self._old[name]

    def put(self, name: str, source: Source | None, *, executable: bool = False) -> None:
        """Change a file, or with None take it away."""
        self._new[name] = (source, executable)

    def changes(self) -> dict[str, NewFile]:
        """Return the files that differ from the tree's."""
        return {
            name: NewFile(
                before=sha_of(self._old[name]),
                content=None if source is None else source.data(),
                executable=executable,
            )
            for name, (source, executable) in sorted(self._new.items())
            if source != self._old[name]
        }


def sha_of(source: Source | None) -> str | None:
    """Return the hash of a file, or None when there is none."""
    return None if source is None else sha256(source.data())


def _read(root: Path, name: str) -> bytes | None:
    """Return a file's bytes; no link is followed on the way."""
    path = root
    status = None
    for part in Path(name).parts:
        path /= part
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as trouble:
            raise HostError(f"{path} cannot be read: {trouble.strerror}") from trouble
        if stat.S_ISLNK(status.st_mode):
            raise Refused(f"{name}: {path.relative_to(root)} is a link, and links are not followed")
    if status is None or not stat.S_ISREG(status.st_mode):
        raise Refused(f"{name} is no regular file")
    if status.st_size > LARGEST:
        raise Refused(f"{name} is larger than {LARGEST // MIB} MiB")
    try:
        with open(path, "rb", opener=_without_links) as file:
            return file.read(LARGEST + 1)
    except OSError as trouble:
        raise HostError(f"{path} cannot be read: {trouble.strerror}") from trouble


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
