"""Budgets of a patch's kernel, held against the code objects of the image."""

import pytest
from made_objects import code_object, kernel

from builder.patching.header import Proof
from builder.verify.proofs import missing_proofs

PATH = "/site/engine/_C.so"


def faults(most, name="copy", **figures):
    budget = Proof(isa="copy", file="engine/_C.so", max_vgprs=most)
    text = Proof(text="x", file="engine/_C.so")
    library = code_object(kernel(name, **figures)) + b"x"
    return missing_proofs({"one": (text, budget)}, {"site": "/site", "texts": {}}, {PATH: library})


def test_a_kernel_within_its_budget_is_fine():
    assert faults(64, vgpr_count=64) == []


def test_a_kernel_over_its_budget_is_told_with_both_figures():
    assert faults(64, vgpr_count=65) == ["one: copy uses 65 vector registers, at most 64 are allowed"]


@pytest.mark.parametrize("name", ["_ZN2ns4copyEPj", "copy"])
def test_a_kernel_is_found_by_its_own_or_its_mangled_name(name):
    assert len(faults(1, name=name, vgpr_count=2)) == 1


def test_a_budget_for_a_kernel_that_is_not_there_is_a_fault():
    assert faults(64, name="other", vgpr_count=1) == [
        "one: no kernel copy in the image to hold to its budget of 64 vector registers"
    ]
