"""Start a deployment and switch over to it; whatever goes wrong, what ran before runs again.

A card cannot hold two models and a published port cannot move to another container, so the old deployment is stopped
just before the new one starts, when everything that can be known without starting it is known. What holds neither a
card of the new one nor its port runs on.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from builder.deploy.history import Entry, append, read_history
from builder.deploy.labels import DEPLOYMENT, NEXT, Target, container_name, rivals
from builder.deploy.progress import Progress
from builder.deploy.ready import Answer, Started, Warmed, wait_ready, warm
from builder.deploy.spec import CACHE, CACHES, Placement, container_spec, owner
from builder.deploy.switch import STOP_SECONDS, Switch, stopped_entry
from builder.errors import DeployError, ToolError, UsageError
from builder.files import locked
from builder.models.record import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.console import Console
    from builder.engine.port import Container, ContainerSpec, Engine, Image
    from builder.models.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A deployment that has answered a prompt.

    Attributes:
        container: Its container's name.
        image: What was started.
        url: Where it is asked.
        answer: The first prompt's answer.
        warmed: The prompts of the warm-up.
        warnings: Silent fallbacks that its log told of.
        figures: Numbers that its log told, such as kv_tokens.
        stopped: Other deployments that had to make room.
    """

    container: str
    image: str
    url: str
    answer: Answer
    warmed: tuple[Warmed, ...] = ()
    warnings: tuple[str, ...] = ()
    figures: dict[str, int] = field(default_factory=dict)
    stopped: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what ``serve --json`` prints."""
        return {
            "container": self.container,
            "image": self.image,
            "url": self.url,
            "model": self.answer.model,
            "text": self.answer.text,
            "seconds": round(self.answer.seconds, 2),
            "warm_up": [asdict(one) for one in self.warmed],
            "warnings": list(self.warnings),
            "figures": self.figures,
            "stopped": list(self.stopped),
        }

    def text(self) -> str:
        """Return it for people."""
        lines = [f"ready after {self.answer.seconds:.1f} s: {self.url}"]
        lines.append(f"asked, {self.answer.model} said: {self.answer.text!r}")
        if "kv_tokens" in self.figures:
            lines.append(f"the KV cache holds {self.figures['kv_tokens']:,} tokens")
        lines += [f"stopped to make room: {name}" for name in self.stopped]
        return "\n".join([*lines, *(f"warning: {line}" for line in self.warnings)])


def serve(
    engine: Engine,
    profile: Profile,
    image: Image,
    *,
    reference: str,
    state: Path,
    console: Console,
    placement: Placement = Placement(),  # noqa: B008 - frozen
    contexts: tuple[int, ...] | None = None,
    cards_free: Callable[[], None] = lambda: None,
) -> Deployment:
    """Start a profile with an image, wait until it has answered a prompt, warm it up, and keep it running.

    The deployments that hold its port or a card of it are stopped first, kept on disk, and started again when the
    new one fails.

    Args:
        engine: Where to run.
        profile: How to serve.
        image: The image, which is on the engine already.
        reference: What the image is called in history: ``repository@digest`` or its id.
        state: The state folder.
        console: Where progress goes.
        placement: Devices, groups and model folders.
        contexts: Prompt lengths of the warm-up, or None for the usual ones.
        cards_free: Returns once the memory of the chosen cards is free; called when the old deployment has ended.

    Raises:
        DeployError: The new deployment failed; the message says what runs now.
        UsageError: A container of somebody else has its name.
    """
    name = container_name(profile.name)
    target = Target.of(profile)
    url = target.base(engine)
    with locked(state / "deployments" / "lock"):
        _clear_leftovers(engine, profile)
        old = engine.container(name)
        _refuse_foreign(old, profile)
        fresh = _created(engine, container_spec(profile, image, reference, placement), image)
        standing = rivals(engine, profile, placement.devices)
        progress = Progress(profile, usual=read_history(state, profile.name).usual_seconds(image.id))
        switch = Switch(
            engine=engine, profile=profile, state=state, console=console, old=old, fresh=fresh, standing=standing
        )
        began = time.monotonic()
        try:
            switch.make_room(cards_free)
            console.step(f"starting {reference} as {fresh.name}")
            engine.start(fresh.id)
            _check_memory(engine, fresh, profile)
            started = Started(engine, fresh, console.step, progress)
            answer = wait_ready(started, target)
            console.step(f"answered a prompt after {answer.seconds:.1f} s")
            warmed = warm(started, target, contexts)
            switch.take_over()
        except BaseException as trouble:
            switch.fall_back()
            append(state, profile.name, _entry(image, reference, placement, time.monotonic() - began, trouble))
            if not isinstance(trouble, ToolError):
                console.note(f"{profile.name} was interrupted; {switch.now}")
                raise
            raise DeployError(f"{trouble.message}\n{profile.name} failed; {switch.now}", hint=trouble.hint) from trouble
        entry = _entry(image, reference, placement, answer.seconds, None)
        kv_tokens = progress.figures.get("kv_tokens", 0)
        append(state, profile.name, entry.model_copy(update={"kv_tokens": kv_tokens}))
        switch.record_stopped()
    return Deployment(
        container=name,
        image=reference,
        url=url,
        answer=answer,
        warmed=tuple(warmed),
        warnings=tuple(progress.warnings()),
        figures=dict(progress.figures),
        stopped=switch.others,
    )


def rollback_image(engine: Engine, profile: Profile, *, state: Path) -> tuple[Image, Entry]:
    """Return the image of the last ready deployment that is not the one which runs now; nothing is pulled.

    Raises:
        UsageError: There is none, or its image is gone from this host.
    """
    current = engine.container(container_name(profile.name))
    entry = read_history(state, profile.name).last_ready(but=current.image_id if current else "")
    if entry is None:
        raise UsageError(f"{profile.name} has no earlier deployment that was ready")
    image = engine.image(entry.image_id) or engine.image(entry.image)
    if image is None:
        raise UsageError(
            f"the image of the last ready deployment, {entry.image}, is not on this host any more",
            hint=f"gfx1100 serve {profile.name} --image {entry.image}",
        )
    return image, entry


def stop(engine: Engine, profile: str, *, state: Path) -> bool:
    """Stop and remove a profile's containers; return whether there was one that ran."""
    ours = engine.containers(f"{DEPLOYMENT}={profile}")
    ran = [container for container in ours if container.state == "running"]
    for container in ours:
        if container.state in {"running", "restarting", "paused"}:
            engine.keep_running(container.id, always=False)
            engine.stop(container.id, timeout=STOP_SECONDS)
        engine.remove(container.id)
    for container in ran:
        append(state, profile, stopped_entry(container, ""))
    return bool(ran)


