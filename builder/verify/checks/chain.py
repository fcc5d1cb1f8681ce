"""Checks of the chain: the image is what its labels, its lock, its patches and its wheel say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from builder.files import sha256
from builder.verify.checks.spec import CHAIN, LABEL, Finding, check, failed, listed, ok, skipped
from builder.verify.proofs import missing_proofs

if TYPE_CHECKING:
    from builder.engine.port import Image
    from builder.models.lock import Lock
    from builder.models.stack import Stack
    from builder.patching.header import Proof

COMMIT_TAG = re.compile(r"^(?:\S+-)?([0-9a-f]{12})(?:-[0-9a-f]{8}(?:-[0-9a-f]+)?)?$")
REBUILD = "build it again from the lock; never edit an image"


@check(
    "chain",
    "the chain inside the image is whole",
    means="nobody can say any more what the image was built from, so a report about it helps nobody",
    fix=REBUILD,
    caught={
        "same tag, other content, and slower; the old image was deleted": "https://github.com/ROCm/legacy-rocm-build/issues/5687",
        "a pinned tag built another commit": "https://github.com/timothystewart6/vllm-gb10/issues/67",
    },
)
def chain_is_whole(image: Image, chain: Mapping[str, bytes], lock: Lock) -> Finding:
    """Dockerfile, lock, manifest and patch files that the image carries have the hashes that its labels name."""
    wrong = []
    for name, label in (
        ("Dockerfile", "dockerfile-sha256"),
        ("lock.yaml", "lock-sha256"),
        ("manifest.json", "manifest-sha256"),
    ):
        expected, found = image.labels.get(LABEL + label, "no label"), sha256(chain.get(name, b""))
        if expected != found:
            wrong.append(f"{CHAIN}/{name} is {found[:12]}, and the label {LABEL + label} says {expected[:12]}")
    for patch in lock.patches:
        found = sha256(chain.get(f"patches/{patch.file}", b""))
        if found != patch.sha256:
            wrong.append(f"{CHAIN}/patches/{patch.file} is {found[:12]}, and the lock says {patch.sha256[:12]}")
    if wrong:
        return failed(listed(wrong))
    return ok(f"Dockerfile, lock, manifest and {len(lock.patches)} patches are the ones that the labels name")


@check(
    "labels",
    "the labels equal the lock",
    means="whoever reads the labels (a registry, a dashboard, a bug report) is told another commit than what runs",
    fix=REBUILD,
    caught={"same tag, other content": "https://github.com/ROCm/legacy-rocm-build/issues/5687"},
)
def labels_equal_lock(image: Image, lock: Lock, stack: Stack) -> Finding:
    """Who reads only the labels learns the right commit, version, stack and architecture."""
    expected = {
        "org.opencontainers.image.revision": lock.commit,
        "org.opencontainers.image.version": lock.version,
        LABEL + "stack": lock.stack,
        LABEL + "arch": stack.arch,
    }
    wrong = [
        f"{name} is {image.labels.get(name)!r}, not {value!r}"
        for name, value in expected.items()
        if image.labels.get(name) != value
    ]
    return failed("; ".join(wrong)) if wrong else ok(f"commit {lock.commit[:12]}, version {lock.version}")


@check(
    "tags",
    "a tag that names a commit names this one",
    means="a tag that should never move was moved: two people who pull it run two engines",
    fix="take the tag away (`docker rmi NAME:TAG`) and build or pull the right image again",
    caught={
        "the upstream tag moved, and the same pin built another commit": "https://github.com/timothystewart6/vllm-gb10/issues/67",
        "same tag, other content": "https://github.com/ROCm/legacy-rocm-build/issues/5687",
    },
)
def tags_name_the_commit(image: Image, lock: Lock) -> Finding:
    """Every tag of the forms ``COMMIT`` and ``ROCM-COMMIT-SERIES`` that points at the image holds its commit."""
    named = {tag: found[1] for tag in image.tags if (found := COMMIT_TAG.match(tag.rpartition(":")[2]))}
    wrong = [tag for tag, commit in named.items() if commit != lock.commit[:12]]
    if wrong:
        return failed(f"{listed(wrong)} points at an image of the commit {lock.commit[:12]}")
    return ok(f"{len(named)} tags name {lock.commit[:12]}") if named else skipped("no tag names a commit")


@check(
    "patches",
    "every patch of the series is in the image",
    means="the fix that the patch brings is not there, whatever the build's log said",
    fix="look at the patch's outcome (`gfx1100 patches check`), then build again with --no-cache",
    caught={
        '"cannot be applied, skipping": nobody could tell whether the fix was in': "https://github.com/eugr/spark-vllm-docker/issues/217",
        "a patch did nothing while it was reported as applied": "https://github.com/Sandermage/genesis-vllm-patches/pull/12",
        "a patch for an old version failed softly, and an 81-minute run was wasted": "https://github.com/AMD-AGI/Hyperloom/pull/1157",
    },
)
def patches_are_proven(
    proofs: Mapping[str, tuple[Proof, ...]], answer: Mapping[str, Any], libraries: Mapping[str, bytes], stack: Stack
) -> Finding:
    """Each patch's own proof is found in the installed files or in the machine code, so none is lost in silence."""
    if not proofs:
        return skipped("the series is empty")
    # a rehearsal compiles nothing for a GPU, so that its machine code proves nothing
    texts = {name: tuple(one for one in several if one.text is not None) for name, several in proofs.items()}
    looked = proofs if stack.device == "rocm" else {name: several for name, several in texts.items() if several}
    missing = missing_proofs(looked, answer, libraries)
    if missing:
        return failed(listed(missing))
    unproven = sorted(set(proofs) - set(looked))
    note = f"; not compiled in a rehearsal: {', '.join(unproven)}" if unproven else ""
    return ok(", ".join(looked) + note) if looked else skipped(note.removeprefix("; "))


