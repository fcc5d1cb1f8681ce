"""The series that we ship, on small look-alikes of an old and of a new state of the engines' files."""

from __future__ import annotations

import builtins
import shutil
from pathlib import Path

import pytest
from made_patches import Facts, apply, check, outcomes, tree

from builder.errors import UsageError
from builder.patching.series import load_series
from builder.verify.proofs import missing_proofs

LOOKALIKES = Path(__file__).parents[1] / "fixtures" / "patching"
FORK = "https://github.com/StevenChenSE/sglang.git"
STORE = "scripts/rdna_ar/rdna_custom_all_reduce.cu"
VERIFY = "python/sglang/kernels/ops/attention/rdna_unified_verify.py"
ADAPTER = "python/sglang/kernels/ops/attention/rdna_verify_adapter.py"
BACKEND = "python/sglang/srt/layers/attention/triton_backend.py"
GPTQ = "python/sglang/kernels/aot/csrc/gemm/gptq/gptq_kernel.cu"
SCHEMA = "python/sglang/kernels/aot/csrc/common_extension_rocm.cc"
OLD_ROCM, NEW_ROCM = Facts(repository=FORK, rocm="7.2.4"), Facts(repository=FORK, rocm="7.14")


@pytest.fixture(params=["old", "new"])
def age(request):
    return request.param


@pytest.fixture
def source(tmp_path, age):
    return shutil.copytree(LOOKALIKES / age, tmp_path / "tree")


@pytest.fixture
def sglang(pytestconfig):
    return load_series(pytestconfig.rootpath / "patches" / "sglang")


@pytest.fixture
def with_stages(pytestconfig):
    return load_series(pytestconfig.rootpath / "patches" / "sglang", enable=["rdna-verify-stages"])


def by_id(report):
    return {one.id: one for one in report.patches}


def edit(source, file, old, new):
    text = (source / file).read_text()
    assert old in text
    (source / file).write_text(text.replace(old, new))


def test_the_three_field_patches_fit_old_and_new_and_are_present_the_second_time(sglang, source):
    first, second = apply(sglang, source, OLD_ROCM), apply(sglang, source, OLD_ROCM)

    three, newer = (
        ["rdna-ar-store", "rdna-verify-tile", "rdna-verify-segments"],
        ["gptq-atomic-add", "gptq-gemm-schema"],
    )
    assert {name: one.outcome for name, one in by_id(first).items()} == {
        **dict.fromkeys(three, "applied"),
        **dict.fromkeys(newer, "unneeded"),
    }
    assert [by_id(second)[name].outcome for name in three] == ["present"] * 3
    assert "*(volatile __attribute__((address_space(1))) sgl_v4u*)(dst + i) = v;" in (source / STORE).read_text()
    assert "__builtin_amdgcn_global_store_b128" not in (source / STORE).read_text()
    assert "tile_size = 32 if not use_3d else 32\n" in (source / VERIFY).read_text()
    assert (source / BACKEND).read_text().count("segments=64,") == 2
    assert "SEGMENTS = 64 " in (source / ADAPTER).read_text()
    assert "segments: int = 64," in (source / ADAPTER).read_text()


def test_the_call_site_that_has_64_segments_already_is_told_apart_from_the_one_that_has_not(sglang, source):
    edits = by_id(check(sglang, source, OLD_ROCM))["rdna-verify-segments"].edits

    assert [one.outcome for one in edits] == ["applied", "present", "applied", "applied"]


def test_tile_and_segments_are_the_stacks_and_powers_of_two(sglang, source):
    facts = Facts(repository=FORK, rocm="7.2.4", parameters={"tile": 16, "segments": 32})

    report = apply(sglang, source, facts)

    assert [one.outcome for one in by_id(report)["rdna-verify-segments"].edits][:2] == ["present", "applied"]
    assert "else 16\n" in (source / VERIFY).read_text()
    assert (source / BACKEND).read_text().count("segments=32,") == 2
    assert sglang.declared()["segments"].vram_bytes_each * 64 == 384 << 20
    for wrong in ({"tile": 24}, {"tile": 128}, {"segments": 48}, {"segments": 4}):
        with pytest.raises(UsageError, match=r"power of two|between"):
            check(sglang, source, Facts(parameters=wrong))


