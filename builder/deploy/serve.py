"""Start a deployment and switch over to it; whatever goes wrong, what ran before runs again."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from builder.deploy.history import Entry, append, read_history
from builder.deploy.ready import Answer, healthy, wait_ready
from builder.engine.port import ContainerSpec
from builder.errors import DeployError, ToolError, UsageError
from builder.files import locked
from builder.models.record import timestamp
from builder.verify.checks import LABEL
from builder.verify.trace import DIGEST_LABEL

if TYPE_CHECKING:
    from pathlib import Path

    from builder.console import Console
    from builder.engine.port import Container, Engine, Image
    from builder.models.profile import Profile

DEPLOYMENT = LABEL + "deployment"
STOP_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A deployment that has answered a prompt."""

    container: str
    image: str
    url: str
    answer: Answer

    def as_json(self) -> dict[str, Any]:
        """Return what ``serve --json`` prints."""
        return {
            "container": self.container,
            "image": self.image,
            "url": self.url,
            "model": self.answer.model,
            "text": self.answer.text,
            "seconds": round(self.answer.seconds, 2),
        }


def serve(
    engine: Engine,
    profile: Profile,
    image: Image,
    *,
    reference: str,
    state: Path,
    console: Console,
    environment: dict[str, str] | None = None,
) -> Deployment:
    """Start a profile with an image, wait until it has answered a prompt, and keep it running.

    The deployment that ran before is stopped (its port and its memory are needed), kept on disk, and started
    again when the new one fails.

    Args:
        engine: Where to run.
        profile: How to serve.
        image: The image, which is on the engine already.
        reference: What the image is called in history: ``repository@digest`` or its id.
        state: The state folder.
        console: Where progress goes.
        environment: Variables on top of the profile's.

    Raises:
        DeployError: The new deployment failed; the message says what runs now.
    """
    name = container_name(profile.name)
    with locked(state / "deployments" / f"{profile.name}.lock"):
        _clear_leftovers(engine, profile)
        old = engine.container(name)
        _refuse_foreign(old, profile)
        fresh = engine.create(_spec(profile, image, reference, environment or {}))
        started = time.monotonic()
        try:
            if old is not None:
                console.step(f"stopping the deployment that runs now ({name})")
                engine.keep_running(old.id, always=False)
                engine.stop(old.id, timeout=STOP_SECONDS)
            console.step(f"starting {reference} as {fresh.name}")
            engine.start(fresh.id)
            answer = wait_ready(engine, fresh, profile, on_progress=console.step)
            _take_over(engine, profile, old, fresh)
        except BaseException as trouble:
            _fall_back(engine, profile, old, fresh, console)
            append(state, profile.name, _entry("failed", image, reference, time.monotonic() - started, trouble))
            if not isinstance(trouble, ToolError):
                raise
            kept = (
                "the deployment before it runs again" if old is not None and old.state == "running" else "nothing runs"
            )
            raise DeployError(f"{trouble.message}\n{profile.name} failed; {kept}", hint=trouble.hint) from trouble
        append(state, profile.name, _entry("ready", image, reference, answer.seconds))
    return Deployment(container=name, image=reference, url=f"http://{profile.address}:{profile.port}", answer=answer)


def rollback_image(engine: Engine, profile: Profile, *, state: Path) -> tuple[Image, str]:
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
        raise UsageError(f"the image of the last ready deployment, {entry.image}, is not on this host any more")
    return image, entry.image


def stop(engine: Engine, profile: str, *, state: Path) -> bool:
    """Stop and remove a profile's containers; return whether there was one that ran."""
    ours = engine.containers(f"{DEPLOYMENT}={profile}")
    ran = [container for container in ours if container.state == "running"]
    for container in ours:
        if container.state == "running":
            engine.stop(container.id, timeout=STOP_SECONDS)
        engine.remove(container.id)
    for container in ran:
        reference = container.labels.get(LABEL + "reference", container.image_id)
        append(state, profile, Entry(at=timestamp(), event="stopped", image=reference, image_id=container.image_id))
    return bool(ran)


