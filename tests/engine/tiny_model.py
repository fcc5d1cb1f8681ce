"""A random-weight Qwen3 of two layers with a byte-level tokenizer of 512 tokens: 0.7 MB, and vLLM serves it."""

import json
import random
from array import array

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY, CONTEXT = 64, 128, 2, 4, 2, 512, 8192
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_model(folder, *, head_dim=32):
    """Write the checkpoint; vLLM's CPU attention has kernels for a head_dim of 32, and none for 16."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head_dim,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[2], "chat_template": template}
    for name, value in (
        ("config.json", config),
        ("tokenizer_config.json", about),
        ("generation_config.json", {"eos_token_id": 2}),
        ("tokenizer.json", tokenizer()),
    ):
        (folder / name).write_text(json.dumps(value))
    (folder / "model.safetensors").write_bytes(safetensors(shapes(head_dim)))
    return folder


def shapes(head_dim):
    """Return the tensors of the model by name."""
    found = {"model.embed_tokens": (VOCABULARY, HIDDEN), "lm_head": (VOCABULARY, HIDDEN), "model.norm": (HIDDEN,)}
    for layer in range(LAYERS):
        part = {
            "self_attn.q_proj": (HEADS * head_dim, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * head_dim, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * head_dim, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * head_dim),
            "self_attn.q_norm": (head_dim,),
            "self_attn.k_norm": (head_dim,),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
        }
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in part.items()}
    return {f"{name}.weight": shape for name, shape in found.items()}


def safetensors(tensors):
    """Return a safetensors file: an 8-byte length, a JSON header, the numbers (norms are 1, the rest is random)."""
    dice, data, header = random.Random(0), bytearray(), {"__metadata__": {"format": "pt"}}
    for name, shape in tensors.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        numbers = [1.0] * count if len(shape) == 1 else [dice.gauss(0, 0.05) for _ in range(count)]
        begin = len(data)
        data += array("f", numbers).tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(data)


def tokenizer():
    """Return a tokenizer.json: three special tokens, the 256 bytes, and pairs of letters up to 512."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    words = [*SPECIAL, *(letters[byte] for byte in range(256))]
    merges = [f"{a} {b}" for a in "etaoinshrdlucmfw" for b in "etaoinshrdlucmfw"][: VOCABULARY - len(words)]
    words += [pair.replace(" ", "") for pair in merges]
    added = [
        {
            "id": at,
            "content": word,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for at, word in enumerate(SPECIAL)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": {word: at for at, word in enumerate(words)}, "merges": merges},
    }
