"""Manifests: what a registry holds under a digest, read in bounds and by the bytes that the digest covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from builder.files import sha256
from builder.models.base import Digest

# https://github.com/opencontainers/image-spec and Docker's older names for the same two forms
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
KNOWN_TYPES = (OCI_MANIFEST, DOCKER_MANIFEST, OCI_INDEX, DOCKER_INDEX)
INDEX_TYPES = (OCI_INDEX, DOCKER_INDEX)


class _Foreign(BaseModel):
    """A form that others define: what is not named here is let through."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Platform(_Foreign):
    """Operating system and processor of an image."""

    os: str = ""
    architecture: str = ""


class Descriptor(_Foreign):
    """A pointer to content: its type, digest and size in bytes."""

    media_type: str = Field(alias="mediaType", default="")
    digest: Digest
    size: int = Field(ge=0)
    artifact_type: str | None = Field(alias="artifactType", default=None)
    annotations: dict[str, str] | None = None
    platform: Platform | None = None


class Content(_Foreign):
    """What stands in a manifest or an index."""

    media_type: str = Field(alias="mediaType", default="")
    artifact_type: str | None = Field(alias="artifactType", default=None)
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    manifests: tuple[Descriptor, ...] = ()
    subject: Descriptor | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest or an index as the registry holds it.

    Attributes:
        digest: The digest of ``body``.
        media_type: Its type.
        body: Its very bytes.
        content: What stands in it.
    """

    digest: str
    media_type: str
    body: bytes
    content: Content

    @property
    def is_index(self) -> bool:
        """Whether it lists manifests instead of layers."""
        return self.media_type in INDEX_TYPES

    @property
    def blobs(self) -> list[Descriptor]:
        """Its config and its layers."""
        return [*([self.content.config] if self.content.config else []), *self.content.layers]

    def child(self, system: str, architecture: str) -> Descriptor | None:
        """Return an index's manifest for a platform, or None."""
        wanted = Platform(os=system, architecture=architecture)
        return next((child for child in self.content.manifests if child.platform == wanted), None)


def digest_of(body: bytes) -> str:
    """Return the digest of bytes."""
    return f"sha256:{sha256(body)}"


def pointer(media_type: str, content: bytes) -> dict[str, Any]:
    """Return the descriptor of content, as manifests hold it."""
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content)}


def parse_manifest(body: bytes, content_type: str) -> Manifest:
    """Return the manifest of a body.

    Args:
        body: The bytes.
        content_type: The answer's Content-Type, for bodies that do not name their own type.

    Raises:
        ValueError: It is none, or one of a kind that is not known here; says why.
    """
    try:
        content = Content.model_validate_json(body)
    except ValidationError as trouble:
        first: Any = trouble.errors(include_url=False, include_input=False)[0]
        raise ValueError(
            f"no manifest: {'.'.join(str(part) for part in first['loc'])} {first['msg']}".strip()
        ) from None
    media_type = content.media_type or content_type.partition(";")[0].strip()
    if media_type not in KNOWN_TYPES:
        raise ValueError(f"a manifest of the type {media_type!r}, which is not known here")
    if media_type not in INDEX_TYPES and content.config is None:
        raise ValueError("an image manifest without a config")
    return Manifest(digest=digest_of(body), media_type=media_type, body=body, content=content)
