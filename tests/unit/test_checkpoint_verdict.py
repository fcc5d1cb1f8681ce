import json
import signal

import pytest
from checkpoint_twin import BASE, MTP, PLUS, TINY_MTP, config_text, dumps, packed, tiny, write_shard

from builder.checkpoint import inspect, rules
from builder.errors import UsageError

MINUS = {"-:.*mtp.*": {}}
LINEAR = sorted(name.removesuffix(".weight") for name in MTP if "proj" in name or ".fc." in name)
ROW = "mtp.layers.0.mlp.down_proj"


def four_bit(*modules):
    """Return the MTP tensors with some modules packed."""
    tensors = {name: spec for name, spec in TINY_MTP.items() if name.removesuffix(".weight") not in modules}
    for module in modules:
        tensors |= packed(module, 64, 64)
    return tensors


def quantized(**config):
    """Return a config.json with any quantisation config."""
    return dumps({"architectures": ["X"], "quantization_config": config})


def made(folder, engine, verdict=None):
    found = inspect(folder)
    assert verdict in (None, found.verdict)
    return {entry["module"]: entry["engines"][engine] for entry in found.as_json()["mtp"]}


def test_plain_tensors_under_positive_rules_need_the_rewrite(tmp_path):
    found = inspect(tiny(tmp_path / "m", PLUS))
    assert found.verdict == "rewrite"
    assert "BF16" in found.reason
    assert "'+:.*mtp.*'" in found.reason


def test_the_document_names_every_mtp_tensor_with_shard_and_dtype(tmp_path):
    document = inspect(tiny(tmp_path / "m", PLUS, files=("quantization_config.json",))).as_json()
    assert document["quant_method"] == "gptq"
    assert document["files"] == ["config.json", "quantization_config.json"]
    assert document["agree"] is True
    assert {tensor["name"] for tensor in document["tensors"]} == set(MTP)
    assert {(tensor["shard"], tensor["dtype"]) for tensor in document["tensors"]} == {
        ("model_extra_tensors.safetensors", "BF16")
    }
    assert [entry["module"] for entry in document["mtp"]] == sorted(name.removesuffix(".weight") for name in MTP)
    assert {(entry["dtype"], entry["bits"]) for entry in document["mtp"]} == {("BF16", 16)}
    assert document["fits"] == {"vllm": False, "sglang": False}
    assert json.loads(json.dumps(document)) == document


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "gptq", "bits": 4, "dynamic": {"+:(([a-z0-9._])+)+!": {"bits": 8}}},
        {"quant_method": "compressed-tensors", "ignore": ["re:(([a-z0-9._])+)+!"], "config_groups": {}},
        {"quant_method": "auto-round", "bits": 4, "extra_config": {"(([a-z0-9._])+)+!": {"bits": 16}}},
    ],
    ids=["gptq", "compressed-tensors", "auto-round"],
)
def test_a_rule_that_takes_for_ever_is_named_and_not_waited_for(tmp_path, monkeypatch, config):
    monkeypatch.setattr(rules, "MATCH_SECONDS", 0.05)
    before = signal.getsignal(signal.SIGALRM)
    folder = tiny(tmp_path / "m", config=quantized(**config))
    with pytest.raises(UsageError, match=r"the rule '(\+:|re:)?\(\(\[a-z0-9\._\]\)\+\)\+!' takes longer than 0.05 s"):
        inspect(folder)
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == (before, (0.0, 0.0))


def test_only_matrices_are_what_engines_would_quantize(tmp_path):
    vllm = made(tiny(tmp_path / "m", PLUS), "vllm")
    assert [module for module, builds in vllm.items() if builds == "quantized"] == LINEAR


def test_plain_tensors_under_the_exclusion_are_fine(tmp_path):
    assert inspect(tiny(tmp_path / "m", MINUS)).verdict == "fine"


