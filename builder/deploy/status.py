"""The state of a deployment: starting, ready, dead, stopped or none, with its uptime and what it is doing."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.request import ProxyHandler, build_opener

from builder.deploy import warm_up
from builder.deploy.history import read_history
from builder.deploy.labels import NEXT, Target, container_name, target_of
from builder.verify.trace import DIGEST_LABEL

if TYPE_CHECKING:
    from pathlib import Path

    from builder.deploy.history import Entry
    from builder.engine.port import Container, Engine
    from builder.models.profile import Profile

MINUTE, HOUR, DAY = 60, 3600, 86400
SHOWN = 5
SAMPLE_SECONDS = 1.0
REQUEST_SECONDS = 5.0
# Prometheus' text form: name{labels} value (https://prometheus.io/docs/instrumenting/exposition_formats/)
LINE = re.compile(r"^(?:[a-z]+:)?([a-zA-Z_]\w*)(?:\{.*\})? ([0-9.eE+-]+|NaN)(?: \d+)?$")
# the engines' names without their prefix: vllm/v1/metrics/loggers.py, sglang/srt/metrics/collector.py
RUNNING = ("num_requests_running", "num_running_reqs")
WAITING = ("num_requests_waiting", "num_queue_reqs")
KV_USE = ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage")
MADE = ("generation_tokens_total", "generation_tokens")
READ = ("prompt_tokens_total", "prompt_tokens")


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a server is doing.

    Attributes:
        running: Requests that are answered now.
        waiting: Requests that wait.
        kv_use: Used part of the KV cache, 0 to 1.
        tokens_per_second: Tokens generated a second, over the last second, of all requests.
        prompt_tokens_per_second: Prompt tokens read a second, likewise.
        generated: Tokens generated since the start.
    """

    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None
    generated: int | None = None

    def text(self) -> str:
        """Return it for people."""
        told = []
        if self.running is not None:
            told.append(f"{self.running} running, {self.waiting or 0} waiting")
        if self.kv_use is not None:
            told.append(f"KV cache {self.kv_use:.1%} used")
        if self.tokens_per_second is not None:
            told.append(
                f"{self.tokens_per_second:.1f} tokens/s, prompts {self.prompt_tokens_per_second or 0:.1f} tokens/s"
            )
        if self.generated is not None:
            told.append(f"{self.generated:,} tokens since the start")
        return "; ".join(told)


@dataclass(frozen=True, kw_only=True)
class Status:
    """What a deployment is doing.

    Attributes:
        state: Its state.
        profile: The profile's name.
        digest: The image's digest, or its id when it was never published.
        since: When the process started, ISO 8601.
        uptime_seconds: Seconds since then, while it runs.
        restarts: How often the engine restarted it.
        url: Where it is asked.
        load: What its metrics say, while it is ready.
        kv_tokens: What its KV cache holds, as its log said at the start; 0 when unknown.
        history: The last events.
    """

    state: Literal["starting", "ready", "dead", "stopped", "none"]
    profile: str
    digest: str = ""
    since: str = ""
    uptime_seconds: float | None = None
    restarts: int = 0
    url: str = ""
    load: Load | None = None
    kv_tokens: int = 0
    history: tuple[Entry, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what ``status --json`` prints."""
        return asdict(self) | {"history": [entry.model_dump() for entry in self.history]}

    def text(self) -> str:
        """Return it for people."""
        if self.state == "none":
            lines = [f"{self.profile}: none"]
        else:
            up = f", up {_span(self.uptime_seconds)}" if self.uptime_seconds is not None else ""
            lines = [
                f"{self.profile}: {self.state} since {self.since}{up}, {self.restarts} restarts",
                self.digest,
                self.url,
            ]
        if self.load is not None:
            lines.append(self.load.text())
        if self.kv_tokens:
            lines.append(f"the KV cache holds {self.kv_tokens:,} tokens")
        lines += [f"{e.at}  {e.event:<11} {e.image}{f'  {e.note}' if e.note else ''}" for e in self.history]
        return "\n".join(line for line in lines if line)


def status(engine: Engine, profile: Profile, *, state: Path) -> Status:
    """Return the state of a profile's deployment.

    Args:
        engine: Where it runs.
        profile: The profile.
        state: The state folder, for the history.
    """
    history = read_history(state, profile.name)
    name = container_name(profile.name)
    container = engine.container(name) or engine.container(name + NEXT)
    last = history.entries[-SHOWN:]
    if container is None:
        return Status(state="none", profile=profile.name, history=last)
    target = target_of(container) or Target.of(profile)
    base = target.base(engine)
    what = _state(container, base + target.health, came_up=container.name == name)
    ready = history.last_ready()
    return Status(
        state=what,
        profile=profile.name,
        digest=container.labels.get(DIGEST_LABEL, container.image_id),
        since=container.started_at,
        uptime_seconds=_since(container.started_at) if what in {"ready", "starting"} else None,
        restarts=container.restarts,
        url=base,
        load=read_load(base) if what == "ready" else None,
        kv_tokens=ready.kv_tokens if ready and ready.image_id == container.image_id else 0,
        history=last,
    )


def read_load(base: str) -> Load | None:
    """Return what a server is doing, looked at twice while it answers something; None without metrics."""
    first = _read(base)
    if first is None:
        return None
    running = _pick(first, RUNNING)
    seconds, second = 0.0, first
    if running:
        began = time.monotonic()
        time.sleep(SAMPLE_SECONDS)
        second = _read(base) or first
        seconds = time.monotonic() - began
    made = _pick(second, MADE)
    return Load(
        running=None if running is None else int(running),
        waiting=None if (waiting := _pick(second, WAITING)) is None else int(waiting),
        kv_use=_pick(second, KV_USE),
        tokens_per_second=_speed(first, second, MADE, seconds),
        prompt_tokens_per_second=_speed(first, second, READ, seconds),
        generated=None if made is None else int(made),
    )


def parse_metrics(text: str) -> dict[str, float]:
    """Return the samples of Prometheus' text form by their names without the engine's prefix, summed over labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        matched = LINE.match(line)
        if matched and matched[2] != "NaN":
            found[matched[1]] = found.get(matched[1], 0.0) + float(matched[2])
    return found


def _read(base: str) -> dict[str, float] | None:
    try:
        with build_opener(ProxyHandler({})).open(f"{base}/metrics", timeout=REQUEST_SECONDS) as answer:
            return parse_metrics(answer.read().decode(errors="replace"))
    except (OSError, ValueError):
        return None


def _pick(samples: dict[str, float], names: tuple[str, ...]) -> float | None:
    return next((samples[name] for name in names if name in samples), None)


def _speed(first: dict[str, float], second: dict[str, float], names: tuple[str, ...], seconds: float) -> float | None:
    before, after = _pick(first, names), _pick(second, names)
    if before is None or after is None:
        return None
    return round(max(0.0, after - before) / seconds, 2) if seconds else 0.0


def _state(container: Container, health: str, *, came_up: bool) -> Literal["starting", "ready", "dead", "stopped"]:
    if container.state in {"created", "running"}:
        # one that has not taken over has not answered its prompts yet, whatever /health says
        return "ready" if came_up and warm_up.healthy(health) else "starting"
    return "stopped" if container.exit_code == 0 and not container.restarts else "dead"


def _since(started: str) -> float | None:
    if not started:
        return None
    return round((datetime.now(UTC) - datetime.fromisoformat(started)).total_seconds(), 1)


def _span(seconds: float) -> str:
    whole = int(seconds)
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s" if whole >= MINUTE else f"{whole} s"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"
