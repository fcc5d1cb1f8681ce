"""The smoke image, built and published once for all tests, and how it is served in a mood."""

import socket
from pathlib import Path

import pytest

from builder.build.image import build_image
from builder.build.run import Job, build
from builder.console import Console
from builder.deploy.serve import serve, stop
from builder.models.lock import load_lock
from builder.models.profile import Ready, load_profile
from builder.models.record import image_reference, write_record
from builder.models.stack import load_stack
from builder.registry.publish import publish
from builder.settings import load_settings
from builder.stage.context import Origin

ROOT = Path(__file__).parents[2]


def build_smoke(engine, settings, records, origin=None, **options):
    job = Job(
        root=ROOT,
        stack=load_stack(ROOT, "smoke"),
        lock=load_lock(ROOT, "smoke"),
        engine=engine,
        origin=origin or Origin(),
        settings=settings,
        console=Console(),
        install=True,
        **options,
    )
    return build(job, records)


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="session")
def built(engine, settings, records):
    """Return the record of a smoke image."""
    record, _ = build_smoke(engine, settings, records)
    return record


@pytest.fixture(scope="session")
def published(engine, registry, settings, records, built):
    """Return the record of the published smoke image."""
    done = publish(engine, built, to=f"{registry}/test/smoke", settings=settings, on_progress=print)
    write_record(records, done.record)
    return done.record


@pytest.fixture
def profile():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free_port = taken.getsockname()[1]
    smoke = load_profile(ROOT, "smoke")
    command = tuple(str(free_port) if word == str(smoke.port) else word for word in smoke.command)
    return smoke.model_copy(update={"port": free_port, "command": command, "name": f"test{free_port}"})


@pytest.fixture
def start(engine, published, profile, tmp_path):
    """Return a function that serves the smoke image in a mood; what runs is stopped at the end."""

    def call(within=30, **mood):
        environment = {**profile.environment, **mood}
        wanted = profile.model_copy(update={"ready": Ready(timeout=within, prompt="hi"), "environment": environment})
        reference = image_reference(published)
        return serve(
            engine,
            wanted,
            engine.image(reference),
            reference=reference,
            state=tmp_path,
            console=Console(),
        )

    yield call
    stop(engine, profile.name, state=tmp_path)


def twin(engine, image, dockerfile, folder):
    """Build an image on top of another one and return it."""
    (folder / "Dockerfile").write_text(f"FROM {image}\nUSER root\n{dockerfile}\n")
    done = engine_build(engine, folder)
    return engine.image(done)


def engine_build(engine, folder):
    return build_image(
        engine,
        folder,
        tags=(),
        settings=load_settings(ROOT, {"HOME": str(folder)}),
        jobs=1,
        log=folder / "log",
        console=Console(),
    ).image_id
