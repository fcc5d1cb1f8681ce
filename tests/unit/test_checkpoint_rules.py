import re

import pytest
from checkpoint_twin import BASE, PLUS, linear_rules
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.checkpoint.modules import layer_of
from builder.checkpoint.rules import treatment

MLP, QKV, FC, EXPERTS = (
    "mtp.layers.0.mlp.down_proj",
    "mtp.layers.0.self_attn.qkv_proj",
    "mtp.fc",
    "mtp.layers.0.mlp.experts",
)
GROUPS = {"config_groups": {"group_0": {"targets": ["Linear"]}}}


def builds(engine, dialect, config, layer, **more):
    return treatment(engine, dialect, config, layer, **more).builds


def gptq(dynamic, layer, engine="sglang", **more):
    return builds(engine, "gptq", {**BASE, "dynamic": dynamic}, layer, **more)


def test_the_first_matching_rule_wins():
    assert gptq({"-:.*mtp.*": {}, "+:.*mtp.*": {}}, MLP) == "unquantized"
    assert gptq({"+:.*mtp.*": {}, "-:.*mtp.*": {}}, MLP) == "quantized"


def test_a_rule_without_a_sign_is_positive():
    assert gptq({".*mtp.*": {}, "-:.*mtp.*": {}}, MLP) == "quantized"


def test_a_rule_is_anchored_at_the_start_only():
    assert gptq({"-:mtp": {}}, MLP) == "unquantized"
    assert gptq({"-:layers": {}}, MLP) == "quantized"
    assert gptq({"-:mtp\\.layers\\.0": {}}, MLP) == "unquantized"


def test_without_a_match_the_base_settings_quantize():
    assert gptq({}, MLP) == gptq(linear_rules(), MLP) == "quantized"


def test_a_layers_rule_misses_fc():
    assert gptq({"-:.*mtp\\.layers.*": {}}, FC, "vllm") == "quantized"
    assert gptq({"-:.*mtp\\.layers.*": {}}, MLP, "vllm") == "unquantized"


def test_sglang_never_quantizes_fc():
    assert gptq(PLUS, FC) == "unquantized"
    assert gptq(PLUS, FC, "vllm") == "quantized"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_is_no_regular_expression_stops_the_engine_that_reaches_it(engine):
    assert gptq({"-:*mtp*": {}}, FC if engine == "vllm" else MLP, engine) == "error"
    assert gptq({"-:.*mtp.*": {}, "-:*mtp*": {}}, MLP, engine) == "unquantized"


def test_an_expression_that_overflows_is_none_either():
    assert gptq({"-:m{99999999999999999999}": {}}, MLP) == "error"


def test_vllms_drafter_looks_at_the_text_and_not_at_the_expression():
    assert gptq({"-:*mtp*": {}}, MLP, "vllm") == "unquantized"
    assert gptq({"+:.*mtp.*": {}, "-:.*mtp\\.fc.*": {}}, MLP, "vllm") == "unquantized"
    assert gptq({"+:.*mtp.*": {}, "-:.*mtp\\.fc.*": {}}, MLP, "sglang") == "quantized"
    assert gptq({"-:.*MTP.*": {}}, MLP, "vllm") == "quantized"


def test_vllms_drafter_does_not_see_a_config_that_is_not_at_the_top():
    assert gptq({"+:.*mtp.*": {}, "-:.*mtp.*": {}}, MLP, "vllm", drafter=False) == "quantized"


def test_vllms_drafter_builds_fc_by_the_expressions():
    assert gptq({"+:.*mtp.*": {}, "-:.*mtp.*": {}}, FC, "vllm") == "quantized"


def test_a_null_dynamic_breaks_vllms_drafter_and_is_no_rules_for_sglang():
    assert gptq(None, MLP, "vllm") == "error"
    assert gptq(None, FC, "vllm") == "quantized"
    assert gptq(None, MLP, "sglang") == "quantized"


def test_rules_are_asked_about_the_fused_name():
    assert gptq({"-:.*q_proj": {}}, QKV) == "quantized"
    assert gptq({"-:.*qkv_proj": {}}, QKV) == "unquantized"


@pytest.mark.parametrize(
    ("value", "expected"),
    [({"bits": 16}, "error"), ({"bits": 8}, "quantized"), (None, "error"), (False, "unquantized")],
)
def test_the_settings_of_a_positive_rule_count(value, expected):
    assert gptq({"+:.*mtp.*": value}, MLP, "vllm") == expected


