"""What docker-py's client is asked, over engines that answer as they like."""

import time
from datetime import UTC, datetime
from types import SimpleNamespace

import docker.errors
import pytest
import requests

from builder.engine import sandbox
from builder.engine.docker import DockerEngine
from builder.errors import HostError


class Stream(list):
    """What docker-py gives for a log that is followed."""

    def __init__(self, chunks):
        super().__init__(chunks)
        self._response = self

    def close(self):
        """Stay: nothing is open."""


def following(chunks, last):
    """Return the lines of an engine that streams chunks, and then says ``last`` or raises it when asked for the end."""

    def logs(_, **__):
        if isinstance(last, Exception):
            raise last
        return last

    engine = object.__new__(DockerEngine)
    engine.name = "docker"
    engine._work = SimpleNamespace(logs=lambda *_, **__: Stream(chunks))
    engine._ask = SimpleNamespace(logs=logs)
    return list(engine.follow("x"))


def refusal(status):
    answer = requests.Response()
    answer.status_code = status
    return docker.errors.APIError("no", response=answer)


def test_a_last_line_that_the_stream_left_out_is_asked_for():
    assert following([b"one\n"], b"end") == ["one", "end"]
    assert following([b"one\nen", b"d"], b"end") == ["one", "end"]
    assert following([b"one\n"], b"one\n") == ["one"]


@pytest.mark.parametrize("status", [404, 409])
def test_a_container_that_is_being_removed_has_no_more_to_say(status):
    assert following([b"one\n"], refusal(status)) == ["one"]


def test_an_engine_that_fails_at_the_end_of_a_log_is_told():
    with pytest.raises(HostError, match="read the log of x"):
        following([b"one\n"], refusal(500))


@pytest.mark.parametrize(
    ("store", "containerd", "root"),
    [
        ("overlay2", "/run/containerd/containerd.sock", "/data"),
        ("io.containerd.snapshotter.v1", "/run/containerd/containerd.sock", "/var/lib/containerd"),
        ("io.containerd.snapshotter.v1", "/var/run/docker/containerd/containerd.sock", "/data"),
    ],
)
def test_images_lie_with_the_systems_containerd_when_its_store_keeps_them(store, containerd, root):
    told = {"DockerRootDir": "/data", "DriverStatus": [["driver-type", store]], "Containerd": {"Address": containerd}}
    engine = object.__new__(DockerEngine)
    engine.name = "docker"
    engine._ask = SimpleNamespace(info=lambda: told)
    assert str(engine.data_root()) == root


class Crowd:
    """A client with one-shot containers: (seconds since they were made, seconds since their end or None)."""

    def __init__(self, refused=None, **boxes):
        self.boxes, self.refused, self.removed = boxes, refused, []

    def containers(self, *, all, filters):  # noqa: A002 - docker-py's own word
        assert (all, filters["label"]) == (True, ["org.gfx1100.purpose=one-shot"])
        assert "running" not in filters["status"]
        return [{"Id": name, "Created": int(time.time() - made)} for name, (made, _) in self.boxes.items()]

    def inspect_container(self, name):
        ended = self.boxes[name][1]
        at = "0001-01-01T00:00:00Z" if ended is None else f"{datetime.fromtimestamp(time.time() - ended, UTC):%FT%T}Z"
        return {"State": {"FinishedAt": at.replace("Z", ".123456789Z") if ended else at}}

    def create_container(self, *_, **__):
        return {"Id": "new"}

    def remove_container(self, name, **_):
        if self.refused and name != "new":
            raise refusal(self.refused)
        self.removed.append(name)


def test_one_shot_containers_of_killed_programs_go_and_fresh_ones_stay():
    client = Crowd(killed=(9000, 8000), never_ran=(9000, None), just_made=(60, None), just_ended=(9000, 60))
    assert sandbox.read_files(client, "image", [], limit=1) == {}
    assert client.removed == ["killed", "never_ran", "new"]


def test_a_leftover_that_another_program_removes_disturbs_nobody_and_a_fault_is_told():
    assert sandbox.read_files(Crowd(refused=409, killed=(9000, 8000)), "image", [], limit=1) == {}
    with pytest.raises(docker.errors.APIError):
        sandbox.read_files(Crowd(refused=500, killed=(9000, 8000)), "image", [], limit=1)
