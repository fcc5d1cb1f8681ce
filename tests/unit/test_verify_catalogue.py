"""The page about the checks is made from them and is up to date."""

import os
import textwrap
from pathlib import Path

import pytest

from builder.verify.checks import CHECKS

PAGE = Path(__file__).parents[2] / "docs/checks.md"
HEAD = """\
# The checks

<!-- Made from builder/verify/checks by tests/unit/test_verify_catalogue.py, which fails when it is stale. -->

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


def page():
    rows = [f"| [{spec.id}](#{spec.id}) | {spec.title} | {targets(spec)} |" for spec in CHECKS.values()]
    table = ["| check | what holds | of |", "|---|---|---|", *rows]
    return "\n".join([HEAD, *table, "", *map(section, CHECKS.values())])


def section(spec):
    caught = [f"- {what}" + (f": <{thread}>" if thread else "") for what, thread in spec.caught.items()]
    return "\n".join(
        [
            f"## {spec.id}",
            "",
            *wrapped(spec.proves),
            "",
            *wrapped(f"A failure means: {spec.means}."),
            "",
            *wrapped(f"What to do: {spec.fix}."),
            "",
            "Would have caught:",
            "",
            *caught,
            "",
        ]
    )


def targets(spec):
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


def wrapped(text):
    return textwrap.wrap(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


def test_the_page_is_fresh():
    if os.environ.get("GFX1100_GOLDEN") == "write":
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "look at the change, then run this test with GFX1100_GOLDEN=write"


@pytest.mark.parametrize("spec", CHECKS.values(), ids=CHECKS.keys())
def test_every_check_says_what_it_proves_and_which_failure_it_would_have_caught(spec):
    assert spec.proves.endswith(".")
    assert spec.means
    assert spec.fix
    assert spec.caught
    assert all(not thread or thread.startswith("https://") for thread in spec.caught.values())
    assert f"## {spec.id}\n" in page()
