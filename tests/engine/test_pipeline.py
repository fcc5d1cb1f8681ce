"""The walk on a real engine and a real registry: from the source to a served image, and every way it can break."""

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import requests

from builder.build.run import build
from builder.console import Console
from builder.deploy.history import read_history
from builder.deploy.serve import rollback_image, serve, status, stop
from builder.errors import BuildError, DeployError, VerifyError
from builder.models.lock import load_lock
from builder.models.profile import Ready, load_profile
from builder.models.record import image_reference, write_record
from builder.models.stack import load_stack
from builder.registry.publish import publish
from builder.registry.pull import pull
from builder.settings import load_settings
from builder.stage.context import Origin
from builder.verify.run import verify_image
from builder.verify.trace import trace

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.engine


def changed_engine(folder, file, added):
    """Return a work tree of the example engine with a line added to a file."""
    shutil.copytree(ROOT / "examples" / "smoke-engine", folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / file).open("a") as text:
        text.write(added)
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    return Origin(location=str(folder), ref="refs/heads/main")


def build_smoke(engine, settings, records, origin=None, **options):
    return build(
        ROOT,
        load_stack(ROOT, "smoke"),
        load_lock(ROOT, "smoke"),
        engine=engine,
        origin=origin or Origin(),
        settings=settings,
        console=Console(),
        records=records,
        install=True,
        **options,
    )


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
        wanted = profile.model_copy(update={"ready": Ready(timeout=within, prompt="hi")})
        reference = image_reference(published)
        return serve(
            engine,
            wanted,
            engine.image(reference),
            reference=reference,
            state=tmp_path,
            console=Console(),
            environment=mood,
        )

    yield call
    stop(engine, profile.name, state=tmp_path)


def twin(engine, image, dockerfile, folder):
    """Build an image on top of another one and return it."""
    (folder / "Dockerfile").write_text(f"FROM {image}\nUSER root\n{dockerfile}\n")
    done = engine_build(engine, folder)
    return engine.image(done)


def engine_build(engine, folder):
    from builder.build.image import build_image

    return build_image(
        engine,
        folder,
        tags=(),
        settings=load_settings(ROOT, {"HOME": str(folder)}),
        jobs=1,
        log=folder / "log",
        console=Console(),
    ).image_id


def statuses(verification):
    return {check.id: check.status for check in verification.checks}


def test_the_smoke_image_passes_every_check(built):
    assert set(statuses(built.verification).values()) == {"ok"}
    assert built.verification.verdict == "ok"


def test_the_wheel_carries_the_pin(engine, built):
    asked = ["python3", "-c", "import importlib.metadata as m; print(m.version('smoke-engine'))"]
    assert engine.run_once(built.image_id, asked, files={}, timeout=60).stdout.strip() == built.version


def test_the_image_and_its_history_hold_no_build_setting(engine, built):
    image = engine.image(built.image_id)
    text = " ".join((*image.history, *image.environment))
    for word in ("SETUPTOOLS_SCM", "MAX_JOBS=2", "proxy", "PIP_", "ca-certificates.crt"):
        assert word not in text


def test_the_image_carries_the_checkpoint_fixer(engine, built):
    asked = ["gfx1100-checkpoint", "inspect", "/nowhere"]
    done = engine.run_once(built.image_id, asked, files={}, timeout=60)
    assert (done.returncode, "/nowhere" in done.stderr) == (2, True)


def test_building_again_runs_no_step_and_gives_the_same_image(engine, settings, built, tmp_path):
    again, _ = build_smoke(engine, settings, tmp_path)
    assert again.image_id == built.image_id
    assert again.context_sha256 == built.context_sha256


def test_a_change_of_a_python_file_compiles_nothing(engine, settings, built, tmp_path):
    before = set((ROOT / "logs").glob("smoke-*.log"))
    origin = changed_engine(tmp_path / "tree", "smoke_engine/text.py", "# changed\n")
    changed, _ = build_smoke(engine, settings, tmp_path / "records", origin=origin)
    log = max(set((ROOT / "logs").glob("smoke-*.log")) - before).read_text()
    assert changed.image_id != built.image_id
    assert "hipcc --offload-arch" not in log


def test_a_compile_error_is_told_with_its_step_and_its_last_lines(engine, settings, tmp_path):
    origin = changed_engine(tmp_path / "tree", "csrc/kv_int4.hip", "this is no C++;\n")
    with pytest.raises(BuildError, match=r"kv_int4\.hip:\d+:1: error: expected") as caught:
        build_smoke(engine, settings, tmp_path, origin=origin)
    assert "native-build" in caught.value.message
    assert not list(tmp_path.glob("*.json"))


