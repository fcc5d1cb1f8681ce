"""The arithmetic of plan against what people measured, and against its own parts."""

import json
import shutil
from pathlib import Path

import pytest
from checkpoint_twin import twin
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.models.profile import load_profile, with_flags
from builder.plan.plan import HostMemory, plan
from builder.plan.pool import head_bytes, vllm_blocks
from builder.plan.shape import known_shape, read_shape, shape_of

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "tests" / "fixtures" / "models" / "qwen3.8-27b" / "config.json"
GIB = 1 << 30
SHAPE = known_shape(ROOT, "qwen3.8-27b-w4a16")


def profile(name, **flags):
    found = load_profile(ROOT, name)
    changes = {f"--{key.replace('_', '-')}": value for key, value in flags.items()}
    return found.model_copy(update={"command": with_flags(found.command, changes)})


@pytest.mark.parametrize(
    ("name", "flags", "measured", "within"),
    [
        ("vllm-int8-128k", {}, 638_075, 0.001),
        ("vllm-octave-256k", {"max_cudagraph_capture_size": "16"}, 1_090_000, 0.15),
        ("vllm-octave-256k", {"kv_cache_dtype": "int8_per_token_head"}, 550_000, 0.15),
        ("sglang-dflash2", {}, 197_144, 0.15),
    ],
)
def test_the_field_figures_come_out(name, flags, measured, within):
    assert plan(profile(name, **flags), ROOT).kv_tokens == pytest.approx(measured, rel=within)


def test_the_memory_of_s2_comes_out_term_by_term():
    terms = plan(profile("vllm-int8-128k"), ROOT).as_json()["terms"]
    measured = {"weights": 9.70 - 1.25, "activation": 2.41, "graphs": 0.67, "kv": 10.68}
    assert {name: terms[name] / GIB for name in measured} == pytest.approx(measured, abs=0.02)


@pytest.mark.parametrize(("dtype", "block"), [("int8_per_token_head", 1584), ("octave_k3v4", 3296)])
def test_the_blocks_are_those_that_the_log_reports(dtype, block):
    found = vllm_blocks(SHAPE, cards=2, dtype=dtype, drafted=3, mtp=True, caching=True, free=10 * GIB)
    assert found.block == block


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("auto", 1024),
        ("int8_per_token_head", 520),
        ("octave_k3v4", 248),
        ("octave_k3v3", 216),
        ("fp8", 512),
        ("int4_per_token_head", 264),
    ],
)
def test_a_token_of_a_head_has_the_bytes_that_are_published(dtype, size):
    assert head_bytes(dtype, 256) == size


def test_a_format_of_unknown_size_and_a_head_that_octave_does_not_know_are_refused():
    with pytest.raises(UsageError, match="turboquant_k3v4_nc"):
        head_bytes("turboquant_k3v4_nc", 256)
    with pytest.raises(UsageError, match="heads of 256"):
        head_bytes("octave_k3v4", 128)


def test_a_checkpoint_gives_the_same_as_the_shape_that_the_profile_names(tmp_path):
    model = twin(tmp_path / "model")
    shutil.copy(CONFIG, model / "config.json")
    found = plan(profile("vllm-int8-128k"), ROOT, model=model)
    assert found.kv_tokens == pytest.approx(638_075, rel=0.15)


def test_layers_are_counted_from_their_types_or_from_the_interval():
    by_types = read_shape(CONFIG.parent)
    assert (by_types.attention_layers, by_types.recurrent.layers, by_types.mtp_layers) == (16, 48, 1)
    assert (SHAPE.attention_layers, SHAPE.recurrent.layers) == (16, 48)
    assert by_types.recurrent == SHAPE.recurrent


def test_the_mtp_head_costs_a_layer_of_kv_and_its_weights():
    without = plan(profile("vllm-octave-256k", spec_method=None, spec_tokens=None), ROOT).as_json()["terms"]
    with_mtp = plan(profile("vllm-octave-256k"), ROOT).as_json()["terms"]
    assert (without["kv_layers"], with_mtp["kv_layers"]) == (16, 17)
    assert with_mtp["weights"] - without["weights"] == SHAPE.mtp_bytes // 2
    assert SHAPE.mtp_bytes == pytest.approx(849e6, rel=0.01)


