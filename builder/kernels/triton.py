"""Triton kernels compiled ahead of time for gfx1100, each in a process of its own with a Python that has Triton."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import process
from builder.errors import BuildError, HostError, ToolError, UpstreamError
from builder.files import fresh_folder, locked, read_text
from builder.kernels.assembly import Row, count_markers, read_assembly, wanted_markers, waves_per_simd
from builder.kernels.hip import ARCH, Compiled
from builder.kernels.place import TREE, Here, Place, Ran

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from builder.models.kernels import TritonTarget

# figures depend on the release (3.9.0 spills far more than 3.7.1 in the verify kernel), so one is pinned
VERSION = "3.7.1"
JOB = Path(__file__).with_name("triton_job.py")
SECONDS = 300
MEMORY_BYTES = 8 << 30
_INSTALL_SECONDS = 1200
_ASK = "import triton; print(triton.__version__)"
_NO_PROGRAM = 127


@dataclass(frozen=True, kw_only=True)
class Triton:
    """A Python that has Triton.

    Attributes:
        python: The Python.
        version: Triton's release.
        place: Where it runs.
    """

    python: Path
    version: str
    place: Place = field(default_factory=Here)

    @property
    def note(self) -> str:
        """What a report says of it."""
        return f"Triton: {self.version} of {self.python}"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a kernel is launched, as far as its code depends on it.

    Attributes:
        constexprs: The compile-time parameters.
        num_warps: Waves of a workgroup.
        num_stages: Pipeline stages.
        chosen: Those values that were read from the launcher or are being tried.
    """

    constexprs: dict[str, Any]
    num_warps: int
    num_stages: int
    chosen: dict[str, int]

    def tried_with(self, values: Mapping[str, int]) -> Launch:
        """Return the launch with other values."""
        own = {name: value for name, value in values.items() if name in self.constexprs}
        return replace(
            self,
            constexprs={**self.constexprs, **own},
            num_warps=values.get("num_warps", self.num_warps),
            num_stages=values.get("num_stages", self.num_stages),
            chosen={**self.chosen, **values},
        )


def find_triton(cache: Path, *, say: Callable[[str], None] | None = None) -> Triton:
    """Return a Python with Triton: this one with the pinned release, or one in the cache.

    The one in the cache is made when it is missing: about 200 MB to download, once.

    Args:
        cache: The folder for caches.
        say: Told about the download.

    Raises:
        HostError: The Python has a Triton that does not work.
        UpstreamError: Triton could not be installed from the package index.
    """
    if find_spec("triton") is not None and (mine := _asked(Path(sys.executable))).version == VERSION:
        return mine
    home = cache / f"triton-{VERSION}"
    with locked(cache / f"triton-{VERSION}.lock"):
        if not (home / "bin/python").exists():
            if say:
                say(f"installing triton {VERSION} into {home} (about 200 MB to download, once)")
            with fresh_folder(home) as new:
                process.run([sys.executable, "-m", "venv", str(new)], timeout=_INSTALL_SECONDS)
                pip = [str(new / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
                wanted = (f"triton=={VERSION}", "setuptools")
                process.run([*pip, *wanted], timeout=_INSTALL_SECONDS, failure=UpstreamError)
    return _asked(home / "bin/python")


def triton_in(place: Place) -> Triton | None:
    """Return the Python of an image when it has Triton.

    Raises:
        BuildError: It has one that does not work.
    """
    python = Path("python3")
    asked = place.run([str(python), "-I", "-c", _ASK], timeout=SECONDS)
    if asked.returncode == 0:
        return Triton(python=python, version=asked.stdout.strip(), place=place)
    if asked.returncode == _NO_PROGRAM or "No module named 'triton'" in asked.stderr:
        return None
    raise BuildError(f"the Triton of the build does not work: {_last_words(asked)}")


def read_launch(tree: Path, target: TritonTarget) -> Launch:
    """Return how the tree's launcher launches the kernel.

    Raises:
        ToolError: A number is found several times, or its group matched no number.
    """
    text = read_text(tree / target.source)
    found: dict[str, int] = {}
    for name, pattern in target.launch.items():
        numbers = {next((group for group in match.groups() if group), "") for match in re.finditer(pattern, text)}
        if len(numbers) > 1 or not all(number.isdigit() for number in numbers):
            raise ToolError(f"the launcher's {name} is not one number ({', '.join(sorted(numbers))}): upstream moved")
        found |= dict.fromkeys([name] * len(numbers), int(next(iter(numbers), "0")))
    base = Launch(
        constexprs=dict(target.constexprs), num_warps=target.num_warps, num_stages=target.num_stages, chosen={}
    )
    default = base.constexprs | {"num_warps": base.num_warps, "num_stages": base.num_stages}
    return base.tried_with({name: found.get(name, default[name]) for name in target.launch})


def compile_aot(
    tree: Path,
    target: TritonTarget,
    triton: Triton,
    *,
    markers: Mapping[str, tuple[str, ...]],
    values: Mapping[str, int] | None = None,
) -> Compiled:
    """Compile a kernel for gfx1100 and return its figures; a fault is a row with the error.

    Args:
        tree: The source tree.
        target: The kernel.
        triton: The compiler.
        markers: Kernel name -> regular expressions to count in its assembly.
        values: Values to try instead of the launcher's.
    """
    try:
        launch = read_launch(tree, target).tried_with(values or {})
        answer = _answer(tree, target, launch, triton)
    except (ToolError, ValueError) as trouble:
        return _failed(target, str(trouble), dict(values or {}))
    if "error" in answer:
        return _failed(target, answer["error"], launch.chosen)
    rows = tuple(
        Row(
            file=target.source,
            kernel=kernel.name,
            figures=replace(kernel, lds_bytes=answer["shared"]),
            launch=launch.chosen,
            waves=waves_per_simd(kernel.vgpr, answer["shared"], launch.num_warps),
            markers=count_markers(body, wanted_markers(markers, kernel.name)),
        )
        for kernel, body in read_assembly(answer["assembly"])
    )
    files = tuple(name.removeprefix(f"{TREE}/") for name in answer["files"])
    return Compiled(rows=rows, files=files) if rows else _failed(target, "no kernel in the assembly", launch.chosen)


def _answer(tree: Path, target: TritonTarget, launch: Launch, triton: Triton) -> dict[str, Any]:
    job = {
        "file": f"{TREE}/{target.source}",
        "roots": [f"{TREE}/{root}" for root in target.roots],
        "function": target.function,
        "signature": target.signature,
        "constexprs": launch.constexprs,
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "arch": ARCH,
        "memory": MEMORY_BYTES,
    }
    done = triton.place.run(
        [str(triton.python), "-I", JOB.name],
        timeout=SECONDS,
        tree=tree,
        files={JOB.name: JOB.read_bytes(), "job.json": json.dumps(job).encode()},
    )
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        raise ToolError(f"the compiler ended with status {done.returncode}: {_last_words(done)}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def _last_words(done: Ran) -> str:
    return done.stderr.strip()[-200:]


def _failed(target: TritonTarget, error: str, launch: dict[str, int]) -> Compiled:
    return Compiled(rows=(Row(file=target.source, kernel=target.function, launch=launch, error=error),))


def _asked(python: Path) -> Triton:
    done = process.run([str(python), "-I", "-c", _ASK], timeout=SECONDS, check=False)
    if done.returncode != 0:
        raise HostError(
            f"{python} has no Triton that works: {done.stderr.strip()[-200:]}", hint=f"use triton {VERSION}"
        )
    return Triton(python=python, version=done.stdout.strip())
