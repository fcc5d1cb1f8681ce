"""A walk through MessagePack data.

The data is walked, not decoded: what is not wanted is stepped over without recursion, so hostile data costs time in
proportion to its length and no memory. A library would build the whole tree first, at ten times the data's size.
Format: the MessagePack specification.
"""

from __future__ import annotations

# type byte -> (bytes, values inside) of the types whose length the type byte says; 0 bytes: see _SIZED
_FIXED: tuple[tuple[int, int], ...] = (
    *((1, 0) for _ in range(0x80)),  # small numbers
    *((1, 2 * n) for n in range(16)),  # small maps
    *((1, n) for n in range(16)),  # small arrays
    *((1 + n, 0) for n in range(32)),  # short texts
    *((1, 0), (0, 0), (1, 0), (1, 0)),  # nil, never used, false, true
    *((0, 0) for _ in range(6)),  # bytes and extensions with a length
    *((5, 0), (9, 0)),  # floats
    *((2, 0), (3, 0), (5, 0), (9, 0)) * 2,  # numbers without and with a sign
    *((2 + n, 0) for n in (1, 2, 4, 8, 16)),  # extensions of fixed length
    *((0, 0) for _ in range(7)),  # texts, arrays and maps with a length
    *((1, 0) for _ in range(0x20)),  # small negative numbers
)
# type byte -> (bytes of the length, bytes beside the content, values inside a unit; 0: the units are bytes)
_SIZED = {
    0xC4: (1, 0, 0),  # bytes
    0xC5: (2, 0, 0),
    0xC6: (4, 0, 0),
    0xC7: (1, 1, 0),  # extensions
    0xC8: (2, 1, 0),
    0xC9: (4, 1, 0),
    0xD9: (1, 0, 0),  # texts
    0xDA: (2, 0, 0),
    0xDB: (4, 0, 0),
    0xDC: (2, 0, 1),  # arrays
    0xDD: (4, 0, 1),
    0xDE: (2, 0, 2),  # maps
    0xDF: (4, 0, 2),
}
_NUMBER = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


class Walk:
    """A place in MessagePack data, and the steps from there.

    Every step raises ValueError when the data ends too early or holds another type.

    Args:
        data: The data.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def map(self) -> int:
        """Step into a map; returns the number of its pairs."""
        return self._length("map", 0x80, 0x8F, (0xDE, 0xDF))

    def array(self) -> int:
        """Step into an array; returns the number of its values."""
        return self._length("array", 0x90, 0x9F, (0xDC, 0xDD))

    def text(self) -> bytes:
        """Step over a text; returns its bytes."""
        return self._take(self._length("text", 0xA0, 0xBF, (0xD9, 0xDA, 0xDB)))

    def number(self) -> int:
        """Step over a whole number that is not negative; returns it."""
        kind = self._take(1)[0]
        if kind < 0x80:  # noqa: PLR2004 - the specification's first kind
            return kind
        if kind not in _NUMBER:
            raise ValueError(f"type {kind:#04x} where a number is due")
        return int.from_bytes(self._take(_NUMBER[kind]), "big")

    def skip(self) -> None:
        """Step over one value with all that is in it."""
        data, at, due = self.data, self.at, 1
        try:
            while due:
                kind = data[at]
                size, inside = _FIXED[kind]
                if not size:
                    width, more, per_unit = _SIZED[kind]
                    length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
                    inside = length * per_unit
                    size = 1 + width + more + (0 if per_unit else length)
                at += size
                due += inside - 1
        except (IndexError, KeyError) as trouble:
            self.at = min(at, len(data))
            raise ValueError("a value that does not end, or of no known type") from trouble
        if at > len(data):
            raise ValueError("a value that ends behind the data")
        self.at = at

    def _length(self, what: str, first: int, last: int, sized: tuple[int, ...]) -> int:
        kind = self._take(1)[0]
        if first <= kind <= last:
            return kind - first
        if kind not in sized:
            raise ValueError(f"type {kind:#04x} where a {what} is due")
        return int.from_bytes(self._take(_SIZED[kind][0]), "big")

    def _take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        if len(taken) != size:
            raise ValueError("the data ends too early")
        self.at += size
        return taken
