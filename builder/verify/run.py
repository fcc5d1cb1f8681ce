"""Verify an image: find its stack and series, gather the evidence, run the checks, give the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.models.record import Verification
from builder.models.stack import Stack, load_stack
from builder.stage.inputs import series_of
from builder.verify.checks import LABEL, run_checks
from builder.verify.evidence import gather

if TYPE_CHECKING:
    from pathlib import Path

    from builder.engine.port import Engine, Image
    from builder.patching.series import Series


def verify_image(engine: Engine, reference: str, *, root: Path, stack: str | None = None) -> Verification:
    """Verify an image of the engine by name or id.

    Args:
        engine: Where the image is.
        reference: Name, digest or id.
        root: The checkout, whose stacks say what is expected.
        stack: The stack that it should be; None for the one that its label names.

    Raises:
        UsageError: There is no such image, or nothing says what it should be.
        VerifyError: The image carries no chain, or the probe cannot run in it.
    """
    image = engine.image(reference)
    if image is None:
        raise UsageError(f"{reference!r} is no image of {engine.name}")
    name = stack or image.labels.get(LABEL + "stack")
    if name is None:
        raise UsageError(f"{reference!r} has no label {LABEL}stack", hint="say what it should be with --stack")
    wanted = load_stack(root, name)
    return verify(engine, image, wanted, series_of(root, wanted))


def verify(engine: Engine, image: Image, stack: Stack, series: Series) -> Verification:
    """Run all checks over an image and return the verdict; every check is run, whatever the others found."""
    evidence = gather(engine, image, stack, series)
    checks = run_checks(evidence)
    bad = any(check.status == "failed" for check in checks)
    return Verification(verdict="failed" if bad else "ok", checks=checks)
