"""Tell starting, ready and dead apart: by the process, by the health endpoint, and by a prompt that was answered."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.errors import DeployError

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.engine.port import Container, Engine
    from builder.models.profile import Profile

POLL_SECONDS = 0.25
REQUEST_SECONDS = 5.0
TAIL_LINES = 30
REPORT_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the first prompt brought: the model's name, its text, and the seconds since the container's start."""

    model: str
    text: str
    seconds: float


def wait_ready(engine: Engine, container: Container, profile: Profile, *, on_progress: Callable[[str], None]) -> Answer:
    """Wait until a deployment has answered a prompt.

    Args:
        engine: Where the container runs.
        container: The started container.
        profile: Its port, its health endpoint, its timeout and the prompt.
        on_progress: Called now and then with what the server says it is doing.

    Raises:
        DeployError: The process ended, or the time is over; with the log's last lines and the likely cause.
    """
    started = time.monotonic()
    deadline = started + profile.ready.timeout
    base = f"http://{profile.address}:{profile.port}"
    reported = started
    while True:
        alive(engine, container.id)
        if healthy(base + profile.ready.health):
            return _first_prompt(engine, container, profile, base, deadline, started)
        now = time.monotonic()
        if now > deadline:
            raise DeployError(
                f"{container.name} was not ready after {profile.ready.timeout} s\n{tail(engine, container.id)}",
                hint="raise ready.timeout in the profile when it was still loading or compiling",
            )
        if now - reported >= REPORT_SECONDS:
            reported = now
            last = engine.logs(container.id, tail=1).strip()
            on_progress(f"starting for {now - started:.0f} s of at most {profile.ready.timeout}: {last[-120:]}")
        time.sleep(POLL_SECONDS)


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
    log = tail(engine, container_id)
    raise DeployError(
        f"{container.name} ended with status {container.exit_code}\n{log}",
        hint=likely_cause(log, out_of_memory=container.out_of_memory),
    )


def likely_cause(log: str, *, out_of_memory: bool) -> str:
    """Return what a dead server's last lines point to, and what to do."""
    text = log.lower()
    if out_of_memory:
        return "the kernel killed it for memory: lower the context length, or give the host more memory"
    if "out of memory" in text or "outofmemory" in text:
        return "the card's memory did not suffice: lower --gpu-memory-utilization, --max-model-len or --max-num-seqs"
    if "address already in use" in text:
        return "its port is taken by another program: choose another port in the profile"
    if "failed to infer device type" in text or "no hip gpus" in text:
        return "it sees no GPU: check /dev/kfd, the render nodes and their group ids"
    return "read the log above; `gfx1100 logs` shows all of it"


def tail(engine: Engine, container_id: str) -> str:
    """Return the last lines of a container's log, set in."""
    return "\n".join(f"  | {line}" for line in engine.logs(container_id, tail=TAIL_LINES).splitlines())


def ask(base: str, prompt: str, *, timeout: float) -> tuple[str, str]:
    """Send one sampled prompt to a server and return the model's name and its text.

    A greedy probe can kill an idle queue on gfx1100 (the sampler reads past the end for top_k=0), so it is sampled.

    Raises:
        requests.RequestException: The server did not answer, or not with a completion.
    """
    import requests

    models = requests.get(f"{base}/v1/models", timeout=REQUEST_SECONDS)
    models.raise_for_status()
    name = str(models.json()["data"][0]["id"])
    body = {"model": name, "prompt": prompt, "max_tokens": 8, "temperature": 0.7}
    answer = requests.post(f"{base}/v1/completions", json=body, timeout=timeout)
    answer.raise_for_status()
    value: Any = answer.json()
    return name, str(value["choices"][0]["text"])


def _first_prompt(  # noqa: PLR0917 - one call, beside it
    engine: Engine, container: Container, profile: Profile, base: str, deadline: float, started: float
) -> Answer:
    import requests

    try:
        model, text = ask(base, profile.ready.prompt, timeout=max(1.0, deadline - time.monotonic()))
    except (requests.RequestException, ValueError, KeyError, IndexError) as trouble:
        _settle(engine, container.id)
        alive(engine, container.id)
        raise DeployError(
            f"{container.name} is healthy but did not answer a prompt: {type(trouble).__name__}\n"
            f"{tail(engine, container.id)}",
            hint="a green /health proves only that the port is open; read the log above",
        ) from trouble
    return Answer(model=model, text=text, seconds=time.monotonic() - started)


def _settle(engine: Engine, container_id: str) -> None:
    """Give a process that dies at its first prompt the moment it needs to be seen dead."""
    deadline = time.monotonic() + REQUEST_SECONDS
    while time.monotonic() < deadline:
        container = engine.container(container_id)
        if container is None or container.state != "running":
            return
        time.sleep(POLL_SECONDS)


def healthy(url: str) -> bool:
    """Return whether a health endpoint answers 200."""
    import requests

    try:
        return bool(requests.get(url, timeout=REQUEST_SECONDS).status_code == requests.codes.ok)
    except requests.RequestException:
        return False
