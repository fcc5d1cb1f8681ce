"""One ahead-of-time compilation of a Triton kernel for gfx1100, run by a Python that has Triton and nothing of ours.

It reads ``job.json`` in its folder and writes one line of JSON to stdout. No GPU, no torch: the module that holds the
kernel is loaded from a source tree, the tree's packages without their ``__init__``; all but Python's own modules and
Triton gets a stand-in, whatever is installed, so that every machine gives the same figures.
"""

# ruff: noqa: ANN401 - a stand-in takes anything

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import sys
import types
from pathlib import Path
from typing import Any


class Anything(types.ModuleType):
    """Stands for a module, class, function or value that is left out; it takes every use and does nothing."""

    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        """Return a stand-in for whatever is asked for."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(f"{self.__name__}.{name}")

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Do nothing; as a decorator, with or without arguments, leave the function as it is."""
        only = given[0] if len(given) == 1 and not named else None
        return only if callable(only) and not isinstance(only, Anything) else self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """Be no base at all."""
        return (object,)

    def __getitem__(self, key: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what Python's own finders do not: files of the source tree, and stand-ins for all else.

    Args:
        roots: Folders of the tree that hold top-level packages.
    """

    def __init__(self, roots: list[Path]) -> None:
        self.roots = roots
        self.files: list[str] = []

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for the tree's file or for a stand-in; the tree comes first, whatever is installed."""
        for root in self.roots:
            base = root.joinpath(*name.split("."))
            if base.is_dir():
                # a package of the tree is only a way to its modules: its own code imports half the engine
                return importlib.machinery.ModuleSpec(name, self, is_package=True)
            if (file := base.with_suffix(".py")).is_file():
                self.files.append(str(file))
                return importlib.util.spec_from_file_location(name, file)
        top = name.partition(".")[0]
        if top == "triton" or top in sys.stdlib_module_names or top.startswith("_"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the stand-in."""
        return Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: a stand-in has no code."""


def load(file: Path, finder: Finder) -> types.ModuleType:
    """Return the module of a file of the tree."""
    sys.meta_path.insert(0, finder)
    inside = next((root for root in finder.roots if file.is_relative_to(root)), file.parent)
    name = ".".join(file.relative_to(inside).with_suffix("").parts)
    finder.files.append(str(file))
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def compiled(job: dict[str, Any]) -> dict[str, Any]:
    """Return the assembly and the shared memory of a job's kernel, and which files it was made of."""
    triton, backend, compiler = map(importlib.import_module, ("triton", "triton.backends.compiler", "triton.compiler"))
    finder = Finder([Path(root) for root in job["roots"]])
    kernel = getattr(load(Path(job["file"]), finder), job["function"])
    signature, constants, hints = {}, dict(job["constexprs"]), {}
    for place, name in enumerate(kernel.arg_names):
        kind, _, hint = job["signature"].get(name, "constexpr").partition(":")
        if kind == "none" or hint == "1":
            constants[name] = None if kind == "none" else 1
        elif hint:
            hints[place,] = [["tt.divisibility", int(hint)]]
        signature[name] = "constexpr" if name in constants else kind
    missing = [name for name, kind in signature.items() if kind == "constexpr" and name not in constants]
    if missing:
        raise ValueError(f"no value and no type for the parameters {', '.join(missing)} of {job['function']}")
    result = triton.compile(
        compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints),
        target=backend.GPUTarget("hip", job["arch"], 32),
        options={"num_warps": job["num_warps"], "num_stages": job["num_stages"]},
    )
    return {"assembly": result.asm["amdgcn"], "shared": result.metadata.shared, "files": finder.files}


def said(trouble: BaseException) -> str:
    """Return a fault in one line; Triton wraps what went wrong in the line of the kernel where it did."""
    while trouble.__cause__ is not None:
        trouble = trouble.__cause__
    lines = [line.strip() for line in str(trouble).splitlines() if line.strip()]
    return f"{type(trouble).__name__}: {lines[-1] if lines else 'no reason given'}"


def main() -> None:
    """Do the job of this folder."""
    job = json.loads(Path("job.json").read_text())
    # a cache of its own: an old result must not answer, and the user's own is left alone
    os.environ["TRITON_CACHE_DIR"] = os.environ["TRITON_HOME"] = str(Path("cache").absolute())
    resource.setrlimit(resource.RLIMIT_AS, (job["memory"], job["memory"]))
    try:
        answer = compiled(job)
    except Exception as trouble:  # noqa: BLE001 - the file is a stranger's: whatever it raises is the answer
        answer = {"error": said(trouble)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
