"""Builds on a real engine: cache, local settings that leave no trace, failures in words."""

import hashlib
import re
import time
from pathlib import Path

import pytest

from builder.build import image as station
from builder.build.image import build_image
from builder.console import Console
from builder.engine.base import base_reference
from builder.errors import BuildError

pytestmark = pytest.mark.engine

NOWHERE = "sha256:" + "0" * 64


@pytest.fixture
def build(engine, base, settings, names, tmp_path):
    """Build a Dockerfile of some instructions on the base image."""
    (tmp_path / "context").mkdir()

    def run(*instructions, base_image=None, **more):
        (tmp_path / "context" / "Dockerfile").write_text(
            "\n".join([f"FROM {base_image or base_reference('trixie')}", *instructions, ""])
        )
        plain = {"settings": settings, "jobs": 2, "log": tmp_path / "logs" / "build.log", "console": Console()}
        return build_image(engine, tmp_path / "context", tags=[f"{names[0]}:test"], **{**plain, **more})

    return run


def unique(text="x"):
    """Return an instruction that no earlier build can have cached."""
    return f"RUN echo {time.time_ns()} {text}"


def test_an_image_is_built_named_labelled_and_counted(engine, build, names):
    built = build(unique(), "RUN true", "COPY Dockerfile /", labels={"odd": 'a "b" $c'})
    image = engine.image(f"{names[0]}:test")
    assert image.id == built.image_id
    assert image.labels["odd"] == 'a "b" $c'
    assert built.steps == 3
    assert build(labels={"odd": "other"}).steps == 0


def test_the_second_build_takes_every_step_from_the_cache_unless_told_not_to(build):
    steps = (unique(), "RUN true")
    assert build(*steps).cached_steps == 0
    assert build(*steps).cached_steps == 2
    assert build(*steps, no_cache=True).cached_steps == 0


SECRETS = (
    "RUN --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt "
    "--mount=type=secret,id=pip,target=/etc/pip.conf "
    "--mount=type=secret,id=apt,target=/etc/apt/apt.conf.d/90gfx1100 --mount=type=secret,id=jobs "
    "cat /etc/ssl/certs/ca-certificates.crt /etc/pip.conf /etc/apt/apt.conf.d/90gfx1100 /run/secrets/jobs "
    "| sha256sum > /seen"
)


@pytest.fixture
def secret_settings(settings, tmp_path):
    """Settings with a bundle, a pip.conf and an apt.conf of one marked word each."""
    paths = {key: tmp_path / key for key in ("ca_bundle", "pip_config", "apt_config")}
    for path in paths.values():
        path.write_text("# made-up-secret\n")
    return settings.model_copy(update={key: str(path) for key, path in paths.items()})


def layers(client, image_id):
    """Return all bytes of an image as the engine saves it: its layers, its configuration, its history."""
    return b"".join(client.get_image(image_id))


def test_local_settings_reach_a_step_and_leave_no_trace(engine, build, client, secret_settings):
    built = build(unique(), SECRETS, settings=secret_settings, jobs=7)
    seen = engine.read_files(built.image_id, ["/seen"], limit=100)["/seen"]
    assert seen.split()[0].decode() == hashlib.sha256(b"# made-up-secret\n" * 3 + b"7\n").hexdigest()
    everything = layers(client, built.image_id)
    assert b"made-up-secret" not in everything
    mounted = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pip.conf",
        "/etc/apt/apt.conf.d/90gfx1100",
        "/run/secrets/jobs",
    ]
    assert engine.read_files(built.image_id, mounted, limit=100) == {}


def test_other_jobs_and_other_certificates_hit_the_cache(build, secret_settings):
    steps = (unique(), SECRETS)
    build(*steps, settings=secret_settings, jobs=7)
    Path(secret_settings.ca_bundle).write_text("# another\n")
    assert build(*steps, settings=secret_settings, jobs=2).cached_steps == 2
    assert build(*steps, settings=secret_settings.model_copy(update={"pip_config": None})).cached_steps == 2