def test_an_embedding_that_is_whole_on_each_card_costs_what_the_reports_say():
    assert SHAPE.embedding_bytes / GIB == pytest.approx(4.7, abs=0.05)


def test_a_context_that_does_not_fit_is_told_with_the_longest_that_does():
    found = plan(profile("vllm-int8-128k", kv_cache_memory_bytes="1000000000"), ROOT)
    assert not found.fits
    longest = int(found.advice[0].split()[1])
    assert plan(profile("vllm-int8-128k", kv_cache_memory_bytes="1000000000", max_model_len=str(longest)), ROOT).fits


def test_a_context_beyond_sglangs_pool_is_told():
    found = plan(profile("sglang-dflash2", context_length="225280"), ROOT)
    assert not found.fits
    assert found.advice[0].startswith("--context-length 188416:")


def test_graphs_that_do_not_fit_outside_the_budget_are_told():
    found = plan(profile("vllm-octave-256k", gpu_memory_utilization="0.98"), ROOT)
    assert not found.fits
    assert "--gpu-memory-utilization 0.9" in "\n".join(found.advice)


def test_short_ram_names_the_cache_that_fits():
    found = plan(profile("vllm-octave-256k"), ROOT, host=HostMemory(ram=26 * GIB))
    assert not found.fits
    assert 'set "cpu_bytes_to_use" to 17179869184' in found.advice[-1]


def test_fewer_cards_than_workers_do_not_fit():
    found = plan(profile("vllm-octave-256k"), ROOT, host=HostMemory(vram=(24 * GIB,), ram=100 * GIB))
    assert not found.fits
    assert "2 cards are needed, 1 are there" in found.advice


def test_experts_in_ram_are_counted_there_and_their_cache_on_the_card():
    found = plan(profile("vllm-moe-offload"), ROOT).as_json()["terms"]
    shape = known_shape(ROOT, "qwen3.5-122b-a10b-w4a16")
    assert found["experts"] == shape.expert_bytes // 2 * 64 // 256
    assert found["ram"] >= shape.expert_bytes


def test_the_text_shows_every_term_and_how_it_comes_about():
    found = plan(profile("vllm-int8-128k"), ROOT)
    text = found.text()
    assert all(term.name in text and term.how in text for term in found.terms)
    assert "638,075 KV tokens: 36 x 8K  15 x 32K  9 x 64K  4 x 128K" in text


@given(seqs=st.integers(1, 64), drafted=st.integers(0, 8), cards=st.sampled_from([1, 2, 4]), room=st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_what_is_said_to_fit_fits_in_the_bytes_that_are_there(seqs, drafted, cards, room):
    free = room * GIB
    blocks = vllm_blocks(SHAPE, cards=cards, dtype="fp8", drafted=drafted, mtp=drafted > 0, caching=True, free=free)
    for context in (8192, 262144):
        assert blocks.sequences(context) * blocks.needed(context) * blocks.block_bytes <= free
    assert blocks.needed(blocks.longest()) <= max(blocks.count, blocks.state_blocks)
    assert blocks.block * 4 // cards * head_bytes("fp8", 256) >= SHAPE.recurrent.page(cards, drafted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_key_value_heads": None}, "num_key_value_heads must be a whole number"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"layer_types": ["full_attention"]}, "1 entries for 64 layers"),
    ],
)
def test_a_config_that_lacks_a_dimension_is_refused_by_its_name(change, message):
    config = json.loads(CONFIG.read_text())
    config["text_config"] |= change
    with pytest.raises(UsageError, match=message):
        shape_of(config, CONFIG)


