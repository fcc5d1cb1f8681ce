"""The machine code of one kernel, and dwords of it that match a pattern: proof without a disassembler.

Layout: System V ABI (ELF-64). Encodings: AMD's "RDNA3 Shader Instruction Set Architecture", microcode formats.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.objects import elf, fatbin
from builder.objects.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

PATTERN = re.compile(r"^([0-9A-Fa-f]{8})(?:/([0-9A-Fa-f]{8}))?$")
_SYMBOL = struct.Struct("<IBBHQQ")
_FUNCTION = 2


def count_dwords(library: bytes, kernel: str, pattern: str, *, name: str) -> int:
    """Return how many dwords of a kernel's machine code match, over all code objects of a library.

    Args:
        library: The library's content.
        kernel: The kernel's name, mangled or as it stands in the source.
        pattern: ``DC762000`` or ``DC762000/FFFFE000``: the dword and the bits of it that count, both in hex.
        name: The library's path, for messages.

    Raises:
        UsageError: The pattern is none.
        VerifyError: The library is damaged.
    """
    found = PATTERN.match(pattern)
    if found is None:
        raise UsageError(f"{pattern!r} is no dword in hex, such as DC762000 or DC762000/FFFFE000")
    value, mask = int(found[1], 16), int(found[2] or "FFFFFFFF", 16)
    return sum(
        word & mask == value & mask
        for code in _kernel_code(library, kernel, name=name)
        for (word,) in struct.iter_unpack("<I", code[: len(code) & ~3])
    )


def _kernel_code(library: bytes, kernel: str, *, name: str) -> Iterator[bytes]:
    """Yield the machine code of a kernel from each code object of a library that has it."""
    window = Window.of_bytes(library, name)
    if window.peek(0, len(fatbin.PLAIN)).startswith((fatbin.PLAIN, fatbin.COMPRESSED)):
        parts = [window]
    else:
        head = elf.header(window)
        if head.machine == elf.AMDGPU:
            yield from _code(window, kernel)
            return
        sections = elf.sections(window, head)
        parts = [window.part(at, size, part) for part, at, size in sections if part.startswith(".hip_fatbin")]
    for part in parts:
        for entries in fatbin.bundles(part):
            for entry in entries:
                if elf.is_elf64(entry.content.peek(0, 8)):
                    yield from _code(entry.content, kernel)


def _code(window: Window, kernel: str) -> Iterator[bytes]:
    head = elf.header(window)
    tables = {name: (at, size) for name, at, size in elf.sections(window, head)}
    if ".dynsym" not in tables or ".dynstr" not in tables:
        return
    at, size = tables[".dynsym"]
    names = window.read(*tables[".dynstr"], "the names of the symbols")
    table = window.read(at, size - size % _SYMBOL.size, "the table of symbols")
    for offset, kind, _, _, address, length in _SYMBOL.iter_unpack(table):
        symbol = names[offset : names.find(b"\0", offset)]
        if not length or kind & 0xF != _FUNCTION or not names_kernel(symbol, kernel.encode()):
            continue
        yield window.read(elf.file_position(window, head, address), length, f"the code of {kernel}")


def names_kernel(symbol: bytes, kernel: bytes) -> bool:
    """Whether a symbol is a kernel's: its own name, or the mangled form, in which the length stands before the name."""
    return symbol == kernel or (symbol.startswith(b"_Z") and b"%d%b" % (len(kernel), kernel) in symbol)
