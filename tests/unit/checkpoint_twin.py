"""Synthetic checkpoints for tests and benchmarks: real headers, weights that are holes in sparse files."""

import json
import math
from pathlib import Path

BITS = {"BF16": 16, "F16": 16, "F32": 32, "I32": 32, "F8_E4M3": 8, "U8": 8, "I64": 64}
HIDDEN, INTERMEDIATE, VOCABULARY, LAYERS, GROUP = 5120, 17408, 248320, 64, 64
PLUS = {"+:.*mtp.*": {"bits": 4, "group_size": 64}, "+:.*mtp\\.fc.*": {"bits": 4, "group_size": 64}}
MTP = {
    "mtp.fc.weight": ("BF16", [HIDDEN, 2 * HIDDEN]),
    "mtp.norm.weight": ("BF16", [HIDDEN]),
    "mtp.pre_fc_norm_embedding.weight": ("BF16", [HIDDEN]),
    "mtp.pre_fc_norm_hidden.weight": ("BF16", [HIDDEN]),
    "mtp.layers.0.input_layernorm.weight": ("BF16", [HIDDEN]),
    "mtp.layers.0.post_attention_layernorm.weight": ("BF16", [HIDDEN]),
    "mtp.layers.0.self_attn.q_proj.weight": ("BF16", [12288, HIDDEN]),
    "mtp.layers.0.self_attn.k_proj.weight": ("BF16", [1024, HIDDEN]),
    "mtp.layers.0.self_attn.v_proj.weight": ("BF16", [1024, HIDDEN]),
    "mtp.layers.0.self_attn.o_proj.weight": ("BF16", [HIDDEN, 6144]),
    "mtp.layers.0.self_attn.q_norm.weight": ("BF16", [256]),
    "mtp.layers.0.self_attn.k_norm.weight": ("BF16", [256]),
    "mtp.layers.0.mlp.gate_proj.weight": ("BF16", [INTERMEDIATE, HIDDEN]),
    "mtp.layers.0.mlp.up_proj.weight": ("BF16", [INTERMEDIATE, HIDDEN]),
    "mtp.layers.0.mlp.down_proj.weight": ("BF16", [HIDDEN, INTERMEDIATE]),
}
# a model small enough for tests that copy it
TINY = {
    "model.layers.0.mlp.down_proj.qweight": ("I32", [8, 64]),
    "model.layers.0.mlp.down_proj.scales": ("F16", [1, 64]),
    "model.layers.0.input_layernorm.weight": ("BF16", [64]),
}
TINY_MTP = {name: (dtype, [2] * len(shape)) for name, (dtype, shape) in MTP.items()}
BASE = {"bits": 4, "group_size": 64, "sym": True, "desc_act": False, "damp_percent": 0.0100, "quant_method": "gptq"}


