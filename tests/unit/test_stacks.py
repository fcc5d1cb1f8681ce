"""Stacks: shared parts that stand once, rehearsals, and mixes of versions that are known to go together."""

import shutil
from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.models.base import load_yaml
from builder.models.compatibility import Compatibility, Mix
from builder.models.extends import merge
from builder.models.lock import load_lock, lock_path
from builder.models.stack import load_stack, stack_names
from builder.settings import load_settings
from builder.stage.inputs import source_location

ROOT = Path(__file__).parents[2]
TABLE = load_yaml(Compatibility, ROOT / "stacks" / "shared" / "compatibility.yaml")
GOOD = {"rocm": "7.2", "torch": "2.13.0+rocm7.2", "triton": "3.7.1", "torchvision": "0.28.0+rocm7.2", "python": "3.12"}


@pytest.fixture
def checkout(tmp_path):
    """Return a checkout whose stacks may be changed."""
    shutil.copytree(ROOT / "stacks", tmp_path / "stacks")
    return tmp_path


def change(checkout, name, old, new):
    path = checkout / "stacks" / f"{name}.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("name", stack_names(ROOT))
def test_every_stack_loads_and_has_a_lock(name):
    assert load_lock(ROOT, name).stack == load_stack(ROOT, name).name == name


@pytest.mark.parametrize("folder", ["/etc/apt", "../../etc", "examples/../../x", ""])
def test_a_source_folder_outside_the_checkout_is_refused(checkout, folder):
    change(checkout, "smoke", "folder: examples/smoke-engine", f'folder: "{folder}"')
    with pytest.raises(UsageError, match="does not stay inside"):
        load_stack(checkout, "smoke")


def test_a_source_folder_that_is_a_link_out_of_the_checkout_is_refused(checkout, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("x")
    (checkout / "examples").symlink_to(outside)
    change(checkout, "smoke", "folder: examples/smoke-engine", "folder: examples")
    settings = load_settings(checkout, {"HOME": str(checkout / "home")})
    with pytest.raises(UsageError, match="leads out of the checkout"):
        source_location(checkout, load_stack(checkout, "smoke"), settings)


def test_shared_parts_are_no_stacks():
    assert stack_names(ROOT) == ["sglang", "smoke", "vllm", "vllm-int8", "vllm-upstream"]


def test_a_stack_takes_over_what_it_extends_and_changes_what_it_names():
    vllm, int8 = load_stack(ROOT, "vllm"), load_stack(ROOT, "vllm-int8")
    assert int8.source.commit == "c5647a6d4695279456d830d6c2f52edd4c54524a"
    assert (int8.source.repository, int8.wheels, int8.bases) == (vllm.source.repository, vllm.wheels, vllm.bases)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_rehearsal_is_the_same_stack_on_a_base_of_packages_with_cpu_torch(name):
    real, rehearsal = load_stack(ROOT, name), load_stack(ROOT, f"{name}-rehearsal")
    assert (rehearsal.name, rehearsal.device) == (f"{name}-rehearsal", "none")
    assert (rehearsal.template, rehearsal.series, rehearsal.source.native) == (
        real.template,
        real.series,
        real.source.native,
    )
    assert rehearsal.bases.runtime.bootstrap.suite == "bookworm"
    assert [wheel.name for wheel in rehearsal.wheels] == ["torch"]
    assert rehearsal.unproven
    assert real.unproven == ()


def test_the_lock_of_a_rehearsal_is_the_machines_own():
    assert lock_path(ROOT, "vllm-rehearsal") == ROOT / ".gfx1100" / "locks" / "vllm-rehearsal.lock.yaml"


@pytest.mark.parametrize("name", [*stack_names(ROOT), "vllm-rehearsal", "sglang-rehearsal"])
def test_no_stack_allows_a_layer_of_more_than_4_gb(name):
    assert load_stack(ROOT, name).budget.layer_bytes <= 4_000_000_000


def test_a_stack_with_wheels_and_no_budget_is_refused(checkout):
    change(checkout, "shared/rocm72", "budget: {", "# budget: {")
    with pytest.raises(UsageError, match="a stack with wheels needs a budget"):
        load_stack(checkout, "vllm")


def test_a_stack_without_a_rehearsal_says_so():
    with pytest.raises(UsageError, match="vllm-int8 has no rehearsal"):
        load_stack(ROOT, "vllm-int8-rehearsal")


def test_null_takes_a_key_away_and_mappings_are_merged():
    below = {"a": 1, "b": {"c": 2, "d": 3}, "e": [1]}
    assert merge(below, {"a": None, "b": {"c": 4}, "e": [2]}) == {"b": {"c": 4, "d": 3}, "e": [2]}
    assert below == {"a": 1, "b": {"c": 2, "d": 3}, "e": [1]}


@pytest.mark.parametrize(
    ("extends", "words"),
    [
        ("vllm-int8", "leads in a circle"),
        ("nowhere", "there is no .*nowhere.yaml"),
        ("../outside", "does not stay inside"),
        ("[a]", "must be a name"),
    ],
)
def test_an_extension_that_leads_nowhere_is_an_error(checkout, extends, words):
    change(checkout, "vllm", "extends: shared/rocm72", f"extends: {extends}")
    with pytest.raises(UsageError, match=words):
        load_stack(checkout, "vllm-int8")


def test_a_wrong_key_of_a_shared_part_names_the_files_that_the_stack_is_made_of(checkout):
    change(checkout, "shared/rocm72", "packages:", "pakages:")
    with pytest.raises(
        UsageError, match=r"vllm.yaml \(shared/rocm72\): unknown key 'pakages' \(did you mean 'packages'"
    ):
        load_stack(checkout, "vllm")


def test_every_row_of_the_table_is_accepted_and_says_where_it_was_seen():
    for row in TABLE.mixes:
        TABLE.check(row, "x")
        assert row.source


@pytest.mark.parametrize(
    ("part", "version"),
    [("rocm", "7.1"), ("torch", "2.12.0+rocm7.2"), ("triton", "3.9.0"), ("torchvision", "0.29.0"), ("python", "3.13")],
)
def test_a_mix_that_is_not_in_the_table_names_the_nearest_good_one(part, version):
    with pytest.raises(UsageError, match=f"{part} {version.replace('+', '.')}") as caught:
        TABLE.check(Mix(**{**GOOD, part: version}), "mine")
    assert f"nearest good mix has {part} {GOOD[part]} instead" in caught.value.hint


def test_a_stack_may_leave_out_torchvision_but_not_mix_it():
    TABLE.check(Mix(**{name: version for name, version in GOOD.items() if name != "torchvision"}), "mine")


def test_a_stacks_own_mix_is_checked_when_it_is_read(checkout):
    change(checkout, "shared/rocm72", "version: 3.7.1", "version: 3.9.0")
    with pytest.raises(UsageError, match=r"the stack vllm mixes .*triton 3\.9\.0"):
        load_stack(checkout, "vllm")
