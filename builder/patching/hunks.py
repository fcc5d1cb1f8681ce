"""The hunks of a unified diff in their file, without fuzz: each must stand there word for word, and only once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from builder.models.record import Outcome
from builder.patching.diffs import FileDiff, Hunk, Kind
from builder.patching.edits import Finding
from builder.patching.text import Source, Span, nearest_line, settled, told_lines


def make_diff(diff: FileDiff, source: Source | None) -> tuple[list[Finding], Source | None]:
    """Make the change of one file, or find that it is there already, or that the file is another one.

    Returns:
        What became of each hunk, and the file afterwards, None when it is gone.
    """
    if diff.kind != "change":
        return _whole_file(diff, source)
    if source is None:
        why = f"upstream moved: {diff.file} is not in the tree"
        return [Finding(file=diff.file, outcome="failed", reason=why)] * len(diff.hunks), None
    looked = [_look(diff, hunk, source) for hunk in diff.hunks]
    findings, spans = [finding for finding, _ in looked], [span for _, span in looked]
    if any(finding.outcome == "failed" for finding in findings):
        return findings, source
    if any(after.start < before.end for before, after in pairwise(spans)):
        why = f"upstream moved: {diff.file}: the hunks do not stand in the order of the diff"
        return [Finding(file=diff.file, outcome="failed", reason=why)] * len(diff.hunks), source
    changed = source
    for hunk, finding, span in reversed(list(zip(diff.hunks, findings, spans, strict=True))):
        if finding.outcome == "applied":
            changed = _make(hunk, span.start, changed)
    return findings, changed


def undo_diff(diff: FileDiff, source: Source | None) -> Source | None:
    """Return the file as it was before a diff that is present in it; else as it is. Nothing is written."""
    kinds: dict[Kind, Kind] = {"create": "delete", "delete": "create", "change": "change"}
    back = replace(diff, kind=kinds[diff.kind], hunks=tuple(hunk.undone() for hunk in diff.hunks))
    findings, before = make_diff(back, source)
    return before if all(finding.outcome == "applied" for finding in findings) else source


def _whole_file(diff: FileDiff, source: Source | None) -> tuple[list[Finding], Source | None]:
    """Create or delete a file."""
    hunk, creates = diff.hunks[0], diff.kind == "create"
    before, after = (None, hunk.new) if creates else (hunk.old, None)
    found = None if source is None else source.text
    if found == after:
        return [Finding(file=diff.file, outcome="present", lines=(1,))], source
    if found == before:
        made = None if after is None else Source.of(after.encode(errors="surrogateescape"))
        return [Finding(file=diff.file, outcome="applied", lines=(1,))], made
    why = f"{diff.file} is to be {'created, but it exists and differs' if creates else 'deleted, but it differs'}"
    return [Finding(file=diff.file, outcome="failed", reason=f"upstream moved: {why}")], source


def _look(diff: FileDiff, hunk: Hunk, source: Source) -> tuple[Finding, Span]:
    """Return what is to become of a hunk and where it stands, before or after."""
    todo, done = settled(_spans(hunk, hunk.old, source), _spans(hunk, hunk.new, source))
    if len(todo) + len(done) == 1:
        span = (todo or done)[0]
        outcome: Outcome = "applied" if todo else "present"
        return Finding(file=diff.file, outcome=outcome, lines=(source.line(span.start),)), span
    lines = tuple(source.line(span.start) for span in todo)
    done_too = f", and it is made already {len(done)} times" if done else ""
    near = None if todo else nearest_line(source.text, _told_by(hunk))
    why = (
        f"upstream moved: {diff.file}: the hunk that was at line {hunk.start} stands {len(todo)} times"
        f"{told_lines(lines)}{done_too}, expected 1; there is no fuzz"
    )
    return Finding(file=diff.file, outcome="failed", lines=lines, reason=why, near=near), Span(0, 0)


def _spans(hunk: Hunk, block: str, source: Source) -> list[Span]:
    """Return where a block of whole lines stands; without context on a side it must touch the file's begin or end."""
    text = source.text
    if not block:
        return [] if text else [Span(0, 0)]
    first = hunk.lines[0].kind != " " and hunk.start <= 1
    last = hunk.lines[-1].kind != " " or not block.endswith("\n")
    found, at = [], text.find(block)
    while at >= 0:
        whole = at == 0 or (text[at - 1] == "\n" and not first)
        if whole and (at + len(block) == len(text) or not last):
            found.append(Span(at, at + len(block)))
        at = text.find(block, at + 1)
    return found


def _make(hunk: Hunk, start: int, source: Source) -> Source:
    """Return the source with a hunk made at an offset; lines that it keeps are not touched, their endings neither."""
    runs: list[tuple[Span, str]] = []
    at = start
    for line in hunk.lines:
        if line.kind == " ":
            at += len(line.text)
            continue
        span, new = runs.pop() if runs and runs[-1][0].end == at else (Span(at, at), "")
        if line.kind == "-":
            at += len(line.text)
        runs.append((Span(span.start, at), new + (line.text if line.kind == "+" else "")))
    for span, new in reversed(runs):
        source = source.splice(span, new)
    return source


def _told_by(hunk: Hunk) -> str:
    """Return the line by which a hunk is best told from others: the longest that goes, else the longest."""
    gone = [line.text for line in hunk.lines if line.kind == "-"]
    return max(gone or [line.text for line in hunk.lines if line.kind == " "] or [""], key=len)
