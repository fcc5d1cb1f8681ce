"""A rule about numbers that are none, or that no engine takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.lint.command import number, share
from builder.lint.rule import Found, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lint.command import Command

COUNTS = (
    *("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--tp-size", "--dp-size"),
    *("--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--context-length", "--max-running-requests"),
)
SHARES = ("--gpu-memory-utilization", "--mem-fraction-static")
# https://docs.vllm.ai/en/latest/configuration/engine_args/: the longest context that fits
CHOSEN = {"--max-model-len": frozenset({"auto", "-1"})}


@rule(
    "error",
    engine=None,
    reason="The engine ends with a traceback, at times only after it has loaded the model.",
    source="https://docs.vllm.ai/en/latest/configuration/engine_args/",
    bad="vllm serve m --gpu-memory-utilization 95",
    good="vllm serve m --gpu-memory-utilization 0.95",
)
def values_are_in_range(command: Command) -> Iterator[Found]:
    """Find counts that are no whole number from 1 on, and shares of memory that are not above 0 and at most 1."""
    for flag in (*COUNTS, *SHARES):
        value = command.get(flag)
        if value is None or "$" in value or value in CHOSEN.get(flag, ()):
            continue
        if flag in SHARES and share(value) is None:
            yield Found(flag=flag, message=f"{value!r} is no share of memory", fix="a number above 0 and at most 1")
        elif flag in COUNTS and not number(value):
            yield Found(flag=flag, message=f"{value!r} is no whole number from 1 on", fix="a whole number from 1 on")
