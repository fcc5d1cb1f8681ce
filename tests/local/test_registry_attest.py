import json

import pytest
from registry_server import FakeRegistry, compact, digest, pointer

from builder.errors import RegistryError, VerifyError
from builder.models.record import Published, Verification
from builder.registry.attest import RECORD_TYPE, attach, attached_record, read_payload, referrers
from builder.registry.client import Client
from builder.registry.manifest import OCI_INDEX, OCI_MANIFEST, Descriptor
from builder.registry.reference import parse_reference
from builder.settings import Settings

NOTE = "application/vnd.example.note"


@pytest.fixture(params=[True, False], ids=["with the referrers API", "with the tag"])
def registry(request):
    with FakeRegistry() as served:
        served.referrers_api = request.param
        yield served


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with Client(Settings(state_dir=str(tmp_path), cache_dir=str(tmp_path))) as made:
        yield made


@pytest.fixture
def app(registry):
    return parse_reference(f"{registry.host}/team/app")


@pytest.fixture
def image(registry):
    return registry.add_image("team/app", "v1")[0]


def note(client, app, image, text, kind=NOTE):
    return attach(client, app, image, artifact_type=kind, payload=text, annotations={"title": "a note"})


def tag_of(image):
    return image.replace(":", "-")


def test_what_is_attached_is_listed_and_read_back(client, app, image):
    made = note(client, app, image, b"hello")

    (found,) = referrers(client, app, image, NOTE)

    assert found.digest == made
    assert read_payload(client, app, found, subject=image) == b"hello"


def test_the_artifact_has_the_form_of_the_image_specification(client, registry, app, image):
    made = note(client, app, image, b"hello")

    content = json.loads(registry.manifests["team/app", made][1])

    subject = registry.manifests["team/app", image]
    assert content == {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": NOTE,
        "config": pointer("application/vnd.oci.empty.v1+json", b"{}"),
        "layers": [pointer(NOTE, b"hello")],
        "subject": pointer(subject[0], subject[1]),
        "annotations": {"title": "a note"},
    }


def test_the_list_under_the_tag_carries_type_and_annotations(client, registry, app, image):
    registry.referrers_api = False
    made = note(client, app, image, b"hello")

    media_type, body = registry.manifests["team/app", registry.tags["team/app", tag_of(image)]]

    listed = pointer(OCI_MANIFEST, registry.manifests["team/app", made][1])
    listed |= {"artifactType": NOTE, "annotations": {"title": "a note"}}
    assert media_type == OCI_INDEX
    assert json.loads(body) == {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [listed]}


def test_no_tag_is_made_where_the_registry_lists_referrers_itself(client, registry, app, image):
    note(client, app, image, b"hello")

    assert (("team/app", tag_of(image)) in registry.tags) is not registry.referrers_api


def test_the_same_payload_again_changes_nothing(client, registry, app, image):
    first = note(client, app, image, b"hello")
    before = dict(registry.manifests)

    assert note(client, app, image, b"hello") == first
    assert registry.manifests == before


def test_only_the_wanted_type_is_listed_and_the_others_stay(client, app, image):
    note(client, app, image, b"one")
    note(client, app, image, b"two", kind="application/vnd.example.other")
    note(client, app, image, b"three")

    payloads = [read_payload(client, app, found, subject=image) for found in referrers(client, app, image, NOTE)]

    assert sorted(payloads) == [b"one", b"three"]


def test_entries_of_other_tools_in_the_list_under_the_tag_are_kept_whole(client, registry, app, image):
    registry.referrers_api = False
    theirs = pointer(OCI_MANIFEST, b"{}", artifactType="application/vnd.theirs", annotations={"a": "b"}, more="kept")
    body = compact({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [theirs], "annotations": {"x": "y"}})
    registry.add_manifest("team/app", body, OCI_INDEX, tag_of(image))

    note(client, app, image, b"hello")

    now = json.loads(registry.manifests["team/app", registry.tags["team/app", tag_of(image)]][1])
    assert now["manifests"][0] == theirs
    assert now["annotations"] == {"x": "y"}
    assert len(now["manifests"]) == 2


