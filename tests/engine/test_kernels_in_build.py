"""The touched kernels are compiled in the image of the build before anything heavy; broken budgets end it there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from builder.build.budgets import Patched, compile_touched
from builder.build.image import build_image
from builder.build.kernels import proofs_of
from builder.build.run import Job, build
from builder.console import Console
from builder.errors import BuildError
from builder.kernels.triton import VERSION
from builder.models.kernels import TritonTarget
from builder.models.lock import load_lock
from builder.models.stack import load_stack
from builder.registry.publish import immutable_tag
from builder.stage.context import Origin, make_context
from builder.stage.inputs import series_of

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.engine

PATCH = """\
id: mine
title: t
why: w
origin: o
retire_when: never
edits:
  - file: {file}
    anchor: "{anchor}"
    replacement: '{replacement}'
proof:
  - {{text: KV_CACHE_TOKENS, file: smoke_engine/defaults.py}}
  - {{isa: {kernel}, {proof}}}
"""
PACK = {"file": "csrc/kv_int4.hip", "kernel": "smoke_kv_int4_pack_kernel", "anchor": "record[kScaleBytes + thread] ="}
# more values than there are vector registers
SPILLS = (
    "volatile float* many = (volatile float*)packed; float held[300]; "
    '_Pragma("unroll") for (int i = 0; i < 300; ++i) held[i] = many[i * 64]; '
    '_Pragma("unroll") for (int i = 0; i < 300; ++i) many[i * 64 + 1] = held[i]; ' + PACK["anchor"]
)
VERIFY = {
    "file": "smoke_engine/ops/verify_attention.py",
    "kernel": "verify_attention_kernel",
    "anchor": "MAX_3D_QUERY_TOKENS = 8",
}


class Steps(Console):
    """A console that keeps what it was told."""

    def __init__(self):
        super().__init__()
        self.told = []

    def step(self, text):
        self.told.append(text)

    note = step


@pytest.fixture
def mine(tmp_path):
    """Return a function that writes a folder with one patch of a kernel."""

    def write(**fields):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine/mine.yaml").write_text(PATCH.format(**fields))
        return Origin(patches=(tmp_path / "mine",))

    return write


def test_the_record_leads_to_the_figures_of_the_builds_own_compiler(built, records):
    (report,) = (records.parent / "reports").glob(f"{built.kernels_sha256[:16]}-kernels.json")
    told = json.loads(report.read_text())

    stores = {row["when"]: sum(row["markers"].values()) for row in told["kernels"]}
    assert stores == {"before": 0, "after": 1}
    assert {row["file"] for row in told["kernels"]} == {"csrc/copy_b128.hip"}
    assert "clang version 17" in told["compilers"][0]
    assert "amdgcn/bitcode" in told["compilers"][0]
    assert "verify_attention_kernel was not compiled in the build, whose image has no Triton" in told["warnings"][0]


@pytest.mark.parametrize(
    ("changed", "proof", "told"),
    [
        (
            PACK["anchor"] + " 0 |",
            "max_vgprs: 4",
            r"mine: smoke_kv_int4_pack_kernel uses \d+ vector registers, at most 4",
        ),
        (SPILLS, "no_new_spills: true", r"mine: smoke_kv_int4_pack_kernel spills \d+ registers, 0 before"),
        ("int no_such = thing; " + PACK["anchor"], "max_vgprs: 99", r"kv_int4\.hip:\d+:\d+: error: use of undeclared"),
    ],
)
def test_a_budget_that_a_patched_kernel_breaks_ends_the_build_before_the_native_stage(
    engine, settings, built, mine, tmp_path, changed, proof, told
):
    tag = f"gfx1100/smoke:{immutable_tag(built)}"
    console, before = Steps(), engine.image(tag)
    stack, lock = load_stack(ROOT, "smoke"), load_lock(ROOT, "smoke")
    origin = mine(**PACK, replacement=changed, proof=proof)
    job = Job(root=ROOT, stack=stack, lock=lock, engine=engine, origin=origin, settings=settings, console=console)

    with pytest.raises(BuildError, match=told) as caught:
        build(job, tmp_path / "records")

    assert caught.value.exit_code == 6
    assert any("smoke_kv_int4_pack_kernel" in text and "before" in text for text in console.told)
    assert not [text for text in console.told if "native-build" in text]
    assert engine.image(tag) == before
    assert not (tmp_path / "records").exists()


@pytest.fixture(scope="module")
def triton_image(engine, base, settings, tmp_path_factory):
    """Return the id of an image whose python3 has the pinned Triton, and nothing else."""
    folder = tmp_path_factory.mktemp("triton")
    wanted = ["--python-version", "3.13", "--only-binary", ":all:", "--no-deps", f"triton=={VERSION}"]
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *wanted]
    subprocess.run(argv, check=True, timeout=300)
    (folder / "Dockerfile").write_text(
        f"FROM {base.tags[0]}\n"
        "RUN --mount=type=secret,id=apt,target=/etc/apt/apt.conf.d/90gfx1100 apt-get update"
        " && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*\n"
        "RUN --mount=type=bind,target=/wheels"
        " python3 -m zipfile -e /wheels/triton-*.whl /usr/local/lib/python3.13/dist-packages\n"
    )
    return build_image(
        engine, folder, tags=(), settings=settings, jobs=1, log=folder / "log", console=Console()
    ).image_id


@pytest.fixture
def compiled(engine, settings, triton_image, tmp_path):
    """Return a function that compiles the smoke stack's Triton kernel before and after its series and a patch."""

    def run(origin):
        stack = load_stack(ROOT, "smoke")
        stack = stack.model_copy(
            update={"kernels": tuple(one for one in stack.kernels if isinstance(one, TritonTarget))}
        )
        lock, series = load_lock(ROOT, "smoke"), series_of(ROOT, stack, origin.patches)
        context = make_context(ROOT, stack, lock, tmp_path / "context", origin=origin, settings=settings)
        proofs = proofs_of(series, stack, context.patches)
        patched = Patched(
            tree=context.folder / "source",
            originals=context.originals,
            # the store's proof is about a HIP kernel, and this image has no hipcc
            proofs={name: several for name, several in proofs.items() if name != "smoke-store"},
        )
        return compile_touched(engine, lambda: triton_image, stack, patched, jobs=2, console=Console())

    return run


def test_a_triton_kernel_is_compiled_with_the_triton_of_the_image(compiled):
    report = compiled(Origin())

    spills = {row.when: row.figures.vgpr_spills for row in report.rows}
    assert report.notes == (f"Triton: {VERSION} of python3",)
    assert 0 < spills["before"] < spills["after"]


def test_a_budget_of_a_triton_kernel_fails_too(compiled, mine):
    with pytest.raises(BuildError, match=r"mine: verify_attention_kernel spills \d+ registers, \d+ before"):
        compiled(mine(**VERIFY, replacement=VERIFY["anchor"] + "  # mine", proof="no_new_spills: true"))
