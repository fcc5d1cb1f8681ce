"""What a context is made from: source, series, a lock that is moved to another commit, and the expected ops."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.files import inside, read_bytes
from builder.models.lock import Lock, LockedPatch
from builder.patching.series import load_series
from builder.patching.when import Facts
from builder.source.folder import repository_of
from builder.source.version import pinned_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.models.stack import Ops, Stack
    from builder.patching.series import Series
    from builder.settings import Settings
    from builder.source.repository import Source


def series_of(root: Path, stack: Stack, extra: tuple[Path, ...] = ()) -> Series:
    """Return the series of a stack, with the user's own patches (``patches.local/`` and ``extra``) appended."""
    local = root / "patches.local"
    folders = (*([local] if local.is_dir() else []), *extra)
    return load_series(root / "patches" / stack.series, extra=folders, enable=stack.enable)


def locked_patches(series: Series) -> tuple[LockedPatch, ...]:
    """Return what a lock says of a series."""
    return tuple(LockedPatch(id=patch.id, file=patch.path.name, sha256=patch.sha256) for patch in series.patches)


def source_location(root: Path, stack: Stack, settings: Settings) -> str:
    """Return where the source of a stack comes from: its URL, or the repository made of its folder.

    Raises:
        UsageError: The folder is none that could be a source, or leads out of the checkout by a link.
    """
    if stack.source.folder is None:
        return str(stack.source.repository)
    folder = root / stack.source.folder
    if not folder.resolve().is_relative_to(root.resolve()):
        raise UsageError(
            f"the source folder {stack.source.folder} of {stack.name} leads out of the checkout, to {folder.resolve()}",
            hint="copy it into the checkout, or name a repository",
        )
    return str(repository_of(folder, cache=settings.cache, ref=stack.source.ref))


def at_commit(stack: Stack, lock: Lock, commit: str, *, dirty: bool = False) -> Lock:
    """Return a lock that is moved to another commit, for a build of something else than what is pinned."""
    return lock.model_copy(update={"commit": commit, "version": engine_version(stack, commit, dirty=dirty)})


def engine_version(stack: Stack, commit: str, *, dirty: bool = False) -> str:
    """Return the version that the engine must carry: a published wheel's own, else the one that its build is told."""
    published = [wheel.version for wheel in stack.wheels if wheel.name == stack.pin.distribution]
    return published[0] if published else pinned_version(commit, dirty=dirty)


def require_resolved(lock: Lock) -> None:
    """Raise UsageError when a lock still has unresolved entries."""
    if lock.unresolved():
        raise UsageError(
            f"the lock of {lock.stack} has unresolved entries: {', '.join(lock.unresolved())}",
            hint=f"run `gfx1100 lock {lock.stack}` where the network is",
        )


def facts_of(
    stack: Stack,
    source: Source | None = None,
    commit: str | None = None,
    unneeded: Mapping[str, str] | None = None,
) -> Facts:
    """Return what a series may ask about the tree that it meets; without a source the tree's history is unknown."""
    return Facts(
        repository=stack.source.repository,
        commit=commit,
        rocm=stack.rocm,
        parameters=stack.parameters,
        is_ancestor=source.is_ancestor if source else None,
        unneeded=unneeded or {},
    )


def expected_ops(stack: Stack, tree: Path, facts: Facts) -> dict[str, bool | None]:
    """Return, by the name of each group of ops, whether it holds for a tree; None where its history is not known.

    It is found out while the exported tree is there, and kept in the image's manifest.
    """
    return {group.name: _holds(group, tree, facts) for group in stack.expect.ops}


def _holds(group: Ops, tree: Path, facts: Facts) -> bool | None:
    if group.file is not None and not _has(tree / inside(group.file), group.text):
        return False
    known: list[bool | None] = []
    for commit, inclusive in ((group.since, True), (group.until, False)):
        if commit is not None:
            found = facts.is_ancestor(commit, facts.commit) if facts.is_ancestor and facts.commit else None
            known.append(None if found is None else found is inclusive)
    if False in known:
        return False
    return None if None in known else True


def _has(path: Path, text: str | None) -> bool:
    return path.is_file() and (text is None or text.encode() in read_bytes(path, limit=64 << 20))
