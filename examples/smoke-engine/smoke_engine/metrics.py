"""The engine's counters and their Prometheus text."""

from dataclasses import dataclass, field

from smoke_engine.defaults import KV_CACHE_TOKENS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(kw_only=True)
class Metrics:
    """Counts since the start, and what is in flight now."""

    model: str
    requests_running: int = 0
    kv_tokens_in_use: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    requests_finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})

    def text(self) -> str:
        """The exposition text, one family after the other."""
        label = 'model_name="' + self.model.replace("\\", "\\\\").replace('"', '\\"') + '"'
        gauges = {
            "num_requests_running": ("Requests that are being answered.", self.requests_running),
            "num_requests_waiting": ("Requests that wait for room.", 0),
            "kv_cache_usage_perc": ("Used part of the KV cache, 1 is full.", self.kv_tokens_in_use / KV_CACHE_TOKENS),
        }
        counters = {
            "prompt_tokens_total": ("Tokens of the prompts.", self.prompt_tokens),
            "generation_tokens_total": ("Tokens of the answers.", self.generation_tokens),
        }
        lines = []
        for kind, families in (("gauge", gauges), ("counter", counters)):
            for name, (text, value) in families.items():
                lines += [f"# HELP smoke:{name} {text}", f"# TYPE smoke:{name} {kind}"]
                lines.append(f"smoke:{name}{{{label}}} {float(value)}")
        name = "request_success_total"
        lines += [f"# HELP smoke:{name} Finished requests by reason.", f"# TYPE smoke:{name} counter"]
        for reason, count in self.requests_finished.items():
            lines.append(f'smoke:{name}{{finished_reason="{reason}",{label}}} {float(count)}')
        return "\n".join(lines) + "\n"
