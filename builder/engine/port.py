"""What is asked of a container engine; unit tests fake it, :mod:`builder.engine.docker` talks to a real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image of the engine.

    Attributes:
        id: The engine's own id, ``sha256:…``: the config's digest, or the manifest's with the containerd store.
        repo_digests: ``repository@sha256:…`` under which it was pushed or pulled.
        tags: ``repository:tag`` that point at it.
        labels: Labels of its config.
        environment: ``NAME=value`` of its config.
        entrypoint: Entry point and command of its config.
        user: User of its config.
        size: Bytes on disk.
        history: The command of each layer, newest first.
        layers: Unpacked bytes of each entry of ``history``.
        healthcheck: The health check of its config; empty when it has none, or says NONE.
    """

    id: str
    repo_digests: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    user: str = ""
    size: int = 0
    history: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    healthcheck: tuple[str, ...] = ()

    @property
    def digests(self) -> set[str]:
        """The digests under which it was pushed or pulled, wherever that was."""
        return {entry.partition("@")[2] for entry in self.repo_digests}


@dataclass(frozen=True, kw_only=True)
class Container:
    """A container of the engine.

    Attributes:
        id: The engine's id.
        name: Its name, without the slash.
        image_id: Id of the image that it was made from.
        state: The engine's word for its state.
        exit_code: Exit status of its process once it ended, else None.
        out_of_memory: The kernel killed it for memory.
        restarts: How often the engine restarted it.
        started_at: When it started last, ISO 8601 with offset, or empty.
        labels: Its labels.
        shm_bytes: Size of its /dev/shm.
    """

    id: str
    name: str
    image_id: str
    state: Literal["created", "running", "paused", "restarting", "removing", "exited", "dead"]
    exit_code: int | None = None
    out_of_memory: bool = False
    restarts: int = 0
    started_at: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    shm_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """What to start.

    Attributes:
        image: Reference or id of the image.
        name: The container's name.
        command: Arguments for the entry point.
        environment: Variables.
        labels: Labels; ours mark what we may touch.
        ports: Container port -> (host address, host port).
        mounts: Host path -> (container path, read-only).
        volumes: Named volume -> container path.
        devices: Device nodes.
        groups: Numeric group ids.
        shm_bytes: Size of /dev/shm, or None for the engine's default.
        host_ipc: Share the host's IPC namespace.
        memory_bytes: Memory limit, or None.
    """

    image: str
    name: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    mounts: Mapping[Path, tuple[str, bool]] = field(default_factory=dict)
    volumes: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    shm_bytes: int | None = None
    host_ipc: bool = False
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a short-lived container wrote, and its exit status."""

    returncode: int
    stdout: str
    stderr: str


class Engine(Protocol):
    """A container engine. Every call raises HostError when the engine cannot be reached."""

    name: str
    """How messages call it, such as ``docker 20.10.24 at unix:///var/run/docker.sock``."""
    environment: Mapping[str, str]
    """Variables that make the command line (docker, buildx) talk to this very engine."""

    def data_root(self) -> Path:
        """Return where the engine keeps its data, on its own host."""

    def capacity(self) -> tuple[int, int]:
        """Return the processor cores and the bytes of memory of the engine's own host."""

    def remote_digest(self, reference: str) -> str:
        """Return the digest that a registry, asked by the engine, has for a reference; RegistryError without one."""

    def image(self, reference: str) -> Image | None:
        """Return an image by id, tag or digest, or None when the engine has none."""

    def images(self, label: str) -> list[Image]:
        """Return the images that carry a label (``key`` or ``key=value``), without their history."""

    def import_image(self, tar: Path, reference: str, *, labels: Mapping[str, str]) -> Image:
        """Make an image of one layer from a root filesystem's tar file."""

    def tag(self, image_id: str, repository: str, tag: str) -> None:
        """Give an image one more name."""

    def untag(self, reference: str) -> None:
        """Take a name from an image; the image goes when it was the last one and nothing uses it.

        A name that is not there is fine; HostError when a container still needs the image and this is its last name.
        """

    def push(self, repository: str, tag: str, *, on_progress: Callable[[str], None]) -> str:
        """Push and return the manifest's digest; raises RegistryError with the daemon's own message."""

    def pull(self, repository: str, digest: str, *, on_progress: Callable[[str], None]) -> Image:
        """Pull ``repository@digest``; raises RegistryError with the daemon's own message."""

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
        """Run a program in a new container without network and remove it; ``files`` go in by absolute path first.

        It runs as ``user``, or as the image's own. ``mounts`` are paths of the engine's own host, each with the
        path at which the program sees it, read-only. A program that the image does not have gives 127, as in a shell;
        VerifyError when it did not end within ``timeout`` seconds and was killed.
        """

    def read_files(self, image: str, paths: Sequence[str], *, limit: int) -> dict[str, bytes]:
        """Return files of an image by absolute path, without running it; a missing one is left out.

        VerifyError when one is larger than ``limit`` bytes.
        """

    def create(self, spec: ContainerSpec) -> Container:
        """Create a container (not started), with an init process, no new privileges and no restart policy."""

    def add_folders(self, container_id: str, at: str, names: Sequence[str], *, user: int, group: int) -> None:
        """Put empty folders of a user below a path of a container that was not started; the path may be a volume."""

    def start(self, container_id: str) -> None:
        """Start a created or stopped container."""

    def keep_running(self, container_id: str, *, always: bool) -> None:
        """Set the restart policy: unless-stopped, or none."""

    def stop(self, container_id: str, *, timeout: int) -> None:
        """Stop a container and wait for its end; killed after ``timeout`` seconds."""

    def remove(self, container_id: str) -> None:
        """Remove a container, stopped or not, and the volumes without a name that it brought."""

    def rename(self, container_id: str, name: str) -> None:
        """Give a container another name."""

    def container(self, name_or_id: str) -> Container | None:
        """Return a container, or None."""

    def containers(self, label: str) -> list[Container]:
        """Return the containers that carry a label (``key`` or ``key=value``), running or not."""

    def logs(self, container_id: str, *, tail: int) -> str:
        """Return the last lines of a container's output."""

    def logs_since(self, container_id: str, since: float) -> list[tuple[float, str]]:
        """Return the lines of a container's output from a time on, each with its time (seconds since 1970)."""

    def follow(self, container_id: str, *, tail: int | None = None) -> Iterator[str]:
        """Yield the last lines of a container's output (all by default), then more as they come, until it ends."""

    def changes(self, container_id: str) -> tuple[str, ...]:
        """Return the paths that a container added or changed against its image."""
