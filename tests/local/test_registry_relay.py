"""Pulls that were killed: what came is kept, asked for no more, and believed only by its digest."""

import os
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from urllib.request import Request, urlopen

import pytest
from registry_server import FakeEngine, FakeRegistry, digest

from builder.errors import HostError, RegistryError
from builder.files import locked
from builder.registry.loopback import serve
from builder.registry.publish import publish
from builder.registry.pull import pull
from builder.registry.relay import NAME, kept_bytes, part_path
from builder.registry.room import SPARE, UNPACKED
from builder.settings import Settings

BASE, ENGINE = b"base" * 50_000, b"engine" * 1000


class Stage:
    """A registry with a published image, an engine without it, and the folder of the parts."""

    def __init__(self, registry, folder, record):
        self.registry, self.engine, self.parts = registry, FakeEngine(registry), folder / "pulls"
        self.settings = Settings(state_dir=str(folder), cache_dir=str(folder))
        self.records, self.lines = folder / "records", []
        elsewhere = FakeEngine(registry)
        built = record.model_copy(update={"image_id": elsewhere.build(BASE, ENGINE)})
        to = f"{registry.host}/team/app"
        self.record = publish(elsewhere, built, to=to, settings=self.settings, on_progress=[].append).record
        registry.requests.clear()

    def keep(self, blob, content):
        self.parts.mkdir(exist_ok=True)
        part_path(self.parts, digest(blob)).write_bytes(content)

    def pull(self):
        published = self.record.published
        return pull(
            self.engine,
            f"{published.repository}@{published.digest}",
            settings=self.settings,
            records=self.records,
            on_progress=self.lines.append,
        )

    def fetched(self, blob):
        return self.registry.requests.count(f"GET /v2/team/app/blobs/{digest(blob)}")

    def said(self, words):
        return [line for line in self.lines if words in line]

    def is_done(self, done):
        """Whether the image is there, under its own names alone, and nothing is left of the pull."""
        published = self.record.published
        assert done.image.id == self.record.image_id
        assert self.engine.contents[done.image.id][1] == (BASE, ENGINE)
        assert self.engine.digests == {f"{published.repository}@{published.digest}": done.image.id}
        return not list(self.parts.glob("*.part"))


@pytest.fixture
def registry():
    with FakeRegistry() as served:
        yield served


