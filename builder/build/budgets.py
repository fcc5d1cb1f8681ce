"""The kernels that a series touches, compiled by the build's own compiler before anything heavy is built."""

from __future__ import annotations

import glob
import os
import re
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from builder.kernels.assembly import plain_name
from builder.kernels.hip import hip_sources, hipcc_in
from builder.kernels.place import InImage
from builder.kernels.run import Compilers, compare
from builder.kernels.triton import triton_in
from builder.models.kernels import HipTarget, TritonTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from builder.console import Console
    from builder.engine.port import Engine
    from builder.kernels.report import Report
    from builder.models.kernels import KernelTarget
    from builder.models.stack import Stack
    from builder.patching.header import Proof

# a header's name stands in quotes or angle brackets, by whatever macro it is included
_NAMED = re.compile(rb'["<]([^"<>\s]+)[">]')


@dataclass(frozen=True, kw_only=True)
class Patched:
    """A patched tree and what its series changed.

    Attributes:
        tree: The tree.
        originals: The files that the patches name, as they were before the series; None where there was none.
        proofs: The proofs of the patches that took effect, by id.
    """

    tree: Path
    originals: Mapping[str, bytes | None]
    proofs: Mapping[str, Sequence[Proof]]

    def before(self, path: str) -> bytes | None:
        """Return a file as it was before the series."""
        return self.originals[path] if path in self.originals else self.after(path)

    def after(self, path: str) -> bytes | None:
        """Return a file as it is now."""
        return (self.tree / path).read_bytes() if (self.tree / path).is_file() else None


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What a build compiles.

    Attributes:
        targets: One a file or Triton kernel.
        files: The files of the tree that they may read.
        left_out: How many more the stack names.
    """

    targets: tuple[KernelTarget, ...]
    files: frozenset[str]
    left_out: int


@dataclass(kw_only=True)
class _Reach:
    """Which files of a tree a source can be made of."""

    patched: Patched
    by_name: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        paths = {path.relative_to(self.patched.tree).as_posix() for path in self.patched.tree.rglob("*")}
        for path in sorted(paths | set(self.patched.originals)):
            self.by_name.setdefault(path.rpartition("/")[2], []).append(path)

    def of(self, target: KernelTarget, source: str) -> frozenset[str]:
        """Return them: for C++ those whose name one of them mentions, for Python those below the target's roots."""
        if isinstance(target, TritonTarget):
            names = (path for name, paths in self.by_name.items() if name.endswith(".py") for path in paths)
            return frozenset(path for path in names if any(Path(path).is_relative_to(root) for root in target.roots))
        found: set[str] = set()
        todo = [source]
        while todo:
            if (path := todo.pop()) not in found:
                found.add(path)
                for text in (self.patched.before(path), self.patched.after(path)):
                    for name in _NAMED.findall(text or b""):
                        todo += self.by_name.get(os.fsdecode(name).rpartition("/")[2], [])
        return frozenset(found)


def compile_touched(
    engine: Engine, image: Callable[[], str], stack: Stack, patched: Patched, *, jobs: int, console: Console
) -> Report | None:
    """Compile the kernels that a series or its proofs touch, before and after, with the compiler of an image.

    Args:
        engine: Where the image is.
        image: Gives the image of the build's toolchain stage; not called when nothing is touched.
        stack: What names the kernels.
        patched: The tree of the build.
        jobs: Compilations at once.
        console: Where the table goes.

    Returns:
        The report, or None when nothing is touched.

    Raises:
        BuildError: A kernel or a proof is not as the series promises, or the compiler is none for gfx1100.
    """
    began = time.monotonic()
    proofs = {patch: list(filter(_is_compiled, several)) for patch, several in patched.proofs.items()}
    wanted = [proof for several in proofs.values() for proof in several]
    chosen = choose(stack.kernels, patched, {str(proof.isa) for proof in wanted})
    if not chosen.targets and not wanted:
        if chosen.left_out:
            console.step(f"compiled no kernel beforehand: the series touches none of {chosen.left_out}")
        return None
    place = InImage(engine=engine, image=image())
    hip = hipcc_in(place) if any(isinstance(target, HipTarget) for target in chosen.targets) else None
    functions = [target.function for target in chosen.targets if isinstance(target, TritonTarget)]
    triton = triton_in(place) if functions else None
    targets = [target for target in chosen.targets if triton or not isinstance(target, TritonTarget)]
    missed = () if triton else tuple(dict.fromkeys(functions))
    proofs = {patch: [one for one in several if one.isa not in missed] for patch, several in proofs.items()}
    with tempfile.TemporaryDirectory(prefix="gfx1100-kernels-") as scratch:
        before, after = Path(scratch, "before"), Path(scratch, "after")
        for folder, read in ((before, patched.before), (after, patched.after)):
            _write(folder, chosen.files, read)
        report = compare(
            targets,
            before=before,
            after=after,
            compilers=Compilers(cache=Path(scratch), toolchain=hip, triton=triton, jobs=jobs),
            proofs=proofs,
            say=console.detail,
        )
    report = replace(report, warnings=(*report.warnings, *_missed(missed, wanted, stack.name)))
    console.step(
        f"compiled {len(targets)} of {len(chosen.targets) + chosen.left_out} kernel sources before and after the "
        f"series with the build's compiler in {time.monotonic() - began:.1f} s"
    )
    console.note(report.text())
    report.require_success(stack.name)
    return report


def choose(kernels: Iterable[KernelTarget], patched: Patched, proven: set[str]) -> Chosen:
    """Return the kernels of a stack that a changed file or a proof touches.

    Args:
        kernels: The stack's.
        patched: The tree.
        proven: The kernels that proofs name.
    """
    changed = {path for path in patched.originals if patched.before(path) != patched.after(path)}
    reach = _Reach(patched=patched)
    sources = [
        (target, source, reach.of(target, source))
        for target in kernels
        for source in (hip_sources(patched.tree, target) if isinstance(target, HipTarget) else [target.source])
    ]
    places = {name: [one for one in sources if _may_hold(one, name, patched)] for name in map(plain_name, proven)}
    touched = [one for one in sources if one[2] & changed or any(one in holders for holders in places.values())]
    if not all(places.values()):
        # a macro may make the name, so every HIP source may hold it
        touched = [one for one in sources if one in touched or isinstance(one[0], HipTarget)]
    return Chosen(
        targets=tuple(target.model_copy(update={"source": glob.escape(source)}) for target, source, _ in touched),
        files=frozenset[str]().union(*(files for _, _, files in touched)),
        left_out=len(sources) - len(touched),
    )


def _may_hold(one: tuple[KernelTarget, str, frozenset[str]], kernel: str, patched: Patched) -> bool:
    target, _, files = one
    if isinstance(target, TritonTarget):
        return target.function == kernel
    word = re.compile(rb"\b" + re.escape(kernel.encode()) + rb"\b")
    return any(word.search(patched.after(path) or b"") for path in files)


def _is_compiled(proof: Proof) -> bool:
    return proof.isa is not None and bool(proof.marker or proof.no_new_spills or proof.max_vgprs)


def _missed(functions: Iterable[str], wanted: Sequence[Proof], stack: str) -> Iterator[str]:
    for function in functions:
        proven = ", so its proofs are not checked here" if any(proof.isa == function for proof in wanted) else ""
        yield (
            f"{function} was not compiled in the build, whose image has no Triton{proven}; "
            f"`gfx1100 kernels {stack}` compiles it"
        )


def _write(folder: Path, paths: Iterable[str], read: Callable[[str], bytes | None]) -> None:
    folder.mkdir()
    for path in paths:
        if (data := read(path)) is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
