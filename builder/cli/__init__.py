"""The program ``gfx1100``: it parses, calls one function, prints."""

from __future__ import annotations

import itertools
import signal
import sys
from pathlib import Path
from typing import Annotated, cast

import typer

import builder
from builder.cli import checkpoint, export, host, images, kernels, patches, publishing, registry, serving, verify, watch
from builder.cli.state import State, find_root
from builder.console import Console, drop_stdout
from builder.errors import HostError, ToolError, UsageError

# the parser's error for any wrong command line; typer exports only this child of it
PARSER_ERROR = cast("type[typer.BadParameter]", typer.BadParameter.__base__)

app = typer.Typer(
    name="gfx1100",
    help="Builds, proves, publishes and serves LLM engine images for the Radeon RX 7900 XTX (gfx1100).",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for command in (
    *(images.lock, images.render, images.stage, images.build),
    *(publishing.publish, publishing.pull, publishing.trace),
    verify.verify,
    *(registry.images, registry.bundle, registry.load),
    *(serving.serve, serving.status, serving.logs, serving.stop, serving.rollback, serving.quickstart),
    kernels.kernels,
    *(host.doctor, host.lint, host.plan),
    export.export,
    watch.watch,
):
    app.command()(command)
app.add_typer(patches.app)
app.add_typer(checkpoint.app)


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer's form
    if asked:
        Console.line(builder.__version__)
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
    console = context.obj or Console()
    console.as_json, console.verbose = as_json, verbose
    context.obj = State(root=find_root(root), console=console, yes=yes)


def main() -> None:
    """Run the program and end with the exit code of what happened."""
    # so that what was started is stopped: a plain SIGTERM would skip every `finally`
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # a terminal that goes; nohup has said already that it shall not matter
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    # what stands after -- is no option of ours; the parser may fail before it has read any option
    ours = itertools.takewhile(lambda word: word != "--", sys.argv[1:])
    console = Console(as_json="--json" in ours)
    try:
        code = _run(console)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = 130
    sys.exit(code)


def _run(console: Console) -> int:
    """Run the command, tell its result and its error, and return the exit code."""
    try:
        code = app(standalone_mode=False, obj=console)
    except ToolError as trouble:
        return _end(console, trouble)
    except OSError as trouble:
        where = f"{trouble.filename}: " if trouble.filename else ""
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            drop_stdout()
        return _end(console, HostError(f"{where}{trouble.strerror or trouble}"))
    except PARSER_ERROR as trouble:
        if not console.as_json:
            trouble.show()
            return trouble.exit_code
        command = trouble.ctx.command_path if trouble.ctx else "gfx1100"
        # without any word the parser's message is the whole help
        message = trouble.format_message() if "Usage: " not in trouble.message else f"{command} needs a command"
        return _end(console, UsageError(message, hint=f"see `{command} --help`"))
    except typer.Abort:
        sys.stderr.write("Aborted!\n")
        return _end(console, None, code=1)
    return _end(console, None, code=code if isinstance(code, int) else 0)


def _end(console: Console, trouble: ToolError | None, *, code: int = 0) -> int:
    """Tell how the command ended; on a stdout that nothing can be written to, stderr gets the words."""
    try:
        console.finish(trouble)
    except HostError as full:
        Console().finish(trouble or full)
        return (trouble or full).exit_code
    return trouble.exit_code if trouble else code
