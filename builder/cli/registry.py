"""The commands around published images: what is on this host, and the way to machines that no registry reaches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.state import State
from builder.errors import RegistryError, UsageError

if TYPE_CHECKING:
    from builder.models.record import Record
    from builder.registry.bundle import Bundle


def images(
    context: typer.Context,
    *,
    prune: Annotated[
        bool, typer.Option("--prune", help="Take old images away; never one that runs or is a way back.")
    ] = False,
    keep: Annotated[int, typer.Option("--keep", min=0, help="With --prune: how many of each stack stay.")] = 2,
) -> None:
    """Show the images of this program by stack: which run, and which are the way back.

    Example: gfx1100 images --prune --keep 1
    """
    from builder.deploy.images import held_images, images_text, prune_images

    state: State = context.obj
    held = held_images(state.engine, records=state.records, state=state.settings.state)
    gone, busy = prune_images(state.engine, held, keep=keep) if prune else ([], [])
    left = [one for one in held if one not in gone]
    lines = [
        images_text(left),
        *(f"gone: {one.stack} {one.version} {one.image_id[:19]}" for one in gone),
        *(f"held by a container: {one.stack} {one.version} {one.image_id[:19]}" for one in busy),
    ]
    state.console.result(
        {"images": [one.as_json() for one in left], "pruned": [one.as_json() for one in gone]}, "\n".join(lines)
    )


def bundle(
    context: typer.Context,
    stack: Annotated[str, typer.Argument(metavar="STACK", help="A stack; its newest record says which image.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")],
) -> None:
    """Write the newest image of a stack and everything that goes with it into one file (an OCI layout).

    An image that was not published goes through a registry on loopback first, which gives it its digest.

    Example: gfx1100 bundle smoke -o smoke.tar
    """
    from builder.cli.publishing import newest_record

    state: State = context.obj
    if output.is_dir():
        raise UsageError(f"{output} is a folder", hint=f"name a file in it, such as -o {output / stack}.tar")
    done = _bundled(state, newest_record(state, stack), output)
    state.console.result(
        {"file": str(done.path), "digest": done.digest, "artifacts": done.artifacts, "bytes": done.size},
        f"{done.path}: {done.digest} and {done.artifacts} artifacts, {done.size / 1e6:.1f} MB\n"
        f"on the other machine: gfx1100 load {done.path.name}",
    )


def load(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of `gfx1100 bundle`.")],
) -> None:
    """Bring the image of a bundle into the engine of this machine, by the digest that it was published with.

    Example: gfx1100 load smoke.tar
    """
    from builder.registry.bundle import load_bundle

    state: State = context.obj
    done = load_bundle(
        state.engine, file, settings=state.settings, records=state.records, on_progress=state.console.step
    )
    state.console.result(
        {"digest": done.digest, "image_id": done.image.id, "stack": done.record.stack},
        f"{done.digest}\nits record agrees: {done.record.stack} {done.record.version}",
    )


def _bundled(state: State, record: Record, output: Path) -> Bundle:
    """Return the bundle of a record; through a registry of ours on loopback where no other has the image."""
    from builder.build.release import release
    from builder.engine.local import ensure_registry
    from builder.registry.bundle import write_bundle
    from builder.registry.reference import is_loopback, parse_reference

    say = state.console.step
    if record.published is not None:
        try:
            return write_bundle(record, output, settings=state.settings, on_progress=say)
        except RegistryError as trouble:
            if not is_loopback(parse_reference(record.published.repository).host):
                raise
            say(f"{trouble.message}; publishing it to a registry of this program instead")
    with ensure_registry(install=True, console=state.console, state=state.settings.state) as address:
        done = release(
            state.engine,
            record,
            to=f"{address}/gfx1100/{record.stack}",
            settings=state.settings,
            records=state.records,
            on_progress=say,
        )
        return write_bundle(done.record, output, settings=state.settings, on_progress=say)
