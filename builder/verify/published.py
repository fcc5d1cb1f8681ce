"""Walk the chain of a published image from its registry alone: record, labels, SBOM, provenance, signature."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.errors import RegistryError, VerifyError
from builder.models.record import Record
from builder.registry.attest import attached_record, read_payload, referrers
from builder.registry.client import Client
from builder.registry.provenance import STATEMENT_TYPE
from builder.registry.reference import parse_reference
from builder.registry.sbom import PROPERTY, SBOM_TYPE
from builder.registry.sign import require_signature
from builder.registry.transport import MANIFEST_LIMIT
from builder.verify.checks import LABEL
from builder.verify.trace import Link, Trace, all_equal, link

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.registry.manifest import Manifest
    from builder.registry.reference import Reference
    from builder.settings import Settings

NONE = "none is attached"


def trace_published(reference: str, *, settings: Settings, on_progress: Callable[[str], None]) -> Trace:
    """Check the chain of a published image without an engine and without a record of this host.

    Args:
        reference: ``repository@digest``, or ``repository:tag``, which is looked up once.
        settings: The CA bundle, and the key that ``require_signature`` names.
        on_progress: Takes a line when a registry is waited for.

    Raises:
        UsageError: It is no reference.
        RegistryError: It is not in the registry, or the registry cannot be asked.
        VerifyError: No record is attached to it, or none that fits.
    """
    asked = parse_reference(reference)
    with Client(settings, on_wait=on_progress) as client:
        manifest = client.manifest(asked)
        if manifest is None:
            raise RegistryError(f"{asked} is not in the registry", hint="check the name, or publish it again")
        place = asked.at(manifest.digest)
        record = attached_record(client, place, manifest)
        if record is None:
            raise VerifyError(f"no record is attached to {place}", hint="it was not published by this program")
        labels = _labels(client, place, manifest)
        bill = _about(client, place, "sbom", SBOM_TYPE, record, _bill_facts)
        provenance = _about(client, place, "provenance", STATEMENT_TYPE, record, _provenance_facts)
    verdict = record.verification.verdict if record.verification else "not verified"
    return Trace(
        links=(
            # attached_record has compared the record with the manifest and its config
            link("digest", manifest.digest, record.published.digest if record.published else NONE),
            link("verified", "ok", verdict),
            *_label_links(record, labels),
            bill,
            provenance,
            *_signature(place, settings),
            link("commit", record.commit, labels.get("org.opencontainers.image.revision", "no label")),
        )
    )


def _labels(client: Client, place: Reference, manifest: Manifest) -> dict[str, str]:
    """Return the labels of the image's config."""
    image = client.image(place, manifest)
    config = image.content.config if image else None
    if config is None:
        return {}
    try:
        value = json.loads(client.blob(place, config.digest, limit=MANIFEST_LIMIT))
        return dict(value.get("config", {}).get("Labels") or {})
    except (ValueError, TypeError, AttributeError, RecursionError) as trouble:
        raise VerifyError(f"the config of {place} cannot be read") from trouble


def _label_links(record: Record, labels: dict[str, str]) -> list[Link]:
    return [
        all_equal("dockerfile", record.dockerfile_sha256, labels.get(LABEL + "dockerfile-sha256")),
        all_equal("context", record.context_sha256, labels.get(LABEL + "context-sha256")),
        all_equal("lock", record.lock_sha256, labels.get(LABEL + "lock-sha256")),
        all_equal("version", record.version, labels.get("org.opencontainers.image.version")),
    ]


def _about(  # noqa: PLR0917 - one call a document type
    client: Client, place: Reference, name: str, artifact_type: str, record: Record, facts: Callable[[Any], _Facts]
) -> Link:
    """Return a link about the attached documents of a type: what they say of the image against the record.

    Of several publications each has its own: the link is about the first that holds, else about the last.
    """
    wanted = _Facts(
        images=(place.digest or "",),
        commits=(record.commit,),
        patches=tuple((patch.id, patch.sha256) for patch in record.patches),
        parts=0,
    )
    links = []
    for artifact in referrers(client, place, place.digest or "", artifact_type):
        try:
            body = read_payload(client, place, artifact, subject=place.digest or "")
            found = facts(json.loads(body))
        except VerifyError as trouble:
            links.append(link(name, "a document about this image", trouble.message))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            links.append(link(name, "a document of this program", f"another form in {artifact.digest}"))
        else:
            links.append(found.against(name, wanted))
    return next((one for one in links if one.ok), links[-1] if links else link(name, "attached", NONE))


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What a document says: images, commits, patches with their hashes, and how many parts it names."""

    images: tuple[str, ...]
    commits: tuple[str, ...]
    patches: tuple[tuple[str, str], ...]
    parts: int

    def against(self, name: str, wanted: _Facts) -> Link:
        """Return the link that shows the number of parts when everything is as wanted, else what is not."""
        for what in ("images", "commits", "patches"):
            expected, found = getattr(wanted, what), getattr(self, what)
            if expected != found:
                return link(name, f"{what}: {expected}", f"{what}: {found}")
        summary = f"{self.parts} parts"
        return link(name, summary, summary)


def _bill_facts(bom: dict[str, Any]) -> _Facts:
    parts = bom["components"]
    kind = {"name": f"{PROPERTY}kind", "value": "patch"}
    return _Facts(
        images=(bom["metadata"]["component"]["version"],),
        commits=tuple(one["uid"] for part in parts for one in part.get("pedigree", {}).get("commits", [])),
        patches=tuple(
            (part["name"], part["hashes"][0]["content"]) for part in parts if kind in part.get("properties", [])
        ),
        parts=len(parts),
    )


def _provenance_facts(statement: dict[str, Any]) -> _Facts:
    inputs = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    return _Facts(
        images=tuple(f"sha256:{one['digest']['sha256']}" for one in statement["subject"]),
        commits=tuple(one["digest"]["gitCommit"] for one in inputs if one["name"] == "source"),
        patches=tuple(
            (one["name"].removeprefix("patch "), one["digest"]["sha256"])
            for one in inputs
            if one["name"].startswith("patch ")
        ),
        parts=len(inputs),
    )


def _signature(place: Reference, settings: Settings) -> list[Link]:
    """Return a link about the signature when a key is configured."""
    try:
        said = require_signature(place, settings)
    except VerifyError as trouble:
        return [link("signature", f"of {settings.require_signature}", trouble.message)]
    return [link("signature", said, said)] if said else []