def test_the_official_rules_with_unsigned_entries_are_fine(tmp_path):
    rules = {
        "lm_head": {},
        "model.language_model.embed_tokens": {},
        "-:.*attn.*": {},
        "-:.*mtp.*": {},
        "-:.*visual.*": {},
    }
    assert inspect(tiny(tmp_path / "m", rules)).verdict == "fine"


@pytest.mark.parametrize(
    "rules",
    [
        {**PLUS, **MINUS},  # the exclusion after the rule that wins
        {"-:.*mtp\\.layers.*": {}},  # misses fc
        {"-:*mtp*": {}},  # no expression
        {"-:.*MTP.*": {}},
        {"-:layers.*": {}},  # anchored
        {"-:.*mtp\\.fc.*": {}},  # the layers, for SGLang
        {"-:.*q_proj": {}, "-:.*mtp\\.fc": {}, "-:.*mlp.*": {}},  # the fused name is another
        {}, None, ...,
    ],
)  # fmt: skip
def test_every_half_exclusion_needs_the_rewrite(tmp_path, rules):
    assert inspect(tiny(tmp_path / "m", rules)).verdict == "rewrite"


def test_packed_mtp_must_not_be_rewritten(tmp_path):
    found = inspect(tiny(tmp_path / "m", PLUS, mtp=four_bit(*LINEAR)))
    assert found.verdict == "refuse"
    entry = next(entry for entry in found.as_json()["mtp"] if entry["module"] == ROW)
    assert (entry["dtype"], entry["bits"], entry["stored"]) == ("I32", 4, "packed")


def test_mixed_mtp_must_not_be_rewritten_and_both_kinds_are_named(tmp_path):
    found = inspect(tiny(tmp_path / "m", PLUS, mtp=four_bit(ROW)))
    assert found.verdict == "refuse"
    assert ROW in found.reason
    assert "BF16" in found.reason


def test_one_module_with_both_a_weight_and_a_qweight_must_not_be_rewritten(tmp_path):
    found = inspect(tiny(tmp_path / "m", PLUS, mtp={**TINY_MTP, f"{ROW}.qweight": ("I32", [2, 2])}))
    assert found.verdict == "refuse"
    assert "mixed" in found.reason


@pytest.mark.parametrize(
    "tensors",
    [
        {f"{ROW}.weight": ("F8_E4M3", [2, 2]), f"{ROW}.weight_scale_inv": ("F32", [1, 1])},
        {f"{ROW}.weight_packed": ("I32", [2, 2]), f"{ROW}.weight_shape": ("I64", [2])},
        {"mtp.layers.0.mlp.experts.up_blocks": ("U8", [2, 2]), "mtp.layers.0.mlp.experts.up_scales": ("U8", [2])},
        {f"{ROW}.scales": ("F16", [2, 2])},
    ],
)  # fmt: skip
def test_every_packed_form_is_seen(tmp_path, tensors):
    assert inspect(tiny(tmp_path / "m", PLUS, mtp=tensors)).verdict == "refuse"


def test_packed_mtp_that_engines_build_packed_is_said_to_work(tmp_path):
    found = inspect(
        tiny(tmp_path / "m", {"-:.*mtp\\.fc$": {}, **PLUS}, mtp=four_bit(*[m for m in LINEAR if m != "mtp.fc"]))
    )
    assert found.as_json()["fits"] == {"vllm": False, "sglang": True}  # vLLM's drafter takes the layers for plain
    found = inspect(
        tiny(tmp_path / "n", {"-:.*\\.fc$": {}, **PLUS}, mtp=four_bit(*[m for m in LINEAR if m != "mtp.fc"]))
    )
    assert found.as_json()["fits"] == {"vllm": True, "sglang": True}
    assert "both engines build each as it is stored" in found.reason


