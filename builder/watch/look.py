"""Look at a stack's upstream: the head, what lies between pin and head, the trial, and what of it is new."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from builder.files import canonical_json, sha256
from builder.models.lock import UNRESOLVED, load_lock, lock_path
from builder.models.stack import Stack
from builder.patching.series import Series
from builder.source.git import require_commit
from builder.source.repository import Source
from builder.stage.inputs import facts_of, locked_patches
from builder.watch.history import Gap, gap, head_of, log, state_at, where_it_went
from builder.watch.needs import compare, needs_of
from builder.watch.report import PatchTrial, Report, news
from builder.watch.trial import Trial, files_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.watch.report import News
    from builder.watch.state import WatchState

_RULES = 1
"""Raised when a report would come out otherwise for the same head, so that old ones are not shown again."""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What is watched.

    Attributes:
        root: The checkout.
        stack: The stack.
        series: Its series.
        source: Where upstream is asked.
        ref: The branch.
        pinned: The pin; None when there is none yet.
        say: Is told what takes long.
    """

    root: Path
    stack: Stack
    series: Series
    source: Source
    ref: str
    pinned: str | None
    say: Callable[[str], None]


def pin_of(root: Path, stack: Stack, named: str | None) -> str | None:
    """Return the commit to compare with: the named one, or the lock's; None when that is unresolved.

    Raises:
        UsageError: What is named is no commit, or the lock does not fit.
    """
    if named:
        return require_commit(named)
    if not lock_path(root, stack.name).exists():
        return None
    commit = load_lock(root, stack.name).commit
    return None if commit == UNRESOLVED else commit


def look(watched: Watched, state: WatchState, now: datetime) -> tuple[WatchState, Report, tuple[News, ...]]:
    """Return the memory after a look at upstream, what was found, and what of it is new.

    One question is all that upstream is asked when nothing has moved.

    Raises:
        UpstreamError: Upstream could not be asked: unknown, and the memory stays as it is.
    """
    source, git, ref = watched.source, watched.source.git, watched.ref
    basis = _basis(watched)
    old = state.report if state.report is not None and state.report.ref == ref else None
    seen = state.seen if old is not None else None
    head = head_of(source, ref)
    since: int | None = 0
    if head is None:
        report = _gone(watched, old, seen)
    elif old is not None and old.head == head and state.basis == basis:
        report = old
    else:
        report = examine(watched, head, seen)
        known = seen or watched.pinned
        if known is not None:
            since = git.count(known, head) if git.is_ancestor(known, head) else None
    update = {
        "basis": basis,
        "seen": head or seen,
        "report": report,
        "sightings": state.with_sighting(head, now) if head else state.sightings,
        "acknowledged": state.acknowledged if state.basis == basis else None,
        "last_ok": now.isoformat(),
        "last_error": None,
        "attempts": 0,
    }
    fresh = news(old, report, since=since)
    return state.model_copy(update=update), report, fresh


def examine(watched: Watched, head: str, seen: str | None) -> Report:
    """Return the report on a head.

    Args:
        watched: What is watched.
        head: The head, or another commit that is to be examined as if it were.
        seen: The head that was seen last, to compare with when nothing is pinned.

    Raises:
        UpstreamError: Something could not be fetched.
    """
    source, git = watched.source, watched.source.git
    base = watched.pinned or seen
    targets = sorted({path for patch in watched.series.patches for path in patch.files})
    watched.say(f"{watched.stack.name}: looking at {head[:12]}")
    source.fetch(head)
    # read now: a later fetch that brings nothing does not say whether the server has filters
    transfer = source.mirror.transfer if source.mirror else ""
    between = gap(source, base, head, targets) if base else Gap(rewritten=False, ahead=None)
    there = base if base is not None and git.has_commit(base) else None
    touched = between.targets
    if there and between.rewritten:
        before, after = (state_at(git, commit, targets) for commit in (there, head))
        touched = tuple(path for path in targets if before.get(path) != after.get(path))
    watched.say(f"{watched.stack.name}: trying the series of {len(watched.series.patches)} patches")
    patches = _patches(watched, head, between)
    needs = needs_of(watched.root, watched.stack, " ".join(files_of(watched.series)))
    rewritten = (watched.pinned is not None and between.rewritten) or not (seen is None or git.is_ancestor(seen, head))
    return Report(
        stack=watched.stack.name,
        source=source.location,
        ref=watched.ref,
        pinned=watched.pinned,
        head=head,
        previous=seen,
        state="rewritten" if rewritten else "same" if head == watched.pinned else "new",
        ahead=between.ahead,
        rewritten=rewritten,
        commits=between.commits,
        targets=touched,
        patches=patches,
        changes=compare(source, there, head, needs) if there and there != head else (),
        transfer=transfer,
    )


def _gone(watched: Watched, old: Report | None, seen: str | None) -> Report:
    """Return the report on a branch that is gone; what was found before stays in it, so that it is not told again."""
    report = old or Report(
        stack=watched.stack.name,
        source=watched.source.location,
        ref=watched.ref,
        pinned=watched.pinned,
        head=None,
        state="gone",
    )
    hint = where_it_went(watched.source, watched.ref, seen)
    update = {"state": "gone", "head": None, "ahead": None, "commits": (), "rewritten": False, "hint": hint}
    return report.model_copy(update={**update, "pinned": watched.pinned})


def _basis(watched: Watched) -> str:
    """Return a hash of all that a report depends on besides the head."""
    patches = [patch.model_dump(mode="json") for patch in locked_patches(watched.series)]
    needs = needs_of(watched.root, watched.stack, "")
    used = [sorted(names) for names in (needs.flags, needs.variables, needs.modules, needs.words)]
    stack = watched.stack.model_dump(mode="json")
    return sha256(canonical_json([_RULES, watched.ref, watched.pinned, patches, used, stack]))


def _patches(watched: Watched, head: str, between: Gap) -> tuple[PatchTrial, ...]:
    trial = Trial(source=watched.source, series=watched.series, facts=facts_of(watched.stack))
    reports = trial.at(head)
    failed = [report.id for report in reports if report.outcome == "failed"]
    culprits = trial.culprits(watched.pinned, head, failed) if failed else {}
    titles = {commit.sha: commit.title for commit in between.commits}
    found = []
    for report in reports:
        near = next((edit for edit in report.edits if edit.outcome == "failed"), None)
        by = culprits.get(report.id)
        found.append(
            PatchTrial(
                id=report.id,
                outcome=report.outcome,
                reason=report.reason,
                file=near.file if near else None,
                line=near.near.line if near and near.near else None,
                nearest=near.near.text if near and near.near else None,
                broken_by=by.sha if by else None,
                title=(titles.get(by.sha) or log(watched.source.git, None, by.sha, limit=1)[0].title) if by else None,
                merged_by=by.merge if by else None,
            )
        )
    return tuple(found)
