"""One BuildKit run: live progress, a log file, and a failure told by step, class and next step."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from builder.engine.buildkit import find_builder
from builder.engine.streams import BuildOutput, Event, Failure, Step, classify
from builder.errors import BuildError
from builder.process import Finished, stream
from builder.settings import proxies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.console import Console
    from builder.engine.port import Engine, Image
    from builder.settings import Settings

BUILD_SECONDS = 12 * 3600  # a full build of vLLM's kernels takes up to 2 h; only a hanging one comes here
HEARTBEAT_SECONDS = 30.0
RETRY_SECONDS = (5.0, 30.0)  # waits before a build is run again that the network broke
NAME_WIDTH = 100
NOWHERE = "http://127.0.0.1:9"  # the discard service's port


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """What a build made.

    Attributes:
        image: The engine's image.
        seconds: Wall time, tries after network faults included.
        steps: Instructions of the Dockerfile that the build went through, FROM not counted.
        cached_steps: How many of them came from the cache.
    """

    image: Image
    seconds: float
    steps: int
    cached_steps: int

    @property
    def image_id(self) -> str:
        """The engine's id of the image."""
        return self.image.id


def build_image(
    engine: Engine,
    context: Path,
    *,
    tags: Sequence[str],
    settings: Settings,
    jobs: int,
    log: Path,
    console: Console,
    labels: Mapping[str, str] | None = None,
    no_cache: bool = False,
    target: str | None = None,
    offline: bool = False,
    keeps_cache: bool = False,
) -> BuiltImage:
    """Build the Dockerfile of a context folder on an engine.

    The CA bundle, pip's and apt's settings and the number of jobs reach a RUN through ``--mount=type=secret`` (ids
    ``ca``, ``pip``, ``apt``, ``jobs``), the proxies as BuildKit's predefined arguments, in both cases of their names
    because programs differ: none of them is part of the cache key, of a layer or of the history.

    Args:
        engine: The engine that the image is built on.
        context: The context folder with its ``Dockerfile``.
        tags: Names for the image.
        settings: This machine's certificates, mirrors and their like.
        jobs: Compile jobs.
        log: The log file, written while the build runs.
        console: Where steps, heartbeats and retries are told.
        labels: Labels beside those of the Dockerfile.
        no_cache: Run every step anew.
        target: The stage to stop at.
        offline: Steps reach nobody: pip installs from the wheelhouse alone, and the proxy is one that nobody serves.
        keeps_cache: The image tells which step made which layer, so that a build elsewhere can take them from it.

    Raises:
        BuildError: The build failed; with the failing step, its last lines, its class, the next step and the log.
    """
    began = time.monotonic()
    builder = find_builder({**os.environ, **engine.environment})
    # offline: a network of "none" would change the cache key of every step; a proxy that nobody serves does not
    ways = {"http_proxy": NOWHERE, "https_proxy": NOWHERE} if offline else proxies()
    both = {key: value for name, value in ways.items() for key in (name, name.upper())}
    with tempfile.TemporaryDirectory(prefix="gfx1100-build-") as scratch:
        made, jobs_file = Path(scratch) / "made", Path(scratch) / "jobs"
        jobs_file.write_text(f"{jobs}\n")
        own = _secrets(settings)
        if offline:
            own["pip"] = Path(scratch) / "pip.conf"
            own["pip"].write_text("[global]\nno-index = true\n")
        argv = builder.argv(
            context,
            dockerfile=context / "Dockerfile",
            tags=tags,
            labels=labels or {},
            secrets={**own, "jobs": jobs_file},
            build_args=[*both, *(["BUILDKIT_INLINE_CACHE=1"] if keeps_cache else [])],
            made=made,
            no_cache=no_cache,
            target=target,
            cache_from=[settings.build_cache] if settings.build_cache and not offline else [],
        )
        environment = {**engine.environment, **builder.environment, **both}
        for wait in (*RETRY_SECONDS, None):
            output, finished = _one_run(argv, environment, log, console)
            if finished.returncode == 0:
                break
            failure = classify(output)
            if failure.kind != "network" or wait is None:
                raise _broken(failure, output, finished, log)
            console.note(
                f"the network failed in {_name(output.failed)}; again in {wait:.0f} s, finished layers are kept"
            )
            time.sleep(wait)
        image = next(filter(None, map(engine.image, builder.image_ids(made))), None)
    if image is None:
        raise BuildError(
            f"the engine has no such image after the build; log: {log}", hint="is something else pruning images?"
        )
    instructions = [step for step in output.steps.values() if step.is_instruction]
    return BuiltImage(
        image=image,
        seconds=round(time.monotonic() - began, 1),
        steps=len(instructions),
        cached_steps=sum(step.state == "cached" for step in instructions),
    )


