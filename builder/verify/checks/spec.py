"""What a check is: a small function whose parameters name the evidence that it looks at."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from builder.errors import UsageError, VerifyError
from builder.models.base import nearest
from builder.models.record import Check

if TYPE_CHECKING:
    from builder.engine.port import Image
    from builder.models.lock import Lock
    from builder.models.stack import Stack
    from builder.objects import Library
    from builder.patching.header import Proof

LABEL = "io.gfx1100."
CHAIN = "/usr/share/gfx1100"
# the parts of the evidence that the inventory of the files tells
FILES = ("links", "foreign", "libamd_smi", "secrets", "installed", "record")
MISSING = {
    "answer": "only an image or a folder of packages can show this",
    "stack": "nothing says what is expected: name it with --stack",
    "lock": "nothing says what is expected: name it with --stack",
}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that the checks look at; None is what this target does not have.

    Attributes:
        arch: The GPU that it is for.
        image: The image as the engine shows it.
        stack: What it was built from.
        lock: The lock that it carries.
        chain: Files below ``/usr/share/gfx1100`` of the image, by relative path.
        distributions: Name and version of each installed distribution.
        own_version: The engine's ``__version__``; empty when it has none.
        answer: What the Python of the image, or of the folder, says of its distributions
            (:mod:`builder.verify.probe`).
        loaded: What happened in the image when modules were imported and extensions loaded.
        links: By library, what is wrong with its linking (:class:`builder.verify.linking.Linker`).
        foreign: The files that are named after another GPU.
        libamd_smi: The copies of that library.
        secrets: Files that belong to the builder.
        installed: Hashes of the installed files that the series touched, by their path in the tree.
        record: The engine's files against the RECORD of its wheel.
        libraries: Content of the engine's extensions, by absolute path.
        objects: The code objects of the engine's extensions, by the glob that must match them.
        proofs: What shows that a patch is in the image, by the patch's id.
    """

    arch: str = "gfx1100"
    image: Image | None = None
    stack: Stack | None = None
    lock: Lock | None = None
    chain: Mapping[str, bytes] | None = None
    distributions: Sequence[Sequence[str]] | None = None
    own_version: str | None = None
    answer: Mapping[str, Any] | None = None
    loaded: Mapping[str, Any] | None = None
    links: Mapping[str, Mapping[str, Any]] | None = None
    foreign: Mapping[str, Any] | None = None
    libamd_smi: Sequence[str] | None = None
    secrets: Sequence[Mapping[str, str]] | None = None
    installed: Mapping[str, str | None] | None = None
    record: Mapping[str, Any] | None = None
    libraries: Mapping[str, bytes] | None = None
    objects: Mapping[str, tuple[Library, ...]] | None = None
    proofs: Mapping[str, tuple[Proof, ...]] | None = None


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    status: Literal["ok", "failed", "skipped"]
    message: str


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A check.

    Attributes:
        id: Its id.
        title: What holds when it passes.
        proves: What that proves; the function's docstring.
        means: What a failure means on the card or for the user.
        fix: What to do about a failure.
        caught: Public failures that it would have caught, and the thread's address, or an empty text.
        needs: The parts of the evidence that it looks at.
        function: The function.
    """

    id: str
    title: str
    proves: str
    means: str
    fix: str
    caught: Mapping[str, str]
    needs: tuple[str, ...]
    function: Callable[..., Finding] = field(repr=False)


CHECKS: dict[str, Spec] = {}


def check(
    identity: str, title: str, *, means: str, fix: str, caught: Mapping[str, str]
) -> Callable[[Callable[..., Finding]], Callable[..., Finding]]:
    """Register a check; the function's docstring is what it proves, its parameters are the evidence that it needs."""

    def register(function: Callable[..., Finding]) -> Callable[..., Finding]:
        CHECKS[identity] = Spec(
            id=identity,
            title=title,
            proves=inspect.getdoc(function) or "",
            means=means,
            fix=fix,
            caught=caught,
            needs=tuple(inspect.signature(function).parameters),
            function=function,
        )
        return function

    return register


def run_checks(evidence: Evidence, *, only: Iterable[str] = (), skip: Iterable[str] = ()) -> tuple[Check, ...]:
    """Run the checks in their order and return what each found.

    Args:
        evidence: What to look at.
        only: The checks to run; none for all.
        skip: Checks to leave out; they are listed as skipped.

    Raises:
        UsageError: A check is not known.
    """
    for name in (*only, *skip):
        if name not in CHECKS:
            raise UsageError(f"there is no check {name!r}{nearest(name, list(CHECKS))}")
    wanted = [spec for spec in CHECKS.values() if not only or spec.id in set(only)]
    return tuple(_run(spec, evidence, left_out=spec.id in set(skip)) for spec in wanted)


def ok(message: str) -> Finding:
    """Return a passed finding."""
    return Finding("ok", message)


def failed(message: str) -> Finding:
    """Return a failed finding."""
    return Finding("failed", message)


def skipped(reason: str) -> Finding:
    """Return a finding that says why nothing could be checked."""
    return Finding("skipped", reason)


def listed(faults: list[str], most: int = 5) -> str:
    """Return faults as one message that stays readable: the first few, and how many more there are."""
    more = f"; and {len(faults) - most} more" if len(faults) > most else ""
    return "; ".join(faults[:most]) + more


def _run(spec: Spec, evidence: Evidence, *, left_out: bool) -> Check:
    parts = {name: getattr(evidence, name) for name in spec.needs}
    missing = [name for name, part in parts.items() if part is None]
    if left_out:
        finding = skipped("left out on request")
    elif missing:
        finding = skipped(MISSING.get(missing[0], "only an image can show this"))
    else:
        try:
            finding = spec.function(**parts)
        except VerifyError as damaged:
            finding = failed(damaged.message)
    bad = finding.status == "failed"
    return Check(
        id=spec.id,
        status=finding.status,
        message=finding.message,
        means=spec.means if bad else "",
        fix=spec.fix if bad else "",
    )
