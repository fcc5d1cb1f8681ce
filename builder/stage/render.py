"""Render a stack's Dockerfile: byte-stable, nothing undefined, nothing that a builder reads otherwise than a person."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.files import read_text, sha256
from builder.stage.pins import stand_ins

if TYPE_CHECKING:
    import jinja2

    from builder.models.lock import Lock
    from builder.models.stack import Stack

EMPTY_ENV = re.compile(r"^(ENV|ARG)\s+\w+=(\s|\\|$)", re.MULTILINE)
LOST_CONTINUATION = re.compile(r"\\[ \t]*\n[ \t]*\n")
TRAILING_SPACE = re.compile(r"[ \t]+$", re.MULTILINE)


def render(root: Path, stack: Stack, lock: Lock) -> str:
    """Return the Dockerfile of a stack and its lock, in which something may be marked unresolved.

    Raises:
        UsageError: The template uses a name that is not there, or the result has an empty ENV or a line that
            ends in a backslash before an empty one (the builder would join what a person reads as apart).
    """
    import jinja2

    environment = templates(root)
    name = template_name(stack)
    try:
        text = environment.get_template(name).render(
            stack=stack,
            lock=lock,
            lock_sha256=sha256(lock.text()),
            series_sha256=series_sha256(lock),
            stand_ins=stand_ins(stack),
        )
    except jinja2.TemplateError as trouble:
        raise UsageError(f"templates/{name}: {trouble}") from trouble
    return _checked(text, name)


def template_sha256(root: Path, stack: Stack) -> str:
    """Return the hash over the stack's template, all templates that it uses, and the programs that a build runs."""
    from jinja2 import meta

    environment = templates(root)
    seen: dict[str, str] = {}
    queue = [template_name(stack)]
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen[name] = read_text(root / "templates" / name)
        queue += [used for used in meta.find_referenced_templates(environment.parse(seen[name])) if used]
    if stack.wheels:
        seen |= {path.name: read_text(path) for path in (root / "templates").glob("*.py")}
    return sha256("".join(f"{name}\0{sha256(seen[name])}\n" for name in sorted(seen)))


def series_sha256(lock: Lock) -> str:
    """Return the hash of the series: ids and file hashes in their order."""
    return sha256("".join(f"{patch.id} {patch.sha256}\n" for patch in lock.patches))


def template_name(stack: Stack) -> str:
    """Return the file name of the stack's template."""
    return f"Dockerfile.{stack.template}.j2"


def dockerfile_path(root: Path, stack: str) -> Path:
    """Return where the rendered Dockerfile of a stack is kept for review."""
    return root / "dockerfiles" / stack / "Dockerfile"


def templates(root: Path) -> jinja2.Environment:
    """Return the templates of a checkout; a name that is not there is an error in them."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(root / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - none of these files is HTML
    )


def _checked(text: str, name: str) -> str:
    for what, pattern in (
        ("an empty line follows a backslash", LOST_CONTINUATION),
        ("an empty ENV or ARG", EMPTY_ENV),
        ("white space at a line's end", TRAILING_SPACE),
    ):
        found = pattern.search(text)
        if found:
            line = text.count("\n", 0, found.start()) + 1
            raise UsageError(f"templates/{name} renders a bad line {line}: {what}")
    return text
