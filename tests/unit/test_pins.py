"""What a build's installs are held to: requirements, constraints, hashes, stand-ins and the wheelhouse."""

import importlib.metadata
import os
import zipfile
from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.models.lock import load_lock
from builder.models.stack import Requirements, load_stack
from builder.stage.pins import link_wheels, reader_of, run_requirements, stand_ins, write_pins, write_stand_ins

ROOT = Path(__file__).parents[2]
FILES = {
    "requirements/rocm.txt": "# AMD\n-r common.txt\n--extra-index-url https://example.org/rocm7.1\ntorch==2.11.0\n"
    "Triton>=3\nnumba == 0.65.0 # for speed\n",
    "requirements/common.txt": "regex\nsix>=1.16.0; python_version > '3.11' # why\nvllm-x\nnumba == 0.65.0\n",
}


def read(name):
    return FILES[name]


@pytest.fixture
def vllm():
    return load_stack(ROOT, "vllm")


@pytest.fixture
def lock():
    """Return a lock of vllm whose wheels are resolved."""
    lock = load_lock(ROOT, "vllm")
    wheels = [
        wheel.model_copy(update={"url": f"https://example.org/{wheel.name}-1-py3-none-any.whl", "sha256": "a" * 64})
        for wheel in lock.wheels
    ]
    return lock.model_copy(update={"wheels": tuple(wheels)})


def test_included_files_are_flattened_and_what_the_lock_decides_is_left_out(vllm):
    assert run_requirements(vllm, read) == [
        "regex",
        "six>=1.16.0; python_version > '3.11'",
        "vllm-x",
        "numba == 0.65.0",
    ]


def test_a_stack_may_leave_names_out_and_add_its_own(vllm):
    changed = Requirements(file="requirements/rocm.txt", left_out=("Numba",), lines=("extra==1",))
    stack = vllm.model_copy(update={"requirements": changed})
    assert run_requirements(stack, read)[-2:] == ["vllm-x", "extra==1"]


def test_requirements_that_include_each_other_end(vllm):
    with pytest.raises(UsageError, match="include each other"):
        run_requirements(vllm, {"requirements/rocm.txt": "-r rocm.txt\n"}.__getitem__)


def test_a_requirements_file_that_the_source_lacks_is_named(vllm, tmp_path):
    with pytest.raises(UsageError, match=r"no file requirements/rocm.txt"):
        run_requirements(vllm, reader_of(tmp_path))


def test_sglang_takes_none_of_the_cuda_packages():
    lines = run_requirements(load_stack(ROOT, "sglang"), read)
    assert len(lines) > 40
    for word in ("cuda", "nvidia", "flashinfer", "cutlass", "humming", "triton", "torch", "sgl-", "flash"):
        assert not [line for line in lines if word in line.lower()]


def test_the_pins_hold_every_install_to_the_lock(vllm, lock, tmp_path):
    write_pins(tmp_path / "pins", ROOT, vllm, lock, read=read)
    wheels = (tmp_path / "pins/torch/wheels.txt").read_text().splitlines()
    assert wheels[0] == "--index-url https://download.pytorch.org/whl/rocm7.2"
    assert f"torch==2.13.0+rocm7.2 --hash=sha256:{'a' * 64}" in wheels
    for part in ("torch", "run"):
        held = (tmp_path / "pins" / part / "constraints.txt").read_text()
        assert "triton-rocm==3.7.1\n" in held
        # only the empty one meets it: PyPI's triton would overwrite the folder
        assert "triton==3.7.1+gfx1100\n" in held
    # the wheels are installed without what they need; naming them again brings it
    for file in ("build/build.txt", "run/run.txt"):
        assert "torch==2.13.0+rocm7.2\n" in (tmp_path / "pins" / file).read_text()
    assert os.access(tmp_path / "pins/run/gfx1100-entry", os.X_OK)


def test_what_the_requirements_resolved_to_holds_the_run_time_install_alone(vllm, lock, tmp_path):
    resolved = lock.wheels[0].model_copy(update={"name": "regex", "version": "2026.1"})
    write_pins(tmp_path / "pins", ROOT, vllm, lock.model_copy(update={"requirements": (resolved,)}), read=read)
    assert "regex==2026.1" in (tmp_path / "pins/run/constraints.txt").read_text()
    assert "regex" not in (tmp_path / "pins/torch/constraints.txt").read_text()


def test_a_published_engine_brings_the_rest_from_its_own_index(tmp_path):
    stack, lock = load_stack(ROOT, "vllm-upstream"), load_lock(ROOT, "vllm-upstream")
    write_pins(tmp_path / "pins", ROOT, stack, lock, read=read)
    lines = (tmp_path / "pins/run/run.txt").read_text().splitlines()
    assert lines[0].startswith("--extra-index-url https://wheels.vllm.ai/")
    assert "vllm==0.27.1+rocm723" in lines


def test_a_stand_in_is_a_distribution_without_files(vllm, tmp_path):
    write_stand_ins(tmp_path, vllm)
    (name,) = stand_ins(vllm)
    first = (tmp_path / name).read_bytes()
    write_stand_ins(tmp_path, vllm)
    assert (tmp_path / name).read_bytes() == first
    with zipfile.ZipFile(tmp_path / name) as archive:
        archive.extractall(tmp_path / "site")
    (found,) = importlib.metadata.distributions(path=[str(tmp_path / "site")])
    assert (found.metadata["Name"], found.version) == ("triton", "3.7.1+gfx1100")
    assert all(str(file).startswith("triton-3.7.1+gfx1100.dist-info/") for file in found.files)


def test_the_wheelhouse_is_linked_into_the_context_and_may_be_empty(vllm, lock, tmp_path):
    link_wheels(tmp_path / "a", vllm, lock, tmp_path / "nowhere")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["build", "pinned", "run"]
    house = tmp_path / "house"
    for name in ("pinned/torch-1-py3-none-any.whl", "pinned/other.whl", "vllm/run/regex.whl", "sglang/run/x.whl"):
        (house / name).parent.mkdir(parents=True, exist_ok=True)
        (house / name).write_text(name)
    link_wheels(tmp_path / "b", vllm, lock, house)
    found = sorted(path.relative_to(tmp_path / "b").as_posix() for path in (tmp_path / "b").rglob("*.whl"))
    assert found == ["pinned/torch-1-py3-none-any.whl", "run/regex.whl"]
    assert (tmp_path / "b/run/regex.whl").samefile(house / "vllm/run/regex.whl")
