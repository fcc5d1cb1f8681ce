"""The hunks of a unified diff in their file, without fuzz: each must stand there word for word, and only once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Literal

from builder.patching.diffs import FileDiff, Hunk, Kind
from builder.patching.edits import Finding
from builder.patching.text import Near, Source, Span, nearest_line, settled


def make_diff(diff: FileDiff, source: Source | None) -> tuple[list[Finding], Source | None]:
    """Make the change of one file, or find that it is there already, or that the file is another one.

    Args:
        diff: What to do.
        source: The file, or None when there is none.

    Returns:
        What became of each hunk, and the file afterwards, None when it is gone.
    """
    if diff.kind == "create":
        return _create(diff, source)
    if diff.kind == "delete":
        return _delete(diff, source)
    if source is None:
        return [_failed(diff, f"upstream moved: {diff.file} is not in the tree")] * len(diff.hunks), None
    looked = [_look(diff, hunk, source) for hunk in diff.hunks]
    findings, spans = [finding for finding, _ in looked], [span for _, span in looked]
    if any(finding.outcome == "failed" for finding in findings):
        return findings, source
    if any(after.start < before.end for before, after in pairwise(spans)):
        why = f"upstream moved: {diff.file}: the hunks do not stand in the order of the diff"
        return [_failed(diff, why)] * len(diff.hunks), source
    changed = source
    for hunk, finding, span in reversed(list(zip(diff.hunks, findings, spans, strict=True))):
        if finding.outcome == "applied":
            changed = _make(hunk, span.start, changed)
    return findings, changed


def undo_diff(diff: FileDiff, source: Source | None) -> Source | None:
    """Return the file as it was before a diff that is present in it; else as it is. Nothing is written."""
    kinds: dict[Kind, Kind] = {
        "create": "delete",
        "delete": "create",
        "change": "change",
    }
    back = replace(diff, kind=kinds[diff.kind], hunks=tuple(hunk.undone() for hunk in diff.hunks))
    findings, before = make_diff(back, source)
    return before if all(finding.outcome == "applied" for finding in findings) else source


def _create(diff: FileDiff, source: Source | None) -> tuple[list[Finding], Source | None]:
    hunk = diff.hunks[0]
    if source is None:
        return [_finding(diff, "applied", 1)], Source.of(hunk.new.encode(errors="surrogateescape"))
    if source.text == hunk.new:
        return [_finding(diff, "present", 1)], source
    return [_failed(diff, f"upstream moved: {diff.file} is to be created, but it exists and differs")], source


def _delete(diff: FileDiff, source: Source | None) -> tuple[list[Finding], Source | None]:
    hunk = diff.hunks[0]
    if source is None:
        return [_finding(diff, "present", 1)], None
    if source.text == hunk.old:
        return [_finding(diff, "applied", 1)], None
    return [_failed(diff, f"upstream moved: {diff.file} is to be deleted, but it differs")], source


def _look(diff: FileDiff, hunk: Hunk, source: Source) -> tuple[Finding, Span]:
    """Return what is to become of a hunk and where it stands, before or after."""
    todo, done = settled(_spans(hunk, hunk.old, source), _spans(hunk, hunk.new, source))
    if len(todo) + len(done) == 1:
        span = (todo or done)[0]
        return _finding(diff, "applied" if todo else "present", source.line(span.start)), span
    lines = tuple(source.line(span.start) for span in todo)
    where = f" (lines {', '.join(map(str, lines[:10]))})" if lines else ""
    done_too = f", and it is made already {len(done)} times" if done else ""
    near = None if todo else nearest_line(source.text, _told_by(hunk))
    why = (
        f"upstream moved: {diff.file}: the hunk that was at line {hunk.start} stands {len(todo)} times{where}"
        f"{done_too}, expected 1; there is no fuzz"
    )
    return _failed(diff, why, lines=lines, near=near), Span(0, 0)


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


def _finding(diff: FileDiff, outcome: Literal["applied", "present"], line: int) -> Finding:
    return Finding(file=diff.file, outcome=outcome, expected=1, lines=(line,))


def _failed(diff: FileDiff, why: str, *, lines: tuple[int, ...] = (), near: Near | None = None) -> Finding:
    return Finding(file=diff.file, outcome="failed", expected=1, lines=lines, reason=why, near=near)
