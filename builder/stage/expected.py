"""Which of a stack's expectations hold for a tree: found out while it is there, and kept in the image's manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.files import inside, read_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from builder.models.stack import Ops, Stack
    from builder.patching.when import Facts


def expected_ops(stack: Stack, tree: Path, facts: Facts) -> dict[str, bool | None]:
    """Return, by the name of each group of ops, whether it holds for a tree; None where its history is not known.

    Args:
        stack: The stack.
        tree: The exported source.
        facts: Commit and history of it.
    """
    return {group.name: _holds(group, tree, facts) for group in stack.expect.ops}


def _holds(group: Ops, tree: Path, facts: Facts) -> bool | None:
    if group.file is not None and not _has(tree / inside(group.file), group.text):
        return False
    known: list[bool | None] = []
    for commit, inclusive in ((group.since, True), (group.until, False)):
        if commit is not None:
            found = facts.is_ancestor(commit, facts.commit) if facts.is_ancestor and facts.commit else None
            known.append(None if found is None else found is inclusive)
    if False in known:
        return False
    return None if None in known else True


def _has(path: Path, text: str | None) -> bool:
    return path.is_file() and (text is None or text.encode() in read_bytes(path, limit=64 << 20))
