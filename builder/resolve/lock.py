"""Resolve a stack into its lock, and say what moved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builder.engine.base import base_reference, recipe_sha256
from builder.files import canonical_json, sha256
from builder.models.lock import UNRESOLVED, Lock, LockedBase, LockedWheel
from builder.registry.client import manifest_digest
from builder.resolve.wheels import find_wheel
from builder.source.repository import open_source
from builder.source.version import pinned_version
from builder.stage.inputs import locked_patches, series_of, source_location
from builder.stage.render import template_sha256

if TYPE_CHECKING:
    from builder.models.stack import Base, Stack, Wheel
    from builder.settings import Settings


def resolve(
    root: Path,
    stack: Stack,
    *,
    settings: Settings,
    previous: Lock | None = None,
    update: bool = False,
    offline: bool = False,
) -> Lock:
    """Return the lock of a stack.

    What the previous lock holds is kept, so that nothing moves by itself; ``update`` asks upstream again.

    Args:
        root: The checkout.
        stack: What to build.
        settings: Caches, CA bundle.
        previous: The lock that is there.
        update: Move the pins to what upstream has now.
        offline: Ask nobody: what is not known stays ``unresolved``.

    Raises:
        UpstreamError: Upstream, the registry or an index could not be asked.
        UsageError: A pinned thing is not there.
    """
    kept = previous if previous is not None and not update else None
    commit = _commit(root, stack, settings, kept, offline=offline)
    return Lock(
        format=1,
        stack=stack.name,
        stack_sha256=stack_sha256(stack),
        commit=commit,
        version=UNRESOLVED if commit == UNRESOLVED else pinned_version(commit),
        bases={
            "build": _base(stack.bases.build, settings, offline=offline),
            "runtime": _base(stack.bases.runtime, settings, offline=offline),
        },
        wheels=tuple(_wheel(wheel, stack, settings, kept, offline=offline) for wheel in stack.wheels),
        patches=locked_patches(series_of(root, stack)),
        template_sha256=template_sha256(root, stack),
    )


def stack_sha256(stack: Stack) -> str:
    """Return the hash of what a stack says; a key that it leaves at its default does not count."""
    return sha256(canonical_json(stack.model_dump(mode="json", exclude_defaults=True)))


def stale(root: Path, stack: Stack, lock: Lock, *, settings: Settings) -> list[str]:
    """Return where a lock disagrees with its stack, series and template, without asking anybody."""
    found = []
    if lock.stack_sha256 != stack_sha256(stack):
        found.append(f"stacks/{stack.name}.yaml has changed")
    if lock.template_sha256 != template_sha256(root, stack):
        found.append(f"the template {stack.template} has changed")
    if lock.patches != locked_patches(series_of(root, stack)):
        found.append(f"the series patches/{stack.series} has changed")
    for name, base in (("build", stack.bases.build), ("runtime", stack.bases.runtime)):
        if base.bootstrap and lock.bases[name].recipe_sha256 != recipe_sha256(base.bootstrap.suite):  # type: ignore[index]
            found.append(f"the recipe of the {name} base has changed")
    if stack.source.folder and _commit(root, stack, settings, None, offline=True) != lock.commit:
        found.append(f"the files of {stack.source.folder} have changed")
    return found


def differences(old: Lock | None, new: Lock) -> list[str]:
    """Return what moves from one lock to the other, a line each."""
    before = _flat(old) if old else {}
    after = _flat(new)
    return [
        f"{key}: {before.get(key, 'nothing')} -> {after.get(key, 'nothing')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _commit(root: Path, stack: Stack, settings: Settings, kept: Lock | None, *, offline: bool) -> str:
    if stack.source.commit:
        return stack.source.commit
    if stack.source.folder is None:
        if kept is not None and kept.commit != UNRESOLVED:
            return kept.commit
        if offline:
            return UNRESOLVED
    location = source_location(root, stack, settings)
    return open_source(location, cache=settings.cache, ca_bundle=settings.ca_bundle).resolve(stack.source.ref)


def _base(base: Base, settings: Settings, *, offline: bool) -> LockedBase:
    if base.bootstrap:
        recipe = recipe_sha256(base.bootstrap.suite)
        return LockedBase(image=base_reference(base.bootstrap.suite), recipe_sha256=recipe)
    image = str(base.image)
    if base.digest:
        # a digest that the stack names is the pin itself; the tag only tells a person what it was
        return LockedBase(image=image, digest=base.digest)
    return LockedBase(image=image, digest=UNRESOLVED if offline else manifest_digest(image, settings))


def _wheel(wheel: Wheel, stack: Stack, settings: Settings, kept: Lock | None, *, offline: bool) -> LockedWheel:
    for locked in kept.wheels if kept else ():
        if (locked.name, locked.version) == (wheel.name, wheel.version) and locked.sha256 != UNRESOLVED:
            return locked
    if offline:
        return LockedWheel(name=wheel.name, version=wheel.version, url=UNRESOLVED, sha256=UNRESOLVED)
    found = find_wheel(wheel, python=stack.python, settings=settings)
    return LockedWheel(name=wheel.name, version=wheel.version, url=found.url, sha256=found.sha256)


def _flat(lock: Lock) -> dict[str, str]:
    """Return a lock as dotted keys and texts."""
    flat = {
        "commit": lock.commit,
        "version": lock.version,
        "stack": lock.stack_sha256[:12],
        "template": lock.template_sha256[:12],
    }
    flat |= {f"base {name}": f"{base.image} {base.digest or base.recipe_sha256}" for name, base in lock.bases.items()}
    flat |= {f"wheel {wheel.name}": f"{wheel.version} {wheel.sha256[:12]}" for wheel in lock.wheels}
    return flat | {f"patch {patch.id}": patch.sha256[:12] for patch in lock.patches}
