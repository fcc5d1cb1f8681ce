"""A compiler for HIP sources on a Debian or Ubuntu machine, from packages alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from builder.engine import packages
from builder.errors import HostError, UpstreamError
from builder.files import fresh_folder
from builder.kernels.hip import Toolchain, find_toolchain
from builder.process import run

if TYPE_CHECKING:
    from builder.console import Console

COMPILER = ("clang-19", "lld-19")
# the first release of Debian whose device bitcode knows gfx1100; LLVM 19 reads what LLVM 17 wrote
SUITE = "trixie"
HEADERS = ("libamdhip64-dev", "rocm-device-libs-17")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SECONDS = 900


def prepare_hip(cache: Path, *, allowed: bool, console: Console) -> Toolchain:
    """Return a compiler for HIP sources; what is missing is installed, or unpacked into the cache.

    Args:
        cache: The folder for caches; ``hip`` in it takes the headers and the bitcode where the system's are too old.
        allowed: Whether installing is allowed.
        console: Where it is said.

    Raises:
        HostError: It is missing and may not be installed, or this is neither Debian nor Ubuntu.
        UpstreamError: The packages cannot be fetched.
    """
    try:
        return find_toolchain(cache)
    except HostError:
        if not allowed:
            raise
    packages.install(COMPILER, allowed=allowed, why="HIP sources are compiled for the device", console=console)
    try:
        return find_toolchain(cache)
    except HostError:
        console.step(f"unpacking {' and '.join(HEADERS)} of Debian {SUITE} into {cache / 'hip'}")
    _unpack(cache / "hip")
    return find_toolchain(cache)


def _unpack(target: Path) -> None:
    """Unpack packages of another release of Debian, with apt's lists of its own; nothing is installed."""
    apt, dpkg = packages.program("apt-get"), packages.program("dpkg-deb")
    if apt is None or dpkg is None or not KEYRING.is_file():
        raise HostError("HIP's headers for gfx1100 come from Debian's packages, and this is no Debian")
    asked = run([apt, "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], timeout=SECONDS).stdout
    mirror = next((line for line in asked.splitlines() if line.endswith("/debian/")), None)
    if mirror is None:
        raise HostError("apt knows no mirror of Debian", hint="run `sudo apt-get update`, then try again")
    with tempfile.TemporaryDirectory(prefix="gfx1100-apt-") as folder, fresh_folder(target) as fresh:
        work = Path(folder)
        for part in ("lists/partial", "archives/partial"):
            (work / part).mkdir(parents=True)
        (work / "list").write_text(f"deb [signed-by={KEYRING}] {mirror} {SUITE} main\n")
        settings = {
            "Dir::Etc::SourceList": work / "list",
            "Dir::Etc::SourceParts": work / "none",
            "Dir::State": work,
            "Dir::State::status": "/var/lib/dpkg/status",
            "Dir::Cache": work,
        }
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        run([apt, *options, "-q", "update"], timeout=SECONDS, failure=UpstreamError)
        run([apt, *options, "-q", "download", *HEADERS], timeout=SECONDS, cwd=work, failure=UpstreamError)
        for archive in sorted(work.glob("*.deb")):
            run([dpkg, "-x", str(archive), str(fresh)], timeout=SECONDS)
