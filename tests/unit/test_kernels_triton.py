"""The launcher's own numbers are read from the tree, and a kernel's module loads without its engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builder.errors import HostError, ToolError, UsageError
from builder.kernels import triton_job
from builder.kernels.run import Compilers, sweep
from builder.kernels.triton import VERSION, Triton, compile_aot, find_triton, read_launch
from builder.models.kernels import TritonTarget

LAUNCHER = """
def launch(q, use_3d):
    tile_size = 32 if not use_3d else 16
    kernel[grid](q, TILE=tile_size, num_warps=2 if use_3d else 4)
"""


def target(**fields):
    launch = {"TILE": r"tile_size = 32 if not use_3d else (\d+)", "num_warps": r"num_warps=(\d+) if"}
    given = {"constexprs": {"TILE": 64, "DIM": 128}, "launch": launch} | fields
    return TritonTarget(
        language="triton", source="ops/verify.py", function="kernel", roots=(".",), signature={"q": "*bf16:16"}, **given
    )


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tree/ops").mkdir(parents=True)
    (tmp_path / "tree/ops/verify.py").write_text(LAUNCHER)
    return tmp_path / "tree"


def test_the_launcher_decides_and_the_target_fills_in(tree):
    launch = read_launch(tree, target())

    assert (launch.constexprs, launch.num_warps, launch.num_stages) == ({"TILE": 16, "DIM": 128}, 2, 2)
    assert launch.chosen == {"TILE": 16, "num_warps": 2}


def test_a_number_that_is_not_in_the_file_keeps_its_default(tree):
    (tree / "ops/verify.py").write_text("kernel[grid](q)")

    launch = read_launch(tree, target())

    assert (launch.constexprs["TILE"], launch.num_warps) == (64, 4)
    assert launch.chosen == {"TILE": 64, "num_warps": 4}


def test_two_different_numbers_mean_that_upstream_moved(tree):
    (tree / "ops/verify.py").write_text(LAUNCHER + LAUNCHER.replace("16", "8"))

    with pytest.raises(ToolError, match=r"TILE is not one number \(16, 8\): upstream moved"):
        read_launch(tree, target())


def python(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('echo \'{"error": "CompilationError: odd"}\'', "CompilationError: odd"),
        ("echo 'LLVM ERROR: odd' >&2; exit 134", "the compiler ended with status 134: LLVM ERROR: odd"),
        ("echo 'no json'", "Expecting value"),
        ('echo \'{"assembly": "", "shared": 0, "files": []}\'', "no kernel in the assembly"),
    ],
)
def test_whatever_goes_wrong_in_the_compiler_is_a_row_with_the_reason(tree, tmp_path, body, error):
    triton = Triton(python=python(tmp_path / "python", body), version="x")

    (row,) = compile_aot(tree, target(), triton, markers={}).rows

    assert (row.kernel, row.figures) == ("kernel", None)
    assert error in row.error


def test_a_launcher_that_cannot_be_read_is_a_row_too(tree, tmp_path):
    (tree / "ops/verify.py").write_text(LAUNCHER + LAUNCHER.replace("16", "8"))
    triton = Triton(python=python(tmp_path / "python", "exit 0"), version="x")

    assert "upstream moved" in compile_aot(tree, target(), triton, markers={}).rows[0].error


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Return a function that puts a Python into the cache, where no other has Triton."""
    monkeypatch.setattr("builder.kernels.triton.find_spec", lambda _: None)
    home = tmp_path / f"triton-{VERSION}/bin"
    home.mkdir(parents=True)
    return lambda body: python(home / "python", body)


def test_a_triton_of_the_cache_that_does_not_work_is_refused(cached, tmp_path):
    cached("echo \"No module named 'triton'\" >&2; exit 1")

    with pytest.raises(HostError, match=r"has no Triton that works: No module named 'triton'"):
        find_triton(tmp_path)


def test_the_triton_of_the_cache_is_taken_without_a_download(cached, tmp_path):
    made = cached("echo 3.7.1")

    assert find_triton(tmp_path) == Triton(python=made, version="3.7.1")


def test_a_sweep_needs_values(tmp_path):
    with pytest.raises(UsageError, match="kernel has no values to sweep over"):
        sweep(target(), tmp_path, compilers=Compilers(cache=tmp_path))


MODULE = """
import logging
import not_installed
import torch
from torch import Tensor, nn
from engine.utils import is_hip
from engine.ops._parts import part

HIP = is_hip() or torch.version.hip
LOG = logging.getLogger(__name__)


class Layer(nn.Module):
    def forward(self, x: Tensor | None, *rest: not_installed.Thing[int]) -> "Tensor":
        return x


@torch.compile
def plain(x):
    return part(x) + 1


@not_installed.register(name="x")
def named(x):
    return x


for name in torch.ops.list():
    raise RuntimeError(name)
"""


@pytest.fixture
def finder(tmp_path):
    """Return a finder over a small tree; modules and finders are put back afterwards."""
    ops = tmp_path / "python/engine/ops"
    ops.mkdir(parents=True)
    (ops / "verify.py").write_text(MODULE)
    (ops / "_parts.py").write_text("def part(x):\n    return 2 * x\n")
    (ops.parent / "__init__.py").write_text("raise RuntimeError('the engine was imported')\n")
    (ops.parent / "utils").mkdir()
    (ops.parent / "utils/__init__.py").write_text("raise RuntimeError('the engine was imported')\n")
    modules, finders = dict(sys.modules), list(sys.meta_path)
    yield triton_job.Finder([tmp_path / "python"])
    sys.meta_path[:] = finders
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]


def test_a_module_loads_with_the_trees_own_parts_and_stand_ins_for_the_rest(finder, tmp_path):
    module = triton_job.load(tmp_path / "python/engine/ops/verify.py", finder)

    assert (module.plain(3), module.named(4)) == (7, 4)
    assert not module.HIP
    assert module.Layer().forward(5) == 5
    assert module.LOG.name == "engine.ops.verify"
    assert [Path(name).name for name in finder.files] == ["verify.py", "_parts.py"]
    assert all(sys.modules[name].__loader__ is finder for name in ("torch", "not_installed"))


def test_all_but_triton_and_pythons_own_modules_has_a_stand_in_wherever_it_is_installed(finder):
    assert finder.find_spec("yaml").loader is finder
    for name in ("triton.language", "json", "_sysconfigdata_of_this_build"):
        assert finder.find_spec(name) is None


def test_pythons_own_modules_are_not_replaced(finder, tmp_path):
    (tmp_path / "python/engine/ops/verify.py").write_text("import json\nTEXT = json.dumps([1])\n")

    assert triton_job.load(tmp_path / "python/engine/ops/verify.py", finder).TEXT == "[1]"


def test_a_stand_in_has_no_magic_that_it_was_not_given():
    with pytest.raises(AttributeError):
        triton_job.Anything("torch").__wrapped__  # noqa: B018 - the access is what fails


def test_the_reason_in_a_wrapped_fault_is_told():
    outer = RuntimeError("at 1:2: def kernel(")
    outer.__cause__ = NotImplementedError("first\n  the reason  \n")

    told = triton_job.said(outer)

    assert told == "NotImplementedError: the reason"
