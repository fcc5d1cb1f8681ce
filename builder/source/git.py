"""Running git: one stated environment, bytes in and out, every object hashed as it is read."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from builder import process
from builder.errors import HostError, ToolError, UpstreamError, UsageError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

LOCAL_SECONDS = 600.0
PIECE = 1 << 20
_NO_SPACE = os.strerror(errno.ENOSPC)
MOST_ENTRIES = 200_000
DAMAGED = "run `git fsck` on the repository; a mirror in the cache folder may be deleted, it is made again"

# how a tree writes the mode of a folder; old tools padded it
_FOLDERS = frozenset({"40000", "040000"})
# ext::, fd:: and any other remote helper would run what a location names (gitremote-helpers(7))
PROTOCOLS = "https:http:ssh:git:file"
# what a git that calls us (from a hook, say) means for its own repository (`git rev-parse --local-env-vars`)
_FOREIGN = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_QUARANTINE_PATH",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_REPLACE_REF_BASE",
    "GIT_CONFIG_PARAMETERS",
    "LANGUAGE",  # it would translate the messages that are looked for
)
_ENVIRONMENT: dict[str, str | None] = {
    **dict.fromkeys(_FOREIGN),
    "LC_ALL": "C",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": os.devnull,
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "GCM_INTERACTIVE": "never",
    "GIT_DEFAULT_HASH": "sha1",
    "GIT_DEFAULT_REF_FORMAT": "files",
}
_CONFIG = {
    "advice.graftFileDeprecated": "false",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "gc.autoDetach": "false",
    "maintenance.autoDetach": "false",
    "protocol.version": "2",
    "http.followRedirects": "initial",
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": "60",
}


class GoneError(UpstreamError):
    """The repository was asked and answered: it has no such ref or commit."""


class Entry(NamedTuple):
    """A file, link or submodule of a tree; ``mode`` in git's octal digits, ``path`` in the tree's own bytes."""

    mode: str
    sha: str
    path: bytes

    @property
    def shown(self) -> str:
        """The path for messages: bytes that are no UTF-8 are written as such."""
        return self.path.decode(errors="backslashreplace")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a git command said."""

    returncode: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """The output as text, without the white space around it."""
        return self.stdout.decode(errors="replace").strip()


@dataclass(frozen=True, kw_only=True)
class Git:
    """Git on one repository, which is never changed but by the arguments given.

    Attributes:
        git_dir: The repository; None for a command that needs none.
        folder: The folder to run in, for a command that needs the work tree.
        environment: Variables beside the ones that are always stated.
        config: Configuration for each call; it stays off the command line, where others could read it.
    """

    git_dir: Path | None
    folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict, repr=False)

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        timeout: float = LOCAL_SECONDS,
        check: bool = True,
        failure: type[ToolError] = UsageError,
        network: bool = False,
    ) -> Answer:
        """Run one git command; without ``network`` it cannot reach any other repository.

        Raises:
            HostError: git is not installed, or the disk is full.
            ToolError: ``failure``, on the timeout or (with ``check``) a status that is not zero.
        """
        argv = self._argv(arguments)
        environment = self._environment(network=network)
        with process.piped(argv, timeout=timeout, cwd=self.folder, env=environment, failure=failure) as child:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(stdin)
                child.stdin.close()
            output = child.stdout.read()
        answer = Answer(returncode=child.returncode, stdout=output, stderr=child.stderr)
        if check and answer.returncode != 0:
            raise self.failure(arguments, answer, failure)
        return answer

    def failure(
        self, arguments: Sequence[str], answer: Answer, kind: type[ToolError], *, about: str = "", hint: str = ""
    ) -> ToolError:
        """Return the error for a command that failed: ``kind``, or HostError when the disk was full; no credentials.

        Args:
            arguments: The command's.
            answer: What came of it.
            kind: The class for any other reason.
            about: What that means, in a line before git's words.
            hint: The next step then.
        """
        ended = process.Finished(
            argv=("git", *arguments), returncode=answer.returncode, stdout="", stderr=answer.stderr
        )
        said = redacted(process.failed(ended))
        if _NO_SPACE in answer.stderr:
            return HostError(said, hint=f"make room on the disk of {self.git_dir or self.folder}")
        return kind(f"{about}\n{said}" if about else said, hint=hint)

    def read(self, wanted: Sequence[str]) -> Generator[tuple[str, str, Iterator[bytes]], None, None]:
        """Yield sha, type and content (in pieces) of each object, in the order asked, all from one process.

        Close the generator when it is not read to its end.

        Raises:
            GoneError: An object is not there.
            VerifyError: An object's content does not hash to its name.
        """
        if not wanted:
            return
        argv = self._argv(("cat-file", "--batch"))
        environment = self._environment(network=False)
        with process.piped(argv, timeout=LOCAL_SECONDS, env=environment, failure=UpstreamError) as child:
            threading.Thread(target=_feed, args=(child.stdin, wanted), daemon=True).start()
            for sha in wanted:
                header = child.stdout.readline().decode(errors="replace").split()
                if len(header) != 3 or not header[2].isdigit():  # noqa: PLR2004 - sha, type, size
                    raise GoneError(f"{self.git_dir} has no object {sha} that can be read", hint=DAMAGED)
                pieces = _verified(child.stdout, sha, header[1], int(header[2]))
                yield sha, header[1], pieces
                for _ in pieces:
                    pass

    def entries(self, tree: str) -> list[Entry]:
        """Return the entries of a tree and all its folders, sorted by path.

        The tree objects themselves are read, and so hashed: the list is what the tree's name stands for.

        Raises:
            UsageError: It has more than 200,000 entries, or a name with a slash in it.
            UpstreamError: The tree, or a folder of it, is not there.
            VerifyError: A tree does not hash to its name.
        """
        found: list[Entry] = []
        folders = [(b"", tree)]
        while folders:
            content = {}
            with contextlib.closing(self.read(sorted({sha for _, sha in folders}))) as objects:
                for sha, kind, pieces in objects:
                    content[sha] = _children(b"".join(pieces)) if kind == "tree" else []
            below = [entry._replace(path=path + entry.path) for path, sha in folders for entry in content[sha]]
            folders = [(entry.path + b"/", entry.sha) for entry in below if entry.mode in _FOLDERS]
            found += [entry for entry in below if entry.mode not in _FOLDERS]
            if len(found) + len(folders) > MOST_ENTRIES:
                raise UsageError(f"the tree {tree} has more than {MOST_ENTRIES:,} entries; no engine's source has")
        return sorted(found, key=lambda entry: entry.path)

    def missing(self, *trees: str, paths: Iterable[str] = ()) -> set[str]:
        """Return the objects of trees, at these paths or anywhere, that the repository lacks, without fetching any."""
        listing = ("--literal-pathspecs", "rev-list", "--objects", "--missing=print", "--no-object-names")
        output = self.run(*listing, *trees, "--", *paths, failure=UpstreamError)
        return {line[1:] for line in output.text.splitlines() if line.startswith("?")}

    def is_ancestor(self, old: str, new: str) -> bool:
        """Whether ``new``, which is there, stands on ``old``; a commit that is not there is no ancestor.

        Raises:
            UpstreamError: The history is cut off, so that the answer is unknown.
        """
        if not self.has_commit(old):
            return False
        arguments = ("merge-base", "--is-ancestor", old, new)
        answer = self.run(*arguments, check=False, failure=UpstreamError)
        if answer.returncode > 1:
            raise self.failure(arguments, answer, UpstreamError, hint=DAMAGED)
        return answer.returncode == 0

    def count(self, old: str, new: str) -> int:
        """Return how many commits ``new`` has that ``old`` has not; both are there."""
        return int(self.run("rev-list", "--count", new, f"^{old}", failure=UpstreamError).text)

    def has_commit(self, commit: str) -> bool:
        """Whether the repository holds this object and it is a commit."""
        answer = self.run("rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}", check=False)
        return answer.returncode == 0 and answer.text == commit

    def _argv(self, arguments: Sequence[str]) -> tuple[str, ...]:
        place = () if self.git_dir is None else (f"--git-dir={self.git_dir}",)
        return ("git", *place, *arguments)

    def _environment(self, *, network: bool) -> dict[str, str | None]:
        given = os.environ.get("GIT_CONFIG_COUNT", "")
        count = int(given) if given.isdigit() else 0
        config: dict[str, str | None] = {}
        for number, (name, value) in enumerate({**_CONFIG, **self.config}.items(), start=count):
            config |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        return {
            **_ENVIRONMENT,
            **config,
            "GIT_CONFIG_COUNT": str(count + len(config) // 2),
            "GIT_ALLOW_PROTOCOL": PROTOCOLS if network else "none",
            "GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=30"),
            **self.environment,
        }


