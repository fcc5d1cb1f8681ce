"""Checks of the installed distributions: versions, origin, owners, requirements."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.source.version import matches, suspicious
from builder.verify.checks.spec import Finding, check, failed, listed, ok, skipped

if TYPE_CHECKING:
    from builder.models.lock import Lock
    from builder.models.stack import Stack

Pairs = Sequence[Sequence[str]]

CUDA = re.compile(r"^(nvidia-|cuda-|flashinfer|cupy-cuda|.*-cu1\d$)")
CUDA_VERSION = re.compile(r"\+cu\d+")
PINS = "hold every install to pins/constraints.txt, and run pins/guard.py after it"


@check(
    "version",
    "the engine's version is the pin",
    means="the engine was not built from the pinned commit, or from a state that nobody knows",
    fix="the pin's variable must be set on the RUN that builds the wheel: for vLLM the plain one, without the name",
    caught={
        "setuptools-scm found no version in docker; a shallow clone gave 0.1.dev1": "https://github.com/vllm-project/vllm/issues/13130",
        "a cached layer kept a stale clone of the branch": "https://github.com/sgl-project/sglang/pull/28445",
    },
)
def version_is_pin(distributions: Pairs, own_version: str, lock: Lock, stack: Stack) -> Finding:
    """The wheel was built from the pinned commit: its metadata and its ``__version__`` carry the pin."""
    pin, name = lock.version, stack.pin.distribution
    if stack.pin.variable is None:
        return skipped(f"{name} has a static version: no pin applies")
    versions = [version for dist, version in distributions if _same(dist, name)]
    if len(versions) != 1:
        return failed(f"{len(versions)} distributions are called {name}: {versions}")
    if not matches(versions[0], pin):
        guessed = suspicious(versions[0])
        return failed(f"{name} has the version {versions[0]}, the pin is {pin}" + (f"; {guessed}" if guessed else ""))
    if own_version and not matches(own_version, pin):
        return failed(f"{stack.expect.package}.__version__ is {own_version!r}, the pin is {pin}")
    return ok(f"{name} {versions[0]}")


@check(
    "version-leak",
    "the pin reached the engine alone",
    means="another package carries the engine's version, and what compares its version decides wrongly",
    fix="set the variable on the one RUN that builds the engine, never as ENV",
    caught={"the plain version variable leaked into every other sdist of the layer": ""},
)
def version_did_not_leak(distributions: Pairs, lock: Lock, stack: Stack) -> Finding:
    """No other package was built while the version variable was set: one distribution alone carries our version."""
    name = stack.pin.distribution
    if stack.pin.variable is None:
        return skipped(f"{name} has a static version: no pin applies")
    others = [dist for dist, version in distributions if matches(version, lock.version) and not _same(dist, name)]
    return failed(f"{', '.join(others)} carry the version of {name}") if others else ok(f"only {name} carries the pin")


@check(
    "torch",
    "torch is the ROCm one",
    means="a CUDA or CPU torch sees no card: the engine stops, or computes on the processor",
    fix=PINS,
    caught={
        "the build fell back to the package index's torch, quietly": "https://github.com/dusty-nv/jetson-containers/issues/1514",
        "a dependency pulled NVIDIA's packages into the ROCm image": "https://github.com/hiyouga/LlamaFactory/pull/4970",
    },
)
def torch_is_rocm(answer: Mapping[str, Any], stack: Stack) -> Finding:
    """The torch was built for the stack's HIP and not for CUDA (for neither in a rehearsal), as its own file says."""
    found = answer["torch"]
    wanted = any(_same(wheel.name, "torch") for wheel in stack.wheels)
    if found is None:
        return failed("torch is not installed") if wanted else skipped("the stack has no torch")
    said = f"torch {found['__version__']}: HIP {found['hip']}, CUDA {found['cuda']}"
    if found["cuda"] is not None or (found["hip"] is None) == (stack.device == "rocm"):
        return failed(said)
    if found["hip"] and stack.rocm and found["hip"].split(".")[:2] != stack.rocm.split(".")[:2]:
        return failed(f"{said}; the stack is for ROCm {stack.rocm}")
    return ok(said)