def _created(engine: Engine, spec: ContainerSpec, image: Image) -> Container:
    made = engine.create(spec)
    try:
        if spec.volumes:
            user, group = owner(image)
            engine.add_folders(made.id, CACHE, sorted(CACHES.values()), user=user, group=group)
    except BaseException:
        engine.remove(made.id)
        raise
    return made


def _check_memory(engine: Engine, fresh: Container, profile: Profile) -> None:
    """Read back the size of /dev/shm: the engine's default of 64 MB is a bus error with two cards."""
    here = engine.container(fresh.id)
    if profile.shm_bytes is not None and here is not None and here.shm_bytes != profile.shm_bytes:
        raise DeployError(
            f"{engine.name} gave {fresh.name} a /dev/shm of {here.shm_bytes:,} bytes, {profile.shm_bytes:,} were asked",
            hint="set the engine's default-shm-size, or take shm_bytes out of the profile to share the host's",
        )


def _clear_leftovers(engine: Engine, profile: Profile) -> None:
    """Remove what a killed run left: containers of ours that never took over."""
    for container in engine.containers(f"{DEPLOYMENT}={profile.name}"):
        if container.name.endswith(NEXT):
            engine.stop(container.id, timeout=STOP_SECONDS)
            engine.remove(container.id)


def _refuse_foreign(old: Container | None, profile: Profile) -> None:
    if old is not None and old.labels.get(DEPLOYMENT) != profile.name:
        raise UsageError(
            f"a container called {old.name} is there and is not ours (it has no label {DEPLOYMENT})",
            hint="rename or remove it; this program touches only its own containers",
        )


def _entry(image: Image, reference: str, placement: Placement, seconds: float, why: BaseException | None) -> Entry:
    note = "" if why is None else (str(why) or type(why).__name__).splitlines()[0][:200]
    return Entry(
        at=timestamp(),
        event="ready" if why is None else "failed",
        image=reference,
        image_id=image.id,
        seconds=round(seconds, 2),
        note=note,
        model=str(placement.model or ""),
        drafter=str(placement.drafter or ""),
    )
