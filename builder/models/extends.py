"""Files that take over another one's keys: a stack that ``extends`` a stack or a shared part, and its rehearsal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.errors import UsageError
from builder.files import inside, read_text
from builder.models.base import parse_yaml

if TYPE_CHECKING:
    from pathlib import Path


def merged(folder: Path, name: str) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of ``<name>.yaml`` over those of all that it extends, and the names of those, nearest first.

    Raises:
        UsageError: A file is missing or no mapping, ``extends`` is no name, or it leads in a circle.
    """
    chain: list[tuple[str, dict[str, Any]]] = []
    wanted: object = name
    while wanted is not None:
        path = folder / f"{chain[-1][0] if chain else name}.yaml"
        if not isinstance(wanted, str):
            raise UsageError(f"{path}: extends must be a name, found {wanted!r}")
        if wanted in [seen for seen, _ in chain]:
            raise UsageError(f"{path}: extends {wanted!r} leads in a circle")
        source = folder / f"{inside(wanted)}.yaml"
        if not source.is_file():
            raise UsageError(f"{path}: extends {wanted!r}, and there is no {source}")
        value = parse_yaml(read_text(source), source)
        chain.append((wanted, value))
        wanted = value.pop("extends", None)
    keys: dict[str, Any] = {}
    for _, value in reversed(chain):
        keys = merge(keys, value)
    return keys, [seen for seen, _ in chain[1:]]


def merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of both: mappings are merged, null takes a key away, anything else replaces what is below.

    The changes of a rehearsal are kept as they are: their nulls are meant for the stack that they change.
    """
    result = dict(below)
    for key, value in above.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and key != "rehearsal":
            lower = result.get(key)
            result[key] = merge(lower if isinstance(lower, dict) else {}, value)
        else:
            result[key] = value
    return result
