"""What engines say in their logs: steps of a start, figures, silent fallbacks, and causes of death. A table.

The wording is the engines' own and changes with them: a line that is not known costs a step in the live view or a
warning, and never decides whether a deployment is ready.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

VLLM = "https://github.com/vllm-project/vllm/blob/main/vllm/"
SGLANG = "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/"
FORK = "https://github.com/StevenChenSE/sglang/blob/gfx1100-support/"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a start; two groups of the pattern are what is done and how much there is."""

    pattern: str
    title: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number that a start reveals; the pattern's first group."""

    pattern: str
    name: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """A line after which the engine runs on, slower or worse than it should.

    Attributes:
        pattern: What the line holds; or, with ``expected``, the line that must come.
        message: What it means, and what to do.
        source: Where that is known from.
        expected: The message counts when the line did not come.
        variables: It counts only under these variables.
        flag: It counts only when the command holds this text.
        cards: It counts from this many cards on.
    """

    pattern: str
    message: str
    source: str
    expected: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    flag: str = ""
    cards: int = 0


STEPS = (
    Step(pattern=r"Starting to load model|Load weight begin", title="loading the model", source=VLLM + "v1/worker"),
    Step(
        pattern=r"Loading .*?shards:?\s.*?(\d+)/(\d+)",
        title="loading shards",
        source=VLLM + "model_executor/model_loader/weight_utils.py",
    ),
    Step(
        pattern=r"Model loading took|Load weight end",
        title="the weights are in place",
        source=VLLM + "v1/worker/gpu_model_runner.py",
    ),
    Step(
        pattern=r"Dynamo bytecode transform|Compiling (?:a graph|kernel)|\b[Aa]utotuning\b|Building extension module",
        title="compiling kernels",
        source=VLLM + "compilation",
    ),
    Step(
        pattern=r"KV cache size: [\d,]+ tokens|KV Cache is allocated",
        title="the KV cache is allocated",
        source=VLLM + "v1/core/kv_cache_utils.py",
    ),
    Step(
        pattern=r"Capturing (?:CUDA )?(?:graphs|graph shapes|batches).*?\s(\d+)/(\d+)",
        title="capturing graphs",
        source=VLLM + "v1/worker/gpu_model_runner.py",
    ),
    Step(
        pattern=r"Capture cuda graph begin",
        title="capturing graphs",
        source=SGLANG + "model_executor/model_runner.py",
    ),
    Step(
        pattern=r"Application startup complete|fired up and ready to roll|Ready: ",
        title="listening",
        source=SGLANG + "entrypoints/http_server.py",
    ),
)

FIGURES = (
    Figure(pattern=r"KV cache size: ([\d,]+) tokens", name="kv_tokens", source=VLLM + "v1/core/kv_cache_utils.py"),
    Figure(pattern=r"max_total_num_tokens=(\d+)", name="kv_tokens", source=SGLANG + "managers/scheduler.py"),
    Figure(pattern=r"#tokens: ([\d,]+)", name="kv_tokens", source=SGLANG + "mem_cache/memory_pool.py"),
    Figure(
        pattern=r"[Ss]etting attention block size to (\d+) tokens",
        name="block_tokens",
        source=VLLM + "model_executor/models/config.py",
    ),
)

