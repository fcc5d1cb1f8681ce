"""Whether a checkpoint's MTP layer loads: its tensors decide, held against what the engines make of its rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from builder.checkpoint.configs import Configs, Place, read_configs
from builder.checkpoint.modules import Module, mtp_modules
from builder.checkpoint.rules import ENGINES, Engine, Treatment, compiled, expression, treatment
from builder.checkpoint.tensors import Shards, Tensor, read_shards
from builder.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Verdict = Literal["fine", "rewrite", "refuse", "no-mtp", "unknown"]

NAMES = {"vllm": "vLLM", "sglang": "SGLang"}
AS_STORED = {"plain": "unquantized", "packed": "quantized", "mixed": ""}
LAYER_NUMBER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a checkpoint holds and what engines make of it.

    Attributes:
        folder: The checkpoint.
        configs: Its config files.
        modules: Its MTP modules.
        shards: All tensors.
        verdict: ``fine``: it loads; ``rewrite``: its rules must be rewritten; ``refuse``: they must not be, because
            MTP tensors are packed; ``no-mtp``: no MTP tensors; ``unknown``: a method whose rules we do not know.
        reason: Why, in words.
        notes: What else a person should know.
    """

    folder: Path
    configs: Configs
    modules: tuple[Module, ...]
    shards: Shards
    verdict: Verdict
    reason: str
    notes: tuple[str, ...]

    @property
    def read(self) -> Place | None:
        """The quantisation config that engines read."""
        return self.configs.places[0] if self.configs.places else None

    def as_json(self) -> dict[str, Any]:
        """Return the document that scripts read."""
        read = self.read
        treated = [(module, treatments(read, module)) for module in self.modules]
        return {
            "folder": str(self.folder),
            "quant_method": read.method if read else None,
            "files": list(dict.fromkeys(place.file for place in self.configs.places)),
            "places": [
                {
                    "file": place.file,
                    "at": list(place.at),
                    "quant_method": place.method,
                    "rules": len(place.rules),
                    "fits": not misfits(place, self.modules),
                }
                for place in self.configs.places
            ],
            "agree": not self.configs.differences,
            "differences": list(self.configs.differences),
            "tensors": [
                {"name": tensor.name, "shard": tensor.shard, "dtype": tensor.dtype, "shape": list(tensor.shape)}
                for module in self.modules
                for tensor in module.tensors
            ],
            "mtp": [
                {
                    "module": module.name,
                    "dtype": module.dtype,
                    "bits": module.bits or (read and read.config.get("bits")),
                    "stored": module.stored,
                    "engines": {engine: made.builds for engine, made in made_by.items()},
                    "why": {engine: made.why for engine, made in made_by.items()},
                }
                for module, made_by in treated
            ],
            "fits": {engine: all(_fits(made_by[engine], module) for module, made_by in treated) for engine in ENGINES},
            "verdict": self.verdict,
            "reason": self.reason,
            "notes": list(self.notes),
        }


