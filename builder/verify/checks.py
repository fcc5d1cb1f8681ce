"""What an image must prove: small functions, each with an id, a title and what it proves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from builder.files import sha256
from builder.models.record import Check
from builder.source.version import matches
from builder.verify.proofs import missing_proofs

if TYPE_CHECKING:
    from builder.engine.port import Image
    from builder.models.lock import Lock
    from builder.models.stack import Stack
    from builder.objects import Library
    from builder.patching.header import Proof

LABEL = "io.gfx1100."
CHAIN = "/usr/share/gfx1100"
BUILD_SETTING = re.compile(
    r"^(SETUPTOOLS_SCM_\w+|VCS_VERSIONING_\w+|VLLM_VERSION_OVERRIDE|MAX_JOBS|PIP_(INDEX|EXTRA|CERT|CONFIG)\w*|\w*_(?i:proxy)"
    r"|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|\w*(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_KEY)\w*)$"
)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything the checks look at.

    Attributes:
        image: The image as the engine shows it.
        stack: What it was built from.
        lock: The lock that it carries.
        chain: Files below ``/usr/share/gfx1100`` of the image, by relative path.
        answer: What the probe found inside.
        libraries: Content of the engine's extensions, by absolute path.
        objects: The code objects of the engine's extensions, by the glob that must match them.
        proofs: What shows that a patch is in the image, by the patch's id.
    """

    image: Image
    stack: Stack
    lock: Lock
    chain: Mapping[str, bytes]
    answer: Mapping[str, Any]
    libraries: Mapping[str, bytes]
    objects: Mapping[str, tuple[Library, ...]]
    proofs: Mapping[str, tuple[Proof, ...]]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    status: Literal["ok", "failed", "skipped"]
    message: str


CheckFunction = Callable[[Evidence], Finding]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A check: its id, its title, what it proves (the docstring) and its function."""

    id: str
    title: str
    proves: str
    function: CheckFunction


CHECKS: dict[str, Spec] = {}


def check(identity: str, title: str) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check; its docstring is what it proves."""

    def register(function: CheckFunction) -> CheckFunction:
        CHECKS[identity] = Spec(id=identity, title=title, proves=function.__doc__ or "", function=function)
        return function

    return register


def run_checks(evidence: Evidence) -> tuple[Check, ...]:
    """Run all checks in their order and return what each found."""
    found = []
    for spec in CHECKS.values():
        finding = spec.function(evidence)
        found.append(Check(id=spec.id, status=finding.status, message=finding.message))
    return tuple(found)


def ok(message: str) -> Finding:
    """Return a passed finding."""
    return Finding("ok", message)


def failed(message: str) -> Finding:
    """Return a failed finding."""
    return Finding("failed", message)


def skipped(reason: str) -> Finding:
    """Return a finding that says why nothing could be checked."""
    return Finding("skipped", reason)


@check("chain", "the chain inside the image is whole")
def chain_is_whole(evidence: Evidence) -> Finding:
    """The Dockerfile, the lock and every patch file that the image carries have the hashes that its labels name."""
    labels, chain, lock = evidence.image.labels, evidence.chain, evidence.lock
    for name, label in (("Dockerfile", "dockerfile-sha256"), ("lock.yaml", "lock-sha256")):
        expected, found = labels.get(LABEL + label, "no label"), sha256(chain.get(name, b""))
        if expected != found:
            return failed(f"{CHAIN}/{name} has the hash {found[:12]}, the label {LABEL + label} says {expected[:12]}")
    for patch in lock.patches:
        found = sha256(chain.get(f"patches/{patch.file}", b""))
        if found != patch.sha256:
            return failed(f"{CHAIN}/patches/{patch.file} has the hash {found[:12]}, the lock says {patch.sha256[:12]}")
    return ok(f"Dockerfile, lock and {len(lock.patches)} patches are the ones that the labels name")


@check("labels", "the labels equal the lock")
def labels_equal_lock(evidence: Evidence) -> Finding:
    """Who reads only the labels learns the right commit, version and stack."""
    lock, labels = evidence.lock, evidence.image.labels
    expected = {
        "org.opencontainers.image.revision": lock.commit,
        "org.opencontainers.image.version": lock.version,
        LABEL + "stack": lock.stack,
        LABEL + "arch": evidence.stack.arch,
    }
    wrong = [
        f"{name} is {labels.get(name)!r}, not {value!r}"
        for name, value in expected.items()
        if labels.get(name) != value
    ]
    return failed("; ".join(wrong)) if wrong else ok(f"commit {lock.commit[:12]}, version {lock.version}")


