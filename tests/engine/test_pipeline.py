"""The walk on a real engine and a real registry: from the source to a published image, and how it can break."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from smoke_image import build_smoke, twin

from builder.errors import BuildError, VerifyError
from builder.models.record import image_reference
from builder.registry.publish import immutable_tag, publish
from builder.registry.pull import pull
from builder.stage.context import Origin

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.engine


def changed_engine(folder, file, added):
    """Return a work tree of the example engine with a line added to a file."""
    shutil.copytree(ROOT / "examples" / "smoke-engine", folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / file).open("a") as text:
        text.write(added)
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    return Origin(location=str(folder), ref="refs/heads/main")


def test_the_wheel_carries_the_pin(engine, built):
    asked = ["python3", "-c", "import importlib.metadata as m; print(m.version('smoke-engine'))"]
    assert engine.run_once(built.image_id, asked, files={}, timeout=60).stdout.strip() == built.version


def test_the_image_and_its_history_hold_no_build_setting(engine, built):
    image = engine.image(built.image_id)
    text = " ".join((*image.history, *image.environment))
    for word in ("SETUPTOOLS_SCM", "MAX_JOBS=2", "proxy", "PIP_", "ca-certificates.crt"):
        assert word not in text


def test_the_image_carries_the_checkpoint_fixer(engine, built):
    asked = ["gfx1100-checkpoint", "inspect", "/nowhere"]
    done = engine.run_once(built.image_id, asked, files={}, timeout=60)
    assert (done.returncode, "/nowhere" in done.stderr) == (2, True)


def test_building_again_runs_no_step_and_gives_the_same_image(engine, settings, built, tmp_path):
    again, _ = build_smoke(engine, settings, tmp_path)
    assert again.image_id == built.image_id
    assert again.context_sha256 == built.context_sha256


def test_a_change_of_a_python_file_compiles_nothing(engine, settings, built, tmp_path):
    before = set((ROOT / "logs").glob("smoke-*.log"))
    origin = changed_engine(tmp_path / "tree", "smoke_engine/text.py", "# changed\n")
    changed, _ = build_smoke(engine, settings, tmp_path / "records", origin=origin)
    log = max(set((ROOT / "logs").glob("smoke-*.log")) - before).read_text()
    assert changed.image_id != built.image_id
    assert "hipcc --offload-arch" not in log


def test_a_compile_error_is_told_with_its_step_and_its_last_lines(engine, settings, tmp_path):
    origin = changed_engine(tmp_path / "tree", "csrc/kv_int4.hip", "this is no C++;\n")
    with pytest.raises(BuildError, match=r"kv_int4\.hip:\d+:1: error: expected") as caught:
        build_smoke(engine, settings, tmp_path, origin=origin)
    assert "native-build" in caught.value.message
    assert not list(tmp_path.glob("*.json"))


def test_a_twin_that_is_not_what_was_verified_is_not_published(engine, registry, settings, built, tmp_path):
    image = twin(engine, f"gfx1100/smoke:{immutable_tag(built)}", "USER 10001", tmp_path)
    with pytest.raises(VerifyError):
        publish(
            engine,
            built.model_copy(update={"image_id": image.id, "verification": None}),
            to=f"{registry}/test/twin",
            settings=settings,
            on_progress=print,
        )


def test_what_was_published_is_pulled_by_digest_and_its_record_comes_along(engine, settings, published, tmp_path):
    done = pull(engine, image_reference(published), settings=settings, records=tmp_path, on_progress=print)
    assert done.digest == published.published.digest
    assert json.loads(next(tmp_path.glob("*.json")).read_text())["commit"] == published.commit


def test_a_patch_that_the_builds_compiler_makes_needless_is_unneeded_with_the_compilers_word(
    engine, settings, built, tmp_path
):
    folder = tmp_path / "patches"
    folder.mkdir()
    (folder / "known.yaml").write_text(
        "id: known\ntitle: t\nwhy: w\norigin: o\nretire_when: never\n"
        'unneeded_if_compiles: "#include <hip/hip_runtime.h>\\n__global__ void f() {}\\n"\n'
        "edits:\n  - {file: smoke_engine/defaults.py, anchor: KV_CACHE_TOKENS = 65536, "
        "replacement: KV_CACHE_TOKENS = 1024}\n"
        "proof:\n  - {text: KV_CACHE_TOKENS = 1024, file: smoke_engine/defaults.py}\n"
    )
    record, _ = build_smoke(engine, settings, tmp_path / "records", origin=Origin(patches=(folder,)))
    outcomes = {patch.id: (patch.outcome, patch.reason) for patch in record.patches}
    assert outcomes["smoke-store"][0] == "applied"
    assert outcomes["known"][0] == "unneeded"
    assert "clang version 17" in outcomes["known"][1]
