"""Verify what is no image: a wheel, a folder of site-packages, or one shared object."""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import UsageError, VerifyError
from builder.files import MIB, inside
from builder.models.lock import load_lock, lock_path
from builder.models.stack import Stack, load_stack
from builder.objects import Library, survey
from builder.verify import inventory, probe
from builder.verify.checks import Evidence
from builder.verify.linking import Linker
from builder.verify.run import Examination, examine

if TYPE_CHECKING:
    from builder.models.lock import Lock

ZIP = b"PK\x03\x04"
STARTS = (ZIP, b"\x7fELF", b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB")
UNPACKED_LIMIT = 32 << 30
ARCH = "gfx1100"


def verify_path(
    path: Path, *, root: Path, stack: str | None = None, only: Iterable[str] = (), skip: Iterable[str] = ()
) -> Examination:
    """Verify a wheel, a folder of site-packages, or one shared object.

    Args:
        path: What to look at.
        root: The checkout, whose stacks say what is expected.
        stack: The stack that it belongs to; without one, only what holds for every stack is checked.
        only: The checks to run; none for all.
        skip: Checks to leave out.

    Raises:
        UsageError: It is none of these, or the stack or a check is not known.
        VerifyError: A file in it is damaged, or nothing in it could be checked.
    """
    wanted = load_stack(root, stack) if stack else None
    lock = load_lock(root, stack) if stack and lock_path(root, stack).exists() else None
    if path.exists() and not (path.is_dir() or path.is_file()):
        raise UsageError(f"{path} is no regular file and no folder")
    libraries = survey(path)
    if path.is_dir():
        evidence = _folder(path, path, libraries, wanted, lock)
    elif (start := _start(path)).startswith(ZIP):
        with _unpacked(path) as folder:
            evidence = _folder(path, folder, libraries, wanted, lock)
    elif start.startswith(STARTS):
        evidence = _file(path, libraries[0])
    else:
        raise UsageError(f"{path} is no wheel, no shared object and no code object")
    found = examine(evidence, only=only, skip=skip)
    if all(check.status == "skipped" for check in found.verification.checks):
        raise VerifyError(
            f"nothing was checked of {path}: none of the checks that were asked for can be made there",
            hint="`gfx1100 verify` without --only and --skip makes all that can be",
        )
    return found


def _folder(named: Path, folder: Path, libraries: list[Library], stack: Stack | None, lock: Lock | None) -> Evidence:
    """Return the evidence of a folder that was named, or that a named wheel was unpacked into."""
    site = str(folder.resolve())
    # a folder has all packages, so that nothing may be missing
    whole = folder == named
    distributions = probe.distributions([site])
    if not (libraries or distributions or inventory.libraries(site, "", ())):
        # no check could say no
        raise VerifyError(
            f"nothing is there to check in {named}: no distribution and no library",
            hint="name a wheel, a library, or the site-packages folder itself",
        )
    if stack is None:
        device = [str(Path(site, library.path)) for library in libraries]
        linked = device if whole else inventory.libraries(site, "", ())
    else:
        linked = inventory.libraries(site, stack.expect.package, stack.expect.extensions)
    foreign, copies = inventory.walk((site,), ARCH)
    answer: dict[str, Any] = {
        "distributions": distributions,
        "requires": probe.requirements([site]),
        "markers": probe.markers(),
        "owners": probe.owners(["triton", "torch", *([stack.expect.package] if stack else [])], [site]),
        "torch": probe.torch_version(site),
    }
    return Evidence(
        arch=ARCH,
        stack=stack,
        lock=lock,
        distributions=distributions,
        own_version="",
        answer=answer if whole else None,
        links=_links(site, linked, whole=whole),
        foreign={**foreign, "files": [os.path.relpath(path, site) for path in foreign["files"]]},
        libamd_smi=[os.path.relpath(copy, site) for copy in copies],
        record=inventory.record(site, stack.pin.distribution) if stack else None,
        objects=_objects(libraries, stack),
    )


def _file(path: Path, library: Library) -> Evidence:
    device = library.bundles or library.objects or library.elsewhere
    site = str(path.resolve().parent)
    return Evidence(
        arch=ARCH,
        links=_links(site, [str(path.resolve())], whole=False),
        foreign={"count": 0, "bytes": 0, "files": []},
        objects={library.path: (library,)} if device else {},
    )


def _links(site: str, paths: list[str], *, whole: bool) -> dict[str, dict[str, Any]]:
    """Return what is wrong with the linking of host libraries, by path below the folder.

    Unless it is whole, an image may bring what is not here.
    """
    linker = Linker(site, library_path="", interpreter=None, in_place=whole)
    rows = linker.report(path for path in paths if inventory.is_host_library(path))
    for row in rows.values():
        if "needed" not in row:
            continue
        # the program that brings them is not here
        unresolved = [one for one in row["unresolved"] if not one["symbol"].startswith(("Py", "_Py"))]
        # nor are, for a wheel, the libraries of the system that it will run on
        outside = [] if whole else [*sorted({fault.split(",")[0] for fault in row["missing"]}), *row["versions"]]
        row.update({"outside": outside, "unresolved": [] if outside else unresolved})
        row.update({} if whole else {"missing": [], "versions": []})
    return {os.path.relpath(path, site): row for path, row in rows.items()}


def _objects(libraries: list[Library], stack: Stack | None) -> dict[str, tuple[Library, ...]]:
    """Return the libraries with device code by the stack's globs; without a stack, each counts by itself."""
    if stack is None:
        return {library.path: (library,) for library in libraries}
    return {
        pattern: tuple(library for library in libraries if fnmatchcase(library.path, pattern))
        for pattern in stack.expect.extensions
        if not pattern.startswith("/")
    }


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(32)


@contextmanager
def _unpacked(wheel: Path) -> Iterator[Path]:
    """Yield a scratch folder with a wheel's files; nothing in the archive is believed."""
    with tempfile.TemporaryDirectory(prefix="gfx1100-wheel-") as scratch:
        folder, left = Path(scratch), UNPACKED_LIMIT
        try:
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.infolist():
                    if member.is_dir():
                        continue
                    place = folder / inside(member.filename)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(member) as packed, place.open("xb") as file:
                        while piece := packed.read(MIB):
                            left -= len(piece)
                            if left < 0:
                                raise VerifyError(f"{wheel} unpacks to more than {UNPACKED_LIMIT} bytes")
                            file.write(piece)
        except (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, ValueError, EOFError) as bad:
            raise VerifyError(f"{wheel}: the wheel is damaged: {bad}") from bad
        except UsageError as bad:
            raise VerifyError(f"{wheel}: {bad.message}") from bad
        yield folder
