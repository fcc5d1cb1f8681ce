"""Rules about numbers: those that are none, those that no engine takes, and vLLM's timeouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.lint.command import number, share
from builder.lint.rule import Found, rule, vllm_rule

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
TIMEOUTS = (
    "VLLM_ENGINE_READY_TIMEOUT_S",
    "VLLM_ENGINE_ITERATION_TIMEOUT_S",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
)
MOST_SECONDS = 2_147_483  # x 1000 is the last that fits the 32-bit millisecond count of zmq_poll
DAY = 86_400
FIRST_START = 1_800


@rule(
    "error",
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


@vllm_rule(
    "error",
    reason="Seconds become milliseconds in a 32-bit number: 2,147,484 overflows and the engine restarts for ever.",
    source="https://github.com/vllm-project/vllm/blob/main/vllm/envs.py",
    bad="VLLM_ENGINE_READY_TIMEOUT_S=3600000 vllm serve m",
    good="VLLM_ENGINE_READY_TIMEOUT_S=3600 vllm serve m",
)
def timeouts_do_not_overflow(command: Command) -> Iterator[Found]:
    """Find a timeout in seconds that overflows as milliseconds."""
    for name in TIMEOUTS:
        value = command.environment.get(name, "")
        if value.isdigit() and int(value) > MOST_SECONDS:
            yield Found.variable_to(
                name, "3600", f"{int(value):,} s is more than {MOST_SECONDS:,} s; is it in milliseconds?"
            )


@vllm_rule(
    "warning",
    reason="A worker that hangs is noticed only when the timeout is over.",
    source="field report S3",
    bad="VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1000000 vllm serve m",
    good="VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800 vllm serve m",
)
def timeouts_end_within_a_day(command: Command) -> Iterator[Found]:
    """Find a timeout of more than a day."""
    for name in TIMEOUTS:
        value = command.environment.get(name, "")
        if value.isdigit() and DAY < int(value) <= MOST_SECONDS:
            yield Found.variable_to(name, "1800", f"a hang is noticed after {int(value) / DAY:.0f} days")


@vllm_rule(
    "warning",
    reason="The first start of an image tunes and compiles kernels, about 20 minutes after a merge; the engine gives "
    "its workers 600 s by default.",
    source="https://github.com/vllm-project/vllm/blob/main/vllm/envs.py",
    bad="VLLM_ENGINE_READY_TIMEOUT_S=600 vllm serve m",
    good="VLLM_ENGINE_READY_TIMEOUT_S=3600 vllm serve m",
)
def the_first_start_has_time(command: Command) -> Iterator[Found]:
    """Find a ready timeout that is shorter than a first start."""
    value = command.environment.get(TIMEOUTS[0])
    if value is None or (value.isdigit() and int(value) < FIRST_START):
        yield Found.variable_to(TIMEOUTS[0], "3600", f"{value or 600} s is less than a first start may take")
