"""The fix: a checkpoint whose MTP layer loads, beside the one that does not, or in its place."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from builder.checkpoint.backup import (
    BACKUP,
    adopt,
    held,
    interrupted,
    replace_files,
    restore_files,
    staging,
    sync,
    write_new,
)
from builder.checkpoint.configs import read_configs
from builder.checkpoint.edits import rewritten
from builder.checkpoint.verdict import Inspection, Verdict, inspect, judged, misfits
from builder.errors import HostError, PatchError, ToolError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Link = Literal["symlink", "hard", "copy"]

SUFFIX = "-mtp-fixed"
# folders that belong to the place and not to the model
LEFT = (".git", ".cache")
# Docker and Podman each leave a sign of themselves
IN_CONTAINER = ("/.dockerenv", "/run/.containerenv")
HINTS = {
    errno.EXDEV: "hard links do not cross file systems; use symlinks or --copy",
    errno.EACCES: "run it as the owner of the folder; in a container, docker run --user UID:GID",
}


@dataclass(frozen=True, kw_only=True)
class Fix:
    """What a fix did.

    Attributes:
        output: The folder that loads.
        changed: The files whose rules were rewritten (or brought back).
        rules_before: How many rules engines read before.
        rules_after: How many they read now.
        verdict: The verdict on the output.
    """

    output: Path
    changed: tuple[str, ...]
    rules_before: int
    rules_after: int
    verdict: Verdict

    def as_json(self) -> dict[str, Any]:
        """Return the document that scripts read."""
        return {
            "output": str(self.output),
            "changed": list(self.changed),
            "rules_before": self.rules_before,
            "rules_after": self.rules_after,
            "verdict": self.verdict,
        }


def fix(folder: Path, *, output: Path | None = None, in_place: bool = False, link: Link = "symlink") -> Fix:
    """Rewrite the rules of a checkpoint whose plain MTP tensors engines would take for packed ones.

    Args:
        folder: The checkpoint.
        output: A new folder with real config files and links to everything else; ``<folder>-mtp-fixed`` by default.
        in_place: Change the checkpoint itself, with a backup.
        link: What the new folder has in place of the other files.

    Raises:
        UsageError: The folder is no sound checkpoint, or the output is taken.
        PatchError: The rules must not be rewritten, or are not known.
        HostError: The file system does not do what is asked.
    """
    if in_place and output is not None:
        raise UsageError("a change in place has no output folder: name one of the two")
    with _told():
        if not in_place:
            return _fixed_beside(folder, output, link)
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder")
        with held(folder):
            if interrupted(folder):
                restore_files(folder)
            found = inspect(folder)
            texts = _texts(found)
            if texts:
                replace_files(folder, texts)
            return _done(found, folder, texts)


def undo(folder: Path) -> Fix:
    """Bring back the files that a fix in place has replaced: their bytes, and links as links.

    Raises:
        UsageError: There is nothing to undo, or a file has been changed since.
        HostError: The folder cannot be written.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder")
    with _told(), held(folder):
        before = _rules(folder)
        changed = restore_files(folder)
        verdict: Verdict = "unknown"
        with contextlib.suppress(ToolError):
            verdict = inspect(folder).verdict
        return Fix(
            output=folder,
            changed=tuple(sorted(changed)),
            rules_before=before,
            rules_after=_rules(folder),
            verdict=verdict,
        )


def _texts(found: Inspection) -> dict[str, str]:
    """Return the new texts by file, the one that engines read last.

    Raises:
        PatchError: The rules must not be rewritten, or are not known.
    """
    if found.verdict in ("refuse", "unknown"):
        raise PatchError(
            f"{found.folder} is left alone: {found.reason}",
            hint="nothing was written; `checkpoint inspect` shows each module",
        )
    texts: dict[str, str] = {}
    for place in reversed(found.configs.places) if found.verdict == "rewrite" else ():
        if place.dialect and misfits(place, found.modules):
            # a second config of the same file starts from the text that the first one left
            at_hand = place._replace(text=texts.pop(place.file, place.text))
            texts[place.file] = rewritten(at_hand, found.modules, found.shards.tensors).text
    return texts


