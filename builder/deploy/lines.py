"""What engines say in their logs: steps of a start, figures, silent fallbacks, and causes of death. A table.

The wording is the engines' own and changes with them: a line that is not known costs a step in the live view or a
warning, and never decides whether a deployment is ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

VLLM = "https://github.com/vllm-project/vllm/blob/main/vllm/"
SGLANG = "https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/"
FORK = "https://github.com/StevenChenSE/sglang/blob/gfx1100-support/"


class Step(NamedTuple):
    """A step of a start; two groups of the pattern are what is done and how much there is."""

    pattern: str
    title: str
    source: str


class Figure(NamedTuple):
    """A number that a start reveals; the pattern's first group."""

    pattern: str
    name: str
    source: str


class Fallback(NamedTuple):
    """A line after which the engine runs on, slower or worse than it should.

    Attributes:
        pattern: What the line holds; or, with ``expected``, the line that must come.
        message: What it means, and what to do.
        source: Where that is known from.
        expected: The message counts when the line did not come.
        variables: It counts only under these variables.
        cards: It counts from this many cards on.
    """

    pattern: str
    message: str
    source: str
    expected: bool = False
    variables: Mapping[str, str] = {}
    cards: int = 0


STEPS = (
    Step(r"Starting to load model|Load weight begin", "loading the model", VLLM + "v1/worker"),
    Step(
        r"Loading .*?shards:?\s.*?(\d+)/(\d+)", "loading shards", VLLM + "model_executor/model_loader/weight_utils.py"
    ),
    Step(r"Model loading took|Load weight end", "the weights are in place", VLLM + "v1/worker/gpu_model_runner.py"),
    Step(
        r"Dynamo bytecode transform|Compiling (?:a graph|kernel)|\b[Aa]utotuning\b|Building extension module",
        "compiling kernels",
        VLLM + "compilation",
    ),
    Step(
        r"KV cache size: [\d,]+ tokens|KV Cache is allocated",
        "the KV cache is allocated",
        VLLM + "v1/core/kv_cache_utils.py",
    ),
    Step(
        r"Capturing (?:CUDA )?(?:graphs|graph shapes|batches).*?\s(\d+)/(\d+)",
        "capturing graphs",
        VLLM + "v1/worker/gpu_model_runner.py",
    ),
    Step(r"Capture cuda graph begin", "capturing graphs", SGLANG + "model_executor/model_runner.py"),
    Step(
        r"Application startup complete|fired up and ready to roll|Ready: ",
        "listening",
        SGLANG + "entrypoints/http_server.py",
    ),
)

FIGURES = (
    Figure(r"KV cache size: ([\d,]+) tokens", "kv_tokens", VLLM + "v1/core/kv_cache_utils.py"),
    Figure(r"max_total_num_tokens=(\d+)", "kv_tokens", SGLANG + "managers/scheduler.py"),
    Figure(r"#tokens: ([\d,]+)", "kv_tokens", SGLANG + "mem_cache/memory_pool.py"),
    Figure(
        r"[Ss]etting attention block size to (\d+) tokens", "block_tokens", VLLM + "model_executor/models/config.py"
    ),
)

