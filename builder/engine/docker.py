"""The engine over docker-py: everything but the build, which goes through the CLI (:mod:`builder.engine.buildkit`)."""

# the port says what each call does
# ruff: noqa: D102

from __future__ import annotations

import codecs
import importlib.util
import os
import re
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.engine import sandbox
from builder.engine.address import Address, check_listening, resolve_address
from builder.engine.answers import GONE, answering, container, follow_transfer, image
from builder.errors import DeployError, HostError, RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import docker

    from builder.engine.port import Container, ContainerSpec, Engine, Image, Output

# a system's own containerd and its data (https://github.com/containerd/containerd/blob/main/docs/ops.md)
SHARED_CONTAINERD, CONTAINERD_ROOT = "/run/containerd/containerd.sock", Path("/var/lib/containerd")
ASK_SECONDS = 60  # an engine that is silent longer than this over a question hangs
WORK_SECONDS = 1800  # a registry may be silent this long while it takes in a layer of several GB
PULL_SECONDS = 600  # a pull tells its progress all the time, but for the check of a large layer's sum


def connect(environ: Mapping[str, str] | None = None) -> Engine:
    """Return the engine that DOCKER_HOST, else the active docker context, else the default socket names.

    Args:
        environ: The environment to read, or None for this process's own.

    Raises:
        HostError: It is not installed, does not run, or is not open to this user; says which, and the next step.
        UsageError: The context does not exist.
    """
    env = os.environ if environ is None else environ
    address = resolve_address(env)
    check_listening(address, env)
    with answering(f"the container engine at {address.url} ({address.origin})", "say its version"):
        return DockerEngine(address)


