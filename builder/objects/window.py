"""A bounded look into an untrusted file: no read leaves the part that it is for, and none is large by accident."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

from builder.errors import VerifyError
from builder.files import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

READ_LIMIT = 64 * MIB


class Window:
    """A named stretch of bytes of a file or of memory.

    Reads go through ``pread`` and not through a memory map: a file that shrinks while it is read is an error here and
    would be a fatal signal there, and pages that were looked at do not stay mapped.

    Args:
        read: Returns up to ``size`` bytes at an absolute position: ``read(size, position)``.
        name: The place for messages.
        start: Absolute position of the first byte.
        size: Number of bytes.
    """

    def __init__(self, read: Callable[[int, int], bytes], name: str, start: int, size: int) -> None:
        self._read = read
        self.name = name
        self.start = start
        self.size = size

    @classmethod
    def of_bytes(cls, data: bytes, name: str) -> Window:
        """Return the window over all of ``data``."""
        return cls(lambda size, position: data[position : position + size], name, 0, len(data))

    @classmethod
    def of_file(cls, file: BinaryIO, name: str) -> Window:
        """Return the window over all of an open file; the file must stay open as long as the window is used."""
        handle = file.fileno()
        return cls(lambda size, position: os.pread(handle, size, position), name, 0, os.fstat(handle).st_size)

    def part(self, at: int, size: int, what: str, *, name: str = "") -> Window:
        """Return the window over ``size`` bytes from ``at`` on.

        Args:
            at: Position within this window.
            size: Bytes.
            what: What lies there, for the message.
            name: The new window's name, else this one's.

        Raises:
            VerifyError: The stretch does not lie within this window.
        """
        self._check(at, size, what)
        return Window(self._read, name or self.name, self.start + at, size)

    def read(self, at: int, size: int, what: str) -> bytes:
        """Return exactly ``size`` bytes from ``at`` on.

        Raises:
            VerifyError: They do not lie within this window, are more than 64 MiB, or the file ended meanwhile.
        """
        self._check(at, size, what)
        if size > READ_LIMIT:
            raise self.fault(at, f"{what} of {size} bytes is larger than any that a compiler writes")
        try:
            data = self._read(size, self.start + at)
        except OSError as trouble:
            raise self.fault(at, f"{what} cannot be read: {trouble.strerror}") from trouble
        if len(data) != size:
            raise self.fault(at, f"the file ended within {what} while it was read")
        return data

    def peek(self, at: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``at`` on, fewer at the window's end."""
        return self.read(at, max(0, min(size, self.size - at)), "a stretch") if 0 <= at <= self.size else b""

    def find(self, needles: tuple[bytes, ...], at: int) -> int:
        """Return the position of the first of ``needles`` from ``at`` on, or -1.

        The file is read in pieces that grow, so a near hit costs little and a far one few calls.
        """
        overlap = max(len(needle) for needle in needles) - 1
        piece = 8192
        while at < self.size:
            data = self.peek(at, piece)
            hits = [hit for needle in needles if (hit := data.find(needle)) >= 0]
            if hits:
                return at + min(hits)
            at += max(1, len(data) - overlap)
            if self.size - at <= overlap:
                break
            piece = min(piece * 2, MIB)
        return -1

    def fault(self, at: int, text: str) -> VerifyError:
        """Return the error for a fault at a position of this window, placed in the whole file."""
        return VerifyError(f"{self.name}, byte {self.start + at:#x}: {text}")

    def _check(self, at: int, size: int, what: str) -> None:
        if at < 0 or size < 0 or at + size > self.size:
            raise self.fault(0, f"{what} would span {size} bytes from {at} on, but there are only {self.size} bytes")
