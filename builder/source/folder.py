"""A folder of the checkout as a git repository of one commit: the same files give the same commit, everywhere."""

from __future__ import annotations

import fnmatch
import os
import stat
from pathlib import Path

from builder.errors import UsageError
from builder.files import fresh_folder, locked, sha256
from builder.source.git import Entry, Git
from builder.source.shape import FILE, LINK, PROGRAM, check_names

IGNORED = (".git", "__pycache__", "*.so", "_version.py", "build", "dist", "*.egg-info")

# fixed, so that they are the same everywhere; 2020-01-01: archives of the ZIP format hold no time before 1980
_WHO = b"gfx1100 image toolkit <> 1577836800 +0000"
_MESSAGE = b"The folder as it is\n"
# nothing of the person's own git: no templates, signing, line ends or case rules
_OWN = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def repository_of(folder: Path, *, cache: Path, ref: str) -> Path:
    """Return a bare repository that holds a folder's files as one commit, on the branch ``ref``.

    The commit depends on paths, contents and executable bits alone. What tools leave behind (IGNORED, by name, at any
    depth) is not taken. The same files lead to the same repository again; other files to another one beside it.

    Args:
        folder: The folder.
        cache: The cache folder; repositories lie in ``folders/`` below it.
        ref: The full name of the branch.

    Raises:
        UsageError: The folder is missing or holds no file, or holds what git cannot keep.
    """
    files = _files(folder)
    if not files:
        raise UsageError(f"{folder} holds no file that could be a source")
    check_names(Entry(mode, "", path) for path, (mode, _) in files.items())
    stream = _stream(files, ref)
    repository = cache / "folders" / f"{folder.resolve().name}-{sha256(stream)[:16]}.git"
    with locked(repository.with_suffix(".lock")):
        if not repository.exists():
            with fresh_folder(repository) as new:
                git = Git(git_dir=new, environment=_OWN)
                git.run("init", "--quiet", "--bare", "--template=")
                git.run("symbolic-ref", "HEAD", ref)
                git.run("fast-import", "--quiet", "--done", stdin=stream)
    return repository


def _files(folder: Path) -> dict[bytes, tuple[str, bytes]]:
    """Return mode and content of every file and link by its path below the folder, sorted."""
    found: dict[bytes, tuple[str, bytes]] = {}
    try:
        for here, folders, names in os.walk(folder, onerror=_fail):
            folders[:] = [name for name in folders if not _ignored(name)]
            for name in (*folders, *names):
                path = Path(here, name)
                if not _ignored(name) and (path.is_symlink() or not path.is_dir()):
                    found[os.fsencode(path.relative_to(folder))] = _content(path)
    except OSError as trouble:
        raise UsageError(f"{trouble.filename} cannot be read: {trouble.strerror}") from trouble
    return dict(sorted(found.items()))


def _content(path: Path) -> tuple[str, bytes]:
    if path.is_symlink():
        return LINK, os.fsencode(os.readlink(path))  # noqa: PTH115 - Path.readlink would tidy what the link says
    if not path.is_file():
        raise UsageError(f"{path} is no file, folder or link")
    return PROGRAM if path.stat().st_mode & stat.S_IXUSR else FILE, path.read_bytes()


def _ignored(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in IGNORED)


def _fail(trouble: OSError) -> None:
    raise trouble


def _stream(files: dict[bytes, tuple[str, bytes]], ref: str) -> bytes:
    """Return git fast-import's input for one commit of these files (git-fast-import(1))."""
    lines = [b"commit %s\nauthor %s\ncommitter %s\ndata %d\n%s" % (ref.encode(), _WHO, _WHO, len(_MESSAGE), _MESSAGE)]
    for path, (mode, content) in files.items():
        lines.append(
            b'M %s inline "%s"\ndata %d\n%s\n' % (mode.encode(), path.replace(b'"', b'\\"'), len(content), content)
        )
    return b"".join([*lines, b"done\n"])
