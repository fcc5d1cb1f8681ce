"""Make the build context: exported source, applied series, rendered Dockerfile, and the image's own chain."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import builder
from builder.errors import UsageError
from builder.files import canonical_json, fresh_folder, sha256, sha256_file
from builder.models.lock import UNRESOLVED
from builder.models.record import PatchRecord
from builder.patching.apply import apply
from builder.source.repository import open_source
from builder.source.tree import export
from builder.stage.inputs import (
    at_commit,
    expected_ops,
    facts_of,
    locked_patches,
    require_resolved,
    series_of,
    source_location,
)
from builder.stage.pins import link_wheels, reader_of, write_pins
from builder.stage.render import render

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.models.lock import Lock
    from builder.models.stack import Stack
    from builder.patching.apply import Report
    from builder.patching.series import Series
    from builder.settings import Settings
    from builder.source.repository import Source

MANIFEST = "chain/manifest.json"


@dataclass(frozen=True, kw_only=True)
class Context:
    """A staged build folder.

    Attributes:
        folder: Where it lies.
        stack: The stack's name.
        repository: Where the source came from, without credentials.
        ref: The full ref.
        commit: The upstream commit.
        version: The version that the engine's build is told.
        patches: The series and its outcomes.
        lock_sha256: Hash of the lock as it was used.
        dockerfile_sha256: Hash of the Dockerfile.
        context_sha256: Hash over every path, mode and content of the folder.
        context_bytes: Bytes of all files.
        seconds: How long staging took.
        missing: Files that the source could not give and that were allowed to be missing.
        originals: The files that the patches name, as they were before the series; None where there was none.
    """

    folder: Path
    stack: str
    repository: str
    ref: str
    commit: str
    version: str
    patches: tuple[PatchRecord, ...]
    lock_sha256: str
    dockerfile_sha256: str
    context_sha256: str
    context_bytes: int
    seconds: float
    missing: tuple[str, ...]
    originals: Mapping[str, bytes | None]

    def as_json(self) -> dict[str, Any]:
        """Return what ``stage --json`` prints."""
        return {
            "stack": self.stack,
            "commit": self.commit,
            "version": self.version,
            "patches": [
                {"id": patch.id, "outcome": patch.outcome, "files": [file.path for file in patch.files]}
                for patch in self.patches
            ],
            "dockerfile_sha256": self.dockerfile_sha256,
            "context_sha256": self.context_sha256,
            "context_bytes": self.context_bytes,
            "seconds": round(self.seconds, 2),
            "missing": list(self.missing),
            "folder": str(self.folder),
        }


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What the user asked for instead of what the lock says.

    Attributes:
        location: URL, bare repository or work tree.
        ref: Full ref or commit.
        dirty: A work tree with uncommitted changes is wanted as it is.
        allow_missing: Globs of files that the source may lack.
        patches: Folders whose patches are appended to the series.
    """

    location: str | None = None
    ref: str | None = None
    dirty: bool = False
    allow_missing: tuple[str, ...] = ()
    patches: tuple[Path, ...] = ()


def make_context(
    root: Path,
    stack: Stack,
    lock: Lock,
    output: Path,
    *,
    origin: Origin,
    settings: Settings,
    unneeded: Mapping[str, str] | None = None,
) -> Context:
    """Make the build context of a stack in a folder, whole or not at all.

    Args:
        root: The checkout.
        stack: What to build.
        lock: Its lock.
        output: The folder to make; an earlier context there is replaced.
        origin: What the user asked for instead of what the lock says.
        settings: Caches.
        unneeded: Patches that the build's compiler makes needless, and the fact.

    Raises:
        UsageError: ``output`` is a folder that is no context, or the source is not what was asked for.
        UpstreamError: The source could not be reached.
        PatchError: A patch of the series does not apply.
    """
    started = time.monotonic()
    _refuse_foreign(output)
    location = origin.location or source_location(root, stack, settings)
    source = open_source(location, cache=settings.cache, dirty=origin.dirty, ca_bundle=settings.ca_bundle)
    # a repository that was made of a folder is named by the folder, which means the same on every machine
    repository = stack.source.folder if stack.source.folder and not origin.location else source.location
    ref, commit = origin.ref or stack.source.ref, commit_of(lock, source, origin)
    lock = at_commit(stack, lock, commit, dirty=source.dirty)
    series = series_of(root, stack, origin.patches)
    lock = lock.model_copy(update={"patches": locked_patches(series)})
    dockerfile = render(root, stack, lock)
    with fresh_folder(output) as folder:
        exported = export(source, commit, folder / "source", allow_missing=origin.allow_missing)
        facts = facts_of(stack, source, commit, unneeded)
        named = {path: folder / "source" / path for patch in series.patches for path in patch.files}
        originals = {path: file.read_bytes() if file.is_file() else None for path, file in named.items()}
        report = apply(series, folder / "source", facts)
        report.require_success()
        patches = _records(series, report)
        manifest = {
            "stack": stack.name,
            "repository": repository,
            "ref": ref,
            "commit": commit,
            "version": lock.version,
            "patches": [patch.model_dump(mode="json") for patch in patches],
            "ops": expected_ops(stack, folder / "source", facts),
        }
        (folder / "Dockerfile").write_text(dockerfile)
        _write_chain(folder / "chain", lock, series, manifest)
        _write_tools(folder / "tools")
        unfetched = _write_fetched(folder / "fetched", stack, lock, settings)
        if stack.wheels:
            write_pins(folder / "pins", root, stack, lock, read=reader_of(folder / "source"))
        _set_times(folder, int(exported.commit_time.timestamp()))
        digest, size = context_sha256(folder)
        if stack.wheels:
            # like a mirror: it says where wheels come from, not which; so it is no part of the context's hash
            link_wheels(folder / "wheels", stack, lock, settings.wheels)
    return Context(
        folder=output,
        stack=stack.name,
        repository=repository,
        ref=ref,
        commit=commit,
        version=lock.version,
        patches=patches,
        lock_sha256=sha256(lock.text()),
        dockerfile_sha256=sha256(dockerfile),
        context_sha256=digest,
        context_bytes=size,
        seconds=time.monotonic() - started,
        missing=(*exported.missing, *unfetched),
        originals=originals,
    )