def _secrets(settings: Settings) -> dict[str, Path]:
    """Return the local settings that a build may read but not keep, by secret id (``ca``, ``pip``, ``apt``)."""
    named = {"ca": settings.ca_bundle, "pip": settings.pip_config, "apt": settings.apt_config}
    return {key: Path(path) for key, path in named.items() if path}


def _one_run(
    argv: Sequence[str], environment: Mapping[str, str], log: Path, console: Console
) -> tuple[BuildOutput, Finished]:
    output = BuildOutput()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", buffering=1) as file, _heartbeat(output, console):
        file.write(f"# {dt.datetime.now(dt.UTC).isoformat(timespec='seconds')} {' '.join(argv)}\n")
        finished = stream(
            argv, timeout=BUILD_SECONDS, env=environment, on_line=lambda line: _take(line, output, file, console)
        )
        file.write(f"# ended with status {finished.returncode}\n")
    return output, finished


def _take(line: str, output: BuildOutput, log: TextIO, console: Console) -> None:
    log.write(line + "\n")
    event = output.feed(line)
    if event is None:
        return
    if event.kind == "printed":
        console.detail(f"#{event.step.number} {event.step.tail[-1]}")
    if told := _told(event):
        console.step(told)


def _told(event: Event) -> str:
    """Return the line for an instruction that prints its first line, so that it takes its time, or that ended."""
    step = event.step
    if event.kind == "printed":
        return f"{_name(step)} ..." if len(step.tail) == 1 and step.is_instruction else ""
    if event.kind == "started" or not (step.is_instruction or step.seconds >= 1 or step.state == "failed"):
        return ""
    return f"{_name(step)}: {f'{step.seconds:.1f} s' if step.state == 'done' else step.state}"


@contextlib.contextmanager
def _heartbeat(output: BuildOutput, console: Console) -> Iterator[None]:
    """Say every half minute what the build waits for, and the last line that it printed."""
    ended = threading.Event()
    began = time.monotonic()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            for step in list(output.steps.values()):
                if step.state == "running":
                    last = f": {step.tail[-1][:NAME_WIDTH]}" if step.tail else ""
                    console.step(f"{time.monotonic() - began:.0f} s, waiting for {_name(step)}{last}")

    thread = threading.Thread(target=beat, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _name(step: Step | None) -> str:
    """Return a step's heading on one line of bounded length, without the mounts that lead a RUN."""
    if step is None:
        return "the build"
    words = [word for word in step.name.split() if not word.startswith("--mount=")]
    text = " ".join(words)
    return text if len(text) <= NAME_WIDTH else text[: NAME_WIDTH - 3] + "..."


def _broken(failure: Failure, output: BuildOutput, finished: Finished, log: Path) -> BuildError:
    step = output.failed
    ended = step.error if step else f"status {finished.returncode}"
    # the engine's sentence about a command repeats all of it
    exited = re.search(r"exit code: \d+$", ended)
    told = f"{_name(step)} failed ({failure.kind}): {exited[0] if exited else ended[-200:]}"
    lines = failure.lines or tuple(output.other)
    return BuildError("\n".join([told, *(f"  {line}" for line in lines), f"log: {log}"]), hint=failure.hint)
