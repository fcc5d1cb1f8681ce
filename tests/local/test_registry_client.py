import email.utils
import json
import time
import traceback

import pytest
from registry_server import PASSWORD, USER, FakeRegistry, compact, digest, pointer

from builder.errors import RegistryError, UpstreamError
from builder.registry.client import Client, manifest_digest
from builder.registry.manifest import DOCKER_INDEX, DOCKER_MANIFEST, OCI_MANIFEST
from builder.registry.reference import parse_reference
from builder.settings import Settings

NOWHERE = "sha256:" + "0" * 64


@pytest.fixture
def registry():
    with FakeRegistry() as served:
        yield served


@pytest.fixture
def waits(monkeypatch):
    """The pauses that were made, in seconds."""
    made = []
    monkeypatch.setattr("builder.registry.transport.sleep", made.append)
    return made


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    return Settings(state_dir=str(tmp_path), cache_dir=str(tmp_path))


@pytest.fixture
def client(settings):
    with Client(settings) as made:
        yield made


@pytest.fixture
def app(registry):
    return parse_reference(f"{registry.host}/team/app")


@pytest.fixture
def logged_in(registry, tmp_path):
    """Put the registry's user into the docker configuration."""
    (tmp_path / "docker").mkdir()
    auths = {registry.host: {"username": USER, "password": PASSWORD}}
    (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": auths}))


class TestManifests:
    def test_a_tag_gives_the_manifest_with_its_digest_and_very_bytes(self, client, registry, app):
        wanted, config = registry.add_image("team/app", "v1", layers=(b"one", b"two"))

        found = client.manifest(app.tagged("v1"))

        assert (found.digest, found.content.config.digest) == (wanted, config)
        assert digest(found.body) == wanted
        assert client.layers(app, found) == {digest(b"one"): 3, digest(b"two"): 3}

    def test_what_is_not_there_is_none_and_no_error(self, client, app):
        assert client.manifest(app.tagged("v1")) is None
        assert client.manifest(app.at(NOWHERE)) is None
        assert client.head(app.tagged("v1")) is None

    @pytest.mark.parametrize("change", [bytes.upper, lambda body: body[:-1] + b" }", lambda body: body + b"\n"])
    def test_a_body_with_another_digest_is_refused(self, client, registry, app, change):
        wanted, _ = registry.add_image("team/app", "v1")
        registry.fault("GET", "/manifests/", change=change)

        with pytest.raises(RegistryError, match=f"{wanted} was expected"):
            client.manifest(app.at(wanted))

    def test_a_body_that_is_not_what_the_tag_announces_is_refused(self, client, registry, app):
        registry.add_image("team/app", "v1")
        registry.fault("GET", "/manifests/v1", change=lambda body: body.replace(b"layer", b"Layer"))

        with pytest.raises(RegistryError, match="other bytes"):
            client.manifest(app.tagged("v1"))

    def test_another_manifest_under_a_digest_is_refused_even_when_it_is_announced_truly(self, client, registry, app):
        wanted, _ = registry.add_image("team/app", "v1")
        other, _ = registry.add_image("team/app", "v2", layers=(b"other",))
        registry.manifests["team/app", wanted] = registry.manifests["team/app", other]

        with pytest.raises(RegistryError, match=f"{other} was received"):
            client.manifest(app.at(wanted))

    @pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/json"])
    def test_a_web_page_is_no_manifest(self, client, registry, app, kind):
        page = b"  <!doctype html><title>log in</title>"
        registry.fault("GET", "/manifests/", status=200, body=page, headers={"Content-Type": kind})

        with pytest.raises(RegistryError, match="web page") as error:
            client.manifest(app.tagged("v1"))
        assert "log in<" not in str(error.value)

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            (b"", "no manifest"),
            (b"[]", "no manifest"),
            (b'{"schemaVersion": 1}', "not known"),
            (compact({"mediaType": OCI_MANIFEST}), "without a config"),
            (compact({"mediaType": OCI_MANIFEST, "config": {"digest": "sha256:x", "size": 1}}), "no manifest"),
            (compact({"mediaType": OCI_MANIFEST, "config": {"digest": NOWHERE, "size": -1}}), "no manifest"),
            (b'{"a":' * 3000, "no manifest"),
        ],
    )
    def test_what_is_no_manifest_is_refused_with_the_reason(self, client, registry, app, body, said):
        registry.fault("GET", "/manifests/", status=200, body=body, headers={"Content-Type": "application/json"})

        with pytest.raises(RegistryError, match=said):
            client.manifest(app.tagged("v1"))

    def test_more_bytes_than_a_manifest_may_have_are_not_read(self, client, registry, app):
        registry.fault("GET", "/manifests/", status=200, body=b"{" + b" " * (4 << 20))

        with pytest.raises(RegistryError, match="more than 4194304 bytes"):
            client.manifest(app.tagged("v1"))

    def test_a_registry_that_announces_no_digest_is_believed_by_its_bytes(self, client, registry, app):
        wanted, _ = registry.add_image("team/app", "v1")
        registry.announces_digests = False

        assert client.head(app.tagged("v1")) == wanted
        assert client.manifest(app.tagged("v1")).digest == wanted

    def test_a_stored_manifest_comes_back_byte_for_byte(self, client, registry, app):
        wanted, _ = registry.add_image("team/app", "v1")
        body = registry.manifests["team/app", wanted][1]

        client.put_manifest(app.tagged("latest"), body, OCI_MANIFEST)

        assert registry.tags["team/app", "latest"] == wanted
        assert client.manifest(app.tagged("latest")).body == body

    def test_a_registry_that_took_other_bytes_is_an_error(self, client, registry, app):
        registry.fault("PUT", "/manifests/", status=201, headers={"Docker-Content-Digest": NOWHERE})

        with pytest.raises(RegistryError, match=f"took {NOWHERE}"):
            client.put_manifest(app.tagged("latest"), b"{}", OCI_MANIFEST)


