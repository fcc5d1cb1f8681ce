"""The Python side of the probe, on folders made for it."""

import json
import sys
import types
from pathlib import Path

import pytest

from builder.verify import probe


def distribution(site, name, version, *, requires=(), files=()):
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {line}" for line in requires)]
    (folder / "METADATA").write_text("Metadata-Version: 2.1\n" + "".join(f"{line}\n" for line in lines))
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def test_distributions_tell_their_versions_and_requirements(tmp_path):
    distribution(tmp_path, "vllm", "0.1", requires=["torch==2.13.0", "ray; extra == 'ray'"])
    distribution(tmp_path, "torch", "2.13.0")
    assert probe.distributions([str(tmp_path)]) == [["torch", "2.13.0"], ["vllm", "0.1"]]
    assert ["vllm", "torch==2.13.0"] in probe.requirements([str(tmp_path)])


def test_two_distributions_that_installed_into_one_folder_are_both_its_owners(tmp_path):
    distribution(tmp_path, "triton", "3.7", files=["triton/__init__.py"])
    distribution(tmp_path, "triton_rocm", "3.7.1", files=["triton/language.py"])
    distribution(tmp_path, "xgrammar", "0.2", files=["xgrammar/triton/x.py", "tritonish/x.py"])
    assert probe.owners(["triton", "torch"], [str(tmp_path)]) == {"triton": ["triton", "triton_rocm"], "torch": []}


def test_an_empty_distribution_that_stands_in_for_another_owns_nothing(tmp_path):
    distribution(tmp_path, "triton", "3.7", files=["triton-3.7.dist-info/METADATA"])
    distribution(tmp_path, "triton_rocm", "3.7.1", files=["triton/__init__.py"])
    assert probe.owners(["triton"], [str(tmp_path)]) == {"triton": ["triton_rocm"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.13.0+rocm7.2'\ncuda: Optional[str] = None\nhip: Optional[str] = '7.2.5'\n", "7.2.5"),
        ("__version__ = '2.13.0'\ncuda = '12.8'\nhip = None\n", None),
    ],
)
def test_torch_is_read_from_its_file_and_not_imported(tmp_path, text, expected):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "torch/version.py").write_text("from typing import Optional\ndebug = False\n" + text)
    assert probe.torch_version(str(tmp_path))["hip"] == expected


def test_a_folder_without_torch_has_none(tmp_path):
    assert probe.torch_version(str(tmp_path)) is None


def test_the_markers_are_those_of_packaging():
    from packaging.markers import default_environment

    assert probe.markers() == dict(default_environment())


def test_an_op_is_registered_when_torch_has_it(monkeypatch):
    ops = types.SimpleNamespace(_C=types.SimpleNamespace(octave_decode=object()))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(ops=ops))
    assert probe.registered("_C", "octave_decode")
    assert not probe.registered("_C", "octave_rotate")
    assert not probe.registered("_rocm_C", "LLMM1")


def test_no_op_is_registered_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert not probe.registered("_C", "octave_decode")


@pytest.mark.parametrize(
    ("text", "order", "loaded"),
    [
        ("import amdsmi\nimport torch\n", ["engine", "amdsmi", "torch"], ["engine", "amdsmi", "torch"]),
        ("import torch\nimport amdsmi\n", ["engine", "torch", "amdsmi"], ["engine", "torch", "amdsmi"]),
        (
            "try:\n    import gone\nexcept ImportError:\n    pass\nimport torch\n",
            ["engine", "gone", "torch"],
            ["engine", "torch"],
        ),
    ],
)
def test_the_order_of_imports_is_watched_in_a_process_of_its_own(tmp_path, monkeypatch, text, order, loaded):
    for name, content in (("engine", text), ("amdsmi", ""), ("torch", "")):
        (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert probe.order_of_imports("", "engine") == {"order": order, "loaded": loaded, "error": ""}
    assert "engine" not in sys.modules


def test_an_import_that_fails_tells_why(tmp_path, monkeypatch):
    (tmp_path / "engine.py").write_text("import amdsmi\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = probe.order_of_imports("", "engine")
    assert (found["order"], "No module named 'amdsmi'" in found["error"]) == (["engine", "amdsmi"], True)


def test_what_stands_at_the_top_of_the_entry_point_comes_first_and_its_server_is_not_started(tmp_path, monkeypatch):
    for name, content in (("engine", "import torch\n"), ("amdsmi", ""), ("torch", "")):
        (tmp_path / f"{name}.py").write_text(content)
    program = tmp_path / "start"
    program.write_text("#!/usr/bin/env python3\nimport amdsmi\nif __name__ == '__main__':\n    raise SystemExit(9)\n")
    program.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = probe.order_of_imports(str(program), "engine")
    assert (found["order"], found["error"]) == (["amdsmi", "engine", "torch"], "")


def test_an_entry_point_that_is_no_python_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "engine.py").write_text("")
    program = tmp_path / "start"
    program.write_text("#!/bin/sh\nexec false\n")
    program.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert probe.order_of_imports(str(program), "engine")["error"] == ""


def test_what_was_imported_at_the_start_of_the_interpreter_came_first(tmp_path, monkeypatch):
    for name, content in (
        ("engine", "import torch\n"),
        ("amdsmi", ""),
        ("torch", ""),
        ("sitecustomize", "import amdsmi"),
    ):
        (tmp_path / f"{name}.py").write_text(content)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = probe.order_of_imports("", "engine")
    assert [name for name in found["order"] if name in {"amdsmi", "torch"}] == ["amdsmi", "torch"]
    assert "amdsmi" in found["loaded"]


def test_the_entry_point_that_images_get_brings_amdsmi_before_torch(tmp_path, monkeypatch):
    for name, content in (("engine", "import torch\n"), ("amdsmi", ""), ("torch", "")):
        (tmp_path / f"{name}.py").write_text(content)
    program = tmp_path / "gfx1100-entry"
    program.write_text((Path(__file__).parents[2] / "templates" / "entry.py").read_text())
    program.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    order = probe.order_of_imports(str(program), "engine")["order"]
    assert order.index("amdsmi") < order.index("torch")


def test_the_whole_answer_is_one_json_document(tmp_path, monkeypatch, capsys):
    ask = {
        "package": "engine",
        "modules": ["engine", "engine.gone"],
        "extensions": ["engine/*.so"],
        "texts": ["engine/__init__.py", "engine/none.py"],
        "ops": {"_C": ["octave_decode"]},
        "folders": ["engine"],
        "first": None,
    }
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/__init__.py").write_text("__version__ = '1.2'\n")
    (tmp_path / "engine/_C.so").write_bytes(b"no library")
    (tmp_path / "ask.json").write_text(json.dumps(ask))
    monkeypatch.setattr(sys, "path", [sys.path[0], str(tmp_path), *sys.path[1:]])
    monkeypatch.setattr(sys, "argv", ["probe.py", str(tmp_path / "ask.json")])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    probe.main()
    monkeypatch.delitem(sys.modules, "engine")
    told = json.loads(capsys.readouterr().out)
    library = f"{tmp_path}/engine/_C.so"
    assert (told["version"], told["site"], told["extensions"]) == ("1.2", str(tmp_path), {"engine/*.so": [library]})
    assert told["modules"] == {"engine": "ok", "engine.gone": "ModuleNotFoundError: No module named 'engine.gone'"}
    assert library in told["loads"][library]
    assert told["texts"]["engine/__init__.py"][f"{tmp_path}/engine/__init__.py"] == {"text": "__version__ = '1.2'\n"}
    assert told["ops"] == {"_C": {"octave_decode": False}}
