"""A registry on loopback whose answers can be spoilt, and an engine that pushes to it and pulls from it."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Self
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

from builder.engine.port import Image, Output
from builder.errors import RegistryError
from builder.registry.manifest import DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST

USER, PASSWORD = "somebody", "correct-horse"


def digest(body):
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def compact(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def pointer(media_type, body, **more):
    return {"mediaType": media_type, "digest": digest(body), "size": len(body), **more}


@dataclass
class Fault:
    """What happens to the next ``left`` requests of a method whose path holds ``part``."""

    method: str
    part: str
    left: int
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    change: Callable[[bytes], bytes] | None = None
    body: bytes = b""
    cut: bool = False
    then: Callable[[], None] | None = None


class FakeRegistry:
    """The registry's state; a context manager that serves it."""

    def __init__(self):
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.tags: dict[tuple[str, str], str] = {}
        self.requests: list[str] = []
        self.authorizations: list[str] = []
        self.faults: list[Fault] = []
        self.referrers_api = True
        self.page_size = 1000
        self.auth: str | None = None
        self.tokens: set[str] = set()
        self.token_requests: list[dict[str, list[str]]] = []
        self.announces_digests = True
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"registry": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.001})
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def host(self):
        return f"127.0.0.1:{self._server.server_port}"

    def fault(self, method, part, *, times=1, **what):
        """Let the next matching requests go wrong: a status, changed bytes, a cut, or something that happens after."""
        self.faults.append(Fault(method=method, part=part, left=times, **what))

    def take_fault(self, method, path):
        with self._lock:
            for fault in self.faults:
                if fault.left and fault.method == method and fault.part in path:
                    fault.left -= 1
                    return fault
        return None

    def add_manifest(self, name, body, media_type, tag=None):
        self.manifests[name, digest(body)] = (media_type, body)
        if tag:
            self.tags[name, tag] = digest(body)
        return digest(body)

    def add_image(self, name, tag, *, layers=(b"layer",), architecture="amd64", media_type=OCI_MANIFEST):
        """Store an image and return its digest and its config's."""
        config = compact({"os": "linux", "architecture": architecture, "made of": [digest(layer) for layer in layers]})
        for blob in (config, *layers):
            self.blobs[name, digest(blob)] = blob
        body = compact(
            {
                "schemaVersion": 2,
                "mediaType": media_type,
                "config": pointer("application/vnd.oci.image.config.v1+json", config),
                "layers": [pointer("application/vnd.oci.image.layer.v1.tar+gzip", layer) for layer in layers],
            }
        )
        return self.add_manifest(name, body, media_type, tag), digest(config)

    def add_index(self, name, tag, platforms):
        """Store an index of images, one a platform, and return its digest."""
        children = []
        for architecture in platforms:
            child, _ = self.add_image(name, None, layers=(architecture.encode(),), architecture=architecture)
            body = self.manifests[name, child][1]
            children.append(pointer(OCI_MANIFEST, body, platform={"os": "linux", "architecture": architecture}))
        body = compact({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": children})
        return self.add_manifest(name, body, OCI_INDEX, tag)

    def resolve(self, name, reference):
        return self.tags.get((name, reference), reference)


class _Handler(BaseHTTPRequestHandler):
    registry: FakeRegistry
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._serve()

    do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815 - http.server looks for these names

    def _serve(self):
        registry = self.registry
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        registry.requests.append(f"{self.command} {self.path}")
        registry.authorizations.append(self.headers.get("Authorization", ""))
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        fault = registry.take_fault(self.command, self.path)
        if fault and fault.status:
            self._answer(fault.status, fault.body, fault.headers)
            return
        if url.path == "/token":
            self._token(parse_qs(sent.decode()) if sent else query)
            return
        if not self._is_authorised():
            return
        status, body, headers = self._route(url.path, query, sent)
        if fault and fault.change:
            body = fault.change(body)
        self._answer(status, body, headers, cut=bool(fault and fault.cut))
        if fault and fault.then:
            fault.then()

    def _answer(self, status, body, headers, *, cut=False):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut

    def _is_authorised(self):
        registry, given = self.registry, self.headers.get("Authorization", "")
        if registry.auth is None:
            return True
        if registry.auth == "basic":
            fine = given == "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            challenge = 'Basic realm="here"'
        else:
            fine = given.removeprefix("Bearer ") in registry.tokens
            challenge = f'Bearer realm="http://{registry.host}/token",service="fake",scope="repository:team/app:pull"'
        if not fine:
            body = compact({"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]})
            self._answer(401, body, {"WWW-Authenticate": challenge})
        return fine

    def _token(self, asked):
        self.registry.token_requests.append(asked)
        given = self.headers.get("Authorization", "")
        basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if given != basic and asked.get("refresh_token") != [PASSWORD]:
            self._answer(401, compact({"errors": [{"code": "UNAUTHORIZED", "message": "wrong user"}]}), {})
            return
        token = f"token-{len(self.registry.token_requests)}"
        self.registry.tokens.add(token)
        self._answer(200, compact({"token": token}), {"Content-Type": "application/json"})

    def _route(self, path, query, sent):
        registry = self.registry
        for kind in ("manifests", "blobs", "tags", "referrers"):
            name, found, rest = path.removeprefix("/v2/").partition(f"/{kind}/")
            if found:
                return getattr(self, f"_{kind}")(registry, name, rest, query, sent)
        return 404, b"404 page not found\n", {}

    def _manifests(self, registry, name, reference, _query, sent):
        if self.command == "PUT":
            media_type = self.headers["Content-Type"]
            found = registry.add_manifest(name, sent, media_type, None if ":" in reference else reference)
            subject = json.loads(sent).get("subject")
            headers = {"OCI-Subject": subject["digest"]} if subject and registry.referrers_api else {}
            return 201, b"", {"Docker-Content-Digest": found, **headers}
        found = registry.resolve(name, reference)
        if (name, found) not in registry.manifests:
            body = compact({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]})
            return 404, body, {"Content-Type": "application/json"}
        media_type, body = registry.manifests[name, found]
        headers = {"Docker-Content-Digest": digest(body)} if registry.announces_digests else {}
        return 200, body, {"Content-Type": media_type, **headers}

    def _blobs(self, registry, name, rest, query, sent):
        if self.command == "POST":
            return 202, b"", {"Location": f"/v2/{name}/blobs/uploads/1?state=x"}
        if self.command == "PUT":
            wanted = query["digest"][0]
            if digest(sent) != wanted:
                return 400, compact({"errors": [{"code": "DIGEST_INVALID", "message": "other bytes"}]}), {}
            registry.blobs[name, wanted] = sent
            return 201, b"", {"Docker-Content-Digest": wanted}
        blob = registry.blobs.get((name, rest))
        return (404, b"", {}) if blob is None else (200, blob, {"Content-Type": "application/octet-stream"})

    def _tags(self, registry, name, _rest, query, _sent):
        tags = sorted(tag for owner, tag in registry.tags if owner == name)
        if not tags:
            return 404, compact({"errors": [{"code": "NAME_UNKNOWN", "message": "unknown"}]}), {}
        begin = tags.index(query["last"][0]) + 1 if "last" in query else 0
        page = tags[begin : begin + registry.page_size]
        more = begin + registry.page_size < len(tags)
        link = {"Link": f'</v2/{name}/tags/list?last={page[-1]}>; rel="next"'} if more else {}
        return 200, compact({"name": name, "tags": page}), {"Content-Type": "application/json", **link}

    def _referrers(self, registry, name, subject, _query, _sent):
        if not registry.referrers_api:
            return 404, b"404 page not found\n", {"Content-Type": "text/plain"}
        found = []
        for (owner, _), (media_type, body) in registry.manifests.items():
            content = json.loads(body)
            if owner == name and (content.get("subject") or {}).get("digest") == subject:
                found.append(pointer(media_type, body, artifactType=content["artifactType"]))
        body = compact({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": found})
        return 200, body, {"Content-Type": OCI_INDEX}


class FakeEngine:
    """The part of the engine's port that publish and pull use, with the images in memory."""

    name = "fake engine"
    environment = MappingProxyType({})

    def __init__(self, registry):
        self.registry = registry
        self.contents: dict[str, tuple[bytes, tuple[bytes, ...]]] = {}
        self.names: dict[str, str] = {}
        self.digests: dict[str, str] = {}
        self.calls: list[str] = []
        self.push_trouble: RegistryError | None = None
        self.on_push: Callable[[], None] | None = None

    def build(self, *layers):
        """Make an image and return its id."""
        config = compact({"os": "linux", "architecture": "amd64", "made of": [digest(layer) for layer in layers]})
        self.contents[digest(config)] = (config, layers)
        return digest(config)

    def image(self, reference):
        found = reference if reference in self.contents else self.names.get(reference) or self.digests.get(reference)
        if found not in self.contents:
            return None
        owned = tuple(entry for entry, image_id in self.digests.items() if image_id == found)
        return Image(id=found, repo_digests=owned, tags=tuple(tag for tag, held in self.names.items() if held == found))

    def images(self, label):
        return [self.image(found) for found in self.contents]

    def data_root(self):
        return Path("/nowhere")

    def capacity(self):
        return 2, 8 << 30

    def tag(self, image_id, repository, tag):
        self.calls.append(f"tag {repository}:{tag}")
        self.names[f"{repository}:{tag}"] = image_id

    def run_once(self, image, argv, *, files, timeout):
        return Output(returncode=127, stdout="", stderr="no such program")

    def push(self, repository, tag, *, on_progress):
        self.calls.append(f"push {repository}:{tag}")
        if self.push_trouble:
            raise self.push_trouble
        if self.on_push:
            self.on_push()
        config, layers = self.contents[self.names[f"{repository}:{tag}"]]
        name = repository.partition("/")[2]
        for blob in (config, *layers):
            self.registry.blobs[name, digest(blob)] = blob
        body = compact(
            {
                "schemaVersion": 2,
                "mediaType": DOCKER_MANIFEST,
                "config": pointer("application/vnd.docker.container.image.v1+json", config),
                "layers": [pointer("application/vnd.docker.image.rootfs.diff.tar.gzip", layer) for layer in layers],
            }
        )
        pushed = self.registry.add_manifest(name, body, DOCKER_MANIFEST, tag)
        self.digests[f"{repository}@{pushed}"] = digest(config)
        on_progress(f"push {repository}:{tag}: pushed")
        return pushed

    def untag(self, reference):
        self.calls.append(f"untag {reference}")
        self.digests.pop(reference, None)
        self.names.pop(reference, None)

    def pull(self, repository, wanted, *, on_progress):
        self.calls.append(f"pull {repository}@{wanted}")
        host, _, name = repository.partition("/")

        def get(kind, what):
            with urlopen(f"http://{host}/v2/{name}/{kind}/{what}") as answer:
                return answer.read()

        had = {digest(layer): layer for _, layers in self.contents.values() for layer in layers}
        layers = []
        try:
            content = json.loads(get("manifests", wanted))
            image_id = content["config"]["digest"]
            config = self.contents[image_id][0] if image_id in self.contents else get("blobs", image_id)
            for one in content["layers"]:
                layers.append(had.get(one["digest"]) or get("blobs", one["digest"]))
                if digest(layers[-1]) != one["digest"]:
                    raise RegistryError(f"could not pull {repository}@{wanted}: {one['digest']} has other bytes")
                state = "already exists" if one["digest"] in had else "pull complete"
                on_progress(f"pull {repository}@{wanted}: {one['digest'][7:19]} {state}")
        except (OSError, HTTPException) as trouble:
            raise RegistryError(f"could not pull {repository}@{wanted}: {trouble}") from trouble
        self.contents[image_id] = (config, tuple(layers))
        self.digests[f"{repository}@{wanted}"] = image_id
        return self.image(f"{repository}@{wanted}")
