"""BuildKit's ``--progress=plain`` lines as steps.

The lines are alike from Docker 20.10 to today's buildx: ``#6 [native 3/5] RUN make`` opens a step (and comes again when
the output switches back to it), ``#6 0.345 text`` is what it prints, and ``#6 CACHED``, ``#6 DONE 1.2s`` or
``#6 ERROR: …`` ends it (https://github.com/moby/buildkit/blob/master/util/progress/progressui/printer.go).
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from builder.engine.failures import Kind, kind_of, next_step, sign

TAIL_LINES = 30
_LINE = re.compile(r"#(?P<number>[1-9]\d*) (?P<rest>.*)")  # number 0 is buildx speaking of itself
_TIMED = re.compile(r"\d+\.\d+ ?(?P<text>.*)")
_DONE = re.compile(r"DONE (?P<seconds>\d+(?:\.\d+)?)s")
_INSTRUCTION = re.compile(r"\[(?:\S+ )*\d+/\d+\] ")


@dataclass(kw_only=True)
class Step:
    """One step of a build.

    Attributes:
        number: BuildKit's number of it.
        name: Its heading, such as ``[native 3/5] RUN make``.
        tail: The last lines that it printed.
        state: What is known of it.
        seconds: How long it took, when it ended.
        error: BuildKit's sentence when it failed.
        sign: Class that one of its lines gave away, wherever it stood.
    """

    number: int
    name: str
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    state: Literal["running", "done", "cached", "cancelled", "failed"] = "running"
    seconds: float = 0.0
    error: str = ""
    sign: Kind | None = None

    @property
    def is_instruction(self) -> bool:
        """Whether it is an instruction of the Dockerfile, not the engine's own work; FROM does not count."""
        found = _INSTRUCTION.match(self.name)
        return found is not None and not self.name[found.end() :].startswith("FROM ")


@dataclass(frozen=True, kw_only=True)
class Event:
    """A change that a line brought to a step."""

    kind: Literal["started", "printed", "ended"]
    step: Step


class BuildOutput:
    """The steps of a build, fed with its output line by line."""

    def __init__(self) -> None:
        self.steps: dict[int, Step] = {}
        self.other: deque[str] = deque(maxlen=TAIL_LINES)

    def feed(self, line: str) -> Event | None:
        """Take one line and return what it changed, or None."""
        found = _LINE.match(line)
        if found is None:
            if line.strip():
                self.other.append(line)
            return None
        number, rest = int(found["number"]), found["rest"]
        step = self.steps.get(number)
        if step is None:
            step = self.steps[number] = Step(number=number, name=rest)
            return Event(kind="started", step=step)
        if rest in {step.name, "..."} or rest.startswith("sha256:"):
            return None
        if rest in {"CACHED", "CANCELED"}:
            step.state = "cached" if rest == "CACHED" else "cancelled"
        elif done := _DONE.fullmatch(rest):
            # a step that switches stages may end more than once; a failure stays one
            step.state = "done" if step.state == "running" else step.state
            step.seconds = float(done["seconds"])
        elif rest.startswith("ERROR: "):
            step.state, step.error = "failed", rest.removeprefix("ERROR: ")
        else:
            timed = _TIMED.fullmatch(rest)
            self._print(step, timed["text"] if timed else rest)
            return Event(kind="printed", step=step)
        return Event(kind="ended", step=step)

    @property
    def failed(self) -> Step | None:
        """The step that failed by itself; one that was cancelled because of it comes second."""
        failed = [step for step in self.steps.values() if step.state == "failed"]
        return next((step for step in failed if "context canceled" not in step.error), failed[0] if failed else None)

    @property
    def running(self) -> list[Step]:
        """The steps that have begun and not ended."""
        return [step for step in self.steps.values() if step.state == "running"]

    @staticmethod
    def _print(step: Step, text: str) -> None:
        shown = text.rsplit("\r", 1)[-1].rstrip()
        step.tail.append(shown)
        if step.sign is None:
            step.sign = sign(shown)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a build failed: its class, the next step, and the lines that show it."""

    kind: Kind
    hint: str
    lines: tuple[str, ...]


def classify(output: BuildOutput) -> Failure:
    """Return the class of a failed build, from its failing step or, without one, from the lines beside the steps."""
    step = output.failed
    lines = tuple(output.other if step is None else step.tail)
    kind = kind_of(
        name=step.name if step else "",
        error=step.error if step else "",
        lines=lines,
        early=step.sign if step else next((found for found in map(sign, lines) if found), None),
    )
    return Failure(kind=kind, hint=next_step(kind, (*lines, step.error if step else "")), lines=lines)
