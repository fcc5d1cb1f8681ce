"""Where a compiler runs: on this host, or in an image, without network and with the files put in."""

from __future__ import annotations

import base64
import gzip
import io
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from builder import process
from builder.errors import BuildError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.engine.port import Engine

# ROCm's images keep hipcc where a PATH of an image need not lead
WITH_ROCM = 'PATH="$PATH:/opt/rocm/bin"'
TREE, OUT = "tree", "out"
LIMIT = 512 << 20  # bytes that a compiler writes; an assembly of 57 kernels has 6 MB
_WORK = "/gfx1100-kernels"
# an engine keeps only the end of a long log: what is packed and ends with the status is whole, or cannot be read
_PACKED = f"""
mkdir -p {_WORK}/{OUT} && cd {_WORK} || exit
{WITH_ROCM}
"$@" >{OUT}/stdout 2>{OUT}/stderr </dev/null
echo $? >status
tar -cz {OUT} status | base64
"""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """How a program ended, what it said, and what it wrote into ``out``, by name."""

    returncode: int
    stdout: str
    stderr: str
    files: Mapping[str, bytes]


class Place(Protocol):
    """Where compilers run."""

    def run(
        self, argv: Sequence[str], *, timeout: float, tree: Path | None = None, files: Mapping[str, bytes] | None = None
    ) -> Ran:
        """Run a program in a new folder and return what became of it; the folder goes.

        Args:
            argv: Program and arguments; its results go to ``out/``.
            timeout: Seconds.
            tree: A source tree, which the program sees as ``tree``.
            files: What else lies in the folder, by relative path.

        Raises:
            BuildError: It did not end in time, or what it said did not arrive whole.
        """


@dataclass(frozen=True)
class Here:
    """This host."""

    def run(
        self, argv: Sequence[str], *, timeout: float, tree: Path | None = None, files: Mapping[str, bytes] | None = None
    ) -> Ran:
        """See :class:`Place`."""
        with tempfile.TemporaryDirectory(prefix="gfx1100-kernels-") as folder:
            work = Path(folder)
            (work / OUT).mkdir()
            if tree is not None:
                (work / TREE).symlink_to(tree.absolute())
            for name, data in (files or {}).items():
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                (work / name).write_bytes(data)
            done = process.run(argv, timeout=timeout, cwd=work, check=False, failure=BuildError)
            made = {path.name: path.read_bytes() for path in (work / OUT).iterdir()}
        return Ran(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr, files=made)


@dataclass(frozen=True, kw_only=True)
class InImage:
    """An image of an engine; a whole tree goes into each container, so give it one that holds only what is needed."""

    engine: Engine
    image: str

    def run(
        self, argv: Sequence[str], *, timeout: float, tree: Path | None = None, files: Mapping[str, bytes] | None = None
    ) -> Ran:
        """See :class:`Place`."""
        inside = {f"{_WORK}/{name}": data for name, data in (files or {}).items()}
        if tree is not None:
            paths = (path for path in tree.rglob("*") if path.is_file())
            inside |= {f"{_WORK}/{TREE}/{path.relative_to(tree).as_posix()}": path.read_bytes() for path in paths}
        try:
            done = self.engine.run_once(
                self.image, ["sh", "-c", _PACKED, "sh", *argv], files=inside, timeout=timeout, user="0:0"
            )
        except VerifyError as late:
            raise BuildError(
                f"`{argv[0]}` in the image {self.image} did not end within {timeout:.0f} s", hint=late.hint
            ) from late
        try:
            made = _unpacked(done.stdout)
            status = int(made.pop("status"))
            out, err = (made.pop(name).decode(errors="replace") for name in ("stdout", "stderr"))
        except (ValueError, KeyError, EOFError, OSError, zlib.error, tarfile.TarError) as broken:
            raise BuildError(
                f"what `{argv[0]}` in the image {self.image} wrote did not arrive whole: "
                f"{(done.stderr.strip() or str(broken))[-200:]} (status {done.returncode})"
            ) from broken
        return Ran(returncode=status, stdout=out, stderr=err, files=made)


def _unpacked(text: str) -> dict[str, bytes]:
    """Return the files of a packed tar by name; raises one of many errors when it is not whole."""
    with gzip.open(io.BytesIO(base64.b64decode("".join(text.split()), validate=True))) as packed:
        content = packed.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise ValueError(f"more than {LIMIT >> 20} MiB")
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        members = [member for member in archive if member.isreg()]
        return {Path(member.name).name: archive.extractfile(member).read() for member in members}  # type: ignore[union-attr] # it is regular
