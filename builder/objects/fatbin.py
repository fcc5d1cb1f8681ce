"""Clang's offload bundles: how HIP code objects lie in a host library's ``.hip_fatbin`` section.

Formats: clang's "Offload Bundler" page and LLVM's ``Object/OffloadBundle``. A bundle is the magic, a u64 count, then
per entry u64 offset, u64 size, u64 length of the id and the id; offsets count from the bundle's start. A compressed
bundle is ``CCOB``, u16 version, u16 method; then u32 size in version 1, u32 total and u32 size in 2, the same as u64
in 3; last a u64 hash, the first half of the content's MD5, and the data.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from builder.errors import HostError
from builder.files import MIB
from builder.objects.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED = b"CCOB"
CONTENT_LIMIT = 1024 * MIB

_COUNT = struct.Struct("<24xQ")
_ENTRY = struct.Struct("<QQQ")
_MOST_ENTRIES = 4096
_LONGEST_ID = 1024
_HEADERS = {1: struct.Struct("<IQ"), 2: struct.Struct("<IIQ"), 3: struct.Struct("<QQQ")}
_COMMON = struct.Struct("<4xHH")
_METHODS = ("zlib", "zstd")
# LLVM compresses with long distance matching of at most 128 MiB
_ZSTD_WINDOW = 128 * MIB
# four bytes of zstd can stand for 128 KiB, so small bites bound what one call returns to 32 MiB
_BITE = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry of a bundle.

    Attributes:
        id: Kind and target, such as ``hipv4-amdgcn-amd-amdhsa--gfx1100``.
        content: The entry's bytes; of a compressed bundle, where they lie in the unpacked one.
    """

    id: str
    content: Window


def bundles(window: Window, first: int = 0) -> Iterator[tuple[Entry, ...]]:
    """Yield the entries of each bundle of a section or file, in order; read them before asking for the next.

    Args:
        window: The section or file; bundles lie in it one after another, with padding between.
        first: The number of its first bundle.

    Raises:
        VerifyError: A bundle is damaged, or its content is larger than 1 GiB.
    """
    at = 0
    number = first
    while (at := window.find((PLAIN, COMPRESSED), at)) >= 0:
        rest = window.part(at, window.size - at, "a bundle", name=f"{window.name}, bundle {number}")
        if rest.peek(0, len(COMPRESSED)) == COMPRESSED:
            with tempfile.TemporaryFile() as file:
                size = _unpack(rest, file)
                unpacked = Window.of_file(file, f"{rest.name} (unpacked)")
                entries, _ = _entries(unpacked)
                yield entries
        else:
            entries, size = _entries(rest)
            yield entries
        at += size
        number += 1


def not_unpacked(what: str, trouble: OSError) -> HostError:
    """Return the error for a disk that cannot take what is unpacked."""
    return HostError(
        f"{what} could not be unpacked into {tempfile.gettempdir()}: {trouble.strerror}",
        hint="free room there, or name another folder with TMPDIR",
    )


def _entries(window: Window) -> tuple[tuple[Entry, ...], int]:
    """Return a plain bundle's entries and its extent in bytes."""
    start = window.read(0, _COUNT.size, "a bundle's header")
    if not start.startswith(PLAIN):
        raise window.fault(0, "the content is no bundle")
    (count,) = _COUNT.unpack(start)
    if count > _MOST_ENTRIES:
        raise window.fault(len(PLAIN), f"a bundle of {count} entries (at most {_MOST_ENTRIES} are believed)")
    at = _COUNT.size
    found: list[Entry] = []
    stretches: list[tuple[int, int]] = []
    for _ in range(count):
        offset, size, length = _ENTRY.unpack(window.read(at, _ENTRY.size, "a bundle entry"))
        if length > _LONGEST_ID:
            raise window.fault(at, f"a bundle entry whose id has {length} bytes")
        raw = window.read(at + _ENTRY.size, length, "a bundle entry's id")
        at += _ENTRY.size + length
        if not raw.isascii():
            raise window.fault(at - length, "a bundle entry whose id is no ASCII text")
        if size:
            found.append(Entry(id=raw.decode(), content=window.part(offset, size, f"the entry {raw.decode()}")))
            stretches.append((offset, offset + size))
    # content that two entries share would let a small file cost unbounded time
    end = at
    for begin, stop in sorted(stretches):
        if begin < end:
            raise window.fault(begin, "a bundle entry that overlaps another one or the header")
        end = stop
    return tuple(found), end


def _unpack(window: Window, file: BinaryIO) -> int:
    """Write a compressed bundle's content to ``file`` and return the bundle's extent in bytes."""
    version, method = _COMMON.unpack(window.read(0, _COMMON.size, "a compressed bundle's header"))
    layout = _HEADERS.get(version)
    if layout is None or method >= len(_METHODS):
        raise window.fault(
            0, f"a compressed bundle of version {version}, method {method}: only 1 to 3, 0 to 1 are known"
        )
    fields = layout.unpack(window.read(_COMMON.size, layout.size, "a compressed bundle's sizes"))
    begin = _COMMON.size + layout.size
    size, wanted = fields[-2:]
    end = window.size if version == 1 else fields[0]
    if not begin <= end <= window.size:
        raise window.fault(0, f"a compressed bundle of {end} bytes, where {window.size} are left")
    if size > CONTENT_LIMIT:
        raise window.fault(0, f"a compressed bundle that unpacks to {size} bytes (at most {CONTENT_LIMIT})")
    digest = hashlib.md5(usedforsecurity=False)
    written = 0
    used = begin
    try:
        for piece, place in _decompressed(window, begin, end, _METHODS[method]):
            used = place
            written += len(piece)
            if written > size:
                break
            digest.update(piece)
            file.write(piece)
        file.flush()
    except OSError as trouble:
        raise not_unpacked(f"{size} bytes of {window.name}", trouble) from trouble
    if written != size:
        raise window.fault(0, f"a compressed bundle holds {'more' if written > size else 'less'} than its {size} bytes")
    if int.from_bytes(digest.digest()[:8], "little") != wanted:
        raise window.fault(0, "a compressed bundle whose content does not have the hash that its header says")
    return used if version == 1 else end


def _decompressed(window: Window, at: int, end: int, method: str) -> Iterator[tuple[bytes, int]]:
    """Yield pieces of at most 32 MiB, each with the position behind the last byte that was used."""
    machine: Any
    damaged: type[Exception]
    if method == "zlib":
        machine, damaged = zlib.decompressobj(), zlib.error
    else:
        import zstandard

        machine, damaged = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj(), zstandard.ZstdError
    block = b""
    place = at
    while not machine.eof:
        if not block:
            block = window.read(at, min(MIB, end - at), "compressed data")
            at += len(block)
            if not block:
                raise window.fault(place, f"the {method} data ends too early")
        bite, block = block[:_BITE], block[_BITE:]
        try:
            piece = machine.decompress(bite)
        except damaged as trouble:
            raise window.fault(place, f"the {method} data is damaged: {trouble}") from trouble
        place += len(bite) - len(machine.unused_data)
        if piece or machine.eof:
            yield piece, place
