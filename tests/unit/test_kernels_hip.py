"""A compiler is found or its lack explained; whatever becomes of a file ends as a row."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_kernels_assembly import ASSEMBLY

from builder.errors import HostError, UsageError
from builder.kernels.hip import Toolchain, compile_device, find_toolchain, hip_sources
from builder.kernels.run import Compilers, compare
from builder.models.kernels import HipTarget

CLANG = """#!/bin/sh
case "$*" in *--version*) echo "Example clang version %s.1.0"; exit 0;; esac
out=; while [ $# -gt 0 ]; do case "$1" in
  -o) out=$2; shift;;
  -dependency-file) files=$3; shift;;
esac; last=$1; shift; done
%s
"""

KILLED = "the compiler was killed or found no more memory: fewer compilations at once (--jobs), or more memory"


def program(path: Path, release: int = 19, body: str = "") -> Path:
    """Write a stand-in for clang; ``$last`` is the source, ``$out`` the assembly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CLANG % (release, body))
    path.chmod(0o755)
    return path


def rocm(root: Path, *, bitcode: str = "amdgcn/bitcode", headers: bool = True) -> Path:
    if headers:
        (root / "include/hip").mkdir(parents=True)
        (root / "include/hip/hip_runtime.h").touch()
    (root / bitcode).mkdir(parents=True)
    (root / bitcode / "oclc_isa_version_1100.bc").touch()
    return root


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """Hide what the machine has: nothing on PATH, no ROCm, no headers."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("ROCM_PATH", raising=False)
    monkeypatch.setattr("builder.kernels.hip.SYSTEM", (tmp_path / "opt/rocm", tmp_path / "usr-of-the-system"))
    return tmp_path


def test_the_compiler_of_a_rocm_folder_comes_first(bare, monkeypatch):
    folder = rocm(bare / "rocm")
    program(folder / "llvm/bin/clang", 20)
    program(bare / "bin/clang-22", 22)
    monkeypatch.setenv("ROCM_PATH", str(folder))

    found = find_toolchain(bare / "cache")

    assert found == Toolchain(
        clang=str(folder / "llvm/bin/clang"),
        version="Example clang version 20.1.0",
        rocm=folder,
        bitcode=folder / "amdgcn/bitcode",
    )


def test_the_newest_clang_on_the_path_is_taken(bare):
    program(bare / "bin/clang-19", 19)
    program(bare / "bin/clang-22", 22)
    rocm(bare / "cache/hip/usr")

    assert find_toolchain(bare / "cache").version == "Example clang version 22.1.0"


def test_bitcode_newer_than_the_compiler_is_passed_over(bare):
    program(bare / "bin/clang-19", 19)
    root = rocm(bare / "cache/hip/usr", bitcode="lib/llvm-21/lib/clang/21/amdgcn/bitcode")

    with pytest.raises(HostError, match=r"no device bitcode for gfx1100 that Example clang version 19\.1\.0 can read"):
        find_toolchain(bare / "cache")
    rocm(root, bitcode="lib/llvm-17/lib/clang/17/amdgcn/bitcode", headers=False)
    assert find_toolchain(bare / "cache").bitcode == root / "lib/llvm-17/lib/clang/17/amdgcn/bitcode"


def test_headers_and_bitcode_that_were_unpacked_into_the_cache_are_found(bare):
    program(bare / "bin/clang-19", 19)
    root = rocm(bare / "cache/hip/usr")

    assert find_toolchain(bare / "cache").rocm == root


def test_a_lack_is_explained_with_the_next_step(bare):
    with pytest.raises(HostError, match="no clang of release 17 or newer is installed") as lack:
        find_toolchain(bare / "cache")
    assert "clang-19" in lack.value.hint
    program(bare / "bin/clang", 14)
    with pytest.raises(HostError, match="no clang of release 17 or newer is installed"):
        find_toolchain(bare / "cache")
    program(bare / "bin/clang-19", 19)
    with pytest.raises(HostError, match="HIP's headers are in none of"):
        find_toolchain(bare / "cache")


def toolchain(tmp_path, body):
    return Toolchain(clang=str(program(tmp_path / "cc", body=body)), version="x", rocm=tmp_path, bitcode=tmp_path)


def target(**fields):
    return HipTarget(language="hip", source="csrc/**/*.cu", **fields)


@pytest.fixture
def tree(tmp_path):
    tree = tmp_path / "tree"
    (tree / "csrc/deep").mkdir(parents=True)
    (tree / "csrc/copy.cu").write_text("// a\ntypedef int word;\n__global__ void copy() {\n}\nint host() {\n}\n")
    (tree / "csrc/deep/more.cu").write_text("//")
    (tree / "csrc/deep/more.cuh").write_text("//")
    (tree / "answer.s").write_text(ASSEMBLY)
    return tree


def test_a_glob_names_sources_at_any_depth(tree):
    assert hip_sources(tree, target()) == ["csrc/copy.cu", "csrc/deep/more.cu"]


def test_wanted_kernels_are_rows_with_their_markers_and_a_missing_one_is_an_error(tree, tmp_path):
    tools = toolchain(tmp_path, f'cp {tree}/answer.s "$out"; echo "it: $last" > "$files"')
    wanted = target(kernels=("decode", "gone"))

    compiled = compile_device(tree, "csrc/copy.cu", wanted, tools, markers={"decode": ("dlc",), "copy_kernel": ("x",)})

    decode, gone = compiled.rows
    assert (decode.name, decode.figures.vgpr, decode.waves, decode.markers) == ("decode", 256, 5, {"dlc": 2})
    assert (gone.kernel, gone.error) == ("gone", "the file compiles, but has no such kernel")
    assert set(compiled.files) == {"csrc/copy.cu"}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            "echo 'note: x' >&2; echo \"$last:3:1: error: no such thing\" >&2; echo 'a.h:1: error: two' >&2; exit 1",
            "csrc/copy.cu:3:1: error: no such thing",
        ),
        ("echo 'fatal error: cannot open file' >&2; exit 1", "fatal error: cannot open file"),
        ("echo 'Killed' >&2; exit 137", KILLED),
        ("kill -9 $$", KILLED),
        ("echo 'clang: error: unable to execute command: Killed' >&2; exit 254", KILLED),
        ("exit 2", "the compiler ended with status 2: it said nothing"),
        (': > "$out"; echo "it:" > "$files"', "the file compiles, but holds no kernel"),
    ],
)
def test_a_fault_is_a_row_with_the_first_error_line(tree, tmp_path, body, error):
    (row,) = compile_device(tree, "csrc/copy.cu", target(), toolchain(tmp_path, body), markers={}).rows

    assert (row.file, row.figures, row.error) == ("csrc/copy.cu", None, error)


def test_a_part_is_cut_out_with_its_line_numbers(tree, tmp_path):
    tools = toolchain(tmp_path, f'cp "$last" {tmp_path}/cut; cp {tree}/answer.s "$out"; echo "it:" > "$files"')

    compile_device(tree, "csrc/copy.cu", target(cut="^typedef int word.*?^}"), tools, markers={})

    assert (tmp_path / "cut").read_text() == (
        '#include <hip/hip_runtime.h>\n#line 2 "csrc/copy.cu"\ntypedef int word;\n__global__ void copy() {\n}\n'
    )


@pytest.mark.parametrize(("cut", "count"), [("^struct", 0), ("^}", 2)])
def test_a_part_that_is_not_there_once_is_an_error(tree, tmp_path, cut, count):
    (row,) = compile_device(tree, "csrc/copy.cu", target(cut=cut), toolchain(tmp_path, ""), markers={}).rows

    assert row.error == f"the part to compile was found {count} times: upstream moved"


def compilers(tmp_path, body):
    return Compilers(cache=tmp_path, toolchain=toolchain(tmp_path, body), jobs=2)


def twins(tmp_path, header: str) -> tuple[Path, Path]:
    trees = tmp_path / "before", tmp_path / "after"
    for tree, text in zip(trees, ("#pragma once\n", header), strict=True):
        (tree / "csrc").mkdir(parents=True)
        (tree / "csrc/copy.cu").write_text('#include "copy.h"\n')
        (tree / "csrc/copy.h").write_text(text)
    return trees


@pytest.mark.parametrize(("header", "runs"), [("#pragma once\n", 1), ("#pragma once // patched\n", 2)])
def test_a_file_is_compiled_again_only_when_something_that_it_reads_has_changed(tmp_path, header, runs):
    before, after = twins(tmp_path, header)
    (tmp_path / "answer.s").write_text(ASSEMBLY)
    body = (
        f'echo run >> {tmp_path}/runs; cp {tmp_path}/answer.s "$out"; here=$(dirname "$last"); '
        'printf "it: %s \\\\\\n  %s\\n" "$last" "$here/copy.h" > "$files"'
    )

    report = compare([target()], before=before, after=after, compilers=compilers(tmp_path, body))

    assert (tmp_path / "runs").read_text().split() == ["run"] * runs
    assert [(row.name, row.when) for row in report.rows] == [
        ("copy_kernel", "before"),
        ("copy_kernel", "after"),
        ("decode", "before"),
        ("decode", "after"),
    ]


def test_a_target_that_names_no_file_is_refused(tmp_path):
    before, after = twins(tmp_path, "")
    gone = HipTarget(language="hip", source="csrc/gone.cu")

    with pytest.raises(UsageError, match=r"no file of the tree is csrc/gone\.cu: upstream moved"):
        compare([gone], before=before, after=after, compilers=compilers(tmp_path, ""))
