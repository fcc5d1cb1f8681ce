"""Which part of an engine a path belongs to, and which files say what the lock and the profiles depend on: data."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

TARGETS = "patch targets"
# globs in which ``*`` also matches a slash; the engines' own layouts, read at the commits that docs/patches.md names
AREAS: dict[str, tuple[str, ...]] = {
    "requirements": ("requirements*", "*/requirements*.txt", "pyproject*.toml", "python/pyproject*.toml"),
    "build files": (
        "CMakeLists.txt",
        "cmake/*",
        "setup*.py",
        "python/setup*.py",
        "*/kernels/aot/CMakeLists.txt",
        "*/kernels/aot/*setup*.py",
        "*/kernels/aot/pyproject*.toml",
        "docker/*rocm*",
        "rust-toolchain.toml",
    ),
    "serve flags": (
        "vllm/engine/arg_utils.py",
        "vllm/entrypoints/openai/cli_args.py",
        "vllm/envs.py",
        "python/sglang/srt/server_args.py",
        "python/sglang/srt/environ.py",
        "smoke_engine/server.py",
    ),
    "kernels": (
        "csrc/*",
        "*.cu",
        "*.cuh",
        "*.hip",
        "*/kernels/*",
        "*/attention/ops/*",
        "*/fused_moe/*",
        "scripts/rdna_ar/*",
    ),
}
REQUIREMENTS = ("requirements/common.txt", "requirements/rocm.txt", "requirements/build/rocm.txt", "requirements.txt")
PROJECTS = ("pyproject.toml", "python/pyproject.toml", "python/pyproject_other.toml")
VERSIONS = (
    "CMakeLists.txt",
    "docker/Dockerfile.rocm",
    "docker/Dockerfile.rocm_base",
    "docker/rocm.Dockerfile",
    "rust-toolchain.toml",
)
FLAGS = AREAS["serve flags"]
OPS = (
    "csrc/torch_bindings.cpp",
    "csrc/rocm/torch_bindings.cpp",
    "csrc/libtorch_stable/torch_bindings.cpp",
    "csrc/libtorch_stable/moe/torch_bindings.cpp",
    "python/sglang/kernels/aot/csrc/common_extension_rocm.cc",
)
COMPARED = (*REQUIREMENTS, *PROJECTS, *VERSIONS, *FLAGS, *OPS)
"""Files whose content is compared between the pin and the head."""


def areas_of(paths: Iterable[str], targets: Collection[str]) -> tuple[str, ...]:
    """Return the areas that paths touch: the patch targets first, then those of :data:`AREAS` in their order."""
    paths = tuple(paths)
    found = [TARGETS] if any(path in targets for path in paths) else []
    found += [
        area
        for area, globs in AREAS.items()
        if any(fnmatch.fnmatchcase(path, glob) for path in paths for glob in globs)
    ]
    return tuple(found)
