"""A small client of the OCI distribution API: manifests and blobs, believed only by their digests."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urljoin

from builder.errors import RegistryError, ToolError, UpstreamError
from builder.registry.manifest import INDEX_TYPES, KNOWN_TYPES, Descriptor, Manifest, digest_of, parse_manifest
from builder.registry.reference import Reference, parse_reference
from builder.registry.streaming import stream_blob
from builder.registry.transport import MANIFEST_LIMIT, Answer, Request, Transport, TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from builder.settings import Settings

PLATFORM = ("linux", "amd64")
PAGES = 50
_ACCEPT = {"Accept": ", ".join(KNOWN_TYPES)}
_OK_OR_ABSENT = (HTTPStatus.OK, HTTPStatus.NOT_FOUND)
# How registries without an API of the specification's later versions say so; GHCR redirects to its web site
_NO_SUCH_LIST = (301, 302, 303, 307, 308, 400, 404, 405, 406)


def manifest_digest(reference: str, settings: Settings) -> str:
    """Return the digest that a base image's reference stands for: that of the index when the tag names one.

    Args:
        reference: Name with a tag (``latest`` when there is none) or a digest.
        settings: The CA bundle comes from here.

    Raises:
        UsageError: It is no reference.
        UpstreamError: The registry could not be asked, has no such image, or none for linux/amd64.
    """
    where = parse_reference(reference)
    with Client(settings, failure=UpstreamError) as client:
        manifest = client.manifest(where)
        if manifest is None:
            raise UpstreamError(
                f"{where} is not in the registry: its publisher took it away, or the name is wrong",
                hint="choose another tag or digest, and keep a copy of the base image in a registry of your own",
            )
        image = client.image(where, manifest)
        platform = client.platform(where, image) if image else None
    if platform != PLATFORM:
        found = f"is an image for {'/'.join(platform)}" if platform else "holds images for other platforms"
        raise UpstreamError(f"{where} {found}, and {'/'.join(PLATFORM)} is needed")
    return manifest.digest


class Client:
    """Manifests and blobs of registries. Use it as a context manager.

    Args:
        settings: The CA bundle comes from here.
        failure: The class that every fault is raised as.
        on_wait: Takes a line when a request is to be tried again, before the pause.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        failure: type[ToolError] = RegistryError,
        on_wait: Callable[[str], None] = lambda line: None,  # noqa: ARG005 - nobody listens
    ) -> None:
        self._failure = failure
        self._transport = Transport(settings, failure=failure, on_wait=on_wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close()

    def manifest(self, reference: Reference) -> Manifest | None:
        """Return the manifest of a digest, or else of a tag (``latest`` when there is none); None when it is not there.

        Raises:
            ToolError: The bytes do not have the digest that was asked for or announced, or are no manifest.
        """
        answer = self._ask_manifest("GET", reference)
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        kind = answer.headers.get("Content-Type", "")
        if kind.startswith("text/html") or answer.body.lstrip()[:1] == b"<":
            raise self._failure(
                f"{reference.host} answered with a web page where the manifest of {reference} was asked for",
                hint="check the name; a proxy or a login page may stand before the registry",
            )
        wanted = reference.digest or answer.headers.get("Docker-Content-Digest") or digest_of(answer.body)
        self._check_digest(digest_of(answer.body), wanted, f"the manifest of {reference}")
        try:
            return parse_manifest(answer.body, kind)
        except ValueError as trouble:
            raise self._failure(f"{reference}: {trouble}") from trouble

    def head(self, reference: Reference) -> str | None:
        """Return the digest that a tag has now, without its manifest where possible; None when it is not there."""
        answer = self._ask_manifest("HEAD", reference)
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        announced = answer.headers.get("Docker-Content-Digest")
        if announced:
            return announced
        manifest = self.manifest(reference)
        return manifest.digest if manifest else None

    def put_manifest(self, reference: Reference, body: bytes, media_type: str) -> bool:
        """Store a manifest under the reference's digest or tag.

        Returns:
            Whether the registry itself lists it among its subject's referrers (OCI-Subject says so).

        Raises:
            ToolError: The registry refused it, or took other bytes.
        """
        digest = digest_of(body)
        answer = self._transport.request(
            Request(
                method="PUT",
                repository=reference,
                path=_manifest_path(reference),
                expected=(HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED),
                headers={"Content-Type": media_type},
                data=body,
            )
        )
        took = answer.headers.get("Docker-Content-Digest", digest)
        if took != digest:
            raise self._failure(f"{reference}: {digest} was sent, and the registry says that it took {took}")
        return "OCI-Subject" in answer.headers

    def image(self, repository: Reference, manifest: Manifest) -> Manifest | None:
        """Return an index's manifest for linux/amd64 (None when it has none); what is no index is returned itself."""
        if not manifest.is_index:
            return manifest
        child = manifest.child(*PLATFORM)
        return self.manifest(repository.at(child.digest)) if child else None

    def layers(self, repository: Reference, manifest: Manifest) -> dict[str, int]:
        """Return the layers of an image as digest -> compressed bytes; a layer that comes twice counts once."""
        image = self.image(repository, manifest)
        return {layer.digest: layer.size for layer in image.content.layers} if image else {}

    def platform(self, repository: Reference, image: Manifest) -> tuple[str, str]:
        """Return operating system and architecture of an image manifest, read from its config."""
        config = image.content.config
        try:
            value = json.loads(self.blob(repository, config.digest, limit=MANIFEST_LIMIT)) if config else {}
            return str(value["os"]), str(value["architecture"])
        except (ValueError, TypeError, KeyError, RecursionError) as trouble:
            raise self._failure(f"{repository.at(image.digest)} does not say which platform it is for") from trouble

    def has_blob(self, repository: Reference, digest: str) -> bool:
        """Return whether the repository holds a blob."""
        asked = Request(method="HEAD", repository=repository, path=f"/blobs/{digest}", expected=_OK_OR_ABSENT)
        return self._transport.request(asked).status == HTTPStatus.OK

    def blob(self, repository: Reference, digest: str, *, limit: int) -> bytes:
        """Return a blob of at most ``limit`` bytes.

        Raises:
            ToolError: It is not there, is larger, or its bytes do not have the digest.
        """
        asked = Request(method="GET", repository=repository, path=f"/blobs/{digest}", limit=limit)
        body = self._transport.request(asked).body
        self._check_digest(digest_of(body), digest, f"a blob of {repository.repository}")
        return body

    def stream(
        self,
        repository: Reference,
        blob: Descriptor,
        write: Callable[[bytes], object],
        *,
        here: Iterable[bytes] = (),
    ) -> None:
        """Hand over a blob of any size piece by piece; a connection that breaks is taken up where it broke.

        Its first pieces may be ``here`` already; they are not asked for.

        Raises:
            ToolError: It is not there, or its bytes do not have the size and the digest; what was written is of no use.
        """
        found = stream_blob(self._transport, repository, blob, write, here=here)
        self._check_digest(found, blob.digest, f"a blob of {repository.repository}")

    def upload(self, repository: Reference, payload: bytes) -> str:
        """Store a blob in one piece, unless it is there, and return its digest."""
        digest = digest_of(payload)
        self._transport.retrying(lambda: self._upload_once(repository, payload, digest))
        return digest

    def tags(self, repository: Reference) -> list[str]:
        """Return the repository's tags; none when it does not exist yet."""
        return [str(tag) for tag in self._pages(repository, "/tags/list?n=1000", "tags") or []]

    def listed_referrers(self, repository: Reference, digest: str) -> list[Descriptor] | None:
        """Return what the registry itself lists as referrers of a digest; None when it has no such list."""
        found = self._pages(repository, f"/referrers/{digest}", "manifests", media_types=INDEX_TYPES)
        try:
            return None if found is None else [Descriptor.model_validate(item) for item in found]
        except ValueError as trouble:
            raise self._failure(f"the list of referrers of {repository.at(digest)} cannot be read") from trouble

    def _ask_manifest(self, method: str, reference: Reference) -> Answer:
        path = _manifest_path(reference)
        return self._transport.request(
            Request(method=method, repository=reference, path=path, expected=_OK_OR_ABSENT, headers=_ACCEPT)
        )

    def _upload_once(self, repository: Reference, payload: bytes, digest: str) -> None:
        if self.has_blob(repository, digest):
            return
        begin = Request(
            method="POST", repository=repository, path="/blobs/uploads/", expected=(HTTPStatus.ACCEPTED,), data=b""
        )
        begun = self._transport.attempt(begin)
        place = urljoin(begun.url, begun.headers.get("Location", ""))
        ended = self._transport.attempt(
            Request(
                method="PUT",
                repository=repository,
                path=f"{place}{'&' if '?' in place else '?'}digest={quote(digest, safe='')}",
                expected=(HTTPStatus.CREATED, HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND),
                headers={"Content-Type": "application/octet-stream"},
                data=payload,
            )
        )
        if ended.status == HTTPStatus.NOT_FOUND:
            raise TryAgain(f"{repository.repository} forgot an upload that it had begun", hint="try again")

    def _pages(
        self, repository: Reference, path: str, key: str, *, media_types: tuple[str, ...] = ()
    ) -> list[Any] | None:
        """Return the items under ``key`` of a list in pages (RFC 8288 links); None when there is no such list."""
        from requests.utils import parse_header_links

        items: list[Any] = []
        for _ in range(PAGES):
            answer = self._transport.request(
                Request(
                    method="GET",
                    repository=repository,
                    path=path,
                    expected=(HTTPStatus.OK, *_NO_SUCH_LIST),
                    redirects=False,
                )
            )
            kind = answer.headers.get("Content-Type", "").partition(";")[0]
            if answer.status != HTTPStatus.OK or (media_types and kind not in media_types):
                return None
            try:
                items += json.loads(answer.body)[key] or []
            except (ValueError, TypeError, KeyError, RecursionError) as trouble:
                raise self._failure(f"the list of {key} of {repository.repository} cannot be read") from trouble
            links = parse_header_links(answer.headers.get("Link", ""))
            following = next((link["url"] for link in links if link.get("rel") == "next"), None)
            if following is None:
                return items
            path = urljoin(answer.url, following)
        raise self._failure(f"the list of {key} of {repository.repository} does not end")

    def _check_digest(self, found: str, wanted: str, what: str) -> None:
        if found != wanted:
            raise self._failure(
                f"{what} came with other bytes: {wanted} was expected, {found} was received",
                hint="nothing of it was used; try again, and if it stays so, a proxy or the registry damages data",
            )


def _manifest_path(reference: Reference) -> str:
    return f"/manifests/{reference.digest or reference.tag or 'latest'}"