@pytest.mark.parametrize(
    ("patch", "file", "old", "new"),
    [
        (
            "rdna-ar-store",
            STORE,
            "void copy(",
            "void again() { __builtin_amdgcn_global_store_b128(a, b, c); }\nvoid copy(",
        ),
        ("rdna-ar-store", STORE, "(dst + i), v", "(dst + i + 1), v"),
        ("rdna-ar-store", STORE, "copy_sys_kernel(const", "copy_system_kernel(const"),
        (
            "rdna-verify-tile",
            VERIFY,
            "    kernel[grid](",
            "    tile_size = 64 if wide else tile_size\n    kernel[grid](",
        ),
        ("rdna-verify-tile", VERIFY, "TILE_SIZE=tile_size,\n        IS_3D", "TILE_SIZE=16,\n        IS_3D"),
        ("rdna-verify-tile", VERIFY, "(16 if", "(24 if"),
        ("rdna-verify-segments", BACKEND, "segments=32,", "segments=48,"),
        ("rdna-verify-segments", BACKEND, "segments=64,", "segments=128,"),
        (
            "rdna-verify-segments",
            BACKEND,
            "class Triton",
            "def third():\n    return Buffers(segments=32)\n\n\nclass Triton",
        ),
        ("rdna-verify-segments", ADAPTER, "segments: int = 16", "segments: int"),
    ],
)
def test_what_the_patches_do_not_know_is_refused_and_the_tree_stays(sglang, source, patch, file, old, new):
    edit(source, file, old, new)
    before = {name: (source / name).read_bytes() for name in (STORE, VERIFY, ADAPTER, BACKEND)}

    report = by_id(apply(sglang, source, OLD_ROCM))

    assert report[patch].outcome == "failed"
    assert "upstream moved" in report[patch].reason
    assert before == {name: (source / name).read_bytes() for name in before}


def image(*files):
    """What the probe would say of an image whose installed files are these of a tree."""
    return {"site": "/site", "texts": {name: {name: {"text": path.read_text()}} for name, path in files}}


def test_a_tile_that_upstream_computes_from_32_is_not_the_tile_of_the_patch(sglang, pytestconfig, tmp_path):
    source = shutil.copytree(pytestconfig.rootpath / "examples" / "sglang-lookalike", tmp_path / "tree")
    edit(source, VERIFY, "else (16 if q.element_size() >= 2 else 32)", "else 32 // q.element_size()")

    report = by_id(check(sglang, source, OLD_ROCM))["rdna-verify-tile"]

    assert report.outcome == "failed"
    assert report.reason.startswith(f"upstream moved: {VERIFY}: the anchor `tile_size = 32 if not use_3d else (16 if")
    proof = next(patch for patch in sglang.patches if patch.id == "rdna-verify-tile").proofs({"tile": 32})
    installed = image((VERIFY.removeprefix("python/"), source / VERIFY))
    assert "stands 0 times" in missing_proofs({"tile": proof}, installed, {})[0]


def test_a_tile_of_the_example_that_begins_like_the_patched_one_is_not_the_tile_of_the_patch(pytestconfig, tmp_path):
    root, name = pytestconfig.rootpath, "smoke_engine/ops/verify_attention.py"
    smoke = load_series(root / "patches" / "smoke")
    source = shutil.copytree(root / "examples" / "smoke-engine", tmp_path / "tree")
    edit(source, name, "tile_size = 32 if not use_3d else 16", "tile_size = 32 if not use_3d else 17")

    report = by_id(check(smoke, source, Facts()))["smoke-verify-tile"]

    assert [report.outcome, *(one.outcome for one in report.edits)] == ["failed", "failed", "applied"]
    assert report.reason.startswith(f"upstream moved: {name}: ")
    (tile, _) = next(patch for patch in smoke.patches if patch.id == "smoke-verify-tile").proofs(
        {"tile": 32, "segments": 64}
    )
    assert "stands 0 times" in missing_proofs({"tile": (tile,)}, image((name, source / name)), {})[0]


@pytest.mark.parametrize("name", ["smoke", "sglang"])
def test_no_shipped_proof_in_a_text_file_ends_where_a_longer_statement_could_go_on(pytestconfig, name):
    patches = load_series(pytestconfig.rootpath / "patches" / name).patches
    proofs = [proof for patch in patches for proof in patch.header.proof if proof.text and ".so" not in proof.file]

    assert proofs
    assert [proof.text for proof in proofs if proof.text[-1] not in "\n,;"] == []


@pytest.mark.parametrize("age", ["old"], indirect=True)
def test_the_patches_for_a_new_rocm_wait_for_it_and_fit_where_the_tree_needs_them(sglang, source):
    report = by_id(apply(sglang, source, NEW_ROCM))

    assert [len(one.lines) for one in report["gptq-atomic-add"].edits] == [4, 4, 2]
    assert " atomicAdd(" not in (source / GPTQ).read_text()
    assert report["gptq-gemm-schema"].reason == f"the operator of this tree has no use_v2_format ({SCHEMA})"


@pytest.mark.parametrize("age", ["new"], indirect=True)
def test_calls_that_are_compiled_out_on_rdna_need_no_patch_and_one_outside_of_the_guard_does(sglang, source):
    report = by_id(check(sglang, source, NEW_ROCM))
    assert report["gptq-atomic-add"].outcome == "unneeded"
    assert "compiled out on RDNA" in report["gptq-atomic-add"].reason
    assert report["gptq-gemm-schema"].outcome == "applied"

    edit(source, GPTQ, "#endif // !SGL_IS_RDNA\n", "")
    edit(source, GPTQ, "__global__ void alt_4bit", "#endif // !SGL_IS_RDNA\n__global__ void alt_4bit")
    assert by_id(check(sglang, source, NEW_ROCM))["gptq-atomic-add"].outcome == "applied"


