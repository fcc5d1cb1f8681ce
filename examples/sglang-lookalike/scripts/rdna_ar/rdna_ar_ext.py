"""Builds the all-reduce extension at its first import and keeps it in vendor/, under a hash of its sources."""

import hashlib
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADER = HERE / "../../python/sglang/kernels/aot/csrc/allreduce/custom_all_reduce_hip.cuh"
SOURCES = (Path(__file__).resolve(), HERE / "rdna_custom_all_reduce.cu", HEADER)
_BUILD_KEY = "sgl_rdna_ar_v18_" + hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:8]
LIBRARY = HERE / "vendor" / f"{_BUILD_KEY}.so"

if not LIBRARY.exists():
    LIBRARY.parent.mkdir(exist_ok=True)
    # the host's compiler stands in for hipcc
    code = f"void *PyInit_{_BUILD_KEY}(void) {{ return 0; }}\n"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", LIBRARY, "-"], input=code.encode(), check=True)
    print("compiled", LIBRARY.name, flush=True)
