"""Bundles: one file with everything, the same bytes each time, and nothing of a damaged one is used."""

import io
import json
import tarfile

import pytest
from registry_server import FakeEngine, FakeRegistry, compact, digest, pointer

from builder.errors import HostError, RegistryError, UsageError, VerifyError
from builder.registry.attest import Payload, attached_record, list_referrers
from builder.registry.bundle import NAME, load_bundle, write_bundle
from builder.registry.client import Client
from builder.registry.layout import Layout
from builder.registry.loopback import serve
from builder.registry.manifest import OCI_MANIFEST
from builder.registry.publish import publish
from builder.registry.reference import parse_reference
from builder.settings import Settings

BILL = Payload(name="SBOM", artifact_type="application/vnd.cyclonedx+json", content=b'{"bomFormat":"CycloneDX"}')


@pytest.fixture
def registry():
    with FakeRegistry() as served:
        yield served


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr("builder.registry.transport.sleep", [].append)
    return Settings(state_dir=str(tmp_path), cache_dir=str(tmp_path))


@pytest.fixture
def published(registry, settings, record):
    """Publish an image with a bill of materials and a signature of cosign's older form; return its record."""
    engine = FakeEngine(registry)
    done = publish(
        engine,
        record.model_copy(update={"image_id": engine.build(b"base" * 1000, b"engine")}),
        to=f"{registry.host}/team/app",
        settings=settings,
        on_progress=[].append,
        payloads=lambda _: (BILL,),
    ).record
    signature = compact({"critical": {"image": {"docker-manifest-digest": done.published.digest}}})
    registry.blobs["team/app", digest(signature)] = signature
    registry.blobs["team/app", digest(b"{}")] = b"{}"
    body = compact(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": pointer("application/vnd.oci.image.config.v1+json", b"{}"),
            "layers": [pointer("application/vnd.dev.cosign.simplesigning.v1+json", signature)],
        }
    )
    registry.add_manifest("team/app", body, OCI_MANIFEST, done.published.digest.replace(":", "-") + ".sig")
    return done


@pytest.fixture
def write(published, settings, tmp_path):
    def call(name="bundle.tar", record=published):
        return write_bundle(record, tmp_path / name, settings=settings, on_progress=[].append)

    return call


def members(path):
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def rewritten(path, change):
    """Write the tar anew with changed members."""
    content = change(members(path))
    with tarfile.open(path, "w") as tar:
        for name, body in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
    return path


