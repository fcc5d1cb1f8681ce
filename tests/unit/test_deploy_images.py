"""Which images of ours are on a host, what each is for, and which may go."""

import pytest
from fake_engine import FakeEngine

from builder.deploy.history import Entry, append
from builder.deploy.images import held_images, images_text, prune_images
from builder.engine.port import Container, Image
from builder.errors import HostError
from builder.models.record import Published, write_record

DEPLOYMENT = "io.gfx1100.deployment"


def image_id(number):
    return f"sha256:{number:03d}{'0' * 61}"


class Engine(FakeEngine):
    """An engine that lists its images and notes the names that are taken away."""

    def __init__(self, images):
        super().__init__()
        self.images = lambda label: images
        self.untagged = []
        self.busy = set()

    def untag(self, reference):
        if reference in self.busy:
            raise HostError(f"{reference} is in use")
        self.untagged.append(reference)


@pytest.fixture
def host(tmp_path, record):
    """Four images of a stack with records, one a day, and one without a record."""
    images = [
        Image(
            id=image_id(number),
            tags=(f"gfx1100/smoke:{number}",),
            repo_digests=(f"127.0.0.1:5000/smoke@{image_id(100 + number)}",),
            labels={"io.gfx1100.stack": "smoke", "org.opencontainers.image.version": f"v{number}"},
            size=number * 10**9,
        )
        for number in range(1, 6)
    ]
    for number in range(1, 5):
        place = Published(repository="127.0.0.1:5000/smoke", tag=f"t{number}", digest=image_id(100 + number))
        made = record.model_copy(
            update={
                "image_id": image_id(number),
                "created": f"2026-01-0{number}T00:00:00+00:00",
                "published": place,
            }
        )
        write_record(tmp_path / "records", made)
    engine = Engine(images)
    engine.tmp = tmp_path
    return engine


def held(host):
    return held_images(host, records=host.tmp / "records", state=host.tmp)


def run(host, number, name, state="running"):
    host.boxes[name] = Container(
        id=name, name=name, image_id=image_id(number), state=state, labels={DEPLOYMENT: "smoke-profile"}
    )


def roles(host):
    return {one.version: one.role for one in held(host)}


def test_they_stand_by_stack_the_newest_first_and_those_without_a_record_last(host):
    assert [one.version for one in held(host)] == ["v4", "v3", "v2", "v1", "v5"]
    assert [one.has_record for one in held(host)] == [True, True, True, True, False]


def test_what_runs_and_the_way_back_are_said(host):
    run(host, 4, "gfx1100-smoke-profile")
    run(host, 3, "gfx1100-smoke-profile-previous", "exited")
    assert roles(host) == {
        "v4": "running smoke-profile",
        "v3": "way back of smoke-profile",
        "v2": "",
        "v1": "",
        "v5": "",
    }


def test_the_way_back_is_known_from_the_history_too(host):
    run(host, 4, "gfx1100-smoke-profile")
    for number in (1, 2, 4):
        append(
            host.tmp,
            "smoke-profile",
            Entry(at="2026-01-01T00:00:00+00:00", event="ready", image="x", image_id=image_id(number)),
        )
    assert roles(host)["v2"] == "way back of smoke-profile"


def test_an_image_is_known_by_its_digest_where_the_engine_gave_it_another_id(host, record):
    found = {one.version: one for one in held(host)}
    assert found["v2"].digest == image_id(102)


def test_prune_keeps_the_newest_the_running_and_the_way_back(host):
    run(host, 1, "gfx1100-smoke-profile")
    run(host, 2, "gfx1100-smoke-profile-previous", "exited")

    gone, busy = prune_images(host, held(host), keep=1)

    assert [one.version for one in gone] == ["v3"]
    assert busy == []
    assert set(host.untagged) == {"gfx1100/smoke:3", f"127.0.0.1:5000/smoke@{image_id(103)}"}


def test_prune_never_takes_what_has_no_record(host):
    gone, _ = prune_images(host, held(host), keep=0)
    assert [one.version for one in gone] == ["v4", "v3", "v2", "v1"]


def test_an_image_that_somebody_elses_container_holds_is_told(host):
    host.busy = {"gfx1100/smoke:1"}
    gone, busy = prune_images(host, held(host), keep=2)
    assert ([one.version for one in gone], [one.version for one in busy]) == (["v2"], ["v1"])


def test_a_stopped_deployment_keeps_its_image(host):
    run(host, 1, "gfx1100-smoke-profile", "exited")
    gone, _ = prune_images(host, held(host), keep=0)
    assert "v1" not in [one.version for one in gone]
    assert roles(host)["v1"] == "stopped smoke-profile"


def test_people_get_a_table_and_a_sentence_for_nothing(host):
    run(host, 4, "gfx1100-smoke-profile")
    text = images_text(held(host))
    assert text.splitlines()[1].endswith("running smoke-profile")
    assert "no record" in text.splitlines()[-1]
    assert images_text([]) == "no image of this program is on this engine"
