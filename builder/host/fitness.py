"""Is the host fit for one profile: cards, memory, port, space, and the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.host.nodes import HostCheck
from builder.plan.plan import plan
from builder.plan.shape import gib

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.host.host import Host
    from builder.models.profile import Profile

GIB = 1 << 30
# the engines whose memory `plan` knows
PLANNED = ("vllm", "sglang")


@dataclass(frozen=True, kw_only=True)
class Around:
    """What surrounds a profile besides the host.

    Attributes:
        root: The checkout.
        model: The checkpoint, or None.
        disk_free: Free bytes where the engine keeps its images, or None when they are not known.
        own_ports: Ports that this project's own containers hold; a switch-over takes them over.
    """

    root: Path
    model: Path | None = None
    disk_free: int | None = None
    own_ports: frozenset[int] = field(default_factory=frozenset)


def profile_checks(host: Host, profile: Profile, around: Around) -> list[HostCheck]:
    """Return the checks of a profile on a host, its plan and its model among them."""
    return [*place_checks(host, profile, around), *_plan(host, profile, around), *_model(profile, around)]


def place_checks(host: Host, profile: Profile, around: Around) -> list[HostCheck]:
    """Return the checks of the place that a profile needs: cards, memory that it names itself, port, disk."""
    return [
        *_enough(host, profile),
        *_memory(host, profile),
        _port(host, profile, around),
        *_disk(profile, around),
    ]


def _enough(host: Host, profile: Profile) -> Iterator[HostCheck]:
    there = len(host.chosen)
    if there < profile.gpus:
        yield HostCheck(
            id="enough-cards",
            status="failed",
            message=f"{profile.name} needs {profile.gpus} gfx1100 cards, {there} are there",
            fix=f"a profile for {there} cards (extends: {profile.name}, --tensor-parallel-size {there})"
            if there
            else "see the check cards",
        )
    else:
        yield HostCheck(id="enough-cards", status="ok", message=f"{profile.gpus} of {there} cards are needed")


def _plan(host: Host, profile: Profile, around: Around) -> Iterator[HostCheck]:
    if profile.engine not in PLANNED:
        return
    memory = host.memory()
    try:
        found = plan(profile, around.root, model=around.model, host=memory)
    except UsageError as trouble:
        yield HostCheck(id="plan", status="skipped", message=trouble.message, fix=trouble.hint)
        return
    # a missing card is a check of its own
    fits = found.fits or (len(memory.vram) < profile.gpus and not _short(memory.ram, profile.memory.ram_bytes))
    yield HostCheck(
        id="plan",
        status="ok" if fits else "failed",
        message=f"{found.kv_tokens:,} KV tokens" + ("" if fits else ": it does not fit"),
        fix="" if fits else "; ".join(found.advice),
    )


def _memory(host: Host, profile: Profile) -> Iterator[HostCheck]:
    if profile.engine in PLANNED:
        return
    memory = host.memory()
    for name, have, need in (
        ("ram", memory.ram, profile.memory.ram_bytes),
        ("shm", memory.shm, profile.memory.shm_bytes),
    ):
        if need:
            short = _short(have, need)
            yield HostCheck(
                id=f"profile-{name}",
                status="failed" if short else "ok",
                message=f"{gib(need)} are needed, {gib(have) if have is not None else 'an unknown amount'} are there",
                fix=("free some memory" if name == "ram" else f"sudo mount -o remount,size={-(-need // GIB)}G /dev/shm")
                if short
                else "",
            )


def _short(have: int | None, need: int) -> bool:
    return have is not None and have < need


def _port(host: Host, profile: Profile, around: Around) -> HostCheck:
    taken = profile.port in host.facts["listening"] and profile.port not in around.own_ports
    return HostCheck(
        id="port",
        status="failed" if taken else "ok",
        message=f"port {profile.port} is {'taken by another program' if taken else 'free'}",
        fix=f"`sudo ss -ltnp 'sport = :{profile.port}'` names it; or another port in a profile of your own"
        if taken
        else "",
    )


def _disk(profile: Profile, around: Around) -> Iterator[HostCheck]:
    if profile.memory.disk_bytes and around.disk_free is not None:
        short = around.disk_free < profile.memory.disk_bytes
        yield HostCheck(
            id="disk",
            status="failed" if short else "ok",
            message=f"{gib(around.disk_free)} free where the engine keeps its images, "
            f"{gib(profile.memory.disk_bytes)} needed",
            fix="`docker system df` says what can go" if short else "",
        )


def _model(profile: Profile, around: Around) -> Iterator[HostCheck]:
    if around.model is None:
        if profile.model is not None:
            yield HostCheck(id="model", status="skipped", message="no model was named", fix="--model DIR inspects it")
        return
    from builder.checkpoint import inspect

    try:
        found = inspect(around.model)
    except UsageError as trouble:
        yield HostCheck(id="model", status="failed", message=trouble.message, fix=trouble.hint)
        return
    wants = bool(profile.needs and profile.needs.mtp)
    if found.verdict == "rewrite":
        yield HostCheck(
            id="model",
            status="failed" if wants else "warning",
            message=f"its MTP rules do not fit: {found.reason}",
            fix=f"gfx1100 checkpoint fix {around.model}, then serve the folder that it writes",
        )
    elif wants and found.verdict in {"no-mtp", "refuse"}:
        yield HostCheck(
            id="model",
            status="failed",
            message=found.reason,
            fix="a profile without MTP, or a checkpoint whose MTP head is there in BF16",
        )
    else:
        status = "warning" if found.verdict == "unknown" else "ok"
        yield HostCheck(id="model", status=status, message=found.reason)  # type: ignore[arg-type]
