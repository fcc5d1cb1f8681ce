"""Tells whether a text that was found stands for itself, or is only a part of a longer statement."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.patching.text import Span

SLASHED = frozenset(
    {".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".go", ".h", ".hip", ".hpp", ".inc", ".js", ".rs", ".ts"}
)
"""Suffixes of the files whose comments begin with ``//`` or ``/*``; in all others it is ``#``, as in Python, where
``//`` divides."""
GOES_ON = re.compile(r"""[\w)\]}"'`]""")
"""Last characters of a text that more can follow: a value could end there, or be the beginning of a longer one."""
ENDS = r"[ \t]*(?:[;)\]}\0\udc80-\udcff].*|COMMENT)?"
"""What may stand on the line behind such a text: nothing, a comment, what closes the statement or its brackets, or a
byte of no text (NUL, or not UTF-8, see :class:`builder.patching.text.Source`)."""
HASH_COMMENT, SLASH_COMMENT = r"#.*", r"(?://.*|/\*(?:(?!\*/).)*(?:\*/[ \t]*)?)"
MEMBER = re.compile(r"(?:\.|->|::)[ \t]*$")


def stands_whole(text: str, span: Span, file: str) -> bool:
    """Say whether what stands at a place is the whole of what it says: nothing around it makes another one of it.

    Behind a text that ends as a value does (a word, a closing bracket, a quote), the line must end or go on with a
    comment, ``;`` or a closing bracket. After any other last character, as the comma of an argument, all may follow.
    Before a word there must be no ``.``, ``->`` or ``::``; and the line before the text must not be a comment already.

    Args:
        text: The text of the file.
        span: The place.
        file: The file's path, whose suffix tells what a comment is.
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
