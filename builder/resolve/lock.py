"""Resolve a stack into its lock, and say what moved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builder.engine.base import base_reference, recipe_sha256
from builder.errors import UpstreamError, UsageError
from builder.files import canonical_json, sha256, write_atomic
from builder.models.lock import UNRESOLVED, Lock, LockedBase, LockedFetch, LockedWheel, load_lock, lock_path
from builder.models.stack import REHEARSAL
from builder.registry.client import manifest_digest
from builder.registry.reference import HUB, parse_reference
from builder.resolve.wheelhouse import local_wheel
from builder.resolve.wheels import find_wheel, is_version
from builder.source.repository import open_source
from builder.stage.inputs import engine_version, locked_patches, series_of, source_location
from builder.stage.render import template_sha256

if TYPE_CHECKING:
    from builder.console import Console
    from builder.models.stack import Base, Fetch, Stack, Wheel
    from builder.resolve.wheels import Found
    from builder.settings import Settings

NOWHERE = "0" * 40  # stands for the lock's commit while the user's own is built


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
        version=_version(stack, commit),
        bases={
            name: _base(base, kept.bases.get(name) if kept else None, settings, offline=offline)
            for name, base in stack.bases.named().items()
        },
        wheels=tuple(_wheel(wheel, stack, settings, kept, offline=offline) for wheel in stack.wheels),
        requirements=kept.requirements if kept and kept.stack_sha256 == stack_sha256(stack) else (),
        fetched=tuple(_fetch(fetch, settings, kept, offline=offline) for fetch in stack.fetch),
        patches=locked_patches(series_of(root, stack)),
        template_sha256=template_sha256(root, stack),
    )


def ensure_lock(root: Path, stack: Stack, *, settings: Settings, console: Console, commit: bool = True) -> Lock:
    """Return the lock of a stack for a build; what is unresolved in it is resolved first, and the lock written.

    Args:
        root: The checkout.
        stack: What to build.
        settings: Caches, CA bundle, wheelhouse.
        console: Where that is told.
        commit: The build takes the lock's commit, and not one that the user named.

    Raises:
        UsageError: There is no lock, or it is stale.
        UpstreamError: Something is unresolved, and who knows it could not be asked.
    """
    path = lock_path(root, stack.name)
    own = stack.name.endswith(REHEARSAL)
    previous = load_lock(root, stack.name) if path.exists() or not own else None
    outdated = stale(root, stack, previous, settings=settings) if previous else []
    if previous is not None and outdated and not own:
        raise UsageError(f"{path} is stale: {'; '.join(outdated)}", hint=f"run `gfx1100 lock {stack.name}`")
    # a rehearsal's lock is this machine's own and follows its stack by itself
    lacking = [name for name in previous.unresolved() if commit or name != "commit"] if previous else []
    if previous is not None and not outdated and not lacking:
        return previous
    if previous is not None:
        console.step(f"resolving {', '.join(lacking or outdated)}")
    at = previous.model_copy(update={"commit": NOWHERE}) if previous and not commit else previous
    fresh = resolve(root, stack, settings=settings, previous=None if outdated else at)
    if not commit and previous is not None:
        fresh = fresh.model_copy(update={"commit": previous.commit, "version": previous.version})
    for line in differences(previous, fresh):
        console.detail(line)
    write_atomic(path, fresh.text())
    return fresh


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
    version = _version(stack, lock.commit)
    if lock.version != version:
        found.append(f"the version is {lock.version}, and its commit's is {version}")
    for name, base in stack.bases.named().items():
        locked = lock.bases.get(name)
        if base.bootstrap and locked and locked.recipe_sha256 != recipe_sha256(base.bootstrap.suite):
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


def _version(stack: Stack, commit: str) -> str:
    return UNRESOLVED if commit == UNRESOLVED else engine_version(stack, commit)


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


def _base(base: Base, kept: LockedBase | None, settings: Settings, *, offline: bool) -> LockedBase:
    if base.bootstrap:
        recipe = recipe_sha256(base.bootstrap.suite)
        return LockedBase(image=base_reference(base.bootstrap.suite), recipe_sha256=recipe)
    image = str(base.image)
    if base.digest:
        # a digest that the stack names is the pin itself; the tag only tells a person what it was
        return LockedBase(image=image, digest=base.digest)
    if kept is not None and kept.image == image and kept.digest not in {None, UNRESOLVED}:
        return kept
    return LockedBase(image=image, digest=UNRESOLVED if offline else manifest_digest(_asked(image, settings), settings))


def _asked(image: str, settings: Settings) -> str:
    """Return where an image's digest is asked for: a mirror stands for the registry of names without a host."""
    named = parse_reference(image)
    if settings.registry_mirror is None or named.host != HUB:
        return image
    return f"{settings.registry_mirror}/{str(named).removeprefix(f'{HUB}/')}"


def _wheel(wheel: Wheel, stack: Stack, settings: Settings, kept: Lock | None, *, offline: bool) -> LockedWheel:
    for locked in kept.wheels if kept else ():
        same = locked.name == wheel.name and is_version(locked.version, wheel.version)
        if same and locked.sha256 != UNRESOLVED:
            return locked
    if offline:
        return LockedWheel(name=wheel.name, version=wheel.version, url=UNRESOLVED, sha256=UNRESOLVED)
    found = _found(wheel, stack.python, settings)
    return LockedWheel(name=wheel.name, version=found.version, url=found.url, sha256=found.sha256)


def _found(wheel: Wheel, python: str, settings: Settings) -> Found:
    """Return a wheel of its index; when that cannot be asked, of the wheelhouse or of a mirror that pip here knows."""
    if wheel.index is None:
        return local_wheel(wheel, python=python, folder=settings.wheels)
    try:
        return find_wheel(wheel, python=python, settings=settings)
    except UpstreamError as silent:
        try:
            return local_wheel(wheel, python=python, folder=settings.wheels)
        except UpstreamError:
            raise silent from None


def _fetch(fetch: Fetch, settings: Settings, kept: Lock | None, *, offline: bool) -> LockedFetch:
    known = next((old.commit for old in kept.fetched if old.name == fetch.name), UNRESOLVED) if kept else UNRESOLVED
    if known == UNRESOLVED and not offline:
        source = open_source(fetch.repository, cache=settings.cache, ca_bundle=settings.ca_bundle)
        return LockedFetch(name=fetch.name, commit=source.resolve(fetch.ref))
    return LockedFetch(name=fetch.name, commit=known)


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
    flat |= {f"requirement {wheel.name}": f"{wheel.version} {wheel.sha256[:12]}" for wheel in lock.requirements}
    flat |= {f"fetch {fetch.name}": fetch.commit for fetch in lock.fetched}
    return flat | {f"patch {patch.id}": patch.sha256[:12] for patch in lock.patches}
