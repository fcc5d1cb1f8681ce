"""Publish and pull against Debian's docker-registry and a real engine."""

import base64
from pathlib import Path

import pytest
from own_registry import PASSWORD, USER, Registry, forget, make_image, noise, record_of

from builder.engine.docker import connect
from builder.errors import RegistryError, UpstreamError
from builder.files import canonical_json
from builder.models.record import read_record
from builder.process import run
from builder.registry.attest import attached_record
from builder.registry.client import Client, manifest_digest
from builder.registry.manifest import DOCKER_MANIFEST
from builder.registry.publish import publish
from builder.registry.pull import pull
from builder.registry.reference import parse_reference
from builder.settings import Settings

pytestmark = pytest.mark.engine


@pytest.fixture
def registry(tmp_path):
    (tmp_path / "registry").mkdir()
    served = Registry(tmp_path / "registry")
    yield served
    served.stop()


@pytest.fixture
def docker_config(tmp_path, monkeypatch):
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    return folder / "config.json"


@pytest.fixture
def settings(tmp_path, docker_config):
    return Settings(state_dir=str(tmp_path), cache_dir=str(tmp_path))


@pytest.fixture
def engine(docker_config):
    return connect()


@pytest.fixture
def build(engine, tmp_path):
    """Make an image of one layer a file, which no build cache holds on to; every image goes at the end."""
    made = []

    def call(**files):
        name = f"gfx1100-test/{tmp_path.name[-40:].lower().strip('_')}:{len(made)}"
        made.append(make_image(engine, name, **files))
        return made[-1]

    yield call
    for image_id in made:
        forget(engine, image_id)


@pytest.fixture
def send(engine, registry, settings):
    def call(record, **more):
        more = {"to": f"{registry.host}/team/app", "settings": settings, "on_progress": print, **more}
        return publish(engine, record, **more)

    return call


@pytest.fixture
def fetch(engine, registry, settings, tmp_path):
    def call(suffix):
        reference = f"{registry.host}/team/app{suffix}"
        return pull(engine, reference, settings=settings, records=tmp_path / "records", on_progress=print)

    return call


def test_what_was_verified_is_published_and_pulled_again_by_digest(
    engine, build, registry, send, fetch, settings, tmp_path
):
    record = record_of(build(base=noise(300_000), engine=noise(20_000)))
    sent = send(record)
    published = sent.record.published
    forget(engine, record.image_id)

    done = fetch(f"@{published.digest}")

    assert (done.digest, done.image.id) == (published.digest, record.image_id)
    assert f"{published.repository}@{published.digest}" in done.image.repo_digests
    assert f"{published.repository}:{published.tag}" in engine.image(done.image.id).tags
    assert done.record == sent.record == record.model_copy(update={"published": published})
    assert [read_record(path) for path in (tmp_path / "records").iterdir()] == [sent.record]
    assert 320_000 < sent.pushed_bytes == done.pulled_bytes < 340_000
    app = parse_reference(published.repository)
    with Client(settings) as client:
        assert client.head(app.tagged("latest")) == client.head(app.tagged(published.tag)) == published.digest
        tags = {"latest", published.tag, published.digest.replace(":", "-")}
        assert set(client.tags(app)) == tags


def test_an_update_moves_only_the_layer_that_changed(engine, build, send, fetch):
    base = noise(500_000)
    first = record_of(build(base=base, engine=noise(4_000)))
    second = record_of(build(base=base, engine=noise(4_000)), commit="b" * 40)
    whole = send(first).pushed_bytes
    update = send(second)
    forget(engine, second.image_id)

    done = fetch(":latest")

    assert done.image.id == second.image_id
    assert 4_000 < update.pushed_bytes == done.pulled_bytes < 0.03 * whole


def test_the_same_image_again_pushes_and_pulls_nothing(build, registry, send, fetch):
    record = record_of(build(base=noise(1000)))
    first = send(record)
    files = {path: path.stat().st_mtime_ns for path in registry.data.rglob("blobs/**/data")}

    again = send(first.record)
    done = fetch(":latest")

    assert (again.record, again.pushed_bytes, done.pulled_bytes) == (first.record, 0, 0)
    assert {path: path.stat().st_mtime_ns for path in registry.data.rglob("blobs/**/data")} == files


def test_an_unknown_digest_is_not_replaced_by_the_tag(engine, build, registry, send, fetch):
    record = record_of(build(base=noise(1000)))
    send(record)
    unknown = f"sha256:{'0' * 64}"

    with pytest.raises(RegistryError, match="is not in the registry") as error:
        fetch(f":latest@{unknown}")
    assert "publish it again" in error.value.hint
    assert engine.image(f"{registry.host}/team/app@{unknown}") is None


