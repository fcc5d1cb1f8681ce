import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_twin import PLUS, TINY_MTP, packed, tiny, twin

import builder
from builder.checkpoint.__main__ import main

PACKAGE = Path(builder.__file__).parent
MEASURE = """
import sys, time
from builder.checkpoint.__main__ import main
def read():
    return int(open("/proc/self/io").readline().split()[1])
before, begun = read(), time.perf_counter()
code = main(sys.argv[1:])
seconds, count = time.perf_counter() - begun, read() - before
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(code, seconds, count, peak * 1024, file=sys.stderr)
"""


@pytest.fixture
def bare(tmp_path):
    """The few files of the fixer, as an engine image carries them."""
    target = tmp_path / "image" / "builder"
    shutil.copytree(PACKAGE / "checkpoint", target / "checkpoint", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "errors.py", "files.py"):
        shutil.copy(PACKAGE / name, target)
    return target.parent


def run(bare, *arguments):
    """Run Python without any installed package."""
    command = [sys.executable, "-S", *map(str, arguments)]
    return subprocess.run(
        command, cwd=bare, env={"PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, check=False
    )


def test_the_fixer_runs_with_the_standard_library_alone(bare, tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    done = run(bare, "-m", "builder.checkpoint", "fix", folder, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["output"] == str(tmp_path / "m-mtp-fixed")


def test_a_folder_alone_is_inspected(bare, tmp_path):
    done = run(bare, "-m", "builder.checkpoint", tiny(tmp_path / "m", PLUS))
    assert done.returncode == 0
    assert done.stdout.startswith("rewrite: ")
    assert (
        "mtp.fc: BF16 in model_extra_tensors.safetensors, vllm builds quantized, sglang builds unquantized"
        in done.stdout
    )
    assert done.stdout.endswith(f"next: checkpoint fix {tmp_path / 'm'}\n")


@pytest.mark.parametrize("path", sorted((PACKAGE / "checkpoint").glob("*.py")), ids=lambda path: path.name)
def test_the_fixer_needs_no_newer_python_than_3_10(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names}
    assert all(name in ("builder.errors", "builder.files") or name.startswith("builder.checkpoint") for name in ours)


def test_the_field_reports_checkpoint_costs_little(bare, tmp_path):
    folder = twin(tmp_path / "Q")
    assert sum(path.stat().st_size for path in folder.iterdir()) > 19_000_000_000
    runs = [run(bare, "-c", MEASURE, "inspect", folder, "--json") for _ in range(3)]
    assert json.loads(runs[0].stdout)["verdict"] == "rewrite"
    figures = [tuple(map(float, each.stderr.split())) for each in runs]
    assert min(seconds for _, seconds, _, _ in figures) < 0.3
    assert max(count for _, _, count, _ in figures) < 1_000_000
    assert max(peak for _, _, _, peak in figures) < 60_000_000


def test_in_place_and_undo_by_the_command_line(tmp_path, capsys):
    folder = tiny(tmp_path / "m", PLUS)
    before = (folder / "config.json").read_bytes()
    assert main(["fix", str(folder), "--in-place"]) == 0
    assert capsys.readouterr().out == f"fine: {folder}, changed config.json, 2 rules before, 1 now\n"
    assert main(["fix", str(folder), "--undo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "rewrite"
    assert (folder / "config.json").read_bytes() == before


def test_people_are_told_every_module_and_every_note(tmp_path, capsys):
    folder = tiny(tmp_path / "m", {"-:.*mtp.*": {}})
    (folder / "quantize_config.json").write_text('{"quant_method": "gptq", "bits": 8}')
    assert main([str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "rewrite: all 15 MTP modules are BF16, but under the rules of quantize_config.json vLLM builds "
    )
    assert "  config.json quantization_config: 1 rules, gptq\n  quantize_config.json: 0 rules, gptq\n" in out
    assert "note: bits differs: config.json quantization_config has 4, quantize_config.json has 8" in out
    assert out.endswith(f"next: checkpoint fix {folder}\n")


@pytest.mark.parametrize("choice", ["--hard-links", "--copy"])
def test_what_stands_for_the_weights_is_a_choice(tmp_path, choice):
    folder = tiny(tmp_path / "m", PLUS)
    assert main(["fix", str(folder), "-o", str(tmp_path / "out"), choice]) == 0
    assert (tmp_path / "out" / "model.safetensors").samefile(folder / "model.safetensors") is (choice == "--hard-links")


def test_a_refusal_is_told_with_its_exit_code(tmp_path, capsys):
    folder = tiny(tmp_path / "m", PLUS, mtp={**TINY_MTP, **packed("mtp.layers.0.mlp.down_proj", 64, 64)})
    assert main(["fix", str(folder), "--json"]) == 5
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["class"] == "PatchError"
    assert err.startswith("error: ")
    assert "hint: nothing was written" in err


def test_inspect_takes_no_option_that_writes(tmp_path, capsys):
    assert main(["inspect", str(tmp_path), "--in-place"]) == 2
    assert "changes nothing" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
