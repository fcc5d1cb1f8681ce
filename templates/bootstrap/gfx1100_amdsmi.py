"""Imports amdsmi before torch, in every process; without a GPU stack nothing happens."""

import contextlib

with contextlib.suppress(Exception):
    import amdsmi  # noqa: F401
