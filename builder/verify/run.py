"""Verify an image or a file: find what is expected, gather the evidence, run the checks, give the verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.errors import UsageError
from builder.files import canonical_json, sha256, write_atomic
from builder.models.record import Verification
from builder.models.stack import Stack, load_stack
from builder.stage.inputs import series_of
from builder.verify.checks import FILES, LABEL, run_checks
from builder.verify.evidence import gather

if TYPE_CHECKING:
    from pathlib import Path

    from builder.engine.port import Engine, Image
    from builder.patching.series import Series
    from builder.verify.checks import Evidence


@dataclass(frozen=True, kw_only=True)
class Examination:
    """A verdict with the reports that it was made from.

    Attributes:
        verification: What goes into the record.
        reports: By name, the canonical JSON whose hash the verification holds.
        objects: What ``verify --json`` says of the libraries with device code.
    """

    verification: Verification
    reports: dict[str, str]
    objects: tuple[dict[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
        """Return what ``verify --json`` prints."""
        return {**self.verification.model_dump(mode="json"), "objects": list(self.objects)}

    def keep(self, folder: Path) -> None:
        """Write each report to ``<first 16 digits of its hash>-<name>.json`` of a folder."""
        for name, text in self.reports.items():
            write_atomic(folder / f"{sha256(text)[:16]}-{name}.json", text)


def verify_image(
    engine: Engine,
    reference: str,
    *,
    root: Path,
    stack: str | None = None,
    patches: tuple[Path, ...] = (),
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
) -> Examination:
    """Verify an image of the engine by name or id.

    Args:
        engine: Where the image is.
        reference: Name, digest or id.
        root: The checkout, whose stacks say what is expected.
        stack: The stack that it should be; None for the one that its label names.
        patches: Folders whose patches were appended to the series when it was built.
        only: The checks to run; none for all.
        skip: Checks to leave out.

    Raises:
        UsageError: There is no such image or check, or nothing says what it should be.
        VerifyError: The image carries no chain, or the probe cannot run in it.
    """
    image = engine.image(reference)
    if image is None:
        raise UsageError(f"{reference!r} is no image of {engine.name}, and no file or folder here")
    name = stack or image.labels.get(LABEL + "stack")
    if name is None:
        raise UsageError(f"{reference!r} has no label {LABEL}stack", hint="say what it should be with --stack")
    wanted = load_stack(root, name)
    return examine(gather(engine, image, wanted, series_of(root, wanted, patches)), only=only, skip=skip)


def verify(engine: Engine, image: Image, stack: Stack, series: Series) -> Examination:
    """Run all checks over an image and return the verdict."""
    return examine(gather(engine, image, stack, series))


def examine(evidence: Evidence, *, only: Iterable[str] = (), skip: Iterable[str] = ()) -> Examination:
    """Run the checks over evidence and return the verdict with the reports behind it."""
    checks = run_checks(evidence, only=only, skip=skip)
    objects = {library.path: library.row() for several in (evidence.objects or {}).values() for library in several}
    rows = tuple(objects[path] for path in sorted(objects))
    files = {part: getattr(evidence, part) for part in FILES}
    told = {"probe": evidence.answer, "files": files, "objects": rows}
    reports = {name: canonical_json(value) for name, value in told.items() if value is not None}
    bad = any(check.status == "failed" for check in checks)
    return Examination(
        verification=Verification(
            verdict="failed" if bad else "ok",
            checks=checks,
            report_sha256={name: sha256(text) for name, text in reports.items()},
        ),
        reports=reports,
        objects=rows,
    )
