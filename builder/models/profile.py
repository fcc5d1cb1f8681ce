"""A profile: how to serve a model with an image. Read from ``profiles/<name>.yaml``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from builder.errors import UsageError
from builder.models.base import Data, Name, load_yaml, nearest


class Ready(Data):
    """When a deployment counts as ready.

    Attributes:
        health: Path of the health endpoint.
        timeout: Seconds from the start until it must have answered a prompt.
        prompt: What the warm-up asks.
    """

    health: str = "/health"
    timeout: int = Field(default=1800, gt=0)
    prompt: str = "hi"


class Profile(Data):
    """How to serve.

    Attributes:
        name: The profile's name, equal to the file's.
        title: One line for people.
        stack: The stack whose image it serves.
        command: The arguments that follow the image's entry point.
        address: The address on the host that the port is bound to.
        port: The port on the host; the container listens on the same number.
        environment: Variables of the container.
        gpus: How many gfx1100 cards it needs.
        model: Where the model folder is mounted in the container; None when none is needed.
        shm_bytes: Size of /dev/shm, or None for the host's.
        ready: When it counts as ready.
    """

    name: Name
    title: str
    stack: Name
    command: tuple[str, ...]
    address: str = "127.0.0.1"
    port: int = Field(ge=1, le=65535)
    environment: dict[str, str] = Field(default_factory=dict)
    gpus: int = Field(ge=0, le=16)
    model: str | None = None
    shm_bytes: int | None = None
    ready: Ready = Ready()


def load_profile(root: Path, name: str) -> Profile:
    """Return the profile ``name`` of a checkout.

    Raises:
        UsageError: There is no such profile, or its file does not fit.
    """
    known = sorted(path.stem for path in (root / "profiles").glob("*.yaml"))
    if name not in known:
        raise UsageError(f"there is no profile {name!r}{nearest(name, known)}")
    path = root / "profiles" / f"{name}.yaml"
    profile = load_yaml(Profile, path)
    if profile.name != name:
        raise UsageError(f"{path}: the name is {profile.name!r}, but the file is called {name!r}")
    return profile