def test_an_eleventh_call_of_atomic_add_is_refused(sglang, source, age):
    with (source / GPTQ).open("a") as file:
        file.write("__global__ void more(half2* out, half2 x) { atomicAdd(out + 2, x); }\n")

    report = by_id(check(sglang, source, NEW_ROCM))["gptq-atomic-add"]

    assert report.outcome == "failed"
    assert "`atomicAdd(` stands 11 times" in report.reason


def test_one_pipeline_stage_is_off_until_it_is_asked_for_and_leaves_the_prefill_path_alone(with_stages, sglang, source):
    assert "rdna-verify-stages" not in by_id(check(sglang, source, OLD_ROCM))

    first, second = apply(with_stages, source, OLD_ROCM), apply(with_stages, source, OLD_ROCM)

    assert by_id(first)["rdna-verify-stages"].outcome == "applied"
    assert by_id(second)["rdna-verify-stages"].outcome == "present"
    text = (source / VERIFY).read_text()
    assert text.count('        **({"num_stages": 1} if use_3d else {}),\n') == 1
    compile(text, VERIFY, "exec")


def test_another_fork_and_a_tree_without_the_feature_are_told_and_not_touched(sglang, source):
    other = check(sglang, source, Facts(repository="https://github.com/xiongyw/sglang", rocm="7.14"))
    assert outcomes(other) == ["unneeded"] * 5
    assert other.patches[0].reason.startswith("it is for github.com/stevenchense/sglang")

    (source / BACKEND).write_text("class TritonAttnBackend:\n    pass\n")
    report = by_id(check(sglang, source, OLD_ROCM))
    assert report["rdna-verify-tile"].reason == f"this tree has no RDNA verify path ({BACKEND})"


def test_the_compiler_of_the_build_can_make_the_store_patch_unneeded(sglang, source):
    facts = Facts(repository=FORK, rocm="7.14", unneeded={"rdna-ar-store": "the build's clang compiles the builtin"})

    report = by_id(check(sglang, source, facts))["rdna-ar-store"]

    assert (report.outcome, report.reason) == ("unneeded", "the build's clang compiles the builtin")


INIT = "from .version import __version__\n\nimport vllm.env_override  # noqa: F401\n"
OVERRIDE = "import os\n\nimport torch\n\n\ndef late():\n    import torch._inductor.ir as ir\n"


@pytest.fixture
def vllm(pytestconfig):
    return load_series(pytestconfig.rootpath / "patches" / "vllm")


def test_vllm_imports_amdsmi_before_torch_and_does_without_it_where_there_is_none(vllm, tmp_path):
    source = tree(tmp_path / "tree", {"vllm/__init__.py": INIT, "vllm/env_override.py": OVERRIDE})

    first, second = apply(vllm, source, Facts()), apply(vllm, source, Facts())

    assert (outcomes(first), outcomes(second)) == (["applied"], ["present"])
    text = (source / "vllm/env_override.py").read_text()
    order = []
    found = {"amdsmi": ImportError, "torch": None, "os": None}

    def importing(name, *_):
        order.append(name)
        if found[name]:
            raise found[name]

    exec(text, {"__builtins__": {**vars(builtins), "__import__": importing}})
    assert order == ["os", "amdsmi", "torch"]


@pytest.mark.parametrize("file", ["vllm/__init__.py", "vllm/env_override.py"])
def test_a_vllm_that_imports_torch_or_amdsmi_in_another_place_is_refused(vllm, tmp_path, file):
    files = {"vllm/__init__.py": INIT, "vllm/env_override.py": OVERRIDE}
    files[file] = "import torch\nimport amdsmi\n" + files[file] + "import amdsmi\n"

    report = check(vllm, tree(tmp_path / "tree", files), Facts()).patches[0]

    assert report.outcome == "failed"
    assert "and the patch knows" in report.reason


def test_the_examples_of_the_documentation_are_patches_that_apply(pytestconfig, tmp_path):
    page = (pytestconfig.rootpath / "docs" / "patches.md").read_text()
    (tmp_path / "patches").mkdir()
    for kind, name in (("yaml", "a.yaml"), ("diff", "b.patch")):
        (tmp_path / "patches" / name).write_text(page.partition(f"```{kind}\n")[2].partition("```")[0])
    (tmp_path / "patches" / "series").write_text("a.yaml\nb.patch\n")
    files = {
        "engine/ops/verify.py": "def launch_verify():\n    tile_size = 16\n",
        "engine/wait.py": 'import os\n\n# seconds\nWAIT = 600\nLOG = "wait.log"\n',
    }

    report = apply(load_series(tmp_path / "patches"), tree(tmp_path / "tree", files), Facts())

    assert outcomes(report) == ["applied", "applied"]
