"""The commands that run a series on any source tree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.images import PatchesOption, StackName
from builder.console import table

if TYPE_CHECKING:
    from builder.cli.state import State
    from builder.patching.apply import Report

app = typer.Typer(name="patches", help="List, check and apply the series of a stack.", no_args_is_help=True)

TreeOption = Annotated[Path, typer.Option("--tree", metavar="DIR", help="The source tree.")]


@app.command(name="list")
def list_patches(context: typer.Context, stack: StackName, *, patches: PatchesOption = None) -> None:
    """List the series of a stack and the rewrites of checkpoints: id, title and when a patch goes.

    Example: gfx1100 patches list sglang
    """
    from builder.models.stack import load_stack
    from builder.patching.series import load_checkpoint_patches
    from builder.stage.inputs import series_of

    state: State = context.obj
    series = series_of(state.root, load_stack(state.root, stack), tuple(patches or ()))
    headers = [patch.header for patch in series.patches]
    rewrites = load_checkpoint_patches(state.root / "patches" / "checkpoint")
    rows = [
        *((header.id, "source", header.title, header.retire_when) for header in headers),
        *((patch.header.id, "off", patch.header.title, patch.header.retire_when) for patch in series.off),
        *((header.id, "checkpoint", header.title, header.retire_when) for header in rewrites),
    ]
    state.console.result(
        {
            "patches": [{"id": patch.id, "sha256": patch.sha256, "file": patch.path.name} for patch in series.patches],
            "off": [patch.id for patch in series.off],
            "checkpoint": [header.id for header in rewrites],
        },
        table(["patch", "kind", "title", "retire when"], rows),
    )


@app.command()
def check(context: typer.Context, stack: StackName, tree: TreeOption, *, patches: PatchesOption = None) -> None:
    """Say what each patch would do to a tree; nothing is written.

    Example: gfx1100 patches check smoke --tree ~/src/engine
    """
    _run(context.obj, stack, tree, patches, write=False)


@app.command()
def apply(context: typer.Context, stack: StackName, tree: TreeOption, *, patches: PatchesOption = None) -> None:
    """Apply the whole series to a tree, or nothing.

    Example: gfx1100 patches apply smoke --tree ~/src/engine
    """
    _run(context.obj, stack, tree, patches, write=True)


def _run(state: State, stack: str, tree: Path, patches: list[Path] | None, *, write: bool) -> None:
    import builder.patching.apply as patching
    from builder.models.stack import load_stack
    from builder.stage.inputs import facts_of, series_of

    wanted = load_stack(state.root, stack)
    series = series_of(state.root, wanted, tuple(patches or ()))
    report = (patching.apply if write else patching.check)(series, tree, facts_of(wanted))
    state.console.result(report.as_json(), _text(report))
    report.require_success()


def _text(report: Report) -> str:
    return table(["patch", "outcome", "reason"], [(p.id, p.outcome, p.reason) for p in report.patches])