def _fixed_beside(folder: Path, output: Path | None, link: Link) -> Fix:
    found = inspect(folder)
    texts = _texts(found)
    if not texts and output is None:
        return _done(found, folder, ())
    source = folder.resolve()
    target = _target(folder, output)
    real = {place.file: texts.get(place.file, place.text).encode() for place in found.configs.places}
    if target.is_dir() and any(target.iterdir()):
        _same(source, target, real)
        return _done(found, target, ())
    target.parent.mkdir(parents=True, exist_ok=True)
    if link == "copy":
        _room(source, target.parent)
    with staging(target.parent / f".{target.name}.partial") as staged:
        for path in _entries(source):
            if path.name in real:
                write_new(staged / path.name, real[path.name], like=path)
            else:
                _place(path, staged / path.name, link)
        adopt(staged, like=source)
        sync(staged)
        staged.rename(target)
        sync(target.parent)
    return _done(found, target, texts)


def _target(folder: Path, output: Path | None) -> Path:
    named = folder.absolute() if folder.name not in ("", "..") else folder.resolve()
    target = (output or named.parent / (named.name + SUFFIX)).absolute()
    source = folder.resolve()
    if target.resolve() == source or source in target.resolve().parents:
        raise UsageError(f"the output {target} is inside the checkpoint itself", hint="use --in-place to change it")
    if output is None and os.path.ismount(source) and any(map(os.path.exists, IN_CONTAINER)):
        raise UsageError(
            f"{folder} is a mount of its own, so a folder beside it would stay in this container",
            hint="mount its parent folder, name an output with -o, or use --in-place",
        )
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UsageError(f"the output {target} is there and is no folder")
    return target


def _entries(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.name not in LEFT and not path.name.startswith(BACKUP))


def _place(path: Path, target: Path, link: Link) -> None:
    """Put a link to, or a copy of, a file or a folder at ``target``."""
    real = path.resolve()
    if link == "symlink" or not real.exists():
        here = target.parent.resolve()
        same = real.exists() and real.stat().st_dev == here.stat().st_dev
        # a relative link outlives a move of both, one that crosses file systems would not
        target.symlink_to(os.path.relpath(real, here) if same else real)
    elif real.is_dir():
        target.mkdir()
        for below in sorted(real.iterdir()):
            _place(below, target / below.name, link)
    elif link == "hard":
        target.hardlink_to(real)
    else:
        shutil.copy2(real, target)


def _room(source: Path, parent: Path) -> None:
    needed = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise HostError(f"{parent} has {free} bytes free, a copy needs {needed}", hint="use links instead of a copy")


def _same(source: Path, target: Path, real: Mapping[str, bytes]) -> None:
    """Make sure that a folder is the one that this fix would make.

    Raises:
        UsageError: It is another one, which is never overwritten.
    """
    for path in _entries(source):
        other = target / path.name
        if path.name in real:
            same = other.is_file() and not other.is_symlink() and other.read_bytes() == real[path.name]
        elif path.exists() and other.exists():
            same = other.samefile(path) or other.is_dir() or other.stat().st_size == path.stat().st_size
        else:
            same = os.path.lexists(other) == os.path.lexists(path)
        if not same:
            raise UsageError(
                f"{target} is there already and is not this checkpoint's fix: {path.name} is another",
                hint="remove it, or name another folder with -o",
            )


def _done(found: Inspection, output: Path, changed: Iterable[str]) -> Fix:
    after = judged(output, read_configs(output), found.shards)
    return Fix(
        output=output,
        changed=tuple(sorted(changed)),
        rules_before=len(found.read.rules) if found.read else 0,
        rules_after=len(after.read.rules) if after.read else 0,
        verdict=after.verdict,
    )


def _rules(folder: Path) -> int:
    with contextlib.suppress(ToolError):
        places = read_configs(folder).places
        return len(places[0].rules) if places else 0
    return 0


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Tell a refusal of the file system in words."""
    try:
        yield
    except OSError as trouble:
        path = trouble.filename2 or trouble.filename or "a file"
        raise HostError(f"{path}: {trouble.strerror}", hint=HINTS.get(trouble.errno or 0, "")) from trouble
