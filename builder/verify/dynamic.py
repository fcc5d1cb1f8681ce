"""The dynamic part of a shared library or program: what it needs, where it looks, its symbols and their versions.

Only the standard library, for any Python from 3.9 on: it runs inside an image too. Formats: System V ABI (ELF-64) and
"GNU symbol versioning" (LSB Core, 10.7). Read by section headers, within bounds.
"""

# os.path is what every Python of an image has
# ruff: noqa: PTH123

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator

TABLE_LIMIT = 256 << 20
DYNAMIC, DYNSYM, VERDEF, VERNEED = 6, 11, 0x6FFFFFFD, 0x6FFFFFFE
NEEDED, SONAME, RPATH, RUNPATH = 1, 14, 15, 29
WEAK_VERSION = 2
GLOBAL = 1
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


class Elf:
    """The dynamic part of one shared library or program.

    Raises:
        ValueError: The file is no little-endian ELF-64 file, or it is damaged.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.needed: list[str] = []
        self.rpath: list[str] = []
        self.runpath: list[str] = []
        self.soname = ""
        self.versions: frozenset[str] = frozenset()
        self.wanted_versions: dict[str, list[str]] = {}
        self._symbols = (0, 0, 0, 0)
        with open(path, "rb") as file:
            self._read(file.fileno())

    def undefined(self) -> set[str]:
        """Return the symbols that another library must bring; weak ones may stay without."""
        return {
            name.decode("ascii", "replace") for name, binding, here in self._table() if not here and binding == GLOBAL
        }

    def exported(self, wanted: set[str]) -> set[str]:
        """Return those of the wanted symbols that this library brings."""
        asked = {name.encode() for name in wanted}
        return {name.decode() for name, binding, here in self._table() if here and binding != 0 and name in asked}

    def kindred(self, names: set[str]) -> set[str]:
        """Return exported symbols with a readable name of the given ones: the same function with other arguments."""
        exported = (name.decode("ascii", "replace") for name, _, here in self._table() if here and name[:2] == b"_Z")
        return {symbol for symbol in exported if readable(symbol) in names}

    def _read(self, handle: int) -> None:
        self.machine, rows = _sections(handle)
        for _, kind, _, _, place, length, link, info, _, _ in rows:
            if kind not in {DYNAMIC, DYNSYM, VERDEF, VERNEED}:
                continue
            if link >= len(rows):
                raise ValueError(f"section {link} should hold names, and there are {len(rows)}")
            names = (rows[link][4], rows[link][5])
            if kind == DYNSYM:
                if max(place + length, sum(names)) > os.fstat(handle).st_size:
                    raise ValueError("the table of symbols is not in the file")
                self._symbols = (place, length, *names)
                continue
            table, texts = _piece(handle, place, length), _piece(handle, *names)
            if kind == DYNAMIC:
                self._dynamic(table, texts)
            elif kind == VERDEF:
                self.versions = frozenset(_defined(table, texts, info))
            else:
                self.wanted_versions = dict(_needed(table, texts, info))

    def _dynamic(self, table: bytes, texts: bytes) -> None:
        for tag, value in struct.iter_unpack("<qQ", table[: len(table) & ~15]):
            if tag == NEEDED:
                self.needed.append(_text(texts, value))
            elif tag == SONAME:
                self.soname = _text(texts, value)
            elif tag in {RPATH, RUNPATH}:
                (self.rpath if tag == RPATH else self.runpath).extend(_text(texts, value).split(":"))

    def _table(self) -> Iterator[tuple[bytes, int, bool]]:
        at, length, names_at, names_length = self._symbols
        with open(self.path, "rb") as file:
            table = _piece(file.fileno(), at, length - length % _SYMBOL.size)
            names = _piece(file.fileno(), names_at, names_length) + b"\0"
        for place, info, _, section, _, _ in _SYMBOL.iter_unpack(table):
            end = names.find(b"\0", place)
            if end > place:
                yield names[place:end], info >> 4, section != 0


def readable(symbol: str) -> str:
    """Return a C++ symbol's qualified name without its arguments (Itanium C++ ABI, 5.1.4), or the symbol itself."""
    found = re.match(r"_Z(N[VK]*)?(St)?", symbol)
    if not found:
        return symbol
    parts, at = (["std"] if found[2] else []), found.end()
    while length := re.match(r"\d+", symbol[at:]):
        at += length.end()
        parts.append(symbol[at : at + int(length[0])])
        at += int(length[0])
        if not found[1]:
            break
    return "::".join(parts) or symbol


def _sections(handle: int) -> tuple[int, list[tuple[int, ...]]]:
    """Return the machine that a file is for, and its section headers."""
    start = os.pread(handle, _HEADER.size, 0)
    if start[:6] != b"\x7fELF\x02\x01" or len(start) < _HEADER.size:
        raise ValueError("no little-endian 64-bit ELF file")
    _, machine, _, _, _, at, _, _, _, _, size, count, _ = _HEADER.unpack(start)
    if not at:
        raise ValueError("no section headers")
    if size != _SECTION.size:
        raise ValueError(f"section headers of {size} bytes")
    count = count or _SECTION.unpack(_piece(handle, at, size))[5]
    return machine, list(_SECTION.iter_unpack(_piece(handle, at, count * size)))


def _piece(handle: int, at: int, size: int) -> bytes:
    if size > TABLE_LIMIT:
        raise ValueError(f"a table of {size} bytes")
    data = os.pread(handle, size, at) if 0 <= at < 1 << 62 else b""
    if len(data) != size:
        raise ValueError(f"{size} bytes at {at} are not in the file")
    return data


def _text(texts: bytes, at: int) -> str:
    end = texts.find(b"\0", at)
    return texts[at : end if end >= 0 else len(texts)].decode("utf-8", "replace")


def _defined(table: bytes, texts: bytes, count: int) -> Iterator[str]:
    """Yield the names of the versions that a library defines: Verdef, then its first Verdaux."""
    at = 0
    for _ in range(min(count, len(table) // 20)):
        _, _, _, _, _, aux, following = _unpacked("<HHHHIII", table, at)
        (name,) = _unpacked("<I", table, at + aux)
        yield _text(texts, name)
        at += following


def _needed(table: bytes, texts: bytes, count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield library and versions that must be there: Verneed, then its Vernaux."""
    at = 0
    for _ in range(min(count, len(table) // 16)):
        _, several, library, aux, following = _unpacked("<HHIII", table, at)
        names, place = [], at + aux
        for _ in range(min(several, len(table) // 16)):
            _, flags, _, name, after = _unpacked("<IHHII", table, place)
            if not flags & WEAK_VERSION:
                names.append(_text(texts, name))
            place += after
        yield _text(texts, library), names
        at += following


def _unpacked(form: str, table: bytes, at: int) -> tuple[int, ...]:
    if not 0 <= at <= len(table) - struct.calcsize(form):
        raise ValueError(f"a version record at {at} is not in its section")
    return struct.unpack_from(form, table, at)
