"""What changed between the trees is said in plain words, and a proof that is not met is a fault."""

from __future__ import annotations

import pytest

from builder.kernels.assembly import Row
from builder.kernels.report import make_report, sweep_text
from builder.objects import Kernel
from builder.patching.header import Proof

STORE = "global_store_b128 .* dlc"


def row(when="after", *, kernel="copy", file="csrc/copy.cu", spills=0, vgpr=100, error="", markers=None, launch=None):
    figures = Kernel(
        name=kernel,
        vgpr=vgpr,
        sgpr=20,
        lds_bytes=512,
        scratch_bytes=4 * spills,
        vgpr_spills=spills,
        sgpr_spills=0,
        wavefront=32,
    )
    return Row(
        file=file,
        kernel=kernel,
        when=when,
        figures=None if error else figures,
        waves=None if error else 12,
        markers=markers or {},
        launch=launch or {},
        error=error,
    )


def report(*rows, **proofs):
    return make_report(
        rows, proofs={name.replace("_", "-"): value for name, value in proofs.items()}, notes=["clang 19"]
    )


def test_more_spills_after_the_series_are_a_warning_with_the_values_that_changed():
    made = report(
        row("before", spills=230, launch={"TILE": 16, "warps": 2}), row(spills=676, launch={"TILE": 32, "warps": 2})
    )

    (warning,) = made.warnings
    assert (
        "copy in csrc/copy.cu spills more registers after the series: 676 instead of 230 (TILE=16 -> TILE=32)"
        in warning
    )
    assert "A static figure is no speed" in warning
    assert made.faults == ()


@pytest.mark.parametrize("spills", [229, 230])
def test_as_many_or_fewer_spills_are_no_warning(spills):
    assert report(row("before", spills=230), row(spills=spills)).warnings == ()


def test_a_file_that_the_series_broke_is_a_fault_and_one_that_never_compiled_is_only_shown():
    broken = report(row("before"), row(kernel="", error="csrc/copy.cu:3:1: error: no such thing"))
    never = report(row("before", kernel="", error="error: same"), row(kernel="", error="error: same"))
    alone = report(row(kernel="", error="error: same"))

    assert broken.faults == ("the file does not compile after the series: csrc/copy.cu:3:1: error: no such thing",)
    assert (never.faults, alone.faults) == ((), ())
    assert "error: same" in never.text()


def test_a_new_file_that_does_not_compile_is_a_fault_too():
    made = report(row("before"), row(), row(file="csrc/new.cu", kernel="", error="error: odd"))

    assert made.faults == ("the file does not compile after the series: csrc/new.cu: error: odd",)


@pytest.mark.parametrize(
    ("rows", "proof", "fault"),
    [
        ([row(markers={STORE: 1})], {"marker": STORE, "count": 1}, ""),
        ([row(markers={STORE: 2})], {"marker": STORE}, ""),
        ([row(markers={STORE: 2})], {"marker": STORE, "count": 1}, "copy has 2 instructions like"),
        (
            [row(markers={STORE: 0})],
            {"marker": STORE},
            "has 0 instructions like 'global_store_b128 .* dlc' where at least one",
        ),
        ([row("before", spills=1), row(spills=2)], {"no_new_spills": True}, "copy spills 2 registers, 1 before"),
        ([row("before", spills=2), row(spills=2)], {"no_new_spills": True}, ""),
        ([row("before", error="odd"), row(spills=2)], {"no_new_spills": True}, "copy spills 2 registers, 0 before"),
        ([row("before", error="odd"), row(spills=0)], {"no_new_spills": True}, ""),
        ([row(spills=2)], {"no_new_spills": True}, ""),
        ([row(vgpr=129)], {"max_vgprs": 128}, "uses 129 vector registers, at most 128"),
        ([row(vgpr=128)], {"max_vgprs": 128}, ""),
        ([row("before"), row(error="error: odd")], {"max_vgprs": 128}, "copy does not compile: error: odd"),
        ([row(kernel="other")], {"max_vgprs": 128}, "no kernel copy is among those that the stack compiles"),
        ([row(kernel="_Z4copyPf", vgpr=129)], {"max_vgprs": 128}, "copy uses 129"),
    ],
)
def test_each_proof_of_a_patch_is_checked_on_the_patched_kernels(rows, proof, fault):
    made = report(*rows, the_store=[Proof(isa="copy", **proof)])

    mine = [said for said in made.faults if said.startswith("the-store: ")]
    assert len(mine) == bool(fault)
    assert fault in "".join(mine)


def test_proofs_of_other_kinds_are_none_of_its_business():
    assert report(row(), one=[Proof(text="x", file="a.py"), Proof(symbol="s")]).faults == ()


def test_a_kernel_that_did_not_change_takes_one_line_and_two_rows():
    made = report(row("before"), row(), row("before", kernel="_Z4movePf"), row(kernel="_Z4movePf", spills=3))

    lines = made.text().splitlines()
    assert [line.split()[1:3] for line in lines[1:4]] == [["copy", "both"], ["move", "before"], ["move", "after"]]
    assert [entry["when"] for entry in made.document()["kernels"]] == ["before", "after", "before", "after"]
    assert lines[-1] == "compiled with: clang 19"


def test_two_targets_of_one_kernel_are_compared_each_with_its_own():
    made = report(row("before", spills=10), row("before", spills=90), row(spills=10), row(spills=95))

    assert ["95 instead of 90" in said for said in made.warnings] == [True]


def test_the_document_has_the_keys_that_scripts_rely_on():
    (entry,) = report(row(spills=2, markers={STORE: 1})).document()["kernels"]

    assert entry == {
        "file": "csrc/copy.cu",
        "kernel": "copy",
        "when": "after",
        "vgpr": 100,
        "sgpr": 20,
        "lds_bytes": 512,
        "scratch_bytes": 8,
        "vgpr_spills": 2,
        "sgpr_spills": 0,
        "waves": 12,
        "launch": {},
        "markers": {STORE: 1},
        "error": None,
    }


def test_a_failed_kernel_has_no_figures_and_its_reason():
    (entry,) = report(row(error="error: odd")).document()["kernels"]

    assert (entry["vgpr"], entry["lds_bytes"], entry["error"]) == (None, None, "error: odd")


def test_a_sweep_is_shown_in_its_order_with_failures_unranked():
    text = sweep_text([row(spills=3, launch={"TILE": 16}), row(error="no room", launch={"TILE": 64})])

    assert [line.split()[:3] for line in text.splitlines()[1:]] == [["1", "TILE=16", "3"], ["-", "TILE=64", "no"]]
