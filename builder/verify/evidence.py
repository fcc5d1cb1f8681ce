"""Gather what the checks look at: the chain that an image carries, its Python's answer, its files, its code objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import UsageError, VerifyError
from builder.models.base import parse_yaml, validated
from builder.models.lock import Lock
from builder.objects import read_library
from builder.verify.checks import CHAIN, FILES, Evidence
from builder.verify.checks.chain import places
from builder.verify.checks.imports import expected_ops

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.engine.port import Engine, Image
    from builder.models.stack import Stack
    from builder.patching.header import Proof
    from builder.patching.series import Series

CHAIN_LIMIT = 4 << 20
LIBRARY_LIMIT = 2 << 30
PROBE_SECONDS = 600.0
INSIDE = "/tmp/gfx1100"  # noqa: S108 - inside a container of one process
SENT = ("probe.py", "inventory.py", "linking.py", "dynamic.py")
SHARED_FOLDERS = ("triton", "torch")


def gather(engine: Engine, image: Image, stack: Stack, series: Series) -> Evidence:
    """Look into an image.

    Args:
        engine: Where it is.
        image: The image.
        stack: What it was built from.
        series: The patches that it was built with.

    Raises:
        VerifyError: It carries no chain, or the probe could not run in it.
    """
    chain = read_chain(engine, image)
    lock = read_lock(chain)
    proofs = _proofs(chain, lock, stack, series)
    answer = ask(engine, image, stack, chain, [proof for several in proofs.values() for proof in several])
    paths = sorted({path for found in answer["extensions"].values() for path in found})
    libraries = engine.read_files(image.id, paths, limit=LIBRARY_LIMIT)
    objects = {path: read_library(data, name=path) for path, data in libraries.items()}
    files = count(engine, image, stack, chain)
    return Evidence(
        arch=stack.arch,
        image=image,
        stack=stack,
        lock=lock,
        chain=chain,
        answer=answer,
        distributions=answer["distributions"],
        own_version=answer["version"],
        loaded=answer,
        **{part: files[part] for part in FILES},
        libraries=libraries,
        objects={
            pattern: tuple(objects[path] for path in found if path in objects)
            for pattern, found in answer["extensions"].items()
        },
        proofs=proofs,
    )


def read_chain(engine: Engine, image: Image) -> dict[str, bytes]:
    """Return the files below ``/usr/share/gfx1100`` of an image by relative path."""
    names = ["Dockerfile", "lock.yaml", "manifest.json"]
    chain = _chain_files(engine, image, names)
    if "lock.yaml" in chain:
        chain |= _chain_files(engine, image, [f"patches/{patch.file}" for patch in read_lock(chain).patches])
    return chain


def read_lock(chain: dict[str, bytes]) -> Lock:
    """Return the lock that an image carries.

    Raises:
        VerifyError: It carries none, or a damaged one.
    """
    if "lock.yaml" not in chain:
        raise VerifyError(
            f"the image carries no {CHAIN}/lock.yaml", hint="it was not built by this program, so nothing can be proven"
        )
    path, text = Path(CHAIN, "lock.yaml"), chain["lock.yaml"].decode(errors="replace")
    try:
        return validated(Lock, parse_yaml(text, path), path, text)
    except UsageError as bad:
        raise VerifyError(f"the image's lock is damaged: {bad.message}", hint="build the image again") from bad


def ask(engine: Engine, image: Image, stack: Stack, chain: Mapping[str, bytes], proofs: list[Proof]) -> dict[str, Any]:
    """Run the probe in an image, as the image's user, and return its answer.

    Raises:
        VerifyError: It ended with an error, or printed no JSON.
    """
    ops: dict[str, list[str]] = {}
    for group in expected_ops(stack, chain)[0]:
        ops.setdefault(group.namespace, []).extend((*group.present, *group.absent))
    question = {
        "package": stack.expect.package,
        "modules": stack.expect.modules,
        "extensions": stack.expect.extensions,
        "texts": sorted({proof.file for proof in proofs if proof.text is not None and proof.file}),
        "ops": ops,
        "folders": sorted({*SHARED_FOLDERS, stack.expect.package}),
        "first": None
        if stack.expect.imports is None
        else {"program": next(iter(image.entrypoint), ""), "module": stack.expect.imports.module},
    }
    return _answer(engine, image, "probe", question, ["python3", f"{INSIDE}/probe.py", f"{INSIDE}/ask.json"])


def count(engine: Engine, image: Image, stack: Stack, chain: Mapping[str, bytes]) -> dict[str, Any]:
    """Take the inventory of an image's files, as root, so that none is out of sight.

    Raises:
        VerifyError: It ended with an error, or printed no JSON.
    """
    question = {
        "package": stack.expect.package,
        "distribution": stack.pin.distribution,
        "extensions": stack.expect.extensions,
        "arch": stack.arch,
        "spared": stack.expect.foreign,
        "installed": {path: place for path, (place, _) in places(chain, stack)[0].items()},
    }
    start = f"import sys; sys.path[0] = {INSIDE!r}; from builder.verify import inventory; inventory.main(sys.argv[1])"
    return _answer(engine, image, "inventory", question, ["python3", "-c", start, f"{INSIDE}/ask.json"], user="0:0")


def _answer(
    engine: Engine, image: Image, what: str, question: dict[str, Any], argv: Sequence[str], *, user: str | None = None
) -> dict[str, Any]:
    sources = {name: Path(__file__).with_name(name).read_bytes() for name in SENT}
    files = {f"{INSIDE}/builder/verify/{name}": source for name, source in sources.items()}
    files |= {f"{INSIDE}/builder/__init__.py": b"", f"{INSIDE}/builder/verify/__init__.py": b""}
    files |= {f"{INSIDE}/probe.py": sources["probe.py"], f"{INSIDE}/ask.json": json.dumps(question).encode()}
    output = engine.run_once(image.id, argv, files=files, timeout=PROBE_SECONDS, user=user)
    try:
        answer = json.loads(output.stdout.splitlines()[-1])
    except (ValueError, IndexError) as trouble:
        tail = "\n".join((output.stderr or output.stdout).splitlines()[-10:])
        raise VerifyError(f"the {what} ended with status {output.returncode} and no answer:\n{tail}") from trouble
    if not isinstance(answer, dict):
        raise VerifyError(f"the {what} answered {type(answer).__name__}, not an object")
    return answer


def _chain_files(engine: Engine, image: Image, names: list[str]) -> dict[str, bytes]:
    found = engine.read_files(image.id, [f"{CHAIN}/{name}" for name in names], limit=CHAIN_LIMIT)
    return {path.removeprefix(CHAIN + "/"): data for path, data in found.items()}


def _proofs(chain: dict[str, bytes], lock: Lock, stack: Stack, series: Series) -> dict[str, tuple[Proof, ...]]:
    """Return the proofs of the patches that were applied or found present; an unneeded one has nothing to show.

    Raises:
        VerifyError: The lock names a patch that the series does not have, or of which the manifest says nothing.
    """
    try:
        manifest = json.loads(chain.get("manifest.json", b"{}"))
        outcomes = {str(patch["id"]): str(patch["outcome"]) for patch in manifest.get("patches", [])}
        # read once more by the checks, which must not stumble
        places(chain, stack)
        expected_ops(stack, chain)
    except (ValueError, KeyError, TypeError, AttributeError) as trouble:
        raise VerifyError(f"{CHAIN}/manifest.json is damaged: {trouble!r}") from trouble
    parameters = series.parameters(stack.parameters)
    patches = {patch.id: patch for patch in series.patches}
    named = [patch.id for patch in lock.patches]
    if unknown := [name for name in named if name not in patches]:
        raise VerifyError(
            f"the image was built with {', '.join(unknown)}, which the series does not have",
            hint="verify it from the checkout, and with the --patches, that it was built from",
        )
    if silent := [name for name in named if name not in outcomes]:
        raise VerifyError(f"{CHAIN}/manifest.json does not say what became of {', '.join(silent)}")
    return {name: patches[name].proofs(parameters) for name in named if outcomes[name] != "unneeded"}
