"""The command that compiles kernels without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.images import MissingOption, PatchesOption, RefOption, SourceOption, StackName, stack_and_lock

if TYPE_CHECKING:
    from builder.cli.state import State


def kernels(
    context: typer.Context,
    stack: StackName,
    *,
    tree: Annotated[
        Path | None, typer.Option("--tree", metavar="DIR", help="A source tree without the series.")
    ] = None,
    source: SourceOption = None,
    ref: RefOption = None,
    allow_missing: MissingOption = None,
    patches: PatchesOption = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Try the values of each kernel's sweep and rank them.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Compilations at once, 1 GiB each.")] = 2,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Install a compiler for HIP when there is none.")
    ] = False,
) -> None:
    """Compile a stack's kernels for gfx1100 before and after its series: registers, LDS, spills, markers.

    Example: gfx1100 kernels smoke --install
    """
    from builder.build.kernels import compare_kernels, kernel_trees, sweep_kernels
    from builder.kernels.prepare import prepare_hip
    from builder.kernels.report import sweep_text
    from builder.kernels.run import Compilers
    from builder.stage.context import Origin

    state: State = context.obj
    wanted, lock = stack_and_lock(state, stack)
    if any(target.language == "hip" for target in wanted.kernels) and not sweep:
        prepare_hip(state.settings.cache, allowed=install, console=state.console)
    origin = Origin(location=source, ref=ref, allow_missing=tuple(allow_missing or ()), patches=tuple(patches or ()))
    compilers = Compilers(cache=state.settings.cache, jobs=jobs)
    with kernel_trees(state.root, wanted, lock, tree=tree, origin=origin, settings=state.settings) as trees:
        if sweep:
            ranked = sweep_kernels(wanted, trees, compilers=compilers, console=state.console)
            state.console.result(
                {"sweeps": {name: [row.document() for row in rows] for name, rows in ranked.items()}},
                "\n\n".join(f"{name}\n{sweep_text(rows)}" for name, rows in ranked.items()),
            )
            return
        report = compare_kernels(wanted, trees, compilers=compilers, console=state.console)
    state.console.result(report.document(), report.text())
    report.require_success(stack)
