"""Rules about vLLM's timeouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.lint.rule import Found, rule, set_variable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lint.command import Command

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
    engine="vllm",
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
            yield Found(
                flag=name,
                message=f"{int(value):,} s is more than {MOST_SECONDS:,} s; is it in milliseconds?",
                fix=f"{name}=3600",
                change=set_variable(name, "3600"),
            )


@rule(
    "warning",
    engine="vllm",
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
            yield Found(
                flag=name,
                message=f"a hang is noticed after {int(value) / DAY:.0f} days",
                fix=f"{name}=1800",
                change=set_variable(name, "1800"),
            )


@rule(
    "warning",
    engine="vllm",
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
        yield Found(
            flag=TIMEOUTS[0],
            message=f"{value or 600} s is less than a first start may take",
            fix=f"{TIMEOUTS[0]}=3600",
            change=set_variable(TIMEOUTS[0], "3600"),
        )
