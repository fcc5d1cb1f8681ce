"""End a run: log and remember what is new, send it, bring the issue up to date, and move the pin when asked to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from builder.errors import HostError, ToolError, UpstreamError, UsageError
from builder.files import write_atomic
from builder.settings import Settings
from builder.source.git import Git
from builder.watch.look import examine
from builder.watch.outcome import Options, Result
from builder.watch.state import save_state
from builder.watch.words import headline, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from builder.watch.bump import Bump
    from builder.watch.forge import Forge
    from builder.watch.look import Watched
    from builder.watch.report import News, Report
    from builder.watch.state import WatchState


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run is to end.

    Attributes:
        settings: State folder, Apprise URLs, CA bundle.
        options: What was asked for.
        environ: The forge's token and repository.
        now: The time.
        told: What was done to tell the news, filled on the way.
        trouble: What could not be told.
    """

    settings: Settings
    options: Options
    environ: Mapping[str, str]
    now: datetime
    told: list[str] = field(default_factory=list)
    trouble: list[ToolError] = field(default_factory=list)

    def attempt(self, step: Callable[[], str]) -> bool:
        """Do a step whose failure does not change what was found, and say whether it went well."""
        try:
            self.told.append(step())
        except ToolError as trouble:
            self.trouble.append(trouble)
            return False
        return True


def finish(watched: Watched, state: WatchState, report: Report, news: tuple[News, ...], ending: Ending) -> Result:
    """Tell, remember and move the pin.

    The log is written before the memory: a run that is killed in between tells its news once more, and never not at
    all. What a messenger or the forge could not be told is told by the next run.

    Raises:
        HostError: Log or memory could not be written.
        UsageError: The pin cannot be moved because the lock does not belong to the stack.
    """
    folder, options = ending.settings.state, ending.options
    urls = ending.settings.notify
    _write_events(folder, report, news, ending.now)
    lines = [plain(f"{report.stack}: {item.text}") for item in news]
    state = state.model_copy(update={"untold": (*state.untold, *lines) if urls else ()})
    save_state(folder, state)
    if urls and state.untold and ending.attempt(lambda: _notify(urls, report, state.untold)):
        save_state(folder, state.model_copy(update={"untold": ()}))
    known = state.acknowledged == (report.head or "gone")
    if options.issue and not known:
        from builder.watch.issue import sync_issue

        repository = watched.stack.source.repository
        ending.attempt(lambda: sync_issue(_forge(watched, ending), report, news, repository=repository))
    bump = _bump(watched, state, report, ending) if options.bump else None
    code = 0 if known or bump or (options.once and not news) else report.exit_code
    trouble = ending.trouble[0] if ending.trouble else None
    return Result(
        stack=watched.stack.name,
        exit_code=trouble.exit_code if trouble and code in {0, 10} else code,
        report=report,
        news=news,
        told=tuple(ending.told),
        trouble=type(trouble)("; ".join(one.message for one in ending.trouble), hint=trouble.hint) if trouble else None,
        bump=bump,
        acknowledged=known,
    )


def _bump(watched: Watched, state: WatchState, report: Report, ending: Ending) -> Bump | None:
    """Move the pin, or say why it stays."""
    from builder.watch.bump import candidate, open_pull_request, prepare

    head, pinned = report.head, watched.pinned
    if head is None or head == pinned:
        return None
    age = ending.options.min_age
    try:
        commit = candidate(state, watched.source.git, head=head, pinned=pinned, age=age, now=ending.now)
    except UsageError as early:
        ending.told.append(f"the pin stays: {early.message}{'; ' + early.hint if early.hint else ''}")
        return None
    tried = report if commit == head else examine(watched, commit, None)
    bad = [patch.id for patch in tried.broken] + [change.name for change in tried.missed]
    if bad:
        ending.told.append(f"the pin stays: at {commit} these would break: {', '.join(bad)}")
        return None
    bump = prepare(watched.root, watched.stack, commit, tried, settings=ending.settings, head=head)
    if ending.options.pull_request:
        done = ending.attempt(lambda: open_pull_request(_forge(watched, ending), bump))
        return bump if done else None
    for name, text in bump.files.items():
        write_atomic(watched.root / name, text)
    ending.told.append(f"the pin is at {commit}: {', '.join(sorted(bump.files))} were written")
    return bump


def _forge(watched: Watched, ending: Ending) -> Forge:
    from builder.watch.forge import forge_of

    remote = Git(git_dir=None, folder=watched.root).run("config", "--get", "remote.origin.url", check=False).text
    return forge_of(ending.environ, remote, ca_bundle=ending.settings.ca_bundle)


def _write_events(folder: Path, report: Report, news: Sequence[News], now: datetime) -> None:
    """Append one line of JSON for each piece of news; all of a run's lines in one write.

    Raises:
        HostError: The disk is full, or the file cannot be written.
    """
    path = folder / "watch" / "events.jsonl"
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


def _notify(urls: str, report: Report, lines: Sequence[str]) -> str:
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
