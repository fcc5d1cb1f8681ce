"""Tell starting, ready and dead apart: by the process, by the log, and by prompts that were answered."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.deploy import warm_up
from builder.deploy.progress import LogReader, first_error, likely_cause
from builder.errors import DeployError

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.deploy.labels import Target
    from builder.deploy.progress import Progress
    from builder.engine.port import Container, Engine

POLL_SECONDS = 0.25
SETTLE_SECONDS = 10.0
READ_SECONDS = 1.0
TAIL_LINES = 30
CAUSE_LINES = 400
REPORT_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the first prompt brought: the model's name, its text, and the seconds since the container's start."""

    model: str
    text: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Warmed:
    """A prompt of the warm-up: its length in tokens and the seconds until it was answered, or why it was not."""

    tokens: int
    seconds: float | None
    note: str = ""


def wait_ready(
    engine: Engine,
    container: Container,
    target: Target,
    *,
    on_progress: Callable[[str], None],
    progress: Progress | None = None,
) -> Answer:
    """Wait until a deployment has answered a prompt.

    Args:
        engine: Where the container runs.
        container: The started container.
        target: How it is asked, and how long it may take.
        on_progress: Called when the server does something else, and now and then while it does the same.
        progress: Takes the log, and gives the words for ``on_progress``.

    Raises:
        DeployError: The process ended, or the time is over; with the log's last lines and the likely cause.
    """
    began = time.monotonic()
    base = target.base(engine)
    watch = _Watch(engine, container, progress, on_progress)
    while True:
        alive(engine, container.id)
        now = time.monotonic() - began
        watch.look(now)
        if warm_up.healthy(base + target.health):
            break
        if now > target.timeout:
            raise DeployError(
                f"{container.name} was not ready after {target.timeout} s\n{tail(engine, container.id)}",
                hint="raise ready.timeout in the profile when it was still loading or compiling",
            )
        time.sleep(POLL_SECONDS)
    left = max(warm_up.REQUEST_SECONDS, target.timeout - now)
    try:
        model, _ = warm_up.served(base)
        text = warm_up.ask(base, model, target.prompt, timeout=left)
    except (*warm_up.UNANSWERED, warm_up.RefusedError) as trouble:
        raise _unanswered(engine, container, "a prompt", trouble) from trouble
    watch.look(time.monotonic() - began)
    return Answer(model=model, text=text, seconds=time.monotonic() - began)


def warm(
    engine: Engine,
    container: Container,
    target: Target,
    *,
    contexts: tuple[int, ...] | None,
    on_progress: Callable[[str], None],
    progress: Progress | None = None,
) -> list[Warmed]:
    """Ask one prompt for each context length, so that the first user does not wait for kernels to be compiled.

    Args:
        engine: Where the container runs.
        container: A container that has answered a prompt.
        target: How it is asked.
        contexts: Prompt lengths in tokens, or None for the usual ones that the model's context allows.
        on_progress: Takes a line a prompt.
        progress: Takes the log.

    Raises:
        DeployError: A prompt was not answered: it would not have been answered to a user either.
    """
    base = target.base(engine)
    watch = _Watch(engine, container, progress, on_progress)
    model, longest = warm_up.served(base)
    done = []
    for tokens in warm_up.contexts_within(longest) if contexts is None else contexts:
        began = time.monotonic()
        try:
            warm_up.ask(base, model, warm_up.prompt_of(tokens), timeout=target.timeout)
        except warm_up.RefusedError as no:
            done.append(Warmed(tokens=tokens, seconds=None, note=str(no)))
            on_progress(f"a prompt of {tokens:,} tokens was refused: {str(no)[:200]}")
        except warm_up.UNANSWERED as trouble:
            raise _unanswered(engine, container, f"a prompt of {tokens:,} tokens", trouble) from trouble
        else:
            seconds = time.monotonic() - began
            done.append(Warmed(tokens=tokens, seconds=round(seconds, 3)))
            on_progress(f"warm-up: {tokens:,} tokens answered in {seconds:.2f} s")
    alive(engine, container.id)
    watch.read()
    return done


def alive(engine: Engine, container_id: str) -> None:
    """Return when a container's process runs.

    Raises:
        DeployError: It does not; with its exit status, the log's last lines and the likely cause.
    """
    container = engine.container(container_id)
    if container is not None and container.state in {"created", "running"}:
        return
    if container is None:
        raise DeployError("the container is gone: somebody removed it")
    told = tail(engine, container_id)
    raise DeployError(
        f"{container.name} ended with status {container.exit_code}\n{told}",
        hint=likely_cause(engine.logs(container_id, tail=CAUSE_LINES), out_of_memory=container.out_of_memory),
    )


def tail(engine: Engine, container_id: str) -> str:
    """Return the last lines of a container's log, set in, and the first error when it is not among them."""
    log = engine.logs(container_id, tail=CAUSE_LINES)
    last = log.splitlines()[-TAIL_LINES:]
    error = first_error(log)
    head = [f"first error: {error}"] if error and not any(error in line for line in last) else []
    return "\n".join([*head, *(f"  | {line}" for line in last)])


class _Watch:
    """Reads a log now and then, and tells what changed."""

    def __init__(
        self, engine: Engine, container: Container, progress: Progress | None, on_progress: Callable[[str], None]
    ) -> None:
        self._reader = LogReader(engine, engine.container(container.id) or container)
        self._progress, self._on_progress = progress, on_progress
        self._read_at = self._told_at = float("-inf")
        self._told = ""

    def read(self, at: float = 0.0) -> None:
        if self._progress is not None:
            self._progress.feed(self._reader.new_lines(), at=at)

    def look(self, at: float) -> None:
        if self._progress is None or at - self._read_at < READ_SECONDS:
            return
        self._read_at = at
        self.read(at)
        text = self._progress.text(at)
        changed = text.partition(" ")[0] != self._told.partition(" ")[0]
        if text != self._told and (changed or at - self._told_at >= REPORT_SECONDS):
            self._told, self._told_at = text, at
            self._on_progress(text)


def _unanswered(engine: Engine, container: Container, what: str, trouble: Exception) -> DeployError:
    """Return the error for a prompt without an answer; a process that dies of it gets the time to be seen dead."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while isinstance(trouble, OSError | ValueError) and time.monotonic() < deadline:
        here = engine.container(container.id)
        if here is None or here.state != "running":
            break
        time.sleep(POLL_SECONDS)
    try:
        alive(engine, container.id)
    except DeployError as dead:
        return DeployError(f"{container.name} did not survive {what}: {dead.message}", hint=dead.hint)
    return DeployError(
        f"{container.name} is healthy but did not answer {what}: {trouble}\n{tail(engine, container.id)}",
        hint="a green /health proves only that the port is open; read the log above",
    )
