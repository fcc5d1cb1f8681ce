"""The command that watches upstream."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.cli.state import State
    from builder.watch.outcome import Result


def watch(
    context: typer.Context,
    stack: Annotated[str | None, typer.Argument(metavar="[STACK]", help="Name of a file in stacks/.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All that follow a repository, side by side.")] = False,
    source: Annotated[str | None, typer.Option("--source", help="Ask this URL or repository instead.")] = None,
    ref: Annotated[str | None, typer.Option("--ref", help="Follow this full ref (refs/heads/...) instead.")] = None,
    pin: Annotated[str | None, typer.Option("--pin", metavar="SHA", help="Compare with this commit instead.")] = None,
    ack: Annotated[bool, typer.Option("--ack", help="Take note of the head seen last: it no longer counts.")] = False,
    bump: Annotated[bool, typer.Option("--bump", help="Move the lock when the trial is green.")] = False,
    min_age: Annotated[
        float, typer.Option("--min-age", metavar="HOURS", min=0, help="How long --bump leaves a head alone.")
    ] = 24.0,
    pull_request: Annotated[
        bool, typer.Option("--pr", help="With --bump: a pull request instead of files in this checkout.")
    ] = False,
    issue: Annotated[bool, typer.Option("--issue", help="Bring the issue of the stack up to date.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End with 0 when all was told by an earlier run.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of a table.")] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Ask nobody; end with 4 when the last answer is older than two days.")
    ] = False,
) -> None:
    """Compare upstream's head with the pin, and try the series on it.

    Ends with 0 nothing new, 10 new commits and the series fits, 11 it breaks or the branch was rewritten or is gone,
    4 upstream could not be asked.

    Example: gfx1100 watch vllm --issue --once
    """
    from builder.models.stack import stack_names
    from builder.watch.outcome import Options, worst
    from builder.watch.run import acknowledge, watch_all
    from builder.watch.run import watch as watch_one

    state: State = context.obj
    if (stack is None) != everything or stack == "":
        raise UsageError("name a stack, or give --all")
    if everything and (source or ref or pin):
        raise UsageError("--source, --ref and --pin belong to one stack")
    if (source or ref or pin) and (ack or status or once):
        raise UsageError("--ack, --status and --once go by what is remembered, and of another source nothing is")
    if pull_request and not bump:
        raise UsageError("--pr belongs to --bump")
    names = [stack] if stack else _followed(state, stack_names(state.root))
    settings = state.settings
    if status:
        _status(state, names, everything=everything)
        return
    options = Options(
        source=source,
        ref=ref,
        pin=pin,
        bump=bump,
        pull_request=pull_request,
        issue=issue,
        once=once,
        min_age=timedelta(hours=min_age),
    )

    def one(name: str) -> Result:
        if ack:
            return acknowledge(settings, name)
        return watch_one(state.root, name, settings=settings, options=options, say=state.console.step)

    results = watch_all(names, one) if everything else [one(names[0])]
    documents: list[dict[str, Any]] = [result.as_json() for result in results]
    text = "\n\n".join(_text(state, result, markdown=markdown) for result in results)
    state.console.result({"stacks": documents} if everything else documents[0], text)
    code = worst([result.exit_code for result in results])
    if code:
        raise typer.Exit(code)


def _followed(state: State, names: list[str]) -> list[str]:
    """Return the stacks whose source is a repository; a folder of this checkout has no upstream."""
    from builder.models.stack import load_stack

    return [name for name in names if load_stack(state.root, name).source.folder is None]


def _status(state: State, names: list[str], *, everything: bool) -> None:
    from builder.watch.run import status

    known = [status(state.settings, name) for name in names]
    documents = [one.model_dump(mode="json") for one in known]
    lines = [f"{one.stack}: last answer {one.last_ok}" for one in known]
    state.console.result({"stacks": documents} if everything else documents[0], "\n".join(lines))


def _text(state: State, result: Result, *, markdown: bool) -> str:
    from builder.models.stack import load_stack
    from builder.watch.words import as_markdown, as_text, code

    repository = load_stack(state.root, result.stack).source.repository
    parts: list[str] = []
    if result.report and result.report.state != "unknown":
        text = as_markdown(result.report, repository=repository) if markdown else as_text(result.report, result.news)
        parts.append(text)
    if result.error:
        line = f"{result.stack}: {result.error}"
        parts.append(code(line) if markdown else line + (f"\n  next: {result.hint}" if result.hint else ""))
    if result.bump and not markdown:
        parts.append("\n".join(result.bump.moved))
        parts.append(f"branch: {result.bump.branch}\ntitle:  {result.bump.title}\n\n{result.bump.body}")
    if result.acknowledged:
        parts.append("taken note of: this head does not count for the exit code")
    parts += [code(line) if markdown else line for line in result.told]
    return "\n\n".join(parts)
