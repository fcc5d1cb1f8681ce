"""Buffers of the verify kernel."""

SEGMENTS = 16  # parts of the keys


class RdnaVerifyBuffers:
    """The buffers."""

    def __init__(
        self,
        segments: int = 16,
    ):
        self.segments = segments
