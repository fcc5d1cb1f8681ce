"""HIP sources compiled for the device only: no GPU, no PyTorch; a clang, HIP's headers and the device bitcode."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from builder import process
from builder.errors import BuildError, HostError
from builder.files import read_text
from builder.kernels.assembly import Row, count_markers, read_assembly, wanted_markers, waves_per_simd
from builder.kernels.place import OUT, TREE, Here, Place, Ran

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.models.kernels import HipTarget

ARCH = "gfx1100"
STANDIN = Path(__file__).parent / "standin"
SYSTEM = (Path("/opt/rocm"), Path("/usr"))
SECONDS = 600
ASSEMBLY, LISTING = "kernel.s", "files.d"
OLDEST, NEWEST = 17, 40
INSTALL = (
    "name a ROCm folder with ROCM_PATH, or install clang-19, libamdhip64-dev and rocm-device-libs-17 (Debian 13, "
    "Ubuntu 24.04); docs/kernels.md says how on Debian 12"
)

_BITCODE = ("amdgcn/bitcode", "lib/llvm/amdgcn/bitcode", "lib/clang/*/amdgcn/bitcode", "lib/clang/*/lib/amdgcn/bitcode")
_BITCODE_DEBIAN = ("lib/llvm-*/lib/clang/*/amdgcn/bitcode", "lib/*-linux-gnu/amdgcn/bitcode")
# as a child's status, and as a shell's
_KILLED = (-9, 137)
_MEMORY = re.compile(r"\bKilled\b|std::bad_alloc|[Oo]ut of memory|Cannot allocate memory")
_ERROR = re.compile(r"^(?:\S.*?: )?(?:fatal )?error: .*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """A compiler that knows gfx1100.

    Attributes:
        clang: The program.
        version: What it says of itself.
        rocm: Folder with ``include/hip``; None for a hipcc, which finds headers and bitcode by itself.
        bitcode: Folder with the device bitcode; without it register counts are wrong.
        place: Where it runs.
    """

    clang: str
    version: str
    rocm: Path | None
    bitcode: Path
    place: Place = field(default_factory=Here)

    @property
    def note(self) -> str:
        """What a report says of it."""
        headers = f"headers {self.rocm}, " if self.rocm else ""
        return f"HIP: {self.version}, {headers}bitcode {self.bitcode}"

    @property
    def options(self) -> tuple[str, ...]:
        """How it finds headers and bitcode; bitcode from before ROCm 6.3 knows code objects up to version 5."""
        if self.rocm is None:
            return ()
        old = not (self.bitcode / "oclc_abi_version_600.bc").is_file()
        paths = (f"--rocm-path={self.rocm}", f"--rocm-device-lib-path={self.bitcode}")
        return (*paths, *(("-mcode-object-version=5",) if old else ()))


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What became of one source file.

    Attributes:
        rows: Its kernels, or one row with the error.
        files: The files of the tree that it was made of, relative to it.
    """

    rows: tuple[Row, ...]
    files: tuple[str, ...] = ()


def find_toolchain(cache: Path) -> Toolchain:
    """Return the compiler to use: ROCm's, or a distribution's.

    Args:
        cache: The folder for caches, in which :mod:`builder.kernels.prepare` unpacks headers and bitcode.

    Raises:
        HostError: There is none, or headers or bitcode are missing.
    """
    # a ROCm folder, or the usr folder of a distribution's packages
    named = os.environ.get("ROCM_PATH")
    roots = [*([Path(named)] if named else []), *SYSTEM[:-1], cache / "hip/usr", SYSTEM[-1]]
    for clang in _clangs(roots):
        version, release = _version(clang)
        if release >= OLDEST:
            break
    else:
        raise HostError(f"no clang of release {OLDEST} or newer is installed", hint=INSTALL)
    with_headers = [root for root in roots if (root / "include/hip/hip_runtime.h").is_file()]
    if not with_headers:
        raise HostError(f"HIP's headers are in none of {', '.join(map(str, roots))}", hint=INSTALL)
    bitcode = _bitcode(roots, release)
    if bitcode is None:
        raise HostError(f"no device bitcode for {ARCH} that {version} can read was found", hint=INSTALL)
    # headers and bitcode of one release, where a root has both
    own = [root for root in with_headers if bitcode.is_relative_to(root)]
    return Toolchain(clang=clang, version=version, rocm=(own or with_headers)[0], bitcode=bitcode)


