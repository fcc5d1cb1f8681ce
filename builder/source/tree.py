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
from builder.source.git import bounded, redacted
from builder.source.shape import LINK, SUBMODULE, check_links, check_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.source.git import Entry
    from builder.source.repository import Snapshot, Source

_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An exported tree.

    Attributes:
        commit_time: The commit's time, UTC; every file and folder carries it.
        missing: The files that were left out, by the user's leave, because their blobs are in no copy at hand.
    """

    commit_time: datetime
    missing: tuple[str, ...]


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
                _write(snapshot, wanted, links, folder)
        except OSError as trouble:
            place = os.fsdecode(trouble.filename) if trouble.filename else target
            raise HostError(f"{place} could not be written: {trouble.strerror}") from trouble
    return Exported(commit_time=snapshot.time, missing=missing)


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
        f"{commit} has submodules, whose files are not in {source.location}: {bounded(named, _SHOWN)}",
        hint="use a source that holds the files themselves; submodules are not fetched",
    )


def _left_out(source: Source, commit: str, entries: list[Entry], globs: Sequence[str]) -> tuple[str, ...]:
    allowed, refused = [], []
    for entry in entries:
        path = os.fsdecode(entry.path)
        if any(fnmatch.fnmatchcase(path, glob) for glob in globs):
            allowed.append(path)
        else:
            refused.append(f"{entry.shown} ({entry.sha})")
    if refused:
        raise UpstreamError(
            f"{source.location} lacks {len(refused)} blobs (the contents of files) of {commit}:"
            f" {bounded(refused, _SHOWN)}",
            hint="use a complete source, or leave them out with --allow-missing GLOB",
        )
    return tuple(allowed)


def _links(snapshot: Snapshot, entries: list[Entry]) -> dict[bytes, bytes]:
    """Return what each link of the tree points to."""
    links = [entry for entry in entries if entry.mode == LINK]
    with contextlib.closing(snapshot.git.read([entry.sha for entry in links])) as objects:
        return {entry.path: b"".join(pieces) for entry, (_, _, pieces) in zip(links, objects, strict=True)}


def _write(snapshot: Snapshot, entries: list[Entry], links: dict[bytes, bytes], root: Path) -> None:
    """Write everything below ``root``; links are made last."""
    moment = int(snapshot.time.timestamp())
    folders = [root / folder for folder in _folders(entries)]
    for folder in folders:
        folder.mkdir()
        folder.chmod(0o755)
    files = [entry for entry in entries if entry.mode != LINK]
    with contextlib.closing(snapshot.git.read([entry.sha for entry in files])) as objects:
        for entry, (_, _, pieces) in zip(files, objects, strict=True):
            with (root / os.fsdecode(entry.path)).open("xb") as file:
                file.writelines(pieces)
                file.flush()
                os.fchmod(file.fileno(), 0o755 if int(entry.mode, 8) & 0o111 else 0o644)
                os.utime(file.fileno(), (moment, moment))
    for path, link in links.items():
        place = root / os.fsdecode(path)
        place.symlink_to(os.fsdecode(link))
        os.utime(place, (moment, moment), follow_symlinks=False)
    for folder in (*folders, root):
        os.utime(folder, (moment, moment))


def _folders(entries: list[Entry]) -> list[str]:
    """Return every folder that the entries lie in, parents first."""
    found: set[bytes] = set()
    for entry in entries:
        folder = entry.path.rpartition(b"/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition(b"/")[0]
    return [os.fsdecode(folder) for folder in sorted(found)]
