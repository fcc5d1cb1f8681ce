"""Writes small host libraries with a dynamic part, so that linking is tested without a compiler."""

from __future__ import annotations

import struct

X86_64 = 62
DYNAMIC, DYNSYM, STRTAB, VERDEF, VERNEED = 6, 11, 3, 0x6FFFFFFD, 0x6FFFFFFE
FUNCTION, GLOBAL, WEAK = 2, 1, 2


class Names:
    """A string table."""

    def __init__(self) -> None:
        self.data = b"\0"

    def at(self, text: str) -> int:
        place = len(self.data)
        self.data += text.encode() + b"\0"
        return place


def shared(
    *,
    needed=(),
    soname=None,
    undefined=(),
    weak=(),
    exported=(),
    rpath=None,
    runpath=None,
    versions=(),
    wanted_versions=None,
    machine=X86_64,
) -> bytes:
    """Return a shared library with the given dynamic part; ``wanted_versions`` is library -> versions."""
    names = Names()
    symbols = bytes(24)
    for binding, section, several in ((GLOBAL, 0, undefined), (WEAK, 0, weak), (GLOBAL, 7, exported)):
        for name in several:
            symbols += struct.pack("<IBBHQQ", names.at(name), binding << 4 | FUNCTION, 0, section, 0x1000, 8)
    tags = [(1, names.at(name)) for name in needed]
    tags += [(tag, names.at(text)) for tag, text in ((14, soname), (15, rpath), (29, runpath)) if text is not None]
    dynamic = b"".join(struct.pack("<qQ", *pair) for pair in (*tags, (0, 0)))
    defined = b"".join(
        struct.pack("<HHHHIII", 1, 0, i + 1, 1, 0, 20, 28 if i + 1 < len(versions) else 0)
        + struct.pack("<II", names.at(version), 0)
        for i, version in enumerate(versions)
    )
    wanted = [*(wanted_versions or {}).items()]
    needs = b""
    for i, (library, several) in enumerate(wanted):
        last = 16 + 16 * len(several)
        needs += struct.pack("<HHIII", 1, len(several), names.at(library), 16, last if i + 1 < len(wanted) else 0)
        for j, version in enumerate(several):
            needs += struct.pack("<IHHII", 0, 0, 0, names.at(version), 16 if j + 1 < len(several) else 0)
    parts = [
        (STRTAB, names.data, 0, 0),
        (DYNSYM, symbols, 1, 1),
        (DYNAMIC, dynamic, 1, 0),
        (VERDEF, defined, 1, len(versions)),
        (VERNEED, needs, 1, len(wanted)),
    ]
    return _elf([part for part in parts if part[1]], machine)


def _elf(parts, machine: int) -> bytes:
    rows, body = [bytes(64)], b""
    for kind, data, link, info in parts:
        rows.append(struct.pack("<IIQQQQIIQQ", 0, kind, 2, 0, 64 + len(body), len(data), link, info, 1, 0))
        body += data + bytes(-len(data) % 8)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64 + len(body), 0, 64, 56, 0, 64, len(rows), 0)
    return ident + head + body + b"".join(rows)