def container_name(profile: str) -> str:
    """Return the name of a profile's container."""
    return f"gfx1100-{profile}"


def _spec(profile: Profile, image: Image, reference: str, environment: dict[str, str]) -> ContainerSpec:
    return ContainerSpec(
        image=image.id,
        name=f"{container_name(profile.name)}-next",
        command=profile.command,
        environment={**profile.environment, **environment},
        labels={
            DEPLOYMENT: profile.name,
            LABEL + "reference": reference,
            **({DIGEST_LABEL: reference.partition("@")[2]} if "@" in reference else {}),
        },
        ports={profile.port: (profile.address, profile.port)},
        shm_bytes=profile.shm_bytes,
    )


def _clear_leftovers(engine: Engine, profile: Profile) -> None:
    """Remove what a killed run left: containers of ours that never took over."""
    for container in engine.containers(f"{DEPLOYMENT}={profile.name}"):
        if container.name.endswith("-next"):
            engine.stop(container.id, timeout=STOP_SECONDS)
            engine.remove(container.id)


def _refuse_foreign(old: Container | None, profile: Profile) -> None:
    if old is not None and old.labels.get(DEPLOYMENT) != profile.name:
        raise UsageError(
            f"a container called {old.name} is there and is not ours (it has no label {DEPLOYMENT})",
            hint="rename or remove it; this program touches only its own containers",
        )


def _take_over(engine: Engine, profile: Profile, old: Container | None, fresh: Container) -> None:
    """Give the new container the name and the restart policy; the old one stays on disk as the way back."""
    name = container_name(profile.name)
    if old is not None:
        previous = engine.container(f"{name}-previous")
        if previous is not None:
            engine.remove(previous.id)
        engine.rename(old.id, f"{name}-previous")
    engine.rename(fresh.id, name)
    engine.keep_running(fresh.id, always=True)


def _fall_back(engine: Engine, profile: Profile, old: Container | None, fresh: Container, console: Console) -> None:
    engine.stop(fresh.id, timeout=STOP_SECONDS)
    engine.remove(fresh.id)
    if old is None or old.state != "running":
        return
    console.step("bringing the deployment before it back")
    name = container_name(profile.name)
    here = engine.container(old.id)
    if here is not None and here.name != name:
        engine.rename(old.id, name)
    engine.start(old.id)
    wait_ready(engine, old, profile, on_progress=console.step)
    engine.keep_running(old.id, always=True)


def _entry(event: Any, image: Image, reference: str, seconds: float, why: BaseException | None = None) -> Entry:  # noqa: ANN401
    note = "" if why is None else (str(why) or type(why).__name__).splitlines()[0][:200]
    return Entry(at=timestamp(), event=event, image=reference, image_id=image.id, seconds=round(seconds, 2), note=note)


@dataclass(frozen=True, kw_only=True)
class Status:
    """What a deployment is doing."""

    state: str
    profile: str
    digest: str
    since: str
    restarts: int

    def as_json(self) -> dict[str, Any]:
        """Return what ``status --json`` prints."""
        return asdict(self)

    def text(self) -> str:
        """Return it for people."""
        if self.state == "none":
            return f"{self.profile}: none"
        return f"{self.profile}: {self.state} since {self.since}, {self.restarts} restarts\n{self.digest}"


def status(engine: Engine, profile: Profile) -> Status:
    """Return the state of a profile's deployment: starting, ready, dead, stopped or none."""
    container = engine.container(container_name(profile.name))
    if container is None:
        return Status(state="none", profile=profile.name, digest="", since="", restarts=0)
    if container.state in {"created", "running"}:
        state = "ready" if healthy(f"http://{profile.address}:{profile.port}{profile.ready.health}") else "starting"
    else:
        state = "stopped" if container.exit_code == 0 else "dead"
    return Status(
        state=state,
        profile=profile.name,
        digest=container.labels.get(DIGEST_LABEL, container.image_id),
        since=container.started_at,
        restarts=container.restarts,
    )
