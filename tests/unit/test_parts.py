"""Dividing what is installed into layers within a limit: the whole is kept, and small changes move small layers."""

import importlib.util
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

PARTS = Path(__file__).parents[2] / "templates" / "parts.py"
MB = 10**6


@pytest.fixture(scope="module")
def parts():
    spec = importlib.util.spec_from_file_location("parts", PARTS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def divide(parts, monkeypatch, tmp_path):
    """Return a function that divides a folder and returns the parts, each as the place of the folder in it."""

    def call(folder, *below, limit=100 * MB, count=3, to="parts"):
        monkeypatch.setattr(parts, "PARTS", str(tmp_path / to))
        monkeypatch.setattr(sys, "argv", ["parts.py", str(limit), str(count), str(folder), *map(str, below)])
        parts.main()
        return [Path(f"{tmp_path / to}/{number}{folder}") for number in range(count)]

    return call


def put(folder, files):
    """Write files of a size (sparse) or of a text."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            (folder / name).write_text(content)
        else:
            with (folder / name).open("wb") as file:
                file.truncate(content)
    return folder


def names(part):
    return sorted(str(path.relative_to(part)) for path in part.rglob("*") if path.is_symlink() or path.is_file())


def content(path):
    """Return the bytes of a file, or how many when they are many."""
    return None if path.is_dir() else path.read_bytes() if path.stat().st_size < MB else path.stat().st_size


def told(folder):
    """Return what there is to say of everything below a folder but its times."""
    return {
        str(path.relative_to(folder)): (
            oct(path.lstat().st_mode),
            path.readlink() if path.is_symlink() else content(path),
        )
        for path in sorted(folder.rglob("*"))
    }


VENV = {
    "torch/lib/a.so": 90 * MB,
    "torch/lib/b.so": 40 * MB,
    "torch/lib/c.so": 50 * MB,
    "torch/one.py": "one",
    "triton/lib.so": 20 * MB,
    "triton/two.py": "two",
}


def test_the_parts_laid_over_each_other_are_the_whole(divide, tmp_path):
    venv = put(tmp_path / "venv", {**VENV, "bin/tool": "#!"})
    (venv / "bin/tool").chmod(0o755)
    (venv / "torch").chmod(0o700)
    (venv / "lib64").symlink_to("torch")
    (venv / "bin/python3").symlink_to("/usr/bin/nowhere")
    (venv / "empty/inner").mkdir(parents=True)
    before = told(venv)
    for part in divide(venv):
        if part.exists():
            shutil.copytree(part, tmp_path / "image", symlinks=True, dirs_exist_ok=True)
    assert told(tmp_path / "image") == before
    assert names(venv) == []


def test_large_files_fill_the_first_parts_in_the_order_of_paths_and_small_ones_lie_in_the_last(divide, tmp_path):
    first, second, last = divide(put(tmp_path / "venv", VENV))
    assert names(first) == ["torch/lib/a.so"]
    assert names(second) == ["torch/lib/b.so", "torch/lib/c.so"]
    assert names(last) == ["torch/one.py", "triton/lib.so", "triton/two.py"]


@pytest.mark.parametrize(
    "change",
    [{"torch/new.py": "new"}, {"another/new.py": "new"}, {"torch/one.py": "changed"}, {"triton/lib.so": 30 * MB}],
    ids=["a small file more", "a small package more", "a small file changed", "another library of a later package"],
)
def test_a_small_change_leaves_the_parts_of_torchs_libraries_as_they_are(divide, tmp_path, change):
    before = divide(put(tmp_path / "venv", VENV))
    left = [told(part) for part in before[:2]]
    shutil.rmtree(tmp_path / "parts")
    after = divide(put(tmp_path / "venv", {**VENV, **change}))
    assert [told(part) for part in after[:2]] == left


def test_installing_the_same_again_gives_the_same_times(divide, tmp_path):
    found = []
    for to in ("one", "two"):
        put(tmp_path / "venv", VENV)
        for number, path in enumerate((tmp_path / "venv").rglob("*")):
            os.utime(path, (number, len(to) + number))
        found.append([{path.lstat().st_mtime for path in [p, *p.rglob("*")]} for p in divide(tmp_path / "venv", to=to)])
    assert found[0] == found[1]
    assert set().union(*found[0]) == {315532800}


@pytest.mark.parametrize(("age", "answer"), [(0, "compiled"), (60, "source")], ids=["up to date", "out of date"])
def test_a_compiled_file_is_used_as_before(divide, tmp_path, age, answer):
    module = put(tmp_path / "venv", {"it.py": "print('compiled')"}) / "it.py"
    py_compile.compile(module, doraise=True)
    made = module.stat().st_mtime
    module.write_text("print('source')".ljust(len("print('compiled')")))
    os.utime(module, (made + age, made + age))
    part = divide(tmp_path / "venv")[-1]
    done = subprocess.run([sys.executable, "-Bc", "import it"], cwd=part, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == answer


def test_what_the_image_has_already_is_left_out(divide, tmp_path):
    rocm = put(tmp_path / "rocm", {"same": "text", "other": "one", "mode": "text", "new": "text", "link": "file"})
    (rocm / "alias").symlink_to("same")
    below = tmp_path / "below"
    shutil.copytree(rocm, f"{below}{rocm}", symlinks=True)
    there = Path(f"{below}{rocm}")
    (there / "other").write_text("two")
    (there / "mode").chmod(0o755)
    (there / "new").unlink()
    (there / "link").unlink()
    (there / "link").symlink_to("same")
    found = [name for part in divide(rocm, below) for name in names(part)]
    assert sorted(found) == ["link", "mode", "new", "other"]


def test_a_link_to_the_folder_stands_for_it(divide, tmp_path):
    put(tmp_path / "rocm-7.2.3", {"lib/a": "text"})
    (tmp_path / "rocm").symlink_to("rocm-7.2.3")
    divide(tmp_path / "rocm")
    assert Path(f"{tmp_path}/parts/2{tmp_path}/rocm-7.2.3/lib/a").read_text() == "text"


def test_small_files_without_room_in_the_last_part_go_into_those_before(parts):
    sizes = {f"{number:02}": 10 * MB for number in range(12)}
    assert [len(part) for part in parts.divided({**sizes, "large": 70 * MB}, 100 * MB, 3)] == [1, 2, 10]


def test_a_file_that_no_layer_may_hold_is_named_with_what_to_change(divide, tmp_path):
    venv = put(tmp_path / "venv", VENV)
    words = r"^gfx1100-parts: \S+/torch/lib/a.so has 90,002,048 bytes and a layer may have 80,000,000: .*layer_bytes"
    with pytest.raises(SystemExit, match=words):
        divide(venv, limit=80 * MB)
    assert not (tmp_path / "parts").exists()


def test_parts_that_do_not_hold_the_whole_are_an_error_and_no_larger_layer(divide, tmp_path):
    venv = put(tmp_path / "venv", VENV)
    words = r"^gfx1100-parts: 2 layers of 100,000,000 bytes do not hold the \S+ bytes: .*/triton/lib.so .*image_bytes"
    with pytest.raises(SystemExit, match=words):
        divide(venv, count=2)


def test_a_link_is_moved_as_it_is_and_what_it_leads_to_is_left_alone(divide, tmp_path):
    outside = tmp_path / "outside.pyc"
    outside.write_bytes(b"x" * 16)
    venv = put(tmp_path / "venv", {"a.py": "a"})
    (venv / "a.pyc").symlink_to(outside)
    (venv / "folder.pyc").symlink_to(tmp_path)
    before = outside.stat().st_mtime

    *_, last = divide(venv)

    assert (last / "a.pyc").readlink() == outside
    assert (last / "folder.pyc").readlink() == tmp_path
    assert (outside.stat().st_mtime, outside.read_bytes()) == (before, b"x" * 16)


@given(st.lists(st.integers(0, 60 * MB), max_size=40), st.integers(1, 6))
def test_every_file_is_in_one_part_and_no_part_is_above_the_limit(parts, sizes, count):
    named = {f"{number:02}": size for number, size in enumerate(sizes)}
    try:
        found = parts.divided(named, 100 * MB, count)
    except SystemExit:
        # then no part had room for one of them
        assert sum(sizes) > count * (100 * MB - max(sizes))
    else:
        assert sorted(name for part in found for name in part) == sorted(named)
        assert all(sum(named[name] for name in part) <= 100 * MB for part in found)