FALLBACKS = (
    Fallback(
        pattern=r"failed to load rdna_ar_ext",
        message="the RDNA all-reduce did not load, so cards talk through RCCL and decode is slow: "
        "`gfx1100 verify IMAGE` tells whether the image has it",
        source=FORK + "python/sglang/srt/distributed/device_communicators/custom_all_reduce_ops.py",
    ),
    Fallback(
        pattern=r"using standalone RDNA custom allreduce extension",
        message="SGLANG_RDNA_CUSTOM_AR is set and the RDNA all-reduce did not say that it is used: cards may talk "
        "through RCCL; look for rdna_ar in the log",
        source=FORK + "python/sglang/srt/distributed/device_communicators/custom_all_reduce_ops.py",
        expected=True,
        variables={"SGLANG_RDNA_CUSTOM_AR": "1"},
        cards=2,
    ),
    Fallback(
        pattern=r"\[rdna_ar\] vendor seeding failed",
        message="the all-reduce of the image was not taken, it is compiled at every start: was a file of "
        "scripts/rdna_ar edited after the build?",
        source=FORK + "scripts/rdna_ar/rdna_ar_ext.py",
    ),
    Fallback(
        pattern=r"rdna_unified_verify (?:decode )?unavailable \(",
        message="verification of drafts went back to the plain Triton kernel, which is slower: the line in brackets "
        "says why",
        source=FORK + "python/sglang/srt/layers/attention/triton_backend.py",
    ),
    Fallback(
        pattern=r"rdna_unified_verify ACTIVE",
        message="SGLANG_RDNA_VLLM_VERIFY is set and no prompt went through rdna_unified_verify: it needs page size 1, "
        "plain KV scales, no sliding window and at most 64 sequences",
        source=FORK + "python/sglang/srt/layers/attention/triton_backend.py",
        expected=True,
        variables={"SGLANG_RDNA_VLLM_VERIFY": "1"},
    ),
    Fallback(
        pattern=r"Failed to import from vllm\._",
        message="a library of vLLM's kernels did not load and the engine goes on without it: "
        "`gfx1100 verify IMAGE` names it",
        source=VLLM + "platforms/rocm.py",
        cards=1,
    ),
    Fallback(
        pattern=r"Custom allreduce is disabled",
        message="the custom all-reduce is off, so cards talk through RCCL",
        source=VLLM + "distributed/device_communicators/custom_all_reduce.py",
        cards=2,
    ),
    Fallback(
        pattern=r"Parameter .* not found in params_dict, skip loading",
        message="tensors of the MTP head were left out, so no draft will be accepted: "
        "`gfx1100 checkpoint inspect DIR` tells why",
        source=VLLM + "model_executor/models/qwen3_5_mtp.py",
    ),
    Fallback(
        pattern=r"(?:Overriding|setting) cudagraph_mode(?:=| to )(?:NONE|CUDAGraphMode\.NONE)",
        message="graphs are off, so every step pays its launches",
        source=VLLM + "config/vllm.py",
        cards=1,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What the last lines of a dead server hold, and what they point to with the next step."""

    pattern: str
    step: str


# the first that fits; patterns are read without case
CAUSES = (
    Cause(
        pattern=r"(?:hip|cuda|torch|gpu).{0,40}out ?of ?memory",
        step="the card's memory did not suffice: lower --gpu-memory-utilization (--mem-fraction-static), "
        "--max-model-len or --max-num-seqs; `gfx1100 plan PROFILE` shows the arithmetic",
    ),
    Cause(
        pattern=r"cannot allocate memory|std::bad_alloc|memoryerror",
        step="the host's memory did not suffice: lower the offload cache, or stop what else takes RAM",
    ),
    Cause(
        pattern=r"address already in use|port is already allocated",
        step="its port is taken by another program: choose another port in the profile",
    ),
    Cause(
        pattern=r"failed to infer device type|no hip gpus|unable to open /dev/kfd|no rocm-capable device",
        step="it sees no GPU: `gfx1100 doctor` checks /dev/kfd, the render nodes and their group ids",
    ),
    Cause(
        pattern=r"no module or parameter named .*mtp|in qwen3_5multitokenpredictor|has no attribute 'w2_weight'",
        step="the checkpoint's rules do not fit its MTP tensors: `gfx1100 checkpoint inspect DIR`, "
        "then `gfx1100 checkpoint fix DIR`",
    ),
    Cause(
        pattern=r"bus error|no space left on device.*/dev/shm|unable to allocate shared memory",
        step="the container's /dev/shm is too small: raise shm_bytes in the profile",
    ),
    Cause(
        pattern=r"0x1016|hsail operation resulted in a hardware exception|memory access fault by gpu",
        step="a kernel killed the GPU's queue: `gfx1100 verify` checks the image, `gfx1100 lint PROFILE` the flags",
    ),
    Cause(
        pattern=r"unrecognized arguments|no such option|invalid choice",
        step="the image's engine does not know a flag of the profile: `gfx1100 lint PROFILE` knows renamed ones",
    ),
    Cause(
        pattern=r"hipErrorNoBinaryForGpu|invalid device function|hiperrorinvaliddevicefunction",
        step="the kernels were not built for this card: `gfx1100 verify IMAGE` lists their architectures",
    ),
    Cause(
        pattern=r"tokens that can be stored in kv cache|no available memory for the cache",
        step="the context does not fit into the KV cache: lower --max-model-len; `gfx1100 plan PROFILE` shows more",
    ),
    Cause(
        pattern=r"permission denied.*(?:/dev/kfd|/dev/dri)|(?:/dev/kfd|/dev/dri)\S*.*permission denied",
        step="the container may not open the card: `gfx1100 doctor` shows the group ids that it needs",
    ),
)
