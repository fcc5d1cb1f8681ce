"""Before a build the touched kernels are compiled in its own image; what they promise and do not keep ends it there."""

import re
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from packed_answer import packed
from test_kernels_place import BITCODE, VERSION

from builder.build.budgets import Patched, choose, compile_touched
from builder.console import Console
from builder.engine.port import Output
from builder.errors import BuildError
from builder.models.kernels import HipTarget, TritonTarget
from builder.models.stack import load_stack
from builder.patching.header import Proof

ROOT = Path(__file__).parents[2]
HIP = HipTarget(language="hip", source="csrc/*.hip")
TRITON = TritonTarget(language="triton", source="ops/verify.py", function="verify", roots=("ops",), signature={})
SOURCES = {
    "csrc/copy.hip": '#include "deep/copy.h"\n__global__ void copy_kernel() {} // vgprs 10, spills 0\n',
    "csrc/pack.hip": '#define PART "part.inc"\n#include PART\n__global__ void pack_kernel() {} // vgprs 20, spills 0\n',
    "csrc/deep/copy.h": '#include "../word.h"\n',
    "csrc/word.h": "typedef int word;\n",
    "csrc/part.inc": "// a part\n",
    "ops/verify.py": "def verify(): pass\n",
    "server.py": "print()\n",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def patched(tree, originals=None, **proofs):
    before = {name: None if text is None else text.encode() for name, text in (originals or {}).items()}
    return Patched(tree=tree, originals=before, proofs={name: (proof,) for name, proof in proofs.items()})


def chosen(tree, originals, proven=()):
    found = choose((HIP, TRITON), patched(tree, originals), set(proven))
    return [target.source for target in found.targets], found.left_out


@pytest.mark.parametrize(
    ("changed", "sources"),
    [
        ("csrc/copy.hip", ["csrc/copy.hip"]),
        ("csrc/word.h", ["csrc/copy.hip"]),
        ("csrc/part.inc", ["csrc/pack.hip"]),
        ("ops/verify.py", ["ops/verify.py"]),
        ("server.py", []),
    ],
)
def test_a_changed_file_touches_the_kernels_that_are_made_of_it(tree, changed, sources):
    assert chosen(tree, {changed: "old"}) == (sources, 3 - len(sources))


def test_a_header_that_the_series_adds_or_no_longer_names_counts_too(tree):
    assert chosen(tree, {"csrc/word.h": None})[0] == ["csrc/copy.hip"]
    (tree / "csrc/other.h").write_text("new\n")
    assert chosen(tree, {"csrc/pack.hip": SOURCES["csrc/pack.hip"], "csrc/other.h": "old"})[0] == []
    assert chosen(tree, {"csrc/pack.hip": '#include "other.h"\n'})[0] == ["csrc/pack.hip"]


def test_a_file_that_a_patch_names_and_leaves_alone_touches_nothing(tree):
    assert chosen(tree, {name: SOURCES[name] for name in ("csrc/copy.hip", "csrc/word.h")}) == ([], 3)


@pytest.mark.parametrize(
    ("kernel", "sources"),
    [
        ("copy_kernel", ["csrc/copy.hip"]),
        ("_Z11pack_kernelv", ["csrc/pack.hip"]),
        ("verify", ["ops/verify.py"]),
        ("made_by_a_macro", ["csrc/copy.hip", "csrc/pack.hip"]),
    ],
)
def test_a_proof_touches_the_kernel_that_it_names(tree, kernel, sources):
    assert chosen(tree, {}, [kernel])[0] == sources


class Image(FakeEngine):
    """An engine whose hipcc makes what a comment in the source says, and whose python3 may have Triton."""

    def __init__(self, *, cut=0, triton=False):
        super().__init__()
        self.cut, self.triton = cut, triton

    def run_once(self, image, argv, *, files, timeout, user=None, mounts=None):
        words = argv[4:]
        self.calls.append((image, words, files))
        source = files.get(f"/gfx1100-kernels/{words[-1]}", b"").decode()
        if "-###" in words:
            text = packed(stderr=VERSION + BITCODE)
        elif words[0] == "python3":
            text = packed(0, stdout="3.7.1") if self.triton else packed(1, stderr="No module named 'triton'")
        elif "#error" in source:
            text = packed(1, stderr=f"{words[-1]}:1:2: error: not any more")
        else:
            text = packed(kernel_s=assembly(source), files_d=f"it: {words[-1]}")[self.cut :]
        return Output(returncode=0, stdout=text, stderr="")


def assembly(source):
    vgprs, spills = re.search(r"vgprs (\d+), spills (\d+)", source).groups()
    name = re.search(r"void (\w+)\(", source)[1]
    return (
        f"{name}:\n\tglobal_store_b128 v[0:1], v[2:5], off{' dlc' * ('volatile' in source)}\n.Lfunc_end0:\n"
        f"\t.amdgpu_metadata\namdhsa.kernels:\n  - .args: []\n    .name: {name}\n    .group_segment_fixed_size: 0\n"
        f"    .private_segment_fixed_size: 0\n    .sgpr_count: 8\n    .vgpr_count: {vgprs}\n"
        f"    .vgpr_spill_count: {spills}\n    .wavefront_size: 32\n\t.end_amdgpu_metadata\n"
    )


def compiled(tree, originals=None, *, engine=None, kernels=(HIP, TRITON), **proofs):
    stack = load_stack(ROOT, "smoke").model_copy(update={"kernels": kernels})
    made = patched(tree, originals, **proofs)
    return compile_touched(engine or Image(), lambda: "sha256:1", stack, made, jobs=2, console=Console())


def source(vgprs, spills, more=""):
    return f"{more}\n__global__ void copy_kernel() {{}} // vgprs {vgprs}, spills {spills}\n"


def test_both_trees_are_compiled_and_the_table_is_shown(tree, capsys):
    report = compiled(tree, {"csrc/copy.hip": source(8, 0)}, store=Proof(isa="copy_kernel", max_vgprs=10))

    assert [(row.when, row.figures.vgpr) for row in report.rows] == [("before", 8), ("after", 10)]
    assert report.notes == ("HIP: AMD clang version 22.0.0, bitcode /opt/rocm/amdgcn/bitcode",)
    said = capsys.readouterr().err
    assert "compiled 1 of 3 kernel sources before and after the series with the build's compiler" in said
    assert re.search(r"csrc/copy\.hip +copy_kernel +after +10 ", said)


@pytest.mark.parametrize(
    ("before", "after", "proof", "told"),
    [
        (source(9, 0), source(10, 3), {"no_new_spills": True}, "store: copy_kernel spills 3 registers, 0 before"),
        (source(9, 0), source(129, 0), {"max_vgprs": 128}, "store: copy_kernel uses 129 vector registers, at most 128"),
        (source(9, 0), source(9, 0, "//"), {"marker": "b128.* dlc"}, "store: copy_kernel has 0 instructions like"),
        (source(9, 0), "#error\n", None, "does not compile after the series: csrc/copy.hip:1:2: error: not any more"),
        (source(9, 0), source(9, 0, "//"), {"isa": "gone", "max_vgprs": 1}, "no kernel gone is among those that"),
    ],
)
def test_what_is_not_kept_fails_the_build(tree, before, after, proof, told):
    (tree / "csrc/copy.hip").write_text(after)
    proofs = {} if proof is None else {"store": Proof(**{"isa": "copy_kernel", **proof})}

    with pytest.raises(BuildError, match="the kernels of smoke are not as the series promises") as caught:
        compiled(tree, {"csrc/copy.hip": before}, **proofs)

    assert told in caught.value.message


def test_what_is_kept_does_not(tree):
    (tree / "csrc/copy.hip").write_text(source(9, 3, "volatile"))
    proof = Proof(isa="copy_kernel", marker="b128.* dlc", count=1, no_new_spills=True, max_vgprs=9)

    assert compiled(tree, {"csrc/copy.hip": source(8, 3)}, store=proof).faults == ()


def test_an_assembly_that_did_not_arrive_whole_keeps_no_budget(tree):
    with pytest.raises(BuildError, match=r"no kernel copy_kernel .*did not arrive whole") as caught:
        compiled(
            tree, {"csrc/copy.hip": source(8, 0)}, engine=Image(cut=76), store=Proof(isa="copy_kernel", max_vgprs=99)
        )
    assert caught.value.exit_code == 6


def test_a_series_that_touches_no_kernel_asks_no_compiler(tree, capsys):
    engine = Image()

    assert compiled(tree, {"server.py": "old"}, engine=engine, fix=Proof(text="x", file="server.py")) is None
    assert engine.calls == []
    assert "the series touches none of 3" in capsys.readouterr().err


def test_a_proof_for_the_image_alone_is_none_of_its_business(tree):
    assert compiled(tree, store=Proof(isa="elsewhere", file="a.so", code="DC762000")) is None


def test_a_kernel_that_the_image_cannot_compile_is_told_with_its_proofs(tree):
    report = compiled(tree, {"ops/verify.py": "old"}, tile=Proof(isa="verify", no_new_spills=True))

    assert report.faults == ()
    (warning,) = report.warnings
    assert warning == (
        "verify was not compiled in the build, whose image has no Triton, so its proofs are not checked here; "
        "`gfx1100 kernels smoke` compiles it"
    )


def test_only_the_files_that_a_kernel_may_read_go_into_the_container(tree):
    engine = Image()
    compiled(tree, {"csrc/word.h": "typedef long word;\n"}, engine=engine)

    folders = [
        {name.partition("/tree/")[2]: data for name, data in files.items() if "/tree/" in name}
        for _, words, files in engine.calls
        if "-S" in words and "-###" not in words
    ]
    assert {frozenset(folder) for folder in folders} == {
        frozenset({"csrc/copy.hip", "csrc/deep/copy.h", "csrc/word.h"})
    }
    assert b"typedef long word;\n" in [folder["csrc/word.h"] for folder in folders]
