"""What the watchdog remembers of a stack: one JSON file a stack, replaced whole, held by one run at a time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from builder.errors import UpstreamError, UsageError
from builder.files import canonical_json, locked, read_text, write_atomic
from builder.models.base import Commit, Data, validated
from builder.watch.report import Report

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

FORMAT = 1
STALE = timedelta(days=2)
MOST_SIGHTINGS = 200


class Sighting(Data):
    """A head and when it was first seen, by this machine's clock, UTC with offset."""

    head: Commit
    at: str


class Failure(Data):
    """Why a run could not tell what is new, and when."""

    at: str
    message: str


class WatchState(Data):
    """The memory of one stack.

    Attributes:
        format: The version of this file's form.
        stack: The stack.
        basis: Hash of all that a report depends on besides the head: pin, series, parameters, profiles.
        seen: The head that was seen last; it stays when the branch is gone.
        report: What the last run that got an answer found.
        sightings: The heads that were seen, newest last, for the quarantine.
        acknowledged: The head, or ``gone``, that a person has taken note of.
        last_ok: When upstream last answered.
        last_error: The last failure since then.
        attempts: How many runs in a row have failed.
        untold: Lines that could not be sent yet.
    """

    format: Literal[1] = 1
    stack: str
    basis: str = ""
    seen: Commit | None = None
    report: Report | None = None
    sightings: tuple[Sighting, ...] = ()
    acknowledged: str | None = None
    last_ok: str | None = None
    last_error: Failure | None = None
    attempts: int = Field(default=0, ge=0)
    untold: tuple[str, ...] = ()

    def with_sighting(self, head: str, now: datetime) -> tuple[Sighting, ...]:
        """Return the sightings, with one more when the head is new."""
        if any(sighting.head == head for sighting in self.sightings):
            return self.sightings
        return (*self.sightings, Sighting(head=head, at=now.isoformat()))[-MOST_SIGHTINGS:]


def state_path(folder: Path, stack: str) -> Path:
    """Return where the state of a stack lies below the state folder."""
    return folder / "watch" / f"{stack}.json"


def load_state(folder: Path, stack: str) -> WatchState:
    """Return what is remembered of a stack; an empty memory when there is none.

    Raises:
        UsageError: The file is damaged, or was written by a newer version of this program.
    """
    path = state_path(folder, stack)
    if not path.exists():
        return WatchState(stack=stack)
    try:
        value = json.loads(read_text(path))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds no watch state", hint="move it away; all is then told once more")
    number = value.get("format")
    if isinstance(number, int) and number > FORMAT:
        raise UsageError(
            f"{path} has the format {number}, and this program knows {FORMAT}: a newer version wrote it",
            hint="update this program; the file is left as it is",
        )
    return validated(WatchState, value, path)


def save_state(folder: Path, state: WatchState) -> None:
    """Replace the state of a stack in one step.

    Raises:
        HostError: The disk is full or the folder cannot be written; the old state stays.
    """
    write_atomic(state_path(folder, state.stack), canonical_json(state.model_dump(mode="json")))


def held(folder: Path, stack: str) -> AbstractContextManager[None]:
    """Hold the state of a stack against a second run.

    Raises:
        HostError: Another run holds it.
    """
    return locked(state_path(folder, stack).with_suffix(".lock"), wait=False)


def require_fresh(state: WatchState, now: datetime) -> None:
    """Raise UpstreamError when upstream has not answered for two days, so that nobody knows what is new there."""
    error = f"; the last error: {state.last_error.message}" if state.last_error else ""
    hint = f"run `gfx1100 watch {state.stack}`, and look whether the timer still runs"
    if state.last_ok is None:
        raise UpstreamError(f"{state.stack} has never been watched with success{error}", hint=hint)
    age = now - moment(state.last_ok)
    if age > STALE:
        days = age / timedelta(days=1)
        raise UpstreamError(f"{state.stack} was last watched with success {days:.1f} days ago{error}", hint=hint)
    if age < -timedelta(hours=1):
        raise UpstreamError(
            f"{state.stack} was last watched at {state.last_ok}, which is in the future: this clock was changed",
            hint=hint,
        )


def moment(text: str) -> datetime:
    """Return a time of a state file."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError as trouble:
        raise UsageError(f"{text!r} in a watch state is no time") from trouble
    return value if value.tzinfo else value.replace(tzinfo=UTC)
