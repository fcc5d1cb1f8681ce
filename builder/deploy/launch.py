"""The whole way of ``serve``: look at host, command, checkpoint and plan; pull, place, start, or say what would be."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from builder.deploy.history import read_history
from builder.deploy.labels import DEPLOYMENT, Target, cards_of, remote_host, rivals, running, target_of
from builder.deploy.mounts import check_readable
from builder.deploy.serve import Deployment, serve
from builder.deploy.spec import Shown, container_spec, place
from builder.errors import HostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.console import Console
    from builder.engine.port import Container, Engine, Image
    from builder.host.host import Host
    from builder.host.nodes import HostCheck
    from builder.models.profile import Profile

FREE_SECONDS = 60.0
POLL_SECONDS = 1.0
# what a card holds with nothing on it: firmware, page tables, a console
IDLE_BYTES = 1 << 30


def launch(
    engine: Engine,
    profile: Profile,
    find_image: Callable[[], tuple[Image, str]],
    *,
    root: Path,
    state: Path,
    console: Console,
    model: Path | None = None,
    drafter: Path | None = None,
    contexts: tuple[int, ...] | None = None,
    dry_run: bool = False,
) -> Deployment | Shown:
    """Check the host, the command, the checkpoint and the memory, get the image, and serve.

    Args:
        engine: Where to run.
        profile: How to serve.
        find_image: Returns the image and what history calls it; pulls it when the engine has it not.
        root: The checkout.
        state: The state folder.
        console: Where progress goes.
        model: The model folder, or None for the one of the last deployment.
        drafter: The draft model's folder, likewise.
        contexts: Prompt lengths of the warm-up, or None for the usual ones.
        dry_run: Start nothing.

    Raises:
        ToolError: A check failed, the pull failed, or the deployment; the class says which.
    """
    console.step(f"on {engine.name}")
    last = read_history(state, profile.name).last_ready()
    if last is not None:
        model = model or (Path(last.model) if last.model else None)
        drafter = drafter or (Path(last.drafter) if last.drafter else None)
    model, drafter = (None if folder is None else folder.absolute() for folder in (model, drafter))
    local = remote_host(engine) is None
    found = None if local else find_image()

    def read() -> Host:
        from builder.host.host import read_engine_host, read_host

        return read_host() if found is None else read_engine_host(engine, found[0].id)

    host = read()
    _check(engine, profile, host, root=root, model=model if local else None, console=console)
    image, reference = found or find_image()
    held = {node for one in running(engine) if one.labels[DEPLOYMENT] != profile.name for node in cards_of(one)}
    placement = place(host, profile, taken=held, model=model, drafter=drafter, local=local)
    if local and model is not None:
        check_readable(model, image)
    if dry_run:
        spec = container_spec(profile, image, reference, placement)
        return Shown(spec=spec, url=Target.of(profile).base(engine))
    return serve(
        engine,
        profile,
        image,
        reference=reference,
        state=state,
        console=console,
        placement=placement,
        contexts=contexts,
        cards_free=lambda: wait_for_cards(read, placement.devices, console=console) if placement.devices else None,
    )


def _check(engine: Engine, profile: Profile, host: Host, *, root: Path, model: Path | None, console: Console) -> None:
    """Hold a profile against the host, the rules, its checkpoint (when it is here) and its memory, in this order."""
    known = profile.engine in {"vllm", "sglang"}
    folder = model if model is not None and model.is_dir() else None
    stays = rivals(engine, profile, host.devices)
    _check_host(engine, profile, host, root, stays=stays, console=console)
    if known:
        _check_command(profile, console)
    if folder is not None:
        check_checkpoint(profile, folder, console)
    if known and profile.gpus:
        _check_plan(profile, host, root, folder, stays=stays, console=console)


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


def _check_host(
    engine: Engine, profile: Profile, host: Host, root: Path, *, stays: list[Container], console: Console
) -> None:
    from builder.host.doctor import diagnose
    from builder.host.fitness import Around, place_checks

    held = {target.port for one in running(engine) if (target := target_of(one)) is not None}
    more = place_checks(host, profile, Around(root=root, own_ports=frozenset(held)))
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
    profile: Profile, host: Host, root: Path, model: Path | None, *, stays: list[Container], console: Console
) -> None:
    from builder.plan.plan import HostMemory, plan

    memory = host.memory()
    if stays:
        # what they hold of the RAM comes free when they are stopped, and nobody knows how much that is
        memory = HostMemory(vram=memory.vram, shm=memory.shm)
    # a checkpoint that says too little of its shape leaves the profile's own one
    for folder in dict.fromkeys((model, None)):
        try:
            found = plan(profile, root, model=folder, host=memory)
            break
        except UsageError as unknown:
            console.note(f"no plan: {unknown.message}")
    else:
        return
    if not found.fits:
        raise HostError(f"{profile.name} does not fit on {host.where}", hint="; ".join(found.advice))
    console.step(f"it fits: {found.kv_tokens:,} KV tokens")
