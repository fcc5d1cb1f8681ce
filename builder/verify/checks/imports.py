"""Checks of what happens when the engine is imported: modules, registered ops, the order of amdsmi and torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from builder.verify.checks.spec import Finding, check, failed, listed, ok, skipped

if TYPE_CHECKING:
    from builder.models.stack import Ops, Stack


@check(
    "imports",
    "the modules import without a GPU",
    means="the server dies at its start, or runs without the kernels that it logs one warning about",
    fix="the message names what is missing: a library of the base image, a requirement, or a wheel for another torch",
    caught={'a tool said "ready" while vllm._C could not load': "https://github.com/ROCm/rocm-cli/issues/257"},
)
def modules_import(loaded: Mapping[str, Any]) -> Finding:
    """The engine's modules and its extensions load in the image, with no device and no network."""
    results = loaded["modules"]
    if not results:
        return skipped("the stack names no module")
    wrong = [f"{name}: {result}" for name, result in results.items() if result != "ok"]
    return failed("; ".join(wrong)) if wrong else ok(", ".join(results))


@check(
    "ops",
    "the ops that the stack lists are registered, and no other card's are",
    means="the engine falls back to a slow path, or stops at the first prompt that needs the kernel",
    fix="PYTORCH_ROCM_ARCH and AMDGPU_TARGET must be gfx1100 alone in the stage that compiles",
    caught={
        "images for gfx1100 that lack its kernels": "https://github.com/ROCm/vllm/issues/685",
        "no kernel image for the card": "https://github.com/vllm-project/vllm/issues/31035",
    },
)
def ops_are_registered(loaded: Mapping[str, Any], stack: Stack, chain: Mapping[str, bytes]) -> Finding:
    """``torch.ops`` has the ops that this commit's extensions must bring and none that only other builds have."""
    groups, unknown = expected_ops(stack, chain)
    if not groups and not unknown:
        return skipped("the stack lists no op for this commit")
    wrong, count = [], 0
    for group in groups:
        known = loaded["ops"].get(group.namespace, {})
        wrong += [
            f"{group.namespace}.{name} is missing ({group.name})" for name in group.present if not known.get(name)
        ]
        wrong += [f"{group.namespace}.{name} is there ({group.name})" for name in group.absent if known.get(name)]
        count += len(group.present) + len(group.absent)
    note = f"; not known for this commit: {', '.join(group.name for group in unknown)}" if unknown else ""
    return failed(listed(wrong)) if wrong else ok(f"{count} ops{note}")


@check(
    "import-order",
    "the entry point imports amdsmi before torch",
    means='two copies of libamd_smi clash: zero cards are seen, "Failed to infer device type"',
    fix="keep gfx1100-entry as the entry point, or the patch that imports amdsmi first, and amdsmi in the image",
    caught={
        "amdsmi saw no card after torch was imported": "https://github.com/pytorch/pytorch/issues/186516",
        '"failed to infer device type" on a 7900 XTX': "https://github.com/vllm-project/vllm/issues/39378",
    },
)
def imports_are_in_order(loaded: Mapping[str, Any], stack: Stack) -> Finding:
    """A process that runs the top of the entry point and imports the engine asks for amdsmi first, and loads it."""
    wanted, found = stack.expect.imports, loaded["first"]
    if wanted is None or found is None:
        return skipped("the stack asks for no order")
    order = found["order"]
    if found["error"] or wanted.first not in order:
        return failed(f"starting {wanted.module} never asks for {wanted.first}: {found['error'] or 'no error'}")
    if wanted.then in order and order.index(wanted.then) < order.index(wanted.first):
        return failed(f"starting {wanted.module} asks for {wanted.then} before {wanted.first}")
    if wanted.first not in found["loaded"]:
        return failed(f"starting {wanted.module} asks for {wanted.first} first, and it cannot be loaded")
    return ok(f"{wanted.first} before {wanted.then}")


def expected_ops(stack: Stack, chain: Mapping[str, bytes]) -> tuple[list[Ops], list[Ops]]:
    """Return the groups of ops that hold for the image's commit, and those of which its manifest does not know."""
    told = json.loads(chain.get("manifest.json", b"{}")).get("ops", {})
    always = {group.name: True for group in stack.expect.ops if group.since is group.until is group.file is None}
    known = {**told, **always}
    return (
        [group for group in stack.expect.ops if known.get(group.name) is True],
        [group for group in stack.expect.ops if known.get(group.name) is None],
    )
