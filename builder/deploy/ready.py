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


class Started:
    """A container that was started: whether it lives, what its log says, and how it gets on.

    Args:
        engine: Where it runs.
        container: The container.
        on_progress: Called when the server does something else, and now and then while it does the same.
        progress: Takes the log, and gives the words for ``on_progress``; without it the log is not read.
    """

    def __init__(
        self,
        engine: Engine,
        container: Container,
        on_progress: Callable[[str], None],
        progress: Progress | None = None,
    ) -> None:
        self.engine, self.name, self._id = engine, container.name, container.id
        self.on_progress = on_progress
        self._reader = LogReader(engine, engine.container(container.id) or container)
        self._progress = progress
        self._read_at = self._told_at = float("-inf")
        self._told = ""

    def check(self) -> None:
        """Return when its process runs.

        Raises:
            DeployError: It does not; with its exit status, the log's last lines and the likely cause.
        """
        here = self.engine.container(self._id)
        if here is not None and here.state in {"created", "running"}:
            return
        if here is None:
            raise DeployError("the container is gone: somebody removed it")
        log = self.engine.logs(self._id, tail=CAUSE_LINES)
        raise DeployError(
            f"{here.name} ended with status {here.exit_code}\n{_tail(log)}",
            hint=likely_cause(log, out_of_memory=here.out_of_memory),
        )

    def read(self, at: float = 0.0) -> None:
        """Take what is new in its log, ``at`` seconds after the start."""
        if self._progress is not None:
            self._progress.feed(self._reader.new_lines(), at=at)

    def look(self, at: float) -> None:
        """Read its log now and then, and tell what changed."""
        if self._progress is None or at - self._read_at < READ_SECONDS:
            return
        self._read_at = at
        self.read(at)
        text = self._progress.text(at)
        changed = text.partition(" ")[0] != self._told.partition(" ")[0]
        if text != self._told and (changed or at - self._told_at >= REPORT_SECONDS):
            self._told, self._told_at = text, at
            self.on_progress(text)

    def failure(self, what: str, hint: str) -> DeployError:
        """Return an error about it, with the last lines of its log."""
        log = self.engine.logs(self._id, tail=CAUSE_LINES)
        return DeployError(f"{self.name} {what}\n{_tail(log)}", hint=hint)

    def unanswered(self, what: str, trouble: Exception) -> DeployError:
        """Return the error for a prompt without an answer; a process that dies of it gets the time to be seen dead."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while isinstance(trouble, OSError | ValueError) and time.monotonic() < deadline:
            here = self.engine.container(self._id)
            if here is None or here.state != "running":
                break
            time.sleep(POLL_SECONDS)
        try:
            self.check()
        except DeployError as dead:
            return DeployError(f"{self.name} did not survive {what}: {dead.message}", hint=dead.hint)
        return self.failure(
            f"is healthy but did not answer {what}: {trouble}",
            "a green /health proves only that the port is open; read the log above",
        )


def wait_ready(started: Started, target: Target) -> Answer:
    """Wait until a deployment has answered a prompt.

    Args:
        started: Its container.
        target: How it is asked, and how long it may take.

    Raises:
        DeployError: The process ended, or the time is over; with the log's last lines and the likely cause.
    """
    began = time.monotonic()
    base = target.base(started.engine)
    while True:
        started.check()
        now = time.monotonic() - began
        started.look(now)
        if warm_up.healthy(base + target.health):
            break
        if now > target.timeout:
            raise started.failure(
                f"was not ready after {target.timeout} s",
                "raise ready.timeout in the profile when it was still loading or compiling",
            )
        time.sleep(POLL_SECONDS)
    left = max(warm_up.REQUEST_SECONDS, target.timeout - now)
    try:
        model, _ = warm_up.served(base)
        text = warm_up.ask(base, model, target.prompt, timeout=left)
    except (*warm_up.UNANSWERED, warm_up.RefusedError) as trouble:
        raise started.unanswered("a prompt", trouble) from trouble
    started.look(time.monotonic() - began)
    return Answer(model=model, text=text, seconds=time.monotonic() - began)


def warm(started: Started, target: Target, contexts: tuple[int, ...] | None) -> list[Warmed]:
    """Ask one prompt for each context length, so that the first user does not wait for kernels to be compiled.

    Args:
        started: The container of a deployment that has answered a prompt.
        target: How it is asked.
        contexts: Prompt lengths in tokens, or None for the usual ones that the model's context allows.

    Raises:
        DeployError: A prompt was not answered: it would not have been answered to a user either.
    """
    base = target.base(started.engine)
    model, longest = warm_up.served(base)
    done = []
    for tokens in warm_up.contexts_within(longest) if contexts is None else contexts:
        began = time.monotonic()
        try:
            warm_up.ask(base, model, warm_up.prompt_of(tokens), timeout=target.timeout)
        except warm_up.RefusedError as no:
            done.append(Warmed(tokens=tokens, seconds=None, note=str(no)))
            started.on_progress(f"a prompt of {tokens:,} tokens was refused: {str(no)[:200]}")
        except warm_up.UNANSWERED as trouble:
            raise started.unanswered(f"a prompt of {tokens:,} tokens", trouble) from trouble
        else:
            seconds = time.monotonic() - began
            done.append(Warmed(tokens=tokens, seconds=round(seconds, 3)))
            started.on_progress(f"warm-up: {tokens:,} tokens answered in {seconds:.2f} s")
    started.check()
    started.read()
    return done


def _tail(log: str) -> str:
    """Return the last lines of a log, set in, and the first error when it is not among them."""
    last = log.splitlines()[-TAIL_LINES:]
    error = first_error(log)
    head = [f"first error: {error}"] if error and not any(error in line for line in last) else []
    return "\n".join([*head, *(f"  | {line}" for line in last)])
