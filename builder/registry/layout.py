"""An OCI image layout in one tar file: written from a registry, read by name and digest, every byte checked.

Form: https://github.com/opencontainers/image-spec/blob/main/image-layout.md.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from typing import IO, TYPE_CHECKING

from pydantic import ValidationError

from builder.errors import UsageError, VerifyError
from builder.files import MIB, canonical_json
from builder.registry.manifest import (
    KNOWN_TYPES,
    OCI_INDEX,
    Content,
    Descriptor,
    Manifest,
    digest_of,
    parse_manifest,
)
from builder.registry.transport import MANIFEST_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

VERSION = {"imageLayoutVersion": "1.0.0"}
REF_NAME = "org.opencontainers.image.ref.name"


class LayoutWriter:
    """Adds blobs to a tar file whose bytes depend on its content alone.

    Args:
        file: Where the tar goes.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._had: set[str] = set()
        self._add_file("oci-layout", json.dumps(VERSION).encode())

    def add_bytes(self, content: bytes) -> None:
        """Add a small blob, once."""
        if self._is_new(digest_of(content)):
            self._add_file(_blob_name(digest_of(content)), content)

    def add_stream(self, blob: Descriptor, bring: Callable[[Callable[[bytes], object]], None]) -> None:
        """Add a blob, once; ``bring`` writes it piece by piece, and keeps to its size or raises."""
        if self._is_new(blob.digest):
            self._begin(_blob_name(blob.digest), blob.size)
            bring(self._file.write)
            self._pad(blob.size)

    def close(self, entries: Sequence[Mapping[str, object]]) -> None:
        """Add the index with its entries, and the end of the tar."""
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
        self._add_file("index.json", canonical_json(index).encode())
        self._file.write(b"\0" * 2 * tarfile.BLOCKSIZE)

    def _add_file(self, name: str, content: bytes) -> None:
        self._begin(name, len(content))
        self._file.write(content)
        self._pad(len(content))

    def _begin(self, name: str, size: int) -> None:
        member = tarfile.TarInfo(name)
        member.size = size
        # GNU's form of the header takes sizes beyond 8 GiB
        self._file.write(member.tobuf(tarfile.GNU_FORMAT))

    def _pad(self, size: int) -> None:
        self._file.write(b"\0" * (-size % tarfile.BLOCKSIZE))

    def _is_new(self, digest: str) -> bool:
        new = digest not in self._had
        self._had.add(digest)
        return new


class Layout:
    """A layout in a tar file, whose every blob has been found to have the digest that it is filed under.

    Args:
        path: The tar file.

    Raises:
        UsageError: It is no such file.
        VerifyError: A blob has other bytes, or one that a manifest names is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with tarfile.open(path, mode="r:") as tar:
                self._places = {member.name: member for member in tar if member.isreg()}
            version = json.loads(self._small("oci-layout"))
            self.index = Content.model_validate_json(self._small("index.json"))
        except OSError as trouble:
            raise UsageError(f"{path} cannot be read: {trouble.strerror}") from trouble
        except (tarfile.TarError, ValueError, RecursionError, KeyError) as trouble:
            reason = "its index is damaged" if isinstance(trouble, ValidationError) else str(trouble) or "damaged"
            raise UsageError(f"{path} is no bundle: {reason}", hint="make it anew with `gfx1100 bundle`") from trouble
        if version != VERSION:
            raise UsageError(f"{path} is an OCI layout of another version: {version!r}")
        self._check_digests()
        self._check_complete()

    def find(self, wanted: str) -> Descriptor | None:
        """Return the entry of the manifest that has a digest or a tag, or None."""
        return next(
            (
                one
                for one in self.index.manifests
                if wanted in {one.digest, (one.annotations or {}).get(REF_NAME)} and one.media_type in KNOWN_TYPES
            ),
            None,
        )

    def referrers(self, subject: str) -> list[dict[str, object]]:
        """Return the entries of what is attached to a digest, as a registry lists them."""
        entries = []
        for one in self.index.manifests:
            content = self.manifest(one).content
            if content.subject is not None and content.subject.digest == subject:
                named = one.model_dump(by_alias=True, include={"media_type", "digest", "size"})
                entries.append({**named, "artifactType": content.artifact_type or ""})
        return entries

    def size(self, digest: str) -> int | None:
        """Return the size of a blob, or None when it is not here."""
        place = self._places.get(_blob_name(digest))
        return place.size if place else None

    def blob(self, digest: str, write: Callable[[bytes], object]) -> None:
        """Hand over a blob's bytes piece by piece."""
        place = self._places[_blob_name(digest)]
        with self.path.open("rb") as file:
            file.seek(place.offset_data)
            left = place.size
            while left and (piece := file.read(min(MIB, left))):
                left -= len(piece)
                write(piece)

    def manifest(self, entry: Descriptor) -> Manifest:
        """Return the manifest of an entry of an index.

        Raises:
            VerifyError: It is none.
        """
        try:
            return parse_manifest(self._small(_blob_name(entry.digest)), entry.media_type)
        except (ValueError, KeyError) as trouble:
            raise VerifyError(f"{self.path}: {entry.digest}: {trouble}") from trouble

    def _small(self, name: str) -> bytes:
        place = self._places[name]
        if place.size > MANIFEST_LIMIT:
            raise ValueError(f"{name} has {place.size} bytes, which is no such file as is expected here")
        with self.path.open("rb") as file:
            file.seek(place.offset_data)
            return file.read(place.size)

    def _check_digests(self) -> None:
        for name in self._places:
            if not name.startswith("blobs/"):
                continue
            hashed = hashlib.sha256()
            digest = name.removeprefix("blobs/").replace("/", ":", 1)
            self.blob(digest, hashed.update)
            if f"sha256:{hashed.hexdigest()}" != digest:
                raise VerifyError(
                    f"{self.path} is damaged: what it holds as {digest} has other bytes",
                    hint="copy it again from where it was made; nothing of it was used",
                )

    def _check_complete(self) -> None:
        for entry in self.index.manifests:
            manifest = self.manifest(entry)
            named = [*manifest.blobs, *manifest.content.manifests]
            missing = [one.digest for one in named if self.size(one.digest) != one.size]
            if missing:
                raise VerifyError(f"{self.path} is not whole: {missing[0]} of {entry.digest} is missing")


def _blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/', 1)}"
