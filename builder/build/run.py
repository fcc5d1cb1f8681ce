"""The build of a stack from end to end: stage, preflight, image, verification, record."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builder import __version__
from builder.build.budgets import Patched, compile_touched
from builder.build.compiler import STAGE as TOOLCHAIN
from builder.build.compiler import accepted, compiler_questions
from builder.build.image import build_image
from builder.build.kernels import proofs_of
from builder.build.preflight import Needs, preflight
from builder.engine.base import bootstrap_base
from builder.engine.buildkit import find_builder
from builder.errors import UsageError, VerifyError
from builder.files import canonical_json, sha256, sha256_file, write_atomic
from builder.models.record import Record, read_record, record_path, timestamp, write_record
from builder.registry.publish import image_tag
from builder.registry.reference import parse_reference
from builder.resolve.wheelhouse import require_full
from builder.stage.context import Context, Origin, make_context
from builder.stage.inputs import series_of
from builder.verify.checks import LABEL
from builder.verify.run import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.build.image import BuiltImage
    from builder.console import Console
    from builder.engine.port import Engine, Image
    from builder.kernels.report import Report
    from builder.models.lock import Lock
    from builder.models.record import Published
    from builder.models.stack import Stack
    from builder.patching.series import Series
    from builder.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is built, where, and how.

    Attributes:
        root: The checkout.
        stack: What to build.
        lock: Its lock.
        engine: Where to build.
        origin: What the user asked for instead of what the lock says.
        settings: Caches, jobs, certificates, mirrors.
        console: Where progress goes.
        no_cache: Build every step anew.
        install: Programs that make a base image may be installed from the distribution.
        offline: No step reaches the network: everything comes from the caches, the mirror and the wheelhouse.
    """

    root: Path
    stack: Stack
    lock: Lock
    engine: Engine
    origin: Origin
    settings: Settings
    console: Console
    no_cache: bool = False
    install: bool = False
    offline: bool = False

    def series(self) -> Series:
        """Return the patches of the stack and those that the user appended."""
        return series_of(self.root, self.stack, self.origin.patches)


def build(job: Job, records: Path) -> tuple[Record, Path]:
    """Build a stack into a verified image and write its record into the folder of the records.

    Returns:
        The record and its path.

    Raises:
        HostError: This host cannot build it; nothing heavy was begun.
        PatchError: A patch does not apply.
        BuildError: The build failed, or a kernel is not as the series promises; then nothing was built.
        VerifyError: The image is there, and its record says what is wrong with it.
    """
    with _staged(job) as (context, image, kernels):
        built = image(
            tags=(f"gfx1100/{job.stack.name}:{image_tag(job.stack.rocm, context.commit, context.patches)}",),
            labels={
                LABEL + "dockerfile-sha256": context.dockerfile_sha256,
                LABEL + "context-sha256": context.context_sha256,
                LABEL + "manifest-sha256": sha256_file(context.folder / "chain" / "manifest.json"),
            },
        )
    job.console.step(
        f"built {built.image_id[:19]} in {built.seconds:.1f} s, {built.cached_steps} of {built.steps} steps cached"
    )
    return _verified(job, context, built.image, kernels, records)


def build_stage(job: Job, stage: str) -> str:
    """Build one stage of a stack and push it to the setting ``build_cache``, for a build on another machine.

    That build takes the stage's layers instead of running its steps; so the compilers may run in one job of a hosted
    runner and everything else in the next.

    Returns:
        What was pushed, by digest.

    Raises:
        UsageError: No ``build_cache`` is set, or it has no tag.
        ToolError: As :func:`build`; or the push failed.
    """
    place = parse_reference(job.settings.build_cache or "")
    if place.tag is None:
        raise UsageError(f"the setting build_cache names {place}, which has no tag", hint="write HOST/NAME:TAG")
    with _staged(job) as (_, image, _):
        built = image(tags=(str(place),), target=stage, keeps_cache=True)
    job.console.step(f"built {stage} in {built.seconds:.1f} s, {built.cached_steps} of {built.steps} steps cached")
    return str(place.at(job.engine.push(place.repository, place.tag, on_progress=job.console.step)))