class DockerEngine:
    """A Docker Engine, or Podman's service with the same API; what each call does stands in the port."""

    def __init__(self, address: Address) -> None:
        self._ask = _client(address, ASK_SECONDS)
        self._work = _client(address, WORK_SECONDS)
        self._pull = _client(address, PULL_SECONDS)
        told = self._ask.version()
        kind = "podman" if any("podman" in part["Name"].lower() for part in told.get("Components") or ()) else "docker"
        self.name = f"{kind} {told['Version'].split('+')[0]} at {address.url}"
        self.environment: Mapping[str, str] = address.environment()

    def data_root(self) -> Path:
        with answering(self.name, "say where it keeps its data"):
            told = self._ask.info()
        is_shared = (told.get("Containerd") or {}).get("Address") == SHARED_CONTAINERD
        has_its_store = any("io.containerd.snapshotter.v1" in pair for pair in told.get("DriverStatus") or ())
        return CONTAINERD_ROOT if is_shared and has_its_store else Path(told["DockerRootDir"])

    def capacity(self) -> tuple[int, int]:
        with answering(self.name, "say what its host has"):
            told = self._ask.info()
        return int(told["NCPU"]), int(told["MemTotal"])

    def remote_digest(self, reference: str) -> str:
        with answering(self.name, f"find {reference} in its registry", RegistryError):
            told: dict[str, Any] = _found(self._ask.inspect_distribution, reference) or {}
        digest = (told.get("Descriptor") or {}).get("digest")
        if not digest:
            raise RegistryError(f"the registry has no {reference}", hint=GONE)
        return str(digest)

    def image(self, reference: str) -> Image | None:
        with answering(self.name, f"inspect the image {reference}"):
            told = _found(self._ask.inspect_image, reference)
            return None if told is None else image(told, _found(self._ask.history, told["Id"]) or ())

    def images(self, label: str) -> list[Image]:
        with answering(self.name, f"list the images with the label {label}"):
            listed = self._ask.images(filters={"label": label})
            told = [_found(self._ask.inspect_image, identity) for identity in sorted({one["Id"] for one in listed})]
        return [image(one, ()) for one in told if one is not None]

    def import_image(self, tar: Path, reference: str, *, labels: Mapping[str, str]) -> Image:
        changes = [f"LABEL {_quoted(key)}={_quoted(value)}" for key, value in sorted(labels.items())]
        with answering(self.name, f"import {tar} as {reference}"):
            told = self._work.import_image(str(tar), changes=changes)
        made = re.findall(r'"status":\s*"(sha256:[0-9a-f]{64})"', told)
        if not made:
            raise HostError(f"{self.name} could not import {tar} as {reference}: {told.strip()}")
        # named in a step of its own, as Podman 4 ignores the tag of an import
        repository, _, tag = reference.rpartition(":")
        self.tag(made[-1], repository, tag)
        image = self.image(made[-1])
        if image is None:
            raise HostError(
                f"{self.name} lost {reference} just after its import", hint="is something else pruning images?"
            )
        return image

    def tag(self, image_id: str, repository: str, tag: str) -> None:
        with answering(self.name, f"tag {image_id} as {repository}:{tag}"):
            self._ask.tag(image_id, repository, tag)

    def untag(self, reference: str) -> None:
        with answering(self.name, f"untag {reference}"):
            _found(self._work.remove_image, reference)

    def push(self, repository: str, tag: str, *, on_progress: Callable[[str], None]) -> str:
        what = f"push {repository}:{tag}"
        with answering(self.name, what, RegistryError):
            events = self._work.push(repository, tag=tag, stream=True, decode=True)
            digest = follow_transfer(events, what, on_progress)
        if digest is None:
            raise RegistryError(f"could not {what}: it ended without the digest that proves a push")
        return digest

    def pull(self, repository: str, digest: str, *, on_progress: Callable[[str], None]) -> Image:
        reference = f"{repository}@{digest}"
        what = f"pull {reference}"
        with answering(self.name, what, RegistryError):
            events = self._pull.pull(repository, tag=digest, stream=True, decode=True)
            follow_transfer(events, what, on_progress)
        pulled = self.image(reference)
        if pulled is None:
            raise RegistryError(f"could not {what}: {self.name} has no such image after it")
        return pulled

    def run_once(
        self,
        image: str,
        argv: Sequence[str],
        *,
        files: Mapping[str, bytes],
        timeout: float,
        user: str | None = None,
        mounts: Mapping[str, str] | None = None,
    ) -> Output:
        with answering(self.name, f"run {argv[0]} in {image}"):
            return sandbox.run_once(self._work, image, argv, files=files, timeout=timeout, user=user, mounts=mounts)

    def read_files(self, image: str, paths: Sequence[str], *, limit: int) -> dict[str, bytes]:
        with answering(self.name, f"read files of {image}"):
            return sandbox.read_files(self._work, image, paths, limit=limit)

    def create(self, spec: ContainerSpec) -> Container:
        from docker.types import Mount

        ports: dict[int | str, tuple[str, int]] = dict(spec.ports.items())
        binds = [Mount(at, str(host), type="bind", read_only=ro) for host, (at, ro) in spec.mounts.items()]
        volumes = [Mount(at, name, type="volume") for name, at in spec.volumes.items()]
        with answering(self.name, f"create the container {spec.name} from {spec.image}", DeployError):
            limits = self._ask.create_host_config(
                init=True,
                security_opt=["no-new-privileges"],
                devices=[f"{node}:{node}:rwm" for node in spec.devices],
                group_add=[str(gid) for gid in spec.groups],
                port_bindings=ports,
                mounts=[*binds, *volumes],
                shm_size=spec.shm_bytes,
                ipc_mode="host" if spec.host_ipc else None,
                mem_limit=spec.memory_bytes,
            )
            made = self._work.create_container(
                spec.image,
                command=list(spec.command) or None,
                name=spec.name,
                environment=dict(spec.environment),
                labels=dict(spec.labels),
                ports=list(spec.ports),
                host_config=limits,
            )
            return container(self._ask.inspect_container(made["Id"]))

    def add_folders(self, container_id: str, at: str, names: Sequence[str], *, user: int, group: int) -> None:
        with answering(self.name, f"make folders in {at} of the container {container_id}", DeployError):
            self._work.put_archive(container_id, at, sandbox.tar_of_folders(names, user=user, group=group))

    def start(self, container_id: str) -> None:
        with answering(self.name, f"start the container {container_id}", DeployError):
            self._work.start(container_id)

    def keep_running(self, container_id: str, *, always: bool) -> None:
        policy: Any = {"Name": "unless-stopped" if always else "no"}
        with answering(self.name, f"set the restart policy of {container_id}", DeployError):
            self._ask.update_container(container_id, restart_policy=policy)

    def stop(self, container_id: str, *, timeout: int) -> None:
        with answering(self.name, f"stop the container {container_id}", DeployError):
            self._work.stop(container_id, timeout=timeout)

    def remove(self, container_id: str) -> None:
        with answering(self.name, f"remove the container {container_id}", DeployError):
            self._work.remove_container(container_id, force=True, v=True)

    def rename(self, container_id: str, name: str) -> None:
        with answering(self.name, f"rename the container {container_id} to {name}", DeployError):
            self._ask.rename(container_id, name)

    def container(self, name_or_id: str) -> Container | None:
        with answering(self.name, f"inspect the container {name_or_id}"):
            told = _found(self._ask.inspect_container, name_or_id)
        # an engine also answers to a part of an id, which may look like a name
        exact = told is not None and name_or_id in {told["Name"].lstrip("/"), told["Id"], told["Id"][:12]}
        return container(told) if exact else None

    def containers(self, label: str) -> list[Container]:
        with answering(self.name, f"list the containers with the label {label}"):
            listed = self._ask.containers(all=True, filters={"label": label})
            told = [_found(self._ask.inspect_container, one["Id"]) for one in listed]
        return [container(one) for one in told if one is not None]

    def logs(self, container_id: str, *, tail: int) -> str:
        with answering(self.name, f"read the log of {container_id}"):
            return self._ask.logs(container_id, tail=tail).decode(errors="replace")

    def logs_since(self, container_id: str, since: float) -> list[tuple[float, str]]:
        with answering(self.name, f"read the log of {container_id}"):
            # docker-py passes a float on as it is, and an engine reads its fraction
            told = self._ask.logs(container_id, timestamps=True, since=since or None)
        split = (line.partition(" ") for line in told.decode(errors="replace").split("\n") if line)
        return [(datetime.fromisoformat(at).timestamp(), line.rstrip("\r")) for at, _, line in split]

    def follow(self, container_id: str, *, tail: int | None = None) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        rest = latest = ""
        with answering(self.name, f"follow the log of {container_id}"):
            last: Any = "all" if tail is None else tail
            stream: Any = self._work.logs(container_id, stream=True, follow=True, tail=last)
            try:
                for chunk in stream:
                    *lines, rest = (rest + decoder.decode(chunk)).split("\n")
                    for line in lines:
                        latest = line.rstrip("\r")
                        yield latest
            finally:
                stream.close()
                stream._response.close()  # noqa: SLF001 - close() alone leaves the socket to the collector
        if rest:
            yield rest
        else:
            # the engine may end the stream before a last line without its line end has reached the log
            last = self._last_words(container_id)
            if last and not last.endswith("\n") and last != latest:
                yield last

    def changes(self, container_id: str) -> tuple[str, ...]:
        with answering(self.name, f"compare the container {container_id} with its image"):
            told = self._work.diff(container_id) or []
        return tuple(sorted(change["Path"] for change in told if change["Kind"] in {0, 1}))

    def _last_words(self, container_id: str) -> str:
        """Return the last line of a container's output; nothing when it is being removed, or is gone."""
        import docker.errors

        with answering(self.name, f"read the log of {container_id}"):
            try:
                return str(self._ask.logs(container_id, tail=1).decode(errors="replace"))
            except docker.errors.APIError as error:
                if error.status_code in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                    return ""
                raise