def inspect(folder: Path) -> Inspection:
    """Inspect a checkpoint; reads its config files and the headers of its safetensors files, no weights.

    Raises:
        UsageError: The folder is no checkpoint, or a file of it is broken.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder")
    return judged(folder, read_configs(folder), read_shards(folder))


def judged(folder: Path, configs: Configs, shards: Shards) -> Inspection:
    """Return the inspection of what was read from a checkpoint."""
    modules = mtp_modules(shards.tensors.values())
    verdict, reason = _verdict(configs, modules, shards.tensors)
    notes = [*configs.differences, *shards.notes]
    if verdict == "refuse" and any(module.stored == "packed" for module in modules):
        notes.append("the newest gfx1100 fork of SGLang builds the MTP layer unquantized whatever GPTQ rules say")
    return Inspection(
        folder=folder,
        configs=configs,
        modules=modules,
        shards=shards,
        verdict=verdict,
        reason=reason,
        notes=tuple(notes),
    )


def treatments(place: Place | None, module: Module) -> dict[Engine, Treatment]:
    """Return what each engine makes of a module under one quantisation config."""
    if not module.linear:
        return dict.fromkeys(ENGINES, Treatment("unquantized", "not a matrix that engines quantize"))
    if place is None:
        return dict.fromkeys(ENGINES, Treatment("unquantized", "the model has no quantization config"))
    if place.dialect is None:
        return dict.fromkeys(ENGINES, Treatment("unknown", f"the rules of {place.method!r} are not known here"))
    return {
        engine: treatment(engine, place.dialect, place.config, module.layer, moe=module.moe, drafter=place.top)
        for engine in ENGINES
    }


def misfits(place: Place | None, modules: Iterable[Module]) -> list[tuple[Engine, Module, Treatment]]:
    """Return where an engine would build a module otherwise than it is stored."""
    return [
        (engine, module, made)
        for module in modules
        for engine, made in treatments(place, module).items()
        if not _fits(made, module)
    ]


def _fits(made: Treatment, module: Module) -> bool:
    return made.builds == AS_STORED[module.stored]


def _verdict(configs: Configs, modules: tuple[Module, ...], tensors: dict[str, Tensor]) -> tuple[Verdict, str]:
    if not modules:
        return _without_mtp(configs.model, tensors)
    read = configs.places[0] if configs.places else None
    stored = _stored(modules)
    if read and not read.dialect:
        return "unknown", f"{read} has the method {read.method!r}, whose rules are not known here: left alone. {stored}"
    packed = [module for module in modules if module.stored != "plain"]
    if packed:
        wrong = misfits(read, modules)
        now = f"as it stands, {_told(*wrong[0])}" if wrong else "as it stands, both engines build each as it is stored"
        return "refuse", f"{stored}; an MTP exclusion would make engines look for plain weights in all of them; {now}"
    known = [place for place in configs.places if place.dialect]
    for place in known:
        for rule, trouble in _broken(place):
            reason = f"{place} has the rule {rule!r}, which is no regular expression ({trouble}): engines stop on it"
            return "refuse", reason
    for place in known:
        wrong = misfits(place, modules)
        if wrong:
            return "rewrite", f"{stored}, but under the rules of {place} {_told(*wrong[0])}"
    return "fine", f"{stored}, and that is what both engines build"


def _without_mtp(model: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Verdict, str]:
    if not tensors:
        return "unknown", "the folder has no safetensors files, so the types of its tensors cannot be told"
    text = model.get("text_config")
    config = {**model, **(text if isinstance(text, dict) else {})}
    layers = config.get("num_hidden_layers")
    numbers = {int(found.group(1)) for name in tensors for found in LAYER_NUMBER.finditer(name)}
    if config.get("num_nextn_predict_layers") and isinstance(layers, int) and any(n >= layers for n in numbers):
        return "unknown", f"the draft layer is stored as layer {max(numbers)} and not under 'mtp': left alone"
    promised = next((key for key in config if key.startswith("mtp_num") and config[key]), None)
    return "no-mtp", "no tensor is MTP's" + (f", although {promised} is {config[promised]}" if promised else "")


def _broken(place: Place) -> list[tuple[str, re.error]]:
    """Return the rules that are no regular expressions and are not about MTP, which the rewrite would take out."""
    broken = []
    for entry in place.rules:
        rule = entry if isinstance(entry, str) else entry[0]
        if place.dialect == "auto-round" or (place.dialect == "compressed-tensors" and not rule.startswith("re:")):
            continue
        try:
            compiled(rule[3:] if place.dialect == "compressed-tensors" else expression(rule))
        except re.error as trouble:
            if "mtp" not in rule.lower():
                broken.append((rule, trouble))
    return broken


def _stored(modules: tuple[Module, ...]) -> str:
    kinds: dict[str, list[Module]] = {}
    for module in modules:
        kinds.setdefault(module.dtype if module.stored == "plain" else module.stored, []).append(module)
    if len(kinds) == 1:
        return f"all {len(modules)} MTP modules are {next(iter(kinds))}"
    return "MTP modules are " + ", ".join(
        f"{kind} ({len(those)}, such as {those[0].name})" for kind, those in sorted(kinds.items())
    )


def _told(engine: Engine, module: Module, made: Treatment) -> str:
    does = "stops at" if made.builds == "error" else f"builds as {made.builds}"
    return f"{NAMES[engine]} {does} {module.layer} ({made.why})"
