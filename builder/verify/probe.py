"""The probe: one self-contained file that runs inside an image, without network, and prints what it found as JSON.

It needs nothing but the image's own Python: ``python3 probe.py ASK.json``, where ASK.json holds
``{"package": NAME, "modules": [NAME], "extensions": [GLOB], "texts": [PATH]}``, globs and paths below site-packages.
"""

import ctypes
import glob
import importlib
import importlib.metadata
import json
import os
import sys
import sysconfig

TEXT_LIMIT = 8 << 20


def main() -> None:
    """Answer the questions of the file that is named on the command line."""
    with open(sys.argv[1], encoding="utf-8") as file:
        ask = json.load(file)
    site = site_of(ask["package"])
    answer = {
        "python": sys.version.split()[0],
        "site": site,
        "user": os.getuid(),
        "distributions": distributions(),
        "version": package_version(ask["package"]),
        "modules": {name: imported(name) for name in ask["modules"]},
        "extensions": {pattern: matches(site, pattern) for pattern in ask["extensions"]},
        "loads": {path: loaded(path) for pattern in ask["extensions"] for path in matches(site, pattern)},
        "texts": {pattern: {path: text_of(path) for path in matches(site, pattern)} for pattern in ask["texts"]},
    }
    json.dump(answer, sys.stdout)


def site_of(package: str) -> str:
    """Return the folder that holds a package, without importing it."""
    for folder in (*sys.path[1:], sysconfig.get_paths()["purelib"]):
        if os.path.isdir(os.path.join(folder, package)):
            return folder
    return sysconfig.get_paths()["purelib"]


def distributions() -> "list[list[str]]":
    """Return name and version of every installed distribution."""
    found = {(dist.metadata["Name"] or "?", dist.version or "?") for dist in importlib.metadata.distributions()}
    return sorted([name, version] for name, version in found)


def package_version(package: str) -> str:
    """Return ``__version__`` of a package, or an empty text."""
    try:
        return str(getattr(importlib.import_module(package), "__version__", ""))
    except Exception as trouble:  # the report is the purpose, whatever a module raises
        return f"import failed: {trouble!r}"[:300]


def imported(name: str) -> str:
    """Import a module and return ``ok`` or what it raised."""
    try:
        importlib.import_module(name)
    except BaseException as trouble:  # also SystemExit: the report is the purpose
        return f"{type(trouble).__name__}: {trouble}"[:500]
    return "ok"


def loaded(path: str) -> str:
    """Load a shared library as the dynamic linker does and return ``ok`` or what it said."""
    try:
        ctypes.CDLL(path)
    except OSError as trouble:
        return str(trouble)[:500]
    return "ok"


def matches(site: str, pattern: str) -> "list[str]":
    """Return the files that an absolute glob, or one below site-packages, matches, as absolute paths."""
    return sorted(glob.glob(os.path.join(glob.escape(site), pattern), recursive=True))


def text_of(path: str) -> "dict[str, str]":
    """Return a file's text, or why it cannot be read; only its first 8 MiB are looked at."""
    try:
        with open(path, "rb") as file:
            return {"text": file.read(TEXT_LIMIT).decode("utf-8", "replace")}
    except OSError as trouble:
        return {"error": trouble.strerror or "unreadable"}


if __name__ == "__main__":
    main()
