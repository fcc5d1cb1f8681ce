"""The dimensions of a model that memory depends on, read from its config.json or from ``profiles/models/``."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.errors import UsageError
from builder.files import read_text
from builder.models.base import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.models.base import Name

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "float": 4}
SCALE_BITS = 16  # of one group of quantized weights
ZERO_BITS = 4


@dataclass(frozen=True, kw_only=True)
class Recurrent:
    """The gated delta net layers: how many, and the size of their state.

    Attributes:
        layers: How many layers.
        key_heads: Heads of the keys.
        value_heads: Heads of the values.
        key_dim: Size of a key head.
        value_dim: Size of a value head.
        kernel: Width of the convolution.
        state_bytes: Bytes of one number of the state.
    """

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    state_bytes: int

    def page(self, cards: int, drafted: int, *, state_bytes: int | None = None) -> int:
        """Return the bytes of one layer's state on one card; the convolution keeps one more column a drafted token."""
        matrix = self.value_heads * self.key_dim * self.value_dim * (state_bytes or self.state_bytes)
        columns = self.kernel - 1 + drafted
        return (matrix + (2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim) * columns * 2) // cards


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model's dimensions.

    Attributes:
        title: What it is called.
        hidden: Size of a token's vector.
        layers: Layers without the MTP head.
        attention_layers: Those that keep KV for every token.
        kv_heads: KV heads.
        head_dim: Size of a head.
        vocabulary: Entries of the embedding.
        tied: Embedding and head are one.
        context: Tokens that it was trained for.
        mtp_layers: Layers of the MTP head; each keeps KV too.
        recurrent: The layers without KV, or None.
        checkpoint_bytes: Bytes of all its weights, or None when they are not known.
        card_bytes: Bytes on each of two cards where that was measured, or None.
        expert_bytes: Bytes of the experts of a mixture, 0 for a dense model.
        experts: Experts a layer.
        mtp_bytes: Bytes of the MTP head.
        dtype: The type of what is not quantized.
    """

    title: str
    hidden: int
    layers: int
    attention_layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    context: int
    mtp_layers: int
    recurrent: Recurrent | None
    checkpoint_bytes: int | None
    card_bytes: int | None
    expert_bytes: int
    experts: int
    mtp_bytes: int
    dtype: str

    @property
    def embedding_bytes(self) -> int:
        """Bytes of embedding and head, which stay in the model's own type."""
        return self.vocabulary * self.hidden * BYTES.get(self.dtype, 2) * (1 if self.tied else 2)


def known_shape(root: Path, name: Name) -> Shape:
    """Return a shape of ``profiles/models/``.

    Raises:
        UsageError: There is none of that name.
    """
    path = root / "profiles" / "models" / f"{name}.yaml"
    return shape_of(parse_yaml(read_text(path), path), path)


def read_shape(folder: Path) -> Shape:
    """Return the shape of a checkpoint: config.json, and the sizes of its safetensors files.

    Raises:
        UsageError: There is no config.json, it lacks a dimension, or a value is of a wrong form.
    """
    path = folder / "config.json"
    try:
        config = json.loads(read_text(path))
    except RecursionError as trouble:
        raise UsageError(f"{path} is nested too deeply") from trouble
    except ValueError as trouble:
        raise UsageError(f"{path} is no JSON: {trouble}") from trouble
    if not isinstance(config, dict):
        raise UsageError(f"{path} is no JSON object")
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return shape_of({**config, **({"checkpoint_bytes": weights} if weights else {})}, path)


