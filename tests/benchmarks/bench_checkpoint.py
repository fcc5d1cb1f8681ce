"""What an inspection and a fix of the field report's checkpoint cost: seconds, bytes read, peak memory, bytes written.

Run with ``python tests/benchmarks/bench_checkpoint.py``; prints one JSON document. Each figure is of a process of its
own, imports and start of Python included in the memory and in ``process_seconds``, and not in the rest.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit"))

from checkpoint_twin import twin  # noqa: E402 - found by the line above

RUNS = 9
CHILD = """
import json, sys, time
from builder.checkpoint.__main__ import main
def counts():
    return [int(line.split()[1]) for line in open("/proc/self/io")][:2]
(read, written), begun = counts(), time.perf_counter()
main(sys.argv[1:])
seconds, (read_now, written_now) = time.perf_counter() - begun, counts()
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([seconds, read_now - read, written_now - written, peak * 1024]), file=sys.stderr)
"""


def measure(*arguments):
    """Return seconds, bytes read and written, peak bytes and seconds of the whole process."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=True,
    )
    return (*json.loads(done.stderr), time.perf_counter() - begun)


def main():
    """Print the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = twin(Path(name) / "Q")
        size = sum(path.stat().st_size for path in folder.iterdir())
        results = {"checkpoint_bytes": size, "runs": RUNS}
        for label, arguments in {
            "inspect": ("inspect", str(folder)),
            "fix": ("fix", str(folder), "-o", f"{name}/RUN"),
        }.items():
            runs = [measure(*(word.replace("RUN", str(run)) for word in arguments)) for run in range(RUNS)]
            figures = list(zip(*runs, strict=True))
            keys = ("seconds", "bytes_read", "bytes_written", "peak_bytes", "process_seconds")
            results[label] = {key: statistics.median(values) for key, values in zip(keys, figures, strict=True)}
    sys.stdout.write(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
