"""A series: the patch files of a folder in the order of its ``series`` file, each read, checked and hashed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.files import inside, read_text, sha256
from builder.models.base import load_yaml, nearest, parse_yaml, validated
from builder.patching.diffs import FileDiff, parse_diff
from builder.patching.header import PLACEHOLDER, CheckpointPatch, Edit, EditPatch, Header, Parameter, Proof, render

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

SUFFIXES = (".yaml", ".patch", ".diff")
DIFF_START = re.compile(r"^(?:diff --git |--- )", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A patch of a series: its header and either edits or the diffs of files.

    Attributes:
        header: What it says of itself.
        path: Its file.
        sha256: Hash of its file, for the lock.
        edits: The edits of an edit patch, in order.
        diffs: The files of a unified diff, in order.
    """

    header: Header
    path: Path
    sha256: str
    edits: tuple[Edit, ...] = ()
    diffs: tuple[FileDiff, ...] = ()

    @property
    def id(self) -> str:
        """The patch's name."""
        return self.header.id

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it touches, sorted."""
        return tuple(sorted({edit.file for edit in self.edits} | {diff.file for diff in self.diffs}))

    def proofs(self, parameters: Mapping[str, int]) -> tuple[Proof, ...]:
        """Return its proofs with the values of the stack's parameters in their texts."""
        return tuple(
            proof if proof.text is None else proof.model_copy(update={"text": render(proof.text, parameters)})
            for proof in self.header.proof
        )


@dataclass(frozen=True, kw_only=True)
class Series:
    """The patches of a stack in their order.

    Attributes:
        patches: Those that are to be applied.
        off: Those that are off by default and that nobody asked for.
    """

    patches: tuple[Patch, ...]
    off: tuple[Patch, ...] = ()

    def declared(self) -> dict[str, Parameter]:
        """Return the parameters that the patches declare, those that are off included."""
        return {
            name: parameter
            for patch in (*self.off, *self.patches)
            for name, parameter in patch.header.parameters.items()
        }

    def parameters(self, given: Mapping[str, int]) -> dict[str, int]:
        """Return the value of every parameter: the stack's own, or the default.

        Raises:
            UsageError: A value breaks the parameter's rule, or no patch declares the name.
        """
        declared = self.declared()
        for name, value in given.items():
            if name not in declared:
                raise UsageError(f"no patch of the series has a parameter {name!r}{nearest(name, list(declared))}")
            if fault := declared[name].fault(value):
                raise UsageError(f"the parameter {name} is {value}, but it {fault}", hint=declared[name].meaning)
        return {name: given.get(name, parameter.default) for name, parameter in declared.items()}


def load_series(folder: Path, *, extra: Sequence[Path] = (), enable: Collection[str] = ()) -> Series:
    """Read a series and the user's own folders, which are appended to it.

    Args:
        folder: The folder with the file ``series``.
        extra: Further folders; one without a ``series`` file is taken in the order of the file names.
        enable: Ids of patches that are off by default and wanted all the same.

    Raises:
        UsageError: A file is missing, not named in ``series``, or does not fit; or the patches do not go together.
    """
    paths = _listed(folder)
    for more in extra:
        paths += _listed(more) if (more / "series").exists() else _sorted(more)
    patches = [_load(path) for path in paths]
    _require_unique(patches)
    for name in enable:
        if name not in (known := [patch.id for patch in patches]):
            raise UsageError(f"no patch is called {name!r}{nearest(name, known)}")
    chosen = [patch for patch in patches if patch.header.enabled or patch.id in enable]
    _require_order(chosen)
    _require_one_meaning(patches)
    return Series(patches=tuple(chosen), off=tuple(patch for patch in patches if patch not in chosen))


def load_checkpoint_patches(folder: Path) -> list[CheckpointPatch]:
    """Return the rewrites of checkpoints that a folder's ``series`` names; raises UsageError like load_series."""
    return [load_yaml(CheckpointPatch, path) for path in _listed(folder)]


