"""The engine's port against a real daemon, a real registry and real builds."""

import io
import re
import tarfile
import time
import urllib.request

import pytest

from builder.build.preflight import GIB, Needs, preflight
from builder.console import Console
from builder.engine import base as bases
from builder.engine.base import base_reference, bootstrap_base
from builder.engine.buildkit import find_builder
from builder.engine.docker import connect
from builder.engine.port import ContainerSpec
from builder.errors import DeployError, HostError, RegistryError, VerifyError
from builder.registry.manifest import KNOWN_TYPES

pytestmark = pytest.mark.engine

LABEL = "org.gfx1100.test"
NOWHERE = "sha256:" + "0" * 64
ANY_MANIFEST = {"Accept": ", ".join(KNOWN_TYPES)}


@pytest.fixture
def container(engine, base):
    """Create a container of the base image; removed at the end of the test."""
    made = []

    def make(*command, **more):
        spec = ContainerSpec(
            image=base.id, name=f"gfx1100-test-{len(made)}", command=command, labels={LABEL: "1"}, **more
        )
        made.append(engine.create(spec))
        return made[-1]

    yield make
    for one in made:
        engine.remove(one.id)


def running(client, word):
    """Return the containers for one question whose command holds a word; others may ask at the same time."""
    asked = client.containers(all=True, filters={"label": "org.gfx1100.purpose"})
    return [one["Id"] for one in asked if word in one["Command"]]


# containers for one question


def test_a_program_gets_its_files_and_its_streams_stay_apart(engine, base, client):
    got = engine.run_once(
        base.id,
        ["sh", "-c", "cat /opt/new/in; echo fault >&2; exit 3"],
        files={"/opt/new/in": b"given\n"},
        timeout=60,
    )
    assert (got.returncode, got.stdout, got.stderr) == (3, "given\n", "fault\n")
    assert running(client, "/opt/new/in") == []


def test_a_folder_that_a_file_is_put_into_keeps_its_mode(engine, base):
    got = engine.run_once(base.id, ["stat", "-c", "%a", "/tmp"], files={"/tmp/in": b""}, timeout=60)
    assert got.stdout == "1777\n"


def test_a_program_has_no_network(engine, base):
    got = engine.run_once(base.id, ["cat", "/proc/net/dev"], files={}, timeout=60)
    assert re.findall(r"^ *(\w+):", got.stdout, re.MULTILINE) == ["lo"]


def test_a_program_that_the_image_does_not_have_gives_127(engine, base):
    got = engine.run_once(base.id, ["no-such-program"], files={}, timeout=60)
    assert got.returncode == 127
    assert "no-such-program" in got.stderr


def test_a_program_that_hangs_is_killed_and_its_container_removed(engine, base, client):
    with pytest.raises(VerifyError, match="did not end within 1 s and was killed") as caught:
        engine.run_once(base.id, ["sh", "-c", "echo here; exec sleep 6007"], files={}, timeout=1)
    assert "here" in caught.value.hint
    assert running(client, "sleep 6007") == []


def test_files_are_read_without_running_anything_and_links_stay_inside_the_image(engine, base):
    asked = ["/etc/os-release", "/bin/sh", "/no/such", "/etc"]
    got = engine.read_files(base.id, asked, limit=1 << 22)
    assert sorted(got) == ["/bin/sh", "/etc/os-release"]
    assert b"trixie" in got["/etc/os-release"]
    assert got["/bin/sh"].startswith(b"\x7fELF")


def test_a_file_larger_than_its_bound_is_refused(engine, base):
    with pytest.raises(VerifyError, match=r"/usr/bin/dpkg has \d+ bytes, more than the 1000"):
        engine.read_files(base.id, ["/usr/bin/dpkg"], limit=1000)


def test_an_image_that_is_not_there_is_none_and_running_it_is_an_error(engine):
    assert engine.image("gfx1100-test/none:1") is None
    with pytest.raises(HostError, match="No such image") as caught:
        engine.run_once("gfx1100-test/none:1", ["true"], files={}, timeout=60)
    assert "build or pull it first" in caught.value.hint


# containers that serve


def test_a_container_is_made_as_it_was_asked_for_and_no_looser(container, client, tmp_path):
    made = container(
        "sleep",
        "600",
        environment={"A": "b"},
        ports={80: ("127.0.0.1", 0)},
        mounts={tmp_path: ("/in", True)},
        devices=("/dev/null",),
        groups=(44, 992),
        shm_bytes=128 << 20,
        memory_bytes=256 << 20,
    )
    told = client.inspect_container(made.id)
    limits = told["HostConfig"]
    assert made.state == "created"
    assert made.shm_bytes == 128 << 20
    assert limits["Init"] is True
    assert limits["Privileged"] is False
    assert limits["SecurityOpt"] == ["no-new-privileges"]
    assert limits["GroupAdd"] == ["44", "992"]
    assert limits["Devices"] == [
        {"PathOnHost": "/dev/null", "PathInContainer": "/dev/null", "CgroupPermissions": "rwm"}
    ]
    assert limits["RestartPolicy"]["Name"] in {"", "no"}
    assert limits["Memory"] == 256 << 20
    assert [(mount["Destination"], mount["RW"]) for mount in told["Mounts"]] == [("/in", False)]
    assert "A=b" in told["Config"]["Env"]


