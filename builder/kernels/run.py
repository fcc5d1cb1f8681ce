"""Compile a stack's kernels: in the tree before its series and in the patched one, or over a sweep of values."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.kernels.assembly import Row, When
from builder.kernels.hip import Compiled, Toolchain, compile_device, find_toolchain, hip_sources
from builder.kernels.report import Report, launch_text, make_report
from builder.kernels.triton import Triton, compile_aot, find_triton
from builder.models.kernels import HipTarget, KernelTarget, TritonTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from builder.patching.header import Proof

    Compile = Callable[[Path], Compiled]


@dataclass(frozen=True, kw_only=True)
class Compilers:
    """Where the compilers are; what is left out is looked for.

    Attributes:
        cache: Folder for caches, where Triton is installed when no Python has it.
        toolchain: The compiler for HIP, found already.
        triton: The Python with Triton, found already.
        jobs: Compilations at once; each takes up to 1 GiB.
    """

    cache: Path
    toolchain: Toolchain | None = None
    triton: Triton | None = None
    jobs: int = 1


def compare(
    targets: Sequence[KernelTarget],
    *,
    before: Path | None,
    after: Path,
    compilers: Compilers,
    proofs: Mapping[str, Sequence[Proof]] | None = None,
    say: Callable[[str], None] | None = None,
) -> Report:
    """Compile a stack's kernels in the tree before its series and in the patched one.

    A file whose sources are the same in both trees is compiled once.

    Args:
        targets: The kernels.
        before: The tree without the series; None compiles the other one only.
        after: The patched tree.
        compilers: Where the compilers are.
        proofs: Patch -> its proofs; those of kind ``isa`` are checked on the patched kernels.
        say: Told about each file that is done.

    Raises:
        HostError: A compiler is missing.
        UsageError: A target names no file.
    """
    proofs = proofs or {}
    work, notes = _work(targets, [tree for tree in (before, after) if tree], compilers, _markers(proofs), say)

    def both(place: tuple[str, Compile]) -> list[Row]:
        source, compile_in = place
        rows = _both(source, compile_in, before, after)
        if say:
            say(f"{source}: {', '.join(sorted({row.error or 'ok' for row in rows}))}")
        return rows

    with ThreadPoolExecutor(max_workers=compilers.jobs) as pool:
        rows = list(itertools.chain.from_iterable(pool.map(both, work)))
    return make_report(rows, proofs=proofs, notes=notes)


def sweep(
    target: TritonTarget, tree: Path, *, compilers: Compilers, say: Callable[[str], None] | None = None
) -> list[Row]:
    """Compile a kernel with every combination of the target's sweep; the most promising comes first.

    Ranked by spilled registers, then by waves a SIMD, then by LDS. A static figure is no speed: the first few are
    candidates for a measurement on a card.

    Raises:
        UsageError: The target has no sweep.
    """
    if not target.sweep:
        raise UsageError(
            f"{target.function} has no values to sweep over", hint="add `sweep` to the kernel in the stack"
        )
    triton = compilers.triton or find_triton(compilers.cache, say=say)
    choices = [dict(zip(target.sweep, values, strict=True)) for values in itertools.product(*target.sweep.values())]

    def one(values: dict[str, int]) -> Row:
        (row,) = compile_aot(tree, target, triton, markers={}, values=values).rows
        if say:
            say(f"{target.function} {launch_text(values)}: {row.error or 'ok'}")
        return row

    with ThreadPoolExecutor(max_workers=compilers.jobs) as pool:
        return sorted(pool.map(one, choices), key=_rank)


def _work(
    targets: Iterable[KernelTarget],
    trees: Sequence[Path],
    compilers: Compilers,
    markers: Mapping[str, tuple[str, ...]],
    say: Callable[[str], None] | None,
) -> tuple[list[tuple[str, Compile]], list[str]]:
    """Return each file with the way to compile it in a tree, and which compilers that takes."""
    work: list[tuple[str, Compile]] = []
    notes: dict[str, None] = {}
    toolchain, triton = compilers.toolchain, compilers.triton
    for target in targets:
        if isinstance(target, HipTarget):
            if toolchain is None:
                toolchain = find_toolchain(compilers.cache)
            notes[toolchain.note] = None
            sources = sorted({source for tree in trees for source in hip_sources(tree, target)})
            work += [
                (source, partial(compile_device, source=source, target=target, toolchain=toolchain, markers=markers))
                for source in sources
            ]
        else:
            if triton is None:
                triton = find_triton(compilers.cache, say=say)
            notes[triton.note] = None
            sources = [target.source] if any((tree / target.source).is_file() for tree in trees) else []
            work += [
                (source, partial(compile_aot, target=target, triton=triton, markers=markers)) for source in sources
            ]
        if not sources:
            raise UsageError(
                f"no file of the tree is {target.source}: upstream moved", hint="correct the stack's kernels"
            )
    return work, list(notes)


def _both(source: str, compile_in: Compile, before: Path | None, after: Path) -> list[Row]:
    rows: list[Row] = []
    first = None
    if before is not None and (before / source).is_file():
        first = compile_in(before)
        rows += _marked(first.rows, "before")
    if first is not None and before is not None and first.files and _same(first.files, before, after):
        return [*rows, *_marked(first.rows, "after")]
    if (after / source).is_file():
        rows += _marked(compile_in(after).rows, "after")
    return rows


def _same(files: Iterable[str], before: Path, after: Path) -> bool:
    twins = ((before / name, after / name) for name in files)
    return all(twin.is_file() and twin.read_bytes() == path.read_bytes() for path, twin in twins)


def _marked(rows: Iterable[Row], when: When) -> list[Row]:
    return [replace(row, when=when) for row in rows]


def _markers(proofs: Mapping[str, Sequence[Proof]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for proof in itertools.chain(*proofs.values()):
        if proof.isa and proof.marker:
            found[proof.isa] = (*found.get(proof.isa, ()), proof.marker)
    return found


def _rank(row: Row) -> tuple[bool, int, float, int]:
    if row.figures is None:
        return True, 0, 0, 0
    return False, row.figures.vgpr_spills, -(row.waves or 0), row.figures.lds_bytes
