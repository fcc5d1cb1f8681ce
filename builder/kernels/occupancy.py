"""How many waves of a kernel fit on a SIMD of gfx1100 at once.

Figures for wave32 on Navi 31: LLVM's AMDGPUBaseInfo (feature "1.5x VGPRs": 1536 vector registers a SIMD, granted in
steps of 24; at most 16 waves) and AMD's "RDNA3 Shader Instruction Set Architecture" (a work-group processor of 4 SIMDs
shares 128 KiB of LDS, a workgroup gets at most 64 KiB, in steps of 512 bytes).
"""

from __future__ import annotations

VGPRS, VGPR_STEP = 1536, 24
MOST_WAVES = 16
SIMDS = 4
LDS_BYTES, LDS_STEP = 128 * 1024, 512
LDS_OF_A_WORKGROUP = 64 * 1024


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


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
