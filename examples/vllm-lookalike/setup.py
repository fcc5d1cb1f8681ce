"""Builds the look-alike as the fork is built: settings from vllm/envs.py, the version without a distribution's name."""

import importlib.util
import os
from pathlib import Path

import torch
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools_scm import get_version

ROOT = Path(__file__).parent


def load(name, path):
    """Load a file as a module, as the package itself is not installed yet."""
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


envs = load("envs", "vllm/envs.py")
load("rust", "tools/build_rust.py")


class Compile(build_ext):
    """Compiles the extension, unless a wheel brings it."""

    def run(self):
        """Say which of the two it is."""
        if envs.VLLM_USE_PRECOMPILED:
            print("precompiled:", os.environ["VLLM_PRECOMPILED_WHEEL_LOCATION"])
            return
        print(f"compiling csrc with {envs.MAX_JOBS or 'all'} jobs against torch {torch.__version__}")
        super().run()


def version():
    """Return the version with the device's suffix."""
    found = get_version(write_to="vllm/_version.py")
    device = envs.VLLM_TARGET_DEVICE
    return found + ("." if "+" in found else "+") + ("empty" if device == "empty" else f"rocm{torch.version.hip}")


def requirements():
    """Return the run-time requirements."""
    lines = (ROOT / "requirements" / "common.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


setup(
    version=version(),
    install_requires=requirements(),
    cmdclass={"build_ext": Compile},
    ext_modules=[
        Extension(
            "vllm._C",
            ["csrc/answer.c"],
            py_limited_api=True,
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
