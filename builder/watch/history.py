"""What upstream's history says: what lies between pin and head, and of a few paths their states and contents.

Commits and trees are enough for all of it but the contents, so a blob-less mirror answers without the network.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from builder.errors import UpstreamError
from builder.source.git import GoneError
from builder.source.repository import git_time
from builder.watch.areas import areas_of
from builder.watch.report import UpstreamCommit
from builder.watch.words import short

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from builder.source.git import Git
    from builder.source.repository import Source

MOST_STEPS = 20_000
"""Commits that one walk looks at; the engines' upstreams see fewer in a year."""
MOST_COMMITS = 1000
"""Commits of one report."""
TITLE_CHARACTERS = 200
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


@dataclass(frozen=True, kw_only=True)
class Gap:
    """What lies between a commit that is known and the head.

    Attributes:
        rewritten: The known commit is no ancestor of the head.
        ahead: How many commits the head has on top of it; None when it was rewritten.
        commits: Those commits, newest first, at most 1,000.
        targets: The targets that they touch.
    """

    rewritten: bool
    ahead: int | None
    commits: tuple[UpstreamCommit, ...] = ()
    targets: tuple[str, ...] = ()


def head_of(source: Source, ref: str) -> str | None:
    """Return the commit that a branch names now, or None when the repository says that it has no such branch.

    Raises:
        UpstreamError: The repository could not be asked: unknown.
    """
    try:
        return source.resolve(ref)
    except GoneError:
        return None


def where_it_went(source: Source, ref: str, seen: str | None) -> str:
    """Return a hint for a branch that is gone: the branch that holds what it held, or whose name is near."""
    try:
        branches = source.branches()
    except UpstreamError:
        return ""
    same = sorted(name for name, commit in branches.items() if commit == seen)
    if same:
        return f"renamed? {same[0]} holds the commit that it held"
    near = difflib.get_close_matches(ref, list(branches), n=1, cutoff=0.8)
    if near:
        return f"renamed? {near[0]} has a name like it"
    return f"renamed? {next(iter(branches))} is the only branch" if len(branches) == 1 else ""


def gap(source: Source, base: str, head: str, targets: Collection[str]) -> Gap:
    """Return what lies between two commits, of which the head has been fetched.

    Raises:
        UpstreamError: The history is cut off, so that the answer is unknown.
    """
    if not source.git.is_ancestor(base, head):
        return Gap(rewritten=True, ahead=None)
    if base == head:
        return Gap(rewritten=False, ahead=0)
    paths = touched(source.git, base, head)
    commits = tuple(
        commit.model_copy(update={"areas": areas_of(paths.get(commit.sha, ()), targets)})
        for commit in log(source.git, base, head, limit=MOST_COMMITS)
    )
    changed = {path for names in paths.values() for path in names}
    return Gap(
        rewritten=False,
        ahead=source.git.count(base, head),
        commits=commits,
        targets=tuple(path for path in sorted(targets) if path in changed),
    )


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
    """Return the commits between two that changed the paths, along first parents, newest first, at most so many.

    Commits that ``old`` holds are left out; without it the walk goes to the beginning.
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


def log(git: Git, old: str | None, new: str, *, limit: int) -> list[UpstreamCommit]:
    """Return the commits that ``new`` has and ``old``, if any, has not, newest first; both are there."""
    options = ("--topo-order", f"--max-count={limit}", "--encoding=UTF-8", "--format=%at%x00%s")
    known = [f"^{old}"] if old else []
    lines = git.run("rev-list", *options, new, *known, failure=UpstreamError).stdout.split(b"\n")
    found = []
    for header, line in zip(lines[::2], lines[1::2], strict=False):
        stamp, _, title = line.partition(b"\0")
        text = "".join(mark if mark.isprintable() else "?" for mark in title.decode(errors="replace"))
        sha, written = header.removeprefix(b"commit ").decode(), git_time(stamp)
        found.append(UpstreamCommit(sha=sha, title=short(text, TITLE_CHARACTERS), author_date=written.isoformat()))
    return found


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
    """Return the content of files that stand at these paths of these commits, fetched in one transfer where need be.

    Raises:
        UpstreamError: A blob is not there, is larger than 16 MiB, or the transfer failed.
    """
    wanted = {file.sha for file in files}
    if source.mirror is not None and wanted:
        trees = [f"{commit}^{{tree}}" for commit in dict.fromkeys(commits)]
        lacking = source.git.missing(*trees, paths=sorted(set(paths))) & wanted
        if lacking and (lost := source.mirror.fetch_blobs(lacking)):
            raise UpstreamError(f"{source.location} lacks the blob {min(lost)}, which one of its commits names")
    return source.read_blobs(sorted(wanted))
