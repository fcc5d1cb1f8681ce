"""The native build's way in and out: settings cut down to what the build asks for, wheels joined."""

import base64
import csv
import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "templates" / "native.py"
SETUP = "jobs = envs.MAX_JOBS\nif envs.USE_IT and not envs.is_set('X'):\n    print(envs.TARGET)\n"
SETTINGS = """import os
TABLE = {
    "MAX_JOBS": lambda: os.getenv("MAX_JOBS"),
    "USE_IT": lambda: bool(int(os.getenv("USE_IT", "0"))),
    "TARGET": lambda: os.getenv("TARGET", "rocm").lower(),
    "PORT": lambda: int(os.getenv("PORT", "8000")),
}
def __getattr__(name):
    return TABLE[name]()
"""


@pytest.fixture
def native(monkeypatch):
    """Return the program as a module."""
    spec = importlib.util.spec_from_file_location("native", NATIVE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("MAX_JOBS", "USE_IT", "TARGET"):
        monkeypatch.delenv(name, raising=False)
    return module


def reduced(native, folder, settings=SETTINGS):
    (folder / "setup.py").write_text(SETUP)
    (folder / "envs.py").write_text(settings)
    native.reduce(str(folder / "setup.py"), str(folder / "envs.py"))
    return (folder / "envs.py").read_text()


def test_a_setting_that_the_build_does_not_ask_for_changes_nothing(native, tmp_path):
    first = reduced(native, tmp_path)
    assert reduced(native, tmp_path, SETTINGS.replace('"8000"', '"9000"')) == first
    assert reduced(native, tmp_path, SETTINGS.replace('"rocm"', '"cpu"')) != first


def test_the_reduced_settings_answer_as_the_whole_ones(native, tmp_path):
    text = reduced(native, tmp_path)
    for environment in ({}, {"MAX_JOBS": "3", "TARGET": "empty"}):
        shown = {}
        for name, source in (("whole", SETTINGS), ("reduced", text)):
            (tmp_path / f"{name}.py").write_text(source)
            asked = f"import {name} as e; print(e.MAX_JOBS, e.USE_IT, e.TARGET)"
            shown[name] = subprocess.run(
                [sys.executable, "-c", asked],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                check=True,
                text=True,
            ).stdout
        assert shown["reduced"] == shown["whole"]


@pytest.mark.parametrize("odd", ["import torch_of_no_image\n", "MAX_JOBS = ['a list']\n"])
def test_settings_that_cannot_be_reduced_stay_whole(native, tmp_path, odd, capsys):
    whole = SETTINGS + odd
    assert reduced(native, tmp_path, whole) == whole
    assert "stays whole" in capsys.readouterr().out


def wheel(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return str(path)


def contents(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def engine(tmp_path):
    """Return an engine's wheel."""
    record = "engine-1.dist-info/RECORD"
    files = {"engine/a.py": "new", "engine-1.dist-info/METADATA": "Name: engine\n", record: f"{record},,\n"}
    return wheel(tmp_path / "engine-1-py3-none-any.whl", files)


def test_a_wheel_adds_what_is_missing_and_overwrites_nothing(native, tmp_path, engine):
    files = {"engine/a.py": "old", "engine/_C.so": "elf", "engine-0.dist-info/METADATA": "x"}
    native.join(engine, str(tmp_path / "out"), wheel(tmp_path / "native.whl", files))
    found = contents(tmp_path / "out" / "engine-1-py3-none-any.whl")
    assert found["engine/a.py"] == b"new"
    assert found["engine/_C.so"] == b"elf"
    assert not [name for name in found if name.startswith("engine-0")]


def test_a_folder_replaces_what_is_there(native, tmp_path, engine):
    (tmp_path / "python/engine/__pycache__").mkdir(parents=True)
    (tmp_path / "python/engine/a.py").write_text("from the source")
    (tmp_path / "python/engine/__pycache__/a.pyc").write_text("x")
    native.join(engine, str(tmp_path / "out"), str(tmp_path / "python"))
    found = contents(tmp_path / "out" / "engine-1-py3-none-any.whl")
    assert found["engine/a.py"] == b"from the source"
    assert not [name for name in found if "pycache" in name]


def test_the_record_names_every_file_with_its_hash(native, tmp_path, engine):
    added = {"engine/_C.so": "elf", "engine/E=8,device_name=X.json": "{}"}
    native.join(engine, str(tmp_path / "out"), wheel(tmp_path / "native.whl", added))
    found = contents(tmp_path / "out" / "engine-1-py3-none-any.whl")
    rows = {row[0]: row[1:] for row in csv.reader(found["engine-1.dist-info/RECORD"].decode().splitlines())}
    assert rows.keys() == found.keys()
    expected = base64.urlsafe_b64encode(hashlib.sha256(b"elf").digest()).rstrip(b"=").decode()
    assert rows["engine/_C.so"] == [f"sha256={expected}", "3"]


def test_joining_twice_gives_the_same_bytes(native, tmp_path, engine):
    added = wheel(tmp_path / "native.whl", {"engine/_C.so": "elf"})
    for name in ("one", "two"):
        native.join(engine, str(tmp_path / name), added)
        os.utime(added, (1, 1))
    names = [tmp_path / name / "engine-1-py3-none-any.whl" for name in ("one", "two")]
    assert names[0].read_bytes() == names[1].read_bytes()
