"""The stations stand in the order that docs/architecture.md shows: a module imports none from above its own."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def stations():
    """Return the stations in the order of the table."""
    rows = re.findall(r"^\| [a-zA-Z ]+ \| (`.*) \|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    order = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    return order[order.index("errors") :]


def imported(path):
    """Return the stations that a module imports from, at its top or late."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("builder."))


def test_the_table_names_every_station():
    found = {path.stem for path in (ROOT / "builder").iterdir() if not path.name.startswith("__")}
    assert set(stations()) == found


def test_no_module_imports_from_a_station_above_its_own():
    order = stations()
    upwards = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "builder").rglob("*.py")
        if (own := path.relative_to(ROOT / "builder").parts[0].removesuffix(".py")) in order
        for name in imported(path)
        if name in order and order.index(name) > order.index(own)
    ]
    assert upwards == []
