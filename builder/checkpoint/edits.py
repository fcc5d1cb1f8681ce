"""The rewrite of one quantisation config: MTP out of what is quantised, every other character untouched."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from builder.checkpoint import spans
from builder.checkpoint.configs import Place, at
from builder.checkpoint.modules import layer_of, module_of
from builder.checkpoint.rules import CONTAINER, UNQUANTISED_BITS, Dialect, compiled, expression
from builder.checkpoint.tensors import parse_json
from builder.checkpoint.verdict import misfits
from builder.errors import PatchError, ToolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.checkpoint.modules import Module

# the rule of each dialect that excludes MTP, and its settings; a list has none
EXCLUSION: Mapping[Dialect, tuple[str, dict[str, Any] | None]] = {
    "gptq": ("-:.*mtp.*", {}),
    "compressed-tensors": ("re:.*mtp.*", None),
    "auto-round": (".*mtp.*", {"bits": UNQUANTISED_BITS, "data_type": "fp"}),
}


def rewritten(place: Place, modules: tuple[Module, ...], tensors: Iterable[str]) -> Place:
    """Return a quantisation config with the MTP exclusion first and the rules that would quantise MTP taken out.

    Args:
        place: The config, of a known dialect.
        modules: The checkpoint's MTP modules, all stored plain.
        tensors: The names of all tensors: a rule that also decides about another layer stays.

    Raises:
        PatchError: Other rules keep engines from building the layers as they are stored.
    """
    if place.dialect is None:
        raise PatchError(f"{place}: no rewrite is known for {place.method!r}")
    key, (rule, settings) = CONTAINER[place.dialect], EXCLUSION[place.dialect]
    held = place.config.get(key)
    names = {known for name in tensors for known in (module_of(name), layer_of(module_of(name)))}
    drop = {number for number, entry in enumerate(place.rules) if _goes(place.dialect, entry, names)}
    first = ("", json.dumps(rule)) if settings is None else (json.dumps(rule), json.dumps(settings))
    if isinstance(held, dict) and _excludes(place.dialect, rule, held.get(rule)):
        there = spans.find(place.text, (*place.at, key, rule))  # it moves to the front and keeps its settings
        first = (first[0], place.text[there.value : there.end])
    if held is not None:
        text = spans.changed(place.text, spans.find(place.text, (*place.at, key)), drop=drop, first=first)
    else:
        new = f"[{first[1]}]" if settings is None else f"{{{first[0]}: {first[1]}}}"
        if key in place.config:
            there = spans.find(place.text, (*place.at, key))
            text = place.text[: there.value] + new + place.text[there.end :]
        else:
            whole = spans.find(place.text, place.at)
            text = spans.changed(place.text, whole, drop=set(), first=(json.dumps(key), new))
    return _checked(place, text, modules)


def _excludes(dialect: Dialect, rule: str, settings: Any) -> bool:  # noqa: ANN401 - settings of any dialect
    """Tell whether a rule with settings leaves what it matches unquantised."""
    if dialect == "gptq":
        return rule.startswith("-:") and settings is not None
    bits = settings.get("bits") if isinstance(settings, dict) else None
    return isinstance(bits, int) and bits >= UNQUANTISED_BITS


def _goes(dialect: Dialect, entry: Any, names: set[str]) -> bool:  # noqa: ANN401 - a rule of any dialect
    """Tell whether a rule gives way: the exclusion itself, and what would quantise MTP and nothing else."""
    rule, settings = (entry, None) if isinstance(entry, str) else entry
    if rule == EXCLUSION[dialect][0]:
        return True
    try:
        if dialect == "compressed-tensors":  # its rules only exclude, and go when engines stop at them
            if rule.startswith("re:"):
                compiled(rule[3:])
            return False
        expressed = compiled(expression(rule) if dialect == "gptq" else rule)
    except re.error:
        return "mtp" in rule.lower()
    if (dialect == "gptq" and rule.startswith("-:")) or _excludes(dialect, rule, settings):
        return False
    decides = [name for name in names if (expressed.match if dialect == "gptq" else expressed.search)(name)]
    about_mtp = "mtp" in rule or any("mtp" in name for name in decides)
    return about_mtp and all("mtp" in name for name in decides)


def _checked(place: Place, text: str, modules: tuple[Module, ...]) -> Place:
    """Return the place of the new text, after making sure that its rules fit and that nothing else has changed."""
    result = place._replace(config=at(parse_json(text, place.file), place.at), text=text)
    for engine, module, made in misfits(result, modules):
        raise PatchError(f"{place}: even with MTP excluded, {engine} would not build {module.layer} plain: {made.why}")
    if _without_rules(result) != _without_rules(place):
        raise ToolError(f"{place}: the rewrite changed another field")
    return result


def _without_rules(place: Place) -> str:
    whole = parse_json(place.text, place.file)
    if place.dialect:
        at(whole, place.at).pop(CONTAINER[place.dialect], None)
    return json.dumps(whole)  # the order counts too