def test_engines_have_different_widths():
    assert gptq({"+:.*mtp.*": {"bits": 3}}, MLP, "vllm") == "error"
    assert gptq({"+:.*mtp.*": {"bits": 3}}, MLP, "sglang") == "quantized"


@pytest.mark.parametrize(
    ("module", "layer"),
    [
        ("mtp.layers.0.self_attn.k_proj", QKV),
        ("mtp.layers.0.mlp.up_proj", "mtp.layers.0.mlp.gate_up_proj"),
        ("mtp.layers.0.mlp.down_proj", MLP),
        ("model.mtp.fc", FC),
        ("mtp.layers.0.mlp.experts.17.gate_proj", EXPERTS),
        ("mtp.layers.0.mlp.experts", EXPERTS),
        ("mtp.layers.0.mlp.shared_expert.gate_proj", "mtp.layers.0.mlp.shared_expert.gate_up_proj"),
        ("model.mtp_layers.0.mlp.gate_proj", "model.mtp_layers.0.mlp.gate_up_proj"),
    ],
)
def test_modules_become_the_layers_that_engines_build(module, layer):
    assert layer_of(module) == layer


def compressed(ignore, layer, engine="vllm", groups=GROUPS, **more):
    return builds(engine, "compressed-tensors", {"ignore": ignore, **groups}, layer, **more)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_compressed_tensors_ignores_by_name_and_by_expression(engine):
    assert compressed([], MLP, engine) == "quantized"
    assert compressed([MLP], MLP, engine) == "unquantized"
    assert compressed(["re:.*mtp.*"], MLP, engine) == "unquantized"
    assert compressed(["re:layers.*"], MLP, engine) == "quantized"
    assert compressed(["re:*mtp*"], MLP, engine) == "error"


def test_compressed_tensors_does_not_know_dynamic_beyond_vllms_drafter():
    config = {"ignore": [], "dynamic": {"-:.*mtp.*": {}}, **GROUPS}
    assert builds("sglang", "compressed-tensors", config, MLP) == "quantized"
    assert builds("vllm", "compressed-tensors", config, MLP) == "unquantized"
    assert builds("vllm", "compressed-tensors", config, FC) == "quantized"


def test_a_plain_entry_is_contained_for_sglang_and_equal_for_vllm():
    assert compressed(["down_proj"], MLP, "sglang") == "unquantized"
    assert compressed(["down_proj"], MLP, "vllm") == "quantized"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_parts_of_a_fused_layer_must_agree(engine):
    parts = [f"mtp.layers.0.self_attn.{part}_proj" for part in "qkv"]
    assert compressed(parts, QKV, engine) == "unquantized"
    assert compressed(parts[:2], QKV, engine) == "error"
    assert compressed([QKV], QKV, engine) == "unquantized"


def test_experts_are_asked_by_their_first():
    names = [f"{EXPERTS}.0.{part}_proj" for part in ("gate", "up", "down")]
    assert compressed(names, EXPERTS, moe=True) == "unquantized"
    assert compressed(["re:.*mtp.*"], EXPERTS, moe=True) == "unquantized"
    assert compressed([EXPERTS + ".1.gate_proj"], EXPERTS, moe=True) == "quantized"


def test_a_layer_that_no_group_targets_is_plain_for_vllm_and_an_error_for_sglang():
    groups = {"config_groups": {"group_0": {"targets": ["re:model.*"]}}}
    assert compressed([], MLP, "vllm", groups) == "unquantized"
    assert compressed([], MLP, "sglang", groups) == "error"
    assert compressed([], MLP, "sglang", {}) == "unquantized"


def auto_round(layer, engine="vllm", **config):
    return builds(engine, "auto-round", {**BASE, **config}, layer)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_auto_round_quantizes_the_blocks_that_it_names(engine):
    assert auto_round(MLP, engine) == "quantized"
    assert auto_round(MLP, engine, block_name_to_quantize="model.layers,visual") == "unquantized"
    assert auto_round(MLP, engine, block_name_to_quantize=["model.layers", "mtp.layers"]) == "quantized"
    assert auto_round(FC, "vllm", block_name_to_quantize=["model.layers", "mtp.layers"]) == "unquantized"
    assert auto_round(MLP, engine, to_quant_block_names="model.layers") == "unquantized"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_auto_rounds_own_names_come_before_patterns_and_blocks(engine):
    plain, packed = {"bits": 16, "data_type": "fp"}, {"bits": 4}
    assert auto_round(MLP, engine, extra_config={MLP: plain}) == "unquantized"
    assert auto_round(MLP, engine, extra_config={".*mtp.*": plain, MLP: packed}) == "quantized"
    assert auto_round(MLP, engine, extra_config={".*mtp.*": plain, ".*down.*": packed}) == "unquantized"
    assert auto_round(MLP, engine, extra_config={MLP: packed}, block_name_to_quantize="model") == "quantized"
    assert auto_round(MLP, engine, extra_config={"mtp": plain, "*mtp*": plain}) == "quantized"