def hipcc_in(place: Place) -> Toolchain:
    """Return the hipcc of an image; it is the compiler of a build there.

    Raises:
        BuildError: There is none, or it would compile without the device bitcode for gfx1100.
    """
    argv = ["hipcc", "-###", "-x", "hip", "--cuda-device-only", f"--offload-arch={ARCH}", "-S", "-o", "k.s", "k.hip"]
    asked = place.run(argv, timeout=SECONDS, files={"k.hip": b""})
    bitcode = re.search(r'"-mlink-builtin-bitcode" "(\S+)/oclc_isa_version_1100\.bc"', asked.stderr)
    if asked.returncode != 0 or bitcode is None:
        raise BuildError(
            f"the hipcc of the build does not compile for {ARCH} with the device bitcode: {_first_error(asked)}",
            hint="the stage that compiles must have hipcc on its PATH or in /opt/rocm/bin, and ROCm's device libraries",
        )
    version = re.search(r"^.*clang version .*$", asked.stderr, re.MULTILINE)
    return Toolchain(
        clang="hipcc",
        version=version[0].strip() if version else "hipcc of an unknown version",
        rocm=None,
        bitcode=Path(bitcode[1]),
        place=place,
    )


def hip_sources(tree: Path, target: HipTarget) -> list[str]:
    """Return the files of a tree that a target names, sorted."""
    return sorted(path.relative_to(tree).as_posix() for path in tree.glob(target.source) if path.is_file())


def compile_device(
    tree: Path, source: str, target: HipTarget, toolchain: Toolchain, *, markers: Mapping[str, tuple[str, ...]]
) -> Compiled:
    """Compile one file for gfx1100 and return its kernels; a fault is a row with the compiler's first error line.

    Args:
        tree: The source tree.
        source: The file, relative to it.
        target: How to compile it and which kernels are wanted.
        toolchain: The compiler.
        markers: Kernel name -> regular expressions to count in its assembly.
    """
    path, files = f"{TREE}/{source}", _standin()
    if target.cut is not None:
        text = read_text(tree / source)
        parts = list(re.finditer(target.cut, text, re.MULTILINE | re.DOTALL))
        if len(parts) != 1:
            return _failed(source, target, f"the part to compile was found {len(parts)} times: upstream moved")
        line = text.count("\n", 0, parts[0].start()) + 1
        path = PurePosixPath(source).name
        files[path] = f'#include <hip/hip_runtime.h>\n#line {line} "{source}"\n{parts[0][0]}\n'.encode()
    argv = [
        *(toolchain.clang, "-x", "hip", "--cuda-device-only", f"--offload-arch={ARCH}", "-O3", "-std=c++20", "-w"),
        *toolchain.options,
        # clang 22 no longer defines it, and HIP's headers before 7 need it
        *("-D__AMDGCN_WAVEFRONT_SIZE=32", "-DUSE_ROCM", *(f"-D{define}" for define in target.defines)),
        *(f"-I{TREE}/{include}" for include in target.includes),
        *("-I", f"{TREE}/{PurePosixPath(source).parent}", "-idirafter", STANDIN.name),
        # the driver's -MD speaks for the host half only
        *("-Xclang", "-dependency-file", "-Xclang", f"{OUT}/{LISTING}", "-Xclang", "-MT", "-Xclang", "it"),
        *("-S", "-o", f"{OUT}/{ASSEMBLY}", path),
    ]
    try:
        done = toolchain.place.run(argv, timeout=SECONDS, tree=tree, files=files)
    except BuildError as late:
        return _failed(source, target, late.message)
    if done.returncode != 0:
        return _failed(source, target, _first_error(done))
    rows = _rows(source, target, done.files[ASSEMBLY].decode(errors="replace"), markers)
    return Compiled(rows=rows, files=(source, *_files(done.files[LISTING].decode())))


