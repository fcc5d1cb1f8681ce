"""Writes small code objects, bundles and host libraries, so that their reader is tested without a compiler."""

from __future__ import annotations

import hashlib
import struct
import zlib

import zstandard

GFX1100, GFX90A, GFX942 = 0x41, 0x3F, 0x4C
ID = "hipv4-amdgcn-amd-amdhsa--gfx1100"
HOST_ID = "host-x86_64-unknown-linux-gnu-"


def packed(value) -> bytes:
    """Return a value as MessagePack, in the forms that LLVM writes."""
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        if value < 0x80:
            return bytes([value])
        return b"\xcd" + struct.pack(">H", value) if value < 1 << 16 else b"\xce" + struct.pack(">I", value)
    if isinstance(value, str):
        raw = value.encode()
        return (bytes([0xA0 + len(raw)]) if len(raw) < 32 else b"\xda" + struct.pack(">H", len(raw))) + raw
    if isinstance(value, list):
        head = bytes([0x90 + len(value)]) if len(value) < 16 else b"\xdc" + struct.pack(">H", len(value))
        return head + b"".join(map(packed, value))
    head = bytes([0x80 + len(value)]) if len(value) < 16 else b"\xde" + struct.pack(">H", len(value))
    return head + b"".join(packed(key) + packed(item) for key, item in value.items())


def kernel(name: str = "copy", **figures: int) -> dict:
    """Return a kernel's metadata; figures by their key without the dot."""
    given = {
        "vgpr_count": 12,
        "sgpr_count": 20,
        "group_segment_fixed_size": 1024,
        "private_segment_fixed_size": 0,
        "vgpr_spill_count": 0,
        "sgpr_spill_count": 0,
        "wavefront_size": 32,
        **figures,
    }
    args = [
        {".address_space": "global", ".offset": 8 * i, ".size": 8, ".value_kind": "global_buffer"} for i in range(4)
    ]
    return {".args": args, ".name": name, ".symbol": f"{name}.kd", **{f".{key}": value for key, value in given.items()}}


def code_object(*kernels: dict, mach: int = GFX1100, flags: int = 0, abi: int = 3, note: bytes | None = None) -> bytes:
    """Return an AMDGPU ELF file that holds nothing but the metadata note (or the given one)."""
    content = packed({"amdhsa.kernels": list(kernels), "amdhsa.version": [1, 2]}) if note is None else note
    body = struct.pack("<III", 7, len(content), 32) + b"AMDGPU\0\0" + content + bytes(-len(content) % 4)
    ident = b"\x7fELF\x02\x01\x01\x40" + bytes([abi]) + bytes(7)
    head = ident + struct.pack("<HHIQQQIHHHHHH", 3, 224, 1, 0, 64, 0, mach | flags, 64, 56, 1, 0, 0, 0)
    return head + struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(body), len(body), 4) + body


def bundle(*entries: tuple[str, bytes], align: int = 4096) -> bytes:
    """Return an offload bundle of a host entry and the given ones."""
    everything = [(HOST_ID, b""), *entries]
    header = 32 + sum(24 + len(name) for name, _ in everything)
    offset = header + -header % align
    table, content = b"", bytes(-header % align)
    for name, data in everything:
        pad = -offset % align
        content += bytes(pad) + data
        offset += pad
        table += struct.pack("<QQQ", offset, len(data), len(name)) + name.encode()
        offset += len(data)
    return b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(everything)) + table + content


def compressed(content: bytes, *, version: int = 3, method: str = "zstd", size: int | None = None) -> bytes:
    """Return a bundle in its compressed form; ``size`` tells a lie about the unpacked size."""
    data = zlib.compress(content) if method == "zlib" else zstandard.ZstdCompressor().compress(content)
    size = len(content) if size is None else size
    digest = int.from_bytes(hashlib.md5(content).digest()[:8], "little")
    layout = {1: "<IQ", 2: "<IIQ", 3: "<QQQ"}[version]
    total = 8 + struct.calcsize(layout) + len(data)
    fields = (size, digest) if version == 1 else (total, size, digest)
    return b"CCOB" + struct.pack("<HH", version, ["zlib", "zstd"].index(method)) + struct.pack(layout, *fields) + data


def section(*bundles: bytes, align: int = 4096) -> bytes:
    """Return bundles one after another, each aligned."""
    return b"".join(item + bytes(-len(item) % align) for item in bundles)


def library(sections: dict[str, bytes], machine: int = 62) -> bytes:
    """Return a host library with the given sections."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    at = 64
    rows = [bytes(64)]
    body = b""
    for name, data in (*sections.items(), (".shstrtab", names)):
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        rows.append(struct.pack("<IIQQQQIIQQ", place, 1, 2, 0, at + len(body), len(data), 0, 0, 1, 0))
        body += data
    body += bytes(-len(body) % 8)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    count = len(rows)
    head = struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, at + len(body), 0, 64, 56, 0, 64, count, count - 1)
    return ident + head + body + b"".join(rows)


def fat_library(*bundles: bytes) -> bytes:
    """Return a host library whose ``.hip_fatbin`` section holds the bundles."""
    return library({".text": b"\xc3" * 16, ".hip_fatbin": section(*bundles)})
