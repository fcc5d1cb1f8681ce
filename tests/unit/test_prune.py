"""Pruning: other architectures' files and code objects go, this one's and the host's stay as they are."""

import base64
import csv
import hashlib
import importlib.util
import json
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from made_objects import GFX90A, HOST_ID, ID, bundle, code_object, compressed, fat_library, kernel

from builder.objects import read_library

PRUNE = Path(__file__).parents[2] / "templates" / "prune.py"
OTHER = "hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-"
SITE = "lib/python3.12/site-packages"
FILES = {
    f"{SITE}/torch/lib/rocblas/library/TensileLibrary_gfx1100.co": True,
    f"{SITE}/torch/lib/rocblas/library/Kernels.so-000-gfx1100.hsaco": True,
    f"{SITE}/torch/lib/rocblas/library/Kernels.so-000-gfx90a-xnack-.hsaco": False,
    f"{SITE}/torch/lib/rocblas/library/TensileLibrary_lazy_gfx942.dat": False,
    f"{SITE}/torch/lib/rocblas/library/TensileLibrary.dat": True,
    f"{SITE}/torch/lib/rocblas/library/TensileLibrary_fallback_gfx1102.hsaco": False,
    f"{SITE}/torch/lib/hipblaslt/library/extop_gfx1030.co": False,
    f"{SITE}/torch/lib/hipblaslt/library/gfx1201/Kernels.dat": False,
    f"{SITE}/torch/lib/hipblaslt/library/gfx1100/Kernels.dat": True,
    "share/miopen/db/gfx1100_48.HIP.fdb.txt": True,
    "share/miopen/db/gfx90878.db.txt": False,
    "share/miopen/db/gfx90a68.HIP.fdb.txt": False,
    "share/miopen/db/miopen.db": True,
    f"{SITE}/torch/lib/aotriton.images/amd-gfx11xx/flash/attn.aks2": True,
    f"{SITE}/torch/lib/aotriton.images/amd-gfx110x/flash/attn.aks2": True,
    f"{SITE}/torch/lib/aotriton.images/amd-gfx120x/flash/attn.aks2": False,
    f"{SITE}/torch/lib/aotriton.images/amd-gfx90a/flash/attn.aks2": False,
    # not one of the known places: a tuning table of the engine
    f"{SITE}/vllm/configs/E=8,N=1,device_name=gfx942.json": True,
}


@pytest.fixture(scope="module")
def prune():
    """Return the program as a module."""
    spec = importlib.util.spec_from_file_location("prune", PRUNE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path):
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x" * 100)
    return tmp_path


def run(root, *words):
    done = subprocess.run([sys.executable, PRUNE, "gfx1100", root, *words], capture_output=True, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])["groups"], done.stdout


def test_files_of_other_architectures_go_and_all_else_stays(tree):
    groups, _ = run(tree)
    assert {name: (tree / name).exists() for name in FILES} == FILES
    packed = {"packed_before": 72, "packed_after": 36}
    assert groups["rocblas"] == {"files": 6, "removed": 3, "before": 600, "after": 300, **packed}
    assert sorted(groups) == ["aotriton", "hipblaslt", "miopen", "rocblas"]


def test_a_check_says_the_same_and_removes_nothing(tree):
    told, text = run(tree, "--check", "--strip")
    assert all((tree / name).exists() for name in FILES)
    assert told["rocblas"]["removed"] == 3
    assert text.count("would remove") == sum(not kept for kept in FILES.values())
    assert run(tree)[0] == told


def test_what_is_pushed_is_told_within_a_few_percent_of_what_gzip_makes_of_it(prune, tmp_path):
    # half of it packs to nothing, in a stretch longer than the way from one sample to the next
    noise, zeros = random.Random(1).randbytes(32 << 20), bytes(32 << 20)
    path = tmp_path / "library"
    path.write_bytes(noise + zeros)
    with path.open("rb") as file:
        told = prune.packed(file, [(0, path.stat().st_size)])
        small = prune.packed(file, [(0, 5), (32 << 20, 3 << 20)])
    assert told == pytest.approx(len(zlib.compress(path.read_bytes(), 1)), rel=0.05)
    assert small == pytest.approx(len(zlib.compress(noise[:5], 1)) + len(zlib.compress(zeros[: 3 << 20], 1)), rel=0.05)
    with path.open("rb") as file:
        assert prune.packed(file, []) == prune.packed(file, [(0, 0)]) == 0


def test_pruning_again_removes_nothing(tree):
    run(tree)
    assert {group["removed"] for group in run(tree)[0].values()} == {0}


def test_a_library_of_the_host_stays_whatever_its_name(tree):
    library = tree / "lib/rocblas/library/libhelper-gfx942.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(fat_library(bundle((ID, code_object(kernel())))))
    run(tree)
    assert library.exists()


