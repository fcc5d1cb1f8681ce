"""Why a step of a build failed: its class, read from what it printed, and the next step for the user.

The signs are messages of the tools that run in a build: of the kernel and the compilers for memory, of libc for space,
of apt, pip, curl, git and BuildKit for the network.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["memory", "space", "network", "base", "compile", "guard", "patch", "unknown"]

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


def sign(line: str) -> Kind | None:
    """Return the class that one printed line gives away for its whole step, or None."""
    return next((kind for kind, pattern in _EVERYWHERE if pattern.search(line)), None)


def kind_of(*, name: str, error: str, lines: Sequence[str], early: Kind | None) -> Kind:
    """Return the class of a failure.

    Args:
        name: The failed step's heading; empty when no step failed.
        error: BuildKit's sentence about it; empty likewise.
        lines: The last lines that it printed.
        early: What :func:`sign` said of any of its lines.
    """
    exited = _EXIT.search(error)
    if exited is not None and int(exited["code"]) == KILLED:
        return "memory"
    if early is not None:
        return early
    if any(map(_STATUS_NINE.search, lines)) and not any(map(_COMPILE.search, lines)):
        return "memory"
    # the sentence about a program that ended holds its whole command, whose text would deceive
    told = list(lines) if exited is not None else [*lines, error]
    if "load metadata for" in name and error.endswith("not found"):
        return "base"
    return next((kind for kind, pattern in _LAST if any(map(pattern.search, told))), "unknown")


def next_step(kind: Kind, lines: Sequence[str]) -> str:
    """Return what to do about a failure of a class, with these last lines."""
    return _TRUST if kind == "network" and any(map(_CERTIFICATE.search, lines)) else _NEXT[kind]
