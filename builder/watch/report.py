"""What a run of the watchdog found, as data; what of it is new since the run before; and its exit code."""

from __future__ import annotations

from typing import Literal

from builder.models.base import Commit, Data
from builder.models.record import Outcome

Situation = Literal["same", "new", "rewritten", "gone", "unknown"]
ChangeKind = Literal["requirement", "version", "flag", "variable", "module", "op"]
Status = Literal["changed", "added", "gone", "renamed"]
NewsKind = Literal[
    "commits", "rewritten", "gone", "back", "broken", "mended", "present", "unneeded", "needed", "change", "caught up"
]


class UpstreamCommit(Data):
    """A commit that the head has and the pin has not.

    Attributes:
        sha: The commit.
        title: One printable line, in a stranger's words.
        author_date: When it was written, UTC with offset.
        areas: What it touches: patch targets, requirements, build files, serve flags, kernels.
    """

    sha: Commit
    title: str
    author_date: str
    areas: tuple[str, ...] = ()


class PatchTrial(Data):
    """What became of a patch at the head.

    Attributes:
        id: The patch.
        outcome: applied, present (upstream has it: it can retire), unneeded, or failed (upstream drifted away from it).
        reason: The fact behind it: file, anchor, number found, nearest line.
        file: The file of the first edit that failed.
        line: The line of that file that comes nearest to the anchor.
        nearest: That line's text.
        broken_by: The first commit since which it has failed; None when it has not, or when no commit could be named.
        title: That commit's title.
        merged_by: The merge that brought it, when it was made beside the branch.
    """

    id: str
    outcome: Outcome
    reason: str = ""
    file: str | None = None
    line: int | None = None
    nearest: str | None = None
    broken_by: Commit | None = None
    title: str | None = None
    merged_by: Commit | None = None


class Change(Data):
    """Something that the lock or a profile depends on and that differs between pin and head.

    Attributes:
        kind: A requirement, a version that the build asks for, a serve flag, an environment variable, a Python or
            extension module, or an op.
        name: Its name.
        status: What became of it.
        file: Where it stands, or stood.
        before: Its value at the pin.
        after: Its value at the head; for ``renamed`` the name that comes nearest.
        used: Whether the stack or one of its profiles needs it.
    """

    kind: ChangeKind
    name: str
    status: Status
    file: str
    before: str | None = None
    after: str | None = None
    used: bool = False

    def sentence(self) -> str:
        """Return it as one line of plain text."""
        name = f"{self.kind} {self.name}" + (", which is used here," if self.used else "")
        if self.status == "changed":
            return f"{name}: {self.before} -> {self.after} ({self.file})".replace(",:", ":")
        if self.status == "renamed":
            return f"{name} is gone from {self.file}; perhaps renamed to {self.after}"
        value = f" ({self.after or self.before})" if self.after or self.before else ""
        where = f"{'new in' if self.status == 'added' else 'gone from'} {self.file}"
        return f"{name} is {where}{value}"


class Report(Data):
    """What a run found.

    Attributes:
        stack: The stack.
        source: Where upstream was asked.
        ref: The full name of the branch.
        pinned: The commit of the lock; None when it is unresolved.
        head: The commit that the branch names now; None when it is gone.
        previous: The head that was seen before this one.
        state: Head against pin.
        ahead: How many commits the head has that the pin has not; None when that cannot be counted.
        rewritten: Whether the pin, or the head that was seen before, is no ancestor of the head.
        commits: Those commits, newest first, not more than are worth reading.
        targets: The patch targets that they touch.
        patches: The trial.
        changes: What else the lock and the profiles depend on.
        hint: What may have happened to a branch that is gone or was rewritten.
        transfer: How the mirror was filled: blob-less, or plain when the server has no filters.
    """

    stack: str
    source: str
    ref: str
    pinned: Commit | None
    head: Commit | None
    previous: Commit | None = None
    state: Situation
    ahead: int | None = None
    rewritten: bool = False
    commits: tuple[UpstreamCommit, ...] = ()
    targets: tuple[str, ...] = ()
    patches: tuple[PatchTrial, ...] = ()
    changes: tuple[Change, ...] = ()
    hint: str = ""
    transfer: str = ""

    @property
    def broken(self) -> tuple[PatchTrial, ...]:
        """The patches that fail at the head."""
        return tuple(patch for patch in self.patches if patch.outcome == "failed")

    @property
    def missed(self) -> tuple[Change, ...]:
        """What the stack or a profile needs and the head no longer has."""
        return tuple(
            change
            for change in self.changes
            if change.used and change.kind != "requirement" and change.status in {"gone", "renamed"}
        )

    @property
    def exit_code(self) -> int:
        """0 nothing new, 10 new commits and the series fits, 11 it breaks or the branch was rewritten or is gone."""
        if self.state in {"rewritten", "gone"} or self.broken:
            return 11
        return 0 if self.state == "same" else 10


