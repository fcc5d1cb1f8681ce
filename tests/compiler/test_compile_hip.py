"""HIP sources compile for gfx1100 on a machine without GPU, ROCm and PyTorch, and their figures are the linker's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from builder.kernels.hip import ARCH, STANDIN, compile_device
from builder.kernels.run import compare
from builder.models.kernels import HipTarget
from builder.objects import read_library
from builder.patching.header import Proof

pytestmark = pytest.mark.compiler

SMOKE = Path(__file__).parents[2] / "examples/smoke-engine"
STORE = r"\bglobal_store_b128\b.*\bdlc\b"
COPY = """
typedef unsigned v4u __attribute__((ext_vector_type(4)));
typedef __attribute__((address_space(1))) v4u* v4u_gptr;
__global__ void share_kernel(const v4u* src, v4u* dst, long long n) {
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    v4u v = src[i];
    STORE
  }
}
"""
BUILTIN = '__builtin_amdgcn_global_store_b128((v4u_gptr)(dst + i), v, "");'
VOLATILE = "*(volatile __attribute__((address_space(1))) v4u*)(dst + i) = v;"
EXTENSION = """
#include <torch/all.h>
#include <c10/cuda/CUDAGuard.h>
#include <ATen/cuda/CUDAContext.h>
#include "scale.cuh"
#include <hip/hip_bf16.h>
#ifndef USE_ROCM
  #error "no ROCm build"
#endif

namespace ops {
template <typename T, int kRows>
__global__ void __launch_bounds__(128) soft_kernel(const T* in, T* out, float scale) {
  __shared__ float rows[kRows][128];
  const int x = threadIdx.x;
  for (int i = 0; i < kRows; ++i) rows[i][x] = expf(scaled(static_cast<float>(in[i * 128 + x]), scale));
  __syncthreads();
  for (int i = 0; i < kRows; ++i) out[i * 128 + x] = static_cast<T>(rows[i][127 - x] / powf(scale, 3.5f));
}
}  // namespace ops

