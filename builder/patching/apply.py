"""A series on a tree: what each patch would do, and all of it done or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import HostError, PatchError
from builder.files import sha256, sha256_file
from builder.models.record import Outcome, PatchedFile
from builder.patching.edits import Finding, make_edit, undo_edit
from builder.patching.hunks import make_diff, undo_diff
from builder.patching.swap import NewFile, swap_in
from builder.patching.tree import Refused, View, sha_of
from builder.patching.when import Facts, outside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.patching.series import Patch, Series
    from builder.patching.text import Source


@dataclass(frozen=True, kw_only=True)
class PatchReport:
    """What became of a patch.

    Attributes:
        id: The patch.
        outcome: What became of it.
        reason: The fact behind ``unneeded``, or all that is wrong.
        files: The files that it touches; before and after are equal for a patch that is present.
        edits: What became of each edit or hunk.
    """

    id: str
    outcome: Outcome
    reason: str = ""
    files: tuple[PatchedFile, ...] = ()
    edits: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """What became of a series.

    Attributes:
        tree: The tree.
        patches: What became of each patch, in order.
    """

    tree: Path
    patches: tuple[PatchReport, ...]

    @property
    def failed(self) -> tuple[PatchReport, ...]:
        """The patches that failed."""
        return tuple(patch for patch in self.patches if patch.outcome == "failed")

    def require_success(self) -> None:
        """Raise PatchError, with every reason, when a patch failed."""
        if self.failed:
            raise PatchError(
                "\n".join(f"{patch.id}: {patch.reason}" for patch in self.failed),
                hint=f"nothing was changed in {self.tree}; adapt the patch, or pin a commit that it fits",
            )

    def as_json(self) -> dict[str, Any]:
        """Return what ``patches --json`` prints."""
        return {"patches": [_as_json(patch) for patch in self.patches]}


def check(series: Series, tree: Path, facts: Facts) -> Report:
    """Say what each patch would do to a tree; nothing is written.

    Raises:
        UsageError: There is no such tree, or a parameter does not fit.
        HostError: A file of the tree cannot be read.
    """
    return _run(series, tree, facts)[0]


def apply(series: Series, tree: Path, facts: Facts) -> Report:
    """Apply a series to a tree: the whole of it, or nothing when a patch fails, in one step (:mod:`.swap`).

    Returns:
        What became of it; the tree is as it was when a patch failed.

    Raises:
        UsageError: There is no such tree, or a parameter does not fit.
        HostError: A file of the tree cannot be read, or the tree cannot be changed in one step.
    """
    report, files = _run(series, tree, facts)
    if report.failed or not files:
        return report
    swap_in(tree, files)
    for name, file in files.items():
        path = tree / name
        if (sha256_file(path) if path.is_file() else None) != (None if file.content is None else sha256(file.content)):
            raise HostError(f"{path} does not hold what was written to it", hint="something else changes this tree")
    return report


def _run(series: Series, tree: Path, facts: Facts) -> tuple[Report, dict[str, NewFile]]:
    values = series.parameters(facts.parameters)
    view = View(tree)
    report = Report(tree=tree, patches=tuple(_walk(series, view, facts, values)))
    if not report.failed:
        again = _walk(series, view.copy(), facts, values)
        report = replace(report, patches=tuple(map(_kept, report.patches, again)))
    return report, view.changes()


def _kept(one: PatchReport, again: PatchReport) -> PatchReport:
    """Return the report of a patch, failed when the same series would not leave the patched tree alone."""
    if again.outcome in {"present", "unneeded"}:
        return one
    why = again.reason or "it would be applied once more"
    return replace(one, outcome="failed", reason=f"a second run would not find the patch present: {why}")


def _walk(series: Series, view: View, facts: Facts, values: Mapping[str, int]) -> list[PatchReport]:
    """Run the patches in order; each sees what those before it have made."""
    reports: list[PatchReport] = []
    for number, patch in enumerate(series.patches):
        failed = [report.id for report in reports if report.outcome == "failed"]
        reports.append(_one(patch, view, facts, values, later=series.patches[number + 1 :], failed=failed))
    return reports


def _one(
    patch: Patch,
    view: View,
    facts: Facts,
    values: Mapping[str, int],
    *,
    later: tuple[Patch, ...],
    failed: Sequence[str],
) -> PatchReport:
    try:
        outcome, reason = outside(patch.header, view, facts)
        if outcome is None and (broken := [name for name in patch.header.needs if name in failed]):
            outcome, reason = "failed", f"it needs {', '.join(broken)}, which failed"
        if outcome is not None:
            return PatchReport(id=patch.id, outcome=outcome, reason=reason)
        findings, sources = _make(patch, view, values)
        if _any(findings, "failed"):
            below = _make(patch, _without(later, view, values), values)[0]
            if any(finding.outcome != "present" for finding in below):
                why = "; ".join(_told(finding) for finding in findings if finding.outcome == "failed")
                return PatchReport(id=patch.id, outcome="failed", reason=why, edits=tuple(findings))
            findings, sources = below, {}
        outcome = "applied" if _any(findings, "applied") else "present"
        before = {name: sha_of(view.source(name)) for name in patch.files}
        for name, source in sources.items():
            view.put(name, source, executable=any(d.file == name and d.executable for d in patch.diffs))
        files = tuple(
            PatchedFile(path=name, before=hashed, after=sha_of(view.source(name))) for name, hashed in before.items()
        )
    except Refused as trouble:
        return PatchReport(id=patch.id, outcome="failed", reason=str(trouble))
    return PatchReport(id=patch.id, outcome=outcome, files=files, edits=tuple(findings))


def _make(patch: Patch, view: View, values: Mapping[str, int]) -> tuple[list[Finding], dict[str, Source | None]]:
    """Return what becomes of each edit or hunk, and the files that are changed by it."""
    findings: list[Finding] = []
    sources = {name: view.source(name) for name in patch.files}
    before = dict(sources)
    for edit in patch.edits:
        source = sources[edit.file]
        if source is None:
            why = f"upstream moved: {edit.file} is not in the tree"
            findings.append(Finding(file=edit.file, outcome="failed", expected=edit.count, reason=why))
            continue
        finding, sources[edit.file] = make_edit(edit, source, values)
        findings.append(finding)
    for diff in patch.diffs:
        more, sources[diff.file] = make_diff(diff, sources[diff.file])
        findings += more
    return findings, {name: source for name, source in sources.items() if source != before[name]}


def _without(later: tuple[Patch, ...], view: View, values: Mapping[str, int]) -> View:
    """Return the tree as it was before the later patches that are present in it.

    Only looked at, never written: it tells whether a patch is present below another one that changed its lines again.
    """
    view = view.copy()
    for patch in reversed(later):
        findings, _ = _make(patch, view, values)
        if any(finding.outcome != "present" for finding in findings):
            continue
        for edit in reversed(patch.edits):
            if (source := view.source(edit.file)) is not None:
                view.put(edit.file, undo_edit(edit, source, values))
        for diff in patch.diffs:
            view.put(diff.file, undo_diff(diff, view.source(diff.file)))
    return view


def _any(findings: list[Finding], outcome: Outcome) -> bool:
    return any(finding.outcome == outcome for finding in findings)


def _told(finding: Finding) -> str:
    near = f"; the nearest is line {finding.near.line}: `{finding.near.text}`" if finding.near else ""
    return finding.reason + near


def _as_json(patch: PatchReport) -> dict[str, Any]:
    return {
        "id": patch.id,
        "outcome": patch.outcome,
        "reason": patch.reason,
        "files": [file.model_dump() for file in patch.files],
        "edits": [
            {
                "file": finding.file,
                "outcome": finding.outcome,
                "found": finding.found,
                "expected": finding.expected,
                "line": finding.lines[0] if finding.lines else None,
                "lines": list(finding.lines),
                "nearest": {"line": finding.near.line, "text": finding.near.text} if finding.near else None,
            }
            for finding in patch.edits
        ],
    }
