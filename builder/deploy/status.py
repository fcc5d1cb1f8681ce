"""The state of a deployment: starting, ready, dead, stopped or none, with its uptime and what it is doing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from builder.deploy import warm_up
from builder.deploy.history import read_history
from builder.deploy.labels import NEXT, Target, container_name, target_of
from builder.deploy.metrics import Load, read_load
from builder.verify.trace import DIGEST_LABEL

if TYPE_CHECKING:
    from pathlib import Path

    from builder.deploy.history import Entry
    from builder.engine.port import Container, Engine
    from builder.models.profile import Profile

MINUTE, HOUR, DAY = 60, 3600, 86400
SHOWN = 5


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
        return {
            "state": self.state,
            "profile": self.profile,
            "digest": self.digest,
            "since": self.since,
            "uptime_seconds": self.uptime_seconds,
            "restarts": self.restarts,
            "url": self.url,
            "load": None if self.load is None else asdict(self.load),
            "kv_tokens": self.kv_tokens,
            "history": [entry.model_dump() for entry in self.history],
        }

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
    ready = next((e for e in reversed(history.entries) if e.event == "ready"), None)
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
