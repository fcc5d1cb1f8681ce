"""The documents name what there is: commands, options and settings."""

import re
from pathlib import Path

import pytest
import typer.main

from builder.cli import app
from builder.settings import Settings

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.zh-CN.md")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
COMMANDS = set(typer.main.get_command(app).commands)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_that_a_document_names_exists(path):
    text = path.read_text()
    named = {one for words in re.findall(r"`gfx1100 (?:--json )?([a-z][a-z|-]*)", text) for one in words.split("|")}
    assert named <= COMMANDS
    assert not re.search(r"`gfx1100 [a-z][^`]* --json\b", text), "--json goes before the command"


@pytest.mark.parametrize("name", READMES)
def test_every_setting_has_its_row_and_json_its_place(name):
    text = (ROOT / name).read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    assert set(Settings.model_fields) <= {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert "`gfx1100 --json lint …`" in text
