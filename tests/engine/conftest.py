"""A real container engine and a real registry on loopback, installed and started when they are not there."""

from pathlib import Path

import docker
import pytest
from smoke_image import built, profile, published, records, start  # noqa: F401 - fixtures

from builder.console import Console
from builder.engine.base import bootstrap_base
from builder.engine.local import ensure_engine, ensure_registry
from builder.settings import load_settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def settings():
    """The settings of this machine; its caches and its engine's data serve every run of the tests."""
    return load_settings(ROOT)


@pytest.fixture(scope="session")
def engine(settings):
    """A real engine; the command line and :func:`connect` of the tests talk to it too."""
    with (
        ensure_engine(install=True, console=Console(), state=settings.state) as found,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in found.environment.items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    """The address of an empty registry, ``127.0.0.1:<port>``."""
    with ensure_registry(install=True, console=Console(), state=tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture(scope="session")
def base(engine, settings):
    """A small Debian image made from packages."""
    return bootstrap_base(
        engine, "trixie", cache=settings.cache, mirror=settings.apt_mirror, console=Console(), install=True
    )


@pytest.fixture
def names(engine):
    """Image names that a test may give; they are taken away at its end."""
    given = [f"gfx1100-test/{number}" for number in range(3)]
    yield given
    for name in given:
        engine.untag(f"{name}:test")


@pytest.fixture(scope="session")
def client(engine):
    """docker-py itself, to look behind the port."""
    with docker.APIClient(engine.environment["DOCKER_HOST"], version="auto") as found:
        yield found
