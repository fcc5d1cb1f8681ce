"""The way from the deployment that runs to a new one, and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builder.deploy.history import Entry, append
from builder.deploy.labels import DEPLOYMENT, PREVIOUS, REFERENCE, Target, container_name, target_of
from builder.deploy.ready import Started, wait_ready
from builder.errors import DeployError
from builder.models.record import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.console import Console
    from builder.engine.port import Container, Engine
    from builder.models.profile import Profile

STOP_SECONDS = 60


@dataclass(kw_only=True)
class Switch:
    """The way from what runs to the new deployment, and back.

    Attributes:
        engine: Where they run.
        profile: The profile of the new one.
        state: The state folder.
        console: Where progress goes.
        old: The profile's own container, in whatever state, or None.
        fresh: The new container, which was not started.
        standing: The running deployments that the new one cannot run beside.
        begun: Ids of those that were told to stop, which may take a while yet.
        now: What runs after a way back, in words.
    """

    engine: Engine
    profile: Profile
    state: Path
    console: Console
    old: Container | None
    fresh: Container
    standing: list[Container]
    begun: set[str] = field(default_factory=set)
    now: str = "nothing runs"

    @property
    def others(self) -> tuple[str, ...]:
        """The profiles of the other deployments that are stopped."""
        return tuple(one.labels[DEPLOYMENT] for one in self.standing if one.labels[DEPLOYMENT] != self.profile.name)

    def make_room(self, cards_free: Callable[[], None]) -> None:
        """Stop what holds the port or the cards."""
        for one in self.standing:
            self.console.step(f"stopping {one.name}, which holds the port or a card of the new one")
            self.begun.add(one.id)
            self.engine.keep_running(one.id, always=False)
            self.engine.stop(one.id, timeout=STOP_SECONDS)
        cards_free()

    def take_over(self) -> None:
        """Give the new container the name and the restart policy; the old one stays on disk as the way back."""
        name = container_name(self.profile.name)
        if self.old is not None:
            previous = self.engine.container(name + PREVIOUS)
            if previous is not None:
                self.engine.remove(previous.id)
            self.engine.rename(self.old.id, name + PREVIOUS)
        self.engine.rename(self.fresh.id, name)
        self.engine.keep_running(self.fresh.id, always=True)

    def record_stopped(self) -> None:
        """Write into the other profiles' histories that they made room."""
        for one in self.standing:
            if one.labels[DEPLOYMENT] != self.profile.name:
                append(self.state, one.labels[DEPLOYMENT], stopped_entry(one, f"made room for {self.profile.name}"))

    def fall_back(self) -> None:
        """Remove the new container and bring back what was stopped."""
        engine, name = self.engine, container_name(self.profile.name)
        engine.stop(self.fresh.id, timeout=STOP_SECONDS)
        engine.remove(self.fresh.id)
        back = []
        for one in self.standing:
            self.console.step(f"bringing {one.name} back")
            if one.id in self.begun:
                # one that an interrupt left on its way down still runs, and even answers
                engine.stop(one.id, timeout=STOP_SECONDS)
            here = engine.container(one.id)
            if here is not None and here.name == name + PREVIOUS:
                engine.rename(one.id, name)
            if here is None or here.state != "running":
                engine.start(one.id)
            target = target_of(one) or Target.of(self.profile)
            try:
                wait_ready(Started(engine, one, self.console.step), target)
            except DeployError as worse:
                self.console.note(f"{one.name} did not come back: {worse.message}")
                continue
            engine.keep_running(one.id, always=True)
            back.append(one.labels[DEPLOYMENT])
        if back:
            own = back == [self.profile.name]
            self.now = "the deployment before it runs again" if own else f"{' and '.join(back)} runs again"


def stopped_entry(container: Container, note: str) -> Entry:
    """Return the history entry of a deployment that was stopped."""
    reference = container.labels.get(REFERENCE, container.image_id)
    return Entry(at=timestamp(), event="stopped", image=reference, image_id=container.image_id, note=note)
