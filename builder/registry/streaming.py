"""A blob of any size, handed over piece by piece, and taken up where a connection broke."""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from typing import TYPE_CHECKING

from builder.registry.transport import Request, Transport, TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from builder.registry.manifest import Descriptor
    from builder.registry.reference import Reference


def stream_blob(
    transport: Transport,
    repository: Reference,
    blob: Descriptor,
    write: Callable[[bytes], object],
    *,
    here: Iterable[bytes] = (),
) -> str:
    """Hand over a blob's bytes and return the digest that they have.

    A try that brought something does not count as one that failed, so a line that breaks often is slow, not hopeless.

    Args:
        transport: What asks the registry.
        repository: Where the blob is.
        blob: What it is.
        write: Takes each piece.
        here: Its first pieces, which are not asked for.

    Raises:
        ToolError: It is not there, is larger than it says, or the registry sends nothing more.
    """
    hashed, done = hashlib.sha256(), 0

    def pass_on(piece: bytes) -> None:
        nonlocal done
        hashed.update(piece)
        done += len(piece)
        write(piece)

    def attempt() -> None:
        begun, passed = done, 0

        def take(status: int, piece: bytes) -> None:
            nonlocal passed
            # who does not know ranges begins anew, with what is here already
            known = max(0, begun - passed) if status == HTTPStatus.OK else 0
            passed += len(piece)
            pass_on(piece[known:])

        request = Request(
            method="GET",
            repository=repository,
            path=f"/blobs/{blob.digest}",
            expected=(HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT),
            headers={"Range": f"bytes={begun}-"} if begun else {},
            limit=blob.size,
            sink=take,
        )
        try:
            transport.attempt(request)
        except TryAgain:
            if done == begun:
                raise
        if done == begun:
            raise TryAgain(f"{repository.host} sent {done} of {blob.size} bytes of {blob.digest}", hint="try again")

    for piece in here:
        pass_on(piece)
    while done < blob.size:
        transport.retrying(attempt)
    return f"sha256:{hashed.hexdigest()}"
