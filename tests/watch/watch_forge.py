"""A forge on loopback that speaks the part of GitHub's API that the watchdog uses, and whose answers can be spoilt."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

REPOSITORY = "me/images"
TOKEN = "a-token"


class FakeForge:
    """The forge's state; a context manager that serves it."""

    def __init__(self):
        self.issues = []
        self.comments = []
        self.pulls = []
        self.refs = {"refs/heads/main": "b" * 40}
        self.trees = []
        self.requests = []
        self.spoilt = []
        self.page_size = 100

    def spoil(self, method, part, status, *, kind="application/json", body=b"{}", **headers):
        """Answer the next request of a method whose path holds ``part`` like this."""
        self.spoilt.append((method, part, status, {"Content-Type": kind, **headers}, body))

    def writes(self):
        """Return the requests that changed something."""
        return [request for request in self.requests if not request.startswith("GET")]

    def environ(self):
        return {"GITHUB_TOKEN": TOKEN, "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_API_URL": self.url}

    def __enter__(self):
        forge = self

        class Door(BaseHTTPRequestHandler):
            def handle_one(self):
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                forge.requests.append(f"{self.command} {self.path}")
                for spoilt in forge.spoilt:
                    method, part, status, headers, content = spoilt
                    if method == self.command and part in self.path:
                        forge.spoilt.remove(spoilt)
                        self.answer(status, headers, content)
                        return
                assert self.headers["Authorization"] == f"Bearer {TOKEN}"
                prefix = f"/repos/{REPOSITORY}"
                assert self.path.startswith(prefix), self.path
                status, value = forge.act(self.command, self.path.removeprefix(prefix), body)
                self.answer(status, {"Content-Type": "application/json; charset=utf-8"}, json.dumps(value).encode())

            def answer(self, status, headers, content):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = do_PUT = handle_one  # noqa: N815 - the names that the base class looks for

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def act(self, method, path, body):  # noqa: C901, PLR0911, PLR0912 - a case a route
        address = urlsplit(path)
        parts = address.path.strip("/").split("/")
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        match (method, *parts):
            case ("GET", ""):
                return 200, {"default_branch": "main"}
            case ("GET", "issues"):
                labelled = [issue for issue in self.issues if query["labels"] in issue["labels"]]
                start = (int(query["page"]) - 1) * int(query["per_page"])
                return 200, labelled[start : start + int(query["per_page"])]
            case ("POST", "issues"):
                issue = {"number": len(self.issues) + 1, "state": "open", **body}
                self.issues.append(issue)
                return 201, issue
            case ("PATCH", "issues", number):
                self.issues[int(number) - 1].update(body)
                return 200, self.issues[int(number) - 1]
            case ("POST", "issues", number, "comments"):
                self.comments.append((int(number), body["body"]))
                return 201, {"id": len(self.comments)}
            case ("GET", "pulls"):
                branch = query["head"].partition(":")[2]
                return 200, [pull for pull in self.pulls if pull["head"] == branch]
            case ("POST", "pulls"):
                self.pulls.append({"number": 7, **body})
                return 201, self.pulls[-1]
            case ("GET", "git", "ref", *names):
                return 200, {"object": {"sha": self.refs["refs/" + "/".join(names)]}}
            case ("GET", "git", "matching-refs", *names):
                start = "refs/" + "/".join(names)
                return 200, [{"ref": ref} for ref in self.refs if ref.startswith(start)]
            case ("GET", "git", "commits", sha):
                return 200, {"tree": {"sha": "c" * 40}, "sha": sha}
            case ("POST", "git", "trees"):
                self.trees.append(body)
                return 201, {"sha": "d" * 40}
            case ("POST", "git", "commits"):
                return 201, {"sha": "e" * 40}
            case ("POST", "git", "refs"):
                self.refs[body["ref"]] = body["sha"]
                return 201, {}
            case ("PATCH", "git", "refs", *names):
                self.refs["refs/" + "/".join(names)] = body["sha"]
                return 200, {}
        return 404, {"message": "Not Found"}
