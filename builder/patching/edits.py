"""Edit patches: an anchor that must stand exactly so often, and what takes its place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.patching.header import render
from builder.patching.scope import scopes
from builder.patching.text import Near, Source, Span, nearest_line, places, settled, stands_whole, told_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.models.record import Outcome
    from builder.patching.header import Edit


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What became of one edit, or of one hunk of a diff.

    Attributes:
        file: The file.
        outcome: What became of it.
        expected: How often it must be found.
        lines: Where it was found: the places to change, or for ``present`` the places that are changed already.
        reason: Why it failed, in words.
        near: Where the file comes nearest, when it failed.
    """

    file: str
    outcome: Outcome
    expected: int = 1
    lines: tuple[int, ...] = ()
    reason: str = ""
    near: Near | None = None

    @property
    def found(self) -> int:
        """How often it was found."""
        return len(self.lines)


def make_edit(edit: Edit, source: Source, parameters: Mapping[str, int]) -> tuple[Finding, Source]:
    """Make an edit, or find that it is there already, or that the file is not the one that it was written for.

    The anchors that are found and the places that are changed already must add up to the edit's count. The result must
    be recognised as changed, or the edit counts as failed.

    Returns:
        What became of it, and the source, changed when it was applied.
    """

    def found(outcome: Outcome, at: list[Span], why: str = "", near: Near | None = None) -> Finding:
        lines = tuple(source.line(span.start) for span in at)
        return Finding(file=edit.file, outcome=outcome, expected=edit.count, lines=lines, reason=why, near=near)

    outcome, todo, done, why = _look(edit, source, parameters)
    if outcome == "failed":
        return found("failed", todo, why, None if todo else nearest_line(source.text, _plain(edit))), source
    if outcome == "present":
        return found("present", done), source
    changed = source
    for span in reversed(todo):
        changed = changed.splice(span, _replacement(edit, source, span, parameters))
    if _look(edit, changed, parameters)[0] == "present":
        return found("applied", todo), changed
    # the anchor may be a part of something longer, which the default sign cannot be
    parts = [span for span in todo if edit.present is None and not stands_whole(source.text, span, edit.file)]
    if parts:
        return found("failed", parts, _longer(edit, source, parts)), source
    sign = f"`{_first(edit.present or edit.replacement)}`"
    why = f"{edit.file}: the edit would not be recognised afterwards by its sign {sign}"
    return found("failed", [], why), source


def undo_edit(edit: Edit, source: Source, parameters: Mapping[str, int]) -> Source:
    """Return the source as it was before a plain edit that is present in it; other edits stay. Nothing is written."""
    outcome, _, done, _ = _look(edit, source, parameters)
    if outcome == "present" and not edit.regex and edit.present is None:
        for span in reversed(done):
            source = source.splice(span, edit.anchor)
    return source


def count_places(
    source: Source, wanted: str, *, regex: bool, scope: str | None, file: str
) -> tuple[tuple[int, ...], str]:
    """Return the lines on which something stands, and what is wrong with the scope, or an empty text."""
    within, fault = _within(source, scope, file)
    if within is None:
        return (), fault
    return tuple(source.line(span.start) for span in places(source.text, wanted, within, regex=regex)), ""


def _look(edit: Edit, source: Source, parameters: Mapping[str, int]) -> tuple[Outcome, list[Span], list[Span], str]:
    """Return the outcome to be, the places to change, those that are changed, and why it failed."""
    within, fault = _within(source, edit.scope, edit.file)
    if within is None:
        return "failed", [], [], fault
    todo = places(source.text, edit.anchor, within, regex=edit.regex)
    sign = render(edit.replacement if edit.present is None else edit.present, parameters)
    done = places(source.text, sign, within, regex=edit.regex)
    if edit.present is None:
        done = [span for span in done if stands_whole(source.text, span, edit.file)]
    todo, done = settled(todo, done)
    overlap = any(after.start < before.end for before, after in pairwise(todo))
    if len(todo) + len(done) == edit.count and not overlap:
        return ("applied" if todo else "present"), todo, done, ""
    where = f" in {edit.scope}" if edit.scope else ""
    already = ", some over one another" if overlap else ""
    already += f", and {len(done)} places{_lines(source, done)} are changed already" if done else ""
    stands = f"the anchor `{_first(edit.anchor)}` stands {len(todo)} times{where}{_lines(source, todo)}{already}"
    return "failed", todo, done, f"upstream moved: {edit.file}: {stands}, expected {edit.count}"


def _longer(edit: Edit, source: Source, parts: list[Span]) -> str:
    line = source.text.split("\n")[source.line(parts[0].end - 1) - 1]
    return (
        f"upstream moved: {edit.file}: the anchor `{_first(edit.anchor)}`{_lines(source, parts)} is only a part of"
        f" `{_first(line)}`; take the whole statement as the anchor, or say by `present` how the edit is known"
    )


def _within(source: Source, scope: str | None, file: str) -> tuple[Span | None, str]:
    if scope is None:
        return Span(0, len(source.text)), ""
    found = scopes(source.text, scope, file)
    if len(found) == 1:
        return found[0], ""
    return None, f"upstream moved: {file}: {scope} is defined {len(found)} times{_lines(source, found)}, expected 1"


def _replacement(edit: Edit, source: Source, span: Span, parameters: Mapping[str, int]) -> str:
    new = render(edit.replacement, parameters)
    if not edit.regex:
        return new
    match = re.compile(edit.anchor, re.MULTILINE).match(source.text, span.start)
    try:
        return match.expand(new) if match else new
    except (re.error, IndexError) as trouble:
        raise UsageError(
            f"the replacement `{_first(new)}` of {edit.file} does not fit its anchor: {trouble}"
        ) from trouble


def _lines(source: Source, spans: list[Span]) -> str:
    return told_lines([source.line(span.start) for span in spans])


def _first(text: str) -> str:
    """Return the first line with something in it, short enough for a message."""
    line = next((part.strip() for part in text.split("\n") if part.strip()), text)
    return line if len(line) <= 100 else line[:97] + "..."  # noqa: PLR2004 - the line before says it


def _plain(edit: Edit) -> str:
    """Return an anchor as plain text: of a regular expression, the words in it."""
    return " ".join(re.findall(r"[A-Za-z_]\w+", re.sub(r"\\[a-zA-Z]", " ", edit.anchor))) if edit.regex else edit.anchor