def _client(address: Address, timeout: int) -> docker.APIClient:
    import docker
    from docker.tls import TLSConfig

    class Client(docker.APIClient):
        """docker-py's client, which by itself waits for a pull without any bound."""

        def request(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - requests' own signature
            options["timeout"] = options.get("timeout") or timeout
            return super().request(*arguments, **options)

    if address.url.startswith("ssh://"):
        if importlib.util.find_spec("paramiko") is None:
            raise HostError(f"{address.url} needs the Python package paramiko", hint="pip install 'docker[ssh]'")
        # the user's own ssh client knows the user's hosts, keys and agent
        return Client(address.url, version="auto", timeout=timeout, use_ssh_client=True)
    folder = address.certificates
    pair = (str(folder / "cert.pem"), str(folder / "key.pem")) if folder else None
    tls = TLSConfig(client_cert=pair, ca_cert=str(folder / "ca.pem"), verify=True) if folder else False
    return Client(address.url, version="auto", timeout=timeout, tls=tls)


def _found(ask: Callable[[str], Any], name: str) -> Any:  # noqa: ANN401 - docker-py's JSON
    """Return the answer for a name, or None when there is no such thing."""
    import docker.errors

    try:
        return ask(name)
    except docker.errors.NotFound:
        return None


def _quoted(text: str) -> str:
    """Return a text as a quoted word of a Dockerfile, which expands variables inside quotes too."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'