@check(
    "wheels",
    "the wheels are those of the lock",
    means="another torch or triton than the one that was tried runs the kernels",
    fix=PINS,
    caught={
        "the order of local versions made pip prefer an older ROCm": "https://github.com/ROCm/TheRock/issues/7183",
        "a nightly torch broke at HIP's start": "https://github.com/kyuz0/amd-strix-halo-vllm-toolboxes/issues/61",
    },
)
def wheels_equal_lock(answer: Mapping[str, Any], lock: Lock) -> Finding:
    """Each wheel of the lock is installed once, at the very version; so is what its requirements resolved to."""
    wrong = []
    for wheel in (*lock.wheels, *lock.requirements):
        found = [version for dist, version in answer["distributions"] if _same(dist, wheel.name)]
        needless = wheel in lock.requirements and not found
        if found != [wheel.version] and not needless:
            wrong.append(f"{wheel.name} is {' and '.join(found) or 'not installed'}, the lock says {wheel.version}")
    if wrong:
        return failed(listed(wrong))
    if not lock.wheels:
        return skipped("the lock has no wheel")
    more = f" and {len(lock.requirements)} requirements" if lock.requirements else ""
    return ok(", ".join(f"{wheel.name} {wheel.version}" for wheel in lock.wheels) + more)


@check(
    "cuda-packages",
    "no package for CUDA came along",
    means="gigabytes that do nothing, and libraries that may be loaded before the right ones",
    fix=PINS,
    caught={
        "a dependency pulled NVIDIA's packages into the ROCm image": "https://github.com/hiyouga/LlamaFactory/pull/4970"
    },
)
def no_cuda_packages(distributions: Pairs) -> Finding:
    """No distribution is NVIDIA's or made for CUDA, by name or by the local part of its version."""
    found = [
        f"{name} {version}"
        for name, version in distributions
        if CUDA.match(canonicalize_name(name)) or CUDA_VERSION.search(version)
    ]
    return failed(listed(found)) if found else ok(f"{len(distributions)} distributions, none of them for CUDA")


@check(
    "owners",
    "one distribution owns each of triton/, torch/ and the engine's folder",
    means='one overwrote the other: "module triton has no attribute language", or a driver that cannot be loaded',
    fix="install the ROCm one last, or an empty distribution in the other's name (stands_for of the stack's wheel)",
    caught={
        "triton overwrote triton-rocm, which owns the same folder": "https://github.com/pytorch/pytorch/issues/186350"
    },
)
def folders_have_one_owner(answer: Mapping[str, Any]) -> Finding:
    """By the RECORD of all distributions, no two installed their files into the same folder."""
    owners = answer["owners"]
    wrong = [f"{' and '.join(names)} own {folder}/" for folder, names in owners.items() if len(names) > 1]
    there = [f"{folder}/ of {names[0]}" for folder, names in owners.items() if names]
    return failed(listed(wrong)) if wrong else ok(", ".join(there) or "none of them is there")


@check(
    "requirements",
    "every distribution has what it requires",
    means="an import fails in the middle of a request, or a version that nobody tried is used",
    fix="add what is missing to the stack's requirements, or name it in expect.unmet with the reason",
    caught={
        "the package that others require by name was taken away, and what needs it broke": "https://github.com/pytorch/pytorch/issues/186350"
    },
)
def requirements_are_met(answer: Mapping[str, Any], stack: Stack) -> Finding:
    """What ``pip check`` finds, computed from the metadata: no requirement is missing or has another version."""
    left_out = {canonicalize_name(name) for name in (*stack.expect.unmet, *stack.requirements.left_out)}
    versions = {canonicalize_name(name): version for name, version in answer["distributions"]}
    wrong, count = [], 0
    for name, line in answer["requires"]:
        try:
            required = Requirement(line)
            applies = required.marker is None or required.marker.evaluate({**answer["markers"], "extra": ""})
        except (InvalidRequirement, ValueError):
            continue  # an old egg's line that pip does not read either
        wanted = canonicalize_name(required.name)
        if not applies or wanted in left_out:
            continue
        count += 1
        found = versions.get(wanted)
        if found is None:
            wrong.append(f"{name} requires {required.name}, which is not installed")
        elif not required.specifier.contains(found, prereleases=True):
            wrong.append(f"{name} requires {required.name}{required.specifier}, and {found} is installed")
    return failed(listed(wrong)) if wrong else ok(f"{count} requirements")


def _same(one: str, other: str) -> bool:
    return canonicalize_name(one) == canonicalize_name(other)