def test_the_restart_policy_is_set_only_when_asked_and_taken_back(engine, container, client):
    made = container("sleep", "600")
    engine.start(made.id)
    for always, name in ((True, "unless-stopped"), (False, "no")):
        engine.keep_running(made.id, always=always)
        assert client.inspect_container(made.id)["HostConfig"]["RestartPolicy"]["Name"] == name


def test_output_is_followed_to_the_end_and_its_last_lines_can_be_asked_for(engine, container):
    made = container("sh", "-c", "echo one; echo zwei-\N{LATIN SMALL LETTER U WITH DIAERESIS}; printf end")
    engine.start(made.id)
    assert list(engine.follow(made.id)) == ["one", "zwei-\N{LATIN SMALL LETTER U WITH DIAERESIS}", "end"]
    assert engine.logs(made.id, tail=1) == "end"


def test_following_can_stop_while_the_container_runs_on(engine, container):
    made = container("sh", "-c", "echo one; exec sleep 600")
    engine.start(made.id)
    lines = engine.follow(made.id)
    assert next(lines) == "one"
    lines.close()
    assert engine.container(made.id).state == "running"


def test_a_stopped_container_says_how_it_ended(engine, container):
    made = container("sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done")
    engine.start(made.id)
    assert next(engine.follow(made.id)) == "ready"
    engine.stop(made.id, timeout=30)
    found = engine.container(made.id)
    assert (found.state, found.exit_code, found.out_of_memory) == ("exited", 7, False)
    assert found.started_at


def test_a_container_killed_for_memory_says_so(engine, container):
    made = container("sh", "-c", "head -c 200m /dev/zero | tail", memory_bytes=32 << 20)
    engine.start(made.id)
    list(engine.follow(made.id))
    assert engine.container(made.id).state == "exited"
    assert engine.container(made.id).out_of_memory


def test_files_that_a_container_added_or_changed_are_seen(engine, container):
    made = container("sh", "-c", "echo x >/etc/motd; echo y >/new; rm /etc/issue")
    engine.start(made.id)
    list(engine.follow(made.id))
    changed = engine.changes(made.id)
    assert {"/etc/motd", "/new"} <= set(changed)
    assert "/etc/issue" not in changed


def test_containers_are_found_by_label_and_by_their_exact_name_alone(engine, container):
    made = container("sleep", "600")
    assert [one.id for one in engine.containers(f"{LABEL}=1")] == [made.id]
    assert engine.containers(f"{LABEL}=2") == []
    assert engine.container("gfx1100-test-0").id == made.id
    assert engine.container(made.id[:5]) is None
    engine.rename(made.id, "gfx1100-test-renamed")
    assert engine.container("gfx1100-test-0") is None
    assert engine.container("gfx1100-test-renamed").id == made.id


def test_a_name_that_is_taken_and_a_device_that_is_missing_are_told_in_the_engines_words(engine, container):
    made = container("sleep", "600")
    with pytest.raises(DeployError, match=r"already in use"):
        engine.create(ContainerSpec(image=made.image_id, name=made.name, command=("true",)))
    lacking = container("true", devices=("/dev/no-such-kfd",))
    with pytest.raises(DeployError, match="/dev/no-such-kfd"):
        engine.start(lacking.id)


# images and the registry


def test_what_was_pushed_is_pulled_by_its_digest_and_is_the_same_image(engine, base, registry):
    repository = f"{registry}/gfx1100-test/push"
    engine.tag(base.id, repository, "one")
    told = []
    digest = engine.push(repository, "one", on_progress=told.append)
    asked = urllib.request.Request(f"http://{registry}/v2/gfx1100-test/push/manifests/{digest}", headers=ANY_MANIFEST)
    with urllib.request.urlopen(asked) as answer:
        assert answer.headers["Docker-Content-Digest"] == digest
    # another test may have brought the layer to this registry
    assert re.search("pushed|mounted from|already exists", "\n".join(told))
    assert engine.remote_digest(f"{repository}@{digest}") == digest
    engine.untag(f"{repository}:one")
    pulled = engine.pull(repository, digest, on_progress=told.append)
    assert pulled.id == base.id
    assert f"{repository}@{digest}" in pulled.repo_digests
    engine.untag(f"{repository}@{digest}")
    assert engine.image(f"{repository}@{digest}") is None


