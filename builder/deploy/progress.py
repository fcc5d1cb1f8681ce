"""What a starting server is doing, read off its log: the step, how far it is, the time left, and silent fallbacks."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from builder.deploy.lines import CAUSES, FALLBACKS, FIGURES, STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.deploy.lines import Fallback
    from builder.engine.port import Container, Engine
    from builder.models.profile import Profile

QUIET_SECONDS = 120.0
# an exception's line, with whatever stands before it in a log
RAISED = re.compile(r"\b((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): \S.*$")
FIELD_SHARE = 0.85


class LogReader:
    """Reads a container's log from its last start on, each line once."""

    def __init__(self, engine: Engine, container: Container) -> None:
        self._engine = engine
        self._id = container.id
        self._last = datetime.fromisoformat(container.started_at).timestamp() if container.started_at else 0.0
        self._seen = 0

    def new_lines(self) -> list[str]:
        """Return the lines since the last call; a progress bar that redraws itself gives one line a state."""
        told = [(at, line) for at, line in self._engine.logs_since(self._id, self._last) if at >= self._last]
        fresh = told[self._seen :]
        if fresh:
            newest = fresh[-1][0]
            self._seen = sum(1 for at, _ in told if at == newest)
            self._last = newest
        return [part.strip() for _, line in fresh for part in line.split("\r") if part.strip()]


class Progress:
    """The state of a start, fed with its log.

    Args:
        profile: What was started.
        usual: Seconds that the last start of this image took, or None.
    """

    def __init__(self, profile: Profile, *, usual: float | None = None) -> None:
        self._profile = profile
        self._usual = usual
        self._step, self._part = "starting", (0, 0)
        self._step_began = self._heard = 0.0
        self._lines: list[str] = []
        self.figures: dict[str, int] = {}

    def feed(self, lines: Iterable[str], *, at: float) -> None:
        """Take lines that came ``at`` seconds after the start."""
        for line in lines:
            self._heard = at
            self._lines.append(line)
            for step in STEPS:
                found = re.search(step.pattern, line)
                if found:
                    self._enter(step.title, found, at)
                    break
            for figure in FIGURES:
                found = re.search(figure.pattern, line)
                if found:
                    self.figures[figure.name] = int(found[1].replace(",", ""))

    def _enter(self, title: str, found: re.Match[str], at: float) -> None:
        if title != self._step:
            self._step, self._step_began, self._part = title, at, (0, 0)
        counted = [int(group) for group in found.groups() if group]
        if len(counted) == 2:  # noqa: PLR2004 - done and all
            self._part = (counted[0], counted[1])

    def text(self, at: float) -> str:
        """Return one line for the live view, ``at`` seconds after the start."""
        done, whole = self._part
        told = f"{self._step} {done}/{whole}" if whole else self._step
        left = []
        if 0 < done < whole and at > self._step_began:
            left.append(f"about {(at - self._step_began) / done * (whole - done):.0f} s left of this step")
        if self._usual is not None:
            rest = self._usual - at
            left.append(f"about {rest:.0f} s in all" if rest > 0 else f"the last start took {self._usual:.0f} s")
        if at - self._heard > QUIET_SECONDS:
            left.append(f"no word for {at - self._heard:.0f} s")
        return f"{told} ({', '.join(left)})" if left else told

    def warnings(self) -> list[str]:
        """Return what the log, up to now, says of silent fallbacks and of too small a cache."""
        text = "\n".join(self._lines)
        found = [
            f"{fallback.message} [{fallback.source}]"
            for fallback in FALLBACKS
            if self._counts(fallback) and bool(re.search(fallback.pattern, text)) is not fallback.expected
        ]
        return [*found, *self._cache()]

    def _counts(self, fallback: Fallback) -> bool:
        return self._profile.gpus >= fallback.cards and all(
            self._profile.environment.get(name) == value for name, value in fallback.variables.items()
        )

    def _cache(self) -> list[str]:
        tokens, block = self.figures.get("kv_tokens"), self.figures.get("block_tokens")
        found = []
        context = _number(self._profile.command, "--max-model-len", "--context-length", "--max-context")
        if tokens is not None and context is not None and tokens < context:
            found.append(
                f"the KV cache holds {tokens:,} tokens, less than one context of {context:,}: a long prompt will run "
                "out of memory; lower the context (`gfx1100 plan` shows what fits)"
            )
        measured = self._profile.kv_tokens
        if tokens is not None and measured is not None and tokens < measured * FIELD_SHARE:
            found.append(
                f"the KV cache holds {tokens:,} tokens where {measured:,} were measured with these settings: "
                "is something else on the cards? `gfx1100 doctor` tells"
            )
        interval = _number(self._profile.command, "--prefix-cache-retention-interval")
        if block and interval and interval % block:
            found.append(
                f"--prefix-cache-retention-interval {interval} is no multiple of the block of {block:,} tokens, so "
                f"follow-up prompts miss the cache: set it to {block}"
            )
        return found


def likely_cause(log: str, *, out_of_memory: bool) -> str:
    """Return what a dead server's last lines point to, and what to do."""
    if out_of_memory:
        return "the kernel killed it for memory: lower the context length, or give the host more memory"
    found = next((cause.step for cause in CAUSES if re.search(cause.pattern, log, re.IGNORECASE)), None)
    return found or "read the log above; `gfx1100 logs` shows all of it"


def first_error(log: str) -> str | None:
    """Return the first exception of a log: what comes after it is mostly its echo; warnings only speak of some."""
    found = (RAISED.search(line) for line in log.splitlines() if not re.search(r"\b(?:DEBUG|INFO|WARNING)\b", line))
    return next((match[0][:300] for match in found if match), None)


def _number(command: tuple[str, ...], *flags: str) -> int | None:
    for flag in flags:
        for at, word in enumerate(command):
            name, joined, value = word.partition("=")
            value = value if joined else (command[at + 1] if at + 1 < len(command) else "")
            if name == flag and value.isdigit():
                return int(value)
    return None
