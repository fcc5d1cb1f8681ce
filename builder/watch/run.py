"""One run of the watchdog over a stack: ask, look, try, remember, tell."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from builder.errors import ToolError, UpstreamError, UsageError
from builder.models.stack import load_stack
from builder.source.repository import open_source
from builder.stage.inputs import series_of, source_location
from builder.watch.finish import Ending, finish
from builder.watch.look import Watched, look, pin_of
from builder.watch.outcome import Options, Result
from builder.watch.report import Report
from builder.watch.state import Failure, WatchState, held, load_state, require_fresh, save_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from builder.settings import Settings


def watch(
    root: Path,
    name: str,
    *,
    settings: Settings,
    options: Options,
    environ: Mapping[str, str] | None = None,
    now: datetime | None = None,
    say: Callable[[str], None],
) -> Result:
    """Watch one stack; a look at another source, ref or pin neither reads nor changes what is remembered of it.

    Args:
        root: The checkout.
        name: The stack.
        settings: State and cache folders, CA bundle, Apprise URLs.
        options: What the run is to do.
        environ: The forge's token and repository; this process's environment when left out.
        now: The time; the clock's when left out.
        say: Is told what takes long.

    Returns:
        What it came to; ``unknown`` with exit code 4 when upstream could not be asked, and then nothing that is
        remembered of upstream has changed.

    Raises:
        HostError: Another run holds the state, or a file could not be written.
        UsageError: Stack, series, state or an option does not fit.
    """
    stack = load_stack(root, name)
    moment = now or datetime.now(UTC)
    elsewhere = options.elsewhere
    if elsewhere and (options.issue or options.bump):
        raise UsageError("--issue and --bump belong to the stack's own upstream: leave out --source, --ref and --pin")
    with nullcontext() if elsewhere else held(settings.state, name):
        state = WatchState(stack=name) if elsewhere else load_state(settings.state, name)
        pinned, series = pin_of(root, stack, options.pin), series_of(root, stack)
        location = options.source or source_location(root, stack, settings)
        source = open_source(location, cache=settings.cache, timeout=options.timeout, ca_bundle=settings.ca_bundle)
        ref = options.ref or stack.source.ref
        watched = Watched(root=root, stack=stack, series=series, source=source, ref=ref, pinned=pinned, say=say)
        try:
            state, report, fresh = look(watched, state, moment)
        except UpstreamError as trouble:
            if not elsewhere:
                failure = Failure(at=moment.isoformat(), message=trouble.message.partition("\n")[0])
                update = {"last_error": failure, "attempts": state.attempts + 1}
                save_state(settings.state, state.model_copy(update=update))
            unknown = Report(stack=name, source=source.location, ref=ref, pinned=pinned, head=None, state="unknown")
            return Result(stack=name, exit_code=trouble.exit_code, report=unknown, trouble=trouble)
        if elsewhere:
            return Result(stack=name, exit_code=report.exit_code, report=report)
        surroundings = os.environ if environ is None else environ
        ending = Ending(settings=settings, options=options, environ=surroundings, now=moment)
        return finish(watched, state, report, fresh, ending)


def watch_all(names: Sequence[str], one: Callable[[str], Result]) -> list[Result]:
    """Watch several stacks side by side; what stops one of them does not stop the others."""

    def guarded(name: str) -> Result:
        try:
            return one(name)
        except ToolError as trouble:
            return Result(stack=name, exit_code=trouble.exit_code, trouble=trouble)

    with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
        return list(pool.map(guarded, names))


def acknowledge(settings: Settings, stack: str) -> Result:
    """Take note of the head that was seen last, so that it no longer counts for the exit code; nobody is asked.

    Raises:
        UsageError: The stack has not been watched yet.
    """
    with held(settings.state, stack):
        state = load_state(settings.state, stack)
        if state.report is None:
            raise UsageError(f"{stack} has not been watched yet", hint=f"run `gfx1100 watch {stack}`")
        save_state(settings.state, state.model_copy(update={"acknowledged": state.report.head or "gone"}))
    return Result(stack=stack, exit_code=0, report=state.report, acknowledged=True)


def status(settings: Settings, stack: str, *, now: datetime | None = None) -> WatchState:
    """Return what is remembered of a stack; raises UpstreamError when that is older than two days."""
    state = load_state(settings.state, stack)
    require_fresh(state, now or datetime.now(UTC))
    return state
