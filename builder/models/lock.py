"""A lock: a stack with everything resolved. Read from and written to ``stacks/<name>.lock.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from builder.errors import UsageError
from builder.models.base import Commit, Data, Digest, Name, Sha256, dump_yaml, load_yaml
from builder.models.stack import REHEARSAL, BaseName

UNRESOLVED: Literal["unresolved"] = "unresolved"
Unresolved = Literal["unresolved"]


class LockedBase(Data):
    """A base image: by digest, or the hash of the recipe that makes it."""

    image: str
    digest: Digest | Unresolved | None = None
    recipe_sha256: Sha256 | None = None


class LockedWheel(Data):
    """A wheel: where it lies and the hash of its file."""

    name: str
    version: str
    url: str
    sha256: Sha256 | Unresolved

    @property
    def file(self) -> str:
        """The wheel's file name: the end of its address."""
        return unquote(urlsplit(self.url).path.rpartition("/")[2])


class LockedFetch(Data):
    """A second repository that is exported into the context, at its commit."""

    name: Name
    commit: Commit | Unresolved


class LockedPatch(Data):
    """A patch file of the series and its hash."""

    id: Name
    file: str
    sha256: Sha256


class Lock(Data):
    """A stack with everything resolved; ``unresolved`` marks what only the user's network can tell.

    Attributes:
        format: The version of this file's form.
        stack: The stack's name.
        stack_sha256: Hash of the stack's canonical form; a lock of another stack text is stale.
        commit: The engine's commit.
        version: The version that the engine's build is told.
        bases: The base images of the stages.
        wheels: The wheels.
        requirements: What the run-time requirements resolved to when the wheelhouse was filled, as further constraints;
            empty before that.
        fetched: Further repositories.
        patches: The series in its order.
        template_sha256: Hash over the Dockerfile template and the macros that it uses.
    """

    format: Literal[1]
    stack: Name
    stack_sha256: Sha256
    commit: Commit | Unresolved
    version: str
    bases: dict[BaseName, LockedBase]
    wheels: tuple[LockedWheel, ...] = ()
    requirements: tuple[LockedWheel, ...] = ()
    fetched: tuple[LockedFetch, ...] = ()
    patches: tuple[LockedPatch, ...] = ()
    template_sha256: Sha256

    def unresolved(self) -> list[str]:
        """Return the names of the entries that are still unresolved."""
        return [
            *(["commit"] if self.commit == UNRESOLVED else []),
            *(f"base {name}" for name, base in self.bases.items() if base.digest == UNRESOLVED),
            *(f"wheel {wheel.name}" for wheel in self.wheels if wheel.sha256 == UNRESOLVED),
            *(f"fetch {fetch.name}" for fetch in self.fetched if fetch.commit == UNRESOLVED),
        ]

    def text(self) -> str:
        """Return the lock file's text."""
        return dump_yaml(self)


def lock_path(root: Path, stack: str) -> Path:
    """Return where the lock of a stack lies; that of a rehearsal is this machine's own, as its wheels are."""
    if stack.endswith(REHEARSAL):
        return root / ".gfx1100" / "locks" / f"{stack}.lock.yaml"
    return root / "stacks" / f"{stack}.lock.yaml"


def load_lock(root: Path, stack: str) -> Lock:
    """Return the lock of a stack.

    Raises:
        UsageError: There is none, or it does not fit.
    """
    path = lock_path(root, stack)
    if not path.exists():
        raise UsageError(f"{path} is not there", hint=f"run `gfx1100 lock {stack}`")
    return load_yaml(Lock, path)
