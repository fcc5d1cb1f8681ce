import base64
import json
from urllib.parse import parse_qs, urlsplit

import pytest

from builder.errors import HostError, UsageError
from builder.registry.auth import Challenge, Credentials, find_credentials, parse_challenge, token_request

SECRET = "correct-horse"


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """Write a docker configuration, and credential helpers as programs, and return how to ask with them."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")

    def configure(config, **helpers):
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        (tmp_path / "bin").mkdir(exist_ok=True)
        for name, script in helpers.items():
            program = tmp_path / "bin" / f"docker-credential-{name}"
            program.write_text(f"#!/bin/sh\nread server\n{script}\n")
            program.chmod(0o755)
        return {"DOCKER_CONFIG": str(tmp_path)}

    return configure


def entry(user, secret):
    return {"auth": base64.b64encode(f"{user}:{secret}".encode()).decode()}


def test_without_a_docker_configuration_nobody_is_known(tmp_path):
    assert find_credentials("ghcr.io", {"HOME": str(tmp_path)}) is None


def test_the_configuration_of_the_home_folder_is_the_default(tmp_path):
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text(json.dumps({"auths": {"ghcr.io": entry("me", SECRET)}}))

    assert find_credentials("ghcr.io", {"HOME": str(tmp_path)}) == Credentials(username="me", secret=SECRET)


@pytest.mark.parametrize("key", ["ghcr.io", "https://ghcr.io", "https://ghcr.io/v1/", "http://ghcr.io/"])
def test_an_entry_is_found_however_its_server_is_written(configured, key):
    env = configured({"auths": {"other.example": entry("no", "no"), key: entry("me", SECRET)}})

    assert find_credentials("ghcr.io", env) == Credentials(username="me", secret=SECRET)


def test_docker_hubs_entry_stands_under_its_old_address(configured):
    env = configured({"auths": {"https://index.docker.io/v1/": entry("me", "a:b")}})

    assert find_credentials("docker.io", env) == Credentials(username="me", secret="a:b")


def test_a_host_with_another_port_is_another_registry(configured):
    env = configured({"auths": {"127.0.0.1:5000": entry("me", SECRET)}})

    assert find_credentials("127.0.0.1:5001", env) is None


@pytest.mark.parametrize("entry", [{}, {"email": "me@example.org"}])
def test_an_entry_without_a_secret_is_no_user(configured, entry):
    assert find_credentials("ghcr.io", configured({"auths": {"ghcr.io": entry}})) is None


def test_a_plain_user_and_password_are_taken(configured):
    env = configured({"auths": {"ghcr.io": {"username": "me", "password": SECRET}}})

    assert find_credentials("ghcr.io", env) == Credentials(username="me", secret=SECRET)


def test_an_identity_token_is_told_from_a_password(configured):
    env = configured({"auths": {"ghcr.io": {**entry("me", ""), "identitytoken": SECRET}}})

    found = find_credentials("ghcr.io", env)

    assert (found.secret, found.is_identity_token) == (SECRET, True)


def test_the_helper_of_a_registry_is_asked_for_that_registry(configured):
    script = f"""test "$server" = ghcr.io && echo '{{"ServerURL": "x", "Username": "me", "Secret": "{SECRET}"}}'"""
    env = configured({"credHelpers": {"ghcr.io": "mine"}, "credsStore": "absent"}, mine=script)

    assert find_credentials("ghcr.io", env) == Credentials(username="me", secret=SECRET)


def test_the_store_is_asked_for_docker_hub_under_its_old_address(configured):
    script = (
        f"""test "$server" = https://index.docker.io/v1/ && echo '{{"Username": "<token>", "Secret": "{SECRET}"}}'"""
    )
    env = configured({"credsStore": "mine"}, mine=script)

    assert find_credentials("docker.io", env).is_identity_token


def test_a_helper_that_knows_nobody_leaves_the_word_to_the_entries(configured):
    env = configured(
        {"credsStore": "mine", "auths": {"ghcr.io": entry("me", SECRET)}},
        mine="echo credentials not found in native keychain; exit 1",
    )

    assert find_credentials("ghcr.io", env) == Credentials(username="me", secret=SECRET)