@pytest.fixture
def stage(registry, tmp_path, record, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr("builder.registry.transport.sleep", [].append)
    return Stage(registry, tmp_path, record)


def test_a_layer_that_is_here_is_not_asked_for(stage):
    stage.keep(BASE, BASE)

    assert stage.is_done(stage.pull())
    assert (stage.fetched(BASE), stage.fetched(ENGINE)) == (0, 1)
    assert stage.said("0 MB are here already")


def test_a_registry_without_ranges_sends_a_layer_anew_and_it_is_taken_up(stage):
    stage.keep(BASE, BASE[:70_000])

    assert stage.is_done(stage.pull())
    assert stage.fetched(BASE) == 1


def test_a_pull_that_fails_keeps_what_came(registry, stage):
    registry.fault("GET", f"/blobs/{digest(ENGINE)}", status=404)
    with pytest.raises(RegistryError, match=r"could not pull .*team/app.* answered GET"):
        stage.pull()
    assert kept_bytes(stage.parts, digest(BASE)) == len(BASE)
    assert not stage.records.exists()

    assert stage.is_done(stage.pull())
    assert stage.fetched(BASE) == 1


@pytest.mark.parametrize(
    "spoilt", [b"x" + BASE[1:], b"x" + BASE[1:700], BASE + b"x"], ids=["whole", "a beginning", "too long"]
)
def test_a_spoilt_part_is_thrown_away_and_fetched_again(stage, spoilt):
    stage.keep(BASE, spoilt)

    assert stage.is_done(stage.pull())
    assert bool(stage.said(f"what was kept of {digest(BASE)} has other bytes")) == (len(spoilt) <= len(BASE))


def test_other_bytes_of_the_registry_are_not_asked_for_again_and_again(registry, stage):
    stage.keep(BASE, b"x" + BASE[1:700])
    registry.fault("GET", f"/blobs/{digest(BASE)}", change=lambda body: b"y" + body[1:], times=99)

    with pytest.raises(RegistryError, match="other bytes"):
        stage.pull()
    assert stage.fetched(BASE) == 2
    assert kept_bytes(stage.parts, digest(BASE)) == 0
    assert stage.engine.contents == {}


def test_a_cut_in_the_middle_of_a_layer_is_taken_up(registry, stage):
    registry.fault("GET", f"/blobs/{digest(BASE)}", cut=True, change=lambda body: body)

    assert stage.is_done(stage.pull())
    assert stage.fetched(BASE) == 2


def test_the_layers_that_the_engine_has_are_neither_asked_for_nor_counted(stage):
    stage.engine.build(BASE)

    done = stage.pull()

    assert (done.pulled_bytes, stage.fetched(BASE)) == (len(ENGINE), 0)


def test_a_part_that_cannot_grow_ends_the_keeping_and_not_the_pull(stage):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        assert stage.is_done(stage.pull())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(stage.said("File too large; the rest of a layer is not kept")) == 1


def test_without_room_for_the_parts_the_engine_pulls_by_itself(stage, monkeypatch):
    monkeypatch.setattr("builder.registry.room.shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))

    assert stage.is_done(stage.pull())
    assert len(stage.said("the next one starts anew")) == 1
    assert not [call for call in stage.engine.calls if NAME in call]


@pytest.mark.parametrize("beside", [False, True])
def test_the_room_for_the_parts_is_what_is_not_here_yet(stage, monkeypatch, beside):
    stage.keep(BASE, BASE[:50_000])
    missing = len(BASE) + len(ENGINE)
    free = SPARE + missing - 50_000 + beside * int(missing + missing * UNPACKED)
    monkeypatch.setattr("builder.registry.room.keeps_data_beside", lambda *_: beside)

    def through(size):
        monkeypatch.setattr("builder.registry.room.shutil.disk_usage", lambda _: type("Usage", (), {"free": size}))
        stage.engine = FakeEngine(stage.registry)
        stage.pull()
        return bool([call for call in stage.engine.calls if call.startswith("pull") and NAME in call])

    assert not through(free - 1)
    stage.keep(BASE, BASE[:50_000])
    assert through(free)


def test_an_engine_on_another_machine_pulls_by_itself(stage):
    stage.engine.environment = MappingProxyType({"DOCKER_HOST": "ssh://gpubox"})

    assert stage.is_done(stage.pull())
    assert stage.said("on another machine: when this pull is killed, the next one starts anew")
    assert not [call for call in stage.engine.calls if NAME in call]


def test_an_engine_that_speaks_tls_alone_on_loopback_pulls_by_itself(stage):
    known = stage.engine.pull

    def picky(repository, wanted, *, on_progress):
        host, _, name = repository.partition("/")
        if name.startswith(NAME):
            address, _, port = host.partition(":")
            with socket.create_connection((address, int(port))) as line:
                line.sendall(b"\x16\x03\x01 no HTTP\r\n")
                line.recv(100)
            raise RegistryError("could not pull: http: server gave HTTP response to HTTPS client")
        return known(repository, wanted, on_progress=on_progress)

    stage.engine.pull = picky
    done = stage.pull()

    assert stage.is_done(done)
    assert done.pulled_bytes == len(BASE) + len(ENGINE)
    assert stage.said("does not come to 127.0.0.1: when this pull is killed, the next one starts anew")


def test_a_trouble_of_the_engine_itself_is_told_with_the_images_own_name(stage):
    known = stage.engine.pull

    def full(repository, wanted, *, on_progress):
        known(repository, wanted, on_progress=on_progress)
        raise RegistryError(f"could not pull {repository}@{wanted}: no space left on device", hint="free space")

    stage.engine.pull = full
    with pytest.raises(RegistryError, match="no space left") as caught:
        stage.pull()
    published = stage.record.published
    assert f"pull {published.repository}@{published.digest}: no space" in caught.value.message
    assert (caught.value.hint, kept_bytes(stage.parts, digest(BASE))) == ("free space", len(BASE))
    assert not stage.said(NAME)


def test_a_name_that_the_engine_does_not_give_up_is_told(stage):
    def untag(reference):
        raise HostError("it is used")

    stage.engine.untag = untag
    assert stage.pull().image.id == stage.record.image_id
    assert stage.said("stays: it is used")


def test_names_and_parts_that_a_killed_pull_left_go_with_the_next(stage):
    stage.pull()
    stage.keep(BASE, BASE)
    stage.engine.digests[f"127.0.0.1:4/{NAME}/{'a' * 32}@{stage.record.published.digest}"] = stage.record.image_id

    assert stage.is_done(stage.pull())


def test_parts_that_nobody_comes_back_for_go_after_a_week(stage):
    for blob, days in ((b"another", 6), (b"forgotten", 8)):
        stage.keep(blob, blob)
        then = time.time() - days * 24 * 3600
        os.utime(part_path(stage.parts, digest(blob)), (then, then))

    stage.pull()

    assert list(stage.parts.glob("*.part")) == [part_path(stage.parts, digest(b"another"))]
    assert stage.parts.stat().st_mode & 0o777 == 0o700


def test_a_second_pull_waits_for_the_first(stage):
    stage.parts.mkdir()
    with ThreadPoolExecutor() as pool:
        with locked(stage.parts / "lock"):
            second = pool.submit(stage.pull)
            while not stage.lines:
                assert not second.done()
        assert stage.is_done(second.result())
    assert "another run holds" in stage.lines[0]


def test_the_first_byte_that_is_asked_for_is_the_first_that_comes():
    body = b"0123456789"

    class Store:
        size = staticmethod(lambda _: len(body))
        blob = staticmethod(lambda _, write: (write(body[:4]), write(body[4:])))

    with serve(Store(), "app") as repository:
        asked = Request(f"http://{repository.replace('/', '/v2/')}/blobs/x", headers={"Range": "bytes=3-"})
        with urlopen(asked) as answer:
            assert (answer.status, answer.read()) == (206, body[3:])
            assert answer.headers["Content-Range"] == "bytes 3-9/10"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v2/app/blobs/x", {}, b"200"),
        ("blobs/x", {}, b"404"),
        ("/v2/other/blobs/x", {}, b"404"),
        ("/x/v2/app/blobs/x", {}, b"404"),
        ("/v2/app/blobs/x", {"Range": "bytes=10-"}, b"416"),
    ],
)
def test_only_what_is_asked_for_by_the_name_and_within_its_size_is_served(path, headers, status):
    class Store:
        size = staticmethod(lambda _: 10)
        blob = staticmethod(lambda _, write: write(b"0123456789"))

    lines = [f"GET {path} HTTP/1.0", *(f"{key}: {value}" for key, value in headers.items()), "", ""]
    with serve(Store(), "app") as repository, socket.create_connection(_place(repository), timeout=30) as client:
        client.sendall("\r\n".join(lines).encode())
        assert client.makefile("rb").readline().split()[1] == status


def test_an_engine_that_tries_tls_first_is_told_in_http_that_there_is_none():
    hello = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"  # no line end in it, for which an http server would wait

    with serve(object(), "app") as repository, socket.create_connection(_place(repository), timeout=30) as client:
        client.sendall(hello)
        assert client.makefile("rb").read().startswith(b"HTTP/1.0 400 ")


def _place(repository):
    host, _, port = repository.partition("/")[0].partition(":")
    return host, int(port)