FALLBACKS = (
    Fallback(
        r"failed to load rdna_ar_ext",
        "the RDNA all-reduce did not load, so cards talk through RCCL and decode is slow: "
        "`gfx1100 verify IMAGE` tells whether the image has it",
        FORK + "python/sglang/srt/distributed/device_communicators/custom_all_reduce_ops.py",
    ),
    Fallback(
        r"using standalone RDNA custom allreduce extension",
        "SGLANG_RDNA_CUSTOM_AR is set and the RDNA all-reduce did not say that it is used: cards may talk "
        "through RCCL; look for rdna_ar in the log",
        FORK + "python/sglang/srt/distributed/device_communicators/custom_all_reduce_ops.py",
        expected=True,
        variables={"SGLANG_RDNA_CUSTOM_AR": "1"},
        cards=2,
    ),
    Fallback(
        r"\[rdna_ar\] vendor seeding failed",
        "the all-reduce of the image was not taken, it is compiled at every start: was a file of "
        "scripts/rdna_ar edited after the build?",
        FORK + "scripts/rdna_ar/rdna_ar_ext.py",
    ),
    Fallback(
        r"rdna_unified_verify (?:decode )?unavailable \(",
        "verification of drafts went back to the plain Triton kernel, which is slower: the line in brackets says why",
        FORK + "python/sglang/srt/layers/attention/triton_backend.py",
    ),
    Fallback(
        r"rdna_unified_verify ACTIVE",
        "SGLANG_RDNA_VLLM_VERIFY is set and no prompt went through rdna_unified_verify: it needs page size 1, "
        "plain KV scales, no sliding window and at most 64 sequences",
        FORK + "python/sglang/srt/layers/attention/triton_backend.py",
        expected=True,
        variables={"SGLANG_RDNA_VLLM_VERIFY": "1"},
    ),
    Fallback(
        r"Failed to import from vllm\._",
        "a library of vLLM's kernels did not load and the engine goes on without it: `gfx1100 verify IMAGE` names it",
        VLLM + "platforms/rocm.py",
        cards=1,
    ),
    Fallback(
        r"Custom allreduce is disabled",
        "the custom all-reduce is off, so cards talk through RCCL",
        VLLM + "distributed/device_communicators/custom_all_reduce.py",
        cards=2,
    ),
    Fallback(
        r"Parameter .* not found in params_dict, skip loading",
        "tensors of the MTP head were left out, so no draft will be accepted: "
        "`gfx1100 checkpoint inspect DIR` tells why",
        VLLM + "model_executor/models/qwen3_5_mtp.py",
    ),
    Fallback(
        r"(?:Overriding|setting) cudagraph_mode(?:=| to )(?:NONE|CUDAGraphMode\.NONE)",
        "graphs are off, so every step pays its launches",
        VLLM + "config/vllm.py",
        cards=1,
    ),
)


class Cause(NamedTuple):
    """What the last lines of a dead server hold, and what they point to with the next step."""

    pattern: str
    step: str


# the first that fits; patterns are read without case
CAUSES = (
    Cause(
        r"(?:hip|cuda|torch|gpu).{0,40}out ?of ?memory",
        "the card's memory did not suffice: lower --gpu-memory-utilization (--mem-fraction-static), "
        "--max-model-len or --max-num-seqs; `gfx1100 plan PROFILE` shows the arithmetic",
    ),
    Cause(
        r"cannot allocate memory|std::bad_alloc|memoryerror",
        "the host's memory did not suffice: lower the offload cache, or stop what else takes RAM",
    ),
    Cause(
        r"address already in use|port is already allocated",
        "its port is taken by another program: choose another port in the profile",
    ),
    Cause(
        r"failed to infer device type|no hip gpus|unable to open /dev/kfd|no rocm-capable device",
        "it sees no GPU: `gfx1100 doctor` checks /dev/kfd, the render nodes and their group ids",
    ),
    Cause(
        r"no module or parameter named .*mtp|in qwen3_5multitokenpredictor|has no attribute 'w2_weight'",
        "the checkpoint's rules do not fit its MTP tensors: `gfx1100 checkpoint inspect DIR`, "
        "then `gfx1100 checkpoint fix DIR`",
    ),
    Cause(
        r"bus error|no space left on device.*/dev/shm|unable to allocate shared memory",
        "the container's /dev/shm is too small: raise shm_bytes in the profile",
    ),
    Cause(
        r"0x1016|hsail operation resulted in a hardware exception|memory access fault by gpu",
        "a kernel killed the GPU's queue: `gfx1100 verify` checks the image, `gfx1100 lint PROFILE` the flags",
    ),
    Cause(
        r"unrecognized arguments|no such option|invalid choice",
        "the image's engine does not know a flag of the profile: `gfx1100 lint PROFILE` knows renamed ones",
    ),
    Cause(
        r"hipErrorNoBinaryForGpu|invalid device function|hiperrorinvaliddevicefunction",
        "the kernels were not built for this card: `gfx1100 verify IMAGE` lists their architectures",
    ),
    Cause(
        r"tokens that can be stored in kv cache|no available memory for the cache",
        "the context does not fit into the KV cache: lower --max-model-len; `gfx1100 plan PROFILE` shows more",
    ),
    Cause(
        r"permission denied.*(?:/dev/kfd|/dev/dri)|(?:/dev/kfd|/dev/dri)\S*.*permission denied",
        "the container may not open the card: `gfx1100 doctor` shows the group ids that it needs",
    ),
)
