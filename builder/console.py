"""The screen: people read a table or a progress line, scripts read one JSON document; only this module prints."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from builder.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from builder.errors import ToolError


class Console:
    """Where output goes: results to stdout, everything else to stderr.

    Args:
        as_json: One JSON document on stdout and nothing else there.
        verbose: Show the detail lines too.
    """

    def __init__(self, *, as_json: bool = False, verbose: bool = False) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self._document: dict[str, Any] | None = None
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

    def result(self, value: dict[str, Any], text: str) -> None:
        """Give the command's result: ``text`` to people now, ``value`` to scripts when the program ends.

        Raises:
            HostError: It could not be written.
        """
        if self.as_json:
            self._document = value
        else:
            _out(clean(text).rstrip("\n") + "\n")

    def finish(self, trouble: ToolError | None = None) -> None:
        """Tell how the command ended: the one document for scripts, or the error in words for people.

        Raises:
            HostError: The document could not be written.
        """
        if self.as_json:
            error = {} if trouble is None else {"error": trouble.as_json()}
            document, self._document = self._document, None
            if document is not None or error:
                _out(json.dumps({**(document or {}), **error}, indent=2, ensure_ascii=False) + "\n")
        elif trouble is not None:
            self._err(f"error: {trouble.message}" + (f"\n  next: {trouble.hint}" if trouble.hint else ""))

    @staticmethod
    def line(text: str) -> None:
        """Give one line of a result that has no end; the program ends when nobody reads it any more.

        Raises:
            HostError: It could not be written.
        """
        if not _out(clean(text) + "\n"):
            raise SystemExit(0)

    @staticmethod
    def _err(text: str) -> None:
        # there is no place left to tell that stderr is closed or full
        with contextlib.suppress(OSError, AttributeError):
            sys.stderr.write(clean(text) + "\n")
            sys.stderr.flush()


def drop_stdout() -> None:
    """Lead stdout nowhere: what is still to be written to it would fail once more when the program ends."""
    with contextlib.suppress(OSError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _out(text: str) -> bool:
    """Write to stdout, and say whether somebody still reads it."""
    if sys.stdout is None:  # Python's word for a stdout that was closed from the start
        raise HostError("the result could not be written: stdout is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
        return False
    except OSError as trouble:
        drop_stdout()
        raise HostError(f"the result could not be written to stdout: {trouble.strerror}") from trouble
    return True


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