def test_no_mtp_is_its_own_verdict_and_a_promise_is_told(tmp_path):
    config = dumps({"text_config": {"mtp_num_hidden_layers": 1}, "quantization_config": {**BASE, "dynamic": PLUS}})
    found = inspect(tiny(tmp_path / "m", mtp={}, config=config))
    assert found.verdict == "no-mtp"
    assert "mtp_num_hidden_layers is 1" in found.reason


def test_a_draft_layer_under_a_number_is_unknown(tmp_path):
    config = dumps(
        {"num_hidden_layers": 1, "num_nextn_predict_layers": 1, "quantization_config": {**BASE, "dynamic": {}}}
    )
    found = inspect(tiny(tmp_path / "m", mtp={"model.layers.1.eh_proj.weight": ("BF16", [2, 2])}, config=config))
    assert found.verdict == "unknown"
    assert "layer 1" in found.reason


def test_a_folder_without_safetensors_is_unknown(tmp_path):
    (tmp_path / "config.json").write_text(config_text(PLUS))
    assert inspect(tmp_path).verdict == "unknown"


def test_an_unknown_method_is_printed(tmp_path):
    found = inspect(tiny(tmp_path / "m", config=quantized(quant_method="awq", bits=4)))
    assert found.verdict == "unknown"
    assert "'awq'" in found.reason
    assert {builds for entry in found.as_json()["mtp"] for builds in entry["engines"].values()} == {
        "unknown",
        "unquantized",
    }


def test_a_model_that_is_not_quantized_is_fine(tmp_path):
    found = inspect(tiny(tmp_path / "m", config="{}"))
    assert (found.verdict, found.as_json()["quant_method"]) == ("fine", None)


def test_an_expression_that_stops_engines_is_not_ours_to_mend(tmp_path):
    found = inspect(tiny(tmp_path / "m", {"-:*visual*": {}, **PLUS}))
    assert found.verdict == "refuse"
    assert "'-:*visual*'" in found.reason


def test_files_that_disagree_are_told_field_by_field(tmp_path):
    folder = tiny(tmp_path / "m", MINUS)
    (folder / "quantize_config.json").write_text(dumps({**BASE, "group_size": 128, "dynamic": PLUS}))
    found = inspect(folder)
    assert found.verdict == "rewrite"
    assert "quantize_config.json" in found.reason
    assert found.as_json()["agree"] is False
    assert any(
        "group_size differs: config.json quantization_config has 64, quantize_config.json has 128" in n
        for n in found.notes
    )
    assert any("the rules differ" in note for note in found.notes)


def test_rules_under_text_config_are_read(tmp_path):
    config = dumps({"text_config": {"quantization_config": {**BASE, "dynamic": {"+:.*mtp.*": {}, **MINUS}}}})
    found = inspect(tiny(tmp_path / "m", config=config))
    assert found.as_json()["places"][0]["at"] == ["text_config", "quantization_config"]
    assert made(tmp_path / "m", "vllm", "rewrite")[ROW] == "quantized"


def test_only_a_second_file_with_rules_is_read(tmp_path):
    folder = tiny(tmp_path / "m", PLUS, config="{}", files=("quantize_config.json",))
    assert inspect(folder).as_json()["files"] == ["quantize_config.json"]
    assert inspect(folder).verdict == "rewrite"


def test_autogptqs_file_without_a_method_is_gptq(tmp_path):
    folder = tiny(tmp_path / "m", config="{}")
    (folder / "quantize_config.json").write_text(dumps({"bits": 4, "group_size": 128, "desc_act": False}))
    assert inspect(folder).as_json()["quant_method"] == "gptq"