def test_a_digest_that_the_registry_does_not_have_is_an_error_of_its_own(engine, registry):
    with pytest.raises(RegistryError, match=r"not found|unknown") as caught:
        engine.pull(f"{registry}/gfx1100-test/none", NOWHERE, on_progress=print)
    assert "never pushed" in caught.value.hint
    with pytest.raises(RegistryError):
        engine.remote_digest(f"{registry}/gfx1100-test/none@{NOWHERE}")


def test_a_registry_that_does_not_answer_fails_push_and_pull(engine, base):
    engine.tag(base.id, "127.0.0.1:1/x", "y")
    try:
        with pytest.raises(RegistryError, match="connection refused") as caught:
            engine.push("127.0.0.1:1/x", "y", on_progress=print)
        assert "cannot be reached" in caught.value.hint
        with pytest.raises(RegistryError, match="connection refused"):
            engine.pull("127.0.0.1:1/x", NOWHERE, on_progress=print)
    finally:
        engine.untag("127.0.0.1:1/x:y")


def test_a_push_of_an_image_that_is_not_there_fails(engine, registry):
    with pytest.raises(RegistryError, match="does not exist"):
        engine.push(f"{registry}/gfx1100-test/absent", "one", on_progress=print)


def test_an_import_keeps_labels_with_any_character(engine, names, tmp_path):
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("hello"), io.BytesIO())
    labels = {"plain": "x", "odd": "a \"b\" $HOME \\n 'c' = d", "empty": ""}
    made = engine.import_image(tmp_path / "root.tar", f"{names[0]}:test", labels=labels)
    assert made.labels == labels
    assert made.tags == (f"{names[0]}:test",)


def test_taking_a_name_that_is_not_there_is_fine_and_the_last_name_takes_the_image(engine, names, tmp_path):
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("other"), io.BytesIO())
    made = engine.import_image(tmp_path / "root.tar", f"{names[0]}:test", labels={})
    engine.untag(f"{names[0]}:test")
    engine.untag(f"{names[0]}:test")
    assert engine.image(made.id) is None


# the base image


def test_the_base_comes_back_from_the_cache_without_another_bootstrap(engine, base, settings, monkeypatch):
    monkeypatch.setattr(bases, "_make", lambda *_, **__: pytest.fail("it lies in the cache"))
    before = time.monotonic()
    same = bootstrap_base(engine, "trixie", cache=settings.cache, mirror=None, console=Console())
    assert same.id == base.id
    assert time.monotonic() - before < 1
    assert same.labels == {bases.RECIPE_LABEL: bases.recipe_sha256("trixie")}


def test_the_base_holds_nothing_of_the_host_that_made_it(engine, base):
    look = "ls /var/lib/apt/lists /var/cache/apt /var/log; cat /etc/apt/sources.list; ls /etc/machine-id /dev"
    got = engine.run_once(base.id, ["sh", "-c", look], files={}, timeout=60)
    assert f"deb {bases.own_mirror()} trixie main" in got.stdout
    assert "Packages" not in got.stdout
    assert "cannot access '/etc/machine-id'" in got.stderr


# the host


def test_a_real_host_is_measured_and_an_impossible_need_refused(engine, base, settings):
    ready = preflight(engine, find_builder(), Needs(free_bytes=1, free_inodes=1, suites=("trixie",)), settings)
    assert ready.jobs >= 1
    assert f"base: {base_reference('trixie')} is here" in ready.lines
    with pytest.raises(HostError, match=r"space: .* make room"):
        preflight(engine, find_builder(), Needs(free_bytes=1 << 60, free_inodes=1), settings)


def test_a_remote_engine_is_measured_inside_a_container(engine, base, settings, monkeypatch):
    monkeypatch.setattr(engine, "environment", {"DOCKER_HOST": "ssh://elsewhere"})
    ready = preflight(engine, find_builder(), Needs(free_bytes=GIB, free_inodes=1, suites=("trixie",)), settings)
    assert any(re.match(r"space: \d+ GiB free at .* of docker", line) for line in ready.lines)


def test_the_engine_says_its_name_version_and_address(engine):
    assert re.fullmatch(r"(docker|podman) \d+\.\S+ at \S+", connect().name)
    assert connect().name == engine.name


def test_an_engine_that_does_not_answer_is_a_matter_of_the_host():
    with pytest.raises(HostError, match=r"the container engine at tcp://127\.0\.0\.1:1 \(DOCKER_HOST\) was lost"):
        connect({"DOCKER_HOST": "tcp://127.0.0.1:1"})