def _standin() -> dict[str, bytes]:
    paths = (path for path in STANDIN.rglob("*.h"))
    return {path.relative_to(STANDIN.parent).as_posix(): path.read_bytes() for path in paths}


def _rows(source: str, target: HipTarget, text: str, markers: Mapping[str, tuple[str, ...]]) -> tuple[Row, ...]:
    rows = [
        Row(
            file=source,
            kernel=kernel.name,
            figures=kernel,
            waves=waves_per_simd(kernel.vgpr),
            markers=count_markers(body, wanted_markers(markers, kernel.name)),
        )
        for kernel, body in read_assembly(text)
    ]
    if not target.kernels:
        return tuple(rows) or (Row(file=source, kernel="", error="the file compiles, but holds no kernel"),)
    wanted = [row for row in rows if {row.name, row.kernel} & set(target.kernels)]
    found = {name for row in wanted for name in (row.name, row.kernel)}
    missing = [name for name in target.kernels if name not in found]
    return (
        *wanted,
        *(Row(file=source, kernel=name, error="the file compiles, but has no such kernel") for name in missing),
    )


def _failed(source: str, target: HipTarget, error: str) -> Compiled:
    return Compiled(rows=tuple(Row(file=source, kernel=name, error=error) for name in target.kernels or ("",)))


def _first_error(done: Ran) -> str:
    if done.returncode in _KILLED or _MEMORY.search(done.stderr):
        return "the compiler was killed or found no more memory: fewer compilations at once (--jobs), or more memory"
    found = _ERROR.search(done.stderr)
    if found:
        return found[0].replace(f"{TREE}/", "").strip()
    last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
    return f"the compiler ended with status {done.returncode}: {last[0]}"


def _files(listing: str) -> Iterator[str]:
    for name in re.split(r"(?<!\\)\s+", listing.partition(":")[2].replace("\\\n", " ")):
        path = name.replace("\\ ", " ")
        if path.startswith(f"{TREE}/"):
            yield path.removeprefix(f"{TREE}/")


def _clangs(roots: list[Path]) -> Iterator[str]:
    for root in roots[:-1]:
        for place in ("llvm/bin/clang", "lib/llvm/bin/clang"):
            if (root / place).is_file():
                yield str(root / place)
    for name in ("amdclang", *(f"clang-{release}" for release in range(NEWEST, OLDEST - 1, -1)), "clang", "hipcc"):
        if path := shutil.which(name):
            yield path


def _version(clang: str) -> tuple[str, int]:
    text = process.run([clang, "--version"], timeout=60, check=False).stdout
    found = re.search(r"^.*clang version (\d+).*$", text, re.MULTILINE)
    return (found[0].strip(), int(found[1])) if found else ("unknown", 0)


def _bitcode(roots: list[Path], release: int) -> Path | None:
    """Return the newest bitcode that a clang of this release reads: LLVM reads what older releases wrote."""
    for root in roots:
        found = [
            path
            for pattern in (*_BITCODE, *_BITCODE_DEBIAN)
            for path in root.glob(pattern)
            if (path / "oclc_isa_version_1100.bc").is_file() and _llvm(path) <= release
        ]
        if found:
            return max(found, key=_llvm)
    return None


def _llvm(path: Path) -> int:
    found = re.search(r"/(?:llvm-|clang/)(\d+)", str(path))
    return int(found[1]) if found else 0
