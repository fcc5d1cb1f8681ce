"""A build or a walk that is made again: what was known stays, and what a killed one left is no obstacle."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine, image

from builder.build import run
from builder.console import Console
from builder.errors import HostError
from builder.models.record import Published, read_record, write_record
from builder.models.stack import load_stack
from builder.quickstart import _forget

DIGEST = "sha256:" + "d" * 64
PLACE = Published(repository="reg/smoke", tag="t", digest=DIGEST)


@pytest.fixture
def rebuild(record, tmp_path, monkeypatch):
    """Return a function that verifies an image which was published before, and returns what its record says then."""
    verification = record.verification
    monkeypatch.setattr(run, "verify", lambda *_: SimpleNamespace(keep=lambda _: None, verification=verification))
    stack = load_stack(Path(__file__).parents[2], "smoke")
    built = image(repo_digests=(f"reg/smoke@{DIGEST}",))

    def call(context_sha256="4" * 64, held=None, text=None):
        before = record.model_copy(update={"image_id": built.id, "published": PLACE})
        path = write_record(tmp_path, before)
        if text:
            path.write_text(text)
        job = SimpleNamespace(stack=stack, console=Console(), engine=None, series=lambda: None)
        fields = ("lock_sha256", "repository", "ref", "commit", "version", "patches", "dockerfile_sha256")
        context = SimpleNamespace(**{name: getattr(record, name) for name in fields}, context_sha256=context_sha256)
        made, written = run._verified(job, context, held or built, None, tmp_path)
        assert read_record(written) == made
        return made.published

    return call


def test_the_same_image_built_again_is_still_published(rebuild):
    assert rebuild() == PLACE


def test_an_image_of_another_context_or_that_the_engine_knows_by_no_such_digest_is_not(rebuild):
    assert rebuild(context_sha256="9" * 64) is None
    assert rebuild(held=image()) is None


def test_a_damaged_record_is_replaced_with_a_word(rebuild, capsys):
    assert rebuild(text="{") is None
    assert "replaced:" in capsys.readouterr().err


def test_a_name_that_a_leftover_container_needs_does_not_end_the_walk(record, capsys):
    held = image(tags=("gfx1100/smoke:one", "gfx1100/smoke:two"))
    engine, gone = FakeEngine([held]), []

    def untag(name):
        if name.endswith("one"):
            raise HostError("container is using its referenced image")
        gone.append(name)

    engine.untag = untag
    _forget(engine, record.model_copy(update={"image_id": held.id}), Console())
    assert gone == ["gfx1100/smoke:two"]
    assert "gfx1100/smoke:one stays: container is using" in capsys.readouterr().err