class TestBlobs:
    def test_a_blob_is_sent_once_and_comes_back(self, client, registry, app):
        first = client.upload(app, b"payload")
        second = client.upload(app, b"payload")

        assert first == second == digest(b"payload")
        assert client.blob(app, first, limit=10) == b"payload"
        assert sum(line.startswith("PUT") for line in registry.requests) == 1

    def test_flipped_bits_in_a_blob_are_noticed(self, client, registry, app):
        wanted = client.upload(app, b"payload")
        registry.fault("GET", "/blobs/", change=lambda body: bytes([body[0] ^ 1]) + body[1:])

        with pytest.raises(RegistryError, match="other bytes"):
            client.blob(app, wanted, limit=10)

    def test_a_blob_above_its_limit_is_not_read(self, client, app):
        wanted = client.upload(app, b"payload")

        with pytest.raises(RegistryError, match="more than 6 bytes"):
            client.blob(app, wanted, limit=6)

    def test_a_blob_that_is_not_there_is_an_error(self, client, app):
        with pytest.raises(RegistryError, match="status 404"):
            client.blob(app, NOWHERE, limit=6)

    def test_an_upload_that_the_registry_forgot_is_begun_again(self, client, registry, app, waits):
        registry.fault("PUT", "/blobs/uploads/", status=404)

        client.upload(app, b"payload")

        assert registry.blobs["team/app", digest(b"payload")] == b"payload"
        assert waits == [1.0]

    def test_an_upload_that_breaks_off_after_it_was_taken_is_not_sent_again(self, client, registry, app, waits):
        registry.fault("PUT", "/blobs/uploads/", change=lambda body: body + b"0123456789", cut=True)

        client.upload(app, b"payload")

        assert sum(line.startswith("PUT") for line in registry.requests) == 1
        assert waits == [1.0]

    @pytest.mark.usefixtures("logged_in")
    def test_an_upload_to_another_host_does_not_tell_that_host_who_we_are(self, client, registry, app):
        with FakeRegistry() as other:
            place = {"Location": f"http://{other.host}/v2/team/app/blobs/uploads/7"}
            registry.fault("POST", "/blobs/uploads/", status=401, headers={"WWW-Authenticate": 'Basic realm="here"'})
            registry.fault("POST", "/blobs/uploads/", status=202, headers=place)
            client.upload(app, b"payload")

        assert registry.authorizations[-1].startswith("Basic ")
        assert other.authorizations == [""]