@contextlib.contextmanager
def _staged(job: Job) -> Iterator[tuple[Context, Callable[..., BuiltImage], Report | None]]:
    """Check the host, make bases and context, compile the touched kernels; yield context, what builds it, figures."""
    stack, lock, engine, settings, console = job.stack, job.lock, job.engine, job.settings, job.console
    if job.offline:
        require_full(stack, lock, settings)
    ready = preflight(engine, find_builder(), Needs.of(stack), settings=settings)
    for line in ready.lines:
        console.note(f"  {line}")
    for base in (stack.bases.build, stack.bases.runtime):
        if base.bootstrap:
            bootstrap_base(
                engine,
                base.bootstrap.suite,
                cache=settings.cache,
                mirror=settings.apt_mirror,
                console=console,
                install=job.install,
            )
    with tempfile.TemporaryDirectory(prefix="gfx1100-") as scratch:
        context = make_context(job.root, stack, lock, Path(scratch, "context"), origin=job.origin, settings=settings)
        console.step(
            f"staged {stack.name} {context.version}: {context.context_bytes / 1e6:.1f} MB in {context.seconds:.1f} s"
        )
        image = partial(
            build_image,
            engine,
            context.folder,
            settings=settings,
            jobs=ready.jobs,
            log=job.root / "logs" / f"{stack.name}-{timestamp().replace(':', '')}.log",
            console=console,
            no_cache=job.no_cache,
            offline=job.offline,
        )
        kernels = None
        if stack.device == "rocm":
            toolchain = functools.cache(lambda: image(tags=(), target=TOOLCHAIN).image_id)
            series = job.series()
            questions = compiler_questions(series)
            unneeded = accepted(engine, toolchain(), questions, arch=stack.arch) if questions else {}
            if unneeded:
                context = make_context(
                    job.root, stack, lock, context.folder, origin=job.origin, settings=settings, unneeded=unneeded
                )
            patched = Patched(
                tree=context.folder / "source",
                originals=context.originals,
                proofs=proofs_of(series, stack, context.patches),
            )
            kernels = compile_touched(engine, toolchain, stack, patched, jobs=ready.jobs, console=console)
        yield context, image, kernels


def _verified(job: Job, context: Context, image: Image, kernels: Report | None, records: Path) -> tuple[Record, Path]:
    stack, console = job.stack, job.console
    examination = verify(job.engine, image, stack, job.series())
    reports = records.parent / "reports"
    examination.keep(reports)
    figures = canonical_json(kernels.document()) if kernels else None
    if figures:
        place = reports / f"{sha256(figures)[:16]}-kernels.json"
        write_atomic(place, figures)
        console.note(f"  kernels: {place}")
    found = examination.verification
    record = Record(
        format=1,
        stack=stack.name,
        created=timestamp(),
        tool=__version__,
        lock_sha256=context.lock_sha256,
        repository=context.repository,
        ref=context.ref,
        commit=context.commit,
        version=context.version,
        patches=context.patches,
        dockerfile_sha256=context.dockerfile_sha256,
        context_sha256=context.context_sha256,
        image_id=image.id,
        image_bytes=image.size,
        rocm=stack.rocm,
        kernels_sha256=sha256(figures) if figures else None,
        unproven=stack.unproven,
        verification=found,
    )
    record = record.model_copy(update={"published": _published(job, records, record, image)})
    path = write_record(records, record)
    failed = [check for check in found.checks if check.status == "failed"]
    if failed:
        lines = "\n".join(f"  {check.id}: {check.message}\n    do: {check.fix}" for check in failed)
        raise VerifyError(
            f"the image of {stack.name} failed:\n{lines}", hint=f"its record is {path}; it cannot be published"
        )
    console.step(f"verified: {len(found.checks)} checks")
    for line in stack.unproven:
        console.note(f"  not proven by this rehearsal: {line}")
    return record, path


def _published(job: Job, records: Path, record: Record, image: Image) -> Published | None:
    """Return where the same image was published before, as long as the engine knows it by that digest."""
    path = record_path(records, record.stack, record.image_id)
    if not path.exists():
        return None
    try:
        before = read_record(path)
    except UsageError as trouble:
        job.console.note(f"  replaced: {trouble.message}")
        return None
    is_same = (before.image_id, before.context_sha256) == (record.image_id, record.context_sha256)
    return before.published if is_same and before.published and before.published.digest in image.digests else None
