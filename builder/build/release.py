"""From a verified image to a published one with everything that goes with it: record, SBOM, provenance, signature."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from builder.errors import UsageError, VerifyError
from builder.files import sha256
from builder.models.record import write_record
from builder.registry.attest import Payload
from builder.registry.provenance import PREDICATE, STATEMENT_TYPE, provenance
from builder.registry.publish import Publication, publish
from builder.registry.sbom import SBOM_TYPE, installed_in, sbom
from builder.registry.sign import signer
from builder.verify.evidence import read_chain, read_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.engine.port import Engine
    from builder.models.lock import Lock
    from builder.models.record import Record
    from builder.settings import Settings

CHANNEL = "latest"


def release(
    engine: Engine,
    record: Record,
    *,
    to: str,
    channel: str = CHANNEL,
    sign: str | None = None,
    settings: Settings,
    records: Path,
    on_progress: Callable[[str], None],
) -> Publication:
    """Publish a verified image with its record, SBOM and provenance, sign it when asked to, and keep the record.

    Args:
        engine: Where the image is.
        record: The record of its build.
        to: The repository, ``host[:port]/name``.
        channel: The tag that people follow.
        sign: A key, as :func:`builder.registry.sign.signer` takes it, or None for no signature.
        settings: The CA bundle comes from here.
        records: The folder of this checkout's records.
        on_progress: Takes a line a step.

    Raises:
        ToolError: As :func:`builder.registry.publish.publish`; what can be known before the push is found before it.
    """
    signing = signer(sign, settings) if sign else None
    lock = _lock_of(engine, record)
    installed = installed_in(engine, record.image_id)
    on_progress(
        f"{len(installed.distributions)} Python distributions, {len(installed.packages)} system packages listed"
    )

    def payloads(published: Record) -> tuple[Payload, ...]:
        return (
            Payload(
                name="SBOM",
                artifact_type=SBOM_TYPE,
                content=sbom(published, lock, installed).encode(),
                annotations={"org.opencontainers.image.created": record.created},
            ),
            Payload(
                name="provenance",
                artifact_type=STATEMENT_TYPE,
                content=provenance(published, lock, os.environ).encode(),
                annotations={
                    "in-toto.io/predicate-type": PREDICATE,
                    "org.opencontainers.image.created": record.created,
                },
            ),
        )

    done = publish(
        engine,
        record,
        to=to,
        channel=channel,
        settings=settings,
        on_progress=on_progress,
        payloads=payloads,
        sign=signing,
    )
    write_record(records, done.record)
    return done


def _lock_of(engine: Engine, record: Record) -> Lock:
    """Return the lock that the image carries, which must be the record's."""
    image = engine.image(record.image_id)
    if image is None:
        raise VerifyError(
            f"{engine.name} no longer has the verified image {record.image_id}",
            hint=f"run `gfx1100 build {record.stack}` again",
        )
    chain = read_chain(engine, image)
    try:
        lock = read_lock(chain)
    except UsageError as trouble:
        raise VerifyError(f"the image {record.image_id} carries a damaged lock: {trouble.message}") from trouble
    found = sha256(chain["lock.yaml"])
    if found != record.lock_sha256:
        raise VerifyError(
            f"the image {record.image_id} carries the lock {found[:12]}, and its record says {record.lock_sha256[:12]}",
            hint=f"run `gfx1100 build {record.stack}` again",
        )
    return lock
