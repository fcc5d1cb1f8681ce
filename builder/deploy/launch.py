"""The whole way of ``serve``: look, pull, place, start; or say what would be started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.deploy.before import check, wait_for_cards
from builder.deploy.history import read_history
from builder.deploy.labels import DEPLOYMENT, Target, cards_of, remote_host, running
from builder.deploy.mounts import check_readable
from builder.deploy.serve import Deployment, serve
from builder.deploy.spec import Shown, container_spec, place

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.console import Console
    from builder.engine.port import Engine, Image
    from builder.host.host import Host
    from builder.models.profile import Profile


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
        model = model or _path(last.model)
        drafter = drafter or _path(last.drafter)
    model, drafter = (None if folder is None else folder.absolute() for folder in (model, drafter))
    local = remote_host(engine) is None
    found = None if local else find_image()

    def read() -> Host:
        from builder.host.host import read_engine_host, read_host

        return read_host() if found is None else read_engine_host(engine, found[0].id)

    host = read()
    check(engine, profile, host, root=root, model=model if local else None, console=console)
    image, reference = found or find_image()
    held = {node for one in running(engine) if one.labels[DEPLOYMENT] != profile.name for node in cards_of(one)}
    placement = place(host, profile, taken=held, model=model, drafter=drafter, local=local)
    if local and model is not None:
        check_readable(model, image)
    if dry_run:
        spec = container_spec(profile, image, reference, placement, {})
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


def _path(text: str) -> Path | None:
    from pathlib import Path

    return Path(text) if text else None