def test_a_link_stays(tree):
    link = tree / "share/miopen/db/gfx942.db"
    link.symlink_to("miopen.db")
    run(tree)
    assert link.is_symlink()


@pytest.mark.parametrize(
    ("token", "arch", "answer"),
    [
        ("gfx1100", "gfx1100", True),
        ("gfx1101", "gfx1100", False),
        ("gfx11xx", "gfx1100", True),
        ("gfx110x", "gfx1103", True),
        ("gfx115x", "gfx1100", False),
        ("gfx9xx", "gfx1100", False),
        ("gfx11-generic", "gfx1100", True),
        ("gfx10-3-generic", "gfx1100", False),
        ("gfx9-4-generic", "gfx1100", False),
        ("gfx90a", "gfx90a", True),
    ],
)
def test_a_family_covers_its_architectures(prune, token, arch, answer):
    assert prune.covers(token, arch) is answer


@pytest.fixture
def library(tmp_path):
    """Return a library with code for two architectures, installed by a distribution."""
    mine, other = code_object(kernel()), code_object(kernel("far"), mach=GFX90A)
    path = tmp_path / SITE / "engine/_C.so"
    path.parent.mkdir(parents=True)
    path.write_bytes(
        fat_library(bundle((HOST_ID, b""), (OTHER, other), (ID, mine)), bundle((ID, mine), (OTHER, other)))
    )
    info = tmp_path / SITE / "engine-1.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("engine/_C.so,sha256=old,1\nengine/a.py,sha256=a,1\nengine-1.dist-info/RECORD,,\n")
    return path


def test_other_code_inside_a_library_becomes_zeros_and_ours_stays_byte_for_byte(library, tmp_path):
    before = library.read_bytes()
    whole = read_library(library)
    groups, _ = run(tmp_path, "--strip")
    after = library.read_bytes()
    assert groups["libraries"]["removed"] == 2
    assert len(after) == len(before)
    for code in whole.objects:
        part = slice(code.at, code.at + code.size)
        assert after[part] == (before[part] if code.arch == "gfx1100" else bytes(code.size))
    assert read_library(library).archs == ("gfx1100",)
    changed = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    foreign = [code for code in whole.objects if code.arch != "gfx1100"]
    assert all(any(code.at <= at < code.at + code.size for code in foreign) for at in changed)
    assert len(zlib.compress(after)) < len(zlib.compress(before))


def test_the_file_list_of_the_distribution_follows(library, tmp_path):
    run(tmp_path, "--strip")
    rows = list(csv.reader((tmp_path / SITE / "engine-1.dist-info/RECORD").read_text().splitlines()))
    digest = base64.urlsafe_b64encode(hashlib.sha256(library.read_bytes()).digest()).rstrip(b"=").decode()
    assert rows[0] == ["engine/_C.so", f"sha256={digest}", str(library.stat().st_size)]
    assert rows[1] == ["engine/a.py", "sha256=a", "1"]


def test_without_strip_no_library_changes(library, tmp_path):
    before = library.read_bytes()
    run(tmp_path)
    assert library.read_bytes() == before


@pytest.mark.parametrize(
    "section",
    [
        bundle((OTHER, code_object(mach=GFX90A))),
        compressed(bundle((OTHER, code_object(mach=GFX90A)), (ID, code_object()))),
        bundle((ID, code_object()), ("hip-amdgcn-amd-amdhsa--amdgcnspirv", b"\x03\x02\x23\x07")),
    ],
    ids=["no code for this architecture", "a compressed bundle", "an intermediate form"],
)
def test_a_library_that_is_not_understood_stays_as_it_is(tmp_path, section):
    path = tmp_path / "x.so"
    path.write_bytes(fat_library(section))
    before = path.read_bytes()
    run(tmp_path, "--strip")
    assert path.read_bytes() == before


@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_library_that_is_cut_off_stays_as_it_is(tmp_path, part):
    path = tmp_path / "x.so"
    whole = fat_library(bundle((ID, code_object()), (OTHER, code_object(mach=GFX90A))))
    cut = whole[: int(len(whole) * part)]
    path.write_bytes(cut)
    run(tmp_path, "--strip")
    assert path.read_bytes() == cut


@pytest.mark.parametrize("field", [32, 40], ids=["offset", "size"])
def test_an_entry_that_reaches_into_another_one_or_out_of_its_section_is_not_believed(tmp_path, field):
    path = tmp_path / "x.so"
    first = bundle((OTHER, code_object(mach=GFX90A)), (ID, code_object()))
    for value in (0, 8200, 1 << 40):
        path.write_bytes(fat_library(first[:field] + struct.pack("<Q", value) + first[field + 8 :]))
        before = path.read_bytes()
        run(tmp_path, "--strip")
        ours = [code for code in (before.find(code_object()),) if code >= 0]
        assert path.read_bytes()[ours[0] :][: len(code_object())] == code_object()
