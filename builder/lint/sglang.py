"""Rules about SGLang's gfx1100 fork."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from builder.lint.rule import Found, sglang_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lint.command import Command

FORK = "https://github.com/StevenChenSE/sglang/tree/gfx1100-support"
LAUNCH = "python -m sglang.launch_server --model-path m"
AR = "SGLANG_RDNA_CUSTOM_AR=1 SGLANG_RDNA_NO_FUSED=1"
POOL, CONTEXT = 197_144, 196_608
BATCH, QUERY = 64, 512
CAPTURE = ("--cuda-graph-bs-decode", "--cuda-graph-bs")


def _on(command: Command, name: str) -> bool:
    return any(
        command.environment.get(key, "0").lower() in {"1", "true"} for key in (name, name.replace("SGLANG", "SGL"))
    )


@sglang_rule(
    "error",
    reason="gfx1100 has no FP8 matrix unit; the kernels spill registers, fault, or decode at 20-40 tok/s.",
    source=FORK,
    bad=f"{LAUNCH} --kv-cache-dtype fp8_e5m2",
    good=f"{LAUNCH} --kv-cache-dtype bfloat16",
)
def kv_is_bf16(command: Command) -> Iterator[Found]:
    """Find FP8 KV."""
    if (command.get("--kv-cache-dtype") or "").startswith("fp8"):
        yield Found.flag_to("--kv-cache-dtype", "bfloat16", "FP8 KV is slow or faults on gfx1100")


@sglang_rule(
    "warning",
    reason="The pool of two cards with BF16 KV and DFlash2 has 197,144 tokens. A context beyond the pool is accepted, "
    "and a single stream then runs out of memory without a word.",
    source="field report S4",
    bad=f"{LAUNCH} --tp-size 2 --context-length 225280 --speculative-algorithm DFLASH --speculative-num-draft-tokens 8 "
    "--speculative-draft-window-size 2048",
    good=f"{LAUNCH} --tp-size 2 --context-length 196608 --speculative-algorithm DFLASH "
    "--speculative-num-draft-tokens 8 --speculative-draft-window-size 2048",
)
def context_within_the_pool(command: Command) -> Iterator[Found]:
    """Find a context beyond the pool that two cards have beside a DFlash2 drafter."""
    length = command.number("--context-length", 0) or 0
    if command.spec_method == "dflash" and command.cards in {1, 2} and length > POOL:
        yield Found.flag_to("--context-length", str(CONTEXT), f"{length:,} tokens, and the pool has {POOL:,}")


@sglang_rule(
    "warning",
    reason="Without it SGLang takes gptq_marlin for a GPTQ checkpoint, which is CUDA's, and refuses to start.",
    source=FORK,
    bad="python -m sglang.launch_server --model-path /models/Qwen3.8-27B-W4A16-AutoRound-GPTQ",
    good="python -m sglang.launch_server --model-path /models/Qwen3.8-27B-W4A16-AutoRound-GPTQ --quantization gptq",
)
def gptq_is_named(command: Command) -> Iterator[Found]:
    """Find a GPTQ checkpoint, by its name, without --quantization."""
    if re.search(r"gptq|autoround", command.model, re.IGNORECASE) and command.get("--quantization") is None:
        yield Found.flag_to("--quantization", "gptq", f"{command.model} looks like GPTQ")


@sglang_rule(
    "warning",
    reason="The drafter reads the whole context without a window: 28 instead of 45 tok/s at 25,000 tokens.",
    source="https://github.com/xiongyw/sglang/tree/7900xtx-qwen38-27b-tp2pp1",
    bad=f"{LAUNCH} --speculative-algorithm DFLASH --speculative-num-draft-tokens 8",
    good=f"{LAUNCH} --speculative-algorithm DFLASH --speculative-num-draft-tokens 8 "
    "--speculative-draft-window-size 2048",
)
def dflash_has_a_window(command: Command) -> Iterator[Found]:
    """Find DFlash without a draft window."""
    if command.spec_method == "dflash" and command.get("--speculative-draft-window-size") is None:
        yield Found.flag_to("--speculative-draft-window-size", "2048", "the drafter reads the whole context")


@sglang_rule(
    "error",
    reason="A chain of k steps drafts k tokens and verifies k + 1.",
    source="https://docs.sglang.ai/advanced_features/speculative_decoding.html",
    bad=f"{LAUNCH} --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 8",
    good=f"{LAUNCH} --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4",
)
def draft_tokens_follow_the_steps(command: Command) -> Iterator[Found]:
    """Find a chain whose number of draft tokens is not steps + 1."""
    steps, tokens = command.number("--speculative-num-steps"), command.number("--speculative-num-draft-tokens")
    if command.get("--speculative-eagle-topk") == "1" and steps and tokens and tokens != steps + 1:
        yield Found.flag_to("--speculative-num-draft-tokens", str(steps + 1), f"{tokens} for {steps} steps")


@sglang_rule(
    "warning",
    reason="A batch that has no graph decodes kernel by kernel.",
    source="https://docs.sglang.ai/advanced_features/server_arguments.html",
    bad=f"{LAUNCH} --max-running-requests 8 --cuda-graph-bs-decode 1 2 4",
    good=f"{LAUNCH} --max-running-requests 4 --cuda-graph-bs-decode 1 2 4",
)
def graphs_cover_the_requests(command: Command) -> Iterator[Found]:
    """Find a largest captured batch below the running requests."""
    running = command.number("--max-running-requests")
    for flag in CAPTURE:
        sizes = [int(word) for word in (command.get(flag) or "").split() if word.isdigit()]
        if sizes and running and max(sizes) < running:
            yield Found(
                flag=flag,
                message=f"graphs up to {max(sizes)}, requests up to {running}",
                fix=f"add {running} to {flag}",
            )


@sglang_rule(
    "warning",
    reason="Without the extension two cards exchange through RCCL over PCIe, which is far slower for decode.",
    source=FORK,
    bad=f"{LAUNCH} --tp-size 2",
    good=f"{AR} {LAUNCH} --tp-size 2",
)
def custom_all_reduce_is_on(command: Command) -> Iterator[Found]:
    """Find two cards without the RDNA all-reduce."""
    if command.cards > 1 and not _on(command, "SGLANG_RDNA_CUSTOM_AR"):
        yield Found.variable_to("SGLANG_RDNA_CUSTOM_AR", "1", "the cards exchange through RCCL")


@sglang_rule(
    "error",
    reason="The extension's fused all-reduce and norm throws by design, so it must be off where the extension is on.",
    source=FORK,
    bad=f"SGLANG_RDNA_CUSTOM_AR=1 {LAUNCH} --tp-size 2",
    good=f"{AR} {LAUNCH} --tp-size 2",
)
def fused_all_reduce_is_off(command: Command) -> Iterator[Found]:
    """Find the RDNA all-reduce without the switch that turns its fused form off."""
    if _on(command, "SGLANG_RDNA_CUSTOM_AR") and not _on(command, "SGLANG_RDNA_NO_FUSED"):
        yield Found.variable_to("SGLANG_RDNA_NO_FUSED", "1", "the fused kernel throws")


@sglang_rule(
    "error",
    reason="AITER is for CDNA; importing it fails on gfx1100.",
    source="https://github.com/ROCm/aiter/issues/4604",
    bad=f"SGLANG_USE_AITER=1 {LAUNCH}",
    good=f"SGLANG_USE_AITER=0 {LAUNCH}",
)
def sglang_without_aiter(command: Command) -> Iterator[Found]:
    """Find SGLANG_USE_AITER, or the aiter attention backend."""
    if _on(command, "SGLANG_USE_AITER"):
        yield Found.variable_to("SGLANG_USE_AITER", "0", "AITER is for CDNA")
    if command.get("--attention-backend") == "aiter":
        yield Found.flag_to("--attention-backend", "triton", "aiter is for CDNA")


@sglang_rule(
    "warning",
    reason="The RDNA verify kernel takes page size 1, at most 64 requests and 512 draft tokens in all; beyond that it "
    "falls back after one line in the log.",
    source=FORK,
    bad=f"SGLANG_RDNA_VLLM_VERIFY=1 {LAUNCH} --page-size 64 --speculative-algorithm DFLASH "
    "--speculative-num-draft-tokens 8 --speculative-draft-window-size 2048",
    good=f"SGLANG_RDNA_VLLM_VERIFY=1 {LAUNCH} --speculative-algorithm DFLASH --max-running-requests 4 "
    "--speculative-num-draft-tokens 8 --speculative-draft-window-size 2048",
)
def verify_kernel_within_its_limits(command: Command) -> Iterator[Found]:
    """Find settings that the RDNA verify kernel does not take."""
    if not _on(command, "SGLANG_RDNA_VLLM_VERIFY"):
        return
    running, tokens = command.number("--max-running-requests", 1) or 1, command.drafted + 1
    if command.number("--page-size", 1) != 1:
        yield Found.flag_to("--page-size", "1", "the verify kernel takes pages of 1")
    if running > BATCH or running * tokens > QUERY:
        most = min(BATCH, QUERY // tokens)
        yield Found.flag_to(
            "--max-running-requests",
            str(most),
            f"{running} requests x {tokens} tokens are more than the verify kernel takes",
        )


@sglang_rule(
    "error",
    reason="The number of KV splits is a tile of the kernel: only powers of two compile.",
    source="https://triton-lang.org/main/python-api/generated/triton.language.arange.html",
    bad=f"{LAUNCH} --triton-attention-num-kv-splits 24",
    good=f"{LAUNCH} --triton-attention-num-kv-splits 16",
)
def kv_splits_are_a_power_of_two(command: Command) -> Iterator[Found]:
    """Find a number of KV splits that is no power of two."""
    splits = command.number("--triton-attention-num-kv-splits")
    if splits and splits & (splits - 1):
        near = 2 ** round(math.log2(splits))
        flag = "--triton-attention-num-kv-splits"
        yield Found.flag_to(flag, str(near), f"{splits} is no power of two")


@sglang_rule(
    "info",
    reason="SGL_… is an old prefix that is copied to SGLANG_… with a warning, where it still is.",
    source="https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/environ.py",
    bad=f"SGL_RDNA_GEMMA_TRITON=1 {LAUNCH}",
    good=f"SGLANG_RDNA_GEMMA_TRITON=1 {LAUNCH}",
)
def variables_by_their_new_names(command: Command) -> Iterator[Found]:
    """Find variables under the old prefix, but for the few that are read under it."""
    literal = {"SGL_POOL_GUARD", "SGL_RDNA_FP8_DRAFT_HEAD"}
    for name, value in command.environment.items():
        debug = name.startswith(("SGL_RDNA_NO_PEER", "SGL_RDNA_SKIP", "SGL_RDNA_PROBE", "SGL_RDNA_DUMMY"))
        if name.startswith("SGL_") and name not in literal and not debug:
            new = name.replace("SGL_", "SGLANG_", 1)

            def change(given: Command, old: str = name, new: str = new, value: str = value) -> Command:
                return given.with_variable(old, None).with_variable(new, value)

            yield Found(flag=name, message="an old name", fix=f"{new}={value}", change=change)
