"""Variables in a compose file, with the values that the file ``.env`` beside it gives them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from builder.files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# https://docs.docker.com/reference/compose-file/interpolation/
VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<bare>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?P<rest>[:?+-][^{}]*)?\})")
LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*")


def interpolated(value: Any, path: Path) -> Any:  # noqa: ANN401 - any YAML value
    """Return what a compose file holds with its variables replaced.

    A variable that nothing gives a value stays as ``${NAME}``: it is not known here. The shell's own variables are left
    out, so that a file is judged alike everywhere.

    Args:
        value: The file's value.
        path: The file.
    """
    beside = path.parent / ".env"
    return _replaced(value, _read(read_text(beside)) if beside.is_file() else {})


def _read(text: str) -> dict[str, str]:
    found = (LINE.fullmatch(line) for line in text.splitlines())
    return {one[1]: _plain(one[2]) for one in found if one}


def _plain(text: str) -> str:
    quoted = re.match(r"(['\"])(.*?)\1", text)
    return quoted[2] if quoted else re.sub(r"(?:^|\s+)#.*", "", text)


def _replaced(value: Any, given: Mapping[str, str]) -> Any:  # noqa: ANN401 - any YAML value
    if isinstance(value, dict):
        return {key: _replaced(item, given) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, given) for item in value]
    return VARIABLE.sub(lambda found: _value(found, given), value) if isinstance(value, str) else value


def _value(found: re.Match[str], given: Mapping[str, str]) -> str:
    if found["dollar"]:
        return "$"
    name, rest = found["bare"] or found["name"], found["rest"] or ""
    operator, otherwise = rest.removeprefix(":")[:1], rest.removeprefix(":")[1:]
    there = name in given and bool(given[name] or not rest.startswith(":"))
    if operator == "+":
        return otherwise if there else ""
    if there:
        return given[name]
    return otherwise if operator == "-" else f"${{{name}}}"
