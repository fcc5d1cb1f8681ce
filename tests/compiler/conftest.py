"""The compilers of these tests, from the distribution's and Python's packages; what is missing is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builder.console import Console
from builder.engine import packages
from builder.kernels.prepare import prepare_hip
from builder.kernels.run import Compilers
from builder.kernels.triton import find_triton
from builder.settings import load_settings

LLVM = ("clang-19", "lld-19", "llvm-19", "clang-tools-19")


@pytest.fixture(scope="session")
def cache() -> Path:
    return load_settings(Path(__file__).parents[2]).cache


@pytest.fixture(scope="session")
def llvm() -> Path:
    """Return the folder with LLVM 19's programs."""
    if shutil.which("clang-offload-bundler-19") is None or shutil.which("llvm-readelf-19") is None:
        packages.install(LLVM, allowed=True, why="the reader is compared with LLVM's own tools", console=Console())
    return Path("/usr/lib/llvm-19/bin")


@pytest.fixture(scope="session")
def toolchain(cache):
    return prepare_hip(cache, allowed=True, console=Console())


@pytest.fixture(scope="session")
def triton(cache):
    return find_triton(cache)


@pytest.fixture
def compilers(cache, toolchain, triton):
    return Compilers(cache=cache, toolchain=toolchain, triton=triton, jobs=2)