TWINS = [
    ("environment", "ENV SETUPTOOLS_SCM_PRETEND_VERSION=1\nUSER 10001"),
    ("user", ""),
    ("entrypoint", "ENTRYPOINT []\nCMD []\nUSER 10001"),
    ("labels", "LABEL org.opencontainers.image.revision=x\nUSER 10001"),
    ("chain", "RUN echo '# edited' >> /usr/share/gfx1100/patches/smoke-store.yaml\nUSER 10001"),
    (
        "patches",
        (
            "RUN sed -i 's/DEFAULT_MAX_TOKENS = 32/DEFAULT_MAX_TOKENS = 16/'"
            " /usr/local/lib/python3.13/dist-packages/smoke_engine/defaults.py\nUSER 10001"
        ),
    ),
    ("code-objects", "RUN rm /usr/local/lib/python3.13/dist-packages/smoke_engine/_C.gfx1100.so\nUSER 10001"),
    ("libraries", "RUN rm -f /usr/lib/x86_64-linux-gnu/libamdhip64.so*\nUSER 10001"),
    (
        "version",
        (
            "RUN mv /usr/local/lib/python3.13/dist-packages/smoke_engine-*.dist-info"
            " /usr/local/lib/python3.13/dist-packages/smoke_engine-9.dist-info && sed -i 's/^Version:.*/Version: 9/'"
            " /usr/local/lib/python3.13/dist-packages/smoke_engine-9.dist-info/METADATA\nUSER 10001"
        ),
    ),
    ("imports", "RUN rm /usr/local/lib/python3.13/dist-packages/smoke_engine/server.py\nUSER 10001"),
]


@pytest.mark.parametrize(("identity", "dockerfile"), TWINS, ids=[name for name, _ in TWINS])
def test_a_broken_twin_of_the_image_fails_its_check(engine, built, tmp_path, identity, dockerfile):
    image = twin(engine, f"gfx1100/smoke:{built.commit[:12]}", dockerfile, tmp_path)
    found = verify_image(engine, image.id, root=ROOT)
    assert found.verdict == "failed"
    assert statuses(found)[identity] == "failed"


def test_a_twin_that_is_not_what_was_verified_is_not_published(engine, registry, settings, built, tmp_path):
    image = twin(engine, f"gfx1100/smoke:{built.commit[:12]}", "USER 10001", tmp_path)
    with pytest.raises(VerifyError):
        publish(
            engine,
            built.model_copy(update={"image_id": image.id, "verification": None}),
            to=f"{registry}/test/twin",
            settings=settings,
            on_progress=print,
        )


def test_what_was_published_is_pulled_by_digest_and_its_record_comes_along(engine, settings, published, tmp_path):
    done = pull(engine, image_reference(published), settings=settings, records=tmp_path, on_progress=print)
    assert done.digest == published.published.digest
    assert json.loads(next(tmp_path.glob("*.json")).read_text())["commit"] == published.commit


def test_a_served_image_answers_streams_and_can_be_traced(engine, start, published, profile, records):
    done = start()
    with requests.post(
        f"{done.url}/v1/chat/completions",
        json={"model": "smoke", "messages": [{"role": "user", "content": "hi"}], "stream": True},
        timeout=30,
        stream=True,
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == b"data: [DONE]"
    walked = trace(engine, done.container, records=records)
    assert walked.broken is None
    assert published.commit in walked.text()
    assert status(engine, profile).state == "ready"


def test_a_file_that_is_edited_in_the_running_container_breaks_its_chain(engine, start, records):
    done = start()
    # the container's user may not write there, so the file is put in from outside
    subprocess.run(
        [
            "docker",
            "cp",
            str(ROOT / "CHANGELOG.md"),
            f"{done.container}:/usr/local/lib/python3.13/dist-packages/smoke_engine/api.py",
        ],
        check=True,
        env=dict(engine.environment) or None,
    )
    assert trace(engine, done.container, records=records).broken.name == "files"


def test_a_slow_start_is_waited_for(start):
    assert start(SMOKE_START_SECONDS="3").answer.seconds > 3


@pytest.mark.parametrize(
    ("mood", "words"),
    [
        ({"SMOKE_START_FAILS": "1"}, "Engine core initialization failed"),
        ({"SMOKE_OUT_OF_MEMORY": "1"}, "HIP out of memory"),
        ({"SMOKE_DIES_AT_PROMPT": "1"}, "ended with status 134"),
        ({"SMOKE_NEVER_READY": "1", "within": 4}, "not ready after 4 s"),
    ],
    ids=["fails", "out of memory", "dies at the first prompt", "never ready"],
)
def test_when_the_new_deployment_fails_the_old_one_answers_again(engine, start, profile, tmp_path, mood, words):
    start()
    with pytest.raises(DeployError, match=words) as caught:
        start(**mood)
    assert "the deployment before it runs again" in caught.value.message
    assert status(engine, profile).state == "ready"
    assert [entry.event for entry in read_history(tmp_path, profile.name).entries] == ["ready", "failed"]


def test_a_first_deployment_that_fails_leaves_nothing(engine, start, profile):
    with pytest.raises(DeployError, match="nothing runs"):
        start(SMOKE_START_FAILS="1")
    assert status(engine, profile).state == "none"


def test_a_port_that_is_taken_is_told_and_the_old_one_stays(engine, start, profile, tmp_path):
    with socket.create_server(("127.0.0.1", profile.port)), pytest.raises(DeployError, match="address already in use"):
        start()
    assert status(engine, profile).state == "none"


def test_rollback_goes_back_to_the_image_before(engine, start, profile, published, built, tmp_path):
    start()
    newer = twin(engine, f"gfx1100/smoke:{built.commit[:12]}", "LABEL newer=1\nUSER 10001", tmp_path)
    serve(engine, profile, newer, reference=newer.id, state=tmp_path, console=Console())
    image, reference = rollback_image(engine, profile, state=tmp_path)
    assert (image.id, reference) == (built.image_id, image_reference(published))
