"""Upstream's head against the pin: one question, and when the head moved, the commits and what they touch."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.console import clean
from builder.errors import UpstreamError
from builder.source.git import GoneError
from builder.source.repository import TITLE_CHARACTERS
from builder.watch.areas import areas_of
from builder.watch.history import MOST_STEPS, count, is_ancestor, touched
from builder.watch.report import UpstreamCommit

if TYPE_CHECKING:
    from collections.abc import Collection

    from builder.source.repository import Source

MOST_COMMITS = 1000
"""Commits of one report."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """What lies between a commit that is known and the head.

    Attributes:
        rewritten: The known commit is no ancestor of the head.
        ahead: How many commits the head has on top of it; None when it was rewritten.
        commits: Those commits, newest first, at most 1,000.
        targets: The targets that they touch.
    """

    rewritten: bool
    ahead: int | None
    commits: tuple[UpstreamCommit, ...] = ()
    targets: tuple[str, ...] = ()


def head_of(source: Source, ref: str) -> str | None:
    """Return the commit that a branch names now, or None when the repository says that it has no such branch.

    Raises:
        UpstreamError: The repository could not be asked: unknown.
    """
    try:
        return source.resolve(ref)
    except GoneError:
        return None


def where_it_went(source: Source, ref: str, seen: str | None) -> str:
    """Return a hint for a branch that is gone: the branch that holds what it held, or whose name is near."""
    try:
        branches = source.branches()
    except UpstreamError:
        return ""
    same = sorted(name for name, commit in branches.items() if commit == seen)
    if same:
        return f"renamed? {same[0]} holds the commit that it held"
    near = difflib.get_close_matches(ref, list(branches), n=1, cutoff=0.8)
    if near:
        return f"renamed? {near[0]} has a name like it"
    return f"renamed? {next(iter(branches))} is the only branch" if len(branches) == 1 else ""


def gap(source: Source, base: str, head: str, targets: Collection[str]) -> Gap:
    """Return what lies between two commits, of which the head has been fetched.

    Raises:
        UpstreamError: The history is cut off, so that the answer is unknown.
    """
    if not is_ancestor(source.git, base, head):
        return Gap(rewritten=True, ahead=None)
    if base == head:
        return Gap(rewritten=False, ahead=0)
    paths = touched(source.git, base, head)
    commits = tuple(
        UpstreamCommit(
            sha=entry.sha,
            title=entry.title,
            author_date=entry.author_date.isoformat(),
            areas=areas_of(paths[entry.sha], targets),
        )
        for entry in source.log(base, head, limit=MOST_COMMITS)
    )
    changed = {path for names in paths.values() for path in names}
    return Gap(
        rewritten=False,
        ahead=len(paths) if len(paths) < MOST_STEPS else count(source.git, base, head),
        commits=commits,
        targets=tuple(path for path in sorted(targets) if path in changed),
    )


def title_of(source: Source, commit: str) -> str:
    """Return a commit's title as one printable line, in a stranger's words."""
    options = ("--no-walk", "--encoding=UTF-8", "--format=%s", commit)
    lines = source.git.run("rev-list", *options, failure=UpstreamError).stdout.splitlines()
    text = lines[1].decode(errors="replace") if len(lines) > 1 else ""
    return clean(text)[:TITLE_CHARACTERS]
