"""The config files of a checkpoint that hold quantisation rules, and what they say differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from builder.checkpoint.rules import CONTAINER, DIALECTS, Dialect
from builder.checkpoint.tensors import parse_json
from builder.errors import UsageError
from builder.files import read_text

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = "config.json"
# engines read these only when config.json holds no quantisation config
SECOND = ("quantization_config.json", "quantize_config.json")
KEYS = ("quantization_config", "compression_config")
MANY = 8


class Place(NamedTuple):
    """One quantisation config in one file.

    Attributes:
        file: The file's name.
        at: The keys that lead to the config inside the file; empty for the file's root.
        config: The quantisation config.
        method: Its quant_method as it stands, or what its keys give away.
        dialect: How its rules are written; None when we do not know the method.
        text: The whole file.
    """

    file: str
    at: tuple[str, ...]
    config: dict[str, Any]
    method: str | None
    dialect: Dialect | None
    text: str

    @property
    def rules(self) -> list[Any]:
        """The rules in their order: pairs of rule and settings, or the entries of a list."""
        held = self.config.get(CONTAINER[self.dialect]) if self.dialect else None
        return list(held.items()) if isinstance(held, dict) else list(held or ())

    @property
    def top(self) -> bool:
        """It stands at the top level of config.json, where vLLM's drafter looks."""
        return self.file == CONFIG and self.at == KEYS[:1]

    def __str__(self) -> str:
        return " ".join((self.file, *self.at))


class Configs(NamedTuple):
    """What the config files say.

    Attributes:
        model: The whole of config.json.
        places: The quantisation configs; the first is the one that engines read.
        differences: What the places say differently.
    """

    model: dict[str, Any]
    places: tuple[Place, ...]
    differences: tuple[str, ...]


def read_configs(folder: Path) -> Configs:
    """Read the config files of a checkpoint.

    Raises:
        UsageError: The folder is no checkpoint, or a file is too large, is not JSON, or has rules of a wrong shape.
    """
    if not (folder / CONFIG).exists():
        snapshots = sorted(path.name for path in folder.glob("snapshots/*"))
        hint = f"name a snapshot: {folder / 'snapshots' / snapshots[-1]}" if snapshots else "name the model's folder"
        raise UsageError(f"{folder} has no {CONFIG}, so it is no checkpoint", hint=hint)
    text, model = _read(folder / CONFIG)
    inner = [(key,) for key, value in model.items() if isinstance(value, dict) and key not in KEYS]
    outer: list[tuple[str, ...]] = [()]
    found = [
        _place(CONFIG, (*above, key), at(model, above)[key], text)
        for key in KEYS
        for above in outer + inner
        if _holds(at(model, above), key, CONFIG)
    ]
    for name in SECOND:
        if (folder / name).exists():
            text, value = _read(folder / name)
            keys = KEYS[:1] if _holds(value, KEYS[0], name) else ()
            found.append(_place(name, keys, at(value, keys), text))
    # AutoRound has written files that name another method than config.json does, around the same rules
    shared = [
        place._replace(dialect=found[0].dialect)
        if found[0].dialect and CONTAINER[found[0].dialect] in place.config
        else place
        for place in found
    ]
    return Configs(model, tuple(shared), tuple(_differences(shared)))


def at(value: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the object that a path of keys leads to."""
    for key in keys:
        value = value[key]
    return value


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    text = read_text(path)
    value = parse_json(text, str(path))
    if not isinstance(value, dict):
        raise UsageError(f"{path} is no JSON object")
    return text, value


def _holds(value: dict[str, Any], key: str, file: str) -> bool:
    held = value.get(key)
    if held is not None and not isinstance(held, dict):
        raise UsageError(f"{file} {key} is {str(held)[:60]!r}, which no engine can read")
    return held is not None


def _place(file: str, keys: tuple[str, ...], config: dict[str, Any], text: str) -> Place:
    method = config.get("quant_method")
    if method is None and "bits" in config and ("desc_act" in config or "dynamic" in config):
        method = "gptq"  # AutoGPTQ's quantize_config.json does not name its method
    name = str(method).lower() if method is not None else None
    place = Place(file, keys, config, name, DIALECTS.get(name or ""), text)
    blocks = config.get("block_name_to_quantize")
    for key, sound in (
        ("dynamic", _is_map(config.get("dynamic"))),
        ("ignore", _is_names(config.get("ignore"))),
        ("extra_config", _is_map(config.get("extra_config"), of_maps=True)),
        ("block_name_to_quantize", isinstance(blocks, str) or _is_names(blocks)),
        ("config_groups", _is_map(config.get("config_groups"), of_maps=True)),
    ):
        if place.dialect and config.get(key) is not None and not sound:
            raise UsageError(f"{place}: {key} is {str(config[key])[:60]!r}, which no engine can read")
    return place


def _is_map(value: object, *, of_maps: bool = False) -> bool:
    return isinstance(value, dict) and (not of_maps or all(isinstance(item, dict) for item in value.values()))


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _differences(places: list[Place]) -> list[str]:
    """Return what the other places say differently from the first; each is told and never copied over."""
    lines = []
    for other in places[1:]:
        first = places[0]
        if other.rules != first.rules:
            lines.append(f"the rules differ: {first} has {len(first.rules)}, {other} has {len(other.rules)}")
        held = set(CONTAINER.values())
        keys = [key for key in {**first.config, **other.config} if key not in held]
        for key in [key for key in keys if first.config.get(key) != other.config.get(key)][:MANY]:
            mine, theirs = (str(place.config.get(key, "not there"))[:60] for place in (first, other))
            lines.append(f"{key} differs: {first} has {mine}, {other} has {theirs}")
    return lines
