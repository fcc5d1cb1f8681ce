"""The guard that follows every install: the lock's versions, ROCm's torch, no CUDA, one owner of triton/."""

import subprocess
import sys
from pathlib import Path

import pytest

GUARD = Path(__file__).parents[2] / "templates" / "guard.py"


@pytest.fixture
def site(tmp_path):
    """Return a folder of installed distributions with a ROCm torch."""
    install(tmp_path / "site", "torch", "2.13.0+rocm7.2", {"torch/__init__.py": "raise SystemExit('imported')\n"})
    (tmp_path / "site/torch/version.py").write_text("__version__ = '2.13.0'\nhip = '7.2'\ncuda = None\n")
    install(tmp_path / "site", "triton-rocm", "3.7.1", {"triton/__init__.py": ""})
    return tmp_path / "site"


def install(site, name, version, files=()):
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(files[file])


def guard(site, *pins, device="rocm"):
    """Run the guard over a folder alone and return its status and what it said."""
    constraints = site.parent / "constraints.txt"
    constraints.write_text("".join(f"{pin}\n" for pin in pins or ("torch==2.13.0+rocm7.2", "triton-rocm==3.7.1")))
    done = subprocess.run(
        [sys.executable, "-S", GUARD, constraints, device],
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_what_the_lock_says_passes_without_importing_torch(site):
    status, said = guard(site)
    assert (status, said.strip()) == (0, "gfx1100-guard: ok: torch 2.13.0+rocm7.2, triton-rocm 3.7.1")


def test_another_version_than_the_locks_is_named(site):
    assert guard(site, "torch==2.12.0") == (1, "gfx1100-guard: torch is 2.13.0+rocm7.2, the lock says 2.12.0\n")


def test_a_pinned_wheel_that_is_missing_is_named(site):
    assert "torchvision is not installed, the lock says 1" in guard(site, "torchvision==1")[1]


def test_a_cuda_package_is_refused(site):
    install(site, "nvidia-cublas-cu12", "12.1")
    assert "CUDA packages came along: nvidia-cublas-cu12" in guard(site)[1]


def test_a_second_owner_of_triton_is_refused_but_not_an_empty_stand_in(site):
    install(site, "triton", "3.7.1")
    assert guard(site)[0] == 0
    install(site, "pytorch-triton-rocm", "3.7.1", {"triton/runtime.py": ""})
    assert "pytorch-triton-rocm and triton-rocm both own the folder triton/" in guard(site)[1]


@pytest.mark.parametrize(
    ("version", "device", "words"),
    [
        ("hip = None\ncuda = '12.9'", "rocm", "is built for CUDA 12.9"),
        ("hip = None\ncuda = None", "rocm", "is built for the CPU, not for rocm"),
        ("hip = '7.2'\ncuda = None", "none", "is built for ROCm 7.2, not for none"),
        ("hip = None\ncuda = '12.9'", "none", "is built for CUDA 12.9"),
    ],
)
def test_a_torch_for_another_device_is_refused(site, version, device, words):
    (site / "torch/version.py").write_text(f"__version__ = '2.13.0'\n{version}\n")
    status, said = guard(site, device=device)
    assert status == 1
    assert words in said


def test_a_cpu_torch_passes_in_a_rehearsal(site):
    (site / "torch/version.py").write_text("__version__ = '2.13.0'\nhip = None\ncuda = None\n")
    assert guard(site, device="none")[0] == 0


def test_two_copies_of_amdsmi_are_refused(site):
    (site / "amdsmi").mkdir()
    assert guard(site)[0] == 0
    (site.parent / "rocm/amdsmi").mkdir(parents=True)
    (site / "sitecustomize.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-S", GUARD, site.parent / "constraints.txt", "rocm"],
        env={"PYTHONPATH": f"{site}:{site.parent / 'rocm'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "there are 2 copies of amdsmi" in done.stderr
