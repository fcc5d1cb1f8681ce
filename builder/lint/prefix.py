"""Rules about what vLLM keeps: the prefix cache of hybrid models, the cache in RAM, and flags by version."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.lint.rule import Found, drop_flag, set_flag, vllm_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.lint.command import Command

TRANSFER, MATCH, RETENTION = "--kv-transfer-config", "--prefix-match-unit", "--prefix-cache-retention-interval"
CACHING, SHARED = "--enable-prefix-caching", "--enable-mamba-shared-prefix-checkpoint"
FINE_GRAINED = "--enable-mamba-fine-grained-prefix-cache"
EXTRA = "kv_connector_extra_config"
READ_KEYS = frozenset({"cpu_bytes_to_use", "cpu_bytes_to_use_per_rank", "lazy_offload"})
# the first release that is known to have a flag
SINCE = {RETENTION: (0, 30), MATCH: (0, 30), SHARED: (0, 31), FINE_GRAINED: (0, 30)}
# blocks of the record's model on two cards, by KV format: the log's "attention block size"
BLOCKS = {"int8_per_token_head": 1584, "octave_k3v4": 3296}
CONNECTOR = "SimpleCPUOffloadConnector"
SOURCE = (
    "https://github.com/vllm-project/vllm/blob/main/vllm/distributed/kv_transfer/kv_connector/v1/"
    "simple_cpu_offload_connector.py"
)
GOOD = """'{"kv_connector":"SimpleCPUOffloadConnector","kv_connector_extra_config":{"cpu_bytes_to_use":32212254720}}'"""


def _extra(command: Command) -> dict[str, Any]:
    value = command.json(TRANSFER).get(EXTRA)
    return value if isinstance(value, dict) else {}


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _offloads(command: Command) -> bool:
    return command.json(TRANSFER).get("kv_connector") == CONNECTOR


def _with_extra(extra: dict[str, Any]) -> Callable[[Command], Command]:
    return lambda command: command.with_flag(TRANSFER, json.dumps({**command.json(TRANSFER), EXTRA: extra}))


@vllm_rule(
    "error",
    reason="SimpleCPUOffloadConnector reads cpu_bytes_to_use (of the whole server), cpu_bytes_to_use_per_rank and "
    "lazy_offload. What stands under another key is ignored, and the cache has 8 GiB.",
    source=SOURCE,
    bad="vllm serve m --enable-prefix-caching --kv-transfer-config "
    """'{"kv_connector":"SimpleCPUOffloadConnector","kv_connector_extra_config":{"cpu_capacity_bytes":32212254720}}'""",
    good=f"vllm serve m --enable-prefix-caching --kv-transfer-config {GOOD}",
)
def offload_keys_are_read(command: Command) -> Iterator[Found]:
    """Find keys of the CPU cache that nothing reads."""
    extra = _extra(command)
    unread = sorted(set(extra) - READ_KEYS)
    if not _offloads(command) or not unread:
        return
    kept = {key: value for key, value in extra.items() if key in READ_KEYS}
    size = next((extra[key] for key in unread if "bytes" in key and isinstance(extra[key], int)), None)
    if size is not None and "cpu_bytes_to_use" not in kept and "cpu_bytes_to_use_per_rank" not in kept:
        kept["cpu_bytes_to_use"] = size
    yield Found(
        flag=TRANSFER,
        message=f"nothing reads {', '.join(unread)}"
        + ("" if "cpu_bytes_to_use" in extra else "; the cache gets 8 GiB in all"),
        fix=f'"{EXTRA}": {json.dumps(kept)}',
        change=_with_extra(kept),
    )


@vllm_rule(
    "error",
    reason='lazy_offload goes through bool(), so the text "false" is true.',
    source=SOURCE,
    bad="vllm serve m --enable-prefix-caching --kv-transfer-config "
    """'{"kv_connector":"SimpleCPUOffloadConnector","kv_connector_extra_config":{"lazy_offload":"false"}}'""",
    good="vllm serve m --enable-prefix-caching --kv-transfer-config "
    """'{"kv_connector":"SimpleCPUOffloadConnector","kv_connector_extra_config":{"lazy_offload":false}}'""",
)
def lazy_offload_is_a_boolean(command: Command) -> Iterator[Found]:
    """Find lazy_offload as a text."""
    given = _extra(command).get("lazy_offload")
    if _offloads(command) and isinstance(given, str):
        wanted = given.lower() in {"true", "1", "yes"}
        yield Found(
            flag=TRANSFER,
            message=f'lazy_offload is the text "{given}", which counts as true',
            fix=f'"lazy_offload": {json.dumps(wanted)}',
            change=_with_extra({**_extra(command), "lazy_offload": wanted}),
        )


@vllm_rule(
    "error",
    reason="The CPU cache holds blocks by their prefix hash; without prefix caching it is never asked.",
    source=SOURCE,
    bad=f"vllm serve m --no-enable-prefix-caching --kv-transfer-config {GOOD}",
    good=f"vllm serve m --enable-prefix-caching --kv-transfer-config {GOOD}",
)
def offload_needs_prefix_caching(command: Command) -> Iterator[Found]:
    """Find a CPU cache without prefix caching, which hybrid models have off by default."""
    if _offloads(command) and not command.on(CACHING):
        yield Found(
            flag=CACHING,
            message="the CPU cache is never used without prefix caching",
            fix=CACHING,
            change=lambda given: given.without_flag("--no-enable-prefix-caching").with_flag(CACHING, None),
        )


@vllm_rule(
    "error",
    reason="ROCM_ATTN lays its cache out in a way that KV connectors do not know.",
    source=SOURCE,
    bad=f"vllm serve m --attention-backend ROCM_ATTN --enable-prefix-caching --kv-transfer-config {GOOD}",
    good=f"vllm serve m --attention-backend TRITON_ATTN --enable-prefix-caching --kv-transfer-config {GOOD}",
)
def offload_not_with_rocm_attention(command: Command) -> Iterator[Found]:
    """Find a KV connector beside ROCM_ATTN."""
    if command.json(TRANSFER).get("kv_connector") and command.get("--attention-backend") == "ROCM_ATTN":
        yield Found.flag_to("--attention-backend", "TRITON_ATTN", "ROCM_ATTN does not go with a KV connector")


@vllm_rule(
    "warning",
    reason="Blocks are found by hashes that must be the same in every worker and after a restart; Python's hashes are "
    "random unless PYTHONHASHSEED is set.",
    source="https://docs.vllm.ai/en/latest/design/prefix_caching/",
    bad=f"vllm serve m --enable-prefix-caching --kv-transfer-config {GOOD}",
    good=f"PYTHONHASHSEED=0 vllm serve m --enable-prefix-caching --kv-transfer-config {GOOD}",
)
def offload_with_a_hash_seed(command: Command) -> Iterator[Found]:
    """Find a KV connector without PYTHONHASHSEED."""
    if command.json(TRANSFER).get("kv_connector") and not command.environment.get("PYTHONHASHSEED", "").isdigit():
        yield Found.variable_to("PYTHONHASHSEED", "0", "block hashes differ between processes")


@vllm_rule(
    "warning",
    reason="Matching in smaller units does something only together with shared checkpoints of the recurrent state.",
    source="https://github.com/vllm-project/vllm/pull/46384",
    bad="vllm serve m --enable-prefix-caching --prefix-match-unit 16",
    good="vllm serve m --enable-prefix-caching --prefix-match-unit 16 --spec-method mtp --spec-tokens 3 "
    "--enable-mamba-shared-prefix-checkpoint",
)
def match_unit_needs_checkpoints(command: Command) -> Iterator[Found]:
    """Find --prefix-match-unit alone."""
    if command.get(MATCH) is not None and not (command.on(SHARED) or command.on(FINE_GRAINED)):
        flag = FINE_GRAINED if command.version and command.version < SINCE[SHARED] else SHARED
        useful = command.mtp and command.on(CACHING)
        yield Found(
            flag=MATCH,
            message="alone it does nothing for a hybrid model",
            fix=f"add {flag}" if useful else f"take it out: {flag} needs MTP and prefix caching",
            change=set_flag(flag, None) if useful else drop_flag(MATCH),
        )


@vllm_rule(
    "warning",
    reason="Shared checkpoints act only with prefix caching, a drafter of the MTP or EAGLE kind, and a match unit "
    "below the block.",
    source="https://github.com/vllm-project/vllm/pull/52216",
    bad="vllm serve m --enable-prefix-caching --enable-mamba-shared-prefix-checkpoint",
    good="vllm serve m --enable-prefix-caching --prefix-match-unit 16 --spec-method mtp --spec-tokens 3 "
    "--enable-mamba-shared-prefix-checkpoint",
)
def checkpoints_need_their_conditions(command: Command) -> Iterator[Found]:
    """Find shared checkpoints without what they need."""
    if not (command.on(SHARED) or command.on(FINE_GRAINED)):
        return
    drafts = command.mtp or command.spec_method.startswith("eagle")
    missing = [
        name
        for name, there in (
            (CACHING, command.on(CACHING)),
            ("--spec-method mtp --spec-tokens 3", drafts),
            (f"{MATCH} 16", command.get(MATCH) is not None),
        )
        if not there
    ]
    if missing:
        yield Found(
            flag=SHARED, message=f"it does nothing without {', '.join(missing)}", fix=f"add {' '.join(missing)}"
        )


@vllm_rule(
    "warning",
    reason="The interval must be a multiple of the block that the log reports, and the block changes with the KV "
    "format: 1,584 tokens for int8 and 3,296 for octave_k3v4 with the 27B model on two cards. With MTP an interval "
    "of 0 may give no hits at all.",
    source="https://github.com/vllm-project/vllm/pull/52216",
    bad="vllm serve m --kv-cache-dtype int8_per_token_head --prefix-cache-retention-interval 3296",
    good="vllm serve m --kv-cache-dtype octave_k3v4 --prefix-cache-retention-interval 3296",
)
def retention_fits_the_block(command: Command) -> Iterator[Found]:
    """Find a retention interval that belongs to another KV format, or 0 beside MTP."""
    interval = command.number(RETENTION)
    dtype = command.get("--kv-cache-dtype") or ""
    if interval == 0 and command.mtp:
        yield Found(flag=RETENTION, message="0 with MTP may give no hits", fix=f"{RETENTION} <block of the log>")
    for other, block in BLOCKS.items():
        own = BLOCKS.get(dtype)
        if interval and own and other != dtype and interval % block == 0 and interval % own:
            yield Found.flag_to(
                RETENTION, str(own), f"{interval} is the block of {other}; that of {dtype} has {own} tokens"
            )


@vllm_rule(
    "error",
    reason="The flag was renamed between 0.30 and 0.31, and neither version takes the other's name.",
    source="https://github.com/vllm-project/vllm/pull/52216",
    bad="#version=0.31 vllm serve m --enable-mamba-fine-grained-prefix-cache",
    good="#version=0.30 vllm serve m --enable-prefix-caching --enable-mamba-fine-grained-prefix-cache",
)
def renamed_flags(command: Command) -> Iterator[Found]:
    """Find a flag under the name of another version; an unknown version counts as new."""
    old = command.version is not None and command.version < SINCE[SHARED]
    wrong, right = (SHARED, FINE_GRAINED) if old else (FINE_GRAINED, SHARED)
    if command.get(wrong) is not None:
        told = _dotted(command.version) if command.version else "0.31 and later"
        yield Found(
            flag=wrong,
            message=f"{told} calls it {right}",
            fix=right,
            change=lambda given: given.without_flag(wrong).with_flag(right, None),
        )


@vllm_rule(
    "error",
    reason="A version that does not know a flag ends the start.",
    source="https://github.com/vllm-project/vllm/releases",
    bad="#version=0.27.1 vllm serve m --prefix-match-unit 16",
    good="#version=0.31 vllm serve m --prefix-match-unit 16",
)
def flags_of_a_later_version(command: Command) -> Iterator[Found]:
    """Find a flag that is newer than the engine."""
    for flag in (RETENTION, MATCH):
        if command.version is not None and command.get(flag) is not None and command.version < SINCE[flag]:
            yield Found(
                flag=flag,
                message=f"{_dotted(command.version)} does not know it; {_dotted(SINCE[flag])} does",
                fix=f"take {flag} out, or take a newer engine",
                change=lambda given, flag=flag: given.without_flag(flag),  # type: ignore[misc]
            )