def test_auto_rounds_patterns_are_searched_by_vllm_and_matched_whole_by_sglang():
    rule = {"layers\\.0": {"bits": 16}}
    assert auto_round(MLP, "vllm", extra_config=rule) == "unquantized"
    assert auto_round(MLP, "sglang", extra_config=rule) == "quantized"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_auto_rounds_parts_must_agree(engine):
    parts = {f"mtp.layers.0.self_attn.{part}_proj": {"bits": 16, "group_size": 64} for part in "qkv"}
    assert auto_round(QKV, engine, extra_config=parts) == "unquantized"
    parts.popitem()
    assert auto_round(QKV, engine, extra_config=parts) == "error"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_auto_rounds_experts_are_asked_by_the_names_below_them(engine):
    config = {**BASE, "extra_config": {f"{EXPERTS}.0.up_proj": {"bits": 16}, f"{EXPERTS}.1.up_proj": {"bits": 16}}}
    assert builds(engine, "auto-round", config, EXPERTS, moe=True) == "unquantized"
    config["extra_config"][f"{EXPERTS}.1.up_proj"] = {"bits": 4}
    assert builds(engine, "auto-round", config, EXPERTS, moe=True) == "error"


def test_auto_round_for_vllm_takes_a_name_without_bits_as_plain():
    assert auto_round(MLP, "vllm", extra_config={f"model.{MLP}": {}}) == "unquantized"
    assert auto_round(MLP, "sglang", extra_config={MLP: {}}) == "quantized"


# A second evaluator, written from GPTQModel's and the engines' documentation: the last writer wins, from the last rule
# up to the first, so the first rule that matches has the last word.
def documented(dynamic, layer):
    state = "quantized"
    for rule, value in reversed(dynamic.items()):
        sign, pattern = (rule[:2], rule[2:]) if rule[:2] in ("+:", "-:") else ("+:", rule)
        if re.search(rf"\A(?:{pattern})", layer):
            wide = value.get("bits", 4)
            state = "unquantized" if sign == "-:" else "quantized" if wide in (4, 8) else "error"
    return state


def documented_by_vllm(dynamic, layer):
    if layer.partition(".layers.")[0] == "mtp" and [rule for rule in dynamic if rule[:2] == "-:" and "mtp" in rule]:
        return "unquantized"
    return documented(dynamic, layer)


PIECES = [
    "mtp",
    "mtp\\.",
    ".*mtp.*",
    ".*",
    "layers",
    ".*layers\\.0",
    "model\\..*",
    ".*down_proj",
    "qkv_proj",
    ".*q_proj$",
    "mtp\\.fc",
    ".*mlp.*",
    "(?i:MTP)",
    "$",
]
rules = st.dictionaries(
    st.tuples(st.sampled_from(["+:", "-:", ""]), st.sampled_from(PIECES)).map("".join),
    st.sampled_from([{}, {"bits": 4}, {"bits": 8}, {"bits": 16}]),
    max_size=6,
)
layers = st.sampled_from([MLP, QKV, FC, EXPERTS, "mtp.layers.1.mlp.gate_up_proj", "model.layers.0.mlp.down_proj"])


@settings(max_examples=300, deadline=None)
@given(rules, layers)
def test_vllm_is_evaluated_as_documented(dynamic, layer):
    assert gptq(dynamic, layer, "vllm") == documented_by_vllm(dynamic, layer)


@settings(max_examples=300, deadline=None)
@given(rules, layers)
def test_sglang_is_evaluated_as_documented(dynamic, layer):
    assert gptq(dynamic, layer) == ("unquantized" if layer == FC else documented(dynamic, layer))


@settings(max_examples=100, deadline=None)
@given(rules, layers.filter(lambda layer: layer.startswith("mtp")))
def test_with_the_exclusion_first_no_later_rule_matters(dynamic, layer):
    dynamic = {"-:.*mtp.*": {}, **{rule: value for rule, value in dynamic.items() if rule != "-:.*mtp.*"}}
    assert {gptq(dynamic, layer, engine) for engine in ("vllm", "sglang")} == {"unquantized"}
