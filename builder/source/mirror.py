"""A remote repository and its mirror in the cache: asked for one ref, fetched for a commit, blob-less where it may be.

A mirror begins empty and is filled by fetches. Git writes a ref only when all that it reaches has arrived, so only the
refs below ``refs/kept/`` are trusted: a run that was killed leaves, at worst, objects that no ref names.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import UpstreamError
from builder.files import fresh_folder, locked, sha256
from builder.source.git import Git, GoneError, redacted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.errors import ToolError
    from builder.source.git import Answer

ASK_SECONDS = 60.0
FETCH_SECONDS = 1800.0

# a name that no user's own configuration has settings for
_REMOTE = "gfx1100-source"
_KEPT = "refs/kept/"
# promisor and filter: partial clone as in git's Documentation/technical/partial-clone.txt
_CONFIG = f"""
[core]
\trepositoryformatversion = 1
[extensions]
\tpartialClone = {_REMOTE}
[remote "{_REMOTE}"]
\tpromisor = true
\tpartialclonefilter = blob:none
"""
_MOST_LACKING = 50


def open_mirror(url: str, *, cache: Path, timeout: float = FETCH_SECONDS, ca_bundle: str | None = None) -> Mirror:
    """Return the mirror of a URL; an empty one is made when there is none yet. Nothing is asked of the network.

    Args:
        url: The remote's address, which may hold credentials; they are neither stored nor shown.
        cache: The cache folder; mirrors lie in ``mirrors/`` below it.
        timeout: Seconds that one transfer may take.
        ca_bundle: A PEM file to trust instead of the system's.
    """
    public = re.sub(r"^(https?://)[^/]*@", r"\1", url).rstrip("/")
    words = re.sub(r"[^A-Za-z0-9.]+", "-", public.split("://")[-1])[-60:].strip("-.")
    folder = cache / "mirrors" / f"{words}-{sha256(public)[:12]}.git"
    if not folder.exists():
        with locked(folder.with_suffix(".lock")):
            if not folder.exists():  # another run may have made it meanwhile
                with fresh_folder(folder) as new:
                    Git(git_dir=new).run("init", "--quiet", "--bare", "--template=")
                    with (new / "config").open("a") as config:
                        config.write(_CONFIG)
    trust = {"GIT_SSL_CAINFO": ca_bundle} if ca_bundle else {}
    git = Git(git_dir=folder, environment=trust, config={f"remote.{_REMOTE}.url": url})
    return Mirror(folder=folder, git=git, shown=redacted(url), timeout=timeout)


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """The mirror of one URL.

    Attributes:
        folder: The mirror, a bare repository.
        git: Git on it; the URL is part of its configuration in memory and is not stored.
        shown: The URL for messages, without user information.
        timeout: Seconds that one transfer may take.
    """

    folder: Path
    git: Git
    shown: str
    timeout: float

    def ask(self, ref: str) -> str:
        """Return the commit that a ref of the remote names, in one round trip; an annotated tag is peeled.

        Raises:
            GoneError: The remote has refs, and none of exactly this name.
            UpstreamError: It could not be asked, showed no ref at all, or the answer is no list of refs.
        """
        # with --heads the server leaves out what is no branch: a forge has a ref for every pull request there was
        kind = ["--heads"] if ref.startswith("refs/heads/") else []
        found = self._refs(*kind, _REMOTE, ref, f"{ref}^{{}}")
        commit = found.get(f"{ref}^{{}}") or found.get(ref)
        if commit is not None:
            return commit
        if self._refs("--heads", "--tags", _REMOTE):
            raise GoneError(f"{self.shown} has no {ref}: it was deleted or renamed")
        # git takes a web page for the list of a server that knows nothing of git, and finds nothing in it
        raise UpstreamError(
            f"{self.shown} shows no branch or tag at all, so whether {ref} is gone is unknown",
            hint="the repository may be empty, or a login page stand in its place; open the address in a browser",
        )

    def branches(self) -> dict[str, str]:
        """Return the full name and commit of every branch of the remote; raises UpstreamError like :meth:`ask`."""
        return self._refs("--heads", _REMOTE)

    def fetch(self, commit: str) -> None:
        """Bring a commit, its history and their trees into the mirror; nothing is asked when they are there.

        Raises:
            GoneError: The remote does not give this commit.
            UpstreamError: The transfer failed.
        """
        if self._keeps(commit):
            return
        with self._held():
            if self._keeps(commit):
                return
            answer = self._fetch(f"+{commit}:{_KEPT}{commit}")
            if "unadvertised object" in answer.stderr:  # a server without protocol v2: take what it does offer
                answer = self._fetch("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
                if answer.returncode == 0 and self.git.has_commit(commit):
                    self.git.run("update-ref", f"{_KEPT}{commit}", commit, failure=UpstreamError)
                elif answer.returncode == 0:
                    raise self._gone(commit)
            if "not our ref" in answer.stderr:
                raise self._gone(commit)
            if answer.returncode != 0:
                raise self._unreachable(("fetch", commit), answer)
            plain = "filtering not recognized" in answer.stderr
            self.git.run("config", "gfx1100.transfer", "plain" if plain else "blob-less", failure=UpstreamError)

    def fetch_blobs(self, blobs: set[str]) -> set[str]:
        """Bring these blobs into the mirror, in one transfer, and return the ones that the remote lacks itself.

        Raises:
            UpstreamError: The transfer failed.
        """
        lacking: set[str] = set()
        with self._held():
            while blobs - lacking:
                wanted = "".join(f"{blob}\n" for blob in sorted(blobs - lacking))
                answer = self._fetch(stdin=wanted.encode(), config={"fetch.negotiationAlgorithm": "noop"})
                if answer.returncode == 0:
                    break
                # a server names the first object that it does not have and sends nothing
                lack = re.search(r"not our ref ([0-9a-f]{40})", answer.stderr)
                if lack is None or lack[1] not in blobs - lacking or len(lacking) == _MOST_LACKING:
                    raise self._unreachable(("fetch", "--stdin"), answer)
                lacking.add(lack[1])
        return lacking

    @property
    def transfer(self) -> str:
        """How the last fetch went: blob-less, plain, or empty when there was none."""
        return self.git.run("config", "--get", "gfx1100.transfer", check=False).text

    def _refs(self, *arguments: str) -> dict[str, str]:
        arguments = ("ls-remote", *arguments)
        seconds = min(self.timeout, ASK_SECONDS)
        answer = self.git.run(*arguments, timeout=seconds, check=False, failure=UpstreamError, network=True)
        if answer.returncode != 0:
            raise self._unreachable(arguments, answer)
        found = {}
        for line in answer.stdout.decode(errors="surrogateescape").splitlines():
            sha, tab, name = line.partition("\t")
            if not tab or not re.fullmatch(r"[0-9a-f]{40}", sha):
                raise UpstreamError(f"{self.shown} answered {line[:80]!r} where a commit and a ref are expected")
            found[name] = sha
        return found

    def _fetch(self, *wanted: str, stdin: bytes = b"", config: Mapping[str, str] | None = None) -> Answer:
        git = replace(self.git, config={**self.git.config, **(config or {})})
        return git.run(
            "fetch",
            "--no-tags",
            "--no-write-fetch-head",
            "--recurse-submodules=no",
            "--filter=blob:none",
            *(["--stdin"] if stdin else []),
            _REMOTE,
            *wanted,
            stdin=stdin,
            timeout=self.timeout,
            check=False,
            failure=UpstreamError,
            network=True,
        )

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the mirror against a second run, without the lock files of a git that was killed in it."""
        with locked(self.folder.with_suffix(".lock")):
            for stale in (*self.folder.glob("*.lock"), *self.folder.glob("refs/**/*.lock")):
                stale.unlink()
            yield

    def _keeps(self, commit: str) -> bool:
        return self.git.run("show-ref", "--verify", "--quiet", f"{_KEPT}{commit}", check=False).returncode == 0

    def _gone(self, commit: str) -> GoneError:
        return GoneError(f"{self.shown} does not have the commit {commit}: it was never there, or was rewritten away")

    def _unreachable(self, arguments: tuple[str, ...], answer: Answer) -> ToolError:
        private = re.search(
            r"terminal prompts disabled|Authentication failed|could not read|Permission denied", answer.stderr
        )
        return self.git.failure(
            arguments,
            answer,
            UpstreamError,
            about=f"{self.shown} gave no usable answer; what is new there is unknown",
            hint="the name may be wrong, or the repository private: set up a credential helper or an SSH agent"
            if private
            else "check the address, the network and the proxy, then try again",
        )
