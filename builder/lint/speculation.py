"""Rules about drafting ahead (MTP and its relatives) and about graphs in vLLM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.lint.rule import Found, drop_flag, set_flag, vllm_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lint.command import Command

CAPTURE = "--max-cudagraph-capture-size"
SPEC = "--speculative-config"
SHORT_CONTEXT = 8192


@vllm_rule(
    "warning",
    reason="A step verifies 1 + k tokens a sequence. Batches beyond the capture size run without graphs, and octave "
    "splits its KV less.",
    source="field report S1 (speed falls at more than four streams with 16)",
    bad="vllm serve m --max-num-seqs 8 --spec-method mtp --spec-tokens 3 --max-cudagraph-capture-size 16",
    good="vllm serve m --max-num-seqs 8 --spec-method mtp --spec-tokens 3 --max-cudagraph-capture-size 32",
)
def capture_size_covers_the_batch(command: Command) -> Iterator[Found]:
    """Find a capture size below sequences x (1 + drafted tokens)."""
    capture, sequences = command.number(CAPTURE), command.number("--max-num-seqs")
    if capture is None or sequences is None:
        return
    needed = sequences * (1 + command.drafted)
    if capture < needed:
        yield Found.flag_to(
            CAPTURE,
            str(needed),
            f"{capture} covers {capture // (1 + command.drafted)} of {sequences} sequences with "
            f"{1 + command.drafted} tokens each",
        )


@vllm_rule(
    "error",
    reason="The drafter meets a compile fault of inductor in the interactivity mode.",
    source="field report S3",
    bad="vllm serve m --performance-mode interactivity --spec-method mtp --spec-tokens 3",
    good="vllm serve m --performance-mode throughput --spec-method mtp --spec-tokens 3",
)
def mtp_without_interactivity(command: Command) -> Iterator[Found]:
    """Find the interactivity mode beside MTP."""
    if command.mtp and command.get("--performance-mode") == "interactivity":
        yield Found.flag_to("--performance-mode", "throughput", "interactivity does not compile with the MTP drafter")


@vllm_rule(
    "error",
    reason="Qwen3.5's MTP raises NotImplementedError for the mamba cache mode all.",
    source="https://github.com/vllm-project/vllm/blob/main/vllm/model_executor/models/qwen3_5_mtp.py",
    bad="vllm serve m --spec-method mtp --spec-tokens 3 --mamba-cache-mode all",
    good="vllm serve m --spec-method mtp --spec-tokens 3 --mamba-cache-mode align",
)
def mtp_without_mamba_cache_all(command: Command) -> Iterator[Found]:
    """Find the mamba cache mode all beside MTP."""
    if command.mtp and command.get("--mamba-cache-mode") == "all":
        yield Found.flag_to("--mamba-cache-mode", "align", "MTP does not know the mamba cache mode all")


@vllm_rule(
    "warning",
    reason="With TRITON_ATTN the drafter reads the whole KV again at every step: 13.8 instead of 45.7 tok/s at 16K.",
    source="field report S3",
    bad="vllm serve m --attention-backend TRITON_ATTN --max-model-len 262144 --spec-method mtp --spec-tokens 3",
    good="vllm serve m --attention-backend TRITON_ATTN --max-model-len 8192 --spec-method mtp --spec-tokens 3",
)
def mtp_for_short_contexts(command: Command) -> Iterator[Found]:
    """Find MTP with Triton attention and a long context."""
    length = command.number("--max-model-len")
    slow = command.get("--attention-backend") in {None, "TRITON_ATTN"}
    if command.mtp and slow and not (command.get("--kv-cache-dtype") or "").startswith("octave"):
        if length is not None and length <= SHORT_CONTEXT:
            return
        told = "the model's whole context" if length is None else f"{length:,} tokens"
        yield Found(
            flag="--max-model-len",
            message=f"MTP with TRITON_ATTN over {told}: slower than no drafting beyond some 2,000 tokens",
            fix="octave KV with ROCM_OCTAVE, or no MTP, or --max-model-len 8192",
        )


@vllm_rule(
    "error",
    reason="The same setting in --speculative-config and in a --spec-… flag is a ValueError.",
    source="https://github.com/vllm-project/vllm/blob/main/vllm/engine/arg_utils.py",
    bad="""vllm serve m --spec-tokens 3 --speculative-config '{"method":"mtp","num_speculative_tokens":3}'""",
    good="vllm serve m --spec-method mtp --spec-tokens 3",
)
def speculation_is_said_once(command: Command) -> Iterator[Found]:
    """Find one setting of speculative decoding in two places."""
    given = command.json(SPEC)
    for flag, key in (
        ("--spec-method", "method"),
        ("--spec-tokens", "num_speculative_tokens"),
        ("--spec-model", "model"),
    ):
        if key in given and command.get(flag) is not None:
            yield Found(
                flag=flag,
                message=f"{flag} and {key} of {SPEC} say the same thing",
                fix=f"drop {flag}",
                change=drop_flag(flag),
            )


@vllm_rule(
    "error",
    reason="A draft method without a number of tokens is refused, as is a number without a method or a model.",
    source="https://docs.vllm.ai/en/latest/features/spec_decode/",
    bad="vllm serve m --spec-method mtp",
    good="vllm serve m --spec-method mtp --spec-tokens 3",
)
def speculation_is_whole(command: Command) -> Iterator[Found]:
    """Find half a setting of speculative decoding."""
    model = command.get("--spec-model") or command.json(SPEC).get("model")
    if command.spec_method and not command.drafted:
        yield Found(
            flag="--spec-tokens",
            message=f"{command.spec_method} without a number of drafted tokens",
            fix="--spec-tokens 3",
            change=set_flag("--spec-tokens", "3") if command.get(SPEC) is None else None,
        )
    elif command.drafted and not command.spec_method and not model:
        yield Found(flag="--spec-method", message="drafted tokens without a method", fix="--spec-method mtp")


@vllm_rule(
    "info",
    reason="qwen3_5_mtp and qwen3_next_mtp are old names that the engine turns into mtp with a warning.",
    source="https://github.com/vllm-project/vllm/blob/main/vllm/config/speculative.py",
    bad="vllm serve m --spec-method qwen3_5_mtp --spec-tokens 3",
    good="vllm serve m --spec-method mtp --spec-tokens 3",
)
def mtp_by_its_name(command: Command) -> Iterator[Found]:
    """Find an old name of the MTP method."""
    if not command.mtp or command.spec_method == "mtp":
        return
    config = command.json(SPEC)
    if "method" in config:
        change = set_flag(SPEC, json.dumps({**config, "method": "mtp"}))
        yield Found(flag=SPEC, message=f"{command.spec_method} is an old name", fix='"method": "mtp"', change=change)
    else:
        yield Found.flag_to("--spec-method", "mtp", f"{command.spec_method} is an old name")


@vllm_rule(
    "error",
    reason="What is no JSON object ends the start.",
    source="https://docs.vllm.ai/en/latest/configuration/engine_args/",
    bad="vllm serve m --kv-transfer-config {kv_role:kv_both}",
    good="""vllm serve m --kv-transfer-config '{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both"}'""",
)
def json_flags_are_json(command: Command) -> Iterator[Found]:
    """Find a JSON flag whose value is no JSON object; a shell that ate the quotes is the usual cause."""
    for flag in ("--kv-transfer-config", SPEC, "--compilation-config", "--override-generation-config"):
        value = command.get(flag)
        if not value or value.startswith("$"):  # a variable that is not known here
            continue
        # vLLM takes a level of compilation as well
        forms = (dict, int) if flag == "--compilation-config" else (dict,)
        try:
            sound = isinstance(json.loads(value), forms)
        except ValueError:
            sound = False
        if not sound:
            yield Found(
                flag=flag,
                message=f"{value[:60]!r} is no JSON object",
                fix="put it in single quotes, its keys in double ones",
            )


@vllm_rule(
    "warning",
    reason="Without graphs every kernel of a decode step is launched by itself, dearest where steps are short.",
    source="https://docs.vllm.ai/en/latest/configuration/conserving_memory/",
    bad="vllm serve m --enforce-eager",
    good="vllm serve m",
)
def graphs_are_on(command: Command) -> Iterator[Found]:
    """Find --enforce-eager."""
    if command.on("--enforce-eager"):
        yield Found(
            flag="--enforce-eager",
            message="no graphs: decode is launch-bound",
            fix="take it out, or lower --max-cudagraph-capture-size when memory is short",
        )
