"""Edits of a JSON text that leave every other character as it is: the places of an object's members, and changes.

``json.dumps`` of the whole would change number formats, escapes, order of equal keys and indentation.
"""

from __future__ import annotations

import json
from typing import NamedTuple

DECODER = json.JSONDecoder()
SPACE = " \t\n\r"


class Member(NamedTuple):
    """One member of an object, or one element of a list, as offsets into the text.

    Attributes:
        key: The member's name; empty for an element.
        begin: Where its key, or an element itself, begins.
        value: Where its value begins.
        end: Just after its value.
    """

    key: str
    begin: int
    value: int
    end: int


def members(text: str, begin: int) -> list[Member]:
    """Return the members of the object, or the elements of the list, that begins at an offset.

    The text must be sound JSON, which the caller has made sure of.
    """
    is_object = text[begin] == "{"
    found = []
    at = _skip(text, begin + 1)
    while text[at] not in "}]":
        start, key = at, ""
        if is_object:
            key, at = DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        value = at
        _, at = DECODER.raw_decode(text, at)
        found.append(Member(key, start, value, at))
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return found


def find(text: str, keys: tuple[str, ...]) -> Member:
    """Return the member that a path of keys leads to; the empty path is the whole value."""
    begin = _skip(text, 0)
    found = Member("", begin, begin, DECODER.raw_decode(text, begin)[1])
    for key in keys:
        found = next(member for member in members(text, found.value) if member.key == key)
    return found


def changed(text: str, whole: Member, *, drop: set[int], first: tuple[str, str]) -> str:
    """Return the text with members of one object (or elements of one list) dropped and one set before the others.

    Args:
        text: The whole text.
        whole: The object or list.
        drop: Which members go, by number.
        first: JSON texts of the new member's key and value; an element has no key.
    """
    inside = members(text, whole.value)
    colon, before, comma = ": ", "", ", "
    if inside:
        before = text[whole.value + 1 : inside[0].begin]
        if text[whole.value] == "{":
            colon = text[DECODER.raw_decode(text, inside[0].begin)[1] : inside[0].value]
        comma = "," + (before or colon[1:])
        if len(inside) > 1:
            comma = text[inside[0].end : inside[1].begin]
    key, value = first
    pieces = [text[: whole.value + 1], before, f"{key}{colon if key else ''}{value}"]
    for number, member in enumerate(inside):
        if number not in drop:
            gap = text[inside[number - 1].end : member.begin] if number else comma
            pieces += [gap, text[member.begin : member.end]]
    last = inside[-1].end if inside else whole.end - 1
    return "".join([*pieces, text[last:]])


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at
