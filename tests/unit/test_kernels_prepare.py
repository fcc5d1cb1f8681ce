"""On a machine without a compiler for HIP, what is missing comes from packages, and only when that is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_kernels_hip import program, rocm

from builder.console import Console
from builder.engine import packages
from builder.errors import HostError
from builder.kernels import prepare

APT = """#!/bin/sh
echo "$@" >> LOG
case "$*" in
  *indextargets*) echo "http://mirror.example/debian-security/"; echo "http://mirror.example/debian/";;
  *download*) touch headers.deb;;
  *update*) for word; do case "$word" in Dir::Etc::SourceList=*) cat "${word#*=}" >> LOG;; esac; done;;
esac
"""
DPKG = """#!/bin/sh
mkdir -p "$3/usr/include/hip" "$3/usr/lib/llvm-17/lib/clang/17/amdgcn/bitcode"
touch "$3/usr/include/hip/hip_runtime.h" "$3/usr/lib/llvm-17/lib/clang/17/amdgcn/bitcode/oclc_isa_version_1100.bc"
"""


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """Arrange a Debian with apt and nothing else."""
    (tmp_path / "bin").mkdir()
    for name, text in (("apt-get", APT.replace("LOG", str(tmp_path / "log"))), ("dpkg-deb", DPKG)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "keys.gpg").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    monkeypatch.delenv("ROCM_PATH", raising=False)
    monkeypatch.setattr("builder.kernels.hip.shutil.which", lambda name: _own(tmp_path, name))
    monkeypatch.setattr("builder.kernels.hip.SYSTEM", (tmp_path / "opt", tmp_path / "usr"))
    monkeypatch.setattr(packages, "program", lambda name: _own(tmp_path, name))
    monkeypatch.setattr(packages, "install", lambda *_, **__: program(tmp_path / "bin/clang-19"))
    monkeypatch.setattr(prepare, "KEYRING", tmp_path / "keys.gpg")
    return tmp_path


def _own(root: Path, name: str) -> str | None:
    path = root / "bin" / name
    return str(path) if path.is_file() else None


def test_a_compiler_that_is_there_is_taken_as_it_is(bare):
    program(bare / "bin/clang-19")
    rocm(bare / "usr")

    assert prepare.prepare_hip(bare / "cache", allowed=False, console=Console()).rocm == bare / "usr"
    assert not (bare / "log").exists()


def test_nothing_is_installed_without_leave(bare):
    with pytest.raises(HostError, match="no clang of release"):
        prepare.prepare_hip(bare / "cache", allowed=False, console=Console())
    assert not (bare / "log").exists()


def test_headers_of_a_newer_debian_are_unpacked_beside_the_system(bare):
    found = prepare.prepare_hip(bare / "cache", allowed=True, console=Console())

    assert found.rocm == bare / "cache/hip/usr"
    assert found.options[-1] == "-mcode-object-version=5"
    log = (bare / "log").read_text()
    assert f"deb [signed-by={bare}/keys.gpg] http://mirror.example/debian/ {prepare.SUITE} main" in log
    assert "download libamdhip64-dev rocm-device-libs-17" in log
    assert "install" not in log


def test_another_distribution_is_told_that_it_is_none(bare, monkeypatch):
    monkeypatch.setattr(prepare, "KEYRING", bare / "none.gpg")

    with pytest.raises(HostError, match="this is no Debian"):
        prepare.prepare_hip(bare / "cache", allowed=True, console=Console())
