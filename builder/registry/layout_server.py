"""A bundle as a registry on loopback that can only be read: engines pull from it by the very digests it holds."""

from __future__ import annotations

import contextlib
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from builder.files import canonical_json
from builder.registry.layout import REF_NAME, Layout
from builder.registry.manifest import KNOWN_TYPES, OCI_INDEX, Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAME = "gfx1100/bundle"
POLL_SECONDS = 0.05


@contextlib.contextmanager
def serve_layout(layout: Layout) -> Iterator[str]:
    """Serve a layout for the length of a block.

    Yields:
        The repository, ``127.0.0.1:<port>/gfx1100/bundle``.
    """
    handler = type("Handler", (_Handler,), {"layout": layout})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": POLL_SECONDS})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}/{NAME}"
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers the reading half of the distribution API."""

    layout: Layout
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Stay silent; http.server would print."""

    def do_GET(self) -> None:
        """Answer with the whole thing."""
        kind, _, wanted = self.path.partition("?")[0].removeprefix(f"/v2/{NAME}/").partition("/")
        if self.path.rstrip("/") == "/v2":
            self._send(HTTPStatus.OK, b"{}", "application/json")
        elif kind == "manifests":
            self._manifest(wanted)
        elif kind == "blobs" and (size := self.layout.size(wanted)) is not None:
            self._head(HTTPStatus.OK, size, "application/octet-stream", wanted)
            self._write(lambda write: self.layout.blob(wanted, write))
        elif kind == "referrers":
            self._send(HTTPStatus.OK, self._referrers(wanted), OCI_INDEX)
        else:
            self._send(HTTPStatus.NOT_FOUND, b'{"errors":[{"code":"NAME_UNKNOWN"}]}', "application/json")

    def do_HEAD(self) -> None:
        """Answer with the head alone."""
        self.do_GET()

    def _manifest(self, wanted: str) -> None:
        entry = next(
            (
                one
                for one in self.layout.index.manifests
                if wanted in {one.digest, (one.annotations or {}).get(REF_NAME)} and one.media_type in KNOWN_TYPES
            ),
            None,
        )
        if entry is None:
            self._send(HTTPStatus.NOT_FOUND, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}', "application/json")
            return
        self._head(HTTPStatus.OK, entry.size, entry.media_type, entry.digest)
        self._write(lambda write: self.layout.blob(entry.digest, write))

    def _referrers(self, subject: str) -> bytes:
        entries = []
        for one in self.layout.index.manifests:
            content = self.layout.manifest(one).content
            if content.subject is not None and content.subject.digest == subject:
                entries.append(_entry(one, content.artifact_type or ""))
        return canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}).encode()

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self._head(status, len(body), kind, "")
        self._write(lambda write: write(body))

    def _head(self, status: HTTPStatus, size: int, kind: str, digest: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()

    def _write(self, bring: Callable[[Callable[[bytes], object]], object]) -> None:
        if self.command != "HEAD":
            # an engine that gives up closes the connection
            with contextlib.suppress(ConnectionError):
                bring(self.wfile.write)


def _entry(one: Descriptor, artifact_type: str) -> dict[str, object]:
    return {"mediaType": one.media_type, "digest": one.digest, "size": one.size, "artifactType": artifact_type}