def test_a_writer_who_overwrote_the_list_at_the_same_time_loses_nothing_of_ours(client, registry, app, image):
    registry.referrers_api = False
    theirs = pointer(OCI_MANIFEST, b"{}", artifactType="application/vnd.theirs")
    body = compact({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [theirs]})
    overwrite = lambda: registry.add_manifest("team/app", body, OCI_INDEX, tag_of(image))  # noqa: E731
    registry.fault("PUT", f"/manifests/{tag_of(image)}", change=lambda sent: sent, then=overwrite)

    made = note(client, app, image, b"hello")

    now = json.loads(registry.manifests["team/app", registry.tags["team/app", tag_of(image)]][1])
    assert [item["digest"] for item in now["manifests"]] == [theirs["digest"], made]


def test_nothing_is_attached_to_an_image_that_is_not_there(client, registry, app):
    with pytest.raises(RegistryError, match="nothing can be attached"):
        note(client, app, digest(b"nothing"), b"hello")
    assert registry.manifests == {}


def test_an_image_without_attachments_has_none(client, app, image):
    assert referrers(client, app, image, NOTE) == []


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 303, "headers": {"Location": "/page"}},
        {"status": 200, "body": b"<html>", "headers": {"Content-Type": "text/html"}},
        {"status": 405},
    ],
)
def test_an_answer_that_is_no_list_means_that_the_tag_has_it(client, registry, app, image, answer):
    registry.referrers_api = False
    made = note(client, app, image, b"hello")
    registry.fault("GET", "/referrers/", **answer)

    assert [found.digest for found in referrers(client, app, image, NOTE)] == [made]
    assert registry.requests[-2:] == [
        f"GET /v2/team/app/referrers/{image}",
        f"GET /v2/team/app/manifests/{tag_of(image)}",
    ]


@pytest.mark.parametrize("platforms", [[], ["amd64", "arm64"]], ids=["image", "index"])
def test_a_registry_that_takes_the_tag_for_the_digest_lists_and_keeps_nothing(client, registry, app, image, platforms):
    registry.referrers_api = False
    image = registry.add_index("team/app", "v2", platforms) if platforms else image
    resolve = registry.resolve
    registry.resolve = lambda name, reference: image if reference == tag_of(image) else resolve(name, reference)

    assert referrers(client, app, image, NOTE) == []
    with pytest.raises(RegistryError, match="does not keep the list") as error:
        note(client, app, image, b"hello")
    assert "GitLab" in error.value.hint


def test_a_fault_while_listing_is_an_error_and_not_an_empty_list(client, registry, app, image, monkeypatch):
    monkeypatch.setattr("builder.registry.transport.sleep", [].append)
    registry.fault("GET", "/referrers/", status=500, times=9)

    with pytest.raises(RegistryError, match="status 500"):
        referrers(client, app, image, NOTE)


@pytest.mark.parametrize("item", [{}, {"digest": "sha256:x", "size": 1}, 5])
def test_a_list_whose_entries_cannot_be_read_is_an_error(client, registry, app, image, item):
    body = compact({"manifests": [item]})
    registry.fault("GET", "/referrers/", status=200, body=body, headers={"Content-Type": OCI_INDEX})

    with pytest.raises(RegistryError, match="cannot be read"):
        referrers(client, app, image, NOTE)


