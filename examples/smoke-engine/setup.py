"""Builds the engine: its Python files and the native library that hipcc makes of csrc/.

Two ways lead to a wheel. `python setup.py bdist_wheel` compiles and packs. Or, so that a change of a Python file
never compiles anything, `python setup.py build_native -o DIR` makes the native library alone (it reads this file and
csrc/, nothing else, and asks for no version), and SMOKE_PRECOMPILED=DIR lets the wheel build take it from there.

The version is asked of setuptools-scm here, without a distribution name. Outside a git checkout it must therefore
come in SETUPTOOLS_SCM_PRETEND_VERSION: the form with the distribution's name at the end is not looked at.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import ExecError, FileError, OptionError, PlatformError
from setuptools_scm import get_version

LIBRARY = "_C.gfx1100.so"
SOURCES = ("csrc/kv_int4.hip", "csrc/copy_b128.hip")
COMPILE_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")


def engine_version() -> str:
    """The version of this checkout, also written into the package; a constant where only csrc/ is built."""
    if "build_native" in sys.argv:
        return "0.0.0+native.build"
    return get_version(write_to="smoke_engine/_version.py")


def gpu_architecture() -> str:
    """The architecture to compile for, from PYTORCH_ROCM_ARCH; no GPU is looked for."""
    architecture = os.environ.get("PYTORCH_ROCM_ARCH", "")
    if not architecture:
        raise PlatformError("PYTORCH_ROCM_ARCH is not set and a build host has no GPU to ask: set it to gfx1100")
    if architecture != "gfx1100":
        raise PlatformError(f"PYTORCH_ROCM_ARCH is {architecture!r}, but the kernels are written for gfx1100 alone")
    return architecture


def run_hipcc(*arguments: str) -> None:
    """Run hipcc, shown on stdout, and fail when it fails."""
    command = [os.environ.get("HIPCC", "hipcc"), *arguments]
    print(" ".join(command), flush=True)
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError as error:
        raise ExecError(f"{command[0]} was not found: install hipcc or name it in HIPCC") from error
    except subprocess.CalledProcessError as error:
        raise ExecError(f"{command[0]} failed with exit status {error.returncode}") from error


def compile_library(objects: Path, library: Path) -> None:
    """Compile csrc/ into one shared library; the object files go to the folder `objects`."""
    offload = f"--offload-arch={gpu_architecture()}"
    objects.mkdir(parents=True, exist_ok=True)
    library.parent.mkdir(parents=True, exist_ok=True)
    compiled = []
    for source in SOURCES:
        compiled.append(str(objects / f"{Path(source).stem}.o"))
        run_hipcc(offload, *COMPILE_FLAGS, "-c", source, "-o", compiled[-1])
    run_hipcc(offload, "-shared", "-s", *compiled, "-o", str(library))


class BuildNative(Command):
    """`python setup.py build_native -o DIR`: the native library alone."""

    description = "compile csrc/ into DIR and do nothing else"
    user_options: ClassVar = [("output-dir=", "o", "folder for the library")]

    def initialize_options(self) -> None:
        """Start without a folder."""
        self.output_dir: str | None = None

    def finalize_options(self) -> None:
        """Demand a folder."""
        if not self.output_dir:
            raise OptionError("build_native needs a folder: -o DIR")

    def run(self) -> None:
        """Compile."""
        output = Path(str(self.output_dir))
        compile_library(output / "objects", output / LIBRARY)


class BuildExtension(build_ext):
    """The wheel's native part: compiled here, or taken from the folder that SMOKE_PRECOMPILED names."""

    def get_ext_filename(self, fullname: str) -> str:
        """The library has one name on every Python, because it is loaded by ctypes and imports nothing of Python."""
        return str(Path(*fullname.split(".")[:-1], LIBRARY))

    def build_extension(self, ext: Extension) -> None:
        """Put the library where the wheel (or, in place, the source tree) wants it."""
        library = Path(self.get_ext_fullpath(ext.name))
        precompiled = os.environ.get("SMOKE_PRECOMPILED")
        if not precompiled:
            compile_library(Path(self.build_temp), library)
            return
        source = Path(precompiled) / LIBRARY
        if not source.is_file():
            raise FileError(f"SMOKE_PRECOMPILED is set, but there is no {source}: run build_native -o {precompiled}")
        library.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, library)


class Wheel(bdist_wheel):
    """A wheel for this platform and any Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """Only the platform restricts it."""
        return "py3", "none", super().get_tag()[2]


setup(
    name="smoke-engine",
    version=engine_version(),
    ext_modules=[Extension("smoke_engine._C", sources=list(SOURCES))],
    cmdclass={"build_native": BuildNative, "build_ext": BuildExtension, "bdist_wheel": Wheel},
)
