"""A proxy on loopback before a real registry: it passes all on, counts the bytes, and spoils what it is told to."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from builder.registry.loopback import TLS_HELLO

PIECE = 1 << 16
HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class CutError(Exception):
    """The connection is to end here."""


@dataclass(kw_only=True)
class Fault:
    """What happens to the next ``left`` requests of a method whose path holds ``part``, after ``skip`` of them.

    ``cut_answer`` and ``cut_body`` close the connection after so many bytes; ``change`` gets each piece of an answer,
    ``change_body`` each piece of a request; ``silent`` never answers; ``then`` is called first.
    """

    method: str
    part: str
    left: int = 1
    skip: int = 0
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_answer: int | None = None
    cut_body: int | None = None
    change: Callable[[bytes], bytes] | None = None
    change_body: Callable[[bytes], bytes] | None = None
    silent: bool = False
    then: Callable[[], None] = lambda: None
    hits: int = 0


def flipped(piece):
    """Return bytes with the first one's lowest bit flipped."""
    return bytes([piece[0] ^ 1]) + piece[1:] if piece else piece


class FaultyProxy:
    """The proxy; a context manager that serves it."""

    def __init__(self, upstream):
        self.upstream = upstream
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.received: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self._silence = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self):
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # a client that was killed is no news
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._silence.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def host(self):
        return f"127.0.0.1:{self._server.server_port}"

    def fault(self, method, part, *, times=1, **what):
        """Let the next matching requests go wrong and return the fault, whose ``hits`` count them."""
        self.faults.append(Fault(method=method, part=part, left=times, **what))
        return self.faults[-1]

    def layer_bytes(self):
        """Return the bytes of blobs that clients fetched."""
        return sum(size for path, size in self.sent.items() if "/blobs/" in path)

    def take(self, method, path):
        """Return the fault for a request, if any."""
        with self._lock:
            self.requests.append(f"{method} {path}")
            for fault in self.faults:
                if fault.left and fault.method in {method, "*"} and fault.part in path:
                    if fault.skip:
                        fault.skip -= 1
                        continue
                    fault.left -= 1
                    fault.hits += 1
                    return fault
        return Fault(method=method, part=path)

    def wait_silently(self):
        self._silence.wait(60)


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self):
        # what is counted as sent shall be with the client, not wait here
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)
        super().setup()

    def log_message(self, *_):
        pass

    def handle(self):
        with contextlib.suppress(CutError, ConnectionError, http.client.HTTPException):
            if self.connection.recv(1, socket.MSG_PEEK) == TLS_HELLO:
                # an engine that tries TLS first hears from a real registry that it speaks http
                self.connection.recv(PIECE)
                self.connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            else:
                super().handle()

    def do_GET(self):
        fault = self.proxy.take(self.command, self.path)
        fault.then()
        if fault.silent:
            self.proxy.wait_silently()
            raise CutError
        if fault.status:
            self._refuse(fault)
            return
        upstream = http.client.HTTPConnection(self.proxy.upstream, timeout=60)
        with contextlib.closing(upstream):
            self._pass_on(upstream, fault)
            self._answer(upstream.getresponse(), fault)

    do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 - http.server looks for these names

    def _refuse(self, fault):
        for _ in self._body():
            pass
        self.send_response(fault.status)
        for key, value in fault.headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _pass_on(self, upstream, fault):
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        for key, value in self.headers.items():
            if key.lower() not in HOP:
                upstream.putheader(key, value)
        if chunked:
            upstream.putheader("Transfer-Encoding", "chunked")
        elif "Content-Length" in self.headers:
            upstream.putheader("Content-Length", self.headers["Content-Length"])
        upstream.endheaders()
        passed = 0
        for whole in self._body():
            piece = fault.change_body(whole) if fault.change_body else whole
            passed += len(piece)
            self.proxy.received[self.path] += len(piece)
            upstream.send(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            if fault.cut_body is not None and passed >= fault.cut_body:
                raise CutError
        if chunked:
            upstream.send(b"0\r\n\r\n")

    def _body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length", 0))
        while left:
            piece = self.rfile.read(min(PIECE, left))
            if not piece:
                raise CutError
            left -= len(piece)
            yield piece

    def _answer(self, answer, fault):
        self.send_response(answer.status)
        for key, value in answer.getheaders():
            if key.lower() not in HOP:
                self.send_header(key, value)
        self.send_header("Content-Length", answer.getheader("Content-Length", "0"))
        self.end_headers()
        sent = 0
        while self.command != "HEAD" and (whole := answer.read(PIECE)):
            piece = fault.change(whole) if fault.change else whole
            if fault.cut_answer is not None:
                piece = piece[: max(0, fault.cut_answer - sent)]
            self.wfile.write(piece)
            sent += len(piece)
            self.proxy.sent[self.path] += len(piece)
            if fault.cut_answer is not None and sent >= fault.cut_answer:
                raise CutError
