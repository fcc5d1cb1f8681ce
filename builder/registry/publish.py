"""Publish: push the very image that was verified, prove it by its manifest, attach its record, move the channel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import RegistryError, UsageError, VerifyError
from builder.files import sha256
from builder.models.record import Published
from builder.registry.attest import RECORD_TYPE, Payload, attach, attached_record, image_ids
from builder.registry.client import Client
from builder.registry.reference import parse_repository

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from builder.engine.port import Engine
    from builder.models.record import PatchRecord, Record
    from builder.registry.manifest import Manifest
    from builder.registry.reference import Reference
    from builder.settings import Settings

COMMIT_DIGITS, SERIES_DIGITS, IMAGE_DIGITS = 12, 8, 8
NEVER_MOVES = re.compile(r"-[0-9a-f]{12}-[0-9a-f]{8}(?:-[0-9a-f]{8})?$|^sha256-")
# Tags under which lists of referrers stand; they hold no layers
LIST_TAG = "sha256-"
TAGS_LOOKED_AT = 50


@dataclass(frozen=True, kw_only=True)
class Publication:
    """What was published.

    Attributes:
        record: The record, which now says where its image is.
        pushed_bytes: Compressed bytes of the layers that the repository's tags did not hold before.
    """

    record: Record
    pushed_bytes: int


def publish(
    engine: Engine,
    record: Record,
    *,
    to: str,
    channel: str = "latest",
    settings: Settings,
    on_progress: Callable[[str], None],
    payloads: Callable[[Record], Sequence[Payload]] = lambda _: (),
    sign: Callable[[Reference], None] | None = None,
) -> Publication:
    """Push the verified image under its immutable tag, attach what goes with it, and move the channel tag last of all.

    Every step finds what an earlier try left, so a publish that died is simply repeated.

    Args:
        engine: Where the image is.
        record: The record of its build, with the verdict.
        to: The repository, ``host[:port]/name``.
        channel: The tag that people follow.
        settings: The CA bundle comes from here.
        on_progress: Takes a line a step.
        payloads: Given the record, which says where the image is, returns what is attached beside it.
        sign: Signs the digest, before the channel moves.

    Raises:
        UsageError: ``to`` is no repository, or ``channel`` no tag for people.
        VerifyError: The image was not verified, is not the verified one any more, or the registry holds another one.
        RegistryError: The push failed, or the registry refuses or cannot be reached.
    """
    repository = parse_repository(to)
    moving = repository.tagged(channel)
    if NEVER_MOVES.search(channel):
        raise UsageError(f"the channel cannot be called {channel!r}, which has the form of a tag that never moves")
    _refuse_unverified(engine, record)
    with Client(settings, on_wait=on_progress) as client:
        _refuse_other_stack(client, moving, record)
        tag, manifest = _free_tag(client, repository, record, on_progress)
        pushed_bytes = 0
        if manifest is None:
            manifest, pushed_bytes = _push(engine, client, repository.tagged(tag), record, on_progress)
        published = record.model_copy(
            update={"published": Published(repository=repository.repository, tag=tag, digest=manifest.digest)}
        )
        for payload in (_record_payload(published), *payloads(published)):
            attach(
                client,
                repository,
                manifest.digest,
                artifact_type=payload.artifact_type,
                payload=payload.content,
                annotations=payload.annotations,
            )
            on_progress(f"{payload.name} attached to {manifest.digest}")
        if sign:
            sign(repository.at(manifest.digest))
            on_progress(f"{manifest.digest} signed")
        client.put_manifest(moving, manifest.body, manifest.media_type)
        now = client.head(moving)
        if now != manifest.digest:
            raise RegistryError(
                f"{moving} is {now or 'nothing'} after it was moved to {manifest.digest}",
                hint="somebody else may have published at the same time; publish again",
            )
        on_progress(f"{moving} is {manifest.digest} now")
    return Publication(record=published, pushed_bytes=pushed_bytes)


def immutable_tag(record: Record) -> str:
    """Return the tag of a record's image that never moves.

    What is not in it (template, base, wheels, a rebuild that came out differently) may make another image of the same
    name; :func:`publish` adds the first digits of the image's id to the later one's tag.
    """
    return image_tag(record.rocm, record.commit, record.patches)


def image_tag(rocm: str | None, commit: str, patches: Iterable[PatchRecord]) -> str:
    """Return the tag that says what is inside: ROCm release, engine commit, hash of the series.

    The last part is the SHA-256 over a line ``<id> <sha256>`` for each patch in its order.
    """
    series = "".join(f"{patch.id} {patch.sha256}\n" for patch in patches)
    return f"{rocm or 'none'}-{commit[:COMMIT_DIGITS]}-{sha256(series)[:SERIES_DIGITS]}"


def require_verified(record: Record) -> None:
    """Refuse an image that was not verified, or failed.

    Raises:
        VerifyError: Which of the two it is.
    """
    again = f"run `gfx1100 build {record.stack}` again"
    if record.verification is None:
        raise VerifyError(f"the image {record.image_id} of {record.stack} was never verified", hint=again)
    if record.verification.verdict != "ok":
        failed = ", ".join(check.id for check in record.verification.checks if check.status == "failed")
        raise VerifyError(
            f"the image {record.image_id} of {record.stack} failed its verification: {failed}", hint=again
        )


def _refuse_unverified(engine: Engine, record: Record) -> None:
    require_verified(record)
    if engine.image(record.image_id) is None:
        raise VerifyError(
            f"{engine.name} no longer has the verified image {record.image_id}",
            hint=f"run `gfx1100 build {record.stack}` again",
        )


def _refuse_other_stack(client: Client, moving: Reference, record: Record) -> None:
    """Keep a channel to one stack: whoever follows it must not get another engine."""
    current = client.manifest(moving)
    holder = _holder(client, moving, current) if current else None
    if holder and holder.stack != record.stack:
        raise RegistryError(
            f"{moving} holds the stack {holder.stack}, and {record.stack} is to be published",
            hint="publish each stack to a repository of its own, or under a --channel of its own",
        )


def _holder(client: Client, place: Reference, manifest: Manifest) -> Record | None:
    """Return the record of what stands under a tag; None when it has none, or a damaged one."""
    try:
        return attached_record(client, place, manifest)
    except VerifyError:
        # it tells nothing; publishing again repairs it
        return None


def _free_tag(
    client: Client, repository: Reference, record: Record, on_progress: Callable[[str], None]
) -> tuple[str, Manifest | None]:
    """Return the immutable tag that is this image's, and its manifest when the registry has it there already."""
    tag = immutable_tag(record)
    longer = f"{tag}-{record.image_id.removeprefix('sha256:')[:IMAGE_DIGITS]}"
    for candidate in (tag, longer):
        place = repository.tagged(candidate)
        manifest = client.manifest(place)
        if manifest is None:
            return candidate, None
        if record.image_id in image_ids(client, place, manifest):
            on_progress(f"{place} holds this very image already; nothing to push")
            return candidate, manifest
        on_progress(_occupied(client, place, manifest, record))
    raise VerifyError(
        f"{repository.tagged(longer)} holds another image already, and such a tag never moves",
        hint="publish to another repository, or delete that tag in the registry if nobody uses its image",
    )


