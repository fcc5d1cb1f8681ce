"""The main walk on a small stack: build, verify, publish, pull, serve, prompt, trace; and nothing is left running."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.build.release import release
from builder.build.run import Job, build
from builder.deploy.labels import container_name
from builder.deploy.serve import Deployment, serve, stop
from builder.engine.local import ensure_engine, ensure_registry
from builder.errors import VerifyError
from builder.models.lock import load_lock
from builder.models.profile import load_profile
from builder.models.record import image_reference
from builder.models.stack import load_stack
from builder.registry.pull import pull
from builder.registry.relay import drop_names
from builder.stage.context import Origin
from builder.verify.trace import Trace, trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.console import Console
    from builder.engine.port import Engine
    from builder.models.record import Record
    from builder.settings import Settings

STACK = "smoke"


@dataclass(frozen=True, kw_only=True)
class Walk:
    """What the walk came to."""

    deployment: Deployment
    chain: Trace
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return what ``quickstart --json`` prints."""
        return {
            "deployment": self.deployment.as_json(),
            "links": self.chain.as_json()["links"],
            "seconds": round(self.seconds, 1),
        }

    def text(self) -> str:
        """Return it for people."""
        return (
            f"asked {self.deployment.answer.model!r}, it said: {self.deployment.answer.text!r}\n"
            f"the chain, from the container to the commit:\n{self.chain.text()}\n"
            f"done in {self.seconds:.0f} s"
        )


def walk(root: Path, *, settings: Settings, console: Console, install: bool, keep: bool) -> Walk:
    """Take the smoke stack from its source to an answered prompt and check the chain.

    Args:
        root: The checkout.
        settings: Caches and state.
        console: Where progress goes.
        install: Install a container engine and a registry from the distribution when there are none.
        keep: Leave the engine, the registry and the server running.

    Raises:
        HostError: Something is missing and may not be installed.
        ToolError: A step failed; the message says which.
    """
    started = time.monotonic()
    stack, lock, profile = load_stack(root, STACK), load_lock(root, STACK), load_profile(root, STACK)
    records = root / ".gfx1100" / "records"
    with (
        ensure_engine(install=install, console=console, state=settings.state, keep=keep) as engine,
        ensure_registry(install=install, console=console, state=settings.state, keep=keep) as registry,
        _stopped_after(engine, settings, keep=keep),
    ):
        job = Job(
            root=root,
            stack=stack,
            lock=lock,
            engine=engine,
            origin=Origin(),
            settings=settings,
            console=console,
            install=install,
        )
        record, _ = build(job, records)
        done = release(
            engine,
            record,
            to=f"{registry}/gfx1100/{STACK}",
            settings=settings,
            records=records,
            on_progress=console.detail,
        )
        reference = image_reference(done.record)
        console.step(f"published {reference}, {done.pushed_bytes / 1e6:.1f} MB pushed")
        _forget(engine, done.record, console)
        pulled = pull(engine, reference, records=records, settings=settings, on_progress=console.detail)
        console.step(f"pulled {pulled.pulled_bytes / 1e6:.1f} MB by digest; the record agrees")
        deployment = serve(engine, profile, pulled.image, reference=reference, state=settings.state, console=console)
        console.step(f"{deployment.container} answered a prompt after {deployment.answer.seconds:.1f} s")
        chain = trace(engine, deployment.container, records=records)
    if chain.broken:
        raise VerifyError(f"the chain breaks at {chain.broken.name}:\n{chain.text()}")
    return Walk(deployment=deployment, chain=chain, seconds=time.monotonic() - started)


def _forget(engine: Engine, record: Record, console: Console) -> None:
    """Take the image from the engine, so that the pull brings it from the registry as it does on a GPU host."""
    image = engine.image(record.image_id)
    # the container of a run that was killed may need it still
    drop_names(engine, (*image.tags, *image.repo_digests) if image else (), console.step)


@contextlib.contextmanager
def _stopped_after(engine: Engine, settings: Settings, *, keep: bool) -> Iterator[None]:
    """Stop the server that the walk starts, unless it was running before or is to stay."""
    before = engine.container(container_name(STACK))
    try:
        yield
    finally:
        if not keep and (before is None or before.state != "running"):
            stop(engine, STACK, state=settings.state)
