"""The reader agrees with LLVM's own tools on what clang really writes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from builder.objects import read_library
from builder.objects.survey import Library

pytestmark = pytest.mark.compiler

SOURCE = """
struct dim3 { unsigned x, y, z; };
extern "C" int hipLaunchKernel(const void*, dim3, dim3, void**, unsigned long, void*);
#define GLOBAL __attribute__((global))
extern "C" GLOBAL void scale(float* p, float f) { p[__builtin_amdgcn_workitem_id_x()] *= f; }
template <int N> GLOBAL void hold(volatile float* p) {
  float v[N];
  #pragma unroll
  for (int i = 0; i < N; ++i) v[i] = p[i * 64];
  #pragma unroll
  for (int i = 0; i < N; ++i) p[i * 64 + 1] = v[i];
}
template GLOBAL void hold<300>(volatile float*);
"""
TARGETS = ("--offload-arch=gfx1100", "--offload-arch=gfx90a:xnack-")


def run(*argv: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(item) for item in argv], cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory, llvm):
    folder = tmp_path_factory.mktemp("objects")
    (folder / "k.hip").write_text(SOURCE)
    hip = (llvm / "clang", "-x", "hip", "-nogpuinc", "-nogpulib", "-no-hip-rt", "-O3", "-fPIC", *TARGETS, "k.hip")
    run(*hip, "-shared", "-o", "plain.so", cwd=folder)
    run(*hip, "-shared", "--offload-compress", "-o", "packed.so", cwd=folder)
    run(*hip, "--cuda-device-only", "-o", "k.hipfb", cwd=folder)
    run(*hip, "--cuda-device-only", "--no-gpu-bundle-output", cwd=folder)
    return folder


def figures(library: Library) -> dict[tuple[str, str], dict[str, int]]:
    """Return what our reader says, in llvm-readelf's words."""
    return {
        (code.arch, kernel.name): {
            "vgpr_count": kernel.vgpr,
            "sgpr_count": kernel.sgpr,
            "group_segment_fixed_size": kernel.lds_bytes,
            "private_segment_fixed_size": kernel.scratch_bytes,
            "vgpr_spill_count": kernel.vgpr_spills,
            "sgpr_spill_count": kernel.sgpr_spills,
            "wavefront_size": kernel.wavefront,
        }
        for code in library.objects
        for kernel in code.kernels
    }


def readelf(llvm: Path, code: Path, arch: str) -> dict[tuple[str, str], dict[str, int]]:
    """Return what llvm-readelf says of a code object's kernels."""
    text = run(llvm / "llvm-readelf", "--notes", code, cwd=code.parent)
    found = {}
    for part in re.split(r"\n  - \.a", text.split("amdhsa.kernels:")[1])[1:]:
        (name,) = re.findall(r"\.name: +(\S+)\n", part)
        found[arch, name] = {key: int(value) for key, value in re.findall(r"(?m)^    \.(\w+): +(\d+)$", part)}
    return found


def unbundled(llvm: Path, bundle: Path) -> dict[str, Path]:
    """Return the code objects that clang-offload-bundler takes out of a bundle file, by their ids."""
    folder = bundle.parent
    bundler = llvm / "clang-offload-bundler"
    listed = run(bundler, "--list", "--type=o", f"--input={bundle}", cwd=folder).split()
    ids = [name for name in listed if not name.startswith("host")]
    taken = {name: folder / f"{bundle.name}-{number}" for number, name in enumerate(ids)}
    outputs = [f"--output={path}" for path in taken.values()]
    run(bundler, "--unbundle", "--type=o", f"--input={bundle}", f"--targets={','.join(ids)}", *outputs, cwd=folder)
    return taken


def bundle_of(llvm: Path, folder: Path, name: str) -> Path:
    """Return a file that holds the one bundle of a library, or the file itself when it is a bundle."""
    if not name.endswith(".so"):
        return folder / name
    run(llvm / "llvm-objcopy", f"--dump-section=.hip_fatbin={name}.bundle", name, "/dev/null", cwd=folder)
    return folder / f"{name}.bundle"


@pytest.mark.parametrize("name", ["plain.so", "packed.so", "k.hipfb"])
def test_kernels_of_each_form_have_the_figures_that_llvm_readelf_prints(llvm, folder, name):
    library = read_library(folder / name)

    theirs = {}
    for target, code in unbundled(llvm, bundle_of(llvm, folder, name)).items():
        theirs |= readelf(llvm, code, target.split("--")[1].split(":")[0])
    ours = figures(library)
    assert ours == {key: {field: figure[field] for field in ours[key]} for key, figure in theirs.items()}
    assert len(ours) == 4
    assert any(kernel.vgpr_spills for kernel in library.kernels)
    assert library.archs == ("gfx1100", "gfx90a")


@pytest.mark.parametrize("compress", [(), ("--compress",), ("--compress", "--compression-level=19")])
@pytest.mark.parametrize("align", [1, 64, 4096])
def test_bundles_that_clang_offload_bundler_writes_hold_what_it_takes_out_again(llvm, folder, align, compress):
    codes = [f"k-hip-amdgcn-amd-amdhsa-{arch}.out" for arch in ("gfx1100", "gfx90a:xnack-")]
    bundle = folder / f"made-{align}{''.join(compress)}.hipfb"
    ids = "host-x86_64-unknown-linux--,hipv4-amdgcn-amd-amdhsa--gfx1100,hipv4-amdgcn-amd-amdhsa--gfx90a:xnack-"
    inputs = [f"--input={name}" for name in ("/dev/null", *codes)]
    run(
        *(llvm / "clang-offload-bundler", "--type=o", f"--targets={ids}", *inputs, f"--output={bundle}"),
        *(f"--bundle-align={align}", *compress),
        cwd=folder,
    )

    library = read_library(bundle)

    assert bundle.read_bytes().startswith(b"CCOB") is bool(compress)
    taken = unbundled(llvm, bundle)
    assert {code.id: code.size for code in library.objects} == {
        name: path.stat().st_size for name, path in taken.items()
    }


def test_each_code_object_lies_where_the_reader_says(llvm, folder):
    content = (folder / "plain.so").read_bytes()
    taken = unbundled(llvm, bundle_of(llvm, folder, "plain.so"))

    objects = read_library(folder / "plain.so").objects

    assert len(objects) == 2
    for code in objects:
        assert content[code.at : code.at + code.size] == taken[code.id].read_bytes()
