"""New files into a tree in one step: the folder that holds them is copied as links, changed, and exchanged for the old.

A kill at any moment leaves the tree wholly old or wholly new, with no second run needed; the reason for this form is in
``docs/patches.md``. What a kill may leave is a hidden folder beside the tree, which the next call removes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import HostError
from builder.files import sha256_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EXCHANGE = 2
"""RENAME_EXCHANGE of renameat2(2), Linux 3.15."""
HERE = -100
"""AT_FDCWD of renameat2(2)."""


@dataclass(frozen=True, kw_only=True)
class NewFile:
    """What a file is to become.

    Attributes:
        before: Hash of what must be there, None for nothing.
        content: The new bytes, None when the file goes.
        executable: A new file may be executed; an old one keeps its mode.
    """

    before: str | None
    content: bytes | None
    executable: bool = False


def swap_in(root: Path, files: Mapping[str, NewFile]) -> None:
    """Put new files into a tree, all in one step; a shell that stands in the folder that holds them must re-enter it.

    Args:
        root: The tree; a link to it is followed.
        files: What becomes of each file, by its path in the tree; at least one.

    Raises:
        HostError: This tree cannot be exchanged in one step, or it changed meanwhile.
    """
    root = root.resolve(strict=True)
    target = root / _common(root, files)
    if os.path.ismount(root):
        raise HostError(
            f"{root} is a mount point, which cannot be exchanged in one step",
            hint="patch a copy of it, or mount the folder above it",
        )
    try:
        with _workplace(root) as work:
            new = work / "new"
            _link(str(target), str(new), without={str(root / name) for name in files}, device=target.lstat().st_dev)
            _write(root, target, new, files)
            _require_unchanged(root, files)
            here = _standing_in(target)
            _exchange(target, new)
    except OSError as trouble:
        raise HostError(
            f"{trouble.filename or target}: {trouble.strerror}; the tree is as it was",
            hint="patch a copy of it on a file system of your own",
        ) from trouble
    if here is not None:
        os.chdir(here)
    _remove(str(work), {str(new / (root / name).relative_to(target)) for name in files})


def _common(root: Path, files: Mapping[str, NewFile]) -> Path:
    """Return the deepest folder of the tree that holds all the files and is there already."""
    common = Path(os.path.commonpath(list(files))) if len(files) > 1 else Path(*files).parent
    while not (root / common).is_dir():
        common = common.parent
    return common


@contextlib.contextmanager
def _workplace(root: Path) -> Iterator[Path]:
    """Yield a new folder beside the tree; it goes when the block fails, and those that a kill has left go first.

    A lock on the folder itself tells those of the living from those of the dead.
    """
    prefix = f".{root.name}.gfx1100-"
    for left in [path for path in root.parent.iterdir() if path.name.startswith(prefix)]:
        with contextlib.suppress(OSError), _held(left):
            shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=root.parent))
    try:
        with _held(work):
            yield work
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _link(old: str, new: str, *, without: set[str], device: int) -> None:
    """Make a copy of a folder in which every file is the old one itself, a hard link."""
    os.mkdir(new)  # noqa: PTH102 - thousands of paths: pathlib would double the time
    with os.scandir(old) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if status.st_dev != device:
                raise HostError(f"{entry.path} is a mount point, so {old} cannot be exchanged in one step")
            if stat.S_ISDIR(status.st_mode):
                _link(entry.path, f"{new}/{entry.name}", without=without, device=device)
            elif entry.path not in without:
                os.link(entry.path, f"{new}/{entry.name}", follow_symlinks=False)
    _take_on(old, new)


def _take_on(old: str, new: str) -> None:
    """Give a path the owner, mode, times and attributes of another."""
    status = os.lstat(old)
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(new, status.st_uid, status.st_gid)
    shutil.copystat(old, new)


def _write(root: Path, target: Path, new: Path, files: Mapping[str, NewFile]) -> None:
    for name, file in files.items():
        if file.content is None:
            continue
        path = new / (root / name).relative_to(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as handle:
            handle.write(file.content)
            handle.flush()
            os.fsync(handle.fileno())
        if file.before is None:
            path.chmod(0o755 if file.executable else 0o644)
        else:
            _take_on(str(root / name), str(path))
            os.utime(path)  # builders compare times


def _require_unchanged(root: Path, files: Mapping[str, NewFile]) -> None:
    for name, file in files.items():
        path = root / name
        found = sha256_file(path) if path.is_file() else None
        if found != file.before:
            raise HostError(f"{path} changed while the series was applied; the tree is as it was", hint="try again")


def _standing_in(folder: Path) -> Path | None:
    """Return this process's own folder when it lies in another one, which is about to be exchanged."""
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return None
    return here if here.is_relative_to(folder) else None


def _exchange(one: Path, other: Path) -> None:
    """Exchange two folders: the one system call that changes the tree."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise HostError("this system's C library has no renameat2, which exchanges two folders in one step")
    if libc.renameat2(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"it cannot be exchanged in one step ({os.strerror(code)})", str(one))


def _remove(work: str, replaced: set[str]) -> None:
    """Remove the old folder, but nothing that is in it alone: such a file came in while the copy was made."""
    kept = []
    for folder, names, files in os.walk(work, topdown=False):
        os.chmod(folder, stat.S_IRWXU)  # noqa: PTH101 - as above
        for path in (f"{folder}/{name}" for name in (*files, *names)):
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode):
                with contextlib.suppress(OSError):  # one with such a file in it
                    os.rmdir(path)  # noqa: PTH106 - as above
            elif status.st_nlink > 1 or path in replaced:
                os.unlink(path)  # noqa: PTH108 - as above
            else:
                kept.append(path)
    if kept:
        raise HostError(
            f"the series is applied, but {len(kept)} files that came into the tree meanwhile lie in {work}",
            hint=f"put them back, the first is {kept[0]}",
        )
    os.rmdir(work)  # noqa: PTH106 - as above
