"""Rules about the KV cache and the attention backend of vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.lint.rule import Found, drop_flag, set_flag, vllm_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lint.command import Command

HIGH = 0.95  # the share of field reports S1 and S2
NATIVE = 262_144
DTYPE, BACKEND = "--kv-cache-dtype", "--attention-backend"
OCTAVE = ("octave_k3v4", "octave_k3v3", "octave_k3v3_compact")
# vllm/config/cache.py of the fork at 502e46855, and the octave formats of vllm-project/vllm#59774
DTYPES = frozenset(
    (
        *("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4"),
        *("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
        *("int2_per_token_head", "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"),
        *OCTAVE,
    )
)
# what of vllm/v1/attention/backends/registry.py a Radeon can be asked for
BACKENDS = frozenset(
    (
        *("TRITON_ATTN", "ROCM_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN", "ROCM_OCTAVE", "FLASH_ATTN"),
        *("FLEX_ATTENTION", "TURBOQUANT", "TORCH_SDPA", "TREE_ATTN"),
    )
)


@vllm_rule(
    "error",
    reason="The octave formats are read by the ROCM_OCTAVE backend alone.",
    source="https://github.com/vllm-project/vllm/pull/59774",
    bad="vllm serve m --kv-cache-dtype octave_k3v4 --attention-backend TRITON_ATTN",
    good="vllm serve m --kv-cache-dtype octave_k3v4 --attention-backend ROCM_OCTAVE",
)
def octave_needs_its_backend(command: Command) -> Iterator[Found]:
    """Find an octave format under another backend."""
    backend = command.get(BACKEND)
    if (command.get(DTYPE) or "").startswith("octave") and backend not in {None, "ROCM_OCTAVE"}:
        yield Found.flag_to(BACKEND, "ROCM_OCTAVE", f"{backend} does not read {command.get(DTYPE)}")


@vllm_rule(
    "error",
    reason="ROCM_OCTAVE reads the octave formats alone.",
    source="https://github.com/vllm-project/vllm/pull/59774",
    bad="vllm serve m --kv-cache-dtype fp8 --attention-backend ROCM_OCTAVE",
    good="vllm serve m --kv-cache-dtype octave_k3v3 --attention-backend ROCM_OCTAVE",
)
def octave_backend_needs_its_format(command: Command) -> Iterator[Found]:
    """Find the octave backend under another format."""
    dtype = command.get(DTYPE) or "auto"
    if command.get(BACKEND) == "ROCM_OCTAVE" and not dtype.startswith("octave"):
        yield Found(
            flag=DTYPE,
            message=f"ROCM_OCTAVE does not read {dtype}",
            fix=f"{DTYPE} octave_k3v4, or another backend",
            change=set_flag(DTYPE, "octave_k3v4"),
        )


@vllm_rule(
    "error",
    reason="Without the operators octave_decode and octave_cache_store the backend refuses to start; they came to the "
    "fork after its other kernels, and upstream's wheel has none.",
    source="https://github.com/vllm-project/vllm/pull/59774",
    bad="#ops=gptq_gemm_rdna3 vllm serve m --kv-cache-dtype octave_k3v4",
    good="#ops=octave_decode,octave_cache_store vllm serve m --kv-cache-dtype octave_k3v4",
)
def octave_operators_in_the_image(command: Command) -> Iterator[Found]:
    """Find an octave format with an image that is known to lack its operators."""
    missing = {"octave_decode", "octave_cache_store"} - (command.ops or frozenset())
    if command.ops is not None and missing and (command.get(DTYPE) or "").startswith("octave"):
        yield Found(
            flag=DTYPE,
            message=f"the image has no {' and no '.join(sorted(missing))}",
            fix="build the fork at a commit with octave, or take int8_per_token_head with TRITON_ATTN",
        )


@vllm_rule(
    "error",
    reason="An unknown format ends the start with a list of the known ones, after minutes of loading in some versions.",
    source="https://github.com/vllm-project/vllm/blob/main/vllm/config/cache.py",
    bad="vllm serve m --kv-cache-dtype int8",
    good="vllm serve m --kv-cache-dtype int8_per_token_head",
)
def kv_format_is_known(command: Command) -> Iterator[Found]:
    """Find a KV format that no version has."""
    import difflib

    dtype = command.get(DTYPE)
    if dtype is not None and dtype not in DTYPES:
        near = difflib.get_close_matches(dtype, sorted(DTYPES), n=1, cutoff=0.3)
        yield Found(flag=DTYPE, message=f"{dtype} is no KV format", fix=f"{DTYPE} {near[0] if near else 'auto'}")


@vllm_rule(
    "error",
    reason="An unknown backend is refused with a list of the valid ones.",
    source="https://github.com/vllm-project/vllm/blob/main/vllm/v1/attention/backends/registry.py",
    bad="vllm serve m --attention-backend TRITON",
    good="vllm serve m --attention-backend TRITON_ATTN",
)
def attention_backend_is_known(command: Command) -> Iterator[Found]:
    """Find an attention backend that a Radeon does not have."""
    backend = command.get(BACKEND)
    if backend is not None and backend.upper() not in BACKENDS:
        yield Found(flag=BACKEND, message=f"{backend} is no backend of a Radeon", fix=f"{BACKEND} TRITON_ATTN")


@vllm_rule(
    "error",
    reason="AITER's attention kernels are for CDNA. On gfx1100 the unified one hangs without a word and can take the "
    "driver down; its shared memory is larger than RDNA has.",
    source="https://github.com/vllm-project/vllm/issues/56021",
    bad="vllm serve m --attention-backend ROCM_AITER_UNIFIED_ATTN",
    good="vllm serve m --attention-backend TRITON_ATTN",
)
def no_aiter_attention(command: Command) -> Iterator[Found]:
    """Find an AITER attention backend."""
    if (command.get(BACKEND) or "").upper().startswith("ROCM_AITER"):
        yield Found.flag_to(BACKEND, "TRITON_ATTN", f"{command.get(BACKEND)} hangs on gfx1100")


@vllm_rule(
    "error",
    reason="TurboQuant with an MTP drafter gives garbage: GSM8K fell to about 1 %.",
    source="https://github.com/vllm-project/vllm/pull/59774",
    bad="vllm serve m --kv-cache-dtype turboquant_k3v4_nc --spec-method mtp --spec-tokens 3",
    good="vllm serve m --kv-cache-dtype turboquant_k3v4_nc",
)
def no_turboquant_with_mtp(command: Command) -> Iterator[Found]:
    """Find TurboQuant beside MTP."""
    if command.mtp and ((command.get(DTYPE) or "").startswith("turboquant") or command.get(BACKEND) == "TURBOQUANT"):
        yield Found(
            flag=DTYPE, message="TurboQuant and MTP together give garbage", fix=f"{DTYPE} octave_k3v4, or no MTP"
        )


@vllm_rule(
    "error",
    reason="A 16-bit KV format that differs from the model's type is reinterpreted bit by bit, and the MTP drafter "
    "stops on a product of the two.",
    source="https://github.com/vllm-project/vllm/issues/54338",
    bad="vllm serve m --dtype float16 --kv-cache-dtype bfloat16",
    good="vllm serve m --dtype float16 --kv-cache-dtype auto",
)
def sixteen_bit_kv_follows_the_model(command: Command) -> Iterator[Found]:
    """Find a 16-bit KV format that contradicts --dtype."""
    names = {"half": "float16", "float16": "float16", "bfloat16": "bfloat16"}
    kv, model = names.get(command.get(DTYPE) or ""), names.get(command.get("--dtype") or "")
    if kv and model and kv != model:
        yield Found.flag_to(DTYPE, "auto", f"{kv} KV under a {model} model")


@vllm_rule(
    "info",
    reason="gfx1100 has no FP8 matrix unit: every read of the cache is converted in software. int8 and octave have "
    "kernels of their own in the fork and hold more tokens.",
    source="field report S4",
    bad="vllm serve m --kv-cache-dtype fp8",
    good="vllm serve m --kv-cache-dtype int8_per_token_head",
)
def fp8_kv_is_software(command: Command) -> Iterator[Found]:
    """Tell what fp8 KV costs."""
    if (command.get(DTYPE) or "").startswith("fp8"):
        yield Found(
            flag=DTYPE,
            message="fp8 KV saves memory and slows deep contexts down",
            fix=f"{DTYPE} int8_per_token_head with the fork, or keep it for memory's sake",
        )


@vllm_rule(
    "warning",
    reason="The kernels of int8 and fp8 per token and head are Triton's; another backend refuses the format.",
    source="https://github.com/vllm-project/vllm/blob/main/vllm/v1/attention/backends/triton_attn.py",
    bad="vllm serve m --kv-cache-dtype int8_per_token_head --attention-backend ROCM_ATTN",
    good="vllm serve m --kv-cache-dtype int8_per_token_head --attention-backend TRITON_ATTN",
)
def per_token_head_needs_triton(command: Command) -> Iterator[Found]:
    """Find a per-token-head format under another backend."""
    backend = command.get(BACKEND)
    if (command.get(DTYPE) or "").endswith("per_token_head") and backend not in {None, "TRITON_ATTN"}:
        yield Found.flag_to(BACKEND, "TRITON_ATTN", f"{command.get(DTYPE)} under {backend}")


@vllm_rule(
    "info",
    reason="0.95 leaves 1.2 GB of a 24 GB card, of which graphs take two thirds; a screen on the card takes the rest.",
    source="field report S2 (memory per card)",
    bad="vllm serve m --gpu-memory-utilization 0.97",
    good="vllm serve m --gpu-memory-utilization 0.92",
)
def utilization_leaves_room(command: Command) -> Iterator[Found]:
    """Tell how little a high utilization leaves."""
    try:
        share = float(command.get("--gpu-memory-utilization") or 0.9)
    except ValueError:
        return
    if share >= HIGH:
        yield Found(
            flag="--gpu-memory-utilization",
            message=f"{share:g} leaves {(1 - share) * 24:.1f} GB of a 24 GB card for graphs and everything else",
            fix="0.92 when the card drives a screen or the start runs out of memory",
        )


@vllm_rule(
    "error",
    reason="A context beyond the model's own length is refused without the variable, and with it positions are "
    "extrapolated: fit for a kernel test, not for answers.",
    source="field report S1 (380K stress test)",
    bad="vllm serve m --max-model-len 389120",
    good="VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve m --max-model-len 389120",
)
def context_within_the_model(command: Command) -> Iterator[Found]:
    """Find a context beyond 262,144 tokens, what the Qwen3.5 to 3.8 models are trained for."""
    length = command.number("--max-model-len", 0) or 0
    if length > NATIVE and command.environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
        yield Found.flag_to(
            "--max-model-len", "262144", f"{length:,} tokens are more than the 262,144 of the models that run here"
        )


@vllm_rule(
    "info",
    reason="The model's code is part of the engine; the flag lets the checkpoint bring code of its own that runs with "
    "the server's rights.",
    source="https://docs.vllm.ai/en/latest/usage/security.html",
    bad="vllm serve m --trust-remote-code",
    good="vllm serve m",
)
def no_needless_remote_code(command: Command) -> Iterator[Found]:
    """Find --trust-remote-code."""
    if command.on("--trust-remote-code"):
        yield Found(
            flag="--trust-remote-code",
            message="code of the checkpoint may run in the server",
            fix="take it out; the Qwen models need none",
            change=drop_flag("--trust-remote-code"),
        )
