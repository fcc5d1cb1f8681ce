"""The smoke image with everything that goes with it, read back from the registry alone; and what an update costs."""

import json

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from faulty_proxy import FaultyProxy
from smoke_image import build_smoke
from test_pipeline import changed_engine

from builder.build.release import release
from builder.deploy.images import held_images
from builder.models.record import write_record
from builder.registry.attest import list_referrers, read_payload
from builder.registry.bundle import load_bundle, write_bundle
from builder.registry.client import Client
from builder.registry.provenance import STATEMENT_TYPE
from builder.registry.pull import held_image
from builder.registry.reference import parse_reference
from builder.registry.sbom import SBOM_TYPE
from builder.verify.published import trace_published
from builder.verify.trace import trace

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def proxy(registry):
    with FaultyProxy(registry) as served:
        yield served


@pytest.fixture(scope="module")
def ship(engine, settings, proxy, tmp_path_factory):
    def call(record, **more):
        folder = tmp_path_factory.mktemp("shipped")
        to = f"{proxy.host}/test/smoke"
        return release(engine, record, to=to, settings=settings, records=folder, on_progress=print, **more)

    return call


@pytest.fixture(scope="module")
def shipped(ship, built, published):
    """The image that the registry has already, published once more with everything that goes with it."""
    return ship(built)


def test_the_registry_alone_tells_the_whole_chain(shipped, settings):
    place = shipped.record.published

    chain = trace_published(f"{place.repository}:latest", settings=settings, on_progress=print)

    assert chain.broken is None
    assert {"digest", "verified", "lock", "sbom", "provenance", "commit"} <= {link.name for link in chain.links}


def test_the_bill_of_materials_fits_the_schema_and_names_what_is_inside(shipped, settings):
    place = parse_reference(shipped.record.published.repository).at(shipped.record.published.digest)
    with Client(settings) as client:
        found = {one.artifact_type: one for one in list_referrers(client, place, place.digest)}
        bill = read_payload(client, place, found[SBOM_TYPE], subject=place.digest).decode()
        statement = json.loads(read_payload(client, place, found[STATEMENT_TYPE], subject=place.digest))

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    parts = {one["name"]: one for one in json.loads(bill)["components"]}
    assert parts["smoke-engine"]["version"] == shipped.record.version
    assert len(parts["smoke-engine"]["hashes"][0]["content"]) == 64
    assert parts["libc6"]["purl"].startswith("pkg:deb/debian/libc6@")
    assert {patch.id for patch in shipped.record.patches} <= set(parts)
    inputs = {one["name"] for one in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert {"source", "lock", "base build", "base runtime"} <= inputs


def test_a_bundle_gives_the_engine_the_image_under_its_digest(engine, settings, shipped, built, tmp_path):
    made = write_bundle(shipped.record, tmp_path / "smoke.tar", settings=settings, on_progress=print)
    records = tmp_path / "records"

    done = load_bundle(engine, made.path, settings=settings, records=records, on_progress=print)
    assert (done.digest, done.record) == (shipped.record.published.digest, shipped.record)
    # the records of both publications, the bill of materials and the provenance
    assert made.artifacts == 4
    assert held_image(engine, shipped.record).id == built.image_id
    assert trace(engine, built.image_id, records=records).broken is None
    held = {one.image_id: one for one in held_images(engine, records=records, state=tmp_path)}
    assert held[built.image_id].digest == done.digest


def test_an_update_of_the_engines_python_moves_under_three_percent(
    engine, settings, ship, shipped, proxy, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("update")
    origin = changed_engine(folder / "tree", "smoke_engine/text.py", "# changed\n")
    record, _ = build_smoke(engine, settings, folder, origin=origin)
    write_record(folder, record)
    proxy.received.clear()

    update = ship(record)

    place = parse_reference(update.record.published.repository)
    with Client(settings) as client:
        old, new = (
            client.layers(place, client.manifest(place.at(one.record.published.digest))) for one in (shipped, update)
        )
    moves = sum(size for layer, size in new.items() if layer not in old)
    assert 0 < moves < 0.03 * sum(new.values())
    assert update.pushed_bytes == moves
    assert sum(proxy.received.values()) < 0.03 * sum(new.values())
