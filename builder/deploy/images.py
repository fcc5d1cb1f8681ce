"""The images of this program on an engine: what runs, what is the way back, and what may go."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from builder.console import table
from builder.deploy.history import read_history
from builder.deploy.labels import DEPLOYMENT, PREVIOUS
from builder.errors import HostError
from builder.models.record import STACK_LABEL, Record, read_record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.engine.port import Engine, Image


@dataclass(frozen=True, kw_only=True)
class Held:
    """An image of this program on the engine.

    Attributes:
        stack: Its stack.
        version: The engine's version in it, or empty.
        created: When it was built, by its record; empty without one.
        digest: The digest that it was published with; empty when it was not.
        image_id: The engine's id.
        bytes: Bytes on disk, layers that others share included.
        names: Its names on the engine.
        role: What it is for now: ``running P``, ``way back of P``, ``stopped P``; several with commas, or empty.
        has_record: A record of this checkout speaks of it, so it is ours to take away.
    """

    stack: str
    version: str
    created: str
    digest: str
    image_id: str
    bytes: int
    names: tuple[str, ...]
    role: str
    has_record: bool

    def as_json(self) -> dict[str, Any]:
        """Return an entry of what ``images --json`` prints."""
        return asdict(self)


def held_images(engine: Engine, *, records: Path, state: Path) -> list[Held]:
    """Return the images of this program, by stack, the newest first.

    Args:
        engine: Where to look.
        records: The folder of this checkout's records.
        state: The state folder, where the histories of the deployments lie.
    """
    known = [read_record(path) for path in sorted(records.glob("*.json"))]
    roles = _roles(engine, state)
    found = [_held(image, known, roles.get(image.id, [])) for image in engine.images(STACK_LABEL)]
    found.sort(key=lambda held: held.image_id)
    found.sort(key=lambda held: held.created, reverse=True)
    return sorted(found, key=lambda held: held.stack)


def prune_images(engine: Engine, held: Iterable[Held], *, keep: int) -> tuple[list[Held], list[Held]]:
    """Take away old images: none that a deployment runs, can go back to or was stopped with, and none without a record.

    Args:
        engine: Where they are.
        held: What :func:`held_images` found.
        keep: How many of the newest of each stack stay.

    Returns:
        The images that went, and those that a container of somebody else holds.
    """
    gone, busy, counts = [], [], dict[str, int]()
    for one in held:
        counts[one.stack] = counts.get(one.stack, 0) + one.has_record
        if one.role or not one.has_record or counts[one.stack] <= keep:
            continue
        try:
            for name in one.names or (one.image_id,):
                engine.untag(name)
        except HostError:
            busy.append(one)
        else:
            gone.append(one)
    return gone, busy


def images_text(held: list[Held]) -> str:
    """Return the images for people."""
    if not held:
        return "no image of this program is on this engine"
    rows = [
        (
            one.stack,
            one.version,
            one.created[:16],
            f"{one.bytes / 1e9:.2f} GB",
            (one.digest or one.image_id).removeprefix("sha256:")[:12],
            one.role or ("" if one.has_record else "no record"),
        )
        for one in held
    ]
    return table(["stack", "version", "built", "size", "digest", ""], rows)


def _held(image: Image, records: list[Record], roles: list[str]) -> Held:
    ours = (
        one for one in records if image.id == one.image_id or (one.published and one.published.digest in image.digests)
    )
    record = next(ours, None)
    return Held(
        stack=image.labels.get(STACK_LABEL, ""),
        version=image.labels.get("org.opencontainers.image.version", ""),
        created=record.created if record else "",
        digest=record.published.digest if record and record.published else "",
        image_id=image.id,
        bytes=image.size,
        names=(*image.tags, *image.repo_digests),
        role=", ".join(sorted(set(roles))),
        has_record=record is not None,
    )


def _roles(engine: Engine, state: Path) -> dict[str, list[str]]:
    """Return what each image id is for: of the containers that are there, and of the histories."""
    roles: dict[str, list[str]] = {}
    current: dict[str, str] = {}
    for container in engine.containers(DEPLOYMENT):
        profile = container.labels[DEPLOYMENT]
        if container.name.endswith(PREVIOUS):
            role = "way back of"
        else:
            role = "running" if container.state == "running" else "stopped"
            current[profile] = container.image_id
        roles.setdefault(container.image_id, []).append(f"{role} {profile}")
    for path in (state / "deployments").glob("*.json"):
        entry = read_history(state, path.stem).last_ready(but=current.get(path.stem, ""))
        if entry is not None:
            roles.setdefault(entry.image_id, []).append(f"way back of {path.stem}")
    return roles
