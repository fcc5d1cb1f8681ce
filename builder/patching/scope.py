"""Where a function or a kernel begins and ends in a source text, by its brackets and its indentation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.patching.text import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTHON_SUFFIXES = (".py", ".pyi")
PYTHON_TOKEN = re.compile(
    r"#[^\n]*"
    r'|(?s:"""(?:\\.|[^\\])*?""")'
    r"|(?s:'''(?:\\.|[^\\])*?''')"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'"
    r"|\\\n|[()\[\]{}]|\n"
)
C_TOKEN = re.compile(
    r"//(?:\\\n|[^\n])*"
    r"|(?s:/\*.*?\*/)"
    r'|(?s:R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)")'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<!\w)'(?:\\.|[^'\\\n])+'"
    r"|[(){};]"
)


def scopes(text: str, name: str, file: str) -> list[Span]:
    """Return the stretches of a text in which functions of a name are defined, from the definition's line to its last.

    A Python file (by its suffix) is read by indentation: ``def`` or ``class``, and a dotted name goes from the class to
    its method. Any other file is read as the C family: a name, its parameters in parentheses, and a body in braces;
    calls and declarations do not count.
    """
    if not file.endswith(PYTHON_SUFFIXES):
        return list(_c_functions(text, name))
    found = [Span(0, len(text))]
    for part in name.split("."):
        found = [inner for outer in found for inner in _python_blocks(text, part, outer)]
    return found


def _python_blocks(text: str, name: str, within: Span) -> Iterator[Span]:
    head = re.compile(rf"^([ \t]*)(?:async[ \t]+def|def|class)[ \t]+{re.escape(name)}\b", re.MULTILINE)
    heads = list(head.finditer(text, within.start, within.end))
    texts = [Span(*token.span()) for token in PYTHON_TOKEN.finditer(text) if "\n" in token[0][1:]] if heads else []
    for match in heads:
        if any(span.holds(Span(*match.span())) for span in texts):
            continue
        yield Span(match.start(), _python_end(text, match.end(), len(match[1].expandtabs()), within.end))


def _python_end(text: str, at: int, indent: int, limit: int) -> int:
    """Return where the block ends whose head is read up to ``at``: after its last line of code."""
    depth, end, code = 0, limit, True
    for token in PYTHON_TOKEN.finditer(text, at, limit):
        if token[0] in "([{":
            depth += 1
        elif token[0] in ")]}":
            depth = max(depth - 1, 0)
        elif token[0] == "\n" and depth == 0:
            if code:
                end = token.end()
            line = text[token.end() : _line_end(text, token.end())].expandtabs()
            code = bool(line.strip()) and not line.lstrip().startswith("#")
            if code and len(line) - len(line.lstrip()) <= indent:
                return end
    return limit if code else end


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return end if end >= 0 else len(text)


def _c_functions(text: str, name: str) -> Iterator[Span]:
    head = re.compile(rf"\b{re.escape(name)}\s*\(")
    tokens = list(C_TOKEN.finditer(text))
    skipped = [Span(*token.span()) for token in tokens if len(token[0]) > 1]
    marks = [(token.start(), token[0]) for token in tokens if len(token[0]) == 1]
    for match in head.finditer(text):
        inside = Span(match.start(), match.end())
        if any(span.holds(inside) for span in skipped):
            continue
        end = _c_end(marks, match.end() - 1)
        if end is not None:
            yield Span(text.rfind("\n", 0, match.start()) + 1, _line_end(text, end))


def _c_end(marks: list[tuple[int, str]], at: int) -> int | None:
    """Return where the function ends whose parameters open at ``at``, or None when no body follows them."""
    after = [mark for mark in marks if mark[0] >= at]
    depth, body = 0, False
    for place, mark in after:
        if mark == ";" and depth == 0:
            return None
        if mark in "({":
            if depth == 0 and mark == "(" and place != at:
                return None
            body = body or (depth == 0 and mark == "{")
            depth += 1
        elif mark in ")}":
            depth -= 1
            if depth < 0:
                return None
            if depth == 0 and body:
                return place + 1
    return None
