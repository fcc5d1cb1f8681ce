"""What a compiler's AMDGPU assembly says of the kernels in it, and how many waves of one fit on a SIMD of gfx1100.

Clang's and Triton's assembly have one form: LLVM's "User Guide for AMDGPU Backend", code object metadata. The figures
are those of the code object's note.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from builder.objects import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

When = Literal["before", "after"]

# Wave32 on Navi 31. LLVM's AMDGPUBaseInfo (feature "1.5x VGPRs"): 1536 vector registers a SIMD, granted in steps of 24,
# at most 16 waves. AMD's "RDNA3 Shader Instruction Set Architecture": a work-group processor of 4 SIMDs shares 128 KiB
# of LDS, a workgroup gets at most 64 KiB, in steps of 512 bytes.
VGPRS, VGPR_STEP = 1536, 24
MOST_WAVES = 16
SIMDS = 4
LDS_BYTES, LDS_STEP = 128 * 1024, 512
LDS_OF_A_WORKGROUP = 64 * 1024

_METADATA = re.compile(r"^\s*\.amdgpu_metadata$(.*?)^\s*\.end_amdgpu_metadata$", re.DOTALL | re.MULTILINE)
_KERNEL = re.compile(r"^  - (?=\.)", re.MULTILINE)
_FIELD = re.compile(r"^ {4}\.(\w+): +(.+?)\s*$", re.MULTILINE)
_SOURCE_NAME = re.compile(r"[NKVrL]*(\d+)")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kernel of a tree, compiled; or the reason why it was not.

    Attributes:
        file: The source file, by its path in the tree.
        kernel: The mangled name; of a file that did not compile the wanted name, or empty.
        when: The tree: before or after the series.
        figures: Registers, LDS and spills; None with an error.
        launch: Compile-time values of a Triton kernel that were read from the launcher or are being tried.
        waves: Waves a SIMD that fit at once; of a HIP kernel by its registers alone.
        markers: Regular expression -> number of lines of the kernel's assembly that match.
        error: The compiler's first error line.
    """

    file: str
    kernel: str
    when: When = "after"
    figures: Kernel | None = None
    launch: dict[str, int] = field(default_factory=dict)
    waves: float | None = None
    markers: dict[str, int] = field(default_factory=dict)
    error: str = ""

    @property
    def name(self) -> str:
        """The kernel's name without namespaces, template arguments and parameters."""
        return plain_name(self.kernel)

    def document(self) -> dict[str, Any]:
        """Return what ``kernels --json`` says of it."""
        figures = self.figures
        return {
            "file": self.file,
            "kernel": self.kernel,
            "when": self.when,
            "vgpr": figures and figures.vgpr,
            "sgpr": figures and figures.sgpr,
            "lds_bytes": figures and figures.lds_bytes,
            "scratch_bytes": figures and figures.scratch_bytes,
            "vgpr_spills": figures and figures.vgpr_spills,
            "sgpr_spills": figures and figures.sgpr_spills,
            "waves": self.waves,
            "launch": self.launch,
            "markers": self.markers,
            "error": self.error or None,
        }


def read_assembly(text: str) -> list[tuple[Kernel, str]]:
    """Return the kernels of an assembly file, each with its lines; none when it has no metadata."""
    found = _METADATA.search(text)
    if found is None:
        return []
    pieces = _KERNEL.split(found[1].partition("amdhsa.kernels:")[2])[1:]
    return [(kernel, _body(text, kernel.name)) for kernel in map(_kernel, pieces)]


def count_markers(body: str, patterns: Iterable[str]) -> dict[str, int]:
    """Return how many lines of a kernel's assembly each regular expression is found in."""
    lines = body.splitlines()
    return {pattern: sum(bool(re.search(pattern, line)) for line in lines) for pattern in patterns}


def waves_per_simd(vgpr: int, lds_bytes: int = 0, waves_of_a_workgroup: int = 0) -> float:
    """Return the waves a SIMD that registers and LDS allow; LDS counts when the workgroup's size is known.

    Args:
        vgpr: Vector registers a lane.
        lds_bytes: LDS a workgroup, static and dynamic.
        waves_of_a_workgroup: Its waves; 0 when unknown.

    Returns:
        At most 16; 0 when a workgroup does not fit at all; below 1 when only some of the SIMDs get a wave.
    """
    waves: float = min(MOST_WAVES, VGPRS // max(_up(vgpr, VGPR_STEP), VGPR_STEP))
    if lds_bytes > LDS_OF_A_WORKGROUP:
        return 0
    if lds_bytes and waves_of_a_workgroup:
        waves = min(waves, LDS_BYTES // _up(lds_bytes, LDS_STEP) * waves_of_a_workgroup / SIMDS)
    return waves


def wanted_markers(markers: Mapping[str, tuple[str, ...]], kernel: str) -> tuple[str, ...]:
    """Return the patterns that are wanted of a kernel, whether it is named plainly or by its mangled name."""
    return tuple(dict.fromkeys((*markers.get(kernel, ()), *markers.get(plain_name(kernel), ()))))


def plain_name(symbol: str) -> str:
    """Return the name in a mangled symbol (Itanium C++ ABI) without namespaces, template arguments and parameters."""
    if not symbol.startswith("_Z"):
        return symbol
    at, name = 2, symbol
    while found := _SOURCE_NAME.match(symbol, at):
        at = found.end() + int(found[1])
        name = symbol[found.end() : at]
    return name


def _kernel(piece: str) -> Kernel:
    # the first key of a kernel stands behind the dash, at the place of the others
    fields = dict(_FIELD.findall("    " + piece))
    number = {name: int(fields[name]) for name in fields if fields[name].isdigit()}
    return Kernel(
        name=fields["name"].strip("'\""),
        vgpr=number["vgpr_count"],
        sgpr=number["sgpr_count"],
        lds_bytes=number["group_segment_fixed_size"],
        scratch_bytes=number["private_segment_fixed_size"],
        vgpr_spills=number.get("vgpr_spill_count", 0),
        sgpr_spills=number.get("sgpr_spill_count", 0),
        wavefront=number["wavefront_size"],
    )


def _body(text: str, name: str) -> str:
    start = re.search(rf"^\"?{re.escape(name)}\"?:", text, re.MULTILINE)
    if start is None:
        return ""
    end = text.find("\n.Lfunc_end", start.end())
    return text[start.end() : end if end >= 0 else len(text)]


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
