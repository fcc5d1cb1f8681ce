"""Reads a library like the largest in a ROCm torch: 660 MB, 3,000 bundles, 12,000 kernels.

The file is sparse, so it takes little disk. Run ``python tests/benchmarks/bench_objects.py``; it fails when reading
takes more than 2 s or 100 MB.
"""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUNDLES = 3000
SIZE = 660_000_000
SECONDS, MEGABYTES = 2.0, 100


def write_library(path: Path) -> None:
    """Write the sparse library: each bundle holds one gfx1100 object with four kernels and much code."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
    import made_objects as made

    code = made.code_object(
        *(made.kernel(f"_ZN2at6native18elementwise_kernel{i}EiT1_", vgpr_count=90) for i in range(4))
    )
    step = SIZE // BUNDLES // 4096 * 4096
    size = step - 4096
    entry = struct.pack("<QQQ", 4096, size, len(made.ID)) + made.ID.encode()
    header = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 1) + entry
    outer = made.library({".hip_fatbin": b"?"})
    names = b"\0.hip_fatbin\0.shstrtab\0"
    end = 4096 + BUNDLES * step
    rows = [
        bytes(64),
        struct.pack("<IIQQQQIIQQ", 1, 1, 2, 0, 4096, end - 4096, 0, 0, 4096, 0),
        struct.pack("<IIQQQQIIQQ", 13, 3, 0, 0, end, len(names), 0, 0, 1, 0),
    ]
    with path.open("wb") as file:
        file.write(outer[:40] + struct.pack("<Q", end + 64) + outer[48:60] + struct.pack("<HH", 3, 2))
        for number in range(BUNDLES):
            file.seek(4096 + number * step)
            file.write(header)
            file.seek(8192 + number * step)
            file.write(code)
        file.seek(end)
        file.write(names)
        file.seek(end + 64)
        file.write(b"".join(rows))


def measure(path: Path) -> None:
    """Read the library in this process and print seconds and peak memory."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from builder.objects import read_library

    start = time.perf_counter()
    library = read_library(path)
    seconds = time.perf_counter() - start
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    found = (library.bundles, len(library.kernels), library.archs)
    sys.stdout.write(f"{found}: {seconds:.2f} s, {megabytes:.0f} MB\n")
    good = found == (BUNDLES, 4 * BUNDLES, ("gfx1100",)) and seconds < SECONDS and megabytes < MEGABYTES
    sys.exit(0 if good else 1)


def main() -> None:
    """Write the library and read it in a process of its own, so that only the reader's memory counts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "libsynthetic.so")
        write_library(path)
        sys.exit(subprocess.run([sys.executable, __file__, str(path)], check=False).returncode)


if __name__ == "__main__":
    measure(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