class News(Data):
    """One thing that no run before has told.

    Attributes:
        kind: What kind of thing.
        about: The patch, flag, requirement or branch.
        commit: The commit that did it, or the head.
        text: One line of plain text; may hold a stranger's words.
    """

    kind: NewsKind
    about: str
    commit: Commit | None = None
    text: str


def news(old: Report | None, new: Report, *, since: int | None) -> tuple[News, ...]:
    """Return what a run tells that the run before, of which ``old`` is the report, has not told.

    Args:
        old: The report of the last run that got an answer; None before the first.
        new: This run's report.
        since: How many commits the head has that the one before has not; None when it was rewritten.
    """
    found: list[News] = []
    if new.state == "gone":
        if old is None or old.state != "gone":
            text = f"{new.ref} is gone from {new.source}{'; ' + new.hint if new.hint else ''}"
            found.append(News(kind="gone", about=new.ref, text=text))
        return tuple(found)
    if old is not None and old.state == "gone":
        found.append(News(kind="back", about=new.ref, commit=new.head, text=f"{new.ref} is there again: {new.head}"))
    moved = old is None or new.head != new.previous
    if moved and since is None and new.rewritten:
        before = new.previous or new.pinned
        text = f"{new.ref} was rewritten: {before} is no ancestor of {new.head}"
        found.append(News(kind="rewritten", about=new.ref, commit=new.head, text=text))
    elif since:
        text = f"{since} new commit{'s' * (since > 1)} on {new.ref}"
        found.append(News(kind="commits", about=str(since), commit=new.head, text=text))
    if old is not None and old.state not in {"same", "gone"} and new.state == "same":
        found.append(
            News(kind="caught up", about=new.ref, commit=new.head, text=f"the pin is at the head of {new.ref}")
        )
    return (*found, *_patch_news(old, new), *_change_news(old, new))


def _patch_news(old: Report | None, new: Report) -> list[News]:
    before = {patch.id: patch.outcome for patch in old.patches} if old else {}
    found = []
    kind: NewsKind
    for patch in new.patches:
        # a patch that nobody has seen yet is worth a word when it fails, or when upstream has it
        was = before.get(patch.id, patch.outcome if patch.outcome == "unneeded" else "applied")
        if patch.outcome == was:
            continue
        if patch.outcome == "failed":
            by = f" since {patch.broken_by} {patch.title or ''}".rstrip() if patch.broken_by else ""
            kind, said = "broken", f"fails{by}: {patch.reason}"
        elif patch.outcome == "present":
            kind, said = "present", "is in upstream now: it can retire"
        elif patch.outcome == "unneeded":
            kind, said = "unneeded", f"is not needed any more: {patch.reason}"
        elif was == "failed":
            kind, said = "mended", "applies again"
        else:
            kind, said = "needed", f"is needed again ({was} before)"
        commit = patch.broken_by if kind == "broken" else new.head
        found.append(News(kind=kind, about=patch.id, commit=commit, text=f"{patch.id} {said}"))
    return found


def _change_news(old: Report | None, new: Report) -> list[News]:
    before = {(change.kind, change.file, change.name): change for change in old.changes} if old else {}
    now = {(change.kind, change.file, change.name): change for change in new.changes}
    found = [
        News(kind="change", about=change.name, commit=new.head, text=change.sentence())
        for key, change in now.items()
        if before.get(key) != change
    ]
    if old is not None and old.pinned == new.pinned is not None:
        found += [
            News(
                kind="change",
                about=change.name,
                commit=new.head,
                text=f"{change.kind} {change.name} is as it was at the pin again ({change.file})",
            )
            for key, change in before.items()
            if key not in now
        ]
    return found
