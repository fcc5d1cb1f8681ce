"""The commands on the machine that serves, and the walk through everything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.host import ProfileName
from builder.cli.state import State
from builder.errors import DeployError, UsageError

if TYPE_CHECKING:
    from builder.engine.port import Image
    from builder.models.profile import Profile


def serve(
    context: typer.Context,
    profile: ProfileName,
    *,
    image: Annotated[
        str | None, typer.Option("--image", metavar="REF", help="Image to serve; by default the newest record's.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="DIR", help="The model folder; by default the last deployment's.")
    ] = None,
    drafter: Annotated[
        Path | None,
        typer.Option("--drafter", metavar="DIR", help="The draft model's folder, where the profile needs one."),
    ] = None,
    warm_up: Annotated[
        str | None,
        typer.Option("--warm-up", metavar="TOKENS", help="Prompt lengths to warm up, such as 512,8192; 0 for none."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and show what would be started.")
    ] = False,
) -> None:
    """Check, pull, start, wait until a prompt is answered, warm up, switch over; roll back when that fails.

    Example: gfx1100 serve vllm-octave-256k --model /srv/models/Qwen3.8-27B-W4A16
    """
    from builder.cli.publishing import newest_verified
    from builder.deploy.launch import launch

    state: State = context.obj
    wanted = _profile(state, profile)
    if image is None and wanted.stack is not None:
        newest_verified(state, wanted.stack)  # what is missing here is told before an engine is asked
    done = launch(
        state.engine,
        wanted,
        lambda: _image(state, wanted, image),
        root=state.root,
        state=state.settings.state,
        console=state.console,
        model=model,
        drafter=drafter,
        contexts=_contexts(warm_up),
        dry_run=dry_run,
    )
    state.console.result(done.as_json(), done.text())


def status(context: typer.Context, profile: ProfileName) -> None:
    """Show a deployment: its state, uptime, restarts, KV use and speed; end with 9 when it is not ready.

    Example: gfx1100 status smoke
    """
    from builder.deploy.status import status as status_of

    state: State = context.obj
    found = status_of(state.engine, _profile(state, profile), state=state.settings.state)
    state.console.result(found.as_json(), found.text())
    if found.state != "ready":
        raise typer.Exit(DeployError.exit_code)


def logs(
    context: typer.Context,
    profile: ProfileName,
    *,
    lines: Annotated[int, typer.Option("--lines", min=1, help="How many of the last lines.")] = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until it ends.")] = False,
) -> None:
    """Show the last lines of a deployment's log.

    Example: gfx1100 logs smoke --follow
    """
    from builder.deploy.labels import NEXT, container_name

    state: State = context.obj
    name = container_name(_profile(state, profile).name)
    container = state.engine.container(name) or state.engine.container(name + NEXT)
    if container is None:
        raise UsageError(f"there is no deployment of {profile}", hint=f"run `gfx1100 serve {profile}`")
    if follow:
        if state.console.as_json:
            raise UsageError("--follow has no end, so it gives no JSON document", hint="leave out --json or --follow")
        for line in state.engine.follow(container.id, tail=lines):
            state.console.line(line)
        return
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
    """Go back to the image of the last deployment that was ready before this one; nothing is pulled.

    Example: gfx1100 rollback smoke
    """
    from builder.deploy.launch import launch
    from builder.deploy.serve import rollback_image

    state: State = context.obj
    wanted = _profile(state, profile)
    image, entry = rollback_image(state.engine, wanted, state=state.settings.state)
    done = launch(
        state.engine,
        wanted,
        lambda: (image, entry.image),
        root=state.root,
        state=state.settings.state,
        console=state.console,
        model=Path(entry.model) if entry.model else None,
        drafter=Path(entry.drafter) if entry.drafter else None,
    )
    state.console.result(done.as_json(), f"back on {entry.image}\n{done.text()}")


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


def _contexts(text: str | None) -> tuple[int, ...] | None:
    """Return the prompt lengths of ``512,8192``; none for ``0``, and None when nothing was said."""
    if text is None:
        return None
    words = text.split(",")
    if not all(word.isdigit() for word in words):
        raise UsageError(f"--warm-up takes numbers of tokens, found {text!r}", hint="such as --warm-up 512,8192, or 0")
    return tuple(int(word) for word in words if int(word))


def _image(state: State, profile: Profile, named: str | None) -> tuple[Image, str]:
    """Return the image to serve and what history calls it, pulled when it is not on the engine yet."""
    from builder.cli.publishing import newest_verified
    from builder.models.record import image_reference
    from builder.registry.pull import held_image, pull
    from builder.registry.reference import parse_reference

    if profile.stack is None:
        return _foreign_image(state, profile, named)
    record = None if named else newest_verified(state, profile.stack)
    reference = image_reference(record) if record else named or ""
    image = held_image(state.engine, record) if record else state.engine.image(reference)
    if image is None:
        done = pull(
            state.engine, reference, records=state.records, settings=state.settings, on_progress=state.console.step
        )
        return done.image, str(parse_reference(reference).at(done.digest))
    if "@" not in reference and image.repo_digests:
        return image, image.repo_digests[0]
    return image, reference if "@" in reference else image.id


def _foreign_image(state: State, profile: Profile, named: str | None) -> tuple[Image, str]:
    """Return an image that was not built here, so it has no record; its tag is looked up once, it is pulled by digest.

    Raises:
        UsageError: None was named.
    """
    from builder.registry.reference import parse_reference

    if named is None:
        raise UsageError(f"{profile.name} has no stack: its image is yours to name", hint="serve it with --image REF")
    image = state.engine.image(named)
    if image is None:
        asked = parse_reference(named)
        digest = asked.digest or state.engine.remote_digest(named)
        image = state.engine.pull(asked.repository, digest, on_progress=state.console.step)
        return image, str(asked.at(digest))
    return image, named if "@" in named else next(iter(image.repo_digests), image.id)
