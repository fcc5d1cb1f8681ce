"""Walk the chain of a container, an image or a record, and name the first link that is broken."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import UsageError, VerifyError
from builder.files import sha256
from builder.models.lock import Lock
from builder.models.record import Record, read_record
from builder.verify.checks import CHAIN, LABEL
from builder.verify.evidence import read_chain, read_lock

if TYPE_CHECKING:
    from builder.engine.port import Container, Engine, Image

DIGEST_LABEL = LABEL + "digest"


@dataclass(frozen=True, kw_only=True)
class Link:
    """One link: what the link above it expects, and what was found."""

    name: str
    ok: bool
    expected: str
    found: str


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The links in their order, from the container (or the image) down to the upstream commit."""

    links: tuple[Link, ...]

    @property
    def broken(self) -> Link | None:
        """The first broken link, or None."""
        return next((link for link in self.links if not link.ok), None)

    def as_json(self) -> dict[str, Any]:
        """Return what ``trace --json`` prints."""
        return {"links": [asdict(link) for link in self.links]}

    def text(self) -> str:
        """Return the chain for people."""
        return "\n".join(
            f"  {'ok    ' if link.ok else 'BROKEN'} {link.name:<10} {link.found}"
            + ("" if link.ok else f"\n         {'':<10} expected {link.expected}")
            for link in self.links
        )


def trace(engine: Engine, target: str, *, records: Path) -> Trace:
    """Check the chain of a container (name or id), an image (reference) or a record (path).

    Args:
        engine: Where container and image are.
        target: What to trace.
        records: The folder of this host's records.

    Raises:
        UsageError: Nothing is called so.
        VerifyError: The image has no record here, or carries no chain.
    """
    if target.endswith(".json") and Path(target).is_file():
        record = read_record(Path(target))
        image = engine.image(record.image_id) or _published_image(engine, record)
        if image is None:
            return Trace(links=(link("image", record.image_id, "not on this engine"),))
        return Trace(links=tuple(_image_links(engine, image, record)))
    container = engine.container(target)
    image = engine.image(container.image_id) if container else engine.image(target)
    if image is None:
        raise UsageError(f"{target!r} is no container, image or record of {engine.name}")
    record = find_record(records, image)
    links = _container_links(engine, container, image, record) if container else []
    return Trace(links=(*links, *_image_links(engine, image, record)))


def find_record(records: Path, image: Image) -> Record:
    """Return the record of an image.

    Raises:
        VerifyError: No record in the folder speaks of it.
    """
    for path in sorted(records.glob("*.json")):
        record = read_record(path)
        if record.image_id == image.id or _has_digest(image, record):
            return record
    raise VerifyError(
        f"no record in {records} speaks of the image {image.id[:19]}",
        hint="it was not built or pulled by this program from this checkout",
    )


def _published_image(engine: Engine, record: Record) -> Image | None:
    published = record.published
    return engine.image(f"{published.repository}@{published.digest}") if published else None


def _container_links(engine: Engine, container: Container, image: Image, record: Record) -> list[Link]:
    # an image of another store has another id for the same digest, so the digest decides where there is one
    same = container.image_id == record.image_id or _has_digest(image, record)
    changed = [path for path in engine.changes(container.id) if _is_engine_file(path)]
    links = [
        Link(name="container", ok=same, expected=record.image_id, found=f"{container.name} of {container.image_id}"),
        link("files", "as in the image", f"changed: {', '.join(changed[:5])}" if changed else "as in the image"),
    ]
    label = container.labels.get(DIGEST_LABEL)
    if label and record.published:
        links.append(link("deployed", record.published.digest, label))
    return links


def _image_links(engine: Engine, image: Image, record: Record) -> list[Link]:
    chain = read_chain(engine, image)
    lock = read_lock(chain)
    labels = image.labels
    verdict = record.verification.verdict if record.verification else "not verified"
    return [
        _digest_link(image, record),
        link("verified", "ok", verdict),
        all_equal(
            "dockerfile",
            record.dockerfile_sha256,
            labels.get(LABEL + "dockerfile-sha256"),
            sha256(chain.get("Dockerfile", b"")),
        ),
        all_equal("context", record.context_sha256, labels.get(LABEL + "context-sha256")),
        all_equal("lock", record.lock_sha256, labels.get(LABEL + "lock-sha256"), sha256(chain.get("lock.yaml", b""))),
        *_patch_links(record, lock, chain),
        all_equal("version", record.version, labels.get("org.opencontainers.image.version"), lock.version),
        all_equal("commit", record.commit, labels.get("org.opencontainers.image.revision"), lock.commit),
    ]


def _patch_links(record: Record, lock: Lock, chain: dict[str, bytes]) -> list[Link]:
    recorded = {patch.id: patch.sha256 for patch in record.patches}
    locked = {patch.id: patch for patch in lock.patches}
    if list(recorded) != list(locked):
        return [link("series", ", ".join(recorded), ", ".join(locked))]
    return [
        all_equal(f"patch {name}", recorded[name], patch.sha256, sha256(chain.get(f"patches/{patch.file}", b"")))
        for name, patch in locked.items()
    ]


def _digest_link(image: Image, record: Record) -> Link:
    if record.published is None:
        return link("image", record.image_id, image.id)
    if _has_digest(image, record):
        return link("digest", record.published.digest, record.published.digest)
    found = ", ".join(sorted(image.digests)) or "never pushed or pulled here"
    return link("digest", record.published.digest, found)


def _has_digest(image: Image, record: Record) -> bool:
    return record.published is not None and record.published.digest in image.digests


def link(name: str, expected: str, found: str) -> Link:
    """Return a link that holds when both are the same."""
    return Link(name=name, ok=expected == found, expected=expected, found=found)


def all_equal(name: str, expected: str, *found: str | None) -> Link:
    """Return a link that holds when every place says the same; a broken one shows the first that does not."""
    other = next((str(value) for value in found if value != expected), expected)
    return link(name, expected, other)


def _is_engine_file(path: str) -> bool:
    return path.startswith(CHAIN + "/") or ("-packages/" in path and "__pycache__" not in path)
