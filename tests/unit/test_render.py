"""Rendering: golden files, byte-stable, and nothing that a builder reads otherwise than a person."""

import shutil
from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.models.lock import load_lock
from builder.models.stack import load_stack, stack_names
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


def test_the_architecture_is_set_in_the_stage_that_compiles():
    stage = rendered(ROOT, "vllm").split("AS native-build")[1].split("FROM ")[0]
    assert "PYTORCH_ROCM_ARCH=gfx1100" in stage
    assert "AMDGPU_TARGET=gfx1100" in stage


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
