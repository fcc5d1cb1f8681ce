"""A stack's kernels before and after its series, in a tree that is given or in the stack's own source."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.kernels.run import Compilers, compare, sweep
from builder.models.kernels import TritonTarget
from builder.patching.apply import apply
from builder.source.repository import open_source
from builder.source.tree import export
from builder.stage.context import Origin, commit_of
from builder.stage.inputs import facts_of, series_of, source_location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from builder.console import Console
    from builder.kernels.assembly import Row
    from builder.kernels.report import Report
    from builder.models.lock import Lock
    from builder.models.record import PatchRecord
    from builder.models.stack import Stack
    from builder.patching.apply import PatchReport
    from builder.patching.header import Proof
    from builder.patching.series import Series
    from builder.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Trees:
    """A tree without the series, the patched one, and the proofs of the patches that took effect, by id."""

    before: Path
    after: Path
    proofs: dict[str, tuple[Proof, ...]]


@contextlib.contextmanager
def kernel_trees(
    root: Path, stack: Stack, lock: Lock, *, tree: Path | None, origin: Origin, settings: Settings
) -> Iterator[Trees]:
    """Yield the two trees of a stack; they go with the block.

    Args:
        root: The checkout.
        stack: What names the kernels.
        lock: Its lock.
        tree: A source tree without the series, instead of the stack's source; it is not changed.
        origin: What the user asked for instead of what the lock says.
        settings: Caches.

    Raises:
        UsageError: The stack names no kernels, or there is no such tree.
        PatchError: The series does not apply.
    """
    if not stack.kernels:
        raise UsageError(f"stacks/{stack.name}.yaml names no kernels", hint="add `kernels`, see docs/kernels.md")
    series = series_of(root, stack, origin.patches)
    with tempfile.TemporaryDirectory(prefix="gfx1100-kernels-") as scratch:
        before, after = tree.absolute() if tree else Path(scratch, "before"), Path(scratch, "after")
        if tree is None:
            location = origin.location or source_location(root, stack, settings)
            source = open_source(location, cache=settings.cache, dirty=origin.dirty, ca_bundle=settings.ca_bundle)
            export(source, commit_of(lock, source, origin), before, allow_missing=origin.allow_missing)
        elif not before.is_dir():
            raise UsageError(f"{tree} is no folder")
        shutil.copytree(before, after, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        report = apply(series, after, facts_of(stack))
        report.require_success()
        yield Trees(before=before, after=after, proofs=proofs_of(series, stack, report.patches))


def proofs_of(
    series: Series, stack: Stack, became: Iterable[PatchReport | PatchRecord]
) -> dict[str, tuple[Proof, ...]]:
    """Return the proofs of the patches that took effect, by id."""
    effective = {patch.id for patch in became if patch.outcome in {"applied", "present"}}
    values = series.parameters(stack.parameters)
    return {patch.id: patch.proofs(values) for patch in series.patches if patch.id in effective}


def compare_kernels(stack: Stack, trees: Trees, *, compilers: Compilers, console: Console) -> Report:
    """Compile a stack's kernels for its architecture in both trees; no GPU is needed.

    Raises:
        UsageError: The kernels are not in the trees.
        HostError: A compiler is missing.
    """
    return compare(
        stack.kernels,
        before=trees.before,
        after=trees.after,
        compilers=compilers,
        proofs=trees.proofs,
        say=console.detail,
    )


def sweep_kernels(stack: Stack, trees: Trees, *, compilers: Compilers, console: Console) -> dict[str, list[Row]]:
    """Compile each kernel that has a sweep with every combination of its values, in the patched tree.

    Raises:
        UsageError: No kernel of the stack has one.
        HostError: Triton is missing.
    """
    targets = [target for target in stack.kernels if isinstance(target, TritonTarget) and target.sweep]
    if not targets:
        raise UsageError(f"no kernel of stacks/{stack.name}.yaml has a `sweep`", hint="docs/kernels.md shows one")
    return {target.function: sweep(target, trees.after, compilers=compilers, say=console.detail) for target in targets}
