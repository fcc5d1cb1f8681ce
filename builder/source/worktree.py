"""A work tree of a person: is it clean, and if not, what would a commit of it hold; nothing in it is touched."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.source.git import Git, bounded

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN = 5


def opened(root: Path) -> Git:
    """Return git on the work tree whose root this is.

    Raises:
        UsageError: Git does not accept it (it belongs to another user), or it has no commit yet.
    """
    git_dir = os.fsdecode(Git(git_dir=None, folder=root).run("rev-parse", "--absolute-git-dir").stdout.rstrip(b"\n"))
    git = Git(git_dir=Path(git_dir), folder=root, environment={"GIT_WORK_TREE": str(root)})
    if git.run("rev-parse", "--quiet", "--verify", "HEAD^{commit}", check=False).returncode != 0:
        raise UsageError(f"{root} has no commit yet", hint="commit something first")
    return git


def has_changes(git: Git, *, allowed: bool) -> bool:
    """Whether files are modified, staged, or untracked and not ignored.

    Raises:
        UsageError: There are some and they are not ``allowed``; names the first ones.
    """
    options = ("--porcelain", "-z", "--no-renames", "--untracked-files=normal", "--ignore-submodules=none")
    changed = [os.fsdecode(line[3:]) for line in git.run("status", *options).stdout.split(b"\0")[:-1]]
    if changed and not allowed:
        raise UsageError(
            f"{git.folder} has uncommitted changes: {bounded(list(map(repr, changed)), _SHOWN)}",
            hint="commit or remove them, or ask for the dirty state; the version will say so",
        )
    return bool(changed)


@contextlib.contextmanager
def staged(git: Git) -> Iterator[Git]:
    """Yield git whose index holds the whole work tree; index and new objects lie in a temporary folder.

    The index starts as a copy of the person's own, so that files which a sparse checkout leaves out stay in it.
    """
    with tempfile.TemporaryDirectory(prefix="gfx1100-") as name:
        own = Path(name)
        (own / "objects").mkdir()
        index = _place(git, "index")
        if index.exists():
            # with its time: git compares the content of files that are as young as the index
            shutil.copy2(index, own / "index")
        environment = {
            **git.environment,
            "GIT_INDEX_FILE": str(own / "index"),
            "GIT_OBJECT_DIRECTORY": str(own / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(_place(git, "objects")),
        }
        inside = replace(git, environment=environment)
        inside.run("add", "--all", "--", ":/")
        yield inside


def _place(git: Git, name: str) -> Path:
    """Return where a repository keeps a thing; a linked work tree shares some with its main one."""
    answer = git.run("rev-parse", "--path-format=absolute", "--git-path", name)
    return Path(os.fsdecode(answer.stdout.rstrip(b"\n")))
