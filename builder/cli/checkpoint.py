"""The commands on model folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.cli.state import State

app = typer.Typer(
    name="checkpoint", help="Tell whether a checkpoint's MTP layer loads, and rewrite its rules.", no_args_is_help=True
)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The model folder.")]


@app.command(name="inspect")
def inspect_checkpoint(context: typer.Context, folder: Folder) -> None:
    """Show what engines make of the MTP tensors; only headers are read.

    Example: gfx1100 checkpoint inspect /models/Qwen3.8-27B-W4A16
    """
    from builder.checkpoint import inspect
    from builder.checkpoint.__main__ import describe

    state: State = context.obj
    found = inspect(folder)
    state.console.result(found.as_json(), describe(found))


@app.command(name="fix")
def fix_checkpoint(
    context: typer.Context,
    folder: Folder,
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT", help="The new folder; by default DIR-mtp-fixed.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Change DIR itself and keep a backup.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Bring back what --in-place replaced.")] = False,
    hard_links: Annotated[bool, typer.Option("--hard-links", help="Hard links instead of symbolic ones.")] = False,
    copy: Annotated[bool, typer.Option("--copy", help="Copies instead of links.")] = False,
) -> None:
    """Rewrite the rules in a sibling folder of links, or in place; weights are never touched.

    Example: gfx1100 checkpoint fix /models/Qwen3.8-27B-W4A16
    """
    from builder.checkpoint import fix
    from builder.checkpoint import undo as bring_back

    state: State = context.obj
    if (hard_links and copy) or (undo and (output or in_place or hard_links or copy)):
        raise UsageError("these options do not go together", hint="`gfx1100 checkpoint fix --help` shows them")
    link: Literal["symlink", "hard", "copy"] = "hard" if hard_links else "copy" if copy else "symlink"
    done = bring_back(folder) if undo else fix(folder, output=output, in_place=in_place, link=link)
    state.console.result(
        done.as_json(),
        f"{done.verdict}: {done.output}\nchanged: {', '.join(done.changed) or 'nothing'}\n"
        f"rules: {done.rules_before} before, {done.rules_after} now",
    )