@pytest.mark.parametrize(
    ("config", "verdict"),
    [
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["lm_head"],
                "config_groups": {"a": {"targets": ["Linear"]}},
            },
            "rewrite",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["re:.*mtp.*"],
                "config_groups": {"a": {"targets": ["Linear"]}},
            },
            "fine",
        ),
        (
            {"quant_method": "compressed-tensors", "dynamic": MINUS, "config_groups": {"a": {"targets": ["Linear"]}}},
            "rewrite",
        ),
        ({"quant_method": "auto-round", "bits": 4}, "rewrite"),
        ({"quant_method": "auto-round", "bits": 4, "dynamic": MINUS}, "rewrite"),
        ({"quant_method": "auto-round", "bits": 4, "block_name_to_quantize": ["model.language_model.layers"]}, "fine"),
        ({"quant_method": "auto-round", "bits": 4, "block_name_to_quantize": "model.layers,mtp.layers"}, "rewrite"),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": {".*mtp.*": {"bits": 16}}}, "fine"),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": {"mtp.fc": {"bits": 16}}}, "rewrite"),
    ],
)
def test_each_dialect_is_judged_by_its_own_keys(tmp_path, config, verdict):
    assert inspect(tiny(tmp_path / "m", config=quantized(**config))).verdict == verdict


@pytest.mark.parametrize(
    ("method", "key", "value"),
    [
        ("gptq", "dynamic", ["-:.*mtp.*"]),
        ("gptq", "dynamic", "x"),
        ("compressed-tensors", "ignore", {"a": 1}),
        ("compressed-tensors", "ignore", [1]),
        ("compressed-tensors", "config_groups", []),
        ("auto-round", "extra_config", {"a": 1}),
        ("auto-round", "block_name_to_quantize", [1]),
        ("auto-round", "block_name_to_quantize", {}),
    ],
)
def test_rules_of_a_wrong_shape_are_refused_and_named(tmp_path, method, key, value):
    with pytest.raises(UsageError, match=f"{key} is"):
        inspect(tiny(tmp_path / "m", config=quantized(quant_method=method, bits=4, **{key: value})))


@pytest.mark.parametrize("value", ["gptq", []])
@pytest.mark.parametrize("file", ["config.json", "quantization_config.json"])
def test_a_quantization_config_that_is_no_object_is_refused_and_named(tmp_path, file, value):
    folder = tiny(tmp_path / "m", PLUS)
    (folder / file).write_text(json.dumps({"architectures": ["X"], "quantization_config": value}))
    with pytest.raises(UsageError, match=f"{file} quantization_config"):
        inspect(folder)


def test_routed_experts_are_one_layer_and_gates_are_never_quantized(tmp_path):
    tensors = {
        "mtp.layers.0.mlp.experts.gate_up_proj": ("BF16", [2, 2, 2]),
        "mtp.layers.0.mlp.experts.down_proj": ("BF16", [2, 2, 2]),
        "mtp.layers.0.mlp.gate.weight": ("BF16", [2, 2]),
        "mtp.layers.0.mlp.shared_expert_gate.weight": ("BF16", [1, 2]),
    }
    vllm = made(tiny(tmp_path / "m", PLUS, mtp=tensors), "vllm", "rewrite")
    assert vllm == {
        "mtp.layers.0.mlp.experts": "quantized",
        "mtp.layers.0.mlp.gate": "unquantized",
        "mtp.layers.0.mlp.shared_expert_gate": "unquantized",
    }


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is no folder"):
        inspect(tmp_path / "gone")
    with pytest.raises(UsageError, match=r"no config\.json"):
        inspect(tmp_path)


def test_the_root_of_a_cache_is_answered_with_its_snapshot(tmp_path):
    (tmp_path / "snapshots" / "abc").mkdir(parents=True)
    with pytest.raises(UsageError) as caught:
        inspect(tmp_path)
    assert caught.value.hint.endswith("snapshots/abc")


def test_shapes_that_lie_about_bits_do_not_break_the_answer(tmp_path):
    tensors = {f"{ROW}.qweight": ("I32", []), f"{ROW}.g_idx": ("I32", [0])}
    write_shard(tiny(tmp_path / "m", PLUS, mtp={}, index=False) / "x.safetensors", tensors)
    assert inspect(tmp_path / "m").as_json()["mtp"][0]["bits"] == 4