@check(
    "replay",
    "the patched files in the image are the pristine tree with the series on it, byte for byte",
    means="the file that runs is not what was reviewed: it was edited by hand, or another copy was installed",
    fix="put the change into a patch of the series, or into patches.local/, and build again",
    caught={
        "two patchers changed one file, and drift went unseen": "https://github.com/NVIDIA-NeMo/RL/issues/4155",
        "a mod broke with the next upstream version": "https://github.com/eugr/spark-vllm-docker/issues/353",
    },
)
def patched_files_are_replayed(
    chain: Mapping[str, bytes], stack: Stack, installed: Mapping[str, str | None]
) -> Finding:
    """The files that the series touches have the hashes that staging wrote down; compiled ones are named."""
    expected, compiled = places(chain, stack)
    if not expected and not compiled:
        return skipped("the series changed no file")
    wrong = [
        f"{path} should be {(digest or 'no file')[:12]}, and {place} is {(installed.get(path) or 'no file')[:12]}"
        for path, (place, digest) in expected.items()
        if installed.get(path) != digest
    ]
    if wrong:
        return failed(listed(wrong))
    note = f"; only compiled, so not in the image: {', '.join(compiled)}" if compiled else ""
    return ok(f"{len(expected)} files{note}") if expected else skipped(f"only compiled: {', '.join(compiled)}")


@check(
    "wheel-files",
    "the engine's files are those of its wheel",
    means="somebody changed installed files after the build, and the record does not know of it",
    fix="put the change into a patch, or mount nothing over the package; build again",
    caught={"corrupt images passed silently": "https://github.com/spark-arena/sparkrun/pull/183"},
)
def files_are_the_wheels(record: Mapping[str, Any], stack: Stack) -> Finding:
    """Every file of the engine's distribution has the hash that the RECORD of its wheel names."""
    name = stack.pin.distribution
    if not record["files"]:
        return failed(f"{name} has no RECORD with hashes: it was not installed from a wheel")
    if record["wrong_count"]:
        return failed(f"{record['wrong_count']} files of {name} differ from its RECORD: {listed(record['wrong'])}")
    return ok(f"{record['files']} files of {name}")


def places(chain: Mapping[str, bytes], stack: Stack) -> tuple[dict[str, tuple[str, str | None]], list[str]]:
    """Return where the files of the tree that the series changed must lie in the image, and those that lie nowhere.

    Args:
        chain: The image's chain, whose manifest says what the series did.
        stack: Its ``expect.installed`` maps folders of the tree to folders of the image.

    Returns:
        By path in the tree: the place (absolute, or below site-packages) and the hash after the last patch that
        touched it, None for a file that was removed. Then the paths that no folder of the map holds.
    """
    manifest = json.loads(chain.get("manifest.json", b"{}"))
    after = {file["path"]: file["after"] for patch in manifest.get("patches", []) for file in patch.get("files", [])}
    found: dict[str, tuple[str, str | None]] = {}
    for path, digest in after.items():
        folders = [folder for folder in stack.expect.installed if path.startswith(folder)]
        if folders:
            longest = max(folders, key=len)
            found[path] = (stack.expect.installed[longest] + path.removeprefix(longest), digest)
    return found, sorted(set(after) - set(found))
