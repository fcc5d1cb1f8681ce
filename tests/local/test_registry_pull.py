import pytest
from registry_server import FakeEngine, FakeRegistry, digest

from builder.errors import RegistryError, UsageError, VerifyError
from builder.models.record import read_record
from builder.registry.attest import RECORD_TYPE, attach
from builder.registry.client import Client
from builder.registry.publish import publish
from builder.registry.pull import pull
from builder.registry.reference import parse_reference
from builder.settings import Settings


@pytest.fixture
def registry():
    with FakeRegistry() as served:
        yield served


@pytest.fixture
def engine(registry):
    """The engine of the GPU host, with nothing on it."""
    return FakeEngine(registry)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr("builder.registry.transport.sleep", [].append)
    return Settings(state_dir=str(tmp_path), cache_dir=str(tmp_path))


@pytest.fixture
def published(registry, settings, record):
    """Build and publish an image elsewhere and return its record."""

    def call(*layers, commit="2" * 40):
        elsewhere = FakeEngine(registry)
        built = record.model_copy(update={"image_id": elsewhere.build(*layers), "commit": commit})
        to = f"{registry.host}/team/app"
        return publish(elsewhere, built, to=to, settings=settings, on_progress=[].append).record

    return call


@pytest.fixture
def fetch(engine, registry, settings, tmp_path):
    """Pull a tag or digest of team/app."""

    def call(suffix, *, on_progress=print):
        reference = f"{registry.host}/team/app{suffix}"
        return pull(engine, reference, settings=settings, records=tmp_path / "records", on_progress=on_progress)

    return call


def test_a_digest_is_pulled_and_its_record_is_kept(published, fetch, tmp_path):
    record = published(b"base", b"engine")

    done = fetch(f"@{record.published.digest}")

    assert (done.digest, done.record, done.pulled_bytes) == (record.published.digest, record, 10)
    assert done.image.id == record.image_id
    assert [read_record(path) for path in (tmp_path / "records").iterdir()] == [record]


@pytest.mark.parametrize("suffix", ["", ":latest"])
def test_a_tag_is_looked_up_once_and_said_and_then_only_the_digest_counts(engine, registry, published, fetch, suffix):
    record, lines = published(b"base"), []
    registry.requests.clear()

    done = fetch(suffix, on_progress=lines.append)

    assert done.digest == record.published.digest
    assert [line for line in registry.requests if "/manifests/latest" in line] == ["GET /v2/team/app/manifests/latest"]
    assert f"is {record.published.digest} now" in lines[0]
    assert f"pull {registry.host}/team/app@{record.published.digest}" in engine.calls


def test_a_tag_that_moves_meanwhile_is_not_followed(registry, published, fetch):
    first = published(b"base", b"one")
    second = []
    move = lambda: second.append(published(b"base", b"two", commit="3" * 40))  # noqa: E731
    registry.fault("GET", "/manifests/latest", change=lambda body: body, then=move)

    done = fetch(":latest")

    assert registry.tags["team/app", "latest"] == second[0].published.digest
    assert (done.digest, done.image.id) == (first.published.digest, first.image_id)


def test_a_tag_beside_a_digest_does_not_count(published, fetch):
    first = published(b"one")
    published(b"two", commit="3" * 40)

    assert fetch(f":latest@{first.published.digest}").digest == first.published.digest


def test_only_the_layers_that_the_engine_did_not_have_are_counted(published, fetch):
    fetch(f"@{published(b'base', b'engine one').published.digest}")

    done = fetch(f"@{published(b'base', b'engine two!', commit='3' * 40).published.digest}")

    assert done.pulled_bytes == len(b"engine two!")


def test_an_image_that_is_there_is_checked_and_not_pulled_again(engine, published, fetch):
    record = published(b"base")
    fetch(":latest")
    engine.calls.clear()

    done = fetch(":latest")

    assert (done.record, done.pulled_bytes) == (record, 0)
    assert not any(call.startswith("pull") for call in engine.calls)


def test_the_image_keeps_a_tag_so_that_pruning_leaves_it(engine, registry, published, fetch):
    record = published(b"base")

    fetch(":latest")

    assert engine.names == {f"{registry.host}/team/app:{record.published.tag}": record.image_id}


def test_an_unknown_digest_is_never_replaced_by_a_tag(engine, published, fetch):
    published(b"base")

    with pytest.raises(RegistryError, match="is not in the registry") as error:
        fetch(f":latest@{digest(b'unknown')}")
    assert "publish it again" in error.value.hint
    assert engine.calls == []


def test_a_tag_that_nobody_published_is_told(fetch):
    with pytest.raises(RegistryError, match="nothing was published there"):
        fetch(":latest")


def test_an_image_without_a_record_is_not_pulled(engine, registry, fetch):
    registry.add_image("team/app", "latest")

    with pytest.raises(RegistryError, match="no record is attached") as error:
        fetch(":latest")
    assert "gfx1100 publish" in error.value.hint
    assert engine.calls == []


def test_an_image_whose_record_is_about_another_is_not_pulled(engine, registry, settings, published, fetch):
    record = published(b"base")
    other, _ = registry.add_image("team/app", "latest", layers=(b"other",))
    app, payload = parse_reference(f"{registry.host}/team/app"), record.text().encode()
    with Client(settings) as client:
        attach(client, app, other, artifact_type=RECORD_TYPE, payload=payload, annotations={})

    with pytest.raises(VerifyError, match="is about another publication"):
        fetch(":latest")
    assert engine.calls == []


def test_a_record_with_flipped_bits_is_not_believed(engine, registry, published, fetch):
    record = published(b"base")
    text = record.text().encode()
    registry.blobs["team/app", digest(text)] = text.replace(b'"smoke"', b'"smoky"')

    with pytest.raises(RegistryError, match="other bytes"):
        fetch(":latest")
    assert engine.calls == []


def test_an_engine_that_has_another_digest_after_the_pull_is_not_believed(engine, published, fetch, tmp_path):
    published(b"base")
    engine.pull = lambda *_, **__: None

    with pytest.raises(VerifyError, match="has no image with the digest"):
        fetch(":latest")
    assert not (tmp_path / "records").exists()


def test_an_image_that_the_engine_knows_from_another_repository_is_pulled(engine, registry, published, fetch):
    record = published(b"base")
    engine.contents[record.image_id] = (registry.blobs["team/app", record.image_id], (b"base",))
    engine.digests[f"elsewhere.example/app@{record.published.digest}"] = record.image_id
    find = engine.image
    engine.image = lambda reference: find(reference) or find(record.image_id)

    done = fetch(":latest")

    assert f"pull {registry.host}/team/app@{record.published.digest}" in engine.calls
    assert done.pulled_bytes == 0


def test_a_name_that_the_engine_lost_does_not_disturb(engine, published, fetch):
    record = published(b"base")
    fetch(":latest")
    engine.digests = {"<none>@sha256:" + "0" * 64: record.image_id, **engine.digests}

    assert fetch(":latest").digest == record.published.digest


def test_a_pull_that_dies_leaves_no_record_and_a_second_try_succeeds(engine, published, fetch, tmp_path, monkeypatch):
    record = published(b"base")

    def die(*_, **__):
        raise RegistryError("could not pull: unexpected EOF")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "pull", die)
        with pytest.raises(RegistryError, match="unexpected EOF"):
            fetch(":latest")
    assert not (tmp_path / "records").exists()

    assert fetch(":latest").record == record


def test_what_is_no_reference_is_a_usage_error(engine, settings, tmp_path):
    with pytest.raises(UsageError):
        pull(engine, "a b", settings=settings, records=tmp_path, on_progress=[].append)
