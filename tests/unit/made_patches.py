"""Writes patch files, series and trees for the tests of the patching station."""

from __future__ import annotations

import hashlib
from pathlib import Path

import yaml

from builder.patching.apply import Facts, apply, check
from builder.patching.series import load_series

HEADER = {
    "id": "tile",
    "title": "A larger tile",
    "why": "the small one is slow",
    "origin": "a report",
    "retire_when": "upstream has it",
    "proof": [{"text": "tile = 32", "file": "engine/launch.py"}],
}
EDIT = {"file": "engine/launch.py", "anchor": "tile = 16", "replacement": "tile = 32"}
LAUNCH = """def launch(queries):
    tile = 16
    return run(queries, tile)


def reduce(queries):
    segments = 8
    return combine(queries, segments)
"""


def patch(folder: Path, name: str = "tile.yaml", edits=None, **header) -> Path:
    """Write an edit patch; header fields override those of :data:`HEADER`."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {**HEADER, **header, "edits": [EDIT] if edits is None else edits}
    (folder / name).write_text(yaml.safe_dump({key: value for key, value in whole.items() if value is not None}))
    return folder / name


def diff(folder: Path, text: str, name: str = "tile.patch", **header) -> Path:
    """Write a unified diff with its header."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(yaml.safe_dump({**HEADER, **header}) + text)
    return folder / name


def series(folder: Path, *names: str, **options):
    """Write the ``series`` file of a folder (all its patches when none is named) and load it."""
    listed = names or sorted(path.name for path in folder.iterdir() if path.suffix in {".yaml", ".patch"})
    (folder / "series").write_text("".join(f"{name}\n" for name in listed))
    return load_series(folder, **options)


def tree(folder: Path, files=None) -> Path:
    """Write a source tree: texts or bytes by path."""
    for name, content in ({"engine/launch.py": LAUNCH} if files is None else files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def one_edit(tmp_path: Path, content, edit=None, **header):
    """Apply a patch of one edit to a tree of one file; return its report, its finding and the file's bytes."""
    name = (edit or EDIT)["file"]
    patch(tmp_path / "patches", edits=[edit or EDIT], **header)
    source = tree(tmp_path / "tree", {name: content})
    report = apply(series(tmp_path / "patches"), source, Facts()).patches[0]
    return report, (report.edits or (None,))[0], (source / name).read_bytes()


def outcomes(report) -> list[str]:
    """Return the outcomes of a report, in order."""
    return [one.outcome for one in report.patches]


def fingerprint(folder: Path) -> dict[str, tuple]:
    """Return all that a tree is: kind, mode and content of every path, and the names beside it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = ("folder", path.stat().st_mode)
        else:
            found[name] = ("file", path.stat().st_mode, hashlib.sha256(path.read_bytes()).hexdigest())
    return found


__all__ = ["Facts", "apply", "check"]
