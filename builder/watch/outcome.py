"""What a run of the watchdog is asked to do, and what it came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from builder.watch.report import News, Report

if TYPE_CHECKING:
    from builder.errors import ToolError
    from builder.watch.bump import Bump

TRANSFER_SECONDS = 600.0
MIN_AGE = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a run is to do.

    Attributes:
        source: Where to ask instead of the stack's repository.
        ref: The branch to follow instead of the stack's.
        pin: The commit to compare with instead of the lock's.
        bump: Move the pin when the trial is green.
        pull_request: Open a pull request for the bump instead of writing into the checkout.
        issue: Bring the issue of the stack up to date.
        once: Only what no run has told before counts for the exit code.
        min_age: The quarantine of a head before ``bump`` takes it.
        timeout: Seconds that one transfer may take.
    """

    source: str | None = None
    ref: str | None = None
    pin: str | None = None
    bump: bool = False
    pull_request: bool = False
    issue: bool = False
    once: bool = False
    min_age: timedelta = MIN_AGE
    timeout: float = TRANSFER_SECONDS

    @property
    def elsewhere(self) -> bool:
        """Whether something else is compared than the stack's own upstream and pin."""
        return bool(self.source or self.ref or self.pin)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to.

    Attributes:
        stack: The stack.
        exit_code: The program's exit code.
        report: What was found; None when that is unknown.
        news: What of it no run has told before.
        told: What was done to tell it, a line each.
        trouble: Why it is unknown, or why something could not be told.
        bump: The pin that moved.
        acknowledged: A person has taken note of this head.
    """

    stack: str
    exit_code: int
    report: Report | None = None
    news: tuple[News, ...] = ()
    told: tuple[str, ...] = ()
    trouble: ToolError | None = None
    bump: Bump | None = None
    acknowledged: bool = False

    @property
    def error(self) -> str:
        """The trouble in words; empty when there was none."""
        return self.trouble.message if self.trouble else ""

    @property
    def hint(self) -> str:
        """The next step against it."""
        return self.trouble.hint if self.trouble else ""

    def as_json(self) -> dict[str, Any]:
        """Return what ``watch --json`` prints."""
        found = self.report.model_dump(mode="json") if self.report else {"pinned": None, "head": None, "ahead": None}
        empty: dict[str, Any] = {"rewritten": False, "commits": [], "targets": [], "patches": [], "changes": []}
        return {
            **empty,
            "state": "unknown",
            **found,
            "stack": self.stack,
            "news": [item.model_dump(mode="json") for item in self.news],
            "told": list(self.told),
            "bump": self.bump.as_json() if self.bump else None,
            "acknowledged": self.acknowledged,
            "error": self.trouble.as_json() if self.trouble else None,
            "hint": self.hint or found.get("hint", ""),
            "exit_code": self.exit_code,
        }


def worst(codes: Sequence[int]) -> int:
    """Return the exit code of several runs: a fault first, then 11, then 4, then 10, then 0."""
    order = (0, 10, 4, 11)
    return max(codes, key=lambda code: order.index(code) if code in order else len(order), default=0)
