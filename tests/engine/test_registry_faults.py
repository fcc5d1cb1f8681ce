"""Publish, pull and bundle through a proxy that spoils things.

After each fault: the channel is where it was, or where a whole publication put it; the engine has no image that is not
the published one; and the second try succeeds.
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faulty_proxy import PIECE, FaultyProxy, flipped
from own_registry import Registry, forget, make_image, noise, record_of

from builder.console import Console
from builder.engine.daemon import Daemon
from builder.engine.docker import connect
from builder.engine.packages import as_root, install, program
from builder.errors import HostError, RegistryError, ToolError
from builder.models.record import image_reference
from builder.process import run
from builder.registry.bundle import load_bundle, write_bundle
from builder.registry.client import Client
from builder.registry.publish import publish
from builder.registry.pull import pull
from builder.registry.reference import parse_reference
from builder.settings import Settings

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
TOO_MANY = {"WWW-Authenticate": "", "Content-Type": "application/json"}
# what a process of its own does, to be killed: the arguments are the record, the repository and the folder
PUBLISH = """
import sys
from pathlib import Path
from builder.engine.docker import connect
from builder.models.record import read_record
from builder.registry.publish import publish
from builder.settings import Settings
record, to, folder = read_record(Path(sys.argv[1])), sys.argv[2], sys.argv[3]
settings = Settings(state_dir=folder, cache_dir=folder)
publish(connect(), record, to=to, settings=settings, on_progress=lambda line: None)
"""
PULL = """
import sys
from pathlib import Path
from builder.engine.docker import connect
from builder.registry.pull import pull
from builder.settings import Settings
reference, folder = sys.argv[1], sys.argv[2]
settings = Settings(state_dir=folder, cache_dir=folder)
pull(connect(), reference, settings=settings, records=Path(folder, "records"), on_progress=lambda line: None)
"""


class Site:
    """A registry behind the proxy, an engine, and a first image that is published under ``latest``."""

    def __init__(self, engine, proxy, folder, settings):
        self.engine, self.proxy, self.folder, self.settings = engine, proxy, folder, settings
        self.to = f"{proxy.host}/team/app"
        self.waits = []
        self.images = []
        self.old = self.publish(self.record("c" * 40)).record.published.digest
        # containerd's store knows an image by its manifest, uploads a layer in one request, and keeps parts itself
        self.is_containerd = self.old == self.images[0]
        self.upload = "PUT" if self.is_containerd else "PATCH"

    def record(self, commit="a" * 40, size=400_000):
        name = f"gfx1100-test/faults-{self.proxy.host.rpartition(':')[2]}:{len(self.images)}"
        self.images.append(make_image(self.engine, name, base=noise(size), app=noise(20_000)))
        return record_of(self.images[-1], commit=commit)

    def publish(self, record):
        return publish(self.engine, record, to=self.to, settings=self.settings, on_progress=self.waits.append)

    def pull(self, engine=None, end=":latest"):
        return pull(
            engine or self.engine,
            self.to + end,
            settings=self.settings,
            records=self.folder / "records",
            on_progress=self.waits.append,
        )

    def channel(self):
        self.proxy.faults.clear()
        with Client(self.settings) as client:
            return client.head(parse_reference(self.to).tagged("latest"))

    def publish_fails(self, record, error=ToolError, match=None):
        """Publish into a fault, and then without it."""
        with pytest.raises(error, match=match) as caught:
            self.publish(record)
        assert self.channel() == self.old
        self.publish_succeeds(record)
        return caught.value

    def publish_succeeds(self, record):
        published = self.publish(record).record.published
        assert self.channel() == published.digest != self.old
        return published

    def pull_fails(self, record, error=ToolError, match=None):
        """Pull what was published into a fault, and then without it."""
        forget(self.engine, record.image_id)
        with pytest.raises(error, match=match) as caught:
            self.pull()
        assert self.engine.image(record.image_id) is None
        assert not (self.folder / "records").exists()
        self.proxy.faults.clear()
        assert self.pull().image.id == record.image_id
        return caught.value


@pytest.fixture
def proxy(tmp_path):
    (tmp_path / "registry").mkdir()
    registry = Registry(tmp_path / "registry")
    with FaultyProxy(registry.host) as served:
        yield served
    registry.stop()


@pytest.fixture
def site(proxy, tmp_path, monkeypatch):
    (tmp_path / "docker").mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    waited = []
    monkeypatch.setattr("builder.registry.transport.sleep", waited.append)
    engine = connect()
    made = Site(engine, proxy, tmp_path, Settings(state_dir=str(tmp_path), cache_dir=str(tmp_path)))
    made.waited = waited
    yield made
    for image_id in made.images:
        forget(engine, image_id)


class TestPublishing:
    def test_a_connection_that_is_cut_in_the_middle_of_a_layer(self, site):
        cut = site.proxy.fault(site.upload, "/blobs/uploads/", cut_body=100_000)
        # the engine tries again by itself, and is refused then
        site.proxy.fault("POST", "/blobs/uploads/", skip=2, status=429, times=9)
        site.publish_fails(site.record(), RegistryError)
        assert cut.hits == 1

    def test_a_rate_limit_without_a_time(self, site):
        site.proxy.fault("POST", "/blobs/uploads/", status=429, times=9)
        error = site.publish_fails(site.record(), RegistryError, "(?i)toomanyrequests|429")
        assert error.exit_code == 8

    def test_a_rate_limit_with_a_time_is_waited_for(self, site):
        site.proxy.fault("PUT", "/manifests/latest", status=429, headers={"Retry-After": "7"})
        site.publish_succeeds(site.record())
        assert site.waited == [7.0]

    def test_a_rate_limit_that_lasts_an_hour_is_told(self, site):
        site.proxy.fault("PUT", "/manifests/latest", status=429, headers={"Retry-After": "3600"})
        error = site.publish_fails(site.record(), RegistryError, "rate limit")
        assert "in 3600 s" in error.hint

    @pytest.mark.parametrize(("method", "part"), [("PUT", "/manifests/latest"), ("GET", "/manifests/sha256")])
    def test_a_server_fault_that_passes(self, site, method, part):
        fault = site.proxy.fault(method, part, status=500, times=2)
        site.publish_succeeds(site.record())
        assert (fault.hits, site.waited) == (2, [1.0, 2.0])

    def test_a_server_fault_that_stays(self, site):
        site.proxy.fault("PUT", "/manifests/latest", status=503, times=9)
        site.publish_fails(site.record(), RegistryError, "the registry has a fault")

    def test_a_server_fault_in_the_engines_own_upload(self, site):
        fault = site.proxy.fault("POST", "/blobs/uploads/", status=500)
        site.publish_succeeds(site.record())
        assert fault.hits == 1

    def test_a_login_that_ends_after_a_while(self, site):
        challenge = {"WWW-Authenticate": 'Basic realm="here"'}
        site.proxy.fault("PUT", "/manifests/", skip=1, status=401, headers=challenge, times=9)
        error = site.publish_fails(site.record(), RegistryError, "not authorised")
        assert "docker login" in error.hint

    def test_a_login_that_ends_in_the_engines_upload(self, site):
        challenge = {"WWW-Authenticate": 'Basic realm="here"'}
        site.proxy.fault(site.upload, "/blobs/uploads/", skip=1, status=401, headers=challenge, times=9)
        site.proxy.fault("POST", "/blobs/uploads/", skip=2, status=401, headers=challenge, times=9)
        site.publish_fails(site.record(), RegistryError)

    def test_a_manifest_that_comes_back_changed(self, site):
        site.proxy.fault("GET", "/manifests/sha256", change=lambda piece: piece.replace(b'"size"', b'"sise"'))
        site.publish_fails(site.record(), ToolError)

    def test_bits_that_are_flipped_on_the_way_up(self, site):
        fault = site.proxy.fault(site.upload, "/blobs/uploads/", change_body=flipped)
        if site.is_containerd:
            site.publish_fails(site.record(), RegistryError, "did not match")
        else:
            site.publish_succeeds(site.record())
        assert fault.hits == 1

    def test_a_registry_that_stops_answering(self, site, monkeypatch):
        monkeypatch.setattr("builder.registry.transport.SILENCE_TIMEOUT", 0.2)
        site.proxy.fault("PUT", "/manifests/latest", silent=True, times=9)
        site.publish_fails(site.record(), RegistryError, "cannot be reached, or broke off")


class TestPulling:
    @pytest.fixture
    def record(self, site):
        made = site.record(size=2_000_000)
        site.published = site.publish_succeeds(made)
        return made

    def test_a_connection_that_is_cut_in_the_middle_of_a_layer_is_taken_up(self, site, record):
        forget(site.engine, record.image_id)
        site.proxy.sent.clear()
        fault = site.proxy.fault("GET", "/blobs/", skip=2, cut_answer=1_000_000)
        assert site.pull().image.id == record.image_id
        assert fault.hits <= 1
        assert site.proxy.layer_bytes() < 2_100_000 + 1_000_000

    def test_flipped_bits_in_a_layer(self, site, record):
        site.proxy.fault("GET", "/blobs/", skip=1, change=flipped, times=9)
        site.pull_fails(record, RegistryError)

    def test_a_manifest_that_was_changed(self, site, record):
        site.proxy.fault("GET", "/manifests/", change=lambda piece: piece.replace(b'"size"', b'"sise"'), times=9)
        site.pull_fails(record)

    def test_a_rate_limit_in_the_engines_pull(self, site, record):
        site.proxy.fault("GET", "/blobs/", skip=1, status=429, times=9)
        site.pull_fails(record, RegistryError)

    def test_a_rate_limit_and_a_server_fault_before_it_are_waited_for(self, site, record):
        forget(site.engine, record.image_id)
        site.proxy.fault("GET", "/manifests/latest", status=429, headers={"Retry-After": "5"})
        site.proxy.fault("GET", "/manifests/latest", status=500)
        assert site.pull().image.id == record.image_id
        assert site.waited[-2:] == [5.0, 2.0]

    def test_a_login_that_ends_after_a_while(self, site, record):
        challenge = {"WWW-Authenticate": 'Basic realm="here"'}
        site.proxy.fault("GET", "/blobs/", skip=1, status=401, headers=challenge, times=9)
        site.pull_fails(record, RegistryError)

    def test_a_registry_that_stops_answering(self, site, record, monkeypatch):
        site.proxy.fault("GET", "/blobs/", skip=1, silent=True, times=9)
        monkeypatch.setattr("builder.engine.docker.PULL_SECONDS", 1)
        patient, site.engine = site.engine, connect()
        forget(patient, record.image_id)
        with pytest.raises(RegistryError, match="nothing came for a long time"):
            site.pull()
        assert patient.image(record.image_id) is None
        site.engine = patient
        site.proxy.faults.clear()
        site.proxy._silence.set()
        assert site.pull().image.id == record.image_id


class TestKills:
    MOMENTS = 6

    def killed_at(self, site, script, arguments, at):
        """Run a script of the tool and kill it when its ``at``-th request comes; return whether it was killed."""
        child = subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], cwd=ROOT)
        site.proxy.fault("*", "/v2/", skip=at, then=child.kill)
        return child.wait(60) != 0

    def test_a_publish_that_is_killed_at_random_moments(self, site):
        rng = random.Random(11)
        kills = 0
        for number in range(self.MOMENTS):
            record = site.record(commit=f"{number:040x}", size=50_000)
            (site.folder / "record.json").write_text(record.text())
            at = rng.randrange(2, 22)
            kills += self.killed_at(site, PUBLISH, (site.folder / "record.json", site.to, site.folder), at)
            before, site.old = site.old, site.channel()
            published = site.publish(record).record.published
            # where it was, or where the whole publication put it
            assert site.old in {before, published.digest}
            site.old = site.channel()
            assert site.old == published.digest
        assert kills >= self.MOMENTS // 2

    def test_a_pull_that_is_killed_at_random_moments(self, site):
        rng = random.Random(7)
        kills = 0
        for number in range(self.MOMENTS):
            record = site.record(commit=f"{number:040x}", size=50_000)
            site.publish(record)
            forget(site.engine, record.image_id)
            at = rng.randrange(1, 12)
            kills += self.killed_at(site, PULL, (f"{site.to}:latest", site.folder), at)
            site.proxy.faults.clear()
            assert site.pull().image.id == record.image_id
        assert kills >= self.MOMENTS // 2


class TestResuming:
    SIZE = 30_000_000
    # manifests and the record, and pieces that were cut
    TAIL = 1_000_000

    @pytest.fixture
    def record(self, site):
        made = site.record(size=self.SIZE)
        site.published = site.publish_succeeds(made)
        forget(site.engine, made.image_id)
        site.proxy.sent.clear()
        return made

    def start(self, site):
        return subprocess.Popen([sys.executable, "-c", PULL, f"{site.to}:latest", str(site.folder)], cwd=ROOT)

    def killed_at(self, site, size, by=signal.SIGKILL):
        """Pull in a process of its own, and end it when so many bytes are kept."""
        child, sent = self.start(site), []

        def watch(piece):
            if not sent and self.kept(site) >= size:
                sent.append(child.send_signal(by))
            if sent:
                # the rest comes slowly, or the whole image is there before a busy process sees its signal
                time.sleep(0.05)
            return piece

        site.proxy.fault("GET", "/blobs/", change=watch, times=99)
        assert child.wait(60) == -by
        site.proxy.faults.clear()

    def kept(self, site):
        return sum(part.stat().st_size for part in (site.folder / "pulls").glob("*.part"))

    def is_done(self, site, record):
        done = site.pull()
        assert done.image.id == record.image_id
        assert not [name for name in done.image.repo_digests if "gfx1100/pull" in name]
        assert self.kept(site) == 0

    def test_a_pull_that_is_killed_again_and_again_is_taken_up_each_time(self, site, record):
        kill, interrupt = signal.SIGKILL, signal.SIGINT
        moments = {1: kill, 9_000_000: interrupt, 20_000_000: kill, 28_000_000: kill}
        for size, by in moments.items():
            self.killed_at(site, size, by)
            assert size <= self.kept(site) < self.SIZE
        kept = self.kept(site)
        # what was on its way when a process ended
        assert site.proxy.layer_bytes() - kept < len(moments) * self.TAIL

        site.proxy.sent.clear()
        self.is_done(site, record)
        assert site.proxy.layer_bytes() < self.SIZE - kept + self.TAIL

    def test_a_pull_that_is_killed_before_the_image_has_its_name_fetches_no_layer_again(self, site, record):
        child = self.start(site)
        site.proxy.fault("*", f"/manifests/{site.published.digest}", then=child.kill)
        assert child.wait(60) == -signal.SIGKILL
        site.proxy.faults.clear()
        site.proxy.sent.clear()

        self.is_done(site, record)
        assert site.proxy.layer_bytes() < 10_000

    def test_a_part_with_flipped_bits_is_fetched_again(self, site, record):
        self.killed_at(site, 5_000_000)
        part = max((site.folder / "pulls").glob("*.part"), key=lambda path: path.stat().st_size)
        part.write_bytes(flipped(part.read_bytes()))
        site.proxy.sent.clear()

        self.is_done(site, record)
        told = [line for line in site.waits if "has other bytes and is pulled anew" in line]
        assert len(told) == (0 if site.is_containerd else 1)
        assert site.proxy.layer_bytes() < 2 * self.SIZE + self.TAIL

    def test_two_pulls_at_once_fetch_the_image_once(self, site, record):
        children = [self.start(site) for _ in range(2)]
        assert [child.wait(60) for child in children] == [0, 0]

        assert site.proxy.layer_bytes() < self.SIZE + self.TAIL
        self.is_done(site, record)

    def test_a_full_cache_is_said_and_the_pull_goes_on(self, site, record, tmp_path_factory, monkeypatch):
        disk = tmp_path_factory.mktemp("cache")
        run([*as_root(), "mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", str(disk)], timeout=30)
        site.settings = site.settings.model_copy(update={"cache_dir": str(disk)})
        try:
            assert site.pull().image.id == record.image_id
            assert [line for line in site.waits if "more would have to be free at" in line]

            forget(site.engine, record.image_id)
            monkeypatch.setattr("builder.registry.pull.require_room", lambda *_, **__: True)
            assert site.pull().image.id == record.image_id
            assert [line for line in site.waits if "No space left on device; the rest of a layer is not kept" in line]
        finally:
            run([*as_root(), "umount", str(disk)], timeout=30)


class TestBundles:
    def test_a_cut_download_is_taken_up_and_the_bundle_gives_the_same_digest(self, site):
        record = site.publish(site.record(size=1_500_000)).record
        site.proxy.sent.clear()
        fault = site.proxy.fault("GET", "/blobs/", skip=2, cut_answer=700_000)
        path = site.folder / "bundle.tar"
        made = write_bundle(record, path, settings=site.settings, on_progress=site.waits.append)
        assert fault.hits == 1
        assert site.proxy.layer_bytes() < made.size + 2 * PIECE

        forget(site.engine, record.image_id)
        # a second load leaves no second name
        for _ in range(2):
            done = load_bundle(
                site.engine,
                path,
                settings=site.settings,
                records=site.folder / "records",
                on_progress=site.waits.append,
            )
        assert sum("/gfx1100/bundle:" in tag for tag in site.engine.image(done.image.id).tags) == 1
        assert (done.digest, done.image.id, done.record) == (record.published.digest, record.image_id, record)
        assert any(entry.endswith(f"@{record.published.digest}") for entry in done.image.repo_digests)


def test_a_full_disk_on_the_pulling_side(site, tmp_path_factory):
    record = site.record(size=60_000_000)
    published = site.publish(record).record
    disk = tmp_path_factory.mktemp("disk")
    run([*as_root(), "mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(disk)], timeout=30)
    socket = f"unix://{disk}/docker.sock"
    # a bridge of its own: with none, dockerd takes docker0 away from the engine that other tests use
    if program("ip") is None:
        install(["iproute2"], allowed=True, why="a second engine needs a bridge", console=Console())
    bridge = "gfx1100test0"
    run([*as_root(), "ip", "link", "add", bridge, "type", "bridge"], timeout=30)
    options = ["--iptables=false", "--ip-masq=false", f"--bridge={bridge}", "--storage-driver=vfs"]
    daemon = Daemon(
        [
            program("dockerd"),
            f"--data-root={disk}/data",
            f"--exec-root={disk}/exec",
            f"--pidfile={disk}/exec.pid",
            f"--host={socket}",
            *options,
        ],
        pidfile=disk / "pid",
        log=tmp_path_factory.mktemp("log") / "dockerd.log",
        prefix=as_root(),
    )
    try:
        daemon.start((disk / "docker.sock").is_socket)
        small = connect({"DOCKER_HOST": socket})
        with pytest.raises(HostError, match="does not fit"):
            site.pull(small)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("builder.registry.pull.require_room", lambda *_, **__: True)
            with pytest.raises(RegistryError, match="no space left on device") as caught:
                site.pull(small)
            assert "free space" in caught.value.hint
            assert small.image(image_reference(published)) is None
            assert not (site.folder / "records").exists()
            run([*as_root(), "mount", "-o", "remount,size=400m", str(disk)], timeout=30)
            assert site.pull(small).digest == published.published.digest
    finally:
        daemon.stop()
        run([*as_root(), "ip", "link", "delete", bridge], timeout=30)
        run([*as_root(), "umount", str(disk)], timeout=30)
