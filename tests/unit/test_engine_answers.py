"""The engine's answers: a failure that only the stream tells, and what the engine says of images and containers."""

import pytest

from builder.engine import answers
from builder.errors import DeployError, HostError, RegistryError

DIGEST = "sha256:" + "a" * 64


def test_a_push_gives_the_digest_of_its_aux_message():
    events = [{"status": "Pushed", "id": "l1"}, {"status": f"x: digest: {DIGEST} size: 5"}, {"aux": {"Digest": DIGEST}}]
    told = []
    assert answers.follow_transfer(events, "push x", told.append) == DIGEST
    assert told == ["push x: l1 pushed"]


@pytest.mark.parametrize("status", [f"none-1: digest: {DIGEST} size: 1291", f"Digest: {DIGEST}"])
def test_a_digest_is_also_taken_from_the_last_line(status):
    assert answers.follow_transfer([{"status": "x"}, {"status": status}], "push x", print) == DIGEST


@pytest.mark.parametrize("status", ["The push refers to repository [x]", f"x digest: {DIGEST[:-1]} size: 5"])
def test_a_push_that_names_no_digest_has_none(status):
    assert answers.follow_transfer([{"status": status}], "push x", print) is None


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("manifest unknown: manifest unknown", "publish again"),
        (f"127.0.0.1:1/x@{DIGEST}: not found", "publish again"),
        ("tag does not exist: 127.0.0.1:1/x:y", "build or pull it first"),
        ("unauthorized: authentication required", "docker login"),
        ("denied: requested access to the resource is denied", "docker login"),
        ('Get "https://h/v2/": http: server gave HTTP response to HTTPS client', "insecure-registries"),
        ("x509: certificate signed by unknown authority", "certs.d"),
        ("dial tcp: lookup h: no such host", "cannot be reached"),
        ("toomanyrequests: you have reached your pull rate limit", "docker login"),
        ("error parsing HTTP 413 response body", "takes no layer of this size"),
        ("received unexpected HTTP status: 503 Service Unavailable", "try again"),
        ("unexpected status from HEAD request to https://h/v2/x: 500 Internal Server Error", "try again"),
        ('Get "https://h/v2/": context deadline exceeded', "try again"),
        ("write /x: no space left on device", "docker system df"),
    ],
)
def test_an_error_in_the_stream_is_raised_with_the_daemons_words_and_a_next_step(said, step):
    with pytest.raises(RegistryError, match="could not push x") as caught:
        answers.follow_transfer([{"errorDetail": {"message": said}, "error": said}], "push x", print)
    assert said in caught.value.message
    assert step in caught.value.hint


@pytest.mark.parametrize(
    "said",
    ["500 Server Error for http+docker://localhost/v1.41/containers/x/start", "context deadline exceeded", "port 502"],
)
def test_a_fault_of_the_engine_is_not_told_as_one_of_the_registry(said):
    assert answers.hint(said) == ""


def test_a_stream_is_read_to_its_end_after_an_error_so_that_the_connection_is_given_back():
    events = iter([{"error": "no"}, {"status": "bye"}])
    with pytest.raises(RegistryError):
        answers.follow_transfer(events, "push x", print)
    assert list(events) == []


def test_a_long_transfer_says_how_far_it_is(monkeypatch):
    clock = iter([0.0, 1.0, 11.0, 12.0])
    monkeypatch.setattr(answers.time, "monotonic", lambda: next(clock, 99.0))
    told = []
    event = {"status": "Downloading", "id": "l1", "progressDetail": {"current": 5_000_000, "total": 20_000_000}}
    answers.follow_transfer([event, event], "pull x", told.append)
    assert told == ["pull x: 5 of 20 MB"]


def test_an_engine_that_says_no_raises_the_class_that_was_asked_for():
    import docker.errors

    with (
        pytest.raises(DeployError, match="the engine could not start x: name in use"),
        answers.answering("the engine", "start x", DeployError),
    ):
        raise docker.errors.APIError("409", explanation="name in use")


@pytest.mark.parametrize("lost", [ConnectionResetError("gone"), TimeoutError("late")])
def test_an_engine_that_is_lost_is_a_matter_of_the_host(lost):
    with (
        pytest.raises(HostError, match="the engine was lost when asked to start x"),
        answers.answering("the engine", "start x", DeployError),
    ):
        raise lost


def test_an_engine_that_stays_silent_is_named_as_such():
    import requests

    with pytest.raises(HostError, match="did not answer in time"), answers.answering("the engine", "list"):
        raise requests.ReadTimeout


def test_a_container_that_never_started_has_no_start_and_no_exit_code():
    told = {
        "Id": "1", "Name": "/c", "Image": "sha256:i",
        "State": {"Status": "created", "ExitCode": 0, "StartedAt": "0001-01-01T00:00:00Z"},
    }  # fmt: skip
    made = answers.container(told)
    assert (made.name, made.exit_code, made.started_at, made.shm_bytes) == ("c", None, "", 0)


def test_an_image_of_a_bare_import_has_empty_fields_and_no_errors():
    made = answers.image(
        {"Id": "sha256:i", "RepoTags": None, "Config": {"Cmd": None, "Labels": None}}, [{"CreatedBy": None}]
    )
    assert (made.tags, made.entrypoint, made.labels, made.history) == ((), (), {}, ("",))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ()),
        ({"Healthcheck": {"Test": ["NONE"]}}, ()),
        ({"Healthcheck": {"Test": ["CMD-SHELL", "curl localhost"]}}, ("CMD-SHELL", "curl localhost")),
    ],
)
def test_an_image_tells_its_health_check_and_the_size_of_each_step(config, expected):
    steps = ({"CreatedBy": "USER 1", "Size": 0}, {"CreatedBy": "RUN make", "Size": 5})
    made = answers.image({"Id": DIGEST, "Config": config}, iter(steps))
    assert made.healthcheck == expected
    assert dict(zip(made.history, made.layers, strict=True)) == {"USER 1": 0, "RUN make": 5}


@pytest.mark.parametrize("told", [3, 90])
def test_an_image_is_as_large_as_its_layers_unpacked_whatever_the_engine_says_of_it_packed(told):
    made = answers.image({"Id": DIGEST, "Size": told}, [{"CreatedBy": "a", "Size": 40}, {"CreatedBy": "b", "Size": 50}])
    assert made.size == 90