@check("version", "the engine's version is the pin")
def version_is_pin(evidence: Evidence) -> Finding:
    """The wheel was built from the pinned commit: its metadata and its ``__version__`` carry the pin."""
    pin, name = evidence.lock.version, evidence.stack.pin.distribution
    if evidence.stack.pin.variable is None:
        return skipped(f"{name} has a static version: no pin applies")
    versions = [version for dist, version in evidence.answer["distributions"] if _same_name(dist, name)]
    if len(versions) != 1:
        return failed(f"{len(versions)} distributions are called {name}: {versions}")
    if not matches(versions[0], pin):
        return failed(f"{name} has the version {versions[0]}, the pin is {pin}")
    own = evidence.answer["version"]
    if own and not matches(own, pin):
        return failed(f"{evidence.stack.expect.package}.__version__ is {own!r}, the pin is {pin}")
    return ok(f"{name} {versions[0]}")


@check("version-leak", "the pin reached the engine alone")
def version_did_not_leak(evidence: Evidence) -> Finding:
    """No other package was built while the version variable was set: one distribution alone carries our version."""
    name = evidence.stack.pin.distribution
    others = [
        dist
        for dist, version in evidence.answer["distributions"]
        if matches(version, evidence.lock.version) and not _same_name(dist, name)
    ]
    return failed(f"{', '.join(others)} carry the version of {name}") if others else ok(f"only {name} carries the pin")


@check("environment", "no build setting and no secret in the environment")
def environment_is_clean(evidence: Evidence) -> Finding:
    """The image's Env holds no SETUPTOOLS_SCM_*, no proxy, no mirror, no certificate path, no token."""
    names = [entry.partition("=")[0] for entry in evidence.image.environment]
    bad = sorted(name for name in names if BUILD_SETTING.match(name))
    return failed(f"Env holds {', '.join(bad)}") if bad else ok(f"{len(names)} variables, none of them a build setting")


@check("imports", "the modules import without a GPU")
def modules_import(evidence: Evidence) -> Finding:
    """The engine's modules load in the image, with no device and no network."""
    results = evidence.answer["modules"]
    if not results:
        return skipped("the stack names no module")
    wrong = [f"{name}: {result}" for name, result in results.items() if result != "ok"]
    return failed("; ".join(wrong)) if wrong else ok(", ".join(results))


@check("libraries", "the extensions load without a GPU")
def extensions_load(evidence: Evidence) -> Finding:
    """Every library that an extension needs is in the image, with the symbols that it asks for."""
    results = evidence.answer["loads"]
    if not results:
        return skipped("the stack names no extension")
    wrong = [f"{path}: {result}" for path, result in results.items() if result != "ok"]
    return failed("; ".join(wrong)) if wrong else ok(f"{len(results)} loaded")


@check("code-objects", "the extensions hold gfx1100 code and no other")
def code_objects_are_ours(evidence: Evidence) -> Finding:
    """Each device library has code objects for gfx1100 (else the card refuses it) and for nothing else."""
    if not evidence.objects:
        return skipped("the stack names no extension")
    arch, kernels = evidence.stack.arch, 0
    for pattern, libraries in evidence.objects.items():
        if not libraries:
            return failed(f"no file below site-packages matches {pattern}")
        for library in libraries:
            if library.archs != (arch,):
                return failed(
                    f"{library.path} holds code for {', '.join(library.archs) or 'no GPU'}, not for {arch} alone"
                )
            kernels += len(library.kernels)
    return ok(f"{kernels} kernels for {arch} in {sum(map(len, evidence.objects.values()))} libraries")


@check("patches", "every patch of the series is in the image")
def patches_are_proven(evidence: Evidence) -> Finding:
    """Each patch's own proof is found in the installed files or in the machine code, so none is lost in silence."""
    if not evidence.proofs:
        return skipped("the series is empty")
    missing = missing_proofs(evidence)
    return failed("; ".join(missing)) if missing else ok(", ".join(evidence.proofs))


@check("user", "the image does not run as root")
def user_is_not_root(evidence: Evidence) -> Finding:
    """A fault in the engine is not a fault with root's rights."""
    user = evidence.image.user
    if user.partition(":")[0] in {"", "0", "root"} or evidence.answer["user"] == 0:
        return failed(f"the image's user is {user or 'root'!r}")
    return ok(f"user {user}")


@check("entrypoint", "the image starts the server by itself")
def entrypoint_is_set(evidence: Evidence) -> Finding:
    """Whoever runs the image gets the engine, without knowing its command."""
    entrypoint = evidence.image.entrypoint
    return ok(" ".join(entrypoint)) if entrypoint else failed("the image has no entry point")


def _same_name(one: str, other: str) -> bool:
    """Compare distribution names as packaging does: case and runs of ``-_.`` do not count."""
    return re.sub(r"[-_.]+", "-", one).lower() == re.sub(r"[-_.]+", "-", other).lower()
