"""The screen: people read a table or a progress line, scripts read one JSON document; only this module prints."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Console:
    """Where output goes: results to stdout, everything else to stderr.

    Args:
        as_json: One JSON document on stdout and nothing else there.
        verbose: Show the detail lines too.
    """

    def __init__(self, *, as_json: bool = False, verbose: bool = False) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self._started = time.monotonic()

    def step(self, text: str) -> None:
        """Say that a step of long work begins or has ended, with the seconds since the start."""
        self._err(f"[{time.monotonic() - self._started:6.1f}s] {text}")

    def note(self, text: str) -> None:
        """Say something worth knowing."""
        self._err(text)

    def detail(self, text: str) -> None:
        """Say something for those who asked for more."""
        if self.verbose:
            self._err(text)

    def result(self, value: Any, text: str) -> None:  # noqa: ANN401 - any JSON value
        """Give the command's result: ``value`` to scripts, ``text`` to people."""
        out = json.dumps(value, indent=2, ensure_ascii=False) if self.as_json else clean(text)
        sys.stdout.write(out.rstrip("\n") + "\n")
        sys.stdout.flush()

    @staticmethod
    def line(text: str) -> None:
        """Give one line of a result that has no end."""
        sys.stdout.write(clean(text) + "\n")
        sys.stdout.flush()

    @staticmethod
    def _err(text: str) -> None:
        sys.stderr.write(clean(text) + "\n")
        sys.stderr.flush()


def clean(text: str) -> str:
    """Return text without control characters, so that a stranger's words cannot steer the terminal."""
    return "".join(c if c in "\n\t" or (c.isprintable()) else "\N{REPLACEMENT CHARACTER}" for c in text)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a plain table of aligned columns."""
    lines = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
