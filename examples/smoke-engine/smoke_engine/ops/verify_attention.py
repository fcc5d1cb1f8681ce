"""Attention for verifying drafted tokens: a few query tokens of one sequence against its whole paged KV cache.

With few query tokens the context is cut into segments, a block of threads each ("3D", as the grid has a third axis),
and a second kernel joins them. Compiling needs triton alone: no torch, no GPU. See AOT_BUILDS.
"""

# ruff: noqa: ANN001, ANN201, ANN401, N803, PLR0917 - Triton compiles kernels from untyped, positional arguments

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

BLOCK_M = 16  # query rows of a block: query tokens times the query heads that share a KV head
MAX_3D_QUERY_TOKENS = 8
OPTIONS = {"num_warps": 4, "num_stages": 1}


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """How the work is cut: KV tokens a step of the loop, and segments of the context (a power of two)."""

    tile_size: int
    segments: int


def launch_plan(query_tokens: int) -> LaunchPlan:
    """How to cut the work for so many query tokens."""
    use_3d = query_tokens <= MAX_3D_QUERY_TOKENS
    tile_size = 32 if not use_3d else 16
    if not use_3d:
        return LaunchPlan(tile_size=tile_size, segments=1)
    return LaunchPlan(
        tile_size=tile_size,
        segments=32,  # one sequence alone has to fill the card
    )


