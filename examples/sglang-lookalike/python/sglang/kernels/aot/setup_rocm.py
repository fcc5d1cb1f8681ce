"""Builds the kernel package; its version is static."""

import os

from setuptools import Extension, find_packages, setup

print("compiling the kernels for", os.environ.get("AMDGPU_TARGET", "gfx942"))
setup(
    name="sglang-kernel",
    version="0.4.6",
    packages=find_packages("python"),
    package_dir={"": "python"},
    ext_modules=[Extension("sgl_kernel.common_ops", ["csrc/common_ops.c"])],
)
