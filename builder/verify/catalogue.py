"""The page about the checks, ``docs/checks.md``, made from the checks themselves."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from builder.files import write_atomic
from builder.verify.checks import CHECKS

if TYPE_CHECKING:
    from pathlib import Path

    from builder.verify.checks.spec import Spec

PAGE = "docs/checks.md"
HEAD = """\
# The checks

<!-- Made from builder/verify/checks by builder.verify.catalogue.write_page; a test fails when it is stale. -->

`gfx1100 verify` takes an image, a wheel, a folder of site-packages, or one library with device code. It needs no GPU,
and an image is looked into with `--network none`. Each check says ok, failed, or skipped with the reason; a failed one
says what was found and where, what that means on the card, and what to do. `--only ID` and `--skip ID` choose; exit 7
when one failed. `build` puts the verdict and the hashes of the reports behind it into the record, and `publish` refuses
without them.

```
gfx1100 verify gfx1100/smoke:latest
gfx1100 verify dist/engine.whl --stack vllm
gfx1100 --json verify .venv/lib/python3.12/site-packages --only code-objects
```

What is expected is data of the stack: `expect` and `budget` in `stacks/NAME.yaml`. Ops may hold for some commits only
(`since`, `until`, or a `file` and `text` of the tree); that is found out when the context is staged and kept in the
image's manifest. Where a check needs a part that the target does not have, it is skipped.
"""


def page() -> str:
    """Return the text of ``docs/checks.md``."""
    rows = [f"| [{spec.id}](#{spec.id}) | {spec.title} | {_targets(spec)} |" for spec in CHECKS.values()]
    table = ["| check | what holds | of |", "|---|---|---|", *rows]
    return "\n".join([HEAD, *table, "", *map(_section, CHECKS.values())])


def write_page(root: Path) -> None:
    """Write ``docs/checks.md`` of a checkout."""
    write_atomic(root / PAGE, page())


def _section(spec: Spec) -> str:
    caught = [f"- {what}" + (f": <{thread}>" if thread else "") for what, thread in spec.caught.items()]
    return "\n".join(
        [
            f"## {spec.id}",
            "",
            *_wrapped(spec.proves),
            "",
            *_wrapped(f"A failure means: {spec.means}."),
            "",
            *_wrapped(f"What to do: {spec.fix}."),
            "",
            "Would have caught:",
            "",
            *caught,
            "",
        ]
    )


def _targets(spec: Spec) -> str:
    """Return which targets have what a check needs."""
    needs = set(spec.needs)
    if needs & {"image", "chain", "loaded", "proofs", "libraries", "secrets", "installed"}:
        return "image"
    return (
        "image, folder"
        if "answer" in needs
        else "all"
        if needs <= {"links", "objects", "foreign", "arch"}
        else ("image, folder, wheel")
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)
