"""The command that proves an image, a wheel, a folder of packages or one library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder.cli.state import State
from builder.console import table
from builder.errors import UsageError, VerifyError

if TYPE_CHECKING:
    from builder.models.record import Check

# how a path begins or ends, and no reference of an image does
PATHS = (("/", "./", "../"), ("/", ".whl", ".so", ".hsaco"))


def verify(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="IMAGE|WHEEL|FOLDER|FILE", help="Image reference or id, or a path: wheel, site-packages, library."
        ),
    ],
    *,
    stack: Annotated[
        str | None, typer.Option("--stack", help="What it should be; by default what the image's label says.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CHECK", help="Run this check alone; may be repeated.")
    ] = None,
    patches: Annotated[
        list[Path] | None,
        typer.Option("--patches", metavar="DIR", help="Folder of patches that an image was built with as well."),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="CHECK", help="Leave this check out; may be repeated.")
    ] = None,
) -> None:
    """Run all static and in-image checks; no GPU is needed. docs/checks.md explains each.

    Example: gfx1100 verify gfx1100/smoke:latest --skip size
    """
    from builder.verify.local import verify_path
    from builder.verify.run import verify_image

    state: State = context.obj
    if not target:
        raise UsageError("the target is empty", hint="name a wheel, a folder of packages, a library or an image")
    if (target.startswith(PATHS[0]) or target.endswith(PATHS[1])) and not Path(target).exists():
        raise UsageError(f"{target} is not there", hint="name a wheel, a folder of packages, a library or an image")
    if Path(target).exists():
        found = verify_path(Path(target), root=state.root, stack=stack, only=only or (), skip=skip or ())
    else:
        found = verify_image(
            state.engine,
            target,
            root=state.root,
            stack=stack,
            patches=tuple(patches or ()),
            only=only or (),
            skip=skip or (),
        )
    checks = found.verification.checks
    failed = [check for check in checks if check.status == "failed"]
    rows = [(check.status, check.id, check.message) for check in checks]
    state.console.result(found.as_json(), "\n".join([table(["", "check", "found"], rows), *map(advice, failed)]))
    if failed:
        raise VerifyError(
            f"{target} failed: {', '.join(check.id for check in failed)}", hint="do what is said under each of them"
        )


def advice(check: Check) -> str:
    """Return what a failed check means and what to do about it."""
    return f"\n{check.id} failed: {check.message}\n  means: {check.means}\n  do: {check.fix}"
