"""What vLLM and SGLang make of a layer under a checkpoint's quantisation rules.

Followed from the engines' sources, by reading: vLLM's ``gptq_utils.py``, ``compressed_tensors/utils.py``,
``inc/config_parser.py`` and ``qwen3_5_mtp.py`` (with https://github.com/vllm-project/vllm/pull/48816), SGLang's
``layers/quantization/utils.py``, ``compressed_tensors/utils.py``, ``auto_round.py`` and ``qwen3_5_mtp.py``.

GPTQ ``dynamic``: rules in the order of the file, each a regular expression matched at the start of the layer's name;
the first that matches decides; ``-:`` leaves the layer unquantised, ``+:`` or no prefix overrides its settings.
"""

from __future__ import annotations

import contextlib
import functools
import re
import signal
import threading
import warnings
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from builder.checkpoint.modules import FUSED
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Engine = Literal["vllm", "sglang"]
Dialect = Literal["gptq", "compressed-tensors", "auto-round"]

ENGINES: tuple[Engine, ...] = ("vllm", "sglang")
DIALECTS: Mapping[str, Dialect] = {
    "gptq": "gptq",
    "gptq_marlin": "gptq",
    "compressed-tensors": "compressed-tensors",
    "auto-round": "auto-round",
    "auto_round": "auto-round",
    "intel/auto-round": "auto-round",
}
# the key that holds a dialect's rules
CONTAINER: Mapping[Dialect, str] = {
    "gptq": "dynamic",
    "compressed-tensors": "ignore",
    "auto-round": "extra_config",
}
# widths that each engine's GPTQ layer accepts
WIDTHS: Mapping[Engine, tuple[int, ...]] = {"vllm": (4, 8), "sglang": (2, 3, 4, 8)}
EXPERT_PARTS = (".0.gate_proj", ".0.up_proj", ".0.down_proj")
UNQUANTISED_BITS = 16
# a target of compressed-tensors may name a class; every linear class of the engines holds this name
LINEAR_CLASS = "columnparallellinear"
MATCH_SECONDS = 1.0
PATTERN_CHARACTERS = frozenset("*+?^$()[]{}|\\")


class Treatment(NamedTuple):
    """What an engine makes of a layer.

    Attributes:
        builds: It builds it quantised, unquantised, or stops with an error; or we cannot tell.
        why: The rule, or the absence of one, that decides.
    """

    builds: Literal["quantized", "unquantized", "error", "unknown"]
    why: str


def treatment(
    engine: Engine, dialect: Dialect, config: Mapping[str, Any], layer: str, *, moe: bool = False, drafter: bool = True
) -> Treatment:
    """Return what an engine makes of an MTP layer.

    Args:
        engine: The engine.
        dialect: How the rules are written.
        config: The quantisation config.
        layer: The name of the layer as the engine builds it, such as ``mtp.layers.0.self_attn.qkv_proj``.
        moe: The layer is the routed experts.
        drafter: vLLM's drafter sees this config in its own test, that is, it stands at the top level of config.json.
    """
    if engine == "sglang" and layer == "mtp.fc":
        return Treatment("unquantized", "SGLang builds mtp.fc as a plain layer")
    if engine == "vllm" and drafter and layer.startswith("mtp.layers."):
        own = _drafters_test(config)
        if own is not None:
            return own
    if dialect == "gptq":
        return _gptq(engine, config, layer)
    if dialect == "compressed-tensors":
        return _compressed_tensors(engine, config, layer, moe=moe)
    return _auto_round(engine, config, layer, moe=moe)


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a compiled pattern; raises re.error when it is no regular expression."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return re.compile(pattern)
        except (OverflowError, RecursionError) as trouble:
            raise re.error(str(trouble), pattern) from trouble


@contextlib.contextmanager
def bounded(rule: str) -> Iterator[None]:
    """Bound the time that a rule's match may take; other threads than the main one have no timer and no bound.

    Raises:
        UsageError: It takes longer than MATCH_SECONDS.
    """

    def late(*_: object) -> None:
        raise UsageError(
            f"the rule {rule!r} takes longer than {MATCH_SECONDS:g} s on one name: what engines make of it is unknown",
            hint="write it without a repetition inside a repetition",
        )

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, MATCH_SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def expression(rule: str) -> str:
    """Return the regular expression of a GPTQ rule, without its sign."""
    return rule[2:] if rule.startswith(("-:", "+:")) else rule


def _drafters_test(config: Mapping[str, Any]) -> Treatment | None:
    """Apply the drafter's own test, which looks at the text of the rules and decides for all of its layers."""
    if "dynamic" in config and config["dynamic"] is None:
        return Treatment("error", "dynamic is null, over which vLLM's drafter cannot iterate")
    for rule in config.get("dynamic") or ():
        if rule.startswith("-:") and "mtp" in rule:
            return Treatment("unquantized", f"vLLM's drafter finds the rule {rule!r}")
    return None


