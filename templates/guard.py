"""Fails the build when an install replaced what the lock pins: run after every install, in the image's own Python.

``python3 guard.py CONSTRAINTS``: every ``name==version`` of the file is installed at that version, torch is the ROCm
one, no ``nvidia-*`` distribution came along, and one distribution alone owns ``triton/``.
"""

import importlib.metadata
import re
import sys

OWNERS = {"triton", "triton-rocm", "pytorch-triton-rocm"}


def main() -> None:
    """Check everything and end with 1 at the first fault."""
    installed = {
        re.sub(r"[-_.]+", "-", dist.metadata["Name"]).lower(): dist.version
        for dist in importlib.metadata.distributions()
    }
    with open(sys.argv[1], encoding="utf-8") as file:
        pins = dict(line.strip().split("==") for line in file if "==" in line)
    for name, version in pins.items():
        if installed.get(name) != version:
            fail(f"{name} is {installed.get(name, 'not installed')}, the lock says {version}")
    foreign = sorted(name for name in installed if name.startswith("nvidia-"))
    if foreign:
        fail(f"CUDA packages came along: {', '.join(foreign)}")
    owners = sorted(OWNERS & installed.keys())
    if len(owners) > 1:
        fail(f"{' and '.join(owners)} both own the folder triton/")
    print("gfx1100-guard: ok:", ", ".join(f"{name} {installed[name]}" for name in pins))


def fail(why: str) -> None:
    """End the build with a line that the toolkit recognises."""
    sys.exit(f"gfx1100-guard: {why}")


if __name__ == "__main__":
    main()
