"""What the installs of a build are held to and take from: ``pins/`` and ``wheels/`` of the context."""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
import shutil
import zipfile
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.errors import UsageError
from builder.files import inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from builder.models.lock import Lock
    from builder.models.stack import Stack

ZIP_TIME = (1980, 1, 1, 0, 0, 0)
NAME = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)")
DEPTH = 10


def write_pins(folder: Path, root: Path, stack: Stack, lock: Lock, *, read: Callable[[str], str]) -> None:
    """Write ``pins/`` of a context: hashes, constraints, requirements, and the programs that hold the build to them.

    ``read`` gives the text of a file of the engine's source.
    """
    torch, build, run = (folder / name for name in ("torch", "build", "run"))
    for path in (torch, build, run):
        path.mkdir(parents=True)
    pinned = [f"{wheel.name}=={wheel.version}" for wheel in lock.wheels]
    hashes = [f"{pin} --hash=sha256:{wheel.sha256}" for pin, wheel in zip(pinned, lock.wheels, strict=True)]
    _write(torch / "wheels.txt", [*_indexes(stack), *hashes])
    held = [*pinned, *stand_in_pins(stack)]
    _write(torch / "constraints.txt", held)
    # the wheels were installed without what they need; naming them again brings that
    _write(build / "build.txt", [*pinned, *stack.build_requirements])
    _write(run / "constraints.txt", [*held, *(f"{wheel.name}=={wheel.version}" for wheel in lock.requirements)])
    _write(run / "run.txt", [*_extra_indexes(stack), *pinned, *run_requirements(stack, read)])
    write_stand_ins(torch, stack)
    programs = {"guard.py": torch, "prune.py": torch, "parts.py": torch, "native.py": build, "entry.py": run}
    for name, target in programs.items():
        shutil.copyfile(root / "templates" / name, target / name)
    (run / "entry.py").rename(run / "gfx1100-entry")
    (run / "gfx1100-entry").chmod(0o755)


def link_wheels(folder: Path, stack: Stack, lock: Lock, wheelhouse: Path) -> None:
    """Write ``wheels/`` of a context: what the wheelhouse has for this build, by hard links where that is possible."""
    sources = {
        "pinned": [wheelhouse / "pinned" / wheel.file for wheel in lock.wheels],
        "build": sorted((wheelhouse / stack.name / "build").glob("*.whl")),
        "run": sorted((wheelhouse / stack.name / "run").glob("*.whl")),
    }
    for part, paths in sources.items():
        (folder / part).mkdir(parents=True)
        for path in paths:
            if path.is_file():
                target = folder / part / path.name
                try:
                    os.link(path, target)
                except OSError:  # another file system
                    shutil.copyfile(path, target)


def run_requirements(stack: Stack, read: Callable[[str], str]) -> list[str]:
    """Return the run-time requirements as one flat list: the file of the source with all that it includes, and our own.

    What names a pinned wheel or the engine is left out: the lock decides it. Options are left out, too: an index that
    stands in the engine's file would bring another build of torch.

    Raises:
        UsageError: A file includes itself, or is not there.
    """
    pinned = {canonicalize_name(wheel.name) for wheel in stack.wheels} | {canonicalize_name(stack.pin.distribution)}
    stands = {canonicalize_name(wheel.stands_for) for wheel in stack.wheels if wheel.stands_for}
    left_out = pinned | stands | {canonicalize_name(name) for name in stack.requirements.left_out}
    found: list[str] = []
    lines = _flat(stack.requirements.file, read, DEPTH) if stack.requirements.file else ()
    for line in (*lines, *stack.requirements.lines):
        name = NAME.match(line)
        if name is not None and canonicalize_name(name[1]) not in left_out and line not in found:
            found.append(line)
    return found


def stand_ins(stack: Stack) -> list[str]:
    """Return the file names of the empty distributions that stand for others."""
    return [f"{_file(name)}-{version}-py3-none-any.whl" for name, version in _stands(stack)]


def stand_in_pins(stack: Stack) -> list[str]:
    """Return constraints that only the empty distributions meet: their versions have a local part of our own."""
    return [f"{name}=={version}" for name, version in _stands(stack)]


def write_stand_ins(folder: Path, stack: Stack) -> None:
    """Write the empty distributions that stand for others: metadata alone, the same bytes every time."""
    for (name, version), file in zip(_stands(stack), stand_ins(stack), strict=True):
        info = f"{_file(name)}-{version}.dist-info"
        what = "Empty: another distribution of this image owns the folder"
        files = {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {what}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: gfx1100\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            for path, text in files.items():
                archive.writestr(zipfile.ZipInfo(path, ZIP_TIME), text)
        (folder / file).write_bytes(content.getvalue())


def _stands(stack: Stack) -> list[tuple[str, str]]:
    """Return name and version of the empty distributions."""
    named = [(wheel.stands_for, wheel.version) for wheel in stack.wheels]
    return [(name, f"{version}{'.' if '+' in version else '+'}gfx1100") for name, version in named if name]


def _flat(file: str, read: Callable[[str], str], depth: int) -> Iterator[str]:
    if depth == 0:
        raise UsageError(f"the requirements {file} include each other without end")
    for raw in read(file).splitlines():
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        included = re.match(r"(?:-r|--requirement)[ =]?\s*(\S+)", line)
        if included:
            yield from _flat(posixpath.normpath(posixpath.join(posixpath.dirname(file), included[1])), read, depth - 1)
        elif line and not line.startswith("-"):
            yield line


def _indexes(stack: Stack) -> list[str]:
    named = list(dict.fromkeys(wheel.index for wheel in stack.wheels if wheel.index))
    return [f"{'--extra-index-url' if number else '--index-url'} {index}" for number, index in enumerate(named)]


def _extra_indexes(stack: Stack) -> list[str]:
    """Return the index of a published engine, which has some of its requirements, too; of no other."""
    return [f"--extra-index-url {wheel.index}" for wheel in stack.wheels if wheel.name == stack.pin.distribution]


def _file(name: str) -> str:
    return canonicalize_name(name).replace("-", "_")


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def reader_of(folder: Path) -> Callable[[str], str]:
    """Return a function that reads files of a source folder.

    Raises:
        UsageError: (the function) There is no such file.
    """

    def read(name: str) -> str:
        path = folder / inside(name)
        with contextlib.suppress(OSError):
            return path.read_text()
        raise UsageError(f"the source has no file {name}, which the stack's requirements name")

    return read
