from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from source_repos import work_tree

from builder.errors import UsageError
from builder.source.version import matches, pinned_version, suspicious

PLAIN = "SETUPTOOLS_SCM_PRETEND_VERSION"
COMMITS = {
    "letters": "502e46855500b22fafbff512bfb49b84d4c5c9b3",
    "zero": "0123456" * 5 + "01234",
    "digits": "1234567890" * 4,
}
# like vLLM: no distribution name is told
SETUP = """
from setuptools import setup
from setuptools_scm import get_version

setup(name="tiny", version=get_version(write_to="tiny/_version.py"), packages=["tiny"])
"""
ASK = """
import json, os, sys
from setuptools_scm import get_version

for folder, added in json.load(sys.stdin):
    os.chdir(folder)
    os.environ.update(added)
    try:
        print(get_version())
    except LookupError as refused:
        print(type(refused).__name__)
    for key in added:
        del os.environ[key]
"""


def versions(*cases):
    command = [sys.executable, "-W", "ignore", "-c", ASK]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("commit", COMMITS.values(), ids=COMMITS)
def test_the_pin_is_canonical_and_keeps_every_digit(commit):
    version = pinned_version(commit)
    assert version == f"0.0.dev0+g{commit[:12]}" == str(Version(version))
    assert str(Version(pinned_version(commit, dirty=True))) == f"{version}.dirty"


@settings(max_examples=25)
@given(st.text("0123456789abcdef", min_size=40, max_size=40), st.booleans())
def test_any_commit_gives_a_canonical_pin_that_matches_itself_alone(commit, dirty):
    version = pinned_version(commit, dirty=dirty)
    assert str(Version(version)) == version
    assert matches(version, version)
    assert matches(version, pinned_version(commit, dirty=not dirty)) is False
    assert suspicious(version) == ""


@pytest.mark.parametrize("commit", ["317415c5a1fd", "main", "", "A" * 40, "g" * 40, "1" * 41])
def test_what_is_no_whole_commit_is_not_pinned(commit):
    with pytest.raises(UsageError, match="40 lower-case hexadecimal digits"):
        pinned_version(commit)


def test_setuptools_scm_takes_the_pin_from_the_plain_variable_alone(tmp_path):
    clone, plain = str(tmp_path / "clone"), str(tmp_path)
    head = work_tree(tmp_path / "clone", {"a": b"x"})
    pins = [pinned_version(commit) for commit in COMMITS.values()] + [pinned_version(COMMITS["zero"], dirty=True)]
    other = {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_TINY": pins[0]}
    cases = [(folder, {PLAIN: pin}) for folder in (clone, plain) for pin in pins]
    *told, passed_over, alone, refused = versions(*cases, (clone, other), (clone, {}), (plain, other))
    assert told == pins * 2
    # the form with the distribution's name is passed over in silence, and git's own answer cannot be trusted
    assert passed_over == alone
    assert alone.startswith(f"0.1.dev1+g{head[:7]}")
    assert "without tags" in suspicious(alone)
    assert refused == "LookupError"


def test_the_wheel_that_comes_out_carries_the_pin(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/__init__.py").touch()
    (tmp_path / "setup.py").write_text(SETUP)
    version = pinned_version(COMMITS["zero"])
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "bdist_wheel", "-d", "dist"]
    environment = {**os.environ, PLAIN: version}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    wheel = next((tmp_path / "dist").iterdir())
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
        assert f"'{version}'" in archive.read("tiny/_version.py").decode()
    installed = next(line.removeprefix("Version: ") for line in lines if line.startswith("Version: "))
    assert installed == version
    assert matches(installed, version)
    assert wheel.name.startswith(f"tiny-{version}-")


@pytest.mark.parametrize("suffix", ["", ".rocm724", ".rocm725", ".cpu", ".empty"])
def test_a_suffix_that_the_builds_append_still_matches(suffix):
    assert matches(f"0.0.dev0+g502e46855500{suffix}", "0.0.dev0+g502e46855500")
    assert matches(f"0.0.0.dev0+G502E46855500{suffix}", "0.0.0.dev0+g502e46855500")


@pytest.mark.parametrize(
    "installed",
    [
        "0.0.dev0+g502e4685550",
        "0.0.dev0+g502e468555000",
        "0.0.dev0+g502e46855501",
        "0.0.dev0+g502e46855500.dirty",
        "0.0.dev0+g502e46855500.rocm72",
        "0.0.dev0+g502e46855500.rocm7244",
        "0.0.dev0+g502e46855500.rocm724.x",
        "0.0.dev0+g502e46855500.cu128",
        "0.0.dev0",
        "0.1.dev1+g502e46855500",
        "dev",
        "",
    ],
)
def test_anything_else_does_not_match(installed):
    assert not matches(installed, "0.0.dev0+g502e46855500")


@pytest.mark.parametrize(
    "version", ["0.1.dev1", "0.1.dev17+g502e46855.d20261129", "0.0.0.dev0", "0.0.0", "0+unknown", "0.0.0+unknown"]
)
def test_a_version_made_up_without_tags_or_git_is_suspicious(version):
    assert "shallow clone" in suspicious(version)


def test_a_version_that_is_none_is_suspicious():
    assert "no PEP 440 version" in suspicious("dev")


@pytest.mark.parametrize(
    "version", ["0.0.dev0+g502e46855500", "0.0.dev0+g502e46855500.rocm724", "0.31.1", "0.5.20.post1", "0.1"]
)
def test_a_version_that_someone_chose_is_not_suspicious(version):
    assert suspicious(version) == ""