@pytest.mark.parametrize("value", ["many", [1], {"a": 1}])
@pytest.mark.parametrize(
    "key",
    [
        *("head_dim", "mtp_num_hidden_layers", "num_experts", "max_position_embeddings", "intermediate_size"),
        *("full_attention_interval", "moe_intermediate_size", "checkpoint_bytes"),
    ],
)
def test_a_number_of_a_config_that_is_none_is_refused_by_its_name(key, value):
    config = json.loads(CONFIG.read_text())
    config["text_config"].pop("layer_types", None)
    inner = config if key == "checkpoint_bytes" else config["text_config"]
    inner[key] = value
    with pytest.raises(UsageError, match=f"{key} must be a whole number"):
        shape_of(config, CONFIG)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *((value, "quantization_config must be") for value in ("gptq", [], ["gptq"], float("nan"))),
        ({"bits": 4, "group_size": "x"}, "group_size must be"),
        ({"dynamic": 5}, "dynamic must be"),
    ],
)
def test_a_quantization_config_of_a_wrong_form_is_refused(value, message):
    with pytest.raises(UsageError, match=message):
        shape_of({**json.loads(CONFIG.read_text()), "quantization_config": value}, CONFIG)


def test_a_config_that_is_nested_too_deeply_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"a":' * 5000 + "1" + "}" * 5000)
    with pytest.raises(UsageError, match="nested too deeply"):
        read_shape(tmp_path)


def test_a_dense_model_without_recurrent_layers_has_blocks_of_sixteen():
    config = {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16",
    }
    shape = shape_of(config, CONFIG)
    found = vllm_blocks(shape, cards=1, dtype="auto", drafted=0, mtp=False, caching=True, free=GIB)
    assert (found.block, found.state_blocks, found.block_bytes) == (16, 0, 16 * 8 * 512 * 36)


def test_a_folder_without_weights_is_refused():
    with pytest.raises(UsageError, match="size of the weights is not known"):
        plan(profile("vllm-int8-128k"), ROOT, model=CONFIG.parent)


def test_an_engine_whose_flags_are_not_known_is_refused():
    with pytest.raises(UsageError, match="strata"):
        plan(load_profile(ROOT, "strata-replicas"), ROOT)


def test_what_a_patch_parameter_costs_is_a_term_of_its_own():
    made = plan(load_profile(ROOT, "sglang-dflash2"), ROOT)
    segments = next(term for term in made.terms if term.name == "segments")
    assert segments.value == 64 * 6 * 2**20


@pytest.mark.parametrize("value", ["nan", "lots", "0", "-1", ""])
@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("vllm-int8-128k", "--max-num-batched-tokens"),
        ("vllm-int8-128k", "--gpu-memory-utilization"),
        ("vllm-int8-128k", "--max-num-seqs"),
        ("vllm-int8-128k", "--tensor-parallel-size"),
        ("sglang-dflash2", "--mem-fraction-static"),
        ("sglang-dflash2", "--context-length"),
        ("sglang-dflash2", "--tp-size"),
    ],
)
def test_a_number_that_is_none_is_refused_by_the_name_of_its_flag(name, flag, value):
    found = load_profile(ROOT, name)
    spoiled = found.model_copy(update={"command": (*found.command, flag, value)})
    with pytest.raises(UsageError, match=f"^{flag} .*{value!r}"):
        plan(spoiled, ROOT)


def test_a_context_that_the_engine_chooses_is_the_models_own():
    assert plan(profile("vllm-int8-128k", max_model_len="auto"), ROOT).sequences[-1][0] == SHAPE.context
    with pytest.raises(UsageError, match=r"^--hicache-size .*'nan'"):
        plan(profile("sglang-dflash2", hicache_size="nan"), ROOT)


@pytest.mark.parametrize("given", ['"many"', "true", "-1", "NaN", "[1]"])
def test_a_cpu_cache_that_is_no_number_of_bytes_is_told(given):
    profile = load_profile(ROOT, "vllm-octave-256k")
    config = (
        f'{{"kv_connector":"SimpleCPUOffloadConnector","kv_connector_extra_config":{{"cpu_bytes_to_use":{given}}}}}'
    )
    changed = profile.model_copy(update={"command": with_flags(profile.command, {"--kv-transfer-config": config})})
    with pytest.raises(UsageError, match="cpu_bytes_to_use"):
        plan(changed, ROOT)