def test_a_helper_that_is_not_installed_is_named_with_the_file_that_wants_it(configured):
    env = configured({"credsStore": "absent"})

    with pytest.raises(HostError, match=r"config\.json names the credential helper docker-credential-absent") as error:
        find_credentials("ghcr.io", env)
    assert "credsStore" in error.value.hint


@pytest.mark.parametrize(
    "script", [f"echo {SECRET}; exit 3", f"echo {SECRET}", f'echo \'{{"Secret": "{SECRET}"}}\'', f"echo '\"{SECRET}\"'"]
)
def test_a_helper_that_fails_is_an_error_without_a_word_of_what_it_printed(configured, script):
    env = configured({"credsStore": "mine"}, mine=script)

    with pytest.raises(HostError, match="docker-credential-mine") as error:
        find_credentials("ghcr.io", env)
    assert SECRET not in str(error.value) + error.value.hint


@pytest.mark.parametrize("name", ["../../bin/sh", "a b", "x;y", "/bin/sh"])
def test_a_helper_is_a_name_and_no_path(configured, name):
    with pytest.raises(UsageError, match="no name of a credential helper"):
        find_credentials("ghcr.io", configured({"credsStore": name}))


@pytest.mark.parametrize(
    "config",
    [
        "{" + SECRET,
        "[]",
        {"auths": [SECRET]},
        {"credHelpers": SECRET},
        {"auths": {"ghcr.io": SECRET}},
        {"auths": {"ghcr.io": {"auth": SECRET}}},
        {"auths": {"ghcr.io": {"auth": 5}}},
        {"auths": {"ghcr.io": {"username": SECRET}}},
        {"auths": {"ghcr.io": {"auth": base64.b64encode(b"\xff\xfe").decode()}}},
    ],
)
def test_a_damaged_configuration_is_named_without_a_word_of_what_it_holds(configured, config):
    with pytest.raises(UsageError, match=r"config\.json") as error:
        find_credentials("ghcr.io", configured(config))
    assert SECRET not in str(error.value) + error.value.hint
    assert error.value.__cause__ is None or SECRET not in str(error.value.__cause__)


def test_a_secret_does_not_show_in_a_repr():
    assert SECRET not in repr(Credentials(username="me", secret=SECRET))


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        ('Basic realm="x"', Challenge(scheme="basic")),
        ('bearer realm="https://a/t",service="s"', Challenge(scheme="bearer", realm="https://a/t", service="s")),
        (
            'Basic realm="x", Bearer realm="https://a/t?x=1",scope="repository:a:pull,push"',
            Challenge(scheme="bearer", realm="https://a/t?x=1", scope="repository:a:pull,push"),
        ),
        ("Negotiate", None),
        ("", None),
    ],
)
def test_a_challenge_is_read(header, challenge):
    assert parse_challenge(header) == challenge


def test_a_token_is_asked_for_what_is_needed_beside_what_the_registry_names():
    challenge = Challenge(scheme="bearer", realm="https://a/t?x=1", service="s", scope="repository:a:pull")

    method, url, headers, data = token_request(challenge, None, "repository:a:pull,push")

    assert (method, headers, data) == ("GET", {}, None)
    assert parse_qs(urlsplit(url).query) == {
        "x": ["1"],
        "service": ["s"],
        "scope": ["repository:a:pull", "repository:a:pull,push"],
    }


def test_an_identity_token_is_sent_in_the_body_and_never_in_the_url():
    challenge = Challenge(scheme="bearer", realm="https://a/t", service="s")
    credentials = Credentials(username="", secret=SECRET, is_identity_token=True)

    method, url, headers, data = token_request(challenge, credentials, "repository:a:pull")

    assert (method, url) == ("POST", "https://a/t")
    assert SECRET not in str(headers)
    assert parse_qs(data.decode())["refresh_token"] == [SECRET]
