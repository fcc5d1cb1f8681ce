"""What our containers carry: whose deployment it is, what it holds, and how it is asked."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from builder.errors import UsageError
from builder.verify.checks import LABEL
from builder.verify.trace import DIGEST_LABEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.engine.port import Container, Engine
    from builder.models.profile import Profile

DEPLOYMENT = LABEL + "deployment"
REFERENCE = LABEL + "reference"
DEVICES = LABEL + "devices"
TARGET = LABEL + "target"
NEXT, PREVIOUS = "-next", "-previous"
ANYWHERE = {"0.0.0.0", "::", ""}  # noqa: S104 - what a profile may say, and means "this machine too"
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True, kw_only=True)
class Target:
    """How a deployment is asked: its address on the engine's host, and when it counts as ready.

    Attributes:
        address: Address that the port is bound to.
        port: The port.
        health: Path of the health endpoint.
        timeout: Seconds that a start may take.
        prompt: The first prompt.
    """

    address: str
    port: int
    health: str
    timeout: int
    prompt: str

    @classmethod
    def of(cls, profile: Profile) -> Target:
        """Return the target of a profile."""
        ready = profile.ready
        return cls(
            address=profile.address,
            port=profile.port,
            health=ready.health,
            timeout=ready.timeout,
            prompt=ready.prompt,
        )

    def base(self, engine: Engine) -> str:
        """Return ``http://host:port`` as this machine reaches it.

        Raises:
            UsageError: The engine is on another machine and the port is bound to that machine's loopback.
        """
        host = remote_host(engine)
        if host is None:
            return f"http://{'127.0.0.1' if self.address in ANYWHERE else self.address}:{self.port}"
        if self.address in LOOPBACK:
            raise UsageError(
                f"the profile binds its port to {self.address} of {host}, so it cannot be prompted from here",
                hint=f"run gfx1100 on {host}, or set address: 0.0.0.0 in a profile of your own",
            )
        return f"http://{host if self.address in ANYWHERE else self.address}:{self.port}"


def container_name(profile: str) -> str:
    """Return the name of a profile's container."""
    return f"gfx1100-{profile}"


def labels_of(profile: Profile, reference: str, devices: Sequence[str]) -> dict[str, str]:
    """Return the labels of a new deployment."""
    return {
        DEPLOYMENT: profile.name,
        REFERENCE: reference,
        DEVICES: ",".join(devices),
        TARGET: json.dumps(asdict(Target.of(profile)), sort_keys=True),
        **({DIGEST_LABEL: reference.partition("@")[2]} if "@" in reference else {}),
    }


def target_of(container: Container) -> Target | None:
    """Return how a container of ours is asked, or None when it does not say."""
    try:
        return Target(**json.loads(container.labels[TARGET]))
    except (KeyError, ValueError, TypeError):
        return None


def cards_of(container: Container) -> set[str]:
    """Return the render nodes that a container of ours holds."""
    return {node for node in container.labels.get(DEVICES, "").split(",") if "render" in node}


def running(engine: Engine) -> list[Container]:
    """Return the deployments that run, of every profile."""
    return [one for one in engine.containers(DEPLOYMENT) if one.state in {"running", "restarting", "paused"}]


def rivals(engine: Engine, profile: Profile, devices: Sequence[str]) -> list[Container]:
    """Return the running deployments that a new one cannot run beside: same profile, same port, or a card in common."""
    return [
        one
        for one in running(engine)
        if one.labels[DEPLOYMENT] == profile.name
        or (target := target_of(one)) is None
        or target.port == profile.port
        or cards_of(one) & set(devices)
    ]


def remote_host(engine: Engine) -> str | None:
    """Return the machine that an engine runs on, or None when it is this one."""
    url = urlsplit(engine.environment.get("DOCKER_HOST", ""))
    return url.hostname if url.scheme in {"ssh", "tcp"} and url.hostname not in LOOPBACK else None
