"""Takes other architectures' GPU code out of a folder, in the layer that brings it.

``prune.py ARCH FOLDER [--strip] [--check]`` removes files of other architectures from the known places (rocBLAS,
hipBLASLt, MIOpen, AOTriton) and, with ``--strip``, fills their code objects inside shared libraries with zeros: the
headers, the offsets and this architecture's bytes stay as they are, and zeros cost nothing to push and pull. Files that
no architecture stay, and so does every library of the host. ``--check`` only says what it would do.
The last line is JSON: files and bytes of each group before and after, as they lie on the disk and about as they are
pushed.
"""

import base64
import csv
import hashlib
import json
import os
import re
import struct
import sys
import zlib
from itertools import pairwise
from typing import BinaryIO

# where libraries keep files by architecture, as they are below /opt/rocm, in torch's wheel and in distribution packages
PLACES = {
    "rocblas": re.compile(r"(^|/)rocblas/([^/]+/)?library/"),
    "hipblaslt": re.compile(r"(^|/)hipblaslt/([^/]+/)?library/"),
    "hipsparselt": re.compile(r"(^|/)hipsparselt/([^/]+/)?library/"),
    "miopen": re.compile(r"(^|/)miopen/db/"),
    "aotriton": re.compile(r"(^|/)aotriton[^/]*\.images/"),
}
# gfx1100, gfx90a, gfx9-4-generic, gfx11xx, gfx110x; MIOpen appends the number of compute units in hex: gfx90878 is
# gfx908 with 120
TOKEN = re.compile(r"gfx(\d+-(\d+-)?generic|[0-9]+x+|[0-9a-f]+)")
BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
ELF, AMDGPU = b"\x7fELF", 224
MIB = 1 << 20
SAMPLE = 16 * MIB  # of so much one MiB is packed, to tell how well the rest packs
NOTHING = {"files": 0, "removed": 0, "before": 0, "after": 0, "packed_before": 0, "packed_after": 0}
ELF_BYTES, ELF64 = 64, 2  # of an ELF-64 header and of a section's row; EI_CLASS
BUNDLE_BYTES, ENTRY_BYTES = 32, 24  # magic and count; offset, size and length of the id
MOST_ENTRIES, LONGEST_ID = 4096, 1024


def main() -> None:
    """Prune what the command line names and print the bytes before and after, by group."""
    arch, root = sys.argv[1], sys.argv[2]
    strip, check = "--strip" in sys.argv[3:], "--check" in sys.argv[3:]
    groups: dict[str, dict[str, int]] = {}
    changed = set()
    for path, group in gpu_files(root):
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            pushed = packed(file, [(0, size)])
        told = groups.setdefault(group, dict(NOTHING))
        told["files"] += 1
        told["before"] += size
        told["packed_before"] += pushed
        if is_foreign(os.path.relpath(path, root), arch) and not is_host_library(path):
            told["removed"] += 1
            changed.add(os.path.abspath(path))
            print(f"{'would remove' if check else 'removed'} {path}, {size} bytes")
            if not check:
                os.unlink(path)
        else:
            told["after"] += size
            told["packed_after"] += pushed
    if strip:
        changed |= strip_all(root, arch, groups, check=check)
    if changed and not check:
        rewrite_records(root, changed)
    print(json.dumps({"arch": arch, "root": root, "groups": groups}, sort_keys=True))


def gpu_files(root: str) -> "list[tuple[str, str]]":
    """Return the files of the known places with their group, sorted; links are left alone."""
    found = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            group = next((group for group, place in PLACES.items() if place.search(path)), None)
            if group and not os.path.islink(path):
                found.append((path, group))
    return sorted(found)


def is_foreign(path: str, arch: str) -> bool:
    """Whether a path names architectures, and this one is none of them."""
    named = [match[0] for match in TOKEN.finditer(path)]
    return bool(named) and not any(covers(token, arch) for token in named)