def _gptq(engine: Engine, config: Mapping[str, Any], layer: str) -> Treatment:
    bits = config.get("bits")
    for number, (rule, value) in enumerate((config.get("dynamic") or {}).items(), start=1):
        try:
            pattern = compiled(expression(rule))
            with bounded(rule):
                matches = pattern.match(layer)
        except re.error as trouble:
            return Treatment("error", f"rule {number}, {rule!r}, is no regular expression: {trouble}")
        if not matches:
            continue
        which = f"rule {number}, {rule!r}"
        if rule.startswith("-:") or value is False:
            return Treatment("unquantized", which)
        if not isinstance(value, dict):
            return Treatment("error", f"{which}, has no settings: {value!r}")
        bits = value.get("bits", bits)
        if isinstance(bits, int) and bits not in WIDTHS[engine]:
            return Treatment("error", f"{which}, asks for {bits} bits, which GPTQ layers of {engine} do not have")
        return Treatment("quantized", which)
    return Treatment("quantized", "no rule matches, so the base settings apply")


def _compressed_tensors(engine: Engine, config: Mapping[str, Any], layer: str, *, moe: bool) -> Treatment:
    ignore: list[str] = config.get("ignore") or []
    targets = [name for group in (config.get("config_groups") or {}).values() for name in group.get("targets") or ()]
    names = [layer] if layer in ignore else _parts(layer, moe=moe)
    try:
        ignored = {name: _first(ignore, name, contains=engine == "sglang") for name in names}
        missing = [name for name, entry in ignored.items() if entry is None]
        if not missing:
            return Treatment("unquantized", f"ignore has {ignored[names[0]]!r}")
        if len(missing) < len(names):
            return Treatment("error", f"ignore has some parts of the layer, but not {', '.join(missing)}")
        targeted = (
            _first(targets, layer) is not None
            or _first(targets, LINEAR_CLASS, contains=True) is not None
            or all(_first(targets, name) is not None for name in names)
        )
    except re.error as trouble:
        return Treatment("error", f"{trouble.pattern!r} is no regular expression: {trouble}")
    if targets and targeted:
        return Treatment("quantized", "ignore does not have it, and a config group targets it")
    if targets and engine == "sglang":
        return Treatment("error", "neither ignore nor a config group has it")
    return Treatment("unquantized", "no config group targets it")


def _first(entries: list[str], name: str, *, contains: bool = False) -> str | None:
    """Return the first entry that is the name, matches it after ``re:``, or (SGLang, classes) is contained in it."""
    for entry in entries:
        if entry.startswith("re:"):
            pattern = compiled(entry[3:])
            with bounded(entry):
                matches = pattern.match(name)
            if matches:
                return entry
        elif entry == name or (contains and entry.lower() in name.lower()):
            return entry
    return None


def _auto_round(engine: Engine, config: Mapping[str, Any], layer: str, *, moe: bool) -> Treatment:
    extra: Mapping[str, Mapping[str, Any]] = config.get("extra_config") or {}
    if engine == "vllm":
        for name in (layer, f"model.{layer}"):
            if name in extra and extra[name].get("bits", UNQUANTISED_BITS) >= UNQUANTISED_BITS:
                return Treatment("unquantized", f"extra_config has {name!r}")
    default = {key: config.get(key) for key in ("bits", "group_size", "sym")}
    why = "extra_config does not name it"
    blocks = config.get("block_name_to_quantize") or config.get("to_quant_block_names")
    if blocks and layer not in extra:
        names = blocks.split(",") if isinstance(blocks, str) else blocks
        if not any(layer.startswith(name) for name in names):
            default = {"bits": UNQUANTISED_BITS, "group_size": -1, "sym": True}
            why = "block_name_to_quantize does not name it"
    keys = [_extra(engine, extra, name) for name in _extra_names(engine, extra, layer, moe=moe)]
    settings = [{name: (extra[key] if key else {}).get(name, default[name]) for name in default} for key in keys]
    if any(other != settings[0] for other in settings):
        return Treatment("error", f"the parts of the layer differ in extra_config: {settings[0]}, {settings[1:]}")
    why = f"extra_config has {keys[0]!r}" if keys[0] else why
    bits = settings[0]["bits"]
    plain = isinstance(bits, int) and bits >= UNQUANTISED_BITS
    return Treatment("unquantized" if plain else "quantized", why)


def _extra_names(engine: Engine, extra: Mapping[str, Any], layer: str, *, moe: bool) -> list[str]:
    """Return the names under which an engine asks extra_config for a layer."""
    if layer in extra:
        return [layer]
    below = [name for name in extra if moe and name.startswith(layer)]
    if below:
        return below
    parts = _parts(layer, moe=False)
    # vLLM asks for the parts only when one of them is named; SGLang always does, with the same answer
    if engine == "sglang" or any(_extra(engine, extra, name) is not None for name in parts):
        return parts
    return [layer]


def _extra(engine: Engine, extra: Mapping[str, Any], name: str) -> str | None:
    """Return the key of extra_config that applies to a name: its own, else the first pattern that matches."""
    if name in extra:
        return name
    for key in extra:
        if PATTERN_CHARACTERS & set(key):
            try:
                pattern = compiled(key)
            except re.error:
                continue  # both engines pass over it
            with bounded(key):
                matches = pattern.search(name) if engine == "vllm" else pattern.fullmatch(name)
            if matches:
                return key
    return None


def _parts(layer: str, *, moe: bool) -> list[str]:
    if moe:
        return [layer + part for part in EXPERT_PARTS]
    stem, dot, last = layer.rpartition(".")
    return [stem + dot + part for part in FUSED.get(last, (last,))]