class TestFaults:
    def test_a_rate_limit_is_waited_out_as_long_as_the_registry_asks(self, settings, registry, app, waits):
        wanted, _ = registry.add_image("team/app", "v1")
        registry.fault("GET", "/manifests/", status=429, headers={"Retry-After": "7"}, times=2)
        lines = []

        with Client(settings, on_wait=lines.append) as client:
            assert client.manifest(app.tagged("v1")).digest == wanted

        assert waits == [7.0, 7.0]
        assert all("rate limit" in line and "in 7 s" in line for line in lines)

    def test_a_rate_limit_may_name_the_time_of_its_end(self, client, registry, app, waits):
        registry.add_image("team/app", "v1")
        registry.fault(
            "GET",
            "/manifests/",
            status=429,
            headers={"Retry-After": email.utils.formatdate(time.time() + 30, usegmt=True)},
        )

        client.manifest(app.tagged("v1"))

        assert 25 < waits[0] <= 30

    @pytest.mark.parametrize("header", [{}, {"Retry-After": "soon"}])
    def test_a_rate_limit_without_a_time_is_tried_with_growing_pauses(self, client, registry, app, waits, header):
        registry.add_image("team/app", "v1")
        registry.fault("GET", "/manifests/", status=429, headers=header, times=3)

        assert client.manifest(app.tagged("v1")) is not None
        assert waits == [1.0, 2.0, 4.0]

    def test_a_rate_limit_of_an_hour_is_told_and_not_waited_for(self, client, registry, app, waits):
        registry.fault("GET", "/manifests/", status=429, headers={"Retry-After": "3600"})

        with pytest.raises(RegistryError, match="rate limit") as error:
            client.manifest(app.tagged("v1"))
        assert waits == []
        assert "3600 s" in error.value.hint

    def test_a_fault_of_the_registry_that_passes_is_not_seen(self, client, registry, app, waits):
        wanted, _ = registry.add_image("team/app", "v1")
        registry.fault("GET", "/manifests/", status=500)

        assert client.manifest(app.tagged("v1")).digest == wanted
        assert waits == [1.0]

    def test_a_fault_of_the_registry_that_stays_is_told_in_its_words(self, client, registry, app, waits):
        said = compact({"errors": [{"code": "UNKNOWN", "message": "the disk burns"}]})
        registry.fault("GET", "/manifests/", status=503, body=said, times=9)

        with pytest.raises(RegistryError, match="status 503: UNKNOWN the disk burns"):
            client.manifest(app.tagged("v1"))
        assert len(waits) == 3

    def test_a_connection_that_is_cut_in_the_middle_is_tried_again(self, client, registry, app, waits):
        wanted, _ = registry.add_image("team/app", "v1")
        registry.fault("GET", "/manifests/", change=lambda body: body, cut=True)

        assert client.manifest(app.tagged("v1")).digest == wanted
        assert waits == [1.0]

    @pytest.mark.usefixtures("waits")
    def test_a_registry_that_is_not_there_is_told_in_the_systems_words(self, client):
        with FakeRegistry() as gone:
            place = parse_reference(f"{gone.host}/team/app")

        with pytest.raises(RegistryError, match=f"{place.host} cannot be reached, or broke off: Connection refused"):
            client.manifest(place.tagged("v1"))

    def test_a_redirect_without_end_is_an_error(self, client, registry, app):
        registry.fault("GET", "/manifests/", status=302, headers={"Location": "/v2/team/app/manifests/v1"}, times=99)

        with pytest.raises(RegistryError, match="cannot be followed"):
            client.manifest(app.tagged("v1"))

    def test_an_answer_that_does_not_end_in_time_is_an_error(self, client, registry, app, monkeypatch):
        registry.add_image("team/app", "v1")
        monkeypatch.setattr("builder.registry.transport.WHOLE_TIMEOUT", -1.0)

        with pytest.raises(RegistryError, match="did not end its answer"):
            client.manifest(app.tagged("v1"))

    def test_too_large_is_a_class_of_its_own(self, client, registry, app):
        registry.fault("PUT", "/manifests/", status=413, body=b"<html>nginx</html>")

        with pytest.raises(RegistryError, match=r"too large .* on a web page"):
            client.put_manifest(app.tagged("v1"), b"{}", OCI_MANIFEST)

    def test_the_class_of_every_fault_is_the_callers(self, settings, registry, app):
        registry.fault("GET", "/manifests/", status=403)

        with Client(settings, failure=UpstreamError) as client, pytest.raises(UpstreamError, match="not authorised"):
            client.manifest(app.tagged("v1"))

    def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(self, client, registry, app, monkeypatch):
        monkeypatch.setenv("http_proxy", "http://user:hush@127.0.0.1:9")
        registry.add_image("team/app", "v1")

        assert client.manifest(app.tagged("v1")) is not None

    @pytest.mark.usefixtures("waits")
    def test_a_proxys_password_does_not_reach_a_message(self, client, monkeypatch):
        monkeypatch.setenv("https_proxy", "http://user:hush@127.0.0.1:9")
        monkeypatch.delenv("no_proxy", raising=False)

        with pytest.raises(RegistryError, match=r"registry\.example cannot be reached") as error:
            client.manifest(parse_reference("registry.example/team/app"))
        shown = "".join(traceback.format_exception(error.value))
        assert "hush" not in shown
        assert "requests.exceptions" not in shown


