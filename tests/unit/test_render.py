"""Rendering: golden files, byte-stable, and nothing that a builder reads otherwise than a person."""

import os
import re
import shutil
from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.models.lock import load_lock
from builder.models.stack import Base, Fetch, load_stack, stack_names
from builder.resolve.lock import resolve
from builder.settings import load_settings
from builder.stage.render import dockerfile_path, render, template_name, template_sha256

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path):
    """Return a checkout whose templates may be changed."""
    for folder in ("templates", "stacks"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def rendered(root, name="smoke"):
    return render(root, load_stack(root, name), load_lock(root, name))


def change(checkout, name, old, new):
    path = checkout / "templates" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("name", stack_names(ROOT))
def test_the_committed_dockerfile_is_fresh(name):
    assert dockerfile_path(ROOT, name).read_text() == rendered(ROOT, name), f"run `gfx1100 render {name}`"


@pytest.mark.parametrize("name", stack_names(ROOT))
def test_a_dockerfile_needs_no_argument_and_keeps_the_pin_out_of_the_environment(name):
    lines = rendered(ROOT, name).splitlines()
    assert not [line for line in lines if line.startswith("ARG")]
    assert not [line for line in lines if line.startswith("ENV") and "SETUPTOOLS_SCM" in line]


@pytest.mark.parametrize("name", stack_names(ROOT))
def test_a_dockerfile_has_no_heredoc_and_no_syntax_line(name):
    text = rendered(ROOT, name)
    assert "<<" not in text
    assert "# syntax=" not in text


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_every_name_of_the_architecture_is_set_where_all_stages_that_compile_begin(name):
    text = rendered(ROOT, name)
    stage = text.split("AS toolchain")[1].split("FROM ")[0]
    for variable in ("PYTORCH_ROCM_ARCH", "AMDGPU_TARGET", "GPU_TARGETS"):
        assert f"{variable}=gfx1100" in stage
    for compiling in ("native-build", "wheel"):
        assert f"FROM toolchain AS {compiling}\n" in text


@pytest.mark.parametrize("name", ["vllm", "vllm-int8", "sglang", "vllm-upstream"])
def test_every_install_takes_the_pins_and_is_followed_by_the_guard(name):
    runs = [run for run in rendered(ROOT, name).replace("\\\n", "").split("\nRUN ") if "pip install" in run]
    assert len(runs) >= 2
    for run in runs:
        assert "pins/torch" in run
        assert "/pins/torch/guard.py /pins/torch/constraints.txt rocm" in run


def test_stacks_with_the_same_pins_share_everything_up_to_torch():
    stages = {
        rendered(ROOT, name).split("\n\n", 1)[1].split(" AS toolchain")[0] for name in ("vllm", "vllm-int8", "sglang")
    }
    assert len(stages) == 1
    assert "COPY --from=torch-parts /parts/4/ /\n" in stages.pop()


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_engine_layers_come_last(name):
    runtime = rendered(ROOT, name).split("AS runtime")[1]
    assert runtime.index("/pins/run/run.txt") < runtime.index("from=wheel") < runtime.index("LABEL")


def test_a_python_file_of_the_engine_does_not_reach_the_native_stage_as_it_is():
    text = rendered(ROOT, "vllm")
    native = text.split("AS native-build")[1].split("FROM ")[0]
    assert "COPY --from=native-inputs /in/ ./" in native
    assert "COPY source" not in native
    # a compiled file that is left behind would differ with every change of its source
    assert "python3 -B /pins/build/native.py reduce" in text


VARIANTS = {
    "vllm": ("vllm", {}),
    "sglang": ("sglang", {}),
    "vllm-upstream": ("vllm-upstream", {}),
    "vllm-rehearsal": ("vllm-rehearsal", {}),
    "sglang-rehearsal": ("sglang-rehearsal", {}),
    "vllm-no-strip": ("vllm", {"strip": False}),
    "vllm-no-fetch": ("vllm", {"fetch": ()}),
    "vllm-rccl": (
        "vllm",
        {
            "bases": {"rccl": Base(image="rocm/dev-ubuntu-24.04:7.2-complete", digest=f"sha256:{'7' * 64}")},
            "fetch": (Fetch(name="rccl", repository="https://github.com/ROCm/rccl", ref="refs/tags/rocm-7.2.3"),),
        },
    ),
    "vllm-no-environment": ("vllm", {"environment": {}}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option_renders_as_its_golden_file(variant, tmp_path):
    name, changes = VARIANTS[variant]
    stack = load_stack(ROOT, name)
    if "bases" in changes:
        changes = {**changes, "bases": stack.bases.model_copy(update=changes["bases"])}
    stack = stack.model_copy(update=changes)
    settings = load_settings(ROOT, {"HOME": str(tmp_path)})
    lock = resolve(ROOT, stack, settings=settings, offline=True)
    # hashes of files that change often would hide what a change of the template does
    text = re.sub(r'(-sha256|revision|version)="[^"]*"', r'\1="..."', render(ROOT, stack, lock))
    text = text.replace(lock.version, "VERSION")
    golden = ROOT / "tests" / "golden" / f"{variant}.Dockerfile"
    if os.environ.get("GFX1100_GOLDEN") == "write":
        golden.write_text(text)
    assert golden.read_text() == text, "look at the change, then run this test with GFX1100_GOLDEN=write"


def test_the_native_stage_knows_neither_commit_nor_version():
    lock = load_lock(ROOT, "smoke")
    stage = rendered(ROOT).split("AS native-build")[1].split("FROM ")[0]
    assert lock.commit not in stage
    assert lock.version not in stage


def test_a_name_that_is_not_there_is_an_error_with_the_template(checkout):
    change(checkout, "Dockerfile.smoke.j2", "{{ lock.version }}", "{{ lock.versio }}")
    with pytest.raises(UsageError, match=r"templates/Dockerfile.smoke.j2: .*versio"):
        rendered(checkout)


def test_a_broken_template_is_an_error_with_the_template(checkout):
    change(checkout, "Dockerfile.smoke.j2", "{% endfor %}", "")
    with pytest.raises(UsageError, match=r"templates/Dockerfile.smoke.j2"):
        rendered(checkout)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("apt-get update \\\n", "apt-get update \\\n\n", "an empty line follows a backslash"),
        ("EXPOSE 8011", "ENV EMPTY=", "an empty ENV or ARG"),
        ("EXPOSE 8011", "EXPOSE 8011 ", "white space at a line's end"),
    ],
)
def test_what_a_builder_reads_otherwise_is_refused_with_its_line(checkout, old, new, message):
    change(checkout, "Dockerfile.smoke.j2", old, new)
    with pytest.raises(UsageError, match=rf"bad line \d+: {message}"):
        rendered(checkout)


def test_the_templates_hash_covers_the_macros_too(checkout):
    stack = load_stack(checkout, "smoke")
    before = template_sha256(checkout, stack)
    change(checkout, "macros.j2", "AMDGPU_TARGET", "AMDGPU_TARGETS")
    assert template_sha256(checkout, stack) != before
    assert template_name(stack) == "Dockerfile.smoke.j2"
