"""How the engine behaves badly on request: a test of a deployment needs engines that start slowly, fail or die.

| variable | effect |
|---|---|
| SMOKE_START_SECONDS=N | loading takes N seconds (default 0); the port is bound after it |
| SMOKE_START_FAILS=1 | loading fails: an error line and exit status 1 |
| SMOKE_OUT_OF_MEMORY=1 | loading fails for want of GPU memory: exit status 1 |
| SMOKE_NEVER_READY=1 | loading never ends and the port is never bound |
| SMOKE_DIES_AT_PROMPT=1 | /health answers 200, and the process is gone at the first prompt, exit status 134 |
| SMOKE_TOKEN_SECONDS=N | a token takes N seconds (default 0) |
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Moods:
    """The variables above, read once."""

    start_seconds: float = 0.0
    start_fails: bool = False
    out_of_memory: bool = False
    never_ready: bool = False
    dies_at_prompt: bool = False
    token_seconds: float = 0.0


def moods_from(environment: Mapping[str, str]) -> Moods:
    """Read the variables.

    Raises:
        ValueError: one holds neither what the table says nor nothing.
    """
    return Moods(
        start_seconds=_seconds(environment, "SMOKE_START_SECONDS"),
        start_fails=_switch(environment, "SMOKE_START_FAILS"),
        out_of_memory=_switch(environment, "SMOKE_OUT_OF_MEMORY"),
        never_ready=_switch(environment, "SMOKE_NEVER_READY"),
        dies_at_prompt=_switch(environment, "SMOKE_DIES_AT_PROMPT"),
        token_seconds=_seconds(environment, "SMOKE_TOKEN_SECONDS"),
    )


def _switch(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{name} is {value!r}: it is 1 for on, and 0 or nothing for off")
    return value == "1"


def _seconds(environment: Mapping[str, str], name: str) -> float:
    value = environment.get(name) or "0"
    if not value.replace(".", "", 1).isdecimal():
        raise ValueError(f"{name} is {value!r}: it is a number of seconds")
    return float(value)
