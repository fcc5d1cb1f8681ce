"""Export: the exact files of a commit as a plain folder, each blob proved, times and modes normalised."""

from __future__ import annotations

import contextlib
import fnmatch
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import HostError, UpstreamError, UsageError
from builder.files import fresh_folder
from builder.source.git import redacted
from builder.source.shape import LINK, SUBMODULE, check_links, check_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.source.git import Entry
    from builder.source.repository import Snapshot, Source

# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md: a pointer is below 1024 bytes and begins with this line
_LFS_LINE = b"version https://git-lfs.github.com/spec/v1\n"
_LFS_BYTES = 1024
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A file that was left out because its blob is in no copy at hand."""

    path: str
    sha: str


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An exported tree.

    Attributes:
        commit: The commit, 40 hex digits.
        tree: The git tree that the files are; another one than the commit's when ``dirty``.
        dirty: Whether uncommitted changes are in it.
        files: How many files and links were written.
        bytes: Their content together.
        commit_time: The commit's time, UTC; every file and folder carries it.
        missing: What was left out, by the user's leave.
        lfs: How many files are Git LFS pointers instead of content.
    """

    commit: str
    tree: str
    dirty: bool
    files: int
    bytes: int
    commit_time: datetime
    missing: tuple[Missing, ...]
    lfs: int


def export(source: Source, commit: str, target: Path, *, allow_missing: Sequence[str] = ()) -> Exported:
    """Write the files of a commit to a folder that does not exist yet or is empty.

    The folder appears whole or not at all. Blobs are written as they are: no attribute, filter or line-end setting
    touches them. Modes become 644 or 755, times the commit's. Commit, trees and blobs are hashed as they are read, so
    that every byte written is what the commit's name stands for.

    Args:
        source: An open source.
        commit: 40 hex digits.
        target: The folder.
        allow_missing: Globs (``*`` also matches a slash) of files that may be left out when their blobs are missing.

    Raises:
        UsageError: The target is not empty; a name or link that is refused; a submodule.
        UpstreamError: The commit or blobs are missing, or could not be fetched.
        VerifyError: The content is not what the commit names.
        HostError: The files could not be written.
    """
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise UsageError(f"{target} is there already and not an empty folder", hint="name a new folder")
    with source.snapshot(commit) as snapshot:
        entries = snapshot.git.entries(snapshot.tree)
        check_names(entries)
        _refuse_submodules(source, commit, snapshot, entries)
        lacking = source.fetch_blobs(snapshot.git, snapshot.tree, {entry.sha for entry in entries})
        missing = _left_out(source, commit, [entry for entry in entries if entry.sha in lacking], allow_missing)
        wanted = [entry for entry in entries if entry.sha not in lacking]
        links = _links(snapshot, wanted)
        check_links(links)
        try:
            with fresh_folder(target) as folder:
                size, pointers = _write(snapshot, wanted, links, folder)
        except OSError as trouble:
            place = os.fsdecode(trouble.filename) if trouble.filename else target
            raise HostError(f"{place} could not be written: {trouble.strerror}") from trouble
    return Exported(
        commit=commit,
        tree=snapshot.tree,
        dirty=snapshot.dirty,
        files=len(wanted),
        bytes=size,
        commit_time=snapshot.time,
        missing=missing,
        lfs=pointers,
    )


def _refuse_submodules(source: Source, commit: str, snapshot: Snapshot, entries: list[Entry]) -> None:
    submodules = [entry for entry in entries if entry.mode == SUBMODULE]
    if not submodules:
        return
    modules = source.read_files(commit, [".gitmodules"]).get(".gitmodules", b"")
    listed = snapshot.git.run("config", "-z", "--file", "-", "--list", stdin=modules, check=False).stdout
    values = dict(line.partition(b"\n")[::2] for line in listed.split(b"\0"))
    urls = {path: values.get(key.removesuffix(b".path") + b".url", b"") for key, path in values.items()}
    named = []
    for entry in submodules:
        url = urls.get(entry.path, b"").decode(errors="replace") or "a place that .gitmodules does not name"
        named.append(f"{entry.shown} (from {redacted(url)})")
    raise UsageError(
        f"{commit} has submodules, whose files are not in {source.location}: {_bounded(named)}",
        hint="use a source that holds the files themselves; submodules are not fetched",
    )


def _left_out(source: Source, commit: str, entries: list[Entry], globs: Sequence[str]) -> tuple[Missing, ...]:
    allowed, refused = [], []
    for entry in entries:
        path = os.fsdecode(entry.path)
        if any(fnmatch.fnmatchcase(path, glob) for glob in globs):
            allowed.append(Missing(path=path, sha=entry.sha))
        else:
            refused.append(f"{entry.shown} ({entry.sha})")
    if refused:
        raise UpstreamError(
            f"{source.location} lacks {len(refused)} blobs (the contents of files) of {commit}: " + _bounded(refused),
            hint="use a complete source, or leave them out with --allow-missing GLOB",
        )
    return tuple(allowed)


def _links(snapshot: Snapshot, entries: list[Entry]) -> dict[bytes, bytes]:
    """Return what each link of the tree points to."""
    links = [entry for entry in entries if entry.mode == LINK]
    with contextlib.closing(snapshot.git.read([entry.sha for entry in links])) as objects:
        return {entry.path: b"".join(pieces) for entry, (_, _, pieces) in zip(links, objects, strict=True)}


def _write(snapshot: Snapshot, entries: list[Entry], links: dict[bytes, bytes], root: Path) -> tuple[int, int]:
    """Write everything below ``root`` and return bytes and LFS pointers; links are made last."""
    moment = int(snapshot.time.timestamp())
    folders = [root / folder for folder in _folders(entries)]
    for folder in folders:
        folder.mkdir()
        folder.chmod(0o755)
    files = [entry for entry in entries if entry.mode != LINK]
    size = pointers = 0
    with contextlib.closing(snapshot.git.read([entry.sha for entry in files])) as objects:
        for entry, (_, _, pieces) in zip(files, objects, strict=True):
            written, pointer = _write_file(root / os.fsdecode(entry.path), entry, pieces, moment)
            size += written
            pointers += pointer
    for path, link in links.items():
        place = root / os.fsdecode(path)
        place.symlink_to(os.fsdecode(link))
        os.utime(place, (moment, moment), follow_symlinks=False)
        size += len(link)
    for folder in (*folders, root):
        os.utime(folder, (moment, moment))
    return size, pointers


def _write_file(place: Path, entry: Entry, pieces: Iterator[bytes], moment: int) -> tuple[int, bool]:
    with place.open("xb") as file:
        size, pointer = 0, False
        for piece in pieces:
            pointer = size == 0 and len(piece) < _LFS_BYTES and piece.startswith(_LFS_LINE)
            size += len(piece)
            file.write(piece)
        file.flush()
        os.fchmod(file.fileno(), 0o755 if int(entry.mode, 8) & 0o111 else 0o644)
        os.utime(file.fileno(), (moment, moment))
    return size, pointer


def _folders(entries: list[Entry]) -> list[str]:
    """Return every folder that the entries lie in, parents first."""
    found: set[bytes] = set()
    for entry in entries:
        folder = entry.path.rpartition(b"/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition(b"/")[0]
    return [os.fsdecode(folder) for folder in sorted(found)]


def _bounded(words: list[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