@triton.jit
def verify_attention_kernel(
    query,  # [query tokens, query heads, HEAD_DIM]
    key_cache,  # [blocks, BLOCK_SIZE, KV heads, HEAD_DIM]
    value_cache,  # as key_cache
    block_table,  # [blocks of the sequence], int32
    partial_output,  # [query tokens, query heads, SEGMENTS, HEAD_DIM], float32
    partial_max,  # [query tokens, query heads, SEGMENTS], float32
    partial_sum,  # as partial_max
    scale,
    query_tokens,
    context_tokens,  # with the query tokens, which are the last ones
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE_SIZE: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """One block: BLOCK_M query rows of one KV head against one segment of the context."""
    group: tl.constexpr = QUERY_HEADS // KV_HEADS
    kv_head = tl.program_id(1)
    segment = tl.program_id(2)
    dims = tl.arange(0, HEAD_DIM)

    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    token = rows // group
    head = kv_head * group + rows % group
    row_is_real = token < query_tokens
    position = context_tokens - query_tokens + token
    row_offset = token * QUERY_HEADS + head
    q = tl.load(query + row_offset[:, None] * HEAD_DIM + dims[None, :], mask=row_is_real[:, None], other=0.0)

    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    output = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

    tiles = tl.cdiv(tl.cdiv(context_tokens, SEGMENTS), TILE_SIZE)
    first = segment * tiles * TILE_SIZE
    last = tl.minimum(first + tiles * TILE_SIZE, context_tokens)
    for start in range(first, last, TILE_SIZE):
        kv = start + tl.arange(0, TILE_SIZE)
        kv_is_real = kv < last
        block = tl.load(block_table + kv // BLOCK_SIZE, mask=kv_is_real, other=0).to(tl.int64)
        kv_offset = ((block * BLOCK_SIZE + kv % BLOCK_SIZE) * KV_HEADS + kv_head) * HEAD_DIM
        k = tl.load(key_cache + kv_offset[None, :] + dims[:, None], mask=kv_is_real[None, :], other=0.0)
        score = tl.dot(q, k) * scale
        visible = kv_is_real[None, :] & (kv[None, :] <= position[:, None])
        score = tl.where(visible, score, float("-inf"))

        new_highest = tl.maximum(highest, tl.max(score, 1))
        base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        weight = tl.exp(score - base[:, None])
        shrink = tl.exp(highest - base)
        v = tl.load(value_cache + kv_offset[:, None] + dims[None, :], mask=kv_is_real[:, None], other=0.0)
        output = output * shrink[:, None] + tl.dot(weight.to(v.dtype), v)
        total = total * shrink + tl.sum(weight, 1)
        highest = new_highest

    part = row_offset * SEGMENTS + segment
    tl.store(partial_output + part[:, None] * HEAD_DIM + dims[None, :], output, mask=row_is_real[:, None])
    tl.store(partial_max + part, highest, mask=row_is_real)
    tl.store(partial_sum + part, total, mask=row_is_real)


@triton.jit
def join_segments_kernel(
    partial_output,  # as verify_attention_kernel wrote it
    partial_max,
    partial_sum,
    output,  # [query tokens, query heads, HEAD_DIM]
    HEAD_DIM: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """One block: one query token and head. SEGMENTS is a power of two."""
    row = tl.program_id(0).to(tl.int64)
    segments = tl.arange(0, SEGMENTS)
    dims = tl.arange(0, HEAD_DIM)
    highest = tl.load(partial_max + row * SEGMENTS + segments)
    weight = tl.exp(highest - tl.max(highest, 0))
    total = tl.sum(weight * tl.load(partial_sum + row * SEGMENTS + segments), 0)
    parts = tl.load(partial_output + (row * SEGMENTS + segments[:, None]) * HEAD_DIM + dims[None, :])
    joined = tl.sum(parts * weight[:, None], 0) / total
    tl.store(output + row * HEAD_DIM + dims, joined.to(output.dtype.element_ty))


def verify_attention(
    query: Any, key_cache: Any, value_cache: Any, block_table: Any, context_tokens: int, scale: float
) -> Any:
    """Attend `query` to the cache; torch tensors on the GPU, shaped as the kernel says.

    Returns:
        A tensor like `query`.
    """
    query_tokens, query_heads, head_dim = query.shape
    block_size, kv_heads = key_cache.shape[1:3]
    plan = launch_plan(query_tokens)
    segments = plan.segments
    partial_output = query.new_empty((query_tokens, query_heads, segments, head_dim)).float()
    partial_max = partial_output.new_empty((query_tokens, query_heads, segments))
    partial_sum = partial_output.new_empty((query_tokens, query_heads, segments))
    row_blocks = triton.cdiv(query_tokens * (query_heads // kv_heads), BLOCK_M)
    verify_attention_kernel[row_blocks, kv_heads, segments](
        query,
        key_cache,
        value_cache,
        block_table,
        partial_output,
        partial_max,
        partial_sum,
        scale,
        query_tokens,
        context_tokens,
        QUERY_HEADS=query_heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_M=BLOCK_M,
        TILE_SIZE=plan.tile_size,
        SEGMENTS=segments,
        **OPTIONS,
    )
    output = query.new_empty(query.shape)
    join_segments_kernel[query_tokens * query_heads,](
        partial_output, partial_max, partial_sum, output, HEAD_DIM=head_dim, SEGMENTS=segments, **OPTIONS
    )
    return output


# What a compiler needs to build the kernels ahead of time, as they run for four drafted tokens of a model with 12 query
# heads, 2 KV heads and head_dim 256. One entry a kernel:
#   kernel       the jitted function
#   signature    argument -> Triton type, in the function's order; "constexpr" for the compile-time ones
#   constexprs   compile-time argument -> value; the tile size and the segments come from launch_plan
#   divisible_by_16  arguments that are promised to be (pointers: aligned to 16 bytes)
#   options      num_warps and num_stages
_PLAN = launch_plan(4)
AOT_BUILDS: dict[str, dict[str, Any]] = {
    "verify_attention": {
        "kernel": verify_attention_kernel,
        "signature": {
            "query": "*bf16",
            "key_cache": "*bf16",
            "value_cache": "*bf16",
            "block_table": "*i32",
            "partial_output": "*fp32",
            "partial_max": "*fp32",
            "partial_sum": "*fp32",
            "scale": "fp32",
            "query_tokens": "i32",
            "context_tokens": "i32",
            "QUERY_HEADS": "constexpr",
            "KV_HEADS": "constexpr",
            "HEAD_DIM": "constexpr",
            "BLOCK_SIZE": "constexpr",
            "BLOCK_M": "constexpr",
            "TILE_SIZE": "constexpr",
            "SEGMENTS": "constexpr",
        },
        "constexprs": {
            "QUERY_HEADS": 12,
            "KV_HEADS": 2,
            "HEAD_DIM": 256,
            "BLOCK_SIZE": 16,
            "BLOCK_M": BLOCK_M,
            "TILE_SIZE": _PLAN.tile_size,
            "SEGMENTS": _PLAN.segments,
        },
        "divisible_by_16": (
            "query",
            "key_cache",
            "value_cache",
            "block_table",
            "partial_output",
            "partial_max",
            "partial_sum",
        ),
        "options": OPTIONS,
    },
    "join_segments": {
        "kernel": join_segments_kernel,
        "signature": {
            "partial_output": "*fp32",
            "partial_max": "*fp32",
            "partial_sum": "*fp32",
            "output": "*bf16",
            "HEAD_DIM": "constexpr",
            "SEGMENTS": "constexpr",
        },
        "constexprs": {"HEAD_DIM": 256, "SEGMENTS": _PLAN.segments},
        "divisible_by_16": ("partial_output", "partial_max", "partial_sum", "output"),
        "options": OPTIONS,
    },
}
