"""What the dynamic linker would find for shared libraries: missing libraries, versions, symbols, bad run paths.

Only the standard library, for any Python from 3.9 on: it runs inside an image, where nothing else can be counted on,
and on the host for wheels and folders. Search order: ld.so(8).
"""

# os.path is what every Python of an image has
# ruff: noqa: PTH100, PTH112, PTH113, PTH116, PTH118, PTH119, PTH120, PTH123, PTH207

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from builder.verify.dynamic import Elf, readable

MOST_SHOWN = 20
# where ROCm and distributions put libraries; other absolute run paths of a wheel are the builder's own
INSTALLED = re.compile(r"(/opt/rocm(-[\d.]+)?|/usr/lib(32|64)?|/usr/local/lib|/lib(32|64)?)(/|$)")
SYSTEM_FOLDERS = ("/lib", "/usr/lib", "/lib64", "/usr/lib64")


class Linker:
    """Finds libraries as ld.so does, for a site-packages folder whose torch is loaded before the engine.

    Args:
        site: The site-packages folder.
        library_path: ``LD_LIBRARY_PATH``, or an empty text.
        interpreter: The Python program, which brings the symbols of Python; None when it is not known.
        in_place: The libraries lie where they will be used, as in an image, and not in a wheel.
    """

    def __init__(self, site: str, *, library_path: str, interpreter: str | None, in_place: bool) -> None:
        self.in_place = in_place
        self.before = [folder for folder in library_path.split(":") if folder]
        # what `import torch` has loaded already is found by its name, wherever it lies
        loaded = [
            os.path.join(site, "torch/lib"),
            *sorted(glob.glob(os.path.join(glob.escape(site), "_rocm_sdk_*/lib"))),
        ]
        self.after = [*configured("/etc/ld.so.conf"), *SYSTEM_FOLDERS, *loaded]
        self.interpreter = interpreter
        self._known: dict[str, Elf | None] = {}

    def report(self, paths: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return, by path, what is wrong with each library: missing libraries, versions, symbols, run paths."""
        libraries = {path: self.elf(path) for path in paths}
        closures = {path: self._closure(elf) for path, elf in libraries.items() if elf}
        wanted = {path: elf.undefined() for path, elf in libraries.items() if elf}
        everything: set[str] = set().union(*wanted.values())
        providers = {found.path: found for closure, _ in closures.values() for found in closure}
        exports = {path: elf.exported(everything) for path, elf in providers.items()}
        rows: dict[str, dict[str, Any]] = {}
        for path, elf in libraries.items():
            if elf is None:
                rows[path] = {"error": "no ELF file of 64 bits, or a damaged one"}
                continue
            closure, missing = closures[path]
            brought: set[str] = set().union(*(exports[found.path] for found in closure))
            rows[path] = {
                "needed": elf.needed,
                "missing": missing,
                "versions": self._missing_versions(elf, closure),
                "unresolved": _unresolved(sorted(wanted[path] - brought), closure),
                "run_paths": [*self._bad_folders(elf)],
            }
        return rows

    def elf(self, path: str) -> Elf | None:
        """Return a library, or None when the file is none."""
        if path not in self._known:
            try:
                self._known[path] = Elf(path)
            except (ValueError, OSError):
                self._known[path] = None
        return self._known[path]

    def _closure(self, elf: Elf) -> tuple[list[Elf], list[str]]:
        """Return a library with all that it needs, and ``NAME, needed by PATH`` for what is nowhere."""
        found, missing, names = {elf.path: elf}, {}, set()
        queue = [(elf, tuple(elf.rpath))]
        program = self.elf(self.interpreter) if self.interpreter else None
        if program is not None:
            found[program.path] = program
            queue.append((program, ()))
        while queue:
            asking, above = queue.pop(0)
            for name in asking.needed:
                if name in names:
                    continue
                names.add(name)
                library = self._find(name, asking, above)
                if library is None:
                    missing[name] = f"{name}, needed by {asking.path}"
                elif library.path not in found:
                    found[library.path] = library
                    queue.append((library, (*above, *library.rpath)))
        return list(found.values()), sorted(missing.values())

    def _find(self, name: str, asking: Elf, above: tuple[str, ...]) -> Elf | None:
        if "/" in name:
            return self.elf(name)
        old = [] if asking.runpath else [*asking.rpath, *above]
        for folder in (*old, *self.before, *asking.runpath, *self.after):
            path = os.path.join(expanded(folder, asking.path), name)
            library = self.elf(path) if os.path.isfile(path) else None
            if library is not None and library.machine == asking.machine:
                return library
        return None

    @staticmethod
    def _missing_versions(elf: Elf, closure: list[Elf]) -> list[str]:
        by_name = {name: found for found in closure for name in (found.soname, os.path.basename(found.path))}
        return [
            f"{version} of {library}, which {by_name[library].path} does not have"
            for library, versions in elf.wanted_versions.items()
            if library in by_name and by_name[library].versions
            for version in versions
            if version not in by_name[library].versions
        ]

    def _bad_folders(self, elf: Elf) -> Iterator[str]:
        for entry in (*elf.rpath, *elf.runpath):
            folder = os.path.normpath(expanded(entry, elf.path))
            if not entry.startswith(("/", "$ORIGIN", "${ORIGIN}")):
                yield f"{entry or '(empty)'!r} is looked for in the folder where the program is started"
            elif not self.in_place:
                if entry.startswith("/") and not INSTALLED.match(entry):
                    yield f"{entry!r} is a folder of the machine that built it"
            elif entry.startswith("/") and not os.path.isdir(folder):
                yield f"{entry!r} is no folder of the image"
            elif os.path.isdir(folder) and os.stat(folder).st_mode & 0o002:
                yield f"{entry!r} is a folder that everybody may write to"


def configured(path: str) -> list[str]:
    """Return the folders that ``ld.so.conf`` and the files that it includes name."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError:
        return []
    folders: list[str] = []
    for line in lines:
        if line.startswith("include "):
            pattern = os.path.join(os.path.dirname(path), line.split(None, 1)[1])
            folders += [folder for found in sorted(glob.glob(pattern)) if found != path for folder in configured(found)]
        elif line.startswith("/"):
            folders.append(line)
    return folders


def expanded(folder: str, path: str) -> str:
    """Return a folder of a library's run path with ``$ORIGIN`` filled in."""
    return re.sub(r"\$(ORIGIN\b|\{ORIGIN\})", lambda _: os.path.dirname(os.path.abspath(path)), folder)


def _unresolved(symbols: list[str], closure: list[Elf]) -> list[dict[str, Any]]:
    shown = symbols[:MOST_SHOWN]
    names = {readable(symbol) for symbol in shown if symbol.startswith("_Z")}
    kindred: dict[str, list[str]] = {}
    for elf in closure if names else []:
        for other in elf.kindred(names):
            kindred.setdefault(readable(other), []).append(f"{other} of {os.path.basename(elf.path)}")
    rows = [
        {"symbol": one, "name": readable(one), "kindred": sorted(kindred.get(readable(one), []))[:3]} for one in shown
    ]
    return rows if len(symbols) <= MOST_SHOWN else [*rows, {"symbol": f"{len(symbols) - MOST_SHOWN} more"}]
