"""The watchdog on a machine that is always on: a systemd service with its timer, and the same as a line of cron."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.settings import load_settings
from builder.stage.render import templates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

NAMES = ("watchdog.service", "watchdog.timer", "watchdog.cron")
HOUR, MINUTE = 5, 43
"""Away from the full hour, at which everybody asks."""
_SETTING = re.compile(r"GFX1100_[A-Z_]+")


def render_timers(root: Path, *, program: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each file of NAMES; for systemd they are called ``gfx1100-watchdog.service`` and ``.timer``.

    Args:
        root: The checkout, an absolute path.
        program: The command that starts this program, its own path absolute.
        environ: Variables; those of this program (GFX1100_*) are taken over, for a timer has none of a person's.

    Raises:
        UsageError: A path or value holds a line break, which neither systemd nor cron can hold.
    """
    settings = load_settings(root, environ)
    environment = templates(root)
    environment.filters |= {"unit_word": _unit_word, "exec_word": _exec_word, "cron_word": _cron_word}
    values = {
        "root": str(root),
        "program": list(program),
        "environment": sorted((name, value) for name, value in environ.items() if _SETTING.fullmatch(name)),
        "hour": HOUR,
        "minute": MINUTE,
        "log_folder": str(settings.state / "watch"),
    }
    return {name: environment.get_template(f"{name}.j2").render(values) for name in NAMES}


def _unit_word(text: str) -> str:
    """Return a word of a unit file in quotes (systemd.syntax(7), systemd.unit(5), "Specifiers")."""
    escaped = _line(text).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _exec_word(text: str) -> str:
    """Return a word of a command line, where a dollar sign begins a variable (systemd.service(5), "Command lines")."""
    return _unit_word(text).replace("$", "$$")


def _cron_word(text: str) -> str:
    """Return a word of a cron line: for the shell, and with the percent signs that cron would take for line ends."""
    return shlex.quote(_line(text)).replace("%", "\\%")


def _line(text: str) -> str:
    if "\n" in text or "\0" in text:
        raise UsageError(f"{text!r} holds a line break, which a unit or a cron line cannot hold")
    return text
