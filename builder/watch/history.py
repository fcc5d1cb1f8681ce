"""What a history says of a few paths: their state at a commit, the commits that changed them, their contents.

Commits and trees are enough for all of it but the contents, so a blob-less mirror answers without the network.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from builder.errors import UpstreamError
from builder.files import MIB
from builder.source.git import DAMAGED
from builder.source.repository import FILE_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builder.source.git import Git
    from builder.source.repository import Source

MOST_STEPS = 20_000
"""Commits that one walk looks at; the engines' upstreams see fewer in a year."""
_NOTHING = "0" * 40


class File(NamedTuple):
    """A file of a tree: its mode in octal digits and its blob."""

    mode: str
    sha: str


@dataclass(frozen=True, kw_only=True)
class Step:
    """A commit that changed some of the paths.

    Attributes:
        sha: The commit.
        parents: Its parents, the first one first.
        before: The changed paths as its first parent has them; None for one that is not there.
    """

    sha: str
    parents: tuple[str, ...]
    before: Mapping[str, File | None]


def is_ancestor(git: Git, old: str, new: str) -> bool:
    """Whether ``new``, which is there, stands on ``old``; a commit that is not there is no ancestor.

    Raises:
        UpstreamError: The history is cut off, so that the answer is unknown.
    """
    if not git.has_commit(old):
        return False
    answer = git.run("merge-base", "--is-ancestor", old, new, check=False, failure=UpstreamError)
    if answer.returncode > 1:
        raise git.failure(("merge-base", old, new), answer, UpstreamError, hint=DAMAGED)
    return answer.returncode == 0


def state_at(git: Git, commit: str, paths: Iterable[str]) -> dict[str, File]:
    """Return mode and blob of those of the paths that are files of a commit."""
    wanted = sorted(set(paths))
    if not wanted:
        return {}
    listed = git.run(
        "--literal-pathspecs", "ls-tree", "-z", "--full-tree", commit, "--", *wanted, failure=UpstreamError
    )
    found = {}
    for line in listed.stdout.split(b"\0")[:-1]:
        fact, _, path = line.partition(b"\t")
        mode, kind, sha = fact.decode().split()
        if kind == "blob":
            found[path.decode(errors="surrogateescape")] = File(mode, sha)
    return found


def steps(git: Git, old: str | None, new: str, paths: Iterable[str], *, most: int) -> list[Step]:
    """Return the commits between two that changed the paths, along first parents, newest first.

    Args:
        git: Git on the repository.
        old: Where to stop: commits that it holds are left out; None for the beginning.
        new: Where to begin.
        paths: The paths.
        most: The most steps to return.
    """
    known = [f"^{old}"] if old and git.has_commit(old) else []
    options = ("--first-parent", "--parents", f"--max-count={MOST_STEPS}")
    lines = git.run("rev-list", *options, new, *known, failure=UpstreamError).text.splitlines()
    parents = {line[:40]: tuple(line.split()[1:]) for line in lines}
    asked = "".join(f"{sha} {above[0]}\n" if above else f"{sha}\n" for sha, above in parents.items())
    compare = ("--literal-pathspecs", "diff-tree", "--stdin", "-r", "-z", "--root", "--no-renames")
    output = git.run(*compare, "--", *sorted(set(paths)), stdin=asked.encode(), failure=UpstreamError)
    found: list[Step] = []
    before: dict[str, File | None] = {}
    parts = iter(output.stdout.decode(errors="surrogateescape").split("\0")[:-1])
    for part in parts:
        if not part.startswith(":"):
            before = {}
            found.append(Step(sha=part, parents=parents[part], before=before))
            continue
        mode, _, sha = part[1:].split()[:3]
        before[next(parts)] = None if sha == _NOTHING else File(mode, sha)
    return found[:most]


def count(git: Git, old: str, new: str) -> int:
    """Return how many commits ``new`` has that ``old`` has not; both are there."""
    return int(git.run("rev-list", "--count", new, f"^{old}", failure=UpstreamError).text)


def touched(git: Git, old: str, new: str) -> dict[str, tuple[str, ...]]:
    """Return the commits between two and the paths that each changed; a merge, whose parents tell it, has none."""
    listed = git.run("rev-list", f"--max-count={MOST_STEPS}", new, f"^{old}", failure=UpstreamError).stdout
    options = ("--stdin", "-r", "-z", "--root", "--no-renames", "--name-only")
    output = git.run("diff-tree", *options, stdin=listed, failure=UpstreamError).stdout
    found: dict[str, list[str]] = {commit: [] for commit in listed.decode().split()}
    paths: list[str] = []
    for part in output.decode(errors="surrogateescape").split("\0")[:-1]:
        # a commit's name stands before the paths that it changed
        if part in found:
            paths = found[part]
        else:
            paths.append(part)
    return {sha: tuple(names) for sha, names in found.items()}


def contents(source: Source, commits: Sequence[str], paths: Iterable[str], files: Iterable[File]) -> dict[str, bytes]:
    """Return the content of blobs, fetched in one transfer when the mirror lacks some.

    Args:
        source: The source.
        commits: Commits whose trees hold the blobs.
        paths: The paths that they stand at.
        files: The files.

    Raises:
        UpstreamError: A blob is not there, is larger than 16 MiB, or the transfer failed.
    """
    wanted = {file.sha for file in files}
    if source.mirror is not None and wanted:
        trees = [f"{commit}^{{tree}}" for commit in dict.fromkeys(commits)]
        options = ("--objects", "--missing=print", "--no-object-names")
        listed = source.git.run(
            "--literal-pathspecs", "rev-list", *options, *trees, "--", *sorted(set(paths)), failure=UpstreamError
        )
        lacking = {line[1:] for line in listed.text.splitlines() if line.startswith("?")} & wanted
        if lacking and (lost := source.mirror.fetch_blobs(lacking)):
            raise UpstreamError(f"{source.location} lacks the blob {min(lost)}, which one of its commits names")
    found = {}
    with contextlib.closing(source.git.read(sorted(wanted))) as objects:
        for sha, _, pieces in objects:
            data = bytearray()
            for piece in pieces:
                data += piece
                if len(data) > FILE_LIMIT:
                    raise UpstreamError(f"the blob {sha} of {source.location} is larger than {FILE_LIMIT // MIB} MiB")
            found[sha] = bytes(data)
    return found
