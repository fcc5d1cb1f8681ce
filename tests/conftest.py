"""What several unit tests arrange."""

import pytest

from builder.models.record import Check, PatchRecord, Record, Verification


@pytest.fixture
def record():
    """Return a verified record of a made-up build."""
    return Record(
        format=1,
        stack="smoke",
        created="2026-01-01T00:00:00+00:00",
        tool="0.1.0",
        lock_sha256="1" * 64,
        repository="https://example.org/engine",
        ref="refs/heads/main",
        commit="a" * 40,
        version="0.0.dev0+gaaaaaaaaaaaa",
        patches=(PatchRecord(id="one", sha256="2" * 64, outcome="applied"),),
        dockerfile_sha256="3" * 64,
        context_sha256="4" * 64,
        image_id="sha256:" + "5" * 64,
        verification=Verification(verdict="ok", checks=(Check(id="version", status="ok", message="fine"),)),
    )
