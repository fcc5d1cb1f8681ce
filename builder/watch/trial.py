"""The series, tried with the real applier at an upstream commit, in a tree of only the files that it asks about."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import HostError
from builder.patching.apply import check
from builder.watch.history import File, contents, state_at, steps

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from builder.patching.apply import PatchReport
    from builder.patching.series import Series
    from builder.patching.when import Facts
    from builder.source.repository import Source
    from builder.watch.history import Step

MOST_STATES = 400
"""Changes of the series' files that are looked through for the one that broke a patch."""
DEEPEST_MERGE = 8
_LINK = "120000"


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The first commit since which a patch has failed.

    Attributes:
        sha: The commit.
        merge: The merge that brought it into the branch, when it was made beside it.
    """

    sha: str
    merge: str | None = None


def files_of(series: Series) -> tuple[str, ...]:
    """Return the paths that a series reads: what it changes, assumes, and takes for a sign; sorted."""
    found = set()
    for patch in series.patches:
        header = patch.header
        found |= {*patch.files, *(place.file for place in (*header.assume, *header.unneeded_when))}
        found |= {header.applies_to.file} if header.applies_to.file else set()
    return tuple(sorted(found))


@dataclass(kw_only=True)
class Trial:
    """The series on one source; states that were tried and blobs that were read are kept.

    Attributes:
        source: The source.
        series: The series.
        facts: What it may ask about the stack.
    """

    source: Source
    series: Series
    facts: Facts
    _blobs: dict[str, bytes] = field(default_factory=dict)
    _tried: dict[tuple[str, tuple[tuple[str, File], ...]], tuple[PatchReport, ...]] = field(default_factory=dict)

    def at(self, commit: str) -> tuple[PatchReport, ...]:
        """Return what becomes of each patch at a commit; nothing is written but a temporary tree.

        Raises:
            UpstreamError: A file of the commit is not to be had.
            HostError: There is no room for the tree.
        """
        state = state_at(self.source.git, commit, files_of(self.series))
        self._load([commit], state.values())
        return self._reports(state, commit)

    def culprits(self, base: str | None, head: str, failed: Collection[str]) -> dict[str, Culprit]:
        """Return for patches that fail at ``head`` the first commit since which they have failed.

        The states of the series' files are tried one by one from the head backwards along first parents, so that a
        break that was mended and came again is dated right; a merge is looked into. Commits that do not touch these
        files are not looked at: they cannot change the result.

        Args:
            base: The commit before the stretch that is looked through; None for all of the history.
            head: The commit at which they fail.
            failed: Their ids.

        Returns:
            The ones that were found; a patch that fails at every commit of the stretch is left out.
        """
        state = state_at(self.source.git, head, files_of(self.series))
        return self._walk(base, head, state, files_of(self.series), set(failed), deepest=DEEPEST_MERGE)

    def _walk(
        self,
        base: str | None,
        head: str,
        state: Mapping[str, File],
        paths: Collection[str],
        failed: set[str],
        *,
        deepest: int,
    ) -> dict[str, Culprit]:
        """Go back from a head whose ``paths`` are part of ``state``; what is not in ``paths`` stays as it is."""
        taken = steps(self.source.git, base, head, paths, most=MOST_STATES)
        lacking = [file for step in taken for file in step.before.values() if file is not None]
        # all of them in one transfer
        self._load([step.parents[0] for step in taken if step.parents], lacking)
        found: dict[str, Culprit] = {}
        after = dict(state)
        for step in taken:
            if found.keys() == failed or not step.parents:
                break
            before = _before(after, step)
            guilty = failed - found.keys() - self._failing(before, step.parents[0])
            found |= dict.fromkeys(guilty, Culprit(sha=step.sha))
            if guilty and len(step.parents) > 1 and deepest:
                found |= self._inside(step, before, guilty, deepest)
            after = before
        return found

    def _inside(self, merge: Step, before: dict[str, File], guilty: set[str], deepest: int) -> dict[str, Culprit]:
        """Look into a merge: at the files that it changed as its other side has them, and when they came there.

        A file that both sides changed is looked at as the other side has it, where a patch must have broken too.
        """
        found: dict[str, Culprit] = {}
        for side in merge.parents[1:]:
            there = state_at(self.source.git, side, merge.before)
            mixed = {path: file for path, file in before.items() if path not in merge.before} | there
            suspects = (guilty - found.keys()) & self._failing(mixed, side)
            if suspects:
                deeper = self._walk(merge.parents[0], side, mixed, merge.before, suspects, deepest=deepest - 1)
                found |= {name: replace(one, merge=merge.sha) for name, one in deeper.items()}
        return found

    def _failing(self, state: Mapping[str, File], commit: str) -> set[str]:
        self._load([commit], state.values())
        return {report.id for report in self._reports(state, commit) if report.outcome == "failed"}

    def _load(self, commits: list[str], files: Collection[File]) -> None:
        lacking = [file for file in files if file.mode != _LINK and file.sha not in self._blobs]
        if lacking:
            self._blobs |= contents(self.source, commits, files_of(self.series), lacking)

    def _reports(self, state: Mapping[str, File], commit: str) -> tuple[PatchReport, ...]:
        applies = [patch.header.applies_to for patch in self.series.patches]
        dated = any(meant.since or meant.until for meant in applies)
        key = (commit if dated else "", tuple(sorted(state.items())))
        if key not in self._tried:
            facts = replace(self.facts, commit=commit, is_ancestor=self.source.git.is_ancestor)
            try:
                with tempfile.TemporaryDirectory(prefix="gfx1100-watch-") as name:
                    self._write(state, Path(name))
                    self._tried[key] = check(self.series, Path(name), facts).patches
            except OSError as trouble:
                raise HostError(f"the tree of the trial could not be written: {trouble.strerror}") from trouble
        return self._tried[key]

    def _write(self, state: Mapping[str, File], root: Path) -> None:
        for path, file in state.items():
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if file.mode == _LINK:
                # a link is refused by the applier, wherever it leads: this one leads nowhere
                place.symlink_to("nowhere")
            else:
                place.write_bytes(self._blobs[file.sha])


def _before(after: Mapping[str, File], step: Step) -> dict[str, File]:
    """Return the state before a step."""
    state = {path: file for path, file in after.items() if path not in step.before}
    return state | {path: file for path, file in step.before.items() if file is not None}
