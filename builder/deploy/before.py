"""What is known before anything is started: the host, the command, the checkpoint, the plan. Nothing is changed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from builder.deploy.labels import rivals, running, target_of
from builder.errors import HostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.console import Console
    from builder.engine.port import Container, Engine
    from builder.host.host import Host
    from builder.host.nodes import HostCheck
    from builder.models.profile import Profile

FREE_SECONDS = 60.0
POLL_SECONDS = 1.0
# what a card holds with nothing on it: firmware, page tables, a console
IDLE_BYTES = 1 << 30
# checks of a profile that are made here by themselves, or not yet
OWN = {"plan", "model"}


def check(engine: Engine, profile: Profile, host: Host, *, root: Path, model: Path | None, console: Console) -> None:
    """Hold a profile against the host, the rules, its checkpoint and its memory, in this order.

    Args:
        engine: Where it shall run.
        profile: The profile.
        host: The engine's host.
        root: The checkout.
        model: The checkpoint, when it is on this machine.
        console: Where warnings go.

    Raises:
        HostError: The host is not fit, or the profile does not fit into it.
        UsageError: The command has an error, or the checkpoint would not load.
    """
    _check_host(engine, profile, host, root, console)
    _check_command(profile, console)
    if model is not None and model.is_dir():
        check_checkpoint(profile, model, console)
    _check_plan(profile, host, root, model=model, stays=rivals(engine, profile, host.devices), console=console)


def check_checkpoint(profile: Profile, model: Path, console: Console) -> None:
    """Stop at a checkpoint whose MTP layer the engine would not load.

    Raises:
        UsageError: It would not; the hint is the command that repairs it.
    """
    from builder.checkpoint import inspect

    found = inspect(model)
    if found.verdict == "rewrite":
        raise UsageError(
            f"{model} would not load: {found.reason}",
            hint=f"gfx1100 checkpoint fix {model}, then --model {model}-mtp-fixed",
        )
    fits = found.as_json()["fits"]
    if found.verdict == "refuse" and not fits.get(profile.engine or "", True):
        raise UsageError(
            f"{model} would not load with {profile.engine}: {found.reason}",
            hint="take another checkpoint, or a profile of the other engine",
        )
    if found.verdict == "unknown":
        console.note(f"warning: {model}: {found.reason}")


def wait_for_cards(read: Callable[[], Host], devices: tuple[str, ...], *, console: Console) -> None:
    """Wait until the memory of the chosen cards is free, which is some time after a process has ended.

    Args:
        read: Reads the host.
        devices: The chosen device nodes.
        console: Where it is said when they do not come free: something else holds them.
    """
    deadline = time.monotonic() + FREE_SECONDS
    while True:
        held = [g for g in read().chosen if g.render_node in devices and (g.vram_used or 0) > IDLE_BYTES]
        if not held:
            return
        if time.monotonic() > deadline:
            told = ", ".join(f"{gpu.pci} ({(gpu.vram_used or 0) / IDLE_BYTES:.1f} GiB)" for gpu in held)
            console.note(f"warning: memory is still in use on {told}; `gfx1100 doctor` names who holds it")
            return
        time.sleep(POLL_SECONDS)


def _check_host(engine: Engine, profile: Profile, host: Host, root: Path, console: Console) -> None:
    from builder.host.doctor import diagnose
    from builder.host.fitness import Around, profile_checks

    held = {target.port for one in running(engine) if (target := target_of(one)) is not None}
    around = Around(root=root, own_ports=frozenset(held))
    more = [one for one in profile_checks(host, profile, around) if one.id not in OWN]
    stays = rivals(engine, profile, host.devices)
    checks = diagnose(host, engine=engine.name, more=more).checks if profile.gpus else tuple(more)
    failed: list[HostCheck] = []
    for one in checks:
        # what the deployment before it holds of the memory comes free when it is stopped
        if one.status == "failed" and not (one.id == "profile-ram" and stays):
            failed.append(one)
        elif one.status in {"warning", "failed"} and not (one.id == "in-use" and stays):
            console.note(f"warning: {one.id}: {one.message}")
    if failed:
        raise HostError(
            f"{host.where} is not ready for {profile.name}:\n"
            + "\n".join(f"  {one.id}: {one.message}" for one in failed),
            hint="; ".join(one.fix for one in failed if one.fix) or "`gfx1100 doctor` shows all of it",
        )


def _check_command(profile: Profile, console: Console) -> None:
    from builder.lint.run import lint
    from builder.lint.words import of_profile

    if profile.engine not in {"vllm", "sglang"}:
        return
    errors = []
    for finding in lint(of_profile(profile)):
        told = f"{finding.found.flag}: {finding.found.message} ({finding.rule.id})"
        if finding.rule.severity == "error":
            errors.append((told, finding.found.fix))
        elif finding.rule.severity == "warning":
            console.note(f"warning: {told}")
    if errors:
        raise UsageError(
            f"the command of {profile.name} has {len(errors)} error(s):\n"
            + "\n".join(f"  {told}" for told, _ in errors),
            hint="; ".join(fix for _, fix in errors),
        )


def _check_plan(
    profile: Profile, host: Host, root: Path, *, model: Path | None, stays: list[Container], console: Console
) -> None:
    from builder.plan.plan import HostMemory, plan

    if profile.engine not in {"vllm", "sglang"} or not profile.gpus:
        return
    memory = host.memory()
    if stays:
        # what they hold of the RAM comes free when they are stopped, and nobody knows how much that is
        memory = HostMemory(vram=memory.vram, shm=memory.shm)
    found, known = None, model if model is not None and model.is_dir() else None
    # a checkpoint that says too little of its shape leaves the profile's own one
    for folder in dict.fromkeys((known, None)):
        try:
            found = plan(profile, root, model=folder, host=memory)
            break
        except UsageError as unknown:
            console.note(f"no plan: {unknown.message}")
    if found is None:
        return
    if not found.fits:
        raise HostError(f"{profile.name} does not fit on {host.where}", hint="; ".join(found.advice))
    console.step(f"it fits: {found.kv_tokens:,} KV tokens")
