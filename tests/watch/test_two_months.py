"""Two months of an upstream that does what upstreams do: each thing is told once, on its day, and nothing else is."""

from pathlib import Path

import pytest
from two_months import COMMITS, DAYS, Script, table

PAGE = Path(__file__).parents[2] / "docs/watchdog.md"


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    script = Script(tmp_path_factory.mktemp("upstream"))
    script.run()
    return script


def test_the_script_is_sixty_days_and_four_hundred_commits(script):
    assert (len(script.days), script.made) == (DAYS, COMMITS)


def test_every_planted_event_is_told_once_on_its_day_with_its_patch_and_commit_and_nothing_else(script):
    assert [(day.day, day.told) for day in script.days] == [(day.day, day.expected) for day in script.days]


def test_every_day_ends_with_the_exit_code_of_its_situation(script):
    assert [(day.day, day.exit_code) for day in script.days] == [(day.day, day.exit_expected) for day in script.days]


def test_the_event_log_holds_what_was_told(script):
    lines = (script.project.settings.state / "watch/events.jsonl").read_text().splitlines()
    assert len(lines) == sum(len(day.told) for day in script.days)


def test_the_table_in_the_docs_is_the_one_of_this_script(script):
    assert table(script.days) in PAGE.read_text()
