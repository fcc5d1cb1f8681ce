"""A profile as a container: only the chosen devices, numeric groups, read-only models, a cache for this image alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.deploy.labels import NEXT, container_name, labels_of
from builder.deploy.mounts import model_mounts
from builder.engine.port import ContainerSpec
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.engine.port import Image
    from builder.host.host import Gpu, Host
    from builder.models.profile import Profile

CACHE = "/var/cache/gfx1100"
# the engines that compile at their start
COMPILING = ("vllm", "sglang")
# where they keep what they compiled; each below the volume, which belongs to one image
CACHES = {
    "XDG_CACHE_HOME": "xdg",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "MIOPEN_USER_DB_PATH": "miopen",
}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where on the host a deployment runs.

    Attributes:
        devices: Its device nodes.
        groups: Numeric ids of the groups that may open them.
        model: The model folder on the host, or None.
        drafter: The folder of the draft model, or None.
        local: The folders are on this machine, so they can be looked into.
    """

    devices: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    model: Path | None = None
    drafter: Path | None = None
    local: bool = True


def place(
    host: Host,
    profile: Profile,
    *,
    taken: Iterable[str] = (),
    model: Path | None,
    drafter: Path | None,
    local: bool,
) -> Placement:
    """Return the cards and folders for a profile: cards that are free and drive no screen come first.

    Args:
        host: The engine's host.
        profile: How many cards it needs.
        taken: Render nodes that deployments of other profiles hold.
        model: The model folder.
        drafter: The draft model's folder.
        local: Whether the folders are on this machine.

    Raises:
        UsageError: A folder that the profile needs was not named.
    """
    for wanted, given, option in (
        (profile.model, model, "--model"),
        (profile.needs and profile.needs.drafter, drafter, "--drafter"),
    ):
        if wanted and given is None:
            raise UsageError(f"{profile.name} needs a folder at {wanted}", hint=f"name it with {option} DIR")
    if profile.gpus == 0:
        return Placement(model=model, drafter=drafter, local=local)
    held = set(taken)
    cards: list[Gpu] = sorted(host.chosen, key=lambda gpu: (gpu.render_node in held, gpu.screens > 0))[: profile.gpus]
    return Placement(
        devices=("/dev/kfd", *sorted(gpu.render_node for gpu in cards if gpu.render_node)),
        groups=host.gids_of(cards),
        model=model,
        drafter=drafter,
        local=local,
    )


def container_spec(profile: Profile, image: Image, reference: str, placement: Placement) -> ContainerSpec:
    """Return the container of a deployment that has not taken over yet."""
    mounts: dict[Path, tuple[str, bool]] = {}
    drafter = profile.needs.drafter if profile.needs else None
    for folder, at in ((placement.model, profile.model), (placement.drafter, drafter)):
        if folder is not None and at is not None:
            mounts |= model_mounts(folder, at) if placement.local else {folder: (at, True)}
    return ContainerSpec(
        image=image.id,
        name=container_name(profile.name) + NEXT,
        command=profile.command,
        environment=environment_of(profile),
        labels=labels_of(profile, reference, placement.devices),
        ports={profile.port: (profile.address, profile.port)},
        mounts=mounts,
        volumes={cache_volume(reference.partition("@")[2] or image.id): CACHE} if profile.engine in COMPILING else {},
        devices=placement.devices,
        groups=placement.groups,
        shm_bytes=profile.shm_bytes,
        host_ipc=profile.shm_bytes is None and profile.gpus > 0,
    )


def environment_of(profile: Profile) -> dict[str, str]:
    """Return the variables of a profile, with the places of the compile caches where its engine has some."""
    caches = {name: f"{CACHE}/{folder}" for name, folder in CACHES.items()} if profile.engine in COMPILING else {}
    return {**caches, **profile.environment}


def cache_volume(digest: str) -> str:
    """Return the volume of an image's compile caches; another image never sees it, so none of them is ever stale."""
    return f"gfx1100-cache-{digest.removeprefix('sha256:')[:16]}"


def owner(image: Image) -> tuple[int, int]:
    """Return the numeric user and group of an image; 0 where it names none or no number."""
    user, _, group = image.user.partition(":")
    number = int(user) if user.isdigit() else 0
    return number, int(group) if group.isdigit() else number


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A container spec for people and scripts (``serve --dry-run``)."""

    spec: ContainerSpec
    url: str

    def as_json(self) -> dict[str, object]:
        """Return what ``serve --dry-run --json`` prints."""
        spec = self.spec
        return {
            "image": spec.labels.get("io.gfx1100.reference", spec.image),
            "command": list(spec.command),
            "environment": dict(spec.environment),
            "devices": list(spec.devices),
            "groups": list(spec.groups),
            "mounts": [{"host": str(host), "at": at, "read_only": ro} for host, (at, ro) in spec.mounts.items()],
            "volumes": dict(spec.volumes),
            "shm_bytes": spec.shm_bytes,
            "host_ipc": spec.host_ipc,
            "url": self.url,
            "port": next(iter(spec.ports)),
            "notes": [],
        }

    def text(self) -> str:
        """Return it for people."""
        spec = self.spec
        lines = [str(self.as_json()["image"]), " ".join(spec.command), f"at {self.url}"]
        lines += [f"device {device}" for device in spec.devices]
        if spec.groups:
            lines.append(f"groups {', '.join(map(str, spec.groups))}")
        lines += [f"{host} at {at}{', read-only' if ro else ''}" for host, (at, ro) in spec.mounts.items()]
        lines += [f"volume {name} at {at}" for name, at in spec.volumes.items()]
        return "\n".join(lines)