torch::Tensor soft(torch::Tensor in, double scale) {
  TORCH_CHECK(in.is_cuda() && in.dim() == 2 && in.stride(1) == 1, "in must be a row-major matrix, has ", in.dim());
  TORCH_CHECK(in.scalar_type() == at::kHalf || in.dtype() == torch::kFloat, "half or float");
  const at::cuda::OptionalCUDAGuard guard(device_of(in));
  auto out = torch::zeros({in.size(0), in.size(1)}, torch::TensorOptions().dtype(in.dtype()).device(in.device()));
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  ops::soft_kernel<float, 16><<<1, 128, 0, stream>>>(in.data_ptr<float>(), out.data_ptr<float>(), scale);
  ops::soft_kernel<_Float16, 8><<<1, 128, 0, at::cuda::getCurrentCUDAStream().stream()>>>(
      reinterpret_cast<_Float16*>(in.data_ptr()), reinterpret_cast<_Float16*>(out.data_ptr()), scale);
  TORCH_CHECK(cudaGetLastError() == cudaSuccess);
  return out;
}
"""


def write(tree: Path, name: str, text: str) -> Path:
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text(text)
    return tree


def store_trees(tmp_path: Path) -> tuple[Path, Path]:
    old, new = (COPY.replace("STORE", store) for store in (BUILTIN, VOLATILE))
    text = '#include "made-by-the-build.h"\nint world = 2;\n{}\nPYBIND11_MODULE(it, m) {{\n}}\n'
    return (
        write(tmp_path / "before", "csrc/share.cu", text.format(old)),
        write(tmp_path / "after", "csrc/share.cu", text.format(new)),
    )


def test_the_store_patch_is_proven_by_the_instruction_that_it_makes(tmp_path, compilers):
    before, after = store_trees(tmp_path)
    target = HipTarget(
        language="hip", source="csrc/share.cu", cut="^typedef unsigned v4u.*?^}", kernels=("share_kernel",)
    )
    proof = Proof(isa="share_kernel", marker=STORE, count=1, no_new_spills=True)

    report = compare([target], before=before, after=after, compilers=compilers, proofs={"store": [proof]})

    old, new = report.rows
    assert "csrc/share.cu:9:5: error: use of undeclared identifier '__builtin_amdgcn_global_store_b128'" in old.error
    assert (new.name, new.when, new.markers, new.figures.vgpr_spills) == ("share_kernel", "after", {STORE: 1}, 0)
    assert report.faults == ()


def test_a_plain_store_does_not_pass_for_the_system_wide_one(tmp_path, compilers):
    _, after = store_trees(tmp_path)
    text = (after / "csrc/share.cu").read_text()
    write(after, "csrc/share.cu", text.replace(VOLATILE, "dst[i] = v;"))
    target = HipTarget(language="hip", source="csrc/share.cu", cut="^typedef unsigned v4u.*?^}")
    proof = Proof(isa="share_kernel", marker=STORE, count=1)

    report = compare([target], before=None, after=after, compilers=compilers, proofs={"store": [proof]})

    assert report.faults == (f"store: share_kernel has 0 instructions like {STORE!r} where 1 must be",)


@pytest.fixture
def extension(tmp_path):
    tree = write(tmp_path / "tree", "csrc/ops/soft.cu", EXTENSION)
    return write(
        tree, "csrc/scale.cuh", "#pragma once\n__device__ inline float scaled(float x, float by) { return x * by; }\n"
    )


def test_a_torch_extension_compiles_without_torch_and_names_the_files_it_read(extension, toolchain):
    target = HipTarget(language="hip", source="csrc/**/*.cu", includes=("csrc",))

    compiled = compile_device(extension, "csrc/ops/soft.cu", target, toolchain, markers={"soft_kernel": ("v_exp_f32",)})

    assert {row.name for row in compiled.rows} == {"soft_kernel"}
    assert sorted(row.figures.lds_bytes for row in compiled.rows) == [8 * 512, 16 * 512]
    assert all(row.markers["v_exp_f32"] >= 8 for row in compiled.rows)
    assert set(compiled.files) == {"csrc/ops/soft.cu", "csrc/scale.cuh"}


def test_the_figures_are_those_of_the_linked_code_object(extension, toolchain, llvm, tmp_path):
    target = HipTarget(language="hip", source="csrc/**/*.cu", includes=("csrc",))
    out = tmp_path / "soft.co"
    subprocess.run(
        [
            *(toolchain.clang, "-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", f"--offload-arch={ARCH}"),
            *("-O3", "-std=c++20", "-w", *toolchain.options, "-D__AMDGCN_WAVEFRONT_SIZE=32", "-DUSE_ROCM"),
            *(f"-I{extension}/csrc", "-idirafter", str(STANDIN), "-o", str(out), f"{extension}/csrc/ops/soft.cu"),
        ],
        check=True,
        timeout=300,
    )

    compiled = compile_device(extension, "csrc/ops/soft.cu", target, toolchain, markers={})

    library = read_library(out)
    assert library.archs == (ARCH,)
    assert sorted(library.kernels, key=lambda kernel: kernel.name) == sorted(
        (row.figures for row in compiled.rows), key=lambda kernel: kernel.name
    )


def test_a_fault_in_the_source_is_the_compilers_first_error(extension, toolchain):
    path = extension / "csrc/ops/soft.cu"
    path.write_text(path.read_text().replace("expf(scaled(", "no_such_function(").replace("at::kHalf", "at::kNothing"))
    target = HipTarget(language="hip", source="csrc/**/*.cu", includes=("csrc",))

    (row,) = compile_device(extension, "csrc/ops/soft.cu", target, toolchain, markers={}).rows

    assert row.error.startswith("csrc/ops/soft.cu:")
    assert ": error: " in row.error
    assert row.figures is None


def test_the_examples_own_kernels_compile(compilers):
    target = HipTarget(language="hip", source="csrc/*.hip")

    report = compare([target], before=None, after=SMOKE, compilers=compilers)

    assert [row.error for row in report.rows] == [""] * 3
    assert {row.name: row.figures.lds_bytes for row in report.rows} == {
        "smoke_copy_b128_kernel": 0,
        "smoke_kv_int4_pack_kernel": 512,
        "smoke_kv_int4_unpack_kernel": 0,
    }
    assert any(note.startswith("HIP: ") for note in report.notes)
