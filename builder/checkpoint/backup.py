"""Changes inside a checkpoint's own folder: with a backup that no engine takes for a config, and a way back.

A change is prepared whole in a hidden folder: the originals (a link as a link), the new files, and a journal. Then the
new files take their places by one rename each, the file that engines read last. So at every moment the checkpoint
loads as before, or as fixed; a link into a cache is replaced and never written through.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from builder.checkpoint.tensors import parse_json
from builder.errors import HostError, UsageError
from builder.files import read_bytes, read_text, sha256

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BACKUP = ".gfx1100-backup"
JOURNAL = "journal"
# no engine's search for *.json finds these, not even one that goes into folders
ORIGINAL, NEW = ".original", ".new"
LINK = "link:"


def replace_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Replace files of a folder together, in the order given; the caller holds the folder.

    Args:
        folder: The folder.
        texts: The new texts by file name; the last is the one that makes the difference to engines.

    Raises:
        UsageError: An earlier change can neither be kept nor be set aside.
    """
    backup = folder / BACKUP
    if backup.exists():
        aside = (folder / f"{BACKUP}.{number}" for number in itertools.count(1))
        backup.rename(next(path for path in aside if not path.exists()))
    journal = {}
    with staging(folder / f"{BACKUP}.partial") as staged:
        for name, text in texts.items():
            shutil.copy2(folder / name, staged / (name + ORIGINAL), follow_symlinks=False)
            write_new(staged / (name + NEW), text.encode(), like=folder / name)
            journal[name] = {"original": _print(folder / name), "written": sha256(text)}
        write_new(staged / JOURNAL, json.dumps(journal, indent=2).encode(), like=folder / next(iter(texts)))
        sync(staged)
        staged.rename(backup)
    sync(folder)
    for name in texts:
        (backup / (name + NEW)).replace(folder / name)
    sync(folder)


def interrupted(folder: Path) -> bool:
    """Tell whether a change, or its undoing, was stopped half-way."""
    backup = folder / BACKUP
    if not backup.exists():
        return False
    journal = _journal(backup)
    return not journal or any(
        (backup / (name + NEW)).exists() or not os.path.lexists(backup / (name + ORIGINAL)) for name in journal
    )


def restore_files(folder: Path) -> list[str]:
    """Bring back what :func:`replace_files` replaced, links as links; the caller holds the folder.

    Raises:
        UsageError: There is no backup, or a file has been changed since, which going back would lose.
    """
    backup = folder / BACKUP
    if not backup.exists():
        raise UsageError(f"{folder} has no {BACKUP}: nothing was changed in place here")
    journal = _journal(backup)
    for name, known in journal.items():
        now = _print(folder / name) if os.path.lexists(folder / name) else "nothing"
        if now not in (known["original"], known["written"]):
            raise UsageError(
                f"{folder / name} has been changed since it was fixed, and going back would lose that",
                hint=f"the original is {backup / (name + ORIGINAL)}",
            )
    for name in journal:
        with contextlib.suppress(FileNotFoundError):  # an earlier undo, stopped half-way, has moved it
            (backup / (name + ORIGINAL)).replace(folder / name)
    sync(folder)
    for name in journal:
        (backup / (name + NEW)).unlink(missing_ok=True)
    (backup / JOURNAL).unlink(missing_ok=True)
    backup.rmdir()
    return list(journal)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder against a second run of ours; the kernel frees it when the process ends, however it ends.

    Raises:
        HostError: Another run holds it.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as trouble:
            raise HostError(f"another run is changing {folder}", hint="wait until it ends, then try again") from trouble
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def staging(path: Path) -> Iterator[Path]:
    """Yield an empty folder to prepare things in; what a stopped run left there goes, and all of it when we fail."""
    path.mkdir(exist_ok=True)
    with held(path):
        for left in path.iterdir():
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        try:
            yield path
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise


def write_new(path: Path, data: bytes, *, like: Path) -> None:
    """Write a new file and bring it to the disk; owner and permissions follow ``like``."""
    with _named(path), path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    adopt(path, like=like)


def adopt(path: Path, *, like: Path) -> None:
    """Give a file or a folder the permissions and, where we may, the owner of another."""
    found = like.stat()
    path.chmod(found.st_mode & 0o777)
    with contextlib.suppress(PermissionError):  # only root gives files away, and only root needs to
        os.chown(path, found.st_uid, found.st_gid)


def sync(folder: Path) -> None:
    """Bring a folder's entries to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _named(folder):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Give an error of a write, which has none, the name of the file."""
    try:
        yield
    except OSError as trouble:
        trouble.filename = trouble.filename or str(path)
        raise


def _journal(backup: Path) -> dict[str, dict[str, str]]:
    """Return the journal; the one of an undo that was stopped after it had gone is empty."""
    if not (backup / JOURNAL).exists():
        return {}
    journal: dict[str, dict[str, str]] = parse_json(read_text(backup / JOURNAL), str(backup / JOURNAL))
    return journal


def _print(path: Path) -> str:
    """Return what tells one state of a file from another: a link's text, or the hash of its bytes."""
    return LINK + str(Path(path).readlink()) if path.is_symlink() else sha256(read_bytes(path))
