"""The MTP modules of a checkpoint: what is stored for each, read off its tensors, and the layer an engine makes of it.

MTP is multi-token prediction: a small extra layer that drafts the next tokens, stored under ``mtp.`` beside the
model. Engines build fused layers from several modules, and ask the rules about the fused layer's name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from builder.checkpoint.tensors import BITS, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

Stored = Literal["plain", "packed", "mixed"]

PLAIN = frozenset({"BF16", "F16", "F32", "F64"})
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
# the parts that GPTQ, AWQ, compressed-tensors, FP8 and MXFP4 store instead of, or beside, a weight
PACKED_PART = re.compile(
    r"(^|_)(qweight|qzeros|scales|g_idx|blocks|weight_packed|weight_shape|weight_zero_point|weight_(global_)?scale.*)$"
)
MAIN_PART = re.compile(r"(^|_)(qweight|blocks|weight_packed|weight)$")
EXPERT = re.compile(r"(.*\.experts)(\.|$)")
# both engines build these without a quantisation, whatever the rules say
NEVER_QUANTISED = ("gate", "shared_expert_gate", "embed_tokens")
MATRIX = 2
INT32 = 32


class Module(NamedTuple):
    """One MTP module of the checkpoint.

    Attributes:
        name: Its name in the checkpoint, such as ``mtp.layers.0.mlp.down_proj``.
        tensors: Its tensors.
        stored: Whether its weight is plain floating point, packed, or both at once.
        bits: Bits of one weight; None when the headers do not tell.
        layer: The layer that engines build from it, such as ``mtp.layers.0.mlp.gate_up_proj``; the rules are asked
            about this name.
        linear: It is a matrix that a quantisation could apply to.
        moe: It is a part of the routed experts, one layer for engines.
    """

    name: str
    tensors: tuple[Tensor, ...]
    stored: Stored
    bits: int | None
    layer: str
    linear: bool
    moe: bool

    @property
    def dtype(self) -> str:
        """The dtypes of what carries the weight, such as ``BF16`` or ``I32``."""
        main = [tensor for tensor in self.tensors if not _is_packed(tensor) or MAIN_PART.search(_leaf(tensor))]
        return "+".join(sorted({tensor.dtype for tensor in main or self.tensors}))


def mtp_modules(tensors: Iterable[Tensor]) -> tuple[Module, ...]:
    """Return the MTP modules among the tensors: those whose name holds ``mtp``, which is what engines look for."""
    parts: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if "mtp" in tensor.name:
            parts.setdefault(module_of(tensor.name), []).append(tensor)
    return tuple(_module(name, tuple(parts[name])) for name in sorted(parts))


def module_of(tensor: str) -> str:
    """Return the name of a tensor's module."""
    return tensor.rpartition(".")[0] or tensor


def layer_of(module: str) -> str:
    """Return the name of the layer that engines build from a module: without outer prefix, fused."""
    words = module.split(".")
    if "mtp" in words:
        words = words[words.index("mtp") :]
    expert = EXPERT.match(".".join(words))
    if expert:
        return expert.group(1)
    for fused, names in FUSED.items():
        if words[-1] in names:
            words[-1] = fused
    return ".".join(words)


def _module(name: str, tensors: tuple[Tensor, ...]) -> Module:
    packed = [tensor for tensor in tensors if _is_packed(tensor)]
    weights = [tensor for tensor in tensors if not _is_packed(tensor) and _leaf(tensor) != "bias"]
    stored: Stored = "packed" if packed else "plain"
    # FP8 keeps a scale beside a weight that is itself no plain float; a plain weight beside packed parts is neither
    if packed and any(_leaf(tensor) == "weight" for tensor in weights):
        stored = "mixed"
    matrix = any(len(tensor.shape) >= MATRIX for tensor in weights)
    linear = stored != "plain" or (matrix and name.rpartition(".")[2] not in NEVER_QUANTISED)
    layer = layer_of(name)
    return Module(name, tensors, stored, _bits(tensors, stored), layer, linear, layer.endswith(".experts"))


def _leaf(tensor: Tensor) -> str:
    return tensor.name.rpartition(".")[2]


def _is_packed(tensor: Tensor) -> bool:
    return tensor.dtype not in PLAIN or PACKED_PART.search(_leaf(tensor)) is not None


def _bits(tensors: tuple[Tensor, ...], stored: Stored) -> int | None:
    """Return the bits of one weight, from the shapes where a packed form gives them away."""
    shapes = {_leaf(tensor): tensor.shape for tensor in tensors}
    if stored == "plain":
        return max(BITS[tensor.dtype] for tensor in tensors)
    rows, features = shapes.get("qweight", ())[:1], shapes.get("g_idx", ())[:1]
    if rows and features and features[0]:  # GPTQ: rows of 32-bit words against input features
        return INT32 * rows[0] // features[0]
    if "weight" in shapes:
        return min(BITS.get(tensor.dtype, INT32) for tensor in tensors if _leaf(tensor) == "weight")
    return None
