"""Triton kernels compile for gfx1100 ahead of time: no torch, no GPU, out of an engine that is not installed."""

from __future__ import annotations

import pytest

from builder.kernels import triton as aot
from builder.kernels.run import compare, sweep
from builder.kernels.triton import compile_aot
from builder.models.kernels import TritonTarget
from builder.patching.header import Proof

pytestmark = pytest.mark.compiler

PARTS = """
import triton
import triton.language as tl


@triton.jit
def rescale(highest, scores):
    new = tl.maximum(highest, tl.max(scores, axis=1))
    return new, tl.exp(highest - new), tl.exp(scores - new[:, None])
"""
VERIFY = """
from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.ops._parts import rescale
from engine.server_args import get_global_server_args
from engine.utils import is_hip

_is_hip = is_hip()


@triton.jit
def verify_kernel(
    q, k, v, out, sink, tokens, stride: tl.int64, DIM: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr
):
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
    query = tl.load(q + rows[:, None] * stride + dims[None, :])
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for start in range(0, tokens, TILE):
        keys = start + tl.arange(0, TILE)
        real = keys < tokens
        key = tl.load(k + keys[None, :] * stride + dims[:, None], mask=real[None, :], other=0.0)
        value = tl.load(v + keys[:, None] * stride + dims[None, :], mask=real[:, None], other=0.0)
        scores = tl.where(real[None, :], tl.dot(query, key), float("-inf"))
        highest, shrink, weights = rescale(highest, scores)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(value.dtype), value)
    if sink is not None:
        total += tl.load(sink)
    tl.store(out + rows[:, None] * stride + dims[None, :], acc / total[:, None])


def verify(q: torch.Tensor, use_3d: bool):
    tile_size = 32 if not use_3d else 16
    verify_kernel[(1,)](q, TILE=tile_size, num_warps=2 if use_3d else 4)
"""
POINTERS = {"q": "*bf16:16", "k": "*bf16:16", "v": "*bf16:16", "out": "*bf16:16"}
TARGET = TritonTarget(
    language="triton",
    source="python/engine/ops/verify.py",
    function="verify_kernel",
    roots=("python",),
    signature={**POINTERS, "sink": "none", "tokens": "i32", "stride": "i64:16"},
    constexprs={"DIM": 256, "ROWS": 16, "TILE": 16},
    launch={"TILE": r"tile_size = 32 if not use_3d else (\d+)", "num_warps": r"num_warps=(\d+) if use_3d"},
    sweep={"TILE": (16, 32), "num_stages": (1, 2)},
)


def write_tree(tree, tile=16):
    folder = tree / "python/engine/ops"
    folder.mkdir(parents=True)
    (tree / "python/engine/__init__.py").write_text("raise RuntimeError('the engine was imported')\n")
    (folder / "_parts.py").write_text(PARTS)
    (folder / "verify.py").write_text(VERIFY.replace("else 16\n", f"else {tile}\n"))
    return tree


@pytest.fixture
def tree(tmp_path):
    return write_tree(tmp_path / "before")


def test_a_larger_tile_is_seen_in_figures_and_said_in_words(tree, tmp_path, compilers):
    after = write_tree(tmp_path / "after", tile=32)
    proof = Proof(isa="verify_kernel", marker="v_wmma_f32_16x16x16_bf16", no_new_spills=True)

    report = compare([TARGET], before=tree, after=after, compilers=compilers, proofs={"tile": [proof]})

    old, new = report.rows
    assert [row.error for row in report.rows] == ["", ""]
    assert (old.launch, new.launch) == ({"TILE": 16, "num_warps": 2}, {"TILE": 32, "num_warps": 2})
    assert new.figures.lds_bytes > old.figures.lds_bytes > 0
    assert new.figures.vgpr_spills > old.figures.vgpr_spills
    assert "(TILE=16 -> TILE=32)" in report.warnings[0]
    assert report.faults == (
        f"tile: verify_kernel spills {new.figures.vgpr_spills} registers, {old.figures.vgpr_spills} before",
    )
    assert report.notes == (f"Triton: {aot.VERSION} of {compilers.triton.python}",)


def test_a_sweep_ranks_by_spills_and_names_its_values(tree, compilers):
    rows = sweep(TARGET, tree, compilers=compilers)

    assert [row.error for row in rows] == [""] * 4
    spills = [row.figures.vgpr_spills for row in rows]
    assert spills == sorted(spills)
    assert {(row.launch["TILE"], row.launch["num_stages"], row.launch["num_warps"]) for row in rows} == {
        (tile, stages, 2) for tile in (16, 32) for stages in (1, 2)
    }


def test_the_same_kernel_gives_the_same_figures(tree, triton):
    one, two = (compile_aot(tree, TARGET, triton, markers={}).rows for _ in range(2))

    assert one == two


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("tl.dot(query, key)", "tl.no_such(query, key)", "no_such"),
        ("def verify_kernel(", "def other_kernel(", "has no attribute 'verify_kernel'"),
        ("tokens, stride", "tokens, more, stride", "no value and no type for the parameters more"),
        ("_is_hip = is_hip()", "raise OSError('not on this machine')", "OSError: not on this machine"),
    ],
)
def test_what_is_wrong_with_a_kernel_is_said_in_its_row(tree, triton, old, new, error):
    path = tree / TARGET.source
    path.write_text(path.read_text().replace(old, new))

    (row,) = compile_aot(tree, TARGET, triton, markers={}).rows

    assert row.figures is None
    assert error in row.error


def test_a_compiler_that_takes_too_much_memory_or_time_is_stopped(tree, triton, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(aot, "MEMORY_BYTES", 64 << 20)
        assert compile_aot(tree, TARGET, triton, markers={}).rows[0].error
    monkeypatch.setattr(aot, "SECONDS", 0.05)
    assert "did not end within" in compile_aot(tree, TARGET, triton, markers={}).rows[0].error