class TestAuthorisation:
    @pytest.mark.usefixtures("logged_in")
    def test_a_basic_challenge_is_answered_with_the_configured_user(self, client, registry, app):
        registry.auth = "basic"
        wanted, _ = registry.add_image("team/app", "v1")

        assert client.manifest(app.tagged("v1")).digest == wanted
        assert client.head(app.tagged("v1")) == wanted
        assert len(registry.requests) == 3

    @pytest.mark.usefixtures("logged_in")
    def test_a_token_is_got_after_a_401_and_used_from_then_on(self, client, registry, app):
        registry.auth = "bearer"
        wanted, _ = registry.add_image("team/app", "v1")

        assert client.manifest(app.tagged("v1")).digest == wanted
        assert client.head(app.tagged("v1")) == wanted
        assert registry.token_requests == [{"service": ["fake"], "scope": ["repository:team/app:pull"]}]

    @pytest.mark.usefixtures("logged_in")
    def test_a_push_asks_for_more_than_the_registry_names(self, client, registry, app):
        registry.auth = "bearer"

        client.upload(app, b"payload")

        assert registry.token_requests[-1]["scope"] == ["repository:team/app:pull", "repository:team/app:pull,push"]

    @pytest.mark.usefixtures("logged_in")
    def test_an_expired_token_is_replaced_once(self, client, registry, app):
        registry.auth = "bearer"
        registry.add_image("team/app", "v1")
        client.manifest(app.tagged("v1"))
        registry.tokens.clear()

        assert client.manifest(app.tagged("v1")) is not None
        assert len(registry.token_requests) == 2

    def test_an_identity_token_is_exchanged(self, client, registry, app, tmp_path):
        registry.auth = "bearer"
        registry.add_image("team/app", "v1")
        (tmp_path / "docker").mkdir()
        auths = {registry.host: {"identitytoken": PASSWORD}}
        (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": auths}))

        assert client.manifest(app.tagged("v1")) is not None
        assert registry.token_requests[0]["grant_type"] == ["refresh_token"]

    @pytest.mark.parametrize("kind", ["basic", "bearer"])
    def test_nobody_is_not_let_in_and_told_to_log_in(self, client, registry, app, kind):
        registry.auth = kind

        with pytest.raises(RegistryError, match="not authorised") as error:
            client.manifest(app.tagged("v1"))
        assert error.value.hint.startswith(f"run `docker login {registry.host}`")

    @pytest.mark.parametrize("kind", ["basic", "bearer"])
    def test_a_wrong_password_does_not_reach_the_message(self, client, registry, app, tmp_path, kind):
        registry.auth = kind
        (tmp_path / "docker").mkdir()
        auths = {registry.host: {"username": USER, "password": "wrong-horse"}}
        (tmp_path / "docker" / "config.json").write_text(json.dumps({"auths": auths}))

        with pytest.raises(RegistryError, match="not authorised") as error:
            client.manifest(app.tagged("v1"))
        assert "wrong-horse" not in f"{error.value} {error.value.hint}"
        assert "d3Jvbmct" not in f"{error.value} {error.value.hint}"

    @pytest.mark.usefixtures("logged_in")
    def test_credentials_are_not_sent_to_a_realm_without_tls(self, client, registry, app):
        challenge = {"WWW-Authenticate": 'Bearer realm="http://tokens.example/token",service="s"'}
        registry.fault("GET", "/manifests/", status=401, headers=challenge)

        with pytest.raises(RegistryError, match="no https URL"):
            client.manifest(app.tagged("v1"))

    @pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"token": 5}', b'{"token": "a\\nb: c"}', b"{}"])
    @pytest.mark.usefixtures("logged_in")
    def test_an_answer_without_a_token_is_an_error(self, client, registry, app, body):
        registry.auth = "bearer"
        registry.fault("GET", "/token", status=200, body=body)

        with pytest.raises(RegistryError, match="gave no token"):
            client.manifest(app.tagged("v1"))

    def test_a_challenge_of_an_unknown_kind_is_an_error(self, client, registry, app):
        registry.fault("GET", "/manifests/", status=401, headers={"WWW-Authenticate": "Negotiate"})

        with pytest.raises(RegistryError, match="no way that is known"):
            client.manifest(app.tagged("v1"))


