"""The command line that builds: which one of those on PATH, and its words."""

from pathlib import Path

import pytest

from builder.engine.buildkit import Builder, find_builder
from builder.errors import HostError


def program(folder, name, body):
    """Put a program of a few shell lines into a folder."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def docker(folder, version, buildx=None):
    plugin = f'if [ "$1" = buildx ]; then echo "github.com/docker/buildx {buildx} x"; exit 0; fi' if buildx else ""
    return program(
        folder,
        "docker",
        f'{plugin}\nif [ "$1" = --version ]; then echo "Docker version {version}, build x"; exit 0; fi\nexit 1',
    )


def found(*folders):
    return find_builder({"PATH": ":".join(map(str, folders))})


def test_buildx_is_taken_where_it_works(tmp_path):
    at = docker(tmp_path / "a", "28.2.2", buildx="0.13.1+ds1")
    builder = found(tmp_path / "a")
    assert (builder.kind, builder.program, builder.version) == ("buildx", at, "0.13.1+ds1")


def test_an_older_docker_behind_a_newer_one_without_buildx_is_found(tmp_path):
    docker(tmp_path / "a", "28.2.2")
    at = docker(tmp_path / "b", "20.10.24+dfsg1")
    builder = found(tmp_path / "a", tmp_path / "b")
    assert (builder.kind, builder.program, builder.version) == ("docker", at, "20.10.24")
    assert builder.environment == {"DOCKER_BUILDKIT": "1"}


def test_buildx_of_a_later_docker_wins_over_an_old_docker_before_it(tmp_path):
    docker(tmp_path / "a", "20.10.24")
    docker(tmp_path / "b", "27.0.0", buildx="v0.15")
    assert found(tmp_path / "a", tmp_path / "b").kind == "buildx"


def test_podman_is_taken_when_no_docker_can_build(tmp_path):
    docker(tmp_path / "a", "24.0.7")
    program(tmp_path / "a", "podman", "echo podman version 4.3.1")
    assert found(tmp_path / "a").name == "podman 4.3.1"


def test_a_docker_without_buildkit_names_the_packages(tmp_path):
    docker(tmp_path / "a", "24.0.7")
    with pytest.raises(HostError, match="its buildx plugin is missing") as caught:
        found(tmp_path / "a")
    assert "docker-buildx-plugin" in caught.value.hint


def test_no_program_at_all_names_the_package(tmp_path):
    with pytest.raises(HostError, match="neither docker nor podman") as caught:
        found(tmp_path)
    assert "docker.io" in caught.value.hint


def argv(kind, **more):
    builder = Builder(kind=kind, program="/x/docker", version="1")
    plain = {"tags": (), "labels": {}, "secrets": {}, "build_args": (), "made": Path("/i")}
    return builder.argv(Path("/c"), dockerfile=Path("/c/Dockerfile"), **{**plain, **more})


def test_the_words_are_the_same_for_the_same_input_in_any_order():
    one = argv("docker", labels={"b": "2", "a": "1"}, secrets={"y": Path("/y"), "x": Path("/x")}, build_args=["B", "A"])
    two = argv("docker", labels={"a": "1", "b": "2"}, secrets={"x": Path("/x"), "y": Path("/y")}, build_args=["A", "B"])
    assert one == two


def test_a_build_says_everything_it_was_asked_for():
    words = " ".join(
        argv(
            "docker",
            tags=["a:1", "b:2"],
            labels={"k": "v w"},
            secrets={"ca": Path("/ca.pem")},
            build_args=["http_proxy"],
            no_cache=True,
            target="native",
        )
    )
    assert words == (
        "/x/docker build --progress plain --file /c/Dockerfile --iidfile /i --tag a:1 --tag b:2 --label k=v w "
        "--secret id=ca,src=/ca.pem --build-arg http_proxy --target native --no-cache /c"
    )


def test_the_built_image_is_known_by_its_config_or_by_its_manifest(tmp_path):
    made = tmp_path / "made"
    made.write_text("sha256:1\n")
    assert Builder(kind="docker", program="docker", version="20").image_ids(made) == ["sha256:1"]
    made.write_text('{"containerimage.config.digest": "sha256:1", "containerimage.digest": "sha256:2", "more": {}}')
    assert Builder(kind="buildx", program="docker", version="0.30").image_ids(made) == ["sha256:1", "sha256:2"]


def test_buildx_loads_into_the_engine_itself_whatever_builder_is_active():
    words = argv("buildx")
    assert words[1:6] == ["buildx", "build", "--builder", "default", "--load"]
