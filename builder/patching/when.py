"""Whether a tree is one that a patch is meant for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from builder.errors import UsageError
from builder.patching.edits import count_places
from builder.patching.text import told_lines

if TYPE_CHECKING:
    from builder.models.record import Outcome
    from builder.patching.header import Assumption, Header, Place
    from builder.patching.tree import View


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of the tree and of the build; None is unknown.

    Attributes:
        repository: The repository that the stack names, not the mirror that the source was fetched from.
        commit: The tree's commit.
        rocm: The stack's ROCm release.
        parameters: The stack's parameters.
        is_ancestor: Says whether the first commit is the second or an ancestor of it; None when it is unknown.
        unneeded: Patches that something outside the tree makes needless, such as the build's compiler, and the fact.
    """

    repository: str | None = None
    commit: str | None = None
    rocm: str | None = None
    parameters: Mapping[str, int] = field(default_factory=dict)
    is_ancestor: Callable[[str, str], bool | None] | None = None
    unneeded: Mapping[str, str] = field(default_factory=dict)


def outside(header: Header, view: View, facts: Facts) -> tuple[Outcome | None, str]:
    """Return ``unneeded`` or ``failed`` and the fact, when a tree is not one for the patch; else None.

    What is unknown does not count as outside: then the anchors decide. The ROCm release is the exception, as no anchor
    can tell it.
    """
    if header.id in facts.unneeded:
        return "unneeded", facts.unneeded[header.id]
    if reason := _elsewhere(header, view, facts):
        return "unneeded", reason
    wanted = header.applies_to.rocm
    if wanted is not None:
        if facts.rocm is None:
            return "failed", f"it is for ROCm {wanted}, and the stack does not name its ROCm release"
        if not SpecifierSet(wanted).contains(_version(facts.rocm), prereleases=True):
            return "unneeded", f"it is for ROCm {wanted}, and the stack has {facts.rocm}"
    for sign in header.unneeded_when:
        if _lines(view, sign)[0]:
            return "unneeded", f"{sign.reason} ({sign.file})"
    broken = [fault for assumption in header.assume if (fault := _fault(view, assumption))]
    return ("failed", "; ".join(broken)) if broken else (None, "")


def _elsewhere(header: Header, view: View, facts: Facts) -> str:
    """Return why repository, commit or files put a tree outside, or an empty text."""
    meant = header.applies_to
    if meant.repository is not None and facts.repository is not None:
        one, other = repository_name(meant.repository), repository_name(facts.repository)
        if one != other:
            return f"it is for {one}, and this tree is of {other}"
    if facts.commit is not None and facts.is_ancestor is not None:
        if meant.since is not None and facts.is_ancestor(meant.since, facts.commit) is False:
            return f"it is for commits since {meant.since[:12]}, and {facts.commit[:12]} is none of them"
        if meant.until is not None and facts.is_ancestor(meant.until, facts.commit) is True:
            return f"it is for commits before {meant.until[:12]}, and {facts.commit[:12]} holds that one"
    if meant.file is not None and view.source(meant.file) is None:
        return f"it is for trees with {meant.file}, and this one has none"
    return ""


def repository_name(url: str) -> str:
    """Return what names a repository in all the forms of its URL: host and path, in small letters."""
    bare = re.sub(r"^(?:[a-z+]+://)?(?:[^@/]*@)?", "", url.strip().lower())
    return re.sub(r"^([^/:]+):(?:\d+/)?/?", r"\1/", bare).rstrip("/").removesuffix(".git")


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as trouble:
        raise UsageError(f"the ROCm release {text!r} is no version") from trouble


def _lines(view: View, place: Place) -> tuple[tuple[int, ...], str]:
    source = view.source(place.file)
    if source is None:
        return (), f"upstream moved: {place.file} is not in the tree"
    wanted = place.text if place.text is not None else place.regex or ""
    return count_places(source, wanted, regex=place.regex is not None, scope=place.scope, file=place.file)


def _fault(view: View, assumed: Assumption) -> str:
    lines, fault = _lines(view, assumed)
    if fault:
        return fault
    if len(lines) == assumed.count if assumed.count is not None else len(lines) <= (assumed.at_most or 0):
        return ""
    limit = assumed.count if assumed.count is not None else f"at most {assumed.at_most}"
    what = assumed.text if assumed.text is not None else assumed.regex
    stands = f"`{what}` stands {len(lines)} times{told_lines(lines)}"
    return f"upstream moved: {assumed.file}: {stands}, and the patch knows {limit}"