def test_proxies_reach_a_step_in_both_cases_and_leave_no_trace(build, engine, client, monkeypatch, tmp_path):
    monkeypatch.setenv("http_proxy", "http://user:made-up-secret@127.0.0.1:9")
    steps = (unique(), 'RUN test "$http_proxy" = "$HTTP_PROXY" && echo "$http_proxy" | sha256sum > /seen')
    built = build(*steps)
    assert b"made-up-secret" not in layers(client, built.image_id)
    assert "made-up-secret" not in (tmp_path / "logs" / "build.log").read_text()
    assert not [line for line in engine.image(built.image_id).environment if "proxy" in line.lower()]
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:10")
    assert build(*steps).cached_steps == 2


FAILURES = {
    "memory": "RUN sh -c 'kill -9 $$'; for i in 1 2 3; do echo after $i; done; exit 1",
    "space": "RUN dd if=/dev/zero of=/dev/full count=1",
    "network": "RUN --network=none true && apt-get -o Acquire::Retries=0 -o APT::Update::Error-Mode=any "
    "-o Acquire::http::Proxy=http://127.0.0.1:9 update",
    "compile": "RUN echo '/s/a.hip:3:5: error: use of undeclared identifier'; exit 1",
    "guard": "RUN echo 'gfx1100-guard: torch is 2.13.0, not 2.13.0+rocm7.2' >&2; exit 1",
    "patch": "RUN echo 'error: patch failed: a.py:3' >&2; exit 1",
    "unknown": "RUN echo nothing known; exit 4",
}


@pytest.mark.parametrize("kind", [kind for kind in FAILURES if kind != "network"])
def test_a_failed_build_names_step_class_lines_next_step_and_log(build, tmp_path, kind):
    with pytest.raises(BuildError, match=rf"\[2/2\] RUN .* failed \({kind}\): exit code: \d") as caught:
        build(FAILURES[kind])
    assert caught.value.hint
    log = tmp_path / "logs" / "build.log"
    assert caught.value.message.splitlines()[-1] == f"log: {log}"
    printed = [line.strip() for line in caught.value.message.splitlines()[1:-1]]
    assert printed
    assert all(line in log.read_text() for line in printed)


def test_a_step_that_ends_with_137_is_out_of_memory_without_any_word_about_it(build):
    with pytest.raises(BuildError, match=r"failed \(memory\): exit code: 137") as caught:
        build("RUN exit 137")
    assert "--jobs" in caught.value.hint


def test_a_network_fault_is_tried_again_with_the_finished_layers_kept(build, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(station, "RETRY_SECONDS", (0.0, 0.0))
    step = FAILURES["network"].replace("--network=none true && ", "")
    with pytest.raises(BuildError, match=r"failed \(network\)"):
        build(unique("finished"), step)
    assert capsys.readouterr().err.count("finished layers are kept") == 2
    log = (tmp_path / "logs" / "build.log").read_text()
    assert log.count("# ended with status 1") == 3
    assert log.count(" CACHED") >= 2


def test_a_base_image_that_is_gone_has_a_message_of_its_own(build, registry):
    with pytest.raises(BuildError, match=r"load metadata for .* failed \(base\)") as caught:
        build("RUN true", base_image=f"{registry}/gfx1100-test/gone@{NOWHERE}")
    assert "lock STACK --update" in caught.value.hint


def test_a_dockerfile_that_does_not_parse_shows_the_parsers_words(build):
    with pytest.raises(BuildError, match="unknown instruction"):
        build("RUNN true")


def test_a_long_silent_step_says_what_it_waits_for(build, monkeypatch, capsys):
    monkeypatch.setattr(station, "HEARTBEAT_SECONDS", 0.2)
    build("RUN --mount=type=tmpfs,target=/x " + unique("; sleep 1").removeprefix("RUN "))
    assert re.search(r"waiting for \[(?:stage-0 )?2/2\] RUN echo \d+", capsys.readouterr().err)