class TestLists:
    def test_tags_come_from_every_page(self, client, registry, app):
        registry.page_size = 2
        for tag in ("a", "b", "c", "d", "e"):
            registry.add_image("team/app", tag)

        assert client.tags(app) == ["a", "b", "c", "d", "e"]

    def test_a_repository_that_is_not_there_has_no_tags(self, client, app):
        assert client.tags(app) == []

    def test_a_list_without_end_is_an_error(self, client, registry, app):
        page = {"Link": '</v2/team/app/tags/list?last=a>; rel="next"', "Content-Type": "application/json"}
        registry.fault("GET", "/tags/list", status=200, body=b'{"tags": ["a"]}', headers=page, times=99)

        with pytest.raises(RegistryError, match="does not end"):
            client.tags(app)

    @pytest.mark.parametrize("body", [b"<html>", b'{"other": []}', b"[]", b'{"tags": 5}'])
    def test_a_list_that_cannot_be_read_is_an_error(self, client, registry, app, body):
        registry.fault("GET", "/tags/list", status=200, body=body)

        with pytest.raises(RegistryError, match="cannot be read"):
            client.tags(app)


class TestBaseImages:
    def test_an_index_keeps_its_own_digest(self, settings, registry):
        wanted = registry.add_index("team/base", "v1", ["arm64", "amd64"])

        assert manifest_digest(f"{registry.host}/team/base:v1", settings) == wanted

    @pytest.mark.parametrize("media_type", [OCI_MANIFEST, DOCKER_MANIFEST])
    def test_a_single_image_is_its_own_digest(self, settings, registry, media_type):
        wanted, _ = registry.add_image("team/base", "latest", media_type=media_type)

        assert manifest_digest(f"{registry.host}/team/base", settings) == wanted

    def test_a_digest_is_checked_and_stays(self, settings, registry):
        wanted = registry.add_index("team/base", "v1", ["amd64"])

        assert manifest_digest(f"{registry.host}/team/base@{wanted}", settings) == wanted

    def test_an_index_without_our_platform_is_refused(self, settings, registry):
        registry.add_index("team/base", "v1", ["arm64", "s390x"])

        with pytest.raises(UpstreamError, match="linux/amd64 is needed"):
            manifest_digest(f"{registry.host}/team/base:v1", settings)

    def test_an_image_for_another_platform_is_refused(self, settings, registry):
        registry.add_image("team/base", "v1", architecture="arm64")

        with pytest.raises(UpstreamError, match="linux/arm64"):
            manifest_digest(f"{registry.host}/team/base:v1", settings)

    def test_a_digest_that_its_publisher_took_away_is_told_as_such(self, settings, registry):
        with pytest.raises(UpstreamError, match="took it away") as error:
            manifest_digest(f"{registry.host}/team/base@{NOWHERE}", settings)
        assert "a registry of your own" in error.value.hint

    @pytest.mark.usefixtures("waits")
    def test_a_registry_that_cannot_be_asked_is_unknown_and_not_absent(self, settings, registry):
        registry.fault("GET", "/manifests/", status=502, times=9)

        with pytest.raises(UpstreamError, match="status 502"):
            manifest_digest(f"{registry.host}/team/base:v1", settings)

    def test_an_old_index_type_is_known_too(self, settings, registry):
        registry.add_index("team/base", "v1", ["amd64"])
        oci = registry.manifests["team/base", registry.tags["team/base", "v1"]][1]
        body = compact({**json.loads(oci), "mediaType": DOCKER_INDEX})
        wanted = registry.add_manifest("team/base", body, DOCKER_INDEX, "v2")

        assert manifest_digest(f"{registry.host}/team/base:v2", settings) == wanted

    def test_a_damaged_config_is_not_believed(self, settings, registry):
        _, config = registry.add_image("team/base", "v1")
        registry.fault("GET", f"/blobs/{config}", change=lambda body: body.replace(b"amd64", b"arm64"))

        with pytest.raises(UpstreamError, match="other bytes"):
            manifest_digest(f"{registry.host}/team/base:v1", settings)

    @pytest.mark.parametrize("config", [b"", b"[]", b'{"os": "linux"}', b"\xff"])
    def test_a_config_that_names_no_platform_is_an_error(self, settings, registry, config):
        registry.blobs["team/base", digest(config)] = config
        body = compact({"mediaType": OCI_MANIFEST, "config": pointer("", config)})
        registry.add_manifest("team/base", body, OCI_MANIFEST, "v1")

        with pytest.raises(UpstreamError, match="does not say which platform"):
            manifest_digest(f"{registry.host}/team/base:v1", settings)
