"""Room for a pull: looked for before the first byte, with what this host has of the image already taken off."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from builder.engine.address import is_here
from builder.errors import HostError, ToolError, UsageError
from builder.models.record import STACK_LABEL
from builder.registry.reference import parse_reference
from builder.registry.relay import ANEW, kept_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from builder.engine.port import Engine, Image
    from builder.models.record import Record
    from builder.registry.client import Client
    from builder.registry.reference import Reference

MB = 1e6
# Unpacked bytes a compressed byte where no record says it: published ROCm images of 8 to 10 GB unpack to 22 to 32 GB
# (https://github.com/ROCm/vllm/issues/363, https://github.com/ROCm/legacy-rocm-build/issues/3935)
UNPACKED = 3.5
# An engine's host needs some room to go on
SPARE = 1 << 30
ASK_SECONDS = 60.0


def require_room(
    engine: Engine,
    client: Client,
    *,
    place: Reference,
    record: Record,
    layers: Mapping[str, int],
    parts: Path | None,
    on_progress: Callable[[str], None],
) -> bool:
    """Refuse a pull that the engine's disk cannot take.

    Args:
        engine: Where the image shall be.
        client: Asked for the layers of the images of this repository that the engine has already.
        place: The image, by digest.
        record: Its record, which says what it takes unpacked.
        layers: Its layers, digest -> compressed bytes.
        parts: Where this host keeps layers until all are there; None when it does not.
        on_progress: Takes the line that says how much there is.

    Returns:
        Whether the disk of ``parts`` has room for what is not there yet.

    Raises:
        HostError: There is not enough.
    """
    images = engine.images(f"{STACK_LABEL}={record.stack}")
    digests = [digest for image in images for digest in known_digests(image, place)]
    had = {layer for digest in digests for layer in _layers(client, place.at(digest))}
    missing, whole = (sum(size for layer, size in layers.items() if layer not in known) for known in (had, set()))
    unpacked = (record.image_bytes or whole * UNPACKED) * missing / max(1, whole)
    # an engine keeps the compressed layers until they are unpacked
    needed = int(missing + unpacked)
    free = free_bytes(engine, ask=next((image.id for image in images), None))
    told = f"{missing / MB:.0f} of {whole / MB:.0f} MB to pull, {needed / MB:.0f} MB on disk"
    if free is None:
        on_progress(f"{told}; nobody can tell how much is free on {engine.name}")
    elif free < needed + SPARE:
        raise HostError(
            f"{place} does not fit: {told}, and {free / MB:.0f} MB are free where {engine.name} keeps its data",
            hint="`gfx1100 images --prune` takes old images away; `docker system df` shows what else is there",
        )
    else:
        on_progress(f"{told}, {free / MB:.0f} MB free")
    if parts is None:
        return False
    kept = {layer: kept_bytes(parts, layer) for layer in layers if layer not in had}
    if any(kept.values()):
        on_progress(f"{sum(kept.values()) / MB:.0f} MB are here already, of a pull that did not end")
    short = sum(layers[layer] - size for layer, size in kept.items()) + SPARE
    short += (needed if keeps_data_beside(engine, parts) else 0) - shutil.disk_usage(parts).free
    if short > 0:
        on_progress(f"{short / MB:.0f} MB more would have to be free at {parts} to keep layers there: {ANEW}")
    return short <= 0


def known_digests(image: Image, place: Reference) -> list[str]:
    """Return the digests under which an engine knows an image in the repository of ``place``."""
    found = []
    for entry in image.repo_digests:
        try:
            known = parse_reference(entry)
        except UsageError:
            # an engine lists ``<none>@sha256:…`` when it lost the name
            continue
        if known.repository == place.repository and known.digest:
            found.append(known.digest)
    return found


def free_bytes(engine: Engine, *, ask: str | None) -> int | None:
    """Return the bytes that are free where the engine keeps its data, or None when nobody can tell.

    Args:
        engine: The engine, which may be on another machine.
        ask: An image of that engine with a shell, which is asked when the engine is on another machine.
    """
    data_root = engine.data_root()
    if is_here(engine, data_root, engine.capacity()[1]):
        disk = os.statvfs(data_root)
        return disk.f_bavail * disk.f_frsize
    if ask is None:
        return None
    told = engine.run_once(ask, ["stat", "--file-system", "--format", "%a %S", "/"], files={}, timeout=ASK_SECONDS)
    numbers = told.stdout.split()
    return int(numbers[0]) * int(numbers[1]) if len(numbers) == 2 and told.returncode == 0 else None  # noqa: PLR2004


def keeps_data_beside(engine: Engine, folder: Path) -> bool:
    """Return whether the engine keeps its data on the same disk of this host as a folder."""
    data_root = engine.data_root()
    return is_here(engine, data_root, engine.capacity()[1]) and data_root.stat().st_dev == folder.stat().st_dev


def _layers(client: Client, place: Reference) -> dict[str, int]:
    """Return the layers of an image that was pulled earlier; none when the registry does not know it any more."""
    try:
        manifest = client.manifest(place)
        return client.layers(place, manifest) if manifest else {}
    except ToolError:
        return {}
