"""The command that writes a profile for other ways of running it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from builder.cli.host import ProfileName
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.cli.state import State
    from builder.host.host import Host
    from builder.models.profile import Profile


def export(
    context: typer.Context,
    profile: ProfileName,
    *,
    form: Annotated[Literal["compose", "kubernetes", "systemd"], typer.Option("--format", help="For whom.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Where the files go; else the main one is shown."),
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="REF", help="repository@digest; by default the newest record's.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", metavar="DIR", help="The model folder on the host that it is for.")
    ] = None,
    drafter: Annotated[Path | None, typer.Option("--drafter", metavar="DIR", help="The draft model's folder.")] = None,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="How many, for Kubernetes.")] = 1,
) -> None:
    """Write a profile as files of Docker Compose, Kubernetes or systemd; nothing is started.

    Example: gfx1100 export vllm-octave-256k --format kubernetes --replicas 2 -o k8s
    """
    from builder.deploy.export import export as export_profile
    from builder.files import write_atomic
    from builder.models.profile import load_profile

    state: State = context.obj
    wanted = load_profile(state.root, profile)
    done = export_profile(
        state.root,
        wanted,
        form,
        reference=image or _newest(state, wanted),
        host=_host() if wanted.gpus else None,
        model=model,
        drafter=drafter,
        replicas=replicas,
        timers=lambda: _timers(state.root),
    )
    if output is None:
        state.console.result(done.as_json(), done.files[done.main])
        return
    for name, text in done.files.items():
        write_atomic(output / name, text)
    state.console.result(
        {**done.as_json(), "folder": str(output)},
        "\n".join([*(str(output / name) for name in done.files), f"next: {done.step}"]),
    )


def _newest(state: State, profile: Profile) -> str:
    from builder.cli.publishing import newest_verified
    from builder.models.record import image_reference

    if profile.stack is None:
        raise UsageError(f"{profile.name} has no stack: its image is yours to name", hint="--image REPOSITORY@sha256:…")
    return image_reference(newest_verified(state, profile.stack))


def _host() -> Host | None:
    """Return this machine when it has cards."""
    from builder.host.host import read_host

    host = read_host()
    return host if host.chosen else None


def _timers(root: Path) -> Mapping[str, str]:
    import os

    from builder.watch.timers import render_timers

    here = shutil.which("gfx1100")
    program = [here] if here else [sys.executable, "-m", "builder"]
    return render_timers(root, program=program, environ=os.environ)