def covers(token: str, arch: str) -> bool:
    """Whether a token of a file name stands for an architecture: itself, with compute units, or a family's name."""
    if token.endswith("generic"):
        return arch[3:].startswith(token[3:].partition("-")[0])
    if token.endswith("x"):
        family = token.rstrip("x")
        return arch.startswith(family) and len(arch) == len(token)
    return token.startswith(arch)


def is_host_library(path: str) -> bool:
    """Whether a file is an ELF file for another machine than the GPU, which the loader may need."""
    with open(path, "rb") as file:
        head = file.read(20)
    return head.startswith(ELF) and struct.unpack_from("<H", head, 18)[0] != AMDGPU


def strip_all(root: str, arch: str, groups: "dict[str, dict[str, int]]", *, check: bool) -> "set[str]":
    """Zero other architectures' code objects in every library below a folder; return the files that changed."""
    told = dict(NOTHING)
    changed = set()
    for folder, _, names in os.walk(root):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if os.path.islink(path) or not os.path.isfile(path) or not is_elf(path):
                continue
            with open(path, "rb" if check else "r+b") as file:
                ranges, kept = foreign_ranges(file, arch)
                if not ranges:
                    continue
                told["files"] += 1
                told["removed"] += len(ranges)
                told["before"] += sum(size for _, size in ranges + kept)
                told["after"] += sum(size for _, size in kept)
                ours = packed(file, kept)
                told["packed_before"] += ours + packed(file, ranges)
                told["packed_after"] += ours
                if not check:
                    before = [hash_of(file, at, size) for at, size in kept]
                    zero(file, ranges)
                    after = [hash_of(file, at, size) for at, size in kept]
                    if foreign_ranges(file, arch) != (ranges, kept) or before != after:
                        sys.exit(f"gfx1100-prune: {path} reads otherwise after its other architectures were zeroed")
                    changed.add(os.path.abspath(path))
            print(f"{'would zero' if check else 'zeroed'} {len(ranges)} code objects in {path}")
    if told["files"]:
        groups["libraries"] = told
    return changed


def is_elf(path: str) -> bool:
    """Whether a file begins as ELF files do."""
    with open(path, "rb") as file:
        return file.read(4) == ELF


def foreign_ranges(file: BinaryIO, arch: str) -> "tuple[list[tuple[int, int]], list[tuple[int, int]]]":
    """Return (offset, size) of the code objects of other architectures and of those that stay.

    Nothing is taken from a library without code for this architecture, from a compressed bundle, or where an entry
    reaches out of its section or into another one.
    """
    foreign, kept = [], []
    for at, size in fatbin_sections(file):
        for start in bundle_starts(file, at, size):
            for offset, length, name in entries(file, start, at + size):
                ours = name.startswith("host") or covers(name.rpartition("--")[2].partition(":")[0], arch)
                (kept if ours else foreign).append((offset, length))
                if not ours and "gfx" not in name:
                    return [], []
    overlapping = sorted(foreign + kept)
    if any(one + size > two for (one, size), (two, _) in pairwise(overlapping)):
        return [], []
    return (foreign, kept) if any(size for _, size in kept) else ([], [])


def fatbin_sections(file: BinaryIO) -> "list[tuple[int, int]]":
    """Return offset and size of the ELF sections that hold offload bundles."""
    file.seek(0, os.SEEK_END)
    whole = file.tell()
    head = read(file, 0, ELF_BYTES)
    if len(head) < ELF_BYTES or head[4] != ELF64:
        return []
    table, entry, count, names = *struct.unpack_from("<Q", head, 40), *struct.unpack_from("<HHH", head, 58)
    rows = [read(file, table + number * entry, ELF_BYTES) for number in range(count)]
    if names >= len(rows) or any(len(row) < ELF_BYTES for row in rows):
        return []
    strings = read(file, *struct.unpack_from("<QQ", rows[names], 24))
    found = []
    for row in rows:
        name = strings[struct.unpack_from("<I", row)[0] :].partition(b"\0")[0]
        at, size = struct.unpack_from("<QQ", row, 24)
        if name.startswith(b".hip_fatbin") and name != b".hipFatBinSegment" and at + size <= whole:
            found.append((at, size))
    return found


