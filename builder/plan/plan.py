"""What a profile needs on this host: memory of the cards, KV tokens, RAM and /dev/shm, and which flag to change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.lint.words import of_profile
from builder.models.stack import load_stack
from builder.plan.cards import CARD_BYTES, Plan, Term, on_sglang, on_vllm, whole
from builder.plan.shape import Shape, gib, known_shape, read_shape
from builder.stage.inputs import series_of

if TYPE_CHECKING:
    from pathlib import Path

    from builder.lint.command import Command
    from builder.models.profile import Profile

GIB = 1 << 30
WORKER_RAM = 4 * GIB
DEFAULT_OFFLOAD = 8 * GIB


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """What a host has, as far as it is known.

    Attributes:
        vram: Bytes of each chosen card; empty when no host was read.
        ram: RAM that is free, or None.
        shm: Size of the host's /dev/shm, or None.
    """

    vram: tuple[int, ...] = ()
    ram: int | None = None
    shm: int | None = None


def plan(profile: Profile, root: Path, *, model: Path | None = None, host: HostMemory = HostMemory()) -> Plan:
    """Return what a profile needs and how many tokens fit.

    Args:
        profile: How to serve.
        root: The checkout, for the shapes of ``profiles/models/``.
        model: The checkpoint; by default the shape that the profile names.
        host: What the host has; a 24 GB card is taken where none is known.

    Raises:
        UsageError: Neither a checkpoint nor a shape is there, or the command is of an engine that plan does not know.
    """
    command = of_profile(profile)
    needs = profile.needs
    if model is None and (needs is None or needs.shape is None):
        raise UsageError(
            f"the profile {profile.name} names no model shape", hint="give the checkpoint with --model DIR"
        )
    shape = read_shape(model) if model is not None else known_shape(root, needs.shape)  # type: ignore[union-attr,arg-type]
    drafter = known_shape(root, needs.drafter_shape) if needs and needs.drafter_shape else None
    if shape.checkpoint_bytes is None:
        raise UsageError(f"{model}: no safetensors files, so the size of the weights is not known")
    card = min(host.vram[: command.cards] or (CARD_BYTES,))
    on_card = (on_vllm if command.engine == "vllm" else on_sglang)(command, shape, drafter, card)
    advice, fits = list(on_card.advice), on_card.fits
    terms, short = _host(profile, command, shape, host)
    if len(host.vram) < command.cards and host.vram:
        advice.append(f"{command.cards} cards are needed, {len(host.vram)} are there")
        fits = False
    patched = _patch_terms(profile, root)
    rest = next((term.value for term in on_card.terms if term.name == "rest"), 0)
    if patched and sum(term.value for term in patched) > rest:
        advice.append(f"the patches need more than the {gib(rest)} that are left: lower the share that is given to KV")
        fits = False
    return replace(
        on_card,
        fits=fits and not short,
        terms=(Term("vram", card, "mem_info_vram_total"), *on_card.terms, *patched, *terms),
        advice=(*advice, *short),
    )


def _offload(given: object) -> int:
    """Return the bytes of the CPU cache; raises UsageError when the command gives no number."""
    if isinstance(given, bool) or not isinstance(given, int | float) or given != given or given < 0:  # noqa: PLR0124 - nan
        raise UsageError(f"--kv-transfer-config: cpu_bytes_to_use is {given!r}, which is no number of bytes")
    return int(given)


def _patch_terms(profile: Profile, root: Path) -> list[Term]:
    """Return what the parameters of the stack's patches cost on each card, which the engine takes from the rest."""
    if profile.stack is None:
        return []
    stack = load_stack(root, profile.stack)
    series = series_of(root, stack)
    values, declared = series.parameters(stack.parameters), series.declared()
    return [
        Term(name, value * each, f"{value} x {each >> 20} MiB of the patch parameter {name}; from the rest")
        for name, value in values.items()
        if (each := declared[name].vram_bytes_each)
    ]


def _host(profile: Profile, command: Command, shape: Shape, host: HostMemory) -> tuple[list[Term], list[str]]:
    """Return the terms of RAM and /dev/shm, and an advice for each that does not suffice."""
    transfer = command.json("--kv-transfer-config")
    extra = transfer.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, dict) else {}
    offload = _offload(extra.get("cpu_bytes_to_use") or DEFAULT_OFFLOAD) if transfer.get("kv_connector") else 0
    hicache = whole(command, "--hicache-size", 0, least=0) * 10**9 * command.cards
    experts = shape.expert_bytes if "VLLM_MOE_EXPERT_CACHE_SIZE" in command.environment else 0
    ram = max(profile.memory.ram_bytes, offload + hicache + experts + command.cards * WORKER_RAM)
    terms = [
        Term("ram", ram, "the profile's own figure, or cache + experts + 4 GiB a worker"),
        Term("offload", offload, "cpu_bytes_to_use; 8 GiB when it is not given"),
    ]
    advice = []
    if host.ram is not None and host.ram < ram:
        room = host.ram - (ram - offload)
        least = f'set "cpu_bytes_to_use" to {max(0, room) // GIB * GIB}' if offload and room >= GIB else "free some"
        advice.append(f"RAM: {gib(ram)} are needed and {gib(host.ram)} are free; {least}")
    if host.shm is not None and profile.memory.shm_bytes > host.shm:
        advice.append(
            f"the host's /dev/shm has {gib(host.shm)} and {gib(profile.memory.shm_bytes)} are needed: "
            f"sudo mount -o remount,size={-(-profile.memory.shm_bytes // GIB)}G /dev/shm"
        )
    return terms, advice
