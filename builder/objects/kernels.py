"""AMDGPU code objects: which processor they are for, and the registers, LDS and spills of each kernel in them.

Formats: LLVM's "User Guide for AMDGPU Backend": ``e_flags`` holds the processor in its low byte; the note ``AMDGPU``
of type 32 holds a MessagePack map with ``amdhsa.kernels``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.objects import elf
from builder.objects.msgpack import Walk

if TYPE_CHECKING:
    from builder.objects.window import Window

MOST_KERNELS = 65536

# EF_AMDGPU_MACH_AMDGCN_*: the processors from 0x20 on, a dash where LLVM keeps a value free
_NAMES = (
    "600 601 700 701 702 703 704 - 801 802 803 810 900 902 904 906 908 909 90c 1010 1011 1012 1030 1031 1032 1033 602 "
    "705 805 1035 1034 90a 940 1100 1013 1150 1103 1036 1101 1102 1200 1250 1151 941 942 - 1201 950 1310 9-generic "
    "10-1-generic 10-3-generic 11-generic 1152 - 1154 1153 12-generic 1251 12-5-generic 1172 1170 1171 9-4-generic - - "
    "11-7-generic 13-generic"
)
_PROCESSORS = {code: f"gfx{name}" for code, name in enumerate(_NAMES.split(), 0x20) if name != "-"}
_METADATA = (b"AMDGPU", 32)

# metadata key -> field of Kernel
_NUMBERS = {
    b".vgpr_count": "vgpr",
    b".sgpr_count": "sgpr",
    b".group_segment_fixed_size": "lds_bytes",
    b".private_segment_fixed_size": "scratch_bytes",
    b".vgpr_spill_count": "vgpr_spills",
    b".sgpr_spill_count": "sgpr_spills",
    b".wavefront_size": "wavefront",
}
_OPTIONAL = {"vgpr_spills": 0, "sgpr_spills": 0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """A kernel's figures, as the compiler wrote them into the code object.

    Attributes:
        name: The mangled name.
        vgpr: Vector registers a lane.
        sgpr: Scalar registers a wave.
        lds_bytes: Static LDS a workgroup, in bytes.
        scratch_bytes: Scratch memory a lane, in bytes.
        vgpr_spills: Vector registers that were spilled.
        sgpr_spills: Scalar registers that were spilled.
        wavefront: Lanes of a wave, 32 or 64.
    """

    name: str
    vgpr: int
    sgpr: int
    lds_bytes: int
    scratch_bytes: int
    vgpr_spills: int
    sgpr_spills: int
    wavefront: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeObject:
    """One code object.

    Attributes:
        arch: The processor, such as ``gfx1100``.
        id: The id of its bundle entry; empty for a bare code object.
        at: Its position in the file, or in the unpacked bundle.
        size: Its bytes.
        kernels: Its kernels.
    """

    arch: str
    id: str = ""
    at: int
    size: int
    kernels: tuple[Kernel, ...] = ()


def target(window: Window, head: elf.Header) -> str:
    """Return the processor that an AMDGPU object is for; an unknown one is named by its number.

    Raises:
        VerifyError: It is no AMDGPU object.
    """
    if head.machine != elf.AMDGPU:
        raise window.fault(0, f"a code object for the machine {head.machine}, not for AMDGPU ({elf.AMDGPU})")
    code = head.flags & 0xFF
    return _PROCESSORS.get(code, f"amdgpu-{code:#04x}")


def kernels(window: Window, head: elf.Header) -> tuple[Kernel, ...]:
    """Return the kernels that the metadata of a code object describes, in its order.

    Raises:
        VerifyError: The metadata is damaged, lacks a figure, or names more than 65,536 kernels.
    """
    found: list[Kernel] = []
    for owner, kind, content in elf.notes(window, head):
        if (owner, kind) == _METADATA:
            walk = Walk(content.read(0, content.size, "the metadata note"))
            try:
                found += _walked(walk, MOST_KERNELS - len(found))
            except ValueError as trouble:
                raise content.fault(walk.at, f"the kernel metadata is damaged: {trouble}") from trouble
    return tuple(found)


def _walked(walk: Walk, most: int) -> list[Kernel]:
    found: list[Kernel] = []
    for _ in range(walk.map()):
        if walk.text() != b"amdhsa.kernels":
            walk.skip()
            continue
        count = walk.array()
        if count > most - len(found):
            raise ValueError(f"{count} kernels (at most {MOST_KERNELS} are believed)")
        found += [_kernel(walk) for _ in range(count)]
    return found


def _kernel(walk: Walk) -> Kernel:
    name = b""
    figures = dict(_OPTIONAL)
    for _ in range(walk.map()):
        key = walk.text()
        if key == b".name":
            name = walk.text()
        elif key in _NUMBERS:
            figures[_NUMBERS[key]] = walk.number()
        else:
            walk.skip()
    missing = [key.decode() for key, field in _NUMBERS.items() if field not in figures]
    if not name or missing:
        raise ValueError(f"a kernel without {', '.join(missing) or '.name'}")
    # a library for many processors names each kernel many times
    return Kernel(name=sys.intern(name.decode(errors="replace")), **figures)
