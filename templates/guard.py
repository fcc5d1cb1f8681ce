"""Fails the build when an install replaced what the lock pins: run after every install, in the image's own Python.

``python3 guard.py CONSTRAINTS rocm|none``: every ``name==version`` of the file is installed at that version; torch is
built for ROCm (or, in a rehearsal, for no device); no ``nvidia-*`` distribution came along; one distribution alone owns
the folder ``triton/``; and at most one copy of amdsmi can be imported.
"""

import importlib.metadata
import importlib.util
import os
import re
import sys


def main() -> None:
    """Check everything and end with 1 at the first fault."""
    file, device = sys.argv[1:]
    distributions = list(importlib.metadata.distributions())
    installed = {re.sub(r"[-_.]+", "-", dist.metadata["Name"]).lower(): dist.version for dist in distributions}
    with open(file, encoding="utf-8") as lines:
        pins = dict(line.strip().split("==") for line in lines if "==" in line)
    for name, version in pins.items():
        if installed.get(name) != version:
            fail(f"{name} is {installed.get(name, 'not installed')}, the lock says {version}")
    foreign = sorted(name for name in installed if name.startswith("nvidia-"))
    if foreign:
        fail(f"CUDA packages came along: {', '.join(foreign)}")
    owners = sorted({dist.metadata["Name"] for dist in distributions if owns(dist, "triton/")})
    if len(owners) > 1:
        fail(f"{' and '.join(owners)} both own the folder triton/")
    check_torch(device)
    copies = [folder for folder in sys.path if os.path.isdir(os.path.join(folder, "amdsmi"))]
    if len(copies) > 1:
        fail(f"there are {len(copies)} copies of amdsmi: {', '.join(copies)}")
    print("gfx1100-guard: ok:", ", ".join(f"{name} {installed[name]}" for name in pins))


def owns(dist: importlib.metadata.Distribution, folder: str) -> bool:
    """Whether a distribution has files below a folder of site-packages."""
    return any(str(path).startswith(folder) for path in dist.files or ())


def check_torch(device: str) -> None:
    """Read for which device torch was built, without importing it: that takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        fail("torch is not installed")
    path = os.path.join(os.path.dirname(spec.origin), "version.py")
    version = importlib.util.spec_from_file_location("torch_version", path)
    module = importlib.util.module_from_spec(version)
    version.loader.exec_module(module)
    hip, cuda = getattr(module, "hip", None), getattr(module, "cuda", None)
    if cuda is not None:
        fail(f"torch {module.__version__} is built for CUDA {cuda}")
    if (hip is not None) != (device == "rocm"):
        fail(f"torch {module.__version__} is built for {f'ROCm {hip}' if hip else 'the CPU'}, not for {device}")


def fail(why: str) -> None:
    """End the build with a line that the toolkit recognises."""
    sys.exit(f"gfx1100-guard: {why}")


if __name__ == "__main__":
    main()
