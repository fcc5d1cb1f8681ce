"""The commands on the machine that serves, and the walk through everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.state import State
from builder.errors import DeployError, UsageError

if TYPE_CHECKING:
    from builder.engine.port import Image
    from builder.models.profile import Profile

ProfileName = Annotated[str, typer.Argument(metavar="PROFILE", help="Name of a file in profiles/.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (serve, status, logs, stop, rollback, quickstart):
        app.command()(command)


def serve(
    context: typer.Context,
    profile: ProfileName,
    *,
    image: Annotated[
        str | None, typer.Option("--image", metavar="REF", help="Image to serve; by default the newest record's.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be started.")] = False,
) -> None:
    """Pull, start, wait until a prompt is answered, switch over; roll back when that fails.

    Example: gfx1100 serve smoke
    """
    from builder.cli.images import newest_record
    from builder.deploy.serve import serve as deploy
    from builder.models.record import image_reference

    state: State = context.obj
    wanted = _profile(state, profile)
    if dry_run:
        reference = image or image_reference(newest_record(state, wanted.stack))
        command = " ".join(wanted.command)
        state.console.result(
            {"image": reference, "command": list(wanted.command), "port": wanted.port},
            f"{reference}\n{command}\non {wanted.address}:{wanted.port}",
        )
        return
    found, reference = _image(state, wanted, image)
    state.console.step(f"on {state.engine.name}")
    done = deploy(state.engine, wanted, found, reference=reference, state=state.settings.state, console=state.console)
    state.console.result(
        done.as_json(),
        f"ready after {done.answer.seconds:.1f} s: {done.url}\nasked, {done.answer.model} said: {done.answer.text!r}",
    )


def status(context: typer.Context, profile: ProfileName) -> None:
    """Show a deployment; end with 9 when it is not ready.

    Example: gfx1100 status smoke
    """
    from builder.deploy.serve import status as status_of

    state: State = context.obj
    found = status_of(state.engine, _profile(state, profile))
    state.console.result(found.as_json(), found.text())
    if found.state != "ready":
        raise DeployError(f"{profile} is not ready: {found.state}", hint=f"`gfx1100 logs {profile}` shows why")


def logs(
    context: typer.Context,
    profile: ProfileName,
    *,
    lines: Annotated[int, typer.Option("--lines", min=1, help="How many of the last lines.")] = 200,
) -> None:
    """Show the last lines of a deployment's log.

    Example: gfx1100 logs smoke --lines 50
    """
    from builder.deploy.serve import container_name

    state: State = context.obj
    container = state.engine.container(container_name(_profile(state, profile).name))
    if container is None:
        raise UsageError(f"there is no deployment of {profile}", hint=f"run `gfx1100 serve {profile}`")
    text = state.engine.logs(container.id, tail=lines)
    state.console.result({"container": container.name, "lines": text.splitlines()}, text)


def stop(context: typer.Context, profile: ProfileName) -> None:
    """Stop a deployment; its image and its history stay.

    Example: gfx1100 stop smoke
    """
    from builder.deploy.serve import stop as stop_deployment

    state: State = context.obj
    ran = stop_deployment(state.engine, _profile(state, profile).name, state=state.settings.state)
    state.console.result({"stopped": ran}, f"{profile} stopped" if ran else f"{profile} did not run")


def rollback(context: typer.Context, profile: ProfileName) -> None:
    """Go back to the last deployment that was ready before this one; nothing is pulled.

    Example: gfx1100 rollback smoke
    """
    from builder.deploy.serve import rollback_image
    from builder.deploy.serve import serve as deploy

    state: State = context.obj
    wanted = _profile(state, profile)
    image, reference = rollback_image(state.engine, wanted, state=state.settings.state)
    done = deploy(state.engine, wanted, image, reference=reference, state=state.settings.state, console=state.console)
    state.console.result(done.as_json(), f"back on {reference}, ready after {done.answer.seconds:.1f} s: {done.url}")


def quickstart(
    context: typer.Context,
    *,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Install what is missing from the distribution.")
    ] = True,
    keep: Annotated[bool, typer.Option("--keep", help="Leave engine, registry and server running.")] = False,
) -> None:
    """Build, verify, publish, pull, serve and prompt the smoke stack, and print the chain.

    Example: gfx1100 quickstart --keep
    """
    from builder.quickstart import walk

    state: State = context.obj
    done = walk(state.root, settings=state.settings, console=state.console, install=install, keep=keep)
    state.console.result(done.as_json(), done.text())


def _profile(state: State, name: str) -> Profile:
    from builder.models.profile import load_profile

    return load_profile(state.root, name)


def _image(state: State, profile: Profile, named: str | None) -> tuple[Image, str]:
    """Return the image to serve and what history calls it, pulled when it is not on the engine yet."""
    from builder.cli.images import newest_record
    from builder.models.record import image_reference
    from builder.registry.pull import pull
    from builder.registry.reference import parse_reference

    reference = named or image_reference(newest_record(state, profile.stack))
    image = state.engine.image(reference)
    if image is None:
        done = pull(
            state.engine, reference, records=state.records, settings=state.settings, on_progress=state.console.step
        )
        return done.image, str(parse_reference(reference).at(done.digest))
    if "@" not in reference and image.repo_digests:
        return image, image.repo_digests[0]
    return image, reference if "@" in reference else image.id
