"""Which of the operators that rules ask for are in an image, found as text in its libraries: no torch, no GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.errors import HostError

if TYPE_CHECKING:
    from builder.engine.port import Engine

OPERATORS = ("octave_decode", "octave_cache_store")
SECONDS = 300.0
# the schema of every operator stands in its library as plain text
FIND = """
import json, pathlib, sys, sysconfig
names = [name.encode() for name in sys.argv[1:]]
found = set()
for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
    for package in ("vllm", "sgl_kernel"):
        for path in (pathlib.Path(folder) / package).rglob("*.so"):
            data = path.read_bytes()
            found.update(name.decode() for name in names if name in data)
print(json.dumps(sorted(found)))
"""


def operators_of(engine: Engine, image: str) -> frozenset[str]:
    """Return the operators of :data:`OPERATORS` that an image has.

    Raises:
        HostError: The engine has no such image, or it has no python3.
    """
    if engine.image(image) is None:
        raise HostError(f"{engine.name} has no image {image}", hint="pull or build it first")
    done = engine.run_once(image, ["python3", "-c", FIND, *OPERATORS], files={}, timeout=SECONDS)
    if done.returncode != 0:
        raise HostError(f"the operators of {image} could not be read: {done.stderr.strip()[-300:]}")
    return frozenset(json.loads(done.stdout))
