"""Files: replaced atomically, read within bounds, hashed; folders swapped in whole; one lock at a time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from builder.errors import HostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace ``path`` in one step: a reader sees the old bytes or the new ones, a crash leaves the old ones.

    Raises:
        HostError: The disk is full or the folder cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    name = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as trouble:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        raise HostError(f"{path} could not be written: {trouble.strerror}") from trouble


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; a pipe or a device must neither make us wait nor be read.

    Raises:
        UsageError: It is not there, cannot be read, or is no regular file.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path} is no regular file")
            yield file
    except OSError as trouble:
        raise UsageError(f"{path} cannot be read: {trouble.strerror}") from trouble


def read_bytes(path: Path, *, limit: int = 16 * MIB) -> bytes:
    """Return a file's bytes.

    Raises:
        UsageError: It is not there, is no regular file, or is larger than ``limit`` bytes.
    """
    with opened(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UsageError(f"{path} is larger than {limit // MIB} MiB, which is no such file as is expected here")
    return data


def read_text(path: Path, *, limit: int = 16 * MIB) -> str:
    """Return a UTF-8 file's text; raises UsageError like :func:`read_bytes`, and when it is not UTF-8."""
    try:
        return read_bytes(path, limit=limit).decode()
    except UnicodeDecodeError as trouble:
        raise UsageError(f"{path} is not UTF-8 text (byte {trouble.start})") from trouble


def sha256(data: bytes | str) -> str:
    """Return the hex SHA-256 of bytes or of a text's UTF-8 form."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the hex SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return the one JSON text of a value: sorted keys, two spaces, a final newline, no ASCII escapes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def inside(relative: str) -> PurePosixPath:
    """Return a relative path that stays below its root.

    Raises:
        UsageError: It is absolute, climbs out, is empty, or holds a NUL or a backslash.
    """
    path = PurePosixPath(relative)
    if not relative or path.is_absolute() or ".." in path.parts or "\0" in relative or "\\" in relative:
        raise UsageError(f"the path {relative!r} does not stay inside its folder")
    return path


@contextlib.contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``target`` that takes its place when the block ends well.

    The swap is two renames; when the block raises, the new folder goes and the old one is untouched.
    A kill between the two renames leaves the old folder under ``.<name>.old``; the next call puts it back first.

    Raises:
        HostError: The folder cannot be made, or cannot take the old one's place.
    """
    old = target.parent / f".{target.name}.old"
    with _told(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if old.exists():
            if target.exists():
                shutil.rmtree(old)
            else:
                old.rename(target)
        new = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        new.chmod(0o755)
    try:
        yield new
        with _told(target):
            if target.exists():
                target.rename(old)
            new.rename(target)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock file ``path``; the kernel frees it when the process ends, however it ends.

    Raises:
        HostError: ``wait`` is false and another process holds it, or it cannot be made.
    """
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as held:
            raise HostError(f"another run holds {path}", hint="wait until it ends, then try again") from held
        yield


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn the system's error of a block that writes ``path`` into ours."""
    try:
        yield
    except OSError as trouble:
        raise HostError(f"{path} could not be written: {trouble.strerror}") from trouble
