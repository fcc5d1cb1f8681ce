"""The kernels of the smoke stack, from its own source, before and after its own series."""

from pathlib import Path

import pytest

from builder.build.kernels import compare_kernels, kernel_trees, sweep_kernels
from builder.console import Console
from builder.errors import UsageError
from builder.models.lock import load_lock
from builder.models.stack import load_stack
from builder.settings import load_settings
from builder.stage.context import Origin

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.compiler


@pytest.fixture
def trees():
    stack, lock = load_stack(ROOT, "smoke"), load_lock(ROOT, "smoke")
    with kernel_trees(ROOT, stack, lock, tree=None, origin=Origin(), settings=load_settings(ROOT)) as made:
        yield made


def test_the_store_patch_shows_in_the_machine_code_and_the_tile_patch_in_a_warning(trees, compilers):
    report = compare_kernels(load_stack(ROOT, "smoke"), trees, compilers=compilers, console=Console())
    markers = {(row.name, row.when): sum(row.markers.values()) for row in report.rows}
    assert report.faults == ()
    assert (markers["smoke_copy_b128_kernel", "before"], markers["smoke_copy_b128_kernel", "after"]) == (0, 1)
    assert any("spills more registers" in warning for warning in report.warnings)


def test_a_sweep_ranks_the_fewest_spills_first(trees, compilers):
    (rows,) = sweep_kernels(load_stack(ROOT, "smoke"), trees, compilers=compilers, console=Console()).values()
    spills = [row.figures.vgpr_spills for row in rows]
    assert spills == sorted(spills)
    assert len(rows) == 12


def test_a_stack_without_kernels_says_so(tmp_path):
    stack = load_stack(ROOT, "smoke").model_copy(update={"kernels": ()})
    with (
        pytest.raises(UsageError, match="names no kernels"),
        kernel_trees(
            ROOT, stack, load_lock(ROOT, "smoke"), tree=tmp_path, origin=Origin(), settings=load_settings(ROOT)
        ),
    ):
        pass
