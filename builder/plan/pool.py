"""How many tokens a card's free memory holds: vLLM's blocks and SGLang's cells.

Where each formula comes from is told in docs/plan.md, with the runs that it was held against.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.plan.shape import rounded_up

if TYPE_CHECKING:
    from builder.plan.shape import Shape

# bytes of one token and KV head with head_dim 256 (docs/design/rocm_octave.md of the fork)
OCTAVE = {"octave_k3v4": 248, "octave_k3v3": 216, "octave_k3v3_compact": 196}
OCTAVE_DIM = 256
SCALES = 8  # a 32-bit scale for the key and one for the value
BLOCK_STEP = 16


def head_bytes(dtype: str, head_dim: int) -> int:
    """Return the bytes that a format takes for one token and KV head, key and value together.

    Raises:
        UsageError: The format's size is not known, or it does not know this head size.
    """
    if dtype in {"auto", "bfloat16", "float16", "half"}:
        return head_dim * 4
    if dtype in OCTAVE:
        if head_dim != OCTAVE_DIM:
            raise UsageError(f"{dtype} is for heads of {OCTAVE_DIM}, and this model's have {head_dim}")
        return OCTAVE[dtype]
    if dtype.endswith("_per_token_head"):
        bits = {"int8": 8, "fp8": 8, "int4": 4, "int2": 2}.get(dtype.removesuffix("_per_token_head"))
        if bits:
            return head_dim * 2 * bits // 8 + SCALES
    if dtype.startswith("fp8"):
        return head_dim * 2
    raise UsageError(f"the size of the KV format {dtype!r} is not known here")


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """vLLM's pool: equal pages for attention and recurrent layers, handed out by groups of layers.

    Attributes:
        block: Tokens of a block.
        block_bytes: Bytes of a block over all layers of a group.
        attention_groups: Groups of layers that take a block for every ``block`` tokens.
        state_blocks: Blocks that a sequence takes for its recurrent states, whatever its length.
        count: Blocks that fit.
    """

    block: int
    block_bytes: int
    attention_groups: int
    state_blocks: int
    count: int

    def needed(self, context: int) -> int:
        """Return the blocks of a sequence of ``context`` tokens."""
        return self.attention_groups * -(-context // self.block) + self.state_blocks

    def tokens(self, context: int) -> int:
        """Return what the log calls the KV cache size: sequences of ``context`` that fit, times its length."""
        return int(self.count / self.needed(context) * context)

    def sequences(self, context: int) -> int:
        """Return how many whole sequences of ``context`` tokens fit."""
        return self.count // self.needed(context)

    def longest(self) -> int:
        """Return the longest context of a single sequence."""
        return max(0, (self.count - self.state_blocks) // self.attention_groups) * self.block


def vllm_blocks(shape: Shape, *, cards: int, dtype: str, drafted: int, mtp: bool, caching: bool, free: int) -> Blocks:
    """Return vLLM's pool for ``free`` bytes on each card.

    Args:
        shape: The model.
        cards: Tensor-parallel size.
        dtype: KV format.
        drafted: Tokens drafted a step.
        mtp: The MTP head is loaded and keeps KV.
        caching: Prefix caching is on; a sequence then holds two states instead of one, and one a drafted token.
        free: Bytes for the cache on each card.
    """
    token = -(-shape.kv_heads // cards) * head_bytes(dtype, shape.head_dim)
    attention = shape.attention_layers + (shape.mtp_layers if mtp else 0)
    recurrent = shape.recurrent
    if recurrent is None:
        size = BLOCK_STEP * token * attention
        return Blocks(block=BLOCK_STEP, block_bytes=size, attention_groups=1, state_blocks=0, count=free // size)
    block = rounded_up(recurrent.page(cards, drafted) / token, BLOCK_STEP)
    group = min(attention, recurrent.layers)
    states = -(-recurrent.layers // group) * ((2 if caching else 1) + drafted)
    size = block * token * group
    return Blocks(
        block=block, block_bytes=size, attention_groups=-(-attention // group), state_blocks=states, count=free // size
    )


@dataclass(frozen=True, kw_only=True)
class Cells:
    """SGLang's pool: a cell a token, and a pool of recurrent states apart.

    Attributes:
        cell_bytes: Bytes of a token over all layers, the drafter's among them.
        state_bytes: Bytes of the recurrent states, those of drafted tokens among them.
        count: Tokens that fit.
    """

    cell_bytes: int
    state_bytes: int
    count: int


def sglang_cells(
    shape: Shape,
    drafter: Shape | None,
    *,
    cards: int,
    dtype: str,
    mtp: bool,
    states: int,
    verified: int,
    state_bytes: int,
    free: int,
) -> Cells:
    """Return SGLang's pool for ``free`` bytes on each card.

    Args:
        shape: The model.
        drafter: A separate draft model, which keeps a cell of its own for every token, or None.
        cards: Tensor-parallel size.
        dtype: KV format.
        mtp: The model's MTP head drafts.
        states: ``--max-mamba-cache-size``.
        verified: Running requests times the tokens that each verifies a step; each holds a state.
        state_bytes: Bytes of one number of a state (``--mamba-ssm-dtype``).
        free: Bytes for states and cache on each card.
    """
    layers = shape.attention_layers + (shape.mtp_layers if mtp else 0)
    cell = layers * -(-shape.kv_heads // cards) * head_bytes(dtype, shape.head_dim)
    if drafter is not None:
        cell += drafter.layers * -(-drafter.kv_heads // cards) * head_bytes(dtype, drafter.head_dim)
    recurrent = shape.recurrent
    state = recurrent.layers * recurrent.page(cards, 0, state_bytes=state_bytes) if recurrent else 0
    held = state * (states + verified)
    return Cells(cell_bytes=cell, state_bytes=held, count=max(0, free - held) // cell)