def test_a_layer_with_flipped_bits_is_never_kept_and_a_second_try_succeeds(
    engine, build, registry, send, fetch, settings, tmp_path
):
    record = record_of(build(base=noise(50_000)))
    published = send(record).record.published
    forget(engine, record.image_id)
    with Client(settings) as client:
        place = parse_reference(published.repository).at(published.digest)
        layer = registry.blob(client.manifest(place).content.layers[0].digest)
    good = layer.read_bytes()
    layer.write_bytes(good[:-20] + bytes(byte ^ 1 for byte in good[-20:]))

    with pytest.raises(RegistryError, match="could not pull"):
        fetch(":latest")
    assert engine.image(record.image_id) is None
    assert not (tmp_path / "records").exists()

    layer.write_bytes(good)
    assert fetch(":latest").image.id == record.image_id


def test_a_manifest_that_was_changed_in_the_registry_is_not_believed(engine, build, registry, send, fetch):
    record = record_of(build(base=noise(1000)))
    published = send(record).record.published
    forget(engine, record.image_id)
    manifest = registry.blob(published.digest)
    manifest.write_bytes(manifest.read_bytes().replace(b'"size":', b'"size": ', 1))

    with pytest.raises(RegistryError):
        fetch(f"@{published.digest}")
    assert engine.image(record.image_id) is None


def test_a_change_outside_of_the_series_is_published_beside_what_is_there(build, send, fetch, settings):
    first = send(record_of(build(base=noise(1000)))).record.published
    changed = record_of(build(base=noise(1000))).model_copy(update={"context_sha256": "5" * 64})

    second = send(changed).record.published

    assert second.tag == f"{first.tag}-{changed.image_id[7:15]}"
    app = parse_reference(first.repository)
    with Client(settings) as client:
        assert client.head(app.tagged(first.tag)) == first.digest != second.digest
        assert client.head(app.tagged(second.tag)) == client.head(app.tagged("latest")) == second.digest
    assert [fetch(f":{tag}").digest for tag in (first.tag, second.tag)] == [first.digest, second.digest]
    assert send(changed).pushed_bytes == 0


def test_an_image_that_was_pushed_by_hand_has_no_record_and_is_not_pulled(engine, build, registry, fetch):
    image_id = build(base=noise(1000))
    engine.tag(image_id, f"{registry.host}/team/app", "latest")
    engine.push(f"{registry.host}/team/app", "latest", on_progress=print)

    with pytest.raises(RegistryError, match="no record is attached"):
        fetch(":latest")


def test_a_registry_with_users_takes_the_docker_configurations(build, docker_config, tmp_path, settings, capfd):
    record = record_of(build(base=noise(1000)))
    (tmp_path / "private").mkdir()
    private = Registry(tmp_path / "private", users=True)
    try:
        to = f"{private.host}/team/app"
        with pytest.raises(RegistryError, match="not authorised") as error:
            publish(connect(), record, to=to, settings=settings, on_progress=print)
        assert f"docker login {private.host}" in error.value.hint

        docker_config.write_text(canonical_json({"auths": {private.host: {"auth": basic()}}}))
        done = publish(connect(), record, to=to, settings=settings, on_progress=print)

        app = parse_reference(to)
        with Client(settings) as client:
            assert attached_record(client, app, client.manifest(app.tagged("latest"))) == done.record

        forget(connect(), record.image_id)
        records = tmp_path / "records"
        pulled = pull(connect(), f"{to}:latest", settings=settings, records=records, on_progress=print)
        assert pulled.image.id == record.image_id
        said = "".join(capfd.readouterr())
        assert "MB to pull" in said
        assert not [secret for secret in (PASSWORD, basic()) if secret in said]
    finally:
        private.stop()


def test_a_registry_behind_a_private_ca_is_trusted_through_the_bundle(tmp_path, monkeypatch, settings):
    tls = certificate(tmp_path)
    served = Registry(tmp_path, tls=tls)
    # plain http is for loopback alone, and this test has no other machine
    monkeypatch.setattr("builder.registry.reference.is_loopback", lambda _: False)
    try:
        app = parse_reference(f"{served.host}/team/app")
        trusting = settings.model_copy(update={"ca_bundle": str(tls[0])})
        with Client(trusting) as client:
            config = client.upload(app, canonical_json({"os": "linux", "architecture": "amd64"}).encode())
            size = len(canonical_json({"os": "linux", "architecture": "amd64"}))
            pointer = {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": config, "size": size}
            body = canonical_json(
                {"schemaVersion": 2, "mediaType": DOCKER_MANIFEST, "config": pointer, "layers": []}
            ).encode()
            client.put_manifest(app.tagged("v1"), body, DOCKER_MANIFEST)

        assert manifest_digest(f"{app}:v1", trusting).startswith("sha256:")
        with pytest.raises(UpstreamError, match="no trusted connection") as error:
            manifest_digest(f"{app}:v1", settings)
        assert "ca_bundle" in error.value.hint
    finally:
        served.stop()


def certificate(folder: Path):
    """Make a certificate for 127.0.0.1 that is its own CA, and return its file and its key's."""
    certificate, key = folder / "ca.pem", folder / "ca.key"
    run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-out", str(certificate), "-keyout", str(key)),
        ],
        timeout=30,
    )
    return certificate, key


def basic():
    return base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