def bundle_starts(file: BinaryIO, at: int, size: int) -> "list[int]":
    """Return where plain bundles begin in a section."""
    found, place, overlap = [], at, len(BUNDLE) - 1
    while place < at + size:
        block = read(file, place, min(64 * MIB, at + size - place))
        begin = block.find(BUNDLE)
        while begin >= 0:
            if not found or found[-1] != place + begin:
                found.append(place + begin)
            begin = block.find(BUNDLE, begin + 1)
        if place + len(block) >= at + size or not block:
            break
        place += len(block) - overlap
    return found


def entries(file: BinaryIO, start: int, end: int) -> "list[tuple[int, int, str]]":
    """Return offset in the file, size and id of a bundle's entries; none of a bundle that does not hold together."""
    head = read(file, start, BUNDLE_BYTES)
    if len(head) < BUNDLE_BYTES:
        return []
    (count,) = struct.unpack_from("<Q", head, 24)
    place, found = start + BUNDLE_BYTES, []
    for _ in range(min(count, MOST_ENTRIES)):
        row = read(file, place, ENTRY_BYTES)
        if len(row) < ENTRY_BYTES:
            return []
        offset, size, length = struct.unpack("<QQQ", row)
        if length > LONGEST_ID or start + offset + size > end:
            return []
        name = read(file, place + ENTRY_BYTES, length).decode("ascii", "replace")
        place += ENTRY_BYTES + length
        if size:
            found.append((start + offset, size, name))
    return found


def zero(file: BinaryIO, ranges: "list[tuple[int, int]]") -> None:
    """Fill ranges of a file with zeros."""
    for at, size in ranges:
        file.seek(at)
        left = size
        while left:
            left -= file.write(bytes(min(left, MIB)))
    file.flush()


def read(file: BinaryIO, at: int, size: int) -> bytes:
    """Return bytes of a file from a place on."""
    file.seek(at)
    return file.read(size)


def packed(file: BinaryIO, ranges: "list[tuple[int, int]]") -> int:
    """Return about how many bytes ranges of a file take in a layer that is pushed, which is packed with gzip."""
    whole = 0.0
    for at, size in ranges:
        seen = taken = 0
        for place in range(at, at + size, SAMPLE if size > SAMPLE else MIB):
            piece = read(file, place, min(MIB, at + size - place))
            seen += len(piece)
            taken += len(zlib.compress(piece, 1))
        whole += taken * size / seen if seen else 0
    return round(whole)


def hash_of(file: BinaryIO, at: int, size: int) -> str:
    """Return the hash of a range of a file."""
    return hashlib.sha256(read(file, at, size)).hexdigest()


def rewrite_records(root: str, changed: "set[str]") -> None:
    """Bring the file lists of installed distributions in line: removed files out, zeroed ones with their new hash."""
    for folder, _, names in os.walk(root):
        if not folder.endswith(".dist-info") or "RECORD" not in names:
            continue
        path, site = os.path.join(folder, "RECORD"), os.path.dirname(folder)
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        files = [os.path.abspath(os.path.join(site, row[0])) for row in rows]
        if not changed.intersection(files):
            continue
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            for row, full in zip(rows, files, strict=True):
                if full not in changed:
                    writer.writerow(row)
                elif os.path.exists(full):
                    with open(full, "rb") as content:
                        digest = hashlib.file_digest(content, "sha256").digest()
                    value = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
                    writer.writerow([row[0], f"sha256={value}", str(os.path.getsize(full))])


if __name__ == "__main__":
    main()
