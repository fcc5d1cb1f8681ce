import difflib
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
from checkpoint_twin import BASE, PLUS, TINY_MTP, cache, config_text, dumps, linear_rules, packed, tiny, twin
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.checkpoint import fix, inspect
from builder.checkpoint.configs import KEYS, Place
from builder.checkpoint.edits import EXCLUSION, rewritten
from builder.checkpoint.modules import mtp_modules
from builder.checkpoint.rewrite import SUFFIX
from builder.checkpoint.rules import CONTAINER
from builder.checkpoint.tensors import Tensor
from builder.errors import HostError, PatchError, UsageError
from builder.models.base import load_yaml
from builder.patching.header import Header

PATCHES = Path(__file__).resolve().parents[2] / "patches" / "checkpoint"

FILES = ("config.json", "quantization_config.json", "quantize_config.json")
MINUS = {"-:.*mtp.*": {}}
PLAIN, WIDE = {".*mtp.*": {"bits": 16, "data_type": "fp"}}, {".*mtp.*": {"bits": 32}}
MODULES = mtp_modules(Tensor(name, dtype, tuple(shape), "x") for name, (dtype, shape) in TINY_MTP.items())


def rules(path, key="dynamic"):
    value = json.loads(path.read_text())
    return value.get("quantization_config", value)[key]


def changed_lines(old, new):
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[2:]
    return [line for line in lines if line[0] in "+-"]


def contents(folder):
    return {p.name: p.readlink() if p.is_symlink() else p.read_bytes() for p in folder.iterdir()}


def edit(text, dialect="gptq", tensors=("model.layers.0.mlp.down_proj.qweight",)):
    config = json.loads(text)["quantization_config"]
    return rewritten(Place("config.json", KEYS[:1], config, dialect, dialect, text), MODULES, tensors).text


def test_the_field_reports_checkpoint_goes_from_98_rules_to_97(tmp_path):
    folder = twin(tmp_path / "Q")
    done = fix(folder)
    assert done.as_json() == {
        "output": str(tmp_path / "Q-mtp-fixed"),
        "changed": ["config.json", "quantization_config.json"],
        "rules_before": 98,
        "rules_after": 97,
        "verdict": "fine",
    }
    for name in done.changed:
        assert list(rules(done.output / name).items()) == [("-:.*mtp.*", {}), *linear_rules().items()]


def test_the_difference_shows_the_rules_and_nothing_else(tmp_path):
    folder = tiny(
        tmp_path / "m", {"+:.*mtp.*": {"bits": 4}, "-:.*visual.*": {}, "+:.*mtp\\.fc.*": {"bits": 4}, "-:.*attn.*": {}}
    )
    old = (folder / "config.json").read_text()
    new = (fix(folder).output / "config.json").read_text()
    lines = changed_lines(old, new)
    assert [line for line in lines if line[0] == "+"] == ['+      "-:.*mtp.*": {},']
    assert [line.strip(" -") for line in lines if line[0] == "-"] == [
        '"+:.*mtp.*": {', '"bits": 4', "},", '"+:.*mtp\\\\.fc.*": {', '"bits": 4', "},",
    ]  # fmt: skip
    assert '"rope_theta": 1.0E+7' in new
    assert '"damp_percent": 1.00e-2,' in new


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("indent", [None, 1, 4, "\t"])
def test_every_layout_is_kept(indent, newline):
    config = {"é": "\\u00e9", "quantization_config": {**BASE, "dynamic": {**PLUS, "-:.*visual.*": {}}}, "last": [1, 2]}
    text = dumps(config, indent).replace("\n", newline)
    new = edit(text)
    del config["quantization_config"]["dynamic"]
    config["quantization_config"]["dynamic"] = {**MINUS, "-:.*visual.*": {}}
    assert new == dumps(config, indent).replace("\n", newline)


def test_a_text_without_spaces_stays_one():
    text = json.dumps({"quantization_config": {**BASE, "dynamic": PLUS}}, separators=(",", ":"))
    assert '"dynamic":{"-:.*mtp.*":{}}}' in edit(text)


