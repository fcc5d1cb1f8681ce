"""Pull on the GPU host: a tag is looked at once, everything else goes by digest, and the record must fit the image."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import RegistryError, UsageError, VerifyError
from builder.models.record import STACK_LABEL, write_record
from builder.registry.attest import attached_record
from builder.registry.client import Client
from builder.registry.reference import parse_reference
from builder.registry.room import require_room
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
    settings: Settings,
    records: Path,
    on_progress: Callable[[str], None],
) -> Pulled:
    """Pull an image by digest, check it against its record, and keep the record.

    Nothing is removed, so the image before it stays. The image gets its immutable tag on this engine as well, because
    an image without any tag is taken away by the engine's own pruning.

    Args:
        engine: Where the image shall be.
        reference: ``repository@digest``; or ``repository:tag``, which is looked up once.
        stack: What it must be; None for any.
        settings: The CA bundle, and the key that ``require_signature`` names.
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
    with Client(settings, on_wait=on_progress) as client:
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
        layers = client.layers(place, manifest)
        if _holds(engine, place) is None:
            require_room(engine, client, place=place, record=record, layers=layers, on_progress=on_progress)
    image, had = _bring(engine, place, on_progress)
    engine.tag(image.id, place.repository, record.published.tag)
    write_record(records, record)
    missing = sum(size for layer, size in layers.items() if not any(layer[7:].startswith(part) for part in had))
    return Pulled(digest=manifest.digest, pulled_bytes=missing, record=record, image=image)


def held_image(engine: Engine, record: Record) -> Image | None:
    """Return the published image of a record as this engine has it, from its registry or from a bundle; else None."""
    published = record.published
    if published is None:
        return engine.image(record.image_id)
    known = engine.image(f"{published.repository}@{published.digest}")
    # a bundle's image came from another place with the same digest
    return known or next(
        (
            image
            for image in engine.images(f"{STACK_LABEL}={record.stack}")
            if any(entry.endswith(f"@{published.digest}") for entry in image.repo_digests)
        ),
        None,
    )


def _bring(engine: Engine, place: Reference, on_progress: Callable[[str], None]) -> tuple[Image, set[str]]:
    """Return the engine's image of a digest, pulled if it has none, and how the digests of the layers it had begin."""
    if _holds(engine, place):
        on_progress(f"{engine.name} has {place} already")
        had = {""}
    else:
        had = set()

        def follow(line: str) -> None:
            had.update(_HAD.findall(line))
            on_progress(line)

        engine.pull(place.repository, place.digest or "", on_progress=follow)
    image = _holds(engine, place)
    if image is None:
        raise VerifyError(
            f"{engine.name} has no image with the digest {place} after its pull",
            hint="do not run what it has instead; pull again",
        )
    return image, had


def _holds(engine: Engine, place: Reference) -> Image | None:
    """Return the image that the engine knows under this very repository and digest.

    Only the repository's own digest is compared: an image's id differs between an engine's storage back ends.
    """
    image = engine.image(str(place))
    return image if image and place in map(_parsed, image.repo_digests) else None


def _parsed(entry: str) -> Reference | None:
    try:
        return parse_reference(entry)
    except UsageError:
        # an engine lists ``<none>@sha256:…`` when it lost the name
        return None


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
