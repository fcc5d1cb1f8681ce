"""Make the build context: exported source, applied series, rendered Dockerfile, and the image's own chain."""

from __future__ import annotations

import os
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import builder
from builder.errors import UsageError
from builder.files import canonical_json, fresh_folder, sha256, sha256_file
from builder.models.record import PatchedFile, PatchRecord
from builder.patching.apply import apply
from builder.source.repository import open_source
from builder.source.tree import export
from builder.stage.inputs import at_commit, facts_of, locked_patches, require_resolved, series_of, source_location
from builder.stage.render import render

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def make_context(root: Path, stack: Stack, lock: Lock, output: Path, *, origin: Origin, settings: Settings) -> Context:
    """Make the build context of a stack in a folder, whole or not at all.

    Args:
        root: The checkout.
        stack: What to build.
        lock: Its lock.
        output: The folder to make; an earlier context there is replaced.
        origin: What the user asked for instead of what the lock says.
        settings: Caches.

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
    commit = commit_of(lock, source, origin)
    lock = at_commit(lock, commit, dirty=source.dirty)
    series = series_of(root, stack, origin.patches)
    lock = lock.model_copy(update={"patches": locked_patches(series)})
    dockerfile = render(root, stack, lock)
    with fresh_folder(output) as folder:
        exported = export(source, commit, folder / "source", allow_missing=origin.allow_missing)
        report = apply(series, folder / "source", facts_of(stack, source, commit))
        report.require_success()
        manifest = {
            "stack": stack.name,
            "repository": repository,
            "ref": origin.ref or stack.source.ref,
            "commit": commit,
            "version": lock.version,
            "patches": [patch.model_dump(mode="json") for patch in _records(series, report)],
        }
        (folder / "Dockerfile").write_text(dockerfile)
        _write_chain(folder / "chain", lock, series, manifest)
        _write_tools(folder / "tools")
        _write_pins(folder / "pins", root, stack, lock)
        _set_times(folder, int(exported.commit_time.timestamp()))
        digest, size = context_sha256(folder)
    return Context(
        folder=output,
        stack=stack.name,
        repository=repository,
        ref=origin.ref or stack.source.ref,
        commit=commit,
        version=lock.version,
        patches=_records(series, report),
        lock_sha256=sha256(lock.text()),
        dockerfile_sha256=sha256(dockerfile),
        context_sha256=digest,
        context_bytes=size,
        seconds=time.monotonic() - started,
        missing=tuple(missing.path for missing in exported.missing),
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
            files=tuple(
                PatchedFile(path=path, before=change.before, after=change.after) for path, change in patch.files.items()
            ),
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


def _write_pins(folder: Path, root: Path, stack: Stack, lock: Lock) -> None:
    """Write what the installs are held to: hashes of the wheels, a constraints file, build requirements, the guard."""
    if not stack.wheels:
        return
    folder.mkdir()
    wheels = [f"{wheel.name} @ {wheel.url} --hash=sha256:{wheel.sha256}\n" for wheel in lock.wheels]
    (folder / "wheels.txt").write_text("".join(wheels))
    (folder / "constraints.txt").write_text("".join(f"{wheel.name}=={wheel.version}\n" for wheel in lock.wheels))
    (folder / "build.txt").write_text("".join(f"{line}\n" for line in stack.build_requirements))
    (folder / "guard.py").write_bytes((root / "templates" / "guard.py").read_bytes())


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
