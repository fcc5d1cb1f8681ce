"""A source of an engine's code: a URL through its mirror, a bare repository in place, or a work tree."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import UpstreamError, UsageError
from builder.files import MIB
from builder.source import worktree
from builder.source.git import DAMAGED, Git, GoneError, redacted, require_commit
from builder.source.mirror import FETCH_SECONDS, Mirror, open_mirror
from builder.source.shape import SUBMODULE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FILE_LIMIT = 16 * MIB
_URL = re.compile(r"(https?|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:[^\s:]+")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A commit's tree, or the dirty state of the work tree on top of that commit.

    Attributes:
        git: Git that can read the tree.
        tree: The tree's sha.
        time: The commit's time (the committer's), UTC.
    """

    git: Git
    tree: str
    time: datetime


@dataclass(frozen=True, kw_only=True)
class Source:
    """An open source; see :func:`open_source`.

    Attributes:
        location: Where it is, for messages: no credentials.
        git: Git on the repository or on the mirror.
        mirror: The mirror, when the location is a URL.
        work_tree: The work tree's root, when the location is one.
        dirty: Whether the work tree's changes are part of what is exported.
    """

    location: str
    git: Git
    mirror: Mirror | None = None
    work_tree: Path | None = None
    dirty: bool = False

    def resolve(self, ref: str) -> str:
        """Return the commit that a ref names now.

        Args:
            ref: A full name (``refs/heads/…``, ``refs/tags/…``), a commit's 40 digits, or ``HEAD`` of a work tree.

        Raises:
            UsageError: It is no such name.
            GoneError: The repository has no ref of exactly this name.
            UpstreamError: The remote could not be asked: unknown.
        """
        if re.fullmatch(r"[0-9a-f]{40}", ref):
            return ref
        if ref == "HEAD" and self.work_tree is not None:
            return self._head()
        if not ref.startswith("refs/") or self.git.run("check-ref-format", ref, check=False).returncode != 0:
            raise UsageError(
                f"{ref!r} is no full ref name, which could match more than one branch",
                hint="write refs/heads/BRANCH, refs/tags/TAG or a commit's 40 digits",
            )
        if self.mirror is not None:
            return self.mirror.ask(ref)
        if self.git.run("show-ref", "--verify", "--quiet", ref, check=False).returncode != 0:
            raise GoneError(f"{self.location} has no {ref}: it was deleted, renamed or never fetched")
        answer = self.git.run("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", check=False)
        if answer.returncode != 0:
            raise UpstreamError(f"{ref} of {self.location} leads to no commit that is there", hint=DAMAGED)
        return answer.text

    def branches(self) -> dict[str, str]:
        """Return the full name and commit of every branch; raises UpstreamError when the remote could not be asked."""
        if self.mirror is not None:
            return self.mirror.branches()
        listed = self.git.run("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/", failure=UpstreamError)
        return {name: sha for name, _, sha in (line.partition(" ") for line in listed.text.splitlines())}

    def fetch(self, commit: str) -> None:
        """Make sure that a commit, its history and their trees can be read; only a mirror asks anyone for them.

        Raises:
            GoneError: The source does not have the commit.
            UpstreamError: The transfer failed.
        """
        self._facts(commit)

    def fetch_blobs(self, git: Git, tree: str, wanted: set[str]) -> set[str]:
        """Make sure that these blobs of a tree can be read, and return the ones that the source does not have."""
        absent = git.missing(tree) & wanted
        return self.mirror.fetch_blobs(absent) if self.mirror is not None and absent else absent

    @contextlib.contextmanager
    def snapshot(self, commit: str) -> Iterator[Snapshot]:
        """Yield what stands at a commit; of a dirty source, the work tree's state on top of its HEAD.

        Raises:
            UsageError: The source is dirty, and the commit is not its HEAD.
            GoneError: The source does not have the commit.
            VerifyError: The commit does not hash to its name.
        """
        tree, time = self._facts(commit)
        if not self.dirty:
            yield Snapshot(git=self.git, tree=tree, time=time)
            return
        if commit != self._head():
            raise UsageError(f"{self.location} has changes on top of {self._head()}, not of {commit}; take HEAD")
        with worktree.staged(self.git) as git:
            yield Snapshot(git=git, tree=git.run("write-tree").text, time=time)

    def read_files(self, commit: str, paths: Sequence[str]) -> dict[str, bytes]:
        """Return the content of files at a commit; a path that the commit does not have is left out.

        Raises:
            GoneError: The source does not have the commit.
            UpstreamError: A blob is missing, or larger than 16 MiB, or the transfer failed.
        """
        asked = {os.fsencode(path): path for path in paths}
        tree = self._facts(commit)[0]
        found = [entry for entry in self.git.entries(tree) if entry.path in asked and entry.mode != SUBMODULE]
        shas = sorted({entry.sha for entry in found})
        missing = self.fetch_blobs(self.git, tree, set(shas))
        for entry in found:
            if entry.sha in missing:
                raise UpstreamError(f"{self.location} lacks the blob {entry.sha} of {entry.shown} at {commit}")
        content = self.read_blobs(shas)
        return {asked[entry.path]: content[entry.sha] for entry in found}

    def read_blobs(self, shas: Sequence[str]) -> dict[str, bytes]:
        """Return the content of blobs that are there.

        Raises:
            UpstreamError: A blob is missing, or larger than 16 MiB.
        """
        content = {}
        with contextlib.closing(self.git.read(shas)) as objects:
            for sha, _, pieces in objects:
                data = bytearray()
                for piece in pieces:
                    data += piece
                    if len(data) > FILE_LIMIT:
                        raise UpstreamError(f"the blob {sha} of {self.location} is larger than {FILE_LIMIT // MIB} MiB")
                content[sha] = bytes(data)
        return content

    def is_ancestor(self, old: str, new: str) -> bool:
        """Whether ``new`` stands on ``old``, or is it; a commit that ``new``'s history does not hold is none.

        Raises:
            GoneError: The source does not have ``new``.
            UpstreamError: The history is cut off, so that the answer is unknown.
        """
        require_commit(old)
        self.fetch(new)
        if self.git.is_ancestor(old, new):
            return True
        if self.git.run("rev-parse", "--is-shallow-repository", failure=UpstreamError).text == "true":
            raise UpstreamError(
                f"{self.location} is a shallow clone: whether {new} stands on {old} is unknown",
                hint="run `git fetch --unshallow` in it",
            )
        return False

    def _head(self) -> str:
        return self.git.run("rev-parse", "--verify", "HEAD^{commit}").text

    def _facts(self, commit: str) -> tuple[str, datetime]:
        """Return tree and time of a commit, fetched if need be, from its own bytes, which hash to its name."""
        require_commit(commit)
        if self.mirror is not None:
            self.mirror.fetch(commit)
        kind, content = "", b""
        with contextlib.suppress(GoneError), contextlib.closing(self.git.read([commit])) as objects:
            kind, content = next((kind, b"".join(pieces)) for _, kind, pieces in objects)
        if kind != "commit":
            hint = "is it a tag's own sha, or rewritten away?"
            raise GoneError(f"{self.location} has no commit {commit}", hint=hint)
        header = content.partition(b"\n\n")[0]
        tree = re.match(rb"tree ([0-9a-f]{40})\n", header)
        stamp = re.search(rb"^committer .* (\d+) [+-]\d+$", header, re.MULTILINE)
        if tree is None or stamp is None:
            raise UpstreamError(f"the commit {commit} of {self.location} names no tree or no time", hint=DAMAGED)
        return tree[1].decode(), git_time(stamp[1])


