"""BuildKit's ``--progress=plain`` lines as steps, and why the one that failed did: its class and the next step.

The lines are alike from Docker 20.10 to today's buildx: ``#6 [native 3/5] RUN make`` opens a step (and comes again when
the output switches back to it), ``#6 0.345 text`` is what it prints, and ``#6 CACHED``, ``#6 DONE 1.2s`` or
``#6 ERROR: …`` ends it (https://github.com/moby/buildkit/blob/master/util/progress/progressui/printer.go).

The signs of a class are messages of the tools that run in a build: of the kernel and the compilers for memory, of libc
for space, of apt, pip, curl, git and BuildKit for the network.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["memory", "space", "network", "base", "compile", "guard", "patch", "unknown"]

TAIL_LINES = 30
_LINE = re.compile(r"#(?P<number>[1-9]\d*) (?P<rest>.*)")  # number 0 is buildx speaking of itself
_TIMED = re.compile(r"\d+\.\d+ ?(?P<text>.*)")
_DONE = re.compile(r"DONE (?P<seconds>\d+(?:\.\d+)?)s")
_INSTRUCTION = re.compile(r"\[(?:\S+ )*\d+/\d+\] ")
KILLED = 137  # 128 + SIGKILL, what a shell makes of it
_EXIT = re.compile(r"exit code: (?P<code>\d+)$")
_STATUS_NINE = re.compile(r"exit status -?9\b")
_CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED|certificate verif|x509: |curl: \(60\)")
_BASE_GONE = re.compile(r"manifest (?:for \S+ )?(?:unknown|not found)|pull access denied")
_COMPILE = re.compile(
    r"^.*:\d+(?::\d+)?: (?:fatal )?error: |^FAILED: |undefined (?:reference|symbol)"
    r"|^(?:ld|ld\.lld|lld|collect2): .*error|^error: command .*(?:clang|g\+\+|gcc|hipcc).* failed"
    r"|^CMake Error|^error\[E\d+\]"
)
_NETWORK = re.compile(
    r"Temporary failure (?:in name resolution|resolving)|Could not resolve|no such host|Name or service not known"
    r"|Connection (?:timed out|refused|reset)|connection (?:timed out|refused|reset)|Network is unreachable"
    r"|TLS handshake|i/o timeout|[Rr]ead timed out|CERTIFICATE_VERIFY_FAILED|certificate verif|x509: |SSLError"
    r"|gnutls_handshake|HTTPSConnectionPool|NewConnectionError|Failed to fetch |Unable to connect to|Hash Sum mismatch"
    r"|early EOF|unexpected EOF|RPC failed|dial tcp|error sending request|curl: \((?:6|7|28|35|52|56|60)\)"
)
# Signs that decide wherever the step printed them: jobs that run beside the killed one print on after it.
_EVERYWHERE: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("space", re.compile(r"No space left on device|ENOSPC|Disk quota exceeded|not enough free space", re.IGNORECASE)),
    (
        "memory",
        re.compile(
            r"\bKilled$|Killed signal|signal: killed|SIGKILL|command failed due to signal 9"
            r"|[Oo]ut of memory|std::bad_alloc|Cannot allocate memory|virtual memory exhausted",
        ),
    ),
)
# Signs that decide only among the last lines; the first that matches counts.
_LAST: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("guard", re.compile(r"^gfx1100-(guard|parts): ")),
    ("patch", re.compile(r"^error: patch failed|patch does not apply|Hunk #\d+ FAILED")),
    ("base", _BASE_GONE),
    ("network", _NETWORK),
    ("base", re.compile(r"failed to resolve source metadata|failed to solve.*: not found")),
    ("compile", _COMPILE),
)
_NEXT: dict[Kind, str] = {
    "memory": "out of memory: retry with fewer compile jobs (--jobs), or on a host with more memory",
    "space": "no space, or no inodes, where the engine keeps its data: see `docker system df`, make room "
    "(`docker builder prune`), then run it again",
    "network": "the network failed: check the mirror, the proxy and the name server, then run it again; "
    "finished layers are kept",
    "base": "the base image is gone from its registry, or was never there: "
    "`gfx1100 lock STACK --update` shows what its tag points at now",
    "compile": "the compiler refused the source: the log has its first error; a patch or a toolchain that does not fit "
    "the commit is the usual cause",
    "guard": "a guard of the Dockerfile stopped the build: its line says what is wrong; "
    "mend the stack's wheels, constraints or budget",
    "patch": "a patch does not apply: `gfx1100 patches check STACK` says which one and where",
    "unknown": "read the last lines above, then the whole log",
}
_TRUST = (
    "a certificate was not trusted: set ca_bundle in gfx1100.local.yaml to the CA of your proxy or mirror, "
    "then run it again"
)


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

    @staticmethod
    def _print(step: Step, text: str) -> None:
        shown = text.rsplit("\r", 1)[-1].rstrip()
        step.tail.append(shown)
        if step.sign is None:
            step.sign = _sign(shown)


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
    error = step.error if step else ""
    kind = _kind(step, error, lines)
    distrusted = kind == "network" and any(map(_CERTIFICATE.search, (*lines, error)))
    return Failure(kind=kind, hint=_TRUST if distrusted else _NEXT[kind], lines=lines)


def _kind(step: Step | None, error: str, lines: tuple[str, ...]) -> Kind:
    exited = _EXIT.search(error)
    if exited is not None and int(exited["code"]) == KILLED:
        return "memory"
    early = step.sign if step else next((found for found in map(_sign, lines) if found), None)
    if early is not None:
        return early
    if any(map(_STATUS_NINE.search, lines)) and not any(map(_COMPILE.search, lines)):
        return "memory"
    if step is not None and "load metadata for" in step.name and error.endswith("not found"):
        return "base"
    # the sentence about a program that ended holds its whole command, whose text would deceive
    told = lines if exited is not None else (*lines, error)
    return next((kind for kind, pattern in _LAST if any(map(pattern.search, told))), "unknown")


def _sign(line: str) -> Kind | None:
    """Return the class that one printed line gives away for its whole step, or None."""
    return next((kind for kind, pattern in _EVERYWHERE if pattern.search(line)), None)
