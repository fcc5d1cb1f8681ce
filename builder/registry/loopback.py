"""A registry on loopback that can only be read: engines pull a bundle from it, or a registry's image through it."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Protocol

from builder.errors import ToolError
from builder.files import canonical_json
from builder.registry.manifest import OCI_INDEX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from builder.engine.port import Engine
    from builder.registry.manifest import Descriptor

POLL_SECONDS = 0.05
TLS_HELLO = b"\x16"  # the record type of a handshake (RFC 8446, section 5.1)


class Store(Protocol):
    """What is served."""

    def find(self, wanted: str) -> Descriptor | None:
        """Return the manifest of a digest or a tag, or None."""

    def size(self, digest: str) -> int | None:
        """Return the size of a blob, or None when it is not here."""

    def blob(self, digest: str, write: Callable[[bytes], object]) -> None:
        """Hand over the bytes of a blob or a manifest piece by piece; raises ToolError when they cannot be had."""

    def referrers(self, subject: str) -> Sequence[dict[str, object]]:
        """Return the entries of what is attached to a digest."""


def reaches_loopback(engine: Engine) -> bool:
    """Return whether an engine listens on this machine, so that it may see what is served here."""
    return engine.environment.get("DOCKER_HOST", "unix://").startswith("unix://")


@contextlib.contextmanager
def serve(store: Store, name: str) -> Iterator[str]:
    """Serve a store for the length of a block.

    Yields:
        The repository, ``127.0.0.1:<port>/<name>``.
    """
    handler = type("Handler", (_Handler,), {"store": store, "name": name})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": POLL_SECONDS})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}/{name}"
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers the reading half of the distribution API."""

    store: Store
    name: str
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Stay silent; http.server would print."""

    def handle(self) -> None:
        """Answer the requests of a connection; an engine that gives up closes it in the middle."""
        with contextlib.suppress(ConnectionError):
            if self.connection.recv(1, socket.MSG_PEEK) == TLS_HELLO:
                # containerd takes plain http when the refusal of its TLS is in http, which http.server's is not
                self.connection.recv(1 << 16)
                self.connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            else:
                super().handle()

    def do_GET(self) -> None:
        """Answer with the whole thing, or with what follows the first byte that is asked for."""
        # the name is what keeps other users of this host away
        path, ours = self.path.partition("?")[0], f"/v2/{self.name}/"
        kind, _, wanted = path.removeprefix(ours).partition("/") if path.startswith(ours) else ("", "", "")
        if self.path.rstrip("/") == "/v2":
            self._send(HTTPStatus.OK, b"{}", "application/json")
        elif kind == "manifests" and (entry := self.store.find(wanted)) is not None:
            self._stream(entry.digest, entry.size, entry.media_type)
        elif kind == "blobs" and (size := self.store.size(wanted)) is not None:
            self._stream(wanted, size, "application/octet-stream")
        elif kind == "referrers":
            index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": self.store.referrers(wanted)}
            self._send(HTTPStatus.OK, canonical_json(index).encode(), OCI_INDEX)
        else:
            code = "MANIFEST_UNKNOWN" if kind == "manifests" else "NAME_UNKNOWN"
            self._refuse(HTTPStatus.NOT_FOUND, code, "it is not here")

    def do_HEAD(self) -> None:
        """Answer with the head alone."""
        self.do_GET()

    def _stream(self, digest: str, size: int, kind: str) -> None:
        asked = re.fullmatch(r"bytes=([0-9]{1,18})-", self.headers.get("Range", ""))
        begin = int(asked[1]) if asked else 0
        if asked and begin >= size:
            self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "RANGE_INVALID", f"it has {size} bytes")
            return
        headers = {"Docker-Content-Digest": digest}
        if asked:
            headers["Content-Range"] = f"bytes {begin}-{size - 1}/{size}"
        status = HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK
        if self.command == "HEAD":
            self._head(status, size - begin, kind, headers)
            return
        passed, begun = 0, False

        def write(piece: bytes) -> None:
            nonlocal passed, begun
            if not begun:
                begun = True
                self._head(status, size - begin, kind, headers)
            self.wfile.write(piece[max(0, begin - passed) :])
            passed += len(piece)

        try:
            self.store.blob(digest, write)
            write(b"")
        except ToolError as trouble:
            # in the middle only the end of the connection says it
            self.close_connection = begun
            if not begun:
                self._refuse(HTTPStatus.FORBIDDEN, "DENIED", trouble.message)

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        # Docker asks again for minutes after an error without a message
        error = {"errors": [{"code": code, "message": message}]}
        self._send(status, canonical_json(error).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self._head(status, len(body), kind, {})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, size: int, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": kind, "Content-Length": str(size), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
