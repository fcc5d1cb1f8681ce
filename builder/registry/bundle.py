"""Bundles: a published image with everything that goes with it in one file, for machines that no registry reaches."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import HostError, RegistryError, UsageError, VerifyError
from builder.registry.attest import attached_record, list_referrers
from builder.registry.client import Client
from builder.registry.layout import REF_NAME, Layout, LayoutWriter
from builder.registry.loopback import reaches_loopback, serve
from builder.registry.manifest import Descriptor, pointer
from builder.registry.pull import Pulled, pull
from builder.registry.reference import parse_reference
from builder.registry.relay import drop_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.engine.port import Engine
    from builder.models.record import Record
    from builder.registry.manifest import Manifest
    from builder.registry.reference import Reference
    from builder.settings import Settings

# cosign keeps signatures of its older form under the tag sha256-<digits>.sig
SIGNATURE = ".sig"
# What a bundle's repository is called on loopback
NAME = "gfx1100/bundle"
_SERVED = re.compile(rf"127\.0\.0\.1:[0-9]+/{NAME}[:@]")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle: its file, the digest of the image in it, how many artifacts go with it, and its bytes."""

    path: Path
    digest: str
    artifacts: int
    size: int


def write_bundle(record: Record, path: Path, *, settings: Settings, on_progress: Callable[[str], None]) -> Bundle:
    """Write a published image, its record and everything else that is attached to it into one OCI layout.

    The same publication gives the same bytes. The file is there as a whole or not at all.

    Args:
        record: The record, which says where the image was published.
        path: The file to write.
        settings: The CA bundle comes from here.
        on_progress: Takes a line a step.

    Raises:
        UsageError: The image was not published.
        HostError: The file cannot be written, or there is no room for it.
        RegistryError: The image is not in its registry any more.
        VerifyError: The registry's record is not about this image.
    """
    published = record.published
    if published is None:
        raise UsageError(f"the newest image of {record.stack} was not published", hint="run `gfx1100 publish` first")
    place = parse_reference(published.repository).at(published.digest)
    part = path.with_name(f".{path.name}.part")
    with Client(settings, on_wait=on_progress) as client:
        manifest = client.manifest(place)
        if manifest is None:
            raise RegistryError(f"{place} is not in the registry", hint="publish it again")
        if attached_record(client, place, manifest) is None:
            raise VerifyError(f"no record is attached to {place}", hint="publish it again")
        parts = [(manifest, published.tag), *_companions(client, place)]
        _require_room(path, [one for one, _ in parts])
        try:
            with part.open("wb") as file:
                _write(client, place, parts, LayoutWriter(file), on_progress)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as trouble:
            raise HostError(f"{path} could not be written: {trouble.strerror}") from trouble
        finally:
            part.unlink(missing_ok=True)
    return Bundle(path=path, digest=manifest.digest, artifacts=len(parts) - 1, size=path.stat().st_size)


def load_bundle(
    engine: Engine, path: Path, *, settings: Settings, records: Path, on_progress: Callable[[str], None]
) -> Pulled:
    """Bring the image of a bundle into an engine on this machine, checked as a pull checks it, and keep its record.

    The engine pulls from the bundle, which is served on loopback for that time, so it knows the image by the digest
    that it was published with.

    Args:
        engine: Where the image shall be.
        path: The bundle.
        settings: The key that ``require_signature`` names.
        records: The folder of this host's records.
        on_progress: Takes a line a step.

    Raises:
        UsageError: The file is no bundle.
        HostError: The engine is on another machine, which does not see this one's loopback.
        VerifyError: The bundle is damaged, or its record is not about its image.
        RegistryError: The engine could not take the image.
    """
    if not reaches_loopback(engine):
        raise HostError(
            f"{engine.name} is on another machine, and a bundle is served on loopback",
            hint=f"copy {path.name} there and run `gfx1100 load {path.name}` on it",
        )
    on_progress(f"checking every byte of {path}")
    layout = Layout(path)
    images = [one for one in layout.index.manifests if _is_image(one)]
    if len(images) != 1:
        raise UsageError(f"{path} is no bundle: {len(images)} images are in it, and one is expected")
    with serve(layout, NAME) as repository:
        pulled = pull(
            engine,
            f"{repository}@{images[0].digest}",
            resumable=False,
            settings=settings,
            records=records,
            on_progress=on_progress,
        )
    # each load serves at another port, and one such name is enough
    image = engine.image(pulled.image.id)
    names = (*image.tags, *image.repo_digests) if image else ()
    older = (
        name for name in names if _SERVED.match(name) and not name.startswith((f"{repository}:", f"{repository}@"))
    )
    drop_names(engine, older, on_progress)
    return pulled


def _companions(client: Client, place: Reference) -> Iterator[tuple[Manifest, str]]:
    """Yield the artifacts that are attached to an image, and cosign's signature, with the tags that they need."""
    for artifact in list_referrers(client, place, place.digest or ""):
        found = client.manifest(place.at(artifact.digest))
        if found is not None:
            yield found, ""
    signature = place.tagged(f"{(place.digest or '').replace(':', '-')}{SIGNATURE}")
    found = client.manifest(signature)
    if found is not None:
        yield found, signature.tag or ""


def _write(
    client: Client,
    place: Reference,
    parts: list[tuple[Manifest, str]],
    writer: LayoutWriter,
    on_progress: Callable[[str], None],
) -> None:
    entries: list[dict[str, object]] = []
    waiting = [*parts]
    while waiting:
        manifest, tag = waiting.pop(0)
        for child in manifest.content.manifests:
            found = client.manifest(place.at(child.digest))
            if found is None:
                raise RegistryError(f"{place.at(child.digest)} is not in the registry", hint="publish it again")
            waiting.append((found, ""))
        for blob in manifest.blobs:
            writer.add_stream(blob, lambda write, blob=blob: client.stream(place, blob, write))  # type: ignore[misc]
            on_progress(f"{blob.digest[:19]} {blob.size / 1e6:.1f} MB")
        writer.add_bytes(manifest.body)
        named = {"annotations": {REF_NAME: tag}} if tag else {}
        entries.append({**pointer(manifest.media_type, manifest.body), **named})
    writer.close(entries)


def _require_room(path: Path, manifests: list[Manifest]) -> None:
    needed = sum({blob.digest: blob.size for one in manifests for blob in one.blobs}.values())
    try:
        free = shutil.disk_usage(path.absolute().parent).free
    except OSError as trouble:
        raise HostError(f"{path} cannot be written: {trouble.strerror}") from trouble
    if free < needed:
        raise HostError(f"{path} needs {needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free there")


def _is_image(entry: Descriptor) -> bool:
    """Whether an entry is the image: the one with a tag that is not cosign's."""
    tag = (entry.annotations or {}).get(REF_NAME, "")
    return bool(tag) and not tag.endswith(SIGNATURE)
