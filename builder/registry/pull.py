"""Pull on the GPU host: a tag is looked at once, everything else goes by digest, and the record must fit the image."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import RegistryError, VerifyError
from builder.models.record import STACK_LABEL, write_record
from builder.registry.attest import attached_record
from builder.registry.client import Client
from builder.registry.loopback import reaches_loopback
from builder.registry.reference import parse_reference
from builder.registry.relay import ANEW, Relay, parts_folder, pull_through, tidy
from builder.registry.room import known_digests, require_room
from builder.registry.sign import require_signature

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.engine.port import Engine, Image
    from builder.models.record import Record
    from builder.registry.reference import Reference
    from builder.settings import Settings

# An engine's progress names a layer by the first 12 digits of its digest
_HAD = re.compile(r"\b([0-9a-f]{12}):? already exists", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """What was pulled.

    Attributes:
        digest: The image's digest in its repository.
        pulled_bytes: Compressed bytes of the layers that the engine did not have; 0 when it had the image.
        record: The record that came with it.
        image: The engine's image.
    """

    digest: str
    pulled_bytes: int
    record: Record
    image: Image


def pull(
    engine: Engine,
    reference: str,
    *,
    stack: str | None = None,
    resumable: bool = True,
    settings: Settings,
    records: Path,
    on_progress: Callable[[str], None],
) -> Pulled:
    """Pull an image by digest, check it against its record, and keep the record.

    A pull that was killed is taken up where it was, as the bytes of layers are kept in the cache until all are there.
    Nothing is removed, so the image before it stays. The image gets its immutable tag on this engine as well, because
    an image without any tag is taken away by the engine's own pruning.

    Args:
        engine: Where the image shall be.
        reference: ``repository@digest``; or ``repository:tag``, which is looked up once.
        stack: What it must be; None for any.
        resumable: Keep the bytes of layers, where the engine can be reached that way and the disk has room.
        settings: The cache, the CA bundle, and the key that ``require_signature`` names.
        records: The folder of this host's records.
        on_progress: Takes a line a step.

    Raises:
        UsageError: ``reference`` is none.
        HostError: The engine's disk has no room for it; nothing was pulled.
        RegistryError: The digest or the record is not in the registry, or the pull failed.
        VerifyError: The record is not about this image, its signature is not there, it is another stack, or the engine
            has another image after the pull.
    """
    asked = parse_reference(reference)
    with parts_folder(settings.cache, on_progress) as parts, Client(settings, on_wait=on_progress) as client:
        manifest = client.manifest(asked)
        if manifest is None:
            raise _unknown(asked)
        place = asked.at(manifest.digest)
        if asked.digest is None:
            on_progress(f"{asked} is {manifest.digest} now; everything from here on goes by this digest")
        record = attached_record(client, place, manifest)
        if record is None or record.published is None:
            raise RegistryError(
                f"no record is attached to {place}, so nothing tells what it is",
                hint="publish it again with `gfx1100 publish`; images of others are pulled with the engine itself",
            )
        if stack not in {None, record.stack}:
            raise VerifyError(f"{place} is {record.stack}, and {stack} was asked for", hint="check the repository")
        if signed := require_signature(place, settings):
            on_progress(signed)
        content = client.image(place, manifest) or manifest
        blobs = {blob.digest: blob for blob in content.blobs}
        layers = {layer.digest: layer.size for layer in content.content.layers}
        had = {""}
        if _holds(engine, place):
            on_progress(f"{engine.name} has {place} already")
        else:
            is_kept = resumable and reaches_loopback(engine)
            if resumable and not is_kept:
                on_progress(f"{engine.name} is on another machine: {ANEW}")
            has_room = require_room(
                engine,
                client,
                place=place,
                record=record,
                layers=layers,
                parts=parts if is_kept else None,
                on_progress=on_progress,
            )
            relay = Relay(
                client=client,
                place=place,
                manifests={one.digest: one for one in (manifest, content)},
                blobs=blobs,
                parts=parts,
                on_progress=on_progress,
            )
            had = _bring(engine, place, relay if has_room else None, on_progress)
        tidy(engine, place, blobs, parts=parts, on_progress=on_progress)
        image = _holds(engine, place)
        if image is None:
            raise VerifyError(
                f"{engine.name} has no image with the digest {place} after its pull",
                hint="do not run what it has instead; pull again",
            )
    engine.tag(image.id, place.repository, record.published.tag)
    write_record(records, record)
    missing = sum(size for layer, size in layers.items() if not layer.startswith(tuple(had)))
    return Pulled(digest=manifest.digest, pulled_bytes=missing, record=record, image=image)


def held_image(engine: Engine, record: Record) -> Image | None:
    """Return the published image of a record as this engine has it, from its registry or from a bundle; else None."""
    published = record.published
    if published is None:
        return engine.image(record.image_id)
    known = engine.image(f"{published.repository}@{published.digest}")
    # a bundle's image came from another place with the same digest
    others = engine.images(f"{STACK_LABEL}={record.stack}") if known is None else []
    return known or next((image for image in others if published.digest in image.digests), None)


def _bring(engine: Engine, place: Reference, relay: Relay | None, on_progress: Callable[[str], None]) -> set[str]:
    """Pull an image, through a relay if there is one, and return how the digests of the layers begin that it had."""
    if relay is not None:
        if pull_through(relay, engine, on_progress):
            # only the manifest moves now, for the image's own name
            engine.pull(place.repository, place.digest or "", on_progress=lambda _: None)
            return relay.blobs.keys() - relay.asked
        on_progress(f"{engine.name} does not come to 127.0.0.1: {ANEW}")
    had: set[str] = set()

    def follow(line: str) -> None:
        had.update(f"sha256:{part}" for part in _HAD.findall(line))
        on_progress(line)

    engine.pull(place.repository, place.digest or "", on_progress=follow)
    return had


def _holds(engine: Engine, place: Reference) -> Image | None:
    """Return the image that the engine knows under this very repository and digest.

    Only the repository's own digest is compared: an image's id differs between an engine's storage back ends.
    """
    image = engine.image(str(place))
    return image if image and place.digest in known_digests(image, place) else None


def _unknown(asked: Reference) -> RegistryError:
    if asked.digest:
        return RegistryError(
            f"{asked} is not in the registry",
            hint="publish it again; another image under a tag is no substitute for it",
        )
    return RegistryError(
        f"{asked} is not in the registry: nothing was published there under this tag",
        hint="check the name, or run `gfx1100 publish`",
    )
