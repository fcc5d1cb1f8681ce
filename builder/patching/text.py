"""A file's text as a patch sees it: any bytes, line endings set aside and put back, places found and nearly found."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LONGEST_LINE = 400
"""Characters of a line that the search for the nearest one looks at."""
MOST_LINES = 200_000
"""Lines of a file that the search for the nearest one looks at."""
CANDIDATES = 40
"""Lines that share the most words with the anchor and are compared letter by letter."""
SLASHED = frozenset(
    {".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".go", ".h", ".hip", ".hpp", ".inc", ".js", ".rs", ".ts"}
)
"""Suffixes of the files whose comments begin with ``//`` or ``/*``; in all others it is ``#``, as in Python, where
``//`` divides."""
GOES_ON = re.compile(r"""[\w)\]}"'`]""")
"""Last characters of a text that more can follow: a value could end there, or be the beginning of a longer one."""
ENDS = r"[ \t]*(?:[;)\]}\0\udc80-\udcff].*|COMMENT)?"
"""What may stand on the line behind such a text: nothing, a comment, what closes the statement or its brackets, or a
byte of no text (NUL, or not UTF-8)."""
HASH_COMMENT, SLASH_COMMENT = r"#.*", r"(?://.*|/\*(?:(?!\*/).)*(?:\*/[ \t]*)?)"
MEMBER = re.compile(r"(?:\.|->|::)[ \t]*$")


class Span(NamedTuple):
    """A stretch of a text, from ``start`` up to ``end``."""

    start: int
    end: int

    def holds(self, other: Span) -> bool:
        """Say whether the other span lies within this one."""
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class Near:
    """The line of a file that comes nearest to what was looked for."""

    line: int
    text: str


@dataclass(frozen=True)
class Source:
    r"""A text with ``\n`` alone, and for each of its lines whether the file has ``\r\n`` there.

    Bytes that are no UTF-8 come back as they were (surrogateescape, PEP 383).
    """

    text: str
    returns: tuple[str, ...]

    @classmethod
    def of(cls, data: bytes) -> Source:
        """Return the source of a file's bytes."""
        text = data.decode(errors="surrogateescape")
        if "\r\n" not in text:
            return cls(text=text, returns=("",) * text.count("\n"))
        *lines, rest = text.split("\n")
        returns = tuple("\r" if line.endswith("\r") else "" for line in lines)
        return cls(text="\n".join([line.removesuffix("\r") for line in lines] + [rest]), returns=returns)

    def data(self) -> bytes:
        """Return the file's bytes."""
        if not any(self.returns):
            return self.text.encode(errors="surrogateescape")
        *lines, rest = self.text.split("\n")
        whole = "".join(f"{line}{end}\n" for line, end in zip(lines, self.returns, strict=True)) + rest
        return whole.encode(errors="surrogateescape")

    def line(self, offset: int) -> int:
        """Return the line, from 1, in which an offset lies."""
        return self.text.count("\n", 0, offset) + 1

    def splice(self, span: Span, new: str) -> Source:
        """Return the source with a span replaced; new lines end as those that they replace, or else those beside."""
        first = self.text.count("\n", 0, span.start)
        old = self.returns[first : first + self.text.count("\n", span.start, span.end)]
        near = old or self.returns[first : first + 1] or self.returns[-1:] or ("",)
        added = tuple(near[min(number, len(near) - 1)] for number in range(new.count("\n")))
        return Source(
            text=self.text[: span.start] + new + self.text[span.end :],
            returns=self.returns[:first] + added + self.returns[first + len(old) :],
        )


def places(text: str, wanted: str, within: Span, *, regex: bool) -> list[Span]:
    """Return where something stands, overlaps included; plain text never begins or ends inside a word."""
    if regex:
        found = re.compile(wanted, re.MULTILINE).finditer(text, within.start, within.end)
        return [Span(*match.span()) for match in found if match.end() > match.start()]
    return list(_literals(text, wanted, within))


def settled(todo: list[Span], done: list[Span]) -> tuple[list[Span], list[Span]]:
    """Return places of old and of new text without those that are a mere part of the other.

    New text that is only a part of an old place is old text still; old text that is a part of a new place is new text.
    """
    new = [span for span in done if not any(place.holds(span) and place != span for place in todo)]
    return [span for span in todo if not any(place.holds(span) for place in new)], new


def _literals(text: str, wanted: str, within: Span) -> Iterator[Span]:
    at = text.find(wanted, within.start, within.end)
    while at >= 0:
        end = at + len(wanted)
        if not (_in_word(text[at - 1 : at], wanted[0]) or _in_word(wanted[-1], text[end : end + 1])):
            yield Span(at, end)
        at = text.find(wanted, at + 1, within.end)


def _in_word(left: str, right: str) -> bool:
    return bool(left and right and re.match(r"\w\w", left + right, re.ASCII))


def stands_whole(text: str, span: Span, file: str) -> bool:
    """Say whether what stands at a place is the whole of what it says: nothing around it makes another one of it.

    Behind a text that ends as a value does (a word, a closing bracket, a quote), the line must end or go on with a
    comment, ``;`` or a closing bracket. After any other last character, as the comma of an argument, all may follow.
    Before a word there must be no ``.``, ``->`` or ``::``; and the line before the text must not be a comment already.
    The suffix of the file's path tells what a comment is.
    """
    slashed = PurePosixPath(file).suffix in SLASHED
    before = text[text.rfind("\n", 0, span.start) + 1 : span.start]
    if before.lstrip().startswith(("//", "/*") if slashed else "#"):
        return False
    if re.match(r"\w", text[span.start]) and MEMBER.search(before):
        return False
    said = text[span.start : span.end].rstrip(" \t")
    if not GOES_ON.match(said[-1:]):
        return True
    behind = text[span.start + len(said) :].partition("\n")[0]
    ends = ENDS.replace("COMMENT", SLASH_COMMENT if slashed else HASH_COMMENT)
    return re.fullmatch(ends, behind) is not None


def nearest_line(text: str, wanted: str) -> Near | None:
    """Return the line that comes nearest to the longest line of what was looked for, or None when none shares a word.

    The time is bounded: lines are ranked by the words they share, and only the best are compared letter by letter.
    """
    line = max(wanted.split("\n"), key=lambda part: len(part.strip())).strip()[:LONGEST_LINE]
    words = set(re.findall(r"\w{2,}", line))
    lines = text.split("\n", MOST_LINES)[:MOST_LINES]
    shared = [(sum(word in other[:LONGEST_LINE] for word in words), -number) for number, other in enumerate(lines)]
    best = [-number for count, number in sorted(shared, reverse=True)[:CANDIDATES] if count]
    if not best:
        return None
    compared = difflib.SequenceMatcher(b=line, autojunk=False)

    def likeness(number: int) -> float:
        compared.set_seq1(lines[number].strip()[:LONGEST_LINE])
        return compared.ratio()

    number = max(best, key=likeness)
    return Near(line=number + 1, text=lines[number].strip()[:200])


def told_lines(lines: Sequence[int]) -> str:
    """Return `` (line 3)`` or `` (lines 3, 9)``, at most ten of them, or nothing."""
    more = ", …" if len(lines) > 10 else ""  # noqa: PLR2004 - the docstring's ten
    return f" (line{'s' * (len(lines) > 1)} {', '.join(map(str, lines[:10]))}{more})" if lines else ""
