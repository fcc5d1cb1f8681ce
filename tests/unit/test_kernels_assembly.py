"""Figures and markers are read from a compiler's assembly; how many waves fit is reckoned from them."""

from __future__ import annotations

import pytest

from builder.kernels.assembly import count_markers, plain_name, read_assembly, waves_per_simd

ASSEMBLY = """\
\t.globl\tcopy_kernel
copy_kernel:                            ; @copy_kernel
\tglobal_load_b128 v[2:5], v[0:1], off
\tglobal_store_b128 v[0:1], v[2:5], off dlc
\ts_endpgm
.Lfunc_end0:
\t.globl\t_ZN3ops6decodeILi128EEEvPf
_ZN3ops6decodeILi128EEEvPf:
\tglobal_store_b128 v[0:1], v[2:5], off
\tglobal_store_b128 v[0:1], v[2:5], off dlc
\tglobal_store_b128 v[0:1], v[2:5], off dlc
.Lfunc_end1:
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - .name:           src
        .offset:         0
        .value_kind:     global_buffer
    .group_segment_fixed_size: 0
    .name:           copy_kernel
    .private_segment_fixed_size: 0
    .sgpr_count:     8
    .sgpr_spill_count: 0
    .symbol:         copy_kernel.kd
    .vgpr_count:     6
    .vgpr_spill_count: 0
    .wavefront_size: 32
  - .agpr_count:     0
    .args:           []
    .group_segment_fixed_size: 20608
    .name:           _ZN3ops6decodeILi128EEEvPf
    .private_segment_fixed_size: 400
    .sgpr_count:     50
    .sgpr_spill_count: 2
    .symbol:         _ZN3ops6decodeILi128EEEvPf.kd
    .vgpr_count:     256
    .vgpr_spill_count: 48
    .wavefront_size: 32
amdhsa.target:   amdgcn-amd-amdhsa--gfx1100
amdhsa.version:
  - 1
  - 2
...

\t.end_amdgpu_metadata
"""


def test_each_kernel_of_an_assembly_has_its_own_figures():
    (copy, _), (decode, _) = read_assembly(ASSEMBLY)

    assert (copy.name, copy.vgpr, copy.lds_bytes, copy.vgpr_spills) == ("copy_kernel", 6, 0, 0)
    assert (decode.name, decode.vgpr, decode.sgpr) == ("_ZN3ops6decodeILi128EEEvPf", 256, 50)
    assert (decode.lds_bytes, decode.scratch_bytes, decode.vgpr_spills, decode.sgpr_spills) == (20608, 400, 48, 2)


def test_markers_are_counted_inside_their_kernel_only():
    (_, copy), (_, decode) = read_assembly(ASSEMBLY)

    assert count_markers(copy, ["global_store_b128 .* dlc", "glc"]) == {"global_store_b128 .* dlc": 1, "glc": 0}
    assert count_markers(decode, ["global_store_b128 .* dlc", "s_endpgm"]) == {
        "global_store_b128 .* dlc": 2,
        "s_endpgm": 0,
    }


def test_a_text_that_is_no_assembly_has_no_kernels():
    assert read_assembly("int main() {}") == []


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("copy_kernel", "copy_kernel"),
        ("_Z15copy_sys_kernelPKDv4_jPS_x", "copy_sys_kernel"),
        ("_ZN4vllm10gptq_rdna319moe_gemm_q4_kernel_IDF16_Li128EEEvPKT_", "moe_gemm_q4_kernel_"),
        ("_ZN12_GLOBAL__N_113decode_kernelILb1EEEvv", "decode_kernel"),
        ("_ZL5thingv", "thing"),
        ("_Zv", "_Zv"),
    ],
)
def test_the_plain_name_of_a_kernel_has_no_namespace_and_no_arguments(symbol, name):
    assert plain_name(symbol) == name


@pytest.mark.parametrize(
    ("vgpr", "lds", "group", "waves"),
    [
        (10, 0, 0, 16),
        (96, 0, 0, 16),
        (97, 0, 0, 12),
        (192, 0, 0, 8),
        (256, 0, 0, 5),
        (256, 16384, 8, 5),
        (256, 16384, 2, 4),
        (256, 32768, 2, 2),
        (64, 65536, 1, 0.5),
        (64, 65537, 1, 0),
        (64, 20608, 8, 12),
    ],
)
def test_registers_and_lds_bound_the_waves_of_a_simd(vgpr, lds, group, waves):
    assert waves_per_simd(vgpr, lds, group) == waves