def test_the_bundle_is_an_oci_layout_with_the_image_and_all_that_goes_with_it(write, published):
    made = write()

    content = members(made.path)
    index = json.loads(content["index.json"])
    assert json.loads(content["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    assert index["manifests"][0]["digest"] == made.digest == published.published.digest
    assert (len(index["manifests"]), made.artifacts, made.size) == (4, 3, made.path.stat().st_size)
    for name, body in content.items():
        if name.startswith("blobs/"):
            assert digest(body) == name.removeprefix("blobs/").replace("/", ":")


def test_the_same_publication_gives_the_same_bytes(write):
    assert write("one").path.read_bytes() == write("two").path.read_bytes()


def test_a_client_reads_image_record_bill_and_signature_back_from_it(write, published, settings):
    layout = Layout(write().path)
    with serve(layout, NAME) as repository, Client(settings) as client:
        app = parse_reference(repository)
        manifest = client.manifest(app.at(published.published.digest))
        assert attached_record(client, app, manifest) == published
        kinds = {one.artifact_type for one in list_referrers(client, app, manifest.digest)}
        assert BILL.artifact_type in kinds
        assert client.head(app.tagged(manifest.digest.replace(":", "-") + ".sig"))
        assert client.head(app.tagged("latest")) is None
        assert client.blob(app, manifest.content.layers[0].digest, limit=10_000) == b"base" * 1000
        assert not client.has_blob(app, digest(b"elsewhere"))


def test_a_cut_in_the_middle_of_a_layer_is_taken_up(registry, write, published):
    layer = digest(b"base" * 1000)
    registry.fault("GET", f"/blobs/{layer}", cut=True, times=2, change=lambda body: body)

    made = write()

    assert members(made.path)[f"blobs/{layer.replace(':', '/')}"] == b"base" * 1000


def test_a_layer_with_other_bytes_leaves_no_file(registry, write, tmp_path):
    registry.fault("GET", "/blobs/", change=lambda body: bytes(byte ^ 1 for byte in body), times=99)

    with pytest.raises((RegistryError, VerifyError), match="other bytes"):
        write()
    assert not list(tmp_path.glob("*bundle*"))


def test_an_older_bundle_stays_when_the_new_one_fails(registry, write):
    made = write()
    before = made.path.read_bytes()
    registry.fault("GET", f"/blobs/{digest(b'engine')}", status=404)

    with pytest.raises(RegistryError):
        write()
    assert made.path.read_bytes() == before


def test_an_image_that_was_not_published_or_is_gone_is_told(registry, write, record, published):
    with pytest.raises(UsageError, match="not published"):
        write(record=record)
    del registry.manifests["team/app", published.published.digest]
    with pytest.raises(RegistryError, match="is not in the registry"):
        write()


def test_a_full_disk_is_told_before_the_first_byte(write, monkeypatch):
    monkeypatch.setattr("builder.registry.bundle.shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
    with pytest.raises(HostError, match="are free there"):
        write()


DAMAGE = {
    "flipped bits": lambda content: {
        name: bytes([body[0] ^ 1]) + body[1:] if name == f"blobs/{digest(b'engine').replace(':', '/')}" else body
        for name, body in content.items()
    },
    "a missing layer": lambda content: {
        name: body for name, body in content.items() if name != f"blobs/{digest(b'engine').replace(':', '/')}"
    },
    "an unknown manifest": lambda content: {
        **content,
        "index.json": compact(
            {"manifests": [{"mediaType": OCI_MANIFEST, "digest": digest(b"nothing"), "size": 7}], "schemaVersion": 2}
        ),
    },
}


@pytest.mark.parametrize("how", DAMAGE, ids=list(DAMAGE))
def test_a_damaged_bundle_never_reaches_the_engine(write, settings, tmp_path, registry, how):
    path = rewritten(write().path, DAMAGE[how])
    engine = FakeEngine(registry)

    with pytest.raises(VerifyError):
        load_bundle(engine, path, settings=settings, records=tmp_path / "records", on_progress=[].append)
    assert engine.calls == []


@pytest.mark.parametrize("content", [b"", b"no tar", b"\0" * 10240], ids=["empty", "text", "zeros"])
def test_a_file_that_is_no_bundle_is_told(settings, tmp_path, registry, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is no bundle"):
        load_bundle(FakeEngine(registry), path, settings=settings, records=tmp_path, on_progress=[].append)


def test_an_engine_on_another_machine_is_told_to_load_there(write, settings, tmp_path, registry):
    engine = FakeEngine(registry)
    engine.environment = {"DOCKER_HOST": "ssh://gpubox"}
    with pytest.raises(HostError, match="is on another machine") as caught:
        load_bundle(engine, write().path, settings=settings, records=tmp_path, on_progress=[].append)
    assert "gfx1100 load bundle.tar" in caught.value.hint


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        Layout(tmp_path / "nothing")


def test_a_bundle_cut_short_is_told(write):
    path = write().path
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises((UsageError, VerifyError)):
        Layout(path)


def test_a_load_leaves_one_name_of_its_own_and_no_other_is_touched(write, settings, tmp_path, registry, published):
    engine, path = FakeEngine(registry), write().path

    def load():
        return load_bundle(engine, path, settings=settings, records=tmp_path / "records", on_progress=[].append)

    first = load().image.id
    place = published.published
    engine.tag(first, place.repository, place.tag)
    for old in (f"127.0.0.1:4/{NAME}:{place.tag}", f"127.0.0.1:4/{NAME}:other"):
        engine.names[old] = first
    engine.digests[f"127.0.0.1:4/{NAME}@{place.digest}"] = first
    assert load().image.id == first

    image = engine.image(first)
    ours = [name for name in image.tags if NAME in name]
    assert (len(ours), len(image.repo_digests)) == (1, 1)
    assert not any("127.0.0.1:4/" in name for name in (*ours, *image.repo_digests))
    assert f"{place.repository}:{place.tag}" in image.tags