def require_commit(commit: str) -> str:
    """Return the commit's name.

    Raises:
        UsageError: It is not 40 lower-case hexadecimal digits.
    """
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise UsageError(
            f"{commit!r} is no commit: 40 lower-case hexadecimal digits are expected",
            hint="write the whole sha, in quotes; a short one is not unique and may be read as a number",
        )
    return commit


def redacted(text: str) -> str:
    """Return a text fit to be shown: no user information in its URLs, and nothing that steers a terminal."""
    plain = "".join(mark if mark.isprintable() or mark in "\n\t" else "?" for mark in text.replace("\r", ""))
    return re.sub(r"(?<=://)[^/\s'\"]*@", "***@", plain)


def bounded(words: list[str], most: int) -> str:
    """Return a list for a message, with at most so many words and how many more there are."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _children(tree: bytes) -> list[Entry]:
    """Return the entries of a tree object: mode, space, name, NUL, the 20 bytes of the sha, and so on."""
    found = re.findall(rb"(\d+) ([^\0]*)\0(.{20})", tree, re.DOTALL)
    if sum(len(mode) + len(name) + 22 for mode, name, _ in found) != len(tree):
        raise UsageError("the tree is refused: a folder of it is no list of files")
    for _, name, _ in found:
        if b"/" in name:
            raise UsageError(f"the tree is refused: the name {os.fsdecode(name)!r} holds a slash")
    return [Entry(mode.decode(), sha.hex(), name) for mode, name, sha in found]


def _verified(stdout: IO[bytes], sha: str, kind: str, size: int) -> Iterator[bytes]:
    """Yield the object that follows in git's output and compare its SHA-1 with its name at the end."""
    digest = hashlib.sha1(b"%s %d\0" % (kind.encode(), size), usedforsecurity=False)
    left = size
    while left:
        piece = stdout.read(min(left, PIECE))
        if not piece:
            break
        left -= len(piece)
        digest.update(piece)
        yield piece
    if left or stdout.read(1) != b"\n" or digest.hexdigest() != sha:
        raise VerifyError(f"the {kind} {sha} does not hash to its name: the repository is damaged", hint=DAMAGED)


def _feed(stdin: IO[bytes], wanted: Iterable[str]) -> None:
    with contextlib.suppress(BrokenPipeError, ValueError):
        stdin.write(b"".join(b"%s\n" % sha.encode() for sha in wanted))
        stdin.close()