def open_source(
    location: str, *, cache: Path, dirty: bool = False, timeout: float = FETCH_SECONDS, ca_bundle: str | None = None
) -> Source:
    """Open a source; nothing is fetched before it is asked for.

    Args:
        location: A URL (https, http, ssh, git, file, or user@host:path), a bare repository, or a work tree's root.
        cache: The cache folder, for mirrors.
        dirty: Take a work tree with its uncommitted changes instead of refusing it.
        timeout: Seconds that one transfer may take.
        ca_bundle: A PEM file that transfers trust instead of the system's.

    Raises:
        UsageError: The location is none of these, or the work tree is dirty and ``dirty`` is false.
    """
    shown = redacted(location)
    if not location.strip() or location.startswith("-") or not location.isprintable():
        raise UsageError(f"{shown!r} is no location of a source")
    if _URL.fullmatch(location):
        mirror = open_mirror(location, cache=cache, timeout=timeout, ca_bundle=ca_bundle)
        return Source(location=mirror.shown, git=mirror.git, mirror=mirror)
    path = Path(location)
    if (path / ".git").exists():
        root = path.resolve()
        git = worktree.opened(root)
        return Source(location=str(root), git=git, work_tree=root, dirty=worktree.has_changes(git, allowed=dirty))
    if (path / "HEAD").is_file() and (path / "objects").is_dir():
        return Source(location=shown, git=Git(git_dir=path.resolve()))
    raise UsageError(
        f"{shown!r} is no source: neither a URL of a known kind, nor a bare repository, nor a work tree's root",
        hint="URLs begin with https://, http://, ssh://, git:// or file://",
    )


def git_time(seconds: bytes) -> datetime:
    """Return a time of git's; for one that no calendar has, the beginning of 1970, as git itself does."""
    try:
        return datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
