"""A docker-registry of a test's own, and small images made without a build."""

import io
import json
import os
import subprocess
import tarfile
import threading
from pathlib import Path

from builder.console import Console
from builder.engine.docker import connect
from builder.engine.local import registry_program
from builder.files import sha256
from builder.models.record import PatchRecord, Record, Verification
from builder.settings import load_settings

ROOT = Path(__file__).parents[2]
USER, PASSWORD = "somebody", "correct-horse"
# bcrypt of the password
HTPASSWD = f"{USER}:$2y$05$abcdefghijklmnopqrstuuZ0Fx87Pb/Aqb0E90lfvCwzXnaFKUHpS\n"


class Registry:
    """A docker-registry on a free port of loopback, with its data in a folder."""

    def __init__(self, folder, *, tls=None, users=False):
        self.data = folder / "data"
        config = {
            "version": "0.1",
            "log": {"level": "info", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self.data)}},
            "http": {"addr": "127.0.0.1:0"},
        }
        if tls:
            config["http"]["tls"] = {"certificate": str(tls[0]), "key": str(tls[1])}
        if users:
            (folder / "htpasswd").write_text(HTPASSWD)
            config["auth"] = {"htpasswd": {"realm": "here", "path": str(folder / "htpasswd")}}
        path = folder / "registry.json"
        path.write_text(json.dumps(config))  # JSON is YAML
        state = load_settings(ROOT).state
        program = registry_program(state / "registry", install=True, console=Console())
        self._process = subprocess.Popen([program, "serve", str(path)], stderr=subprocess.PIPE, text=True)
        for line in self._process.stderr:
            if "listening on" in line:
                self.host = line.partition("listening on ")[2].partition('"')[0].partition(",")[0].strip()
                break
        else:
            raise AssertionError(f"docker-registry ended with {self._process.wait()}")
        self._drain = threading.Thread(target=self._process.stderr.read)
        self._drain.start()

    def blob(self, digest):
        """Return the file that holds a blob or a manifest."""
        kind, _, value = digest.partition(":")
        return self.data / "docker/registry/v2/blobs" / kind / value[:2] / value / "data"

    def stop(self):
        self._process.terminate()
        self._process.wait()
        self._drain.join()
        self._process.stderr.close()


def make_image(engine, name, /, **files):
    """Make an image of one layer a file, which no build cache holds on to, and return its id."""
    layers = {key: layer(key, content) for key, content in files.items()}
    diff_ids = [f"sha256:{sha256(content)}" for content in layers.values()]
    config = {"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": [f"{key}.tar" for key in layers]}]
    parts = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    engine_load(tarball({**parts, **{f"{key}.tar": content for key, content in layers.items()}}))
    return engine.image(name).id


def layer(name, content):
    return tarball({name: content})


def tarball(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def engine_load(archive):
    import docker

    client = docker.APIClient(connect().environment["DOCKER_HOST"], version="auto")
    try:
        for event in client.load_image(archive):
            assert "error" not in event, event
    finally:
        client.close()


def forget(engine, image_id):
    """Take an image with all its names from the engine."""
    image = engine.image(image_id)
    for name in (*image.tags, *image.repo_digests) if image else ():
        engine.untag(name)
    engine.untag(image_id)
    assert engine.image(image_id) is None


def record_of(image_id, commit="a" * 40):
    return Record(
        format=1,
        stack="smoke",
        created="2026-01-01T00:00:00+00:00",
        tool="0.1.0",
        lock_sha256="1" * 64,
        repository="https://example.org/engine",
        ref="refs/heads/main",
        commit=commit,
        version=f"0.0.dev0+g{commit[:12]}",
        patches=(PatchRecord(id="one", sha256="2" * 64, outcome="applied"),),
        dockerfile_sha256="3" * 64,
        context_sha256="4" * 64,
        image_id=image_id,
        verification=Verification(verdict="ok", checks=()),
    )


def noise(size):
    """Return bytes that do not compress, other ones each time, so that no layer is shared with an earlier run."""
    return os.urandom(size)