def _listed(folder: Path) -> list[Path]:
    index = folder / "series"
    lines = [line.partition("#")[0].strip() for line in read_text(index).splitlines()]
    names: dict[str, int] = {}
    for number, name in enumerate(lines, start=1):
        if not name:
            continue
        where = f"{index}:{number}"
        if len(inside(name).parts) != 1 or not name.endswith(SUFFIXES):
            raise UsageError(f"{where}: {name!r} is no patch file of this folder ({', '.join(SUFFIXES)})")
        if name in names:
            raise UsageError(f"{where}: {name} stands in the series twice, first in line {names[name]}")
        if not (folder / name).is_file():
            raise UsageError(f"{where}: {name} is not there{nearest(name, [path.name for path in _sorted(folder)])}")
        names[name] = number
    left_out = [path.name for path in _sorted(folder) if path.name not in names]
    if left_out:
        raise UsageError(
            f"{index} does not name {', '.join(left_out)}",
            hint="add a line to the series, with `enabled: false` in the patch if it is to be off",
        )
    return [folder / name for name in names]


def _sorted(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UsageError(f"the folder of patches {folder} is not there")
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))


def _load(path: Path) -> Patch:
    raw = read_text(path)
    text, sha = raw.replace("\r\n", "\n"), sha256(raw)
    if path.suffix == ".yaml":
        whole = validated(EditPatch, parse_yaml(text, path), path, text)
        patch = Patch(header=whole, path=path, sha256=sha, edits=whole.edits)
    else:
        start = DIFF_START.search(text)
        if start is None or start.start() == 0:
            what = "no diff in it" if start is None else "no header before the diff"
            raise UsageError(f"{path}: there is {what}", hint="see docs/patches.md for the form of a patch")
        head = text[: start.start()]
        header = validated(Header, parse_yaml(head, path), path, head)
        diffs = parse_diff(text[start.start() :], path, first_line=head.count("\n") + 1)
        patch = Patch(header=header, path=path, sha256=sha, diffs=diffs)
    _require_placeholders(patch)
    return patch


def _require_placeholders(patch: Patch) -> None:
    """Without parameters nothing is replaced, so that ``{{ x }}`` may stand in code; with them, every name must fit."""
    declared = set(patch.header.parameters)
    if not declared:
        return
    if patch.diffs:
        raise UsageError(f"{patch.path}: a unified diff has no parameters; write an edit patch")
    texts = [text for edit in patch.edits for text in (edit.replacement, edit.present or "")]
    texts += [proof.text or "" for proof in patch.header.proof]
    used = {name for text in texts for name in PLACEHOLDER.findall(text)}
    if used != declared:
        what = f"uses {_list(used - declared)}" if used - declared else f"never uses {_list(declared - used)}"
        raise UsageError(f"{patch.path}: the patch declares {_list(declared)}, but it {what}")


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _require_unique(patches: Sequence[Patch]) -> None:
    seen: dict[tuple[str, str], Path] = {}
    for patch in patches:
        for what, name in (("id", patch.id), ("file name", patch.path.name)):
            first = seen.setdefault((what, name), patch.path)
            if first is not patch.path:
                raise UsageError(f"{patch.path}: the {what} {name!r} is taken by {first}")


def _require_order(chosen: Sequence[Patch]) -> None:
    place = {patch.id: number for number, patch in enumerate(chosen)}
    for number, patch in enumerate(chosen):
        for other in patch.header.needs:
            if place.get(other, number) >= number:
                raise UsageError(
                    f"{patch.path}: {patch.id} needs {other}, which does not stand before it in the series",
                    hint=f"put {other} before it, and ask for it by name if it is off by default",
                )
        for other in patch.header.conflicts:
            if other in place:
                raise UsageError(
                    f"{patch.path}: {patch.id} conflicts with {other}, and both are in the series",
                    hint="leave one of the two out",
                )


def _require_one_meaning(patches: Sequence[Patch]) -> None:
    seen: dict[str, tuple[Parameter, Path]] = {}
    for patch in patches:
        for name, parameter in patch.header.parameters.items():
            first, path = seen.setdefault(name, (parameter, patch.path))
            if first != parameter:
                raise UsageError(f"{patch.path}: the parameter {name} is declared otherwise in {path}")
