"""Divides a folder into parts that become a layer each, none larger than a limit.

``parts.py LIMIT COUNT FOLDER [BELOW]`` moves what FOLDER holds to ``/parts/0`` to ``/parts/COUNT-1`` under its full
path. Large files go into the first part with room for them, in the order of their paths; all small ones together into
the last part, or those before it when it is full: so a change of small files leaves the layers of the large ones as
they are. With BELOW, the root of what the image has already, files that are there with the same content are left out.

All times become one time, so that installing the same again makes the same layers; compiled Python files, which name
the time of their source, follow.
"""

import contextlib
import filecmp
import importlib.util
import os
import struct
import sys
from typing import NoReturn

PARTS = "/parts"
LARGE = 16 << 20
OVERHEAD = 2048  # of a file in a layer's tar: its header, the rest of its last block, a long name
TIME = 315532800  # 1980, the first year of a zip file


def main() -> None:
    """Divide a folder as the command line says, and tell the size of each part."""
    limit, count, folder = int(sys.argv[1]), int(sys.argv[2]), os.path.realpath(sys.argv[3])
    below = sys.argv[4] if len(sys.argv) > len(["parts.py", "LIMIT", "COUNT", "FOLDER"]) else None
    files, empty = listed(folder)
    if below is not None:
        files = [path for path in files if not same(path, below + path)]
    parts = divided({path: os.lstat(path).st_size + OVERHEAD for path in files}, limit, count)
    for path in files:
        if path.endswith(".pyc") and not os.path.islink(path):
            retime(path)
    for number, part in enumerate(parts):
        target = f"{PARTS}/{number}"
        os.makedirs(target)
        for path in part:
            make_parents(os.path.dirname(path), target)
            os.rename(path, target + path)
            os.utime(target + path, (TIME, TIME), follow_symlinks=False)
        if number == count - 1:
            for path in empty:
                make_parents(path, target)
        for root, _, _ in os.walk(target):
            os.utime(root, (TIME, TIME))
        size = sum(os.lstat(target + path).st_size for path in part)
        print(f"{target}: {len(part)} files, {size:,} bytes of {folder}")


def listed(folder: str) -> "tuple[list[str], list[str]]":
    """Return what a folder holds in the order of paths: files and links, and folders that are empty."""
    files, empty = [], []
    for root, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        files += [os.path.join(root, name) for name in (*names, *links)]
        if not folders and not names:
            empty.append(root)
    return sorted(files), sorted(empty)


def same(path: str, other: str) -> bool:
    """Return whether two paths are the same link, or files with the same content and mode."""
    if os.path.islink(path) or os.path.islink(other):
        return os.path.islink(path) and os.path.islink(other) and os.readlink(path) == os.readlink(other)
    if not os.path.isfile(other) or os.stat(path).st_mode != os.stat(other).st_mode:
        return False
    return filecmp.cmp(path, other, shallow=False)


def divided(sizes: "dict[str, int]", limit: int, count: int) -> "list[list[str]]":
    """Return the paths of each part.

    Args:
        sizes: Bytes of each path, in the order in which they take their places.
        limit: The most bytes of a part.
        count: The number of parts.
    """
    parts: list[list[str]] = [[] for _ in range(count)]
    room = [limit] * count
    for large in (True, False):
        for path, size in sizes.items():
            if (size >= LARGE) != large:
                continue
            if size > limit:
                fail(
                    f"{path} has {size:,} bytes and a layer may have {limit:,}: "
                    "take the file out, or raise budget.layer_bytes of the stack"
                )
            order = range(count) if large else reversed(range(count))
            number = next((number for number in order if room[number] >= size), None)
            if number is None:
                fail(
                    f"{count} layers of {limit:,} bytes do not hold the {sum(sizes.values()):,} bytes: no room for "
                    f"{path} with {size:,}; raise budget.image_bytes of the stack, from which their number follows"
                )
            parts[number].append(path)
            room[number] -= size
    return parts


def retime(path: str) -> None:
    """Let a compiled file that is up to date name the one time as its source's (PEP 552: flags, time, size)."""
    with contextlib.suppress(ValueError, FileNotFoundError, struct.error), open(path, "r+b") as file:
        _, flags, time = struct.unpack("<4sII", file.read(12))
        if flags == 0 and time == int(os.stat(importlib.util.source_from_cache(path)).st_mtime):
            file.seek(8)
            file.write(struct.pack("<I", TIME))


def make_parents(folder: str, target: str) -> None:
    """Make a folder and those above it in a part, with the modes that they have outside."""
    if os.path.isdir(target + folder):
        return
    make_parents(os.path.dirname(folder), target)
    os.mkdir(target + folder)
    told = os.stat(folder)
    os.chown(target + folder, told.st_uid, told.st_gid)
    os.chmod(target + folder, told.st_mode & 0o7777)


def fail(why: str) -> NoReturn:
    """End the build with a line that says what to change."""
    sys.exit(f"gfx1100-parts: {why}")


if __name__ == "__main__":
    main()
