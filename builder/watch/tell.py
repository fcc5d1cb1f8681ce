"""Tell news: a line of JSON each in the event log, and a message through Apprise."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from builder.errors import HostError, UpstreamError, UsageError
from builder.watch.words import headline, plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from builder.watch.report import News, Report


def log_path(folder: Path) -> Path:
    """Return where the event log lies below the state folder."""
    return folder / "watch" / "events.jsonl"


def write_events(folder: Path, report: Report, news: Sequence[News], now: datetime) -> None:
    """Append one line of JSON for each piece of news; all of a run's lines in one write.

    Raises:
        HostError: The disk is full, or the file cannot be written.
    """
    path = log_path(folder)
    lines = [
        {"time": now.isoformat(), "stack": report.stack, "head": report.head, **item.model_dump(mode="json")}
        for item in news
    ]
    if not lines:
        return
    data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                # a line that broke off when a disk was full stays by itself
                data = data if file.read(1) == b"\n" else b"\n" + data
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as trouble:
        raise HostError(f"{path} could not be written: {trouble.strerror}") from trouble


def lines_of(report: Report, news: Sequence[News]) -> tuple[str, ...]:
    """Return news as lines for people; every one names the stack."""
    return tuple(plain(f"{report.stack}: {item.text}") for item in news)


def notify(urls: str, report: Report, lines: Sequence[str]) -> str:
    """Send lines to Apprise URLs (https://github.com/caronc/apprise), which are separated by spaces; say how many.

    Raises:
        UsageError: Apprise is not installed, or a URL is none of its kinds.
        UpstreamError: A message could not be sent.
    """
    import importlib

    try:
        apprise = importlib.import_module("apprise")
    except ImportError as missing:
        hint = "install the extra: pip install 'gfx1100-images[notify]'"
        raise UsageError("the setting notify is set, and apprise is not installed", hint=hint) from missing
    sender = apprise.Apprise()
    for number, url in enumerate(urls.split(), start=1):
        # a URL holds a secret: it is named by its place
        if not sender.add(url):
            raise UsageError(f"URL {number} of the setting notify is of no kind that Apprise knows")
    if not sender.notify(title=plain(headline(report)), body="\n".join(lines), body_format=apprise.NotifyFormat.TEXT):
        raise UpstreamError("a message could not be sent through Apprise", hint="the next run sends it")
    return f"sent {len(lines)} lines"