def packed(module, features, outputs):
    """Return the tensors of a 4-bit GPTQ module."""
    return {
        f"{module}.qweight": ("I32", [features // 8, outputs]),
        f"{module}.qzeros": ("I32", [features // GROUP, outputs // 8]),
        f"{module}.scales": ("F16", [features // GROUP, outputs]),
        f"{module}.g_idx": ("I32", [features]),
    }


def header_of(tensors):
    """Return the header's bytes and the size of the data behind it."""
    at, entries = 0, {"__metadata__": {"format": "pt"}}
    for name, (dtype, shape) in tensors.items():
        end = at + math.prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    return json.dumps(entries, separators=(",", ":")).encode(), at


def write_shard(path, tensors):
    """Write a safetensors file whose weights are one hole."""
    header, size = header_of(tensors)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return path


def dumps(value, indent=2):
    """Return the text that transformers would write."""
    return json.dumps(value, indent=indent, ensure_ascii=False) + "\n"


def config_text(dynamic, **more):
    """Return a config.json with a number format that no second writer would keep."""
    quantization = {**BASE, **({} if dynamic is ... else {"dynamic": dynamic}), **more}
    text = dumps(
        {"architectures": ["Qwen3_5ForConditionalGeneration"], "rope_theta": 1, "quantization_config": quantization}
    )
    return text.replace('"rope_theta": 1', '"rope_theta": 1.0E+7').replace("0.01,", "1.00e-2,")


def tiny(folder, dynamic=..., *, mtp=TINY_MTP, extra=None, config=None, index=True, files=()):
    """Write a small checkpoint: a packed model, plain MTP tensors in a file of their own, GPTQ rules."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = {"model.safetensors": {**TINY, **(extra or {})}, "model_extra_tensors.safetensors": dict(mtp)}
    weight_map = {}
    for name, tensors in shards.items():
        if tensors:
            write_shard(folder / name, tensors)
            weight_map.update(dict.fromkeys(tensors, name))
    if index:
        (folder / "model.safetensors.index.json").write_text(dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(config if config is not None else config_text(dynamic))
    for name in files:
        (folder / name).write_text(dumps({**BASE, "dynamic": dynamic}))
    (folder / "tokenizer.json").write_text("{}\n")
    return folder


def linear_rules():
    """Return the 96 rules that keep the linear attention's small projections out."""
    return {
        f"-:.*model\\.language_model\\.layers\\.{layer}\\.linear_attn\\.{name}.*": {}
        for layer in range(LAYERS)
        if layer % 4 != 3  # every fourth layer has full attention
        for name in ("in_proj_a", "in_proj_b")
    }


def twin(folder):
    """Write the field report's checkpoint: 98 rules in two files, 15 BF16 MTP tensors, 19 GB of (absent) weights."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = [{} for _ in range(8)]
    shards[0]["model.language_model.embed_tokens.weight"] = ("BF16", [VOCABULARY, HIDDEN])
    shards[7]["lm_head.weight"] = ("BF16", [VOCABULARY, HIDDEN])
    for layer in range(LAYERS):
        into, stem = shards[layer // 8], f"model.language_model.layers.{layer}"
        into[f"{stem}.input_layernorm.weight"] = into[f"{stem}.post_attention_layernorm.weight"] = ("BF16", [HIDDEN])
        into |= packed(f"{stem}.mlp.gate_proj", HIDDEN, INTERMEDIATE) | packed(
            f"{stem}.mlp.up_proj", HIDDEN, INTERMEDIATE
        )
        into |= packed(f"{stem}.mlp.down_proj", INTERMEDIATE, HIDDEN)
        if layer % 4 == 3:
            for name, features, outputs in (
                ("q", HIDDEN, 12288),
                ("k", HIDDEN, 1024),
                ("v", HIDDEN, 1024),
                ("o", 6144, HIDDEN),
            ):
                into |= packed(f"{stem}.self_attn.{name}_proj", features, outputs)
        else:
            into |= packed(f"{stem}.linear_attn.in_proj_qkv", HIDDEN, 10240)
            into |= packed(f"{stem}.linear_attn.in_proj_z", HIDDEN, 6144)
            into |= packed(f"{stem}.linear_attn.out_proj", 6144, HIDDEN)
            for name in ("in_proj_a", "in_proj_b"):
                into[f"{stem}.linear_attn.{name}.weight"] = ("BF16", [48, HIDDEN])
    weight_map = {}
    for number, tensors in enumerate(shards, start=1):
        path = write_shard(folder / f"model-{number:05}-of-00008.safetensors", tensors)
        weight_map |= dict.fromkeys(tensors, path.name)
    weight_map |= dict.fromkeys(MTP, write_shard(folder / "model_extra_tensors.safetensors", MTP).name)
    (folder / "model.safetensors.index.json").write_text(dumps({"metadata": {}, "weight_map": weight_map}))
    rules = {**linear_rules(), **PLUS}
    (folder / "config.json").write_text(config_text(rules))
    (folder / "quantization_config.json").write_text(dumps({**BASE, "dynamic": rules}))
    (folder / "tokenizer.json").write_text("{}\n")
    return folder


def cache(folder, revisions=("aaa", "bbb")):
    """Write a Hugging Face cache: snapshots whose files are links into one blobs folder that they share."""
    blobs = folder / "blobs"
    blobs.mkdir(parents=True)
    tiny(folder / "made", PLUS, files=("quantization_config.json",))
    for path in sorted((folder / "made").iterdir()):
        path.rename(blobs / f"blob-of-{path.name}")
    (folder / "made").rmdir()
    for revision in revisions:
        snapshot = folder / "snapshots" / revision
        snapshot.mkdir(parents=True)
        for blob in sorted(blobs.iterdir()):
            (snapshot / blob.name.removeprefix("blob-of-")).symlink_to(Path("../../blobs") / blob.name)
    return folder / "snapshots" / revisions[0], folder / "snapshots" / revisions[-1]
