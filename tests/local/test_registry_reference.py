import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.registry.reference import Reference, is_loopback, parse_reference, parse_repository

DIGEST = "sha256:" + "a1" * 32


@pytest.mark.parametrize(
    ("text", "host", "name", "tag", "digest"),
    [
        ("debian", "docker.io", "library/debian", None, None),
        ("debian:trixie", "docker.io", "library/debian", "trixie", None),
        ("rocm/pytorch:7.2", "docker.io", "rocm/pytorch", "7.2", None),
        ("index.docker.io/rocm/pytorch", "docker.io", "rocm/pytorch", None, None),
        ("ghcr.io/me/app:v1", "ghcr.io", "me/app", "v1", None),
        ("localhost/app", "localhost", "app", None, None),
        ("localhost:5000/app:x", "localhost:5000", "app", "x", None),
        ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000", "a/b/c", None, None),
        ("[::1]:5000/app:v1", "[::1]:5000", "app", "v1", None),
        (f"127.0.0.1:5000/app:v1@{DIGEST}", "127.0.0.1:5000", "app", "v1", DIGEST),
        (f"debian@{DIGEST}", "docker.io", "library/debian", None, DIGEST),
        ("host.example/a__b/c-d.e", "host.example", "a__b/c-d.e", None, None),
    ],
)
def test_a_reference_is_split_with_docker_hubs_defaults(text, host, name, tag, digest):
    assert parse_reference(text) == Reference(host=host, name=name, tag=tag, digest=digest)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "''"),
        ("https://ghcr.io/me/app", "URL"),
        ("Debian", "repository name"),
        ("ghcr.io/Me/app", "repository name"),
        ("ghcr.io/", "repository name"),
        ("ghcr.io//app", "repository name"),
        ("me/app/../other", "repository name"),
        ("me/app:", "tag"),
        ("me/app:-x", "tag"),
        ("me/app:a b", "tag"),
        ("me/app@", "digest"),
        ("me/app@sha256:abc", "digest"),
        (f"me/app@{DIGEST.upper()}", "digest"),
        ("me/app@latest", "digest"),
        ("-bad.example/app", "host"),
        ("evil.example@good.example/app", "digest"),
        ("host.example:port/app", "host"),
        ("host.example?x/app", "host"),
        ("app\n", "repository name"),
        (f"a/{'b' * 256}", "repository name"),
    ],
)
def test_what_is_no_reference_is_refused_with_the_part_that_is_wrong(text, part):
    with pytest.raises(UsageError, match=part):
        parse_reference(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("user:secretpw@host.example/app", "docker login"),
        ("secretpw@host.example/app", "docker login"),
        ("user:a@secretpw@host.example/app", "docker login"),
        ("https://user:secretpw@host.example/app", "host/name:tag"),
    ],
)
def test_a_password_before_the_at_sign_is_not_repeated(text, hint):
    with pytest.raises(UsageError, match=r"host\.example/app") as caught:
        parse_reference(text)
    assert "secretpw" not in f"{caught.value.message} {caught.value.hint}"
    assert hint in caught.value.hint


@given(
    st.from_regex(r"[a-z0-9]{1,8}(\.[a-z0-9]{1,8}){1,2}(:[0-9]{1,4})?", fullmatch=True),
    st.from_regex(r"[a-z0-9]{1,8}(/[a-z0-9]{1,8}){0,3}", fullmatch=True),
    st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    st.sampled_from([None, DIGEST]),
)
@settings(max_examples=60)
def test_a_reference_with_a_host_reads_back_from_its_own_text(host, name, tag, digest):
    reference = Reference(host=host, name=name, tag=tag, digest=digest)

    assert parse_reference(str(reference)) == reference


@given(st.text(max_size=40))
@settings(max_examples=60)
def test_any_text_is_a_reference_or_a_usage_error(text):
    try:
        parsed = parse_reference(text)
    except UsageError:
        return
    assert parse_reference(str(parsed)) == parsed


@pytest.mark.parametrize("host", ["localhost", "localhost:5000", "127.0.0.1", "127.8.9.1:80", "[::1]", "[::1]:5000"])
def test_plain_http_is_spoken_to_this_machine(host):
    assert is_loopback(host)
    assert Reference(host=host, name="app").api == f"http://{host}/v2/app"


@pytest.mark.parametrize("host", ["ghcr.io", "localhost.example", "10.0.0.1:5000", "128.0.0.1", "registry.localhost"])
def test_https_is_spoken_to_every_other_machine(host):
    assert not is_loopback(host)
    assert Reference(host=host, name="app").api == f"https://{host}/v2/app"


def test_docker_hub_answers_under_its_apis_name():
    assert parse_reference("debian").api == "https://registry-1.docker.io/v2/library/debian"


@pytest.mark.parametrize("text", ["me/app:v1", f"me/app@{DIGEST}"])
def test_a_repository_has_no_tag_and_no_digest(text):
    with pytest.raises(UsageError, match="tag or a digest"):
        parse_repository(text)


def test_a_channel_that_is_no_tag_is_refused():
    with pytest.raises(UsageError, match="no tag"):
        parse_reference("me/app").tagged("a/b")
