"""Git repositories made object by object, so that they can hold what git would refuse, and servers on loopback."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import socket
import socketserver
import subprocess
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MAIN = "refs/heads/main"


class Repo:
    """A bare repository of loose objects."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for folder in ("objects", "refs/heads", "refs/tags"):
            (path / folder).mkdir(parents=True)
        (path / "HEAD").write_text(f"ref: {MAIN}\n")
        (path / "config").write_text(
            "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[uploadpack]\n\tallowFilter = true\n"
        )

    def put(self, kind: str, content: bytes, *, sha: str = "") -> str:
        raw = b"%s %d\0" % (kind.encode(), len(content)) + content
        forced, sha = sha, sha or hashlib.sha1(raw).hexdigest()
        file = self.object(sha)
        if forced or not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(zlib.compress(raw))
        return sha

    def object(self, sha: str) -> Path:
        return self.path / "objects" / sha[:2] / sha[2:]

    def tree(self, *entries: tuple[str, bytes, str]) -> str:
        return self.put("tree", b"".join(b"%s %s\0" % (m.encode(), n) + bytes.fromhex(s) for m, n, s in entries))

    def files(self, files: dict[bytes, tuple[str, bytes]]) -> str:
        below: dict[bytes, dict[bytes, tuple[str, bytes]]] = {}
        entries = []
        for path, (mode, content) in files.items():
            name, slash, rest = path.partition(b"/")
            if slash:
                below.setdefault(name, {})[rest] = (mode, content)
            else:
                sha = content.decode() if mode == "160000" else self.put("blob", content)
                entries.append((name, (mode, name, sha)))
        entries += [(name + b"/", ("40000", name, self.files(inside))) for name, inside in below.items()]
        return self.tree(*(entry for _, entry in sorted(entries)))

    def commit(
        self,
        files: dict[str | bytes, bytes | tuple[str, bytes]] | str,
        *parents: str,
        title: bytes = b"a change",
        time: int = 1_700_000_000,
        ref: str = MAIN,
    ) -> str:
        if not isinstance(files, str):
            files = self.files(
                {
                    path if isinstance(path, bytes) else path.encode(): ("100644", given)
                    if isinstance(given, bytes)
                    else given
                    for path, given in files.items()
                }
            )
        who = b"A Person <a@example.com> %d +0200" % time
        above = b"".join(b"parent %s\n" % parent.encode() for parent in parents)
        sha = self.put(
            "commit", b"tree %s\n%sauthor %s\ncommitter %s\n\n%s\n" % (files.encode(), above, who, who, title)
        )
        self.point(ref, sha)
        return sha

    def tag(self, name: str, target: str, kind: str = "commit") -> str:
        text = f"object {target}\ntype {kind}\ntag {name}\ntagger A <a@example.com> 1700000000 +0000\n\na tag\n"
        sha = self.put("tag", text.encode())
        self.point(f"refs/tags/{name}", sha)
        return sha

    def point(self, ref: str, sha: str) -> None:
        file = self.path / ref
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(sha + "\n")


def git(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_NAME": "A", f"GIT_{who}_EMAIL": "a@example.com"}
    done = subprocess.run(
        ["git", "-C", folder, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.strip()


def work_tree(folder: Path, files: dict[str, bytes]) -> str:
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "a start")
    return git(folder, "rev-parse", "HEAD")


def paths_of(source, commit: str) -> list[bytes]:
    with source.snapshot(commit) as snapshot:
        return [entry.path for entry in snapshot.git.entries(snapshot.tree)]


class Server:
    """What a server on loopback was asked, and how it behaves."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.connections = 0
        self.filters = True
        self.stall_after = 0
        self.stalled = threading.Event()
        self.released = threading.Event()
        self.port = 0

    def url(self, path: str, scheme: str = "git") -> str:
        return f"{scheme}://127.0.0.1:{self.port}/{path}"


@contextlib.contextmanager
def _running(listener: socketserver.BaseServer):
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


@contextlib.contextmanager
def git_daemon(root: Path):
    """Git's own daemon, one process a connection, as inetd would run it."""
    server = Server(root)

    class Door(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            server.connections += 1
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else 40 ms for each answer
            option = f"uploadpack.allowFilter={str(server.filters).lower()}"
            command = ["git", "-c", option, "daemon", "--inetd", "--log-destination=none", "--export-all"]
            command.append(f"--base-path={root}")
            if not server.stall_after:
                subprocess.run(command, stdin=self.request, stdout=self.request, check=False)
                return
            with subprocess.Popen(command, stdin=self.request, stdout=subprocess.PIPE) as daemon:
                left = server.stall_after
                while left and (some := daemon.stdout.read1(left)):
                    self.request.sendall(some)
                    left -= len(some)
                server.stalled.set()
                server.released.wait(30)
                daemon.kill()

    class Listener(socketserver.ThreadingTCPServer):
        block_on_close = True

    with Listener(("127.0.0.1", 0), Door) as listener:
        server.port = listener.server_address[1]
        with _running(listener):
            yield server


@contextlib.contextmanager
def http_server(root: Path, *, page: bytes = b"", status: int = 200, context=None):
    """``git http-backend`` behind Python's own HTTP server, or one page; without filters, in the old protocol."""
    server = Server(root)

    class Door(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            server.connections += 1
            if page:
                self.send_response(status)
                self.send_header("Content-Type", "text/html")
                self.send_header("WWW-Authenticate", 'Basic realm="x"')
                self.end_headers()
                self.wfile.write(page)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            path, _, query = self.path.partition("?")
            environment = {
                **os.environ,
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", "") if server.filters else "",
            }
            option = f"uploadpack.allowFilter={str(server.filters).lower()}"
            command = ["git", "-c", option, "http-backend"]
            answer = subprocess.run(command, input=body, stdout=subprocess.PIPE, env=environment, check=True).stdout
            head, _, body = answer.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the name that the base class looks for

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as listener:
        listener.daemon_threads = False
        if context is not None:
            listener.socket = context.wrap_socket(listener.socket, server_side=True)
        server.port = listener.server_address[1]
        with _running(listener):
            yield server
