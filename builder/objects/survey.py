"""Which files hold code objects, for which processors, with which kernels: a file, a wheel, or a folder."""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from builder.errors import UsageError, VerifyError
from builder.files import MIB
from builder.objects import elf, fatbin
from builder.objects.kernels import CodeObject, Kernel, kernels, target
from builder.objects.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

_WHEEL_LIMIT = 32 * 1024 * MIB
# zeros alone are packed 1032 to 1 (https://zlib.net/zlib_tech.html); a wheel with code in it stays far below
_MOST_RATIO = 100
_PLAIN_LIMIT = 256 * MIB  # what any wheel may unpack to, however small it is
_MOST_OBJECTS = 1 << 18
_MOST_KERNELS = 1 << 20
_DIRECTORY_LIMIT = 64 * MIB
_START = len(fatbin.PLAIN)
_ZIP = b"PK\x03\x04"
_PROCESSOR = re.compile(r"(gfx[0-9a-z-]+|amdgcnspirv)$")
# intermediate forms that a bundle may hold in place of machine code: LLVM bitcode and SPIR-V
_NO_MACHINE_CODE = (b"BC\xc0\xde", b"\x03\x02\x23\x07")


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A file that can hold code objects.

    Attributes:
        path: Its path; below a folder or in a wheel the relative one, with slashes.
        bundles: Number of offload bundles in it; 0 for a bare code object.
        objects: Its code objects, in file order.
        elsewhere: The file is a host half whose code objects were moved to a kpack archive (ROCm's split packages).
    """

    path: str
    bundles: int
    objects: tuple[CodeObject, ...]
    elsewhere: bool = False

    @property
    def archs(self) -> tuple[str, ...]:
        """The processors that it has code for, sorted."""
        return tuple(sorted({code.arch for code in self.objects}))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of all its code objects, in file order."""
        return tuple(kernel for code in self.objects for kernel in code.kernels)

    def row(self) -> dict[str, Any]:
        """Return what ``verify --json`` says of it."""
        return {
            "path": self.path,
            "bundles": self.bundles,
            "archs": list(self.archs),
            "kernels": len(self.kernels),
            "spilling": sum(bool(kernel.vgpr_spills) for kernel in self.kernels),
            "elsewhere": self.elsewhere,
        }


def survey(path: Path) -> list[Library]:
    """Return the libraries of a shared object, code object or bundle file, of a wheel, or of a folder of packages.

    A single file is always listed; of a wheel or folder only files with device code are. Links are not followed.

    Raises:
        UsageError: There is nothing at ``path`` that can be read.
        VerifyError: A file is damaged; the message names it and the place in it.
    """
    try:
        if path.is_dir():
            return [library for library in _folder(path) if _has_device_code(library)]
        with path.open("rb") as file:
            start = file.read(len(_ZIP))
    except OSError as trouble:
        raise UsageError(f"{trouble.filename or path} cannot be read: {trouble.strerror}") from trouble
    if start == _ZIP:
        return [library for library in _wheel(path) if _has_device_code(library)]
    return [read_library(path)]


def read_library(source: Path | bytes, *, name: str = "") -> Library:
    """Return what is in one file: a host library, a bare code object, or a bundle; any other file holds nothing.

    Args:
        source: The file, or its content.
        name: The path to give it in the result and in messages, instead of the file's own.

    Raises:
        UsageError: The file cannot be opened.
        VerifyError: It is damaged.
    """
    if isinstance(source, bytes):
        return _library(Window.of_bytes(source, name or "the given bytes"))
    try:
        file = source.open("rb")
    except OSError as trouble:
        raise UsageError(f"{source} cannot be read: {trouble.strerror}") from trouble
    with file:
        return _library(Window.of_file(file, name or str(source)))


def _library(window: Window) -> Library:
    start = window.peek(0, _START)
    if start.startswith((fatbin.PLAIN, fatbin.COMPRESSED)):
        return _bundled(window.name, [window])
    if not elf.is_elf64(start):
        return Library(path=window.name, bundles=0, objects=())
    head = elf.header(window)
    if head.machine == elf.AMDGPU:
        return Library(path=window.name, bundles=0, objects=(_code_object(window),))
    found = elf.sections(window, head)
    parts = [window.part(at, size, name) for name, at, size in found if name.startswith(".hip_fatbin")]
    library = _bundled(window.name, parts)
    if any(name == ".rocm_kpack_ref" for name, _, _ in found):
        return replace(library, elsewhere=True)
    if parts and not library.bundles:
        raise parts[0].fault(0, "a section for device code that holds no bundle")
    return library


def _bundled(name: str, parts: list[Window]) -> Library:
    count = kernel_count = 0
    objects: list[CodeObject] = []
    for part in parts:
        for entries in fatbin.bundles(part, count):
            count += 1
            added = [_entry(entry) for entry in entries if not (entry.id.startswith("host") or _is_zeroed(entry))]
            objects += added
            kernel_count += sum(len(code.kernels) for code in added)
            if len(objects) > _MOST_OBJECTS or kernel_count > _MOST_KERNELS:
                raise part.fault(0, f"more than {_MOST_OBJECTS} code objects or {_MOST_KERNELS} kernels")
    return Library(path=name, bundles=count, objects=tuple(objects))


def _is_zeroed(entry: fatbin.Entry) -> bool:
    """Whether an entry's code was taken out and zeros left in its place, so that it is code for nothing."""
    return not any(entry.content.peek(0, _START))


def _entry(entry: fatbin.Entry) -> CodeObject:
    named = _PROCESSOR.search(entry.id.partition(":")[0])
    if named is None:
        raise entry.content.fault(0, f"the entry {entry.id!r} names no processor")
    processor = named[0]
    if entry.content.peek(0, 4) in _NO_MACHINE_CODE:
        code = CodeObject(arch=processor, at=entry.content.start, size=entry.content.size)
    else:
        code = _code_object(entry.content)
    # a processor newer than our table is known by the entry's word alone
    if code.arch != processor and code.arch.startswith("gfx"):
        raise entry.content.fault(0, f"the entry {entry.id!r} holds code for {code.arch}")
    return replace(code, arch=processor, id=entry.id)


def _code_object(window: Window) -> CodeObject:
    head = elf.header(window)
    arch = target(window, head)
    return CodeObject(arch=arch, at=window.start, size=window.size, kernels=kernels(window, head))


def _has_device_code(library: Library) -> bool:
    return bool(library.bundles or library.objects or library.elsewhere)


def _folder(root: Path) -> list[Library]:
    found = []
    for folder, names, files in os.walk(root, onerror=_raise):
        names.sort()
        for file in sorted(files):
            path = Path(folder, file)
            # a pipe or a device must not be opened; a link's target lies in the folder, too, or is none of ours
            if stat.S_ISREG(path.lstat().st_mode):
                found.append(replace(read_library(path), path=path.relative_to(root).as_posix()))
    return found


def _raise(trouble: OSError) -> None:
    raise trouble


class _Bounded:
    """A file for :mod:`zipfile` that refuses the huge reads which a damaged archive's directory asks for."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if size > _DIRECTORY_LIMIT:
            raise zipfile.BadZipFile(f"a directory of {size} bytes")
        return self._file.read(_DIRECTORY_LIMIT if size < 0 else size)


def _wheel(path: Path) -> list[Library]:
    try:
        with path.open("rb") as file, zipfile.ZipFile(_Bounded(file)) as archive:
            return list(_members(archive, path))
    except (zipfile.BadZipFile, zlib.error, struct.error, OSError, RuntimeError, EOFError, ValueError) as bad:
        raise VerifyError(f"{path}: the wheel is damaged: {bad}") from bad


def _members(archive: zipfile.ZipFile, path: Path) -> Iterator[Library]:
    # no member yields more bytes than its entry in the directory says
    total, packed_size = sum(member.file_size for member in archive.infolist()), path.stat().st_size
    if total > min(_WHEEL_LIMIT, max(_PLAIN_LIMIT, _MOST_RATIO * packed_size)):
        raise zipfile.BadZipFile(f"its content of {packed_size} bytes unpacks to {total} bytes, which no wheel does")
    for member in archive.infolist():
        if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise zipfile.BadZipFile(f"{member.filename} is packed in a way that no wheel is")
        with archive.open(member) as packed:
            start = packed.read(_START)
            if start.startswith((elf.MAGIC, fatbin.PLAIN, fatbin.COMPRESSED)):
                library = _member(start, packed, f"{path}/{member.filename}")
                yield replace(library, path=member.filename)


def _member(start: bytes, packed: IO[bytes], name: str) -> Library:
    with tempfile.TemporaryFile() as file:
        try:
            file.write(start)
            shutil.copyfileobj(packed, file, MIB)
            file.flush()
        except OSError as trouble:
            raise fatbin.not_unpacked(name, trouble) from trouble
        return _library(Window.of_file(file, name))