def _push(
    engine: Engine, client: Client, place: Reference, record: Record, on_progress: Callable[[str], None]
) -> tuple[Manifest, int]:
    """Push the verified image and return its manifest, as the registry has it, and the bytes pushed."""
    known = _known_layers(client, place)
    name = f"{place.repository}:{place.tag}"
    engine.tag(record.image_id, place.repository, place.tag or "")
    tagged = engine.image(name)
    if tagged is None or tagged.id != record.image_id:
        raise VerifyError(
            f"{name} is {tagged.id if tagged else 'nothing'} on {engine.name}, and {record.image_id} was verified",
            hint=f"somebody else tags images there; run `gfx1100 publish {record.stack}` again",
        )
    on_progress(f"push {name}")
    digest = engine.push(place.repository, place.tag or "", on_progress=on_progress)
    manifest = client.manifest(place.at(digest))
    if manifest is None:
        raise RegistryError(f"{place.at(digest)} is not there after its push", hint="publish again")
    if record.image_id not in image_ids(client, place, manifest):
        raise VerifyError(
            f"{place.at(digest)} is not the image that was verified ({record.image_id})",
            hint=f"the channel was not moved; delete the tag {place.tag} in the registry and publish again",
        )
    sizes = client.layers(place, manifest).items()
    return manifest, sum(size for layer, size in sizes if layer not in known)


def _occupied(client: Client, place: Reference, manifest: Manifest, record: Record) -> str:
    """Return what to say about an immutable tag that holds another image; a rebuild is told from other content."""
    holder = _holder(client, place, manifest)
    rebuilt = holder is not None and holder.context_sha256 == record.context_sha256
    return (
        f"{place} holds {'another build of the very same context' if rebuilt else 'another image'} "
        f"({manifest.digest}) and never moves; this one's tag ends with its image's id"
    )


def _known_layers(client: Client, repository: Reference) -> set[str]:
    """Return the layers that the repository's tags hold.

    An engine tells the digests of compressed layers only by pushing them, so they are compared with these afterwards.
    """
    known: set[str] = set()
    for tag in [tag for tag in client.tags(repository) if not tag.startswith(LIST_TAG)][:TAGS_LOOKED_AT]:
        manifest = client.manifest(repository.tagged(tag))
        known.update(client.layers(repository, manifest) if manifest else ())
    return known


def _record_payload(record: Record) -> Payload:
    return Payload(
        name="record",
        artifact_type=RECORD_TYPE,
        content=record.text().encode(),
        annotations={
            "org.opencontainers.image.title": f"record of {record.stack} {record.version}",
            "org.opencontainers.image.created": record.created,
            "org.opencontainers.image.revision": record.commit,
        },
    )