def shape_of(config: Mapping[str, Any], path: Path) -> Shape:
    """Return the shape that a config says; ``path`` is for messages.

    Raises:
        UsageError: A dimension is missing, a value is of a wrong form, or the attention is of a kind whose cache is not
            known here.
    """
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else dict(config)
    if text.get("kv_lora_rank"):
        raise UsageError(f"{path}: latent attention (kv_lora_rank) keeps another cache, which plan does not know")
    hidden, layers, heads = (
        _whole(text, key, path) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    attention = _attention_layers(text, layers, path)
    mtp = _given(text, path, "mtp_num_hidden_layers", "num_nextn_predict_layers")
    dtype = str(text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or "bfloat16")
    quant = _mapping(config, "quantization_config", path) or _mapping(text, "quantization_config", path)
    experts = _given(text, path, "num_experts", "n_routed_experts")
    head_dim = _given(text, path, "head_dim") or hidden // heads
    width = _given(text, path, "moe_intermediate_size")
    bits = _bits(quant, BYTES.get(dtype, 2) * 8, path)
    plain = any(rule.startswith("-:") and "mtp" in rule for rule in _mapping(quant, "dynamic", path))
    kv_heads = _whole(text, "num_key_value_heads", path)
    query = heads * head_dim * (2 if text.get("attn_output_gate") else 1)
    mlp = 3 * hidden * (width * experts or _given(text, path, "intermediate_size"))
    # of an MTP layer: the matrix that joins two vectors, attention, and its MLP
    mtp_parameters = 2 * hidden * hidden + hidden * (query + 2 * kv_heads * head_dim + heads * head_dim) + mlp
    return Shape(
        title=str(config.get("title") or text.get("model_type") or "model"),
        hidden=hidden,
        layers=layers,
        attention_layers=attention,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=_whole(text, "vocab_size", path),
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        context=_given(text, path, "max_position_embeddings"),
        mtp_layers=mtp,
        recurrent=_recurrent(text, layers - attention, path),
        checkpoint_bytes=_given(config, path, "checkpoint_bytes") or None,
        card_bytes=_given(config, path, "card_bytes") or None,
        expert_bytes=int(layers * experts * 3 * hidden * width * bits / 8),
        experts=experts,
        mtp_bytes=int(mtp * mtp_parameters * (16 if plain else bits) / 8),
        dtype=dtype,
    )


def _attention_layers(text: Mapping[str, Any], layers: int, path: Path) -> int:
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != layers:
            raise UsageError(f"{path}: layer_types has {len(kinds)} entries for {layers} layers")
        # a sliding window keeps less, so counting it whole is on the safe side
        return sum(1 for kind in kinds if kind != "linear_attention")
    return layers // (_given(text, path, "full_attention_interval") or 1)


def _recurrent(text: Mapping[str, Any], layers: int, path: Path) -> Recurrent | None:
    if layers == 0:
        return None
    return Recurrent(
        layers=layers,
        key_heads=_whole(text, "linear_num_key_heads", path),
        value_heads=_whole(text, "linear_num_value_heads", path),
        key_dim=_whole(text, "linear_key_head_dim", path),
        value_dim=_whole(text, "linear_value_head_dim", path),
        kernel=_whole(text, "linear_conv_kernel_dim", path),
        state_bytes=BYTES.get(str(text.get("mamba_ssm_dtype") or "float32"), 4),
    )


def _whole(text: Mapping[str, Any], key: str, path: Path) -> int:
    value = text.get(key)
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"{path}: {key} must be a whole number above 0, found {value!r}")
    return value


def _given(text: Mapping[str, Any], path: Path, *keys: str) -> int:
    """Return the first number above 0 among some keys, or 0."""
    return next((_whole(text, key, path) for key in keys if text.get(key) not in (None, 0)), 0)


def _mapping(text: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    value = text.get(key)
    if value is not None and not isinstance(value, dict):
        raise UsageError(f"{path}: {key} must be a mapping, found {value!r}")
    return value or {}


def _bits(quant: Mapping[str, Any], plain: int, path: Path) -> float:
    """Return the bits of a weight with its share of a group's scale and zero."""
    bits = quant.get("bits") or quant.get("w_bit")
    if not isinstance(bits, int):
        return float(plain)
    group = quant.get("group_size") or 128
    if not isinstance(group, int):
        raise UsageError(f"{path}: group_size must be a whole number, found {group!r}")
    return bits + (SCALE_BITS + ZERO_BITS) / group if group > 0 else float(bits)


def gib(count: float) -> str:
    """Return bytes as GiB with two digits."""
    return f"{count / (1 << 30):.2f} GiB"


def rounded_up(count: float, step: int) -> int:
    """Return the smallest multiple of ``step`` that is not below ``count``."""
    return math.ceil(count / step) * step
