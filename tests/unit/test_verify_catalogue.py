"""The page about the checks is made from them and is up to date."""

from pathlib import Path

import pytest

from builder.verify.catalogue import PAGE, page, write_page
from builder.verify.checks import CHECKS

ROOT = Path(__file__).parents[2]
AGAIN = "python -c 'from pathlib import Path; from builder.verify.catalogue import write_page; write_page(Path.cwd())'"


def test_the_page_is_fresh():
    assert (ROOT / PAGE).read_text() == page(), f"{PAGE} is stale; write it again: {AGAIN}"


def test_writing_the_page_twice_changes_nothing(tmp_path):
    write_page(tmp_path)
    first = (tmp_path / PAGE).read_bytes()
    write_page(tmp_path)
    assert (tmp_path / PAGE).read_bytes() == first


@pytest.mark.parametrize("spec", CHECKS.values(), ids=CHECKS.keys())
def test_every_check_says_what_it_proves_and_which_failure_it_would_have_caught(spec):
    assert spec.proves.endswith(".")
    assert spec.means
    assert spec.fix
    assert spec.caught
    assert all(not thread or thread.startswith("https://") for thread in spec.caught.values())
    assert f"## {spec.id}\n" in page()
