"""The program ``gfx1100``: it parses, calls one function, prints."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import builder
from builder.cli import checkpoint, export, host, images, kernels, patches, publishing, registry, serving, verify, watch
from builder.cli.state import State, find_root
from builder.console import Console, clean
from builder.errors import ToolError

app = typer.Typer(
    name="gfx1100",
    help="Builds, proves, publishes and serves LLM engine images for the Radeon RX 7900 XTX (gfx1100).",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
images.register(app)
publishing.register(app)
verify.register(app)
registry.register(app)
serving.register(app)
kernels.register(app)
host.register(app)
export.register(app)
watch.register(app)
app.add_typer(patches.app)
app.add_typer(checkpoint.app)


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer's form
    if asked:
        sys.stdout.write(builder.__version__ + "\n")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout and nothing else there.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show details.")] = False,
    root: Annotated[
        Path | None, typer.Option("--root", help="The checkout; by default the one that this folder is in.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Answer questions with yes.")] = False,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", help="Print the version and end.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Take the global options."""
    context.obj = State(root=find_root(root), console=Console(as_json=as_json, verbose=verbose), yes=yes)


def main() -> None:
    """Run the program and end with the exit code of what happened."""
    # so that what was started is stopped: a plain SIGTERM would skip every `finally`
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        app(standalone_mode=True)
    except ToolError as trouble:
        sys.exit(_report(trouble))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


def _report(trouble: ToolError) -> int:
    """Tell an expected failure: as a JSON document when that was asked for, else as text on stderr."""
    if "--json" in sys.argv[1:]:
        error: dict[str, Any] = {
            "code": trouble.exit_code,
            "class": type(trouble).__name__,
            "message": trouble.message,
            "hint": trouble.hint,
        }
        sys.stdout.write(json.dumps({"error": error}, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stderr.write(clean(f"error: {trouble.message}\n" + (f"  next: {trouble.hint}\n" if trouble.hint else "")))
    return trouble.exit_code
