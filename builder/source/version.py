"""The version pin: the commit as a PEP 440 version, and whether it arrived in what was built."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

from builder.source.git import require_commit

# what the engines' own setup.py appends: the ROCm release's first three digits, the CPU build, the build of no target
_SUFFIX = re.compile(r"\.(rocm\d{3}|cpu|empty)")
_PINNED = re.compile(r"0\.0\.dev0\+g[0-9a-f]{12}(\.|$)")


def pinned_version(commit: str, *, dirty: bool = False) -> str:
    """Return the version of a build of this commit: ``0.0.dev0+g`` and 12 digits, in canonical PEP 440 form.

    The ``g`` keeps a sha that is all digits from being read as a number, which would lose its leading zeros.

    Args:
        commit: 40 hex digits.
        dirty: Whether uncommitted changes are in the tree; the version then ends in ``.dirty``.

    Raises:
        UsageError: It is no 40-digit commit.
    """
    return f"0.0.dev0+g{require_commit(commit)[:12]}{'.dirty' if dirty else ''}"


def matches(installed: str, pinned: str) -> bool:
    """Whether an installed distribution carries the pin: equal, or with a suffix that the engines' builds append.

    The suffix proves nothing about ROCm; its release is read from the image.
    """
    try:
        have, want = str(Version(installed)), str(Version(pinned))
    except InvalidVersion:
        return False
    return have == want or (have.startswith(want) and _SUFFIX.fullmatch(have[len(want) :]) is not None)


def suspicious(version: str) -> str:
    """Return why a version that a build computed by itself cannot be trusted; empty when nothing is wrong with it.

    Without tags setuptools-scm counts from nothing: 0.1.dev1 and up; without a repository engines fall back to
    0.0.0.dev0 and the like (https://setuptools-scm.readthedocs.io/en/latest/extending/, "guess-next-dev").
    """
    try:
        parsed = Version(version)
    except InvalidVersion:
        return f"{version!r} is no PEP 440 version"
    if _PINNED.match(str(parsed)):
        return ""
    major, minor, micro = (*parsed.release, 0, 0)[:3]
    if (major, minor, micro) == (0, 0, 0) or ((major, minor) == (0, 1) and parsed.dev is not None):
        return f"{version!r} is what a build makes up in a shallow clone, or in one without tags"
    return ""
