"""The few parts of an ELF file that matter here, read within bounds.

Layout: System V ABI (ELF-64, little endian). The AMDGPU values: LLVM's "User Guide for AMDGPU Backend", ELF header.
pyelftools is not used for untrusted files of this kind: it reads what the headers name without a bound.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.objects.window import Window

MAGIC = b"\x7fELF"
AMDGPU = 224

_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")
_SHN_XINDEX = 0xFFFF
_SHT_NULL, _SHT_NOBITS = 0, 8
_PT_LOAD, _PT_NOTE = 1, 4
_LITTLE_64 = b"\x02\x01"


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """An ELF header.

    Attributes:
        machine: ``e_machine``; 224 is AMDGPU.
        flags: ``e_flags``.
        program_at: File position of the program headers.
        programs: Number of program headers.
        sections_at: File position of the section headers; 0 when there are none.
        sections: Number of section headers, 0 when the first of them holds it.
        names: Index of the section with the sections' names, or the mark that the first section holds it.
    """

    machine: int
    flags: int
    program_at: int
    programs: int
    sections_at: int
    sections: int
    names: int


def is_elf64(start: bytes) -> bool:
    """Return whether a file's first bytes are those of a little-endian 64-bit ELF file, as every HIP file is."""
    return start[:4] == MAGIC and start[4:6] == _LITTLE_64


def header(window: Window) -> Header:
    """Return the header of an ELF file.

    Raises:
        VerifyError: The file is too short, or no little-endian 64-bit ELF file.
    """
    raw = window.read(0, _HEADER.size, "the ELF header")
    if not is_elf64(raw):
        raise window.fault(0, "no little-endian 64-bit ELF file")
    _, machine, _, _, program_at, sections_at, flags, _, program_size, programs, section_size, sections, names = (
        _HEADER.unpack(raw)
    )
    if programs and program_size != _PROGRAM.size:
        raise window.fault(0, f"program headers of {program_size} bytes, not {_PROGRAM.size}")
    if sections_at and section_size != _SECTION.size:
        raise window.fault(0, f"section headers of {section_size} bytes, not {_SECTION.size}")
    return Header(
        machine=machine,
        flags=flags,
        program_at=program_at,
        programs=programs,
        sections_at=sections_at,
        sections=sections,
        names=names,
    )


def sections(window: Window, head: Header) -> list[tuple[str, int, int]]:
    """Return name, file position and size of the sections that have content, in the table's order.

    Raises:
        VerifyError: The table or the names do not lie within the file; a section's own place is not looked at.
    """
    if not head.sections_at:
        return []
    first = _SECTION.unpack(window.read(head.sections_at, _SECTION.size, "the first section header"))
    count = head.sections or first[5]
    names_index = first[6] if head.names == _SHN_XINDEX else head.names
    table = window.read(head.sections_at, count * _SECTION.size, f"the table of {count} section headers")
    rows = list(_SECTION.iter_unpack(table))
    if names_index >= len(rows):
        raise window.fault(head.sections_at, f"section {names_index} should hold the names, but there are {count}")
    names = window.read(rows[names_index][4], rows[names_index][5], "the section names") + b"\0"
    return [
        (names[name_at : names.find(b"\0", name_at)].decode(errors="replace"), at, size)
        for name_at, kind, _, _, at, size, *_ in rows
        if kind not in {_SHT_NULL, _SHT_NOBITS} and size and name_at < len(names)
    ]


def notes(window: Window, head: Header) -> Iterator[tuple[bytes, int, Window]]:
    """Yield owner, type and content of each note that the program headers name.

    Raises:
        VerifyError: A header or a note does not lie within the file.
    """
    for at, _, size in _segments(window, head, _PT_NOTE):
        segment = window.part(at, size, "the note segment")
        place = 0
        while place + _NOTE.size <= segment.size:
            owner_size, content_size, note = _NOTE.unpack(segment.read(place, _NOTE.size, "a note's header"))
            content_at = place + _NOTE.size + _aligned(owner_size)
            if owner_size > segment.size:
                raise segment.fault(place, f"a note with an owner of {owner_size} bytes")
            owner = segment.read(place + _NOTE.size, owner_size, "a note's owner").rstrip(b"\0")
            yield owner, note, segment.part(content_at, content_size, "a note's content")
            place = content_at + _aligned(content_size)


def file_position(window: Window, head: Header, address: int) -> int:
    """Return where an address lies in the file, by the segment that is loaded there.

    Raises:
        VerifyError: There is none, or a header does not lie within the file.
    """
    for at, start, size in _segments(window, head, _PT_LOAD):
        if start <= address < start + size:
            return at + address - start
    raise window.fault(0, f"no segment holds the address {address:#x}")


def _segments(window: Window, head: Header, wanted: int) -> Iterator[tuple[int, int, int]]:
    """Yield file position, address and bytes in the file of the segments of a kind."""
    table = window.read(head.program_at, head.programs * _PROGRAM.size, "the program headers")
    for kind, _, at, address, _, size, _, _ in _PROGRAM.iter_unpack(table):
        if kind == wanted:
            yield at, address, size


def _aligned(size: int) -> int:
    return size + 3 & ~3