class TestPayloads:
    def listed(self, body):
        return Descriptor.model_validate(pointer(OCI_MANIFEST, body, artifactType=NOTE))

    def test_an_artifact_about_another_image_is_refused(self, client, registry, app, image):
        other, _ = registry.add_image("team/app", "v2", layers=(b"other",))
        note(client, app, other, b"hello")
        (found,) = referrers(client, app, other, NOTE)

        with pytest.raises(VerifyError, match="another image"):
            read_payload(client, app, found, subject=image)

    def test_an_artifact_without_a_subject_is_refused(self, client, registry, app, image):
        body = registry.manifests["team/app", image][1]

        with pytest.raises(VerifyError, match="another image"):
            read_payload(client, app, self.listed(body), subject=image)

    @pytest.mark.parametrize("layers", [0, 2])
    def test_an_artifact_without_exactly_one_payload_is_refused(self, client, registry, app, image, layers):
        content = {
            "mediaType": OCI_MANIFEST,
            "artifactType": NOTE,
            "config": pointer("application/vnd.oci.empty.v1+json", b"{}"),
            "layers": [pointer(NOTE, b"hello")] * layers,
            "subject": pointer(OCI_MANIFEST, registry.manifests["team/app", image][1]),
        }
        registry.add_manifest("team/app", compact(content), OCI_MANIFEST)

        with pytest.raises(VerifyError, match="one payload"):
            read_payload(client, app, self.listed(compact(content)), subject=image)

    def test_an_artifact_that_is_gone_is_told(self, client, app, image):
        with pytest.raises(RegistryError, match="is not there"):
            read_payload(client, app, self.listed(b"gone"), subject=image)

    def test_a_payload_with_flipped_bits_is_refused(self, client, registry, app, image):
        note(client, app, image, b"hello")
        (found,) = referrers(client, app, image, NOTE)
        registry.blobs["team/app", digest(b"hello")] = b"hellO"

        with pytest.raises(RegistryError, match="other bytes"):
            read_payload(client, app, found, subject=image)


class TestRecords:
    @pytest.fixture
    def record(self, registry, record):
        manifest, config = registry.add_image("team/app", "v1")
        published = Published(repository="elsewhere.example/app", tag="t", digest=manifest)
        return record.model_copy(update={"image_id": config, "published": published})

    def attached(self, client, app, *records):
        for record in records:
            text = record if isinstance(record, bytes) else record.text().encode()
            note(client, app, client.manifest(app.tagged("v1")).digest, text, kind=RECORD_TYPE)
        return attached_record(client, app, client.manifest(app.tagged("v1")))

    def test_the_record_of_an_image_is_found(self, client, app, record):
        assert self.attached(client, app, record) == record

    @pytest.mark.usefixtures("record")
    def test_an_image_without_a_record_has_none(self, client, app):
        assert self.attached(client, app) is None

    @pytest.mark.parametrize("newest_last", [True, False])
    def test_of_several_that_fit_the_newest_counts(self, client, app, record, newest_last):
        older = record.model_copy(update={"created": "2025-12-31T12:00:00+00:00"})

        assert self.attached(client, app, *([older, record] if newest_last else [record, older])) == record

    def test_an_image_of_the_containerd_store_is_known_by_its_manifest(self, client, app, record):
        record = record.model_copy(update={"image_id": record.published.digest})

        assert self.attached(client, app, record) == record

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"image_id": digest(b"other")}, "is about the image"),
            ({"published": None}, "another publication"),
            ({"verification": None}, "did not pass"),
            ({"verification": Verification(verdict="failed", checks=())}, "did not pass"),
        ],
    )
    def test_a_record_that_does_not_fit_is_an_error_that_says_why(self, client, app, record, change, said):
        with pytest.raises(VerifyError, match=said):
            self.attached(client, app, record.model_copy(update=change))

    def test_a_record_about_another_digest_is_an_error(self, client, app, record):
        published = record.published.model_copy(update={"digest": digest(b"other")})

        with pytest.raises(VerifyError, match="another publication"):
            self.attached(client, app, record.model_copy(update={"published": published}))

    @pytest.mark.parametrize("text", [b"", b"[]", b"\xff", b'{"format": 1}'])
    @pytest.mark.usefixtures("record")
    def test_a_damaged_record_is_an_error(self, client, app, text):
        with pytest.raises(VerifyError, match="is damaged"):
            self.attached(client, app, text)

    def test_a_damaged_record_beside_a_good_one_does_no_harm(self, client, app, record):
        assert self.attached(client, app, record, b"{}") == record
