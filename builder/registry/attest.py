"""What goes with an image: artifacts that name it as their subject (OCI 1.1 referrers), the record first of all.

Forms: github.com/opencontainers/image-spec, manifest.md (artifacts, subject, the empty descriptor), and
github.com/opencontainers/distribution-spec, spec.md (referrers, and the tag for registries that cannot list them).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import RegistryError, UsageError, VerifyError
from builder.files import MIB
from builder.models.record import Record, parse_record
from builder.registry.manifest import OCI_INDEX, OCI_MANIFEST, Descriptor, Manifest, digest_of, pointer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.registry.client import Client
    from builder.registry.reference import Reference

RECORD_TYPE = "application/vnd.gfx1100.record.v1+json"
EMPTY_TYPE, EMPTY = "application/vnd.oci.empty.v1+json", b"{}"
PAYLOAD_LIMIT = 64 * MIB
# Two writers of one list: the later sees the earlier's entry missing and adds its own to the newer list
TRIES = 5


@dataclass(frozen=True, kw_only=True)
class Payload:
    """What is attached to an image.

    Attributes:
        name: How messages call it.
        artifact_type: Media type of the content and of the artifact.
        content: The bytes.
        annotations: Annotations of the artifact; no times, so that the same input has the same digest.
    """

    name: str
    artifact_type: str
    content: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)


def attach(
    client: Client,
    repository: Reference,
    digest: str,
    *,
    artifact_type: str,
    payload: bytes,
    annotations: Mapping[str, str],
) -> str:
    """Store a payload as a referrer of an image; the same payload again changes nothing.

    Args:
        client: The client.
        repository: The image's repository.
        digest: The image's digest.
        artifact_type: Media type of the payload and of the artifact.
        payload: The bytes.
        annotations: Annotations of the artifact; no times, so that the same input has the same digest.

    Returns:
        The artifact's digest.

    Raises:
        RegistryError: The image is not there, or the registry does not keep the artifact.
    """
    subject = client.manifest(repository.at(digest))
    if subject is None:
        raise RegistryError(f"{repository.at(digest)} is not there, so nothing can be attached to it")
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": artifact_type,
        "config": pointer(EMPTY_TYPE, EMPTY),
        "layers": [pointer(artifact_type, payload)],
        "subject": pointer(subject.media_type, subject.body),
        "annotations": dict(annotations),
    }
    body = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    client.upload(repository, EMPTY)
    client.upload(repository, payload)
    artifact = digest_of(body)
    if not client.put_manifest(repository.at(artifact), body, OCI_MANIFEST):
        entry = {**pointer(OCI_MANIFEST, body), "artifactType": artifact_type, "annotations": dict(annotations)}
        _list_under_tag(client, repository, digest, entry)
    return artifact


def list_referrers(client: Client, repository: Reference, digest: str) -> list[Descriptor]:
    """Return the artifacts that are attached to an image; the list alone proves nothing about them.

    Raises:
        ToolError: The registry could not be asked.
    """
    found = client.listed_referrers(repository, digest)
    if found is None:
        index = _index_under_tag(client, repository, digest)
        found = list(index.content.manifests) if index else []
    return found


def referrers(client: Client, repository: Reference, digest: str, artifact_type: str) -> list[Descriptor]:
    """Return the artifacts of one type among those of :func:`list_referrers`."""
    return [item for item in list_referrers(client, repository, digest) if item.artifact_type == artifact_type]


def read_payload(client: Client, repository: Reference, artifact: Descriptor, *, subject: str) -> bytes:
    """Return an artifact's payload, proven to be of this artifact, and the artifact to be about this subject.

    Args:
        client: The client.
        repository: The image's repository.
        artifact: The artifact, as :func:`referrers` lists it.
        subject: The image's digest.

    Raises:
        RegistryError: The artifact is gone.
        VerifyError: It is about another image, or has not the form of :func:`attach`.
    """
    place = repository.at(artifact.digest)
    manifest = client.manifest(place)
    if manifest is None:
        raise RegistryError(f"{place} is listed as attached to {subject}, but is not there", hint="publish again")
    content = manifest.content
    if content.subject is None or content.subject.digest != subject:
        raise VerifyError(f"{place} is listed as attached to {subject}, but says itself that it is about another image")
    if content.artifact_type != artifact.artifact_type or len(content.layers) != 1:
        raise VerifyError(f"{place} is no {artifact.artifact_type} with one payload")
    return client.blob(repository, content.layers[0].digest, limit=PAYLOAD_LIMIT)


def attached_record(client: Client, repository: Reference, manifest: Manifest) -> Record | None:
    """Return the record that is attached to an image and fits it; of several the newest, and then the last listed.

    Returns:
        The record, or None when none is attached.

    Raises:
        VerifyError: Records are attached, and none fits; the message says why the last does not.
    """
    fitting: list[Record] = []
    trouble: VerifyError | None = None
    identities = image_ids(client, repository, manifest)
    for artifact in referrers(client, repository, manifest.digest, RECORD_TYPE):
        try:
            payload = read_payload(client, repository, artifact, subject=manifest.digest)
            fitting.append(_fitting_record(payload, f"{repository.at(artifact.digest)}", manifest.digest, identities))
        except VerifyError as misfit:
            trouble = misfit
    if not fitting and trouble:
        raise trouble
    return max(reversed(fitting), key=lambda record: record.created, default=None)


def image_ids(client: Client, repository: Reference, manifest: Manifest) -> frozenset[str]:
    """Return what an engine may call a published image: the digest of its config, or of its manifest (containerd)."""
    image = client.image(repository, manifest) or manifest
    config = image.content.config
    return frozenset({manifest.digest, image.digest, *([config.digest] if config else [])})


def _fitting_record(payload: bytes, place: str, digest: str, identities: frozenset[str]) -> Record:
    try:
        record = parse_record(payload.decode(), Path(place))
    except (UsageError, UnicodeDecodeError) as trouble:
        raise VerifyError(f"the record {place} is damaged: {trouble}") from trouble
    if record.published is None or record.published.digest != digest:
        raise VerifyError(f"the record {place} is attached to {digest}, but is about another publication")
    if record.image_id not in identities:
        held = ", ".join(sorted(identities))
        raise VerifyError(f"the record {place} is about the image {record.image_id}, and {digest} holds {held}")
    if record.verification is None or record.verification.verdict != "ok":
        raise VerifyError(f"the record {place} says that the image did not pass its verification")
    return record


def _list_under_tag(client: Client, repository: Reference, digest: str, entry: dict[str, Any]) -> None:
    """Add an artifact to the list that stands under the subject's tag, for registries without a list of their own."""
    tag = _list_tag(repository, digest)
    for _ in range(TRIES):
        index = _index_under_tag(client, repository, digest)
        value: dict[str, Any] = json.loads(index.body) if index else {"schemaVersion": 2, "mediaType": OCI_INDEX}
        entries = value.get("manifests") or []
        if any(item.get("digest") == entry["digest"] for item in entries):
            return
        body = json.dumps({**value, "manifests": [*entries, entry]}, sort_keys=True, separators=(",", ":")).encode()
        client.put_manifest(tag, body, OCI_INDEX)
    raise RegistryError(
        f"{repository.repository} does not keep the list of what is attached to {digest}",
        hint="the registry must keep an index under a tag of the form sha256-…; GitLab's does not",
    )


def _index_under_tag(client: Client, repository: Reference, digest: str) -> Manifest | None:
    found = client.manifest(_list_tag(repository, digest))
    # GitLab's registry takes the tag for the digest itself and answers with the image, which lists no artifacts
    return found if found and found.media_type == OCI_INDEX else None


def _list_tag(repository: Reference, digest: str) -> Reference:
    return repository.tagged(digest.replace(":", "-"))