@pytest.mark.parametrize("dynamic", [..., None, {}])
def test_rules_that_are_absent_null_or_empty_become_the_exclusion(tmp_path, dynamic):
    folder = tiny(tmp_path / "m", dynamic)
    output = fix(folder).output
    assert rules(output / "config.json") == MINUS
    lines = changed_lines((folder / "config.json").read_text(), (output / "config.json").read_text())
    assert all("dynamic" in line for line in lines)


def test_the_exclusion_moves_to_the_front_with_its_settings():
    text = config_text({**PLUS, "-:.*visual.*": {}, "-:.*mtp.*": {"bits": 16, "group_size": 128}})
    new = json.loads(edit(text))["quantization_config"]["dynamic"]
    assert list(new.items()) == [("-:.*mtp.*", {"bits": 16, "group_size": 128}), ("-:.*visual.*", {})]


def test_a_positive_rule_about_more_than_mtp_stays_behind_the_exclusion():
    text = config_text({"+:.*(mtp|mlp).*": {"bits": 8}, "+:.*down_proj.*": {"bits": 8}, "+:mtp.*": {}})
    new = json.loads(edit(text))["quantization_config"]["dynamic"]
    assert list(new) == ["-:.*mtp.*", "+:.*(mtp|mlp).*", "+:.*down_proj.*"]


def test_an_expression_that_is_none_gives_way():
    assert json.loads(edit(config_text({"-:*mtp*": {}})))["quantization_config"]["dynamic"] == MINUS


def test_other_exclusions_of_mtp_stay():
    new = json.loads(edit(config_text({"-:.*mtp\\.fc.*": {}, ".*mtp.*": {}})))["quantization_config"]["dynamic"]
    assert list(new) == ["-:.*mtp.*", "-:.*mtp\\.fc.*"]


SIGNS, PIECES = (
    ["+:", "-:", ""],
    [".*mtp.*", "mtp\\.fc", ".*visual.*", ".*down_proj", ".*", "*mtp*", "-:", "ü\\.\u2028"],
)
keys = st.tuples(st.sampled_from(SIGNS), st.sampled_from(PIECES)).map("".join)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(keys, st.dictionaries(st.just("bits"), st.just(8)), max_size=6),
    st.dictionaries(st.text(max_size=4), values, max_size=4),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
def test_any_rules_in_any_file_are_rewritten_and_the_rest_keeps_order_and_values(dynamic, others, indent, ascii_only):
    value = {**others, "quantization_config": {**BASE, **others, "dynamic": dynamic, "z": 1}, "z": [[], {}]}
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    new = json.loads(edit(text))
    after = list(new["quantization_config"].pop("dynamic").items())
    del value["quantization_config"]["dynamic"]
    assert json.dumps(new) == json.dumps(value)  # the order too
    assert after[0][0] == "-:.*mtp.*"
    assert after[1:] == [item for item in dynamic.items() if item in after[1:]]
    assert all(rule.startswith("-:") or "mtp" not in rule for rule, _ in after)
    assert {rule for rule, _ in after} >= {rule for rule in dynamic if "mtp" not in rule}


@pytest.mark.parametrize(
    ("dialect", "config", "key", "expected"),
    [
        ("compressed-tensors", {"ignore": ["lm_head", "mtp.fc"]}, "ignore", ["re:.*mtp.*", "lm_head", "mtp.fc"]),
        ("compressed-tensors", {"ignore": ["re:*mtp*", "re:.*x"]}, "ignore", ["re:.*mtp.*", "re:.*x"]),
        ("compressed-tensors", {"ignore": []}, "ignore", ["re:.*mtp.*"]),
        ("compressed-tensors", {"ignore": None}, "ignore", ["re:.*mtp.*"]),
        ("compressed-tensors", {}, "ignore", ["re:.*mtp.*"]),
        ("auto-round", {}, "extra_config", PLAIN),
        ("auto-round", {"extra_config": {".*mtp.*": {"bits": 4}}}, "extra_config", PLAIN),
        ("auto-round", {"extra_config": {"mtp.fc": {"bits": 4}, **WIDE}}, "extra_config", WIDE),
        (
            "auto-round",
            {"block_name_to_quantize": ["model.layers", "mtp.layers"], "extra_config": {"a": {"bits": 8}}},
            "extra_config",
            {**PLAIN, "a": {"bits": 8}},
        ),
        (
            "auto-round",
            {"extra_config": {"mtp.fc": {"bits": 4}, "mtp.layers.0.mlp.o": {"bits": 16}, ".*(mtp|mlp).*": {"bits": 8}}},
            "extra_config",
            {
                **PLAIN,
                "mtp.layers.0.mlp.o": {"bits": 16},
                ".*(mtp|mlp).*": {"bits": 8},
            },
        ),
    ],
)  # fmt: skip
def test_each_dialect_has_its_own_fix(tmp_path, dialect, config, key, expected):
    config = {"quant_method": dialect, "bits": 4, "config_groups": {"g": {"targets": ["Linear"]}}, **config}
    folder = tiny(tmp_path / "m", config=dumps({"quantization_config": config}))
    done = fix(folder)
    assert done.verdict == "fine"
    value = rules(done.output / "config.json", key)
    assert json.dumps(value) == json.dumps(expected)