def context_sha256(folder: Path) -> tuple[str, int]:
    """Return the hash over every path, mode and content below a folder, and the bytes of all files.

    Owners and times do not enter: the builder normalises them, so they change nothing in the image.
    """
    lines, size = [], 0
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            lines.append(f"link {name} {path.readlink()}")
        elif stat.S_ISREG(mode):
            lines.append(f"file {name} {'x' if mode & 0o111 else '-'} {sha256_file(path)}")
            size += path.stat().st_size
    return sha256("\n".join(lines).encode(errors="surrogateescape")), size


def commit_of(lock: Lock, source: Source, origin: Origin) -> str:
    """Return the commit to build: what was asked for, the state of a dirty work tree, or the lock's."""
    if origin.ref:
        return source.resolve(origin.ref)
    if source.dirty:
        return source.resolve("HEAD")
    require_resolved(lock)
    return lock.commit


def _records(series: Series, report: Report) -> tuple[PatchRecord, ...]:
    hashes = {patch.id: patch.sha256 for patch in series.patches}
    return tuple(
        PatchRecord(
            id=patch.id,
            sha256=hashes[patch.id],
            outcome=patch.outcome,
            reason=patch.reason,
            files=patch.files,
        )
        for patch in report.patches
    )


def _write_chain(folder: Path, lock: Lock, series: Series, manifest: dict[str, Any]) -> None:
    """Write what the image carries of its own chain: the lock, the patch files, and what became of them."""
    (folder / "patches").mkdir(parents=True)
    (folder / "lock.yaml").write_text(lock.text())
    (folder / "manifest.json").write_text(canonical_json(manifest))
    for patch in series.patches:
        (folder / "patches" / patch.path.name).write_bytes(patch.path.read_bytes())


def _write_tools(folder: Path) -> None:
    """Write the checkpoint fixer as it lies in the image, so that a GPU host needs nothing but the image to run it."""
    package = Path(builder.__file__).parent
    library = folder / "usr/local/lib/gfx1100/builder"
    shutil.copytree(package / "checkpoint", library / "checkpoint", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "errors.py", "files.py"):
        (library / name).write_bytes((package / name).read_bytes())
    program = folder / "usr/local/bin/gfx1100-checkpoint"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nPYTHONPATH=/usr/local/lib/gfx1100 exec python3 -m builder.checkpoint "$@"\n')
    program.chmod(0o755)


def _write_fetched(folder: Path, stack: Stack, lock: Lock, settings: Settings) -> list[str]:
    """Export the repositories that the engine's build would clone by itself, each at its locked commit.

    Returns:
        Those that are left out because the lock has no commit for them yet; a build resolves them first.
    """
    commits = {fetched.name: fetched.commit for fetched in lock.fetched if fetched.commit != UNRESOLVED}
    for fetch in stack.fetch:
        if fetch.name not in commits:
            continue
        source = open_source(fetch.repository, cache=settings.cache, ca_bundle=settings.ca_bundle)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
            whole = Path(scratch, "tree")
            export(source, commits[fetch.name], whole)
            part = whole / fetch.path
            if not part.is_dir():
                raise UsageError(f"{fetch.repository} has no folder {fetch.path} at {commits[fetch.name]}")
            folder.mkdir(exist_ok=True)
            part.rename(folder / fetch.name)
    return [f"fetched/{fetch.name} (unresolved)" for fetch in stack.fetch if fetch.name not in commits]


def _refuse_foreign(output: Path) -> None:
    """Refuse to replace a folder that is no build context: it may be the only copy of something."""
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise UsageError(f"{output} is there and is no folder")
    if output.is_dir() and any(output.iterdir()) and not (output / MANIFEST).is_file():
        raise UsageError(f"{output} holds something that is no build context", hint="name an empty or a new folder")


def _set_times(folder: Path, seconds: int) -> None:
    """Give every file and folder the commit's time and a mode without write bits for others."""
    for path in _walk(folder):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (seconds, seconds), follow_symlinks=False)


def _walk(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder in one order, folders before what they hold; links are not followed."""
    for entry in sorted(os.scandir(folder), key=lambda item: item.name):
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
