"""Exported files before the judges of their own worlds: Compose and systemd in a container, Kubernetes' schemas."""

import kubernetes_validate
import pytest
import yaml
from smoke_image import engine_build

from builder.cli.state import find_root
from builder.deploy.export import export
from builder.models.profile import load_profile, profile_names
from builder.watch.timers import render_timers

pytestmark = pytest.mark.engine
ROOT = find_root(None)
PROFILES = profile_names(ROOT)
REFERENCE = "registry.example/gfx1100/engine@sha256:" + "ab" * 32
DOCKERFILE = """\
FROM {base}
RUN --mount=type=secret,id=apt,target=/etc/apt/apt.conf.d/90gfx1100 apt-get update \\
    && apt-get install -y --no-install-recommends docker-cli docker-compose python3 systemd \\
    && rm -rf /var/lib/apt/lists/*
"""


@pytest.fixture(scope="module")
def judge(engine, base, tmp_path_factory):
    """Return a function that runs a checker over files in a container without network."""
    folder = tmp_path_factory.mktemp("judge")
    (folder / "Dockerfile").write_text(DOCKERFILE.format(base=base.tags[0]))
    image = engine_build(engine, folder)

    def call(argv, files):
        return engine.run_once(image, argv, files={k: v.encode() for k, v in files.items()}, timeout=60)

    return call


def exported(name, form, model=None):
    timers = lambda: render_timers(ROOT, program=["/usr/bin/python3"], environ={})  # noqa: E731
    return export(ROOT, load_profile(ROOT, name), form, reference=REFERENCE, model=model, timers=timers)


def filled(env):
    """Return an env file as the owner of a host fills it in."""
    given = {"MODEL_DIR": "/srv/m", "DRAFTER_DIR": "/srv/d", "RENDER_GID_1": "993"}
    lines = [line + given.get(line[:-1], "") if line.endswith("=") else line for line in env.splitlines()]
    return "\n".join(lines) + "\n"


def at(folder, files):
    return {f"{folder}/{name}": filled(text) if name.endswith(".env") else text for name, text in files.items()}


@pytest.mark.parametrize("name", PROFILES)
def test_docker_compose_takes_every_profile(judge, name):
    done = judge(
        ["docker-compose", "-f", "/x/compose.yaml", "config", "--format", "json"],
        at("/x", exported(name, "compose").files),
    )
    assert done.returncode == 0, done.stderr
    service = yaml.safe_load(done.stdout)["services"]["engine"]
    assert [word.replace("$$", "$") for word in service["command"]] == list(load_profile(ROOT, name).command)


def test_docker_compose_asks_for_what_its_owner_did_not_fill_in(judge):
    files = {f"/x/{name}": text for name, text in exported("vllm-octave-256k", "compose").files.items()}
    done = judge(["docker-compose", "-f", "/x/compose.yaml", "config", "--quiet"], files)
    assert done.returncode != 0
    assert "in .env" in done.stderr


def test_systemd_takes_every_profile_and_the_watchdogs_timer(judge):
    files = {}
    for name in PROFILES:
        files |= at("/etc/systemd/system", exported(name, "systemd").files)
    units = [path for path in files if path.endswith((".service", ".timer"))]
    assert any(path.endswith("watchdog.timer") for path in units)
    done = judge(["systemd-analyze", "verify", "--man=no", *units], files)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_finds_fault_with_a_broken_unit(judge):
    done = exported("smoke", "systemd")
    text = done.files[done.main].replace("Restart=on-failure", "Restart=perhaps")
    found = judge(["systemd-analyze", "verify", "--man=no", "/x/broken.service"], {"/x/broken.service": text})
    assert "perhaps" in found.stderr


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("folder", [None, "/srv/models/m"])
def test_kubernetes_takes_every_profile(name, folder, tmp_path):
    model = None if folder is None else tmp_path
    documents = list(yaml.safe_load_all(exported(name, "kubernetes", model).files["kubernetes.yaml"]))
    assert "Deployment" in [document["kind"] for document in documents]
    for document in documents:
        kubernetes_validate.validate(document, "1.32", strict=True)


def test_kubernetes_finds_fault_with_a_word_that_it_does_not_know():
    document = list(yaml.safe_load_all(exported("smoke", "kubernetes").files["kubernetes.yaml"]))[-1]
    document["spec"]["sessionaffinity"] = "None"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, "1.32", strict=True)
