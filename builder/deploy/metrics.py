"""What a server says of itself under /metrics: requests, the KV cache's use, and the speed right now."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from urllib.request import ProxyHandler, build_opener

SAMPLE_SECONDS = 1.0
REQUEST_SECONDS = 5.0
# Prometheus' text form: name{labels} value (https://prometheus.io/docs/instrumenting/exposition_formats/)
LINE = re.compile(r"^(?:[a-z]+:)?([a-zA-Z_]\w*)(?:\{.*\})? ([0-9.eE+-]+|NaN)(?: \d+)?$")
# the engines' names without their prefix: vllm/v1/metrics/loggers.py, sglang/srt/metrics/collector.py
RUNNING = ("num_requests_running", "num_running_reqs")
WAITING = ("num_requests_waiting", "num_queue_reqs")
KV_USE = ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage")
MADE = ("generation_tokens_total", "generation_tokens")
READ = ("prompt_tokens_total", "prompt_tokens")


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a server is doing.

    Attributes:
        running: Requests that are answered now.
        waiting: Requests that wait.
        kv_use: Used part of the KV cache, 0 to 1.
        tokens_per_second: Tokens generated a second, over the last second, of all requests.
        prompt_tokens_per_second: Prompt tokens read a second, likewise.
        generated: Tokens generated since the start.
    """

    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    tokens_per_second: float | None = None
    prompt_tokens_per_second: float | None = None
    generated: int | None = None

    def text(self) -> str:
        """Return it for people."""
        told = []
        if self.running is not None:
            told.append(f"{self.running} running, {self.waiting or 0} waiting")
        if self.kv_use is not None:
            told.append(f"KV cache {self.kv_use:.1%} used")
        if self.tokens_per_second is not None:
            told.append(
                f"{self.tokens_per_second:.1f} tokens/s, prompts {self.prompt_tokens_per_second or 0:.1f} tokens/s"
            )
        if self.generated is not None:
            told.append(f"{self.generated:,} tokens since the start")
        return "; ".join(told)


def read_load(base: str) -> Load | None:
    """Return what a server is doing, looked at twice while it answers something; None without metrics."""
    first = _read(base)
    if first is None:
        return None
    running = _pick(first, RUNNING)
    seconds, second = 0.0, first
    if running:
        began = time.monotonic()
        time.sleep(SAMPLE_SECONDS)
        second = _read(base) or first
        seconds = time.monotonic() - began
    made = _pick(second, MADE)
    return Load(
        running=None if running is None else int(running),
        waiting=None if (waiting := _pick(second, WAITING)) is None else int(waiting),
        kv_use=_pick(second, KV_USE),
        tokens_per_second=_speed(first, second, MADE, seconds),
        prompt_tokens_per_second=_speed(first, second, READ, seconds),
        generated=None if made is None else int(made),
    )


def parse_metrics(text: str) -> dict[str, float]:
    """Return the samples of Prometheus' text form by their names without the engine's prefix, summed over labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        matched = LINE.match(line)
        if matched and matched[2] != "NaN":
            found[matched[1]] = found.get(matched[1], 0.0) + float(matched[2])
    return found


def _read(base: str) -> dict[str, float] | None:
    try:
        with build_opener(ProxyHandler({})).open(f"{base}/metrics", timeout=REQUEST_SECONDS) as answer:
            return parse_metrics(answer.read().decode(errors="replace"))
    except (OSError, ValueError):
        return None


def _pick(samples: dict[str, float], names: tuple[str, ...]) -> float | None:
    return next((samples[name] for name in names if name in samples), None)


def _speed(first: dict[str, float], second: dict[str, float], names: tuple[str, ...], seconds: float) -> float | None:
    before, after = _pick(first, names), _pick(second, names)
    if before is None or after is None:
        return None
    return round(max(0.0, after - before) / seconds, 2) if seconds else 0.0