def test_all_files_are_rewritten_together_and_other_differences_stay(tmp_path):
    folder = tiny(tmp_path / "m", MINUS)
    (folder / "quantize_config.json").write_text(dumps({**BASE, "group_size": 128, "dynamic": PLUS}))
    (folder / "quantization_config.json").write_text(dumps({**BASE}))
    done = fix(folder)
    assert done.changed == ("quantization_config.json", "quantize_config.json")
    assert [rules(done.output / name) for name in FILES] == [MINUS] * 3
    assert json.loads((done.output / "quantize_config.json").read_text())["group_size"] == 128


def test_a_second_file_of_another_method_around_the_same_rules_is_rewritten_too(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    (folder / "quantize_config.json").write_text(dumps({**BASE, "quant_method": "intel/auto-round", "dynamic": PLUS}))
    (folder / "quantization_config.json").write_text(dumps({"quant_method": "awq", "bits": 4}))
    done = fix(folder)
    assert done.changed == ("config.json", "quantize_config.json")
    assert rules(done.output / "quantize_config.json") == MINUS


def test_two_configs_in_one_file_are_both_rewritten(tmp_path):
    both = {"quantization_config": {**BASE, "dynamic": PLUS}}
    done = fix(tiny(tmp_path / "m", config=dumps({**both, "text_config": both})))
    new = json.loads((done.output / "config.json").read_text())
    assert new["quantization_config"]["dynamic"] == new["text_config"]["quantization_config"]["dynamic"] == MINUS


def test_rules_under_text_config_are_rewritten_there(tmp_path):
    done = fix(tiny(tmp_path / "m", config=dumps({"text_config": {"quantization_config": {**BASE, "dynamic": None}}})))
    assert (
        json.loads((done.output / "config.json").read_text())["text_config"]["quantization_config"]["dynamic"] == MINUS
    )


@pytest.mark.parametrize("in_place", [True, False])
def test_packed_mtp_is_refused_and_nothing_is_written(tmp_path, in_place):
    folder = tiny(tmp_path / "m", PLUS, mtp={**TINY_MTP, **packed("mtp.layers.0.mlp.down_proj", 64, 64)})
    before = contents(folder)
    with pytest.raises(PatchError, match="mixed"):
        fix(folder, in_place=in_place)
    assert contents(folder) == before
    assert list(tmp_path.iterdir()) == [folder]


def test_an_unknown_method_is_refused_with_its_name(tmp_path):
    folder = tiny(tmp_path / "m", config=dumps({"quantization_config": {"quant_method": "awq", "bits": 4}}))
    with pytest.raises(PatchError, match="'awq'"):
        fix(folder)


@pytest.mark.parametrize("dynamic", [MINUS, {"-:.*visual.*": {}, "-:.*mtp.*": {}}])
def test_a_checkpoint_that_loads_is_left_alone(tmp_path, dynamic):
    folder = tiny(tmp_path / "m", dynamic)
    done = fix(folder)
    assert (done.output, done.changed, done.verdict) == (folder, (), "fine")
    assert list(tmp_path.iterdir()) == [folder]


def test_rules_that_still_stop_an_engine_are_refused(tmp_path):
    differs = {"mtp.layers.0.mlp.up_proj": {"bits": 16, "group_size": 7}}
    config = {"quant_method": "auto-round", "bits": 4, "extra_config": differs}
    with pytest.raises(PatchError, match="parts of the layer differ"):
        fix(tiny(tmp_path / "m", config=dumps({"quantization_config": config})))


def test_a_checkpoint_without_mtp_is_left_alone(tmp_path):
    assert fix(tiny(tmp_path / "m", PLUS, mtp={})).verdict == "no-mtp"


def test_the_new_folder_has_real_configs_and_relative_links_to_the_rest(tmp_path):
    folder = tiny(tmp_path / "m", PLUS, files=FILES[1:])
    (folder / "original").mkdir()
    (folder / ".cache").mkdir()
    output = fix(folder).output
    assert output == tmp_path / f"m{SUFFIX}"
    links = {path.name: str(path.readlink()) for path in output.iterdir() if path.is_symlink()}
    names = {
        "model.safetensors",
        "model_extra_tensors.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "original",
    }
    assert links == {name: f"../m/{name}" for name in names}
    assert {path.name for path in output.iterdir()} == names | set(FILES)
    shutil.move(tmp_path, tmp_path.parent / "elsewhere")
    assert inspect(tmp_path.parent / "elsewhere" / output.name).verdict == "fine"


def test_the_source_is_not_touched(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    before = contents(folder)
    fix(folder)
    assert contents(folder) == before


def test_a_second_run_changes_nothing(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    first = fix(folder)
    before = {path: path.lstat().st_mtime_ns for path in first.output.iterdir()}
    again = fix(folder)
    assert (again.output, again.changed, again.verdict) == (first.output, (), "fine")
    assert (again.rules_before, again.rules_after) == (2, 1)
    assert {path: path.lstat().st_mtime_ns for path in first.output.iterdir()} == before
    assert fix(first.output).changed == ()


def test_another_folder_in_the_way_is_never_overwritten(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        fix(folder, output=tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_an_older_fix_in_the_way_is_told_by_the_file_that_differs(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    fix(folder)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("Qwen3_5", "Qwen3_6"))
    with pytest.raises(UsageError, match=r"config\.json is another"):
        fix(folder)


@pytest.mark.parametrize("output", [".", "inner", "inner/deep"])
def test_an_output_inside_the_checkpoint_is_refused(tmp_path, output):
    folder = tiny(tmp_path / "m", PLUS)
    with pytest.raises(UsageError, match="inside the checkpoint"):
        fix(folder, output=folder / output)


def test_an_output_that_is_a_file_is_refused(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="no folder"):
        fix(folder, output=tmp_path / "out")


def test_in_place_with_an_output_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no output folder"):
        fix(tiny(tmp_path / "m", PLUS), output=tmp_path / "out", in_place=True)


def test_a_folder_mounted_into_a_container_has_no_folder_beside_it(tmp_path, monkeypatch):
    folder = tiny(tmp_path / "m", PLUS)
    monkeypatch.setattr(os.path, "ismount", lambda path: path == folder)
    monkeypatch.setattr("builder.checkpoint.rewrite.IN_CONTAINER", [tmp_path])
    with pytest.raises(UsageError, match="mount of its own") as caught:
        fix(folder)
    assert "--in-place" in caught.value.hint
    assert fix(folder, output=tmp_path / "out").verdict == "fine"


def test_another_file_system_gets_absolute_links(tmp_path):
    elsewhere = tmp_path / "shm"
    elsewhere.symlink_to(f"/dev/shm/checkpoint-test-{os.getpid()}")
    elsewhere.readlink().mkdir()
    try:
        folder = tiny(tmp_path / "m", PLUS)
        assert elsewhere.stat().st_dev != folder.stat().st_dev
        output = fix(folder, output=elsewhere / "out").output
        assert (output / "model.safetensors").readlink() == folder / "model.safetensors"
        assert inspect(output).verdict == "fine"
        assert fix(folder, output=elsewhere / "copy", link="copy").verdict == "fine"
        with pytest.raises(HostError) as caught:
            fix(folder, output=elsewhere / "hard", link="hard")
        assert "--copy" in caught.value.hint
        assert not (elsewhere / "hard").exists()
    finally:
        shutil.rmtree(elsewhere.readlink())


@pytest.mark.parametrize(("link", "same"), [("hard", True), ("copy", False)])
def test_hard_links_and_copies_by_choice(tmp_path, link, same):
    folder = tiny(tmp_path / "m", PLUS)
    (folder / "assets").mkdir()
    (folder / "assets" / "a.txt").write_text("a")
    output = fix(folder, link=link).output
    for name in ("model.safetensors", "assets/a.txt"):
        assert not (output / name).is_symlink()
        assert (output / name).samefile(folder / name) is same
        assert (output / name).read_bytes() == (folder / name).read_bytes()
    assert fix(folder, link=link).changed == ()


def test_a_copy_that_does_not_fit_is_refused_before_it_begins(tmp_path, monkeypatch):
    folder = tiny(tmp_path / "m", PLUS)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(HostError, match="1 bytes free"):
        fix(folder, link="copy")
    assert list(tmp_path.iterdir()) == [folder]


def test_a_full_disk_is_told_and_leaves_no_output(tmp_path, monkeypatch):
    folder = tiny(tmp_path / "m", PLUS)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    before = contents(folder)
    for in_place in (False, True):
        with pytest.raises(HostError, match=r"/[^/]*\.partial/config\.json\S*: No space left"):
            fix(folder, in_place=in_place)
        assert contents(folder) == before
        assert list(tmp_path.iterdir()) == [folder]


def test_the_name_of_the_folder_may_be_a_dot_or_a_link(tmp_path, monkeypatch):
    folder = tiny(tmp_path / "m", PLUS)
    (tmp_path / "current").symlink_to("m")
    assert fix(tmp_path / "current").output == tmp_path / f"current{SUFFIX}"
    monkeypatch.chdir(folder)
    assert fix(Path()).output == tmp_path / f"m{SUFFIX}"


def test_a_link_that_leads_nowhere_stays_one(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    (folder / "README.md").symlink_to("../blobs/gone")
    assert fix(folder).verdict == "fine"


def test_a_cached_revision_is_read_through_its_links_and_the_blobs_stay(tmp_path):
    revision, other = cache(tmp_path)
    blobs, links = contents(tmp_path / "blobs"), contents(other)
    output = fix(revision).output
    assert (output.parent, output.name) == (revision.parent, f"aaa{SUFFIX}")
    assert str((output / "model.safetensors").readlink()) == "../../blobs/blob-of-model.safetensors"
    assert not (output / "config.json").is_symlink()
    assert (contents(tmp_path / "blobs"), contents(other)) == (blobs, links)
    assert (inspect(output).verdict, inspect(revision).verdict, inspect(other).verdict) == (
        "fine",
        "rewrite",
        "rewrite",
    )


def test_permissions_follow_the_originals(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    (folder / "config.json").chmod(0o640)
    folder.chmod(0o750)
    output = fix(folder).output
    assert (output.stat().st_mode & 0o777, (output / "config.json").stat().st_mode & 0o777) == (0o750, 0o640)


class CheckpointPatch(Header):
    kind: Literal["checkpoint"]
    rules: dict[str, dict[str, Any]]


def test_the_patch_set_describes_the_rules_of_the_code():
    (name,) = [line for line in (PATCHES / "series").read_text().splitlines() if line and line[0] != "#"]
    patch = load_yaml(CheckpointPatch, PATCHES / name)
    assert patch.rules == {
        dialect: {"key": CONTAINER[dialect], "first": rule} | ({} if settings is None else {"settings": settings})
        for dialect, (rule, settings) in EXCLUSION.items()
    }


def test_the_proof_of_the_patch_set_stands_in_what_the_fix_writes(tmp_path):
    patch = load_yaml(CheckpointPatch, PATCHES / "mtp-rules.yaml")
    output = fix(tiny(tmp_path / "m", PLUS)).output
    (proof,) = patch.proof
    assert (output / proof.file).read_text().count(proof.text) == proof.count
