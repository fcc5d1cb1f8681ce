"""A pull that may be killed: the engine pulls through this host, which keeps what came until all layers are there."""

from __future__ import annotations

import contextlib
import re
import secrets
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING

from builder.errors import HostError, RegistryError, ToolError
from builder.files import MIB, locked
from builder.registry.loopback import serve
from builder.registry.manifest import Descriptor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from io import FileIO
    from pathlib import Path

    from builder.engine.port import Engine
    from builder.registry.client import Client
    from builder.registry.manifest import Manifest
    from builder.registry.reference import Reference

# Nobody comes back for a pull that was left alone for so long
FORGOTTEN_SECONDS = 7 * 24 * 3600
NAME = "gfx1100/pull"
ANEW = "when this pull is killed, the next one starts anew"
_SERVED = re.compile(rf"127\.0\.0\.1:[0-9]+/{NAME}/[0-9a-f]{{32}}@")


@contextlib.contextmanager
def parts_folder(cache: Path, on_progress: Callable[[str], None]) -> Iterator[Path]:
    """Yield the folder of the parts, for one pull at a time, without those that nobody came back for.

    Raises:
        HostError: It cannot be made.
    """
    folder = cache / "pulls"
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(folder / "lock", wait=False))
        except HostError as trouble:
            on_progress(f"{trouble.message}; waiting for its end")
            held.enter_context(locked(folder / "lock"))
        # a layer may come from a registry that not everybody on this host may read
        folder.chmod(0o700)
        for part in folder.glob("*.part"):
            if part.stat().st_mtime < time() - FORGOTTEN_SECONDS:
                part.unlink()
        yield folder


def part_path(parts: Path, digest: str) -> Path:
    """Return the file that keeps the first bytes of a blob."""
    return parts / f"{digest.removeprefix('sha256:')}.part"


def kept_bytes(parts: Path, digest: str) -> int:
    """Return how many bytes of a blob are kept."""
    path = part_path(parts, digest)
    return path.stat().st_size if path.exists() else 0


def tidy(
    engine: Engine, place: Reference, blobs: Iterable[str], *, parts: Path, on_progress: Callable[[str], None]
) -> None:
    """Take away what a pull needs no more: the parts, and the names of relays, also those that killed pulls left."""
    image = engine.image(str(place))
    drop_names(engine, filter(_SERVED.match, image.repo_digests if image else ()), on_progress)
    for digest in blobs:
        part_path(parts, digest).unlink(missing_ok=True)


def drop_names(engine: Engine, names: Iterable[str], on_progress: Callable[[str], None]) -> None:
    """Take names from an image; one that a container still needs stays, and a line says so."""
    for name in names:
        try:
            engine.untag(name)
        except HostError as trouble:
            on_progress(f"the name {name} stays: {trouble.message}")


def pull_through(relay: Relay, engine: Engine, on_progress: Callable[[str], None]) -> bool:
    """Pull an image into an engine of this machine, which knows it under the relay's name then.

    Args:
        relay: Serves the image; asked a second time when what it had kept was spoilt.
        engine: Where the image shall be.
        on_progress: Takes the lines of the engine.

    Returns:
        Whether the engine came to the relay; if not, nothing was pulled.

    Raises:
        ToolError: The registry or the engine failed; the parts stay.
    """
    place = relay.place
    with serve(relay, f"{NAME}/{secrets.token_hex(16)}") as served, contextlib.closing(relay):

        def show(line: str) -> None:
            on_progress(line.replace(served, place.repository))

        for is_last in (False, True):
            try:
                engine.pull(served, place.digest or "", on_progress=show)
                break
            except RegistryError as trouble:
                if not relay.was_asked:
                    return False
                cause = relay.trouble
                if cause is not None:
                    raise type(cause)(f"could not pull {place}: {cause.message}", hint=cause.hint) from trouble
                if is_last or not relay.spoilt:
                    said = trouble.message.replace(served, place.repository)
                    raise RegistryError(said, hint=trouble.hint) from trouble
            on_progress(f"what was kept of {relay.spoilt} has other bytes and is pulled anew")
            relay.spoilt = ""
    return True


@dataclass(kw_only=True)
class Relay:
    """One image of a registry as a store: what is kept of a blob comes from here, the rest passes by and is kept.

    Attributes:
        client: Asks the registry.
        place: The image, by digest.
        manifests: What may be asked for, by digest: what the registry has under it, and of an index what it names.
        blobs: The same for blobs.
        parts: The folder of the parts.
        on_progress: Takes a line when nothing more can be kept.
        was_asked: The engine came here.
        asked: The digests of blobs that it asked for.
        spoilt: The digest of a blob of which other bytes were kept, or empty.
        trouble: The first trouble of the registry.
        is_closed: Nothing may pass by any more.
    """

    client: Client
    place: Reference
    manifests: Mapping[str, Manifest]
    blobs: Mapping[str, Descriptor]
    parts: Path
    on_progress: Callable[[str], None]
    was_asked: bool = False
    asked: set[str] = field(default_factory=set)
    spoilt: str = ""
    trouble: ToolError | None = None
    is_closed: bool = False

    def close(self) -> None:
        """End what still passes by."""
        self.is_closed = True

    def find(self, wanted: str) -> Descriptor | None:
        """Return a manifest of the image."""
        self.was_asked = True
        found = self.manifests.get(wanted)
        return Descriptor(mediaType=found.media_type, digest=wanted, size=len(found.body)) if found else None

    def size(self, digest: str) -> int | None:
        """Return the size of a blob of the image."""
        return self.blobs[digest].size if digest in self.blobs else None

    def referrers(self, _: str) -> tuple[dict[str, object], ...]:
        """Return nothing: engines do not ask."""
        return ()

    def blob(self, digest: str, write: Callable[[bytes], object]) -> None:
        """Hand over a blob or a manifest; after a trouble of the registry nothing more is asked of it."""
        if digest in self.manifests:
            write(self.manifests[digest].body)
            return
        self.asked.add(digest)
        if self.trouble is not None:
            raise self.trouble
        path = part_path(self.parts, digest)
        try:
            with locked(path), path.open("a+b", buffering=0) as part:
                self._pass_on(self.blobs[digest], part, write)
        except ToolError as trouble:
            self.trouble = self.trouble or trouble
            raise

    def _pass_on(self, blob: Descriptor, part: FileIO, write: Callable[[bytes], object]) -> None:
        if part.seek(0, 2) > blob.size:
            part.truncate(0)
        kept, passed, is_kept, last = part.seek(0, 2), 0, True, b""
        part.seek(0)

        def take(piece: bytes) -> None:
            nonlocal passed, is_kept, last
            if self.is_closed:
                raise ConnectionAbortedError
            is_kept = is_kept and (passed < kept or self._keep(part, piece))
            passed += len(piece)
            if passed < blob.size:
                write(piece)
            else:
                last = piece

        try:
            self.client.stream(self.place, blob, take, here=iter(lambda: part.read(MIB), b""))
        except ToolError as trouble:
            if passed < blob.size:
                raise
            # the engine finds the same at its last byte, and ends its pull
            part.truncate(0)
            if kept:
                self.spoilt = blob.digest
            else:
                self.trouble = trouble
        write(last)

    def _keep(self, part: FileIO, piece: bytes) -> bool:
        """Return whether a piece could be kept as a whole; what is kept is the blob's beginning in any case."""
        try:
            while piece:
                piece = piece[part.write(piece) :]
        except OSError as trouble:
            self.on_progress(f"{self.parts}: {trouble.strerror}; the rest of a layer is not kept")
            return False
        return True
