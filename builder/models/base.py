"""Strict, frozen models and a YAML reader whose errors name file, line and field."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from builder.errors import UsageError
from builder.files import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_core import ErrorDetails

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
FullRef = Annotated[str, StringConstraints(pattern=r"^refs/[^\s~^:?*\[\\]+$")]


def pattern(text: str) -> str:
    """Return a regular expression; raises ValueError when the text is none."""
    try:
        re.compile(text, re.MULTILINE)
    except re.error as trouble:
        raise ValueError(f"no regular expression: {trouble}") from trouble
    return text


class Data(BaseModel):
    """A frozen model: unknown keys and silent conversions are errors.

    Attributes:
        file_keys: What its file may hold beside the fields; the loader takes it out before the model is made.
    """

    file_keys: ClassVar[tuple[str, ...]] = ()
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Model = TypeVar("Model", bound=Data)


# https://yaml.org/type/merge.html
MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key that stands twice, and leaves dates as text."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == MERGE:
            continue
        key = loader.construct_object(key_node)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} is not text; quote it", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} stands twice, first in line {seen[key]}", key_node.start_mark
            )
        seen[key] = key_node.start_mark.line + 1
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _text)


def parse_yaml(text: str, path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML text holds; ``path`` is for messages.

    Raises:
        UsageError: No YAML, a repeated key, a key that is not text, or no mapping; names the line.
    """
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as trouble:
        line = trouble.problem_mark.line + 1 if trouble.problem_mark else 0
        raise UsageError(f"{path}:{line}: {trouble.problem}") from trouble
    except (yaml.YAMLError, RecursionError) as trouble:
        raise UsageError(f"{path}: not YAML: {trouble}") from trouble
    if not isinstance(value, dict):
        raise UsageError(f"{path}: a mapping of keys is expected, found {type(value).__name__}")
    return value


def load_yaml(model: type[Model], path: Path) -> Model:
    """Read a YAML file into a model.

    Raises:
        UsageError: The file is missing or does not fit; every problem with its line and field.
    """
    text = read_text(path)
    return validated(model, parse_yaml(text, path), path, text)


def validated(model: type[Model], value: dict[str, Any], path: Path, text: str = "") -> Model:
    """Return the model of a mapping; ``path`` and its ``text`` serve the message.

    Raises:
        UsageError: It does not fit.
    """
    try:
        return model.model_validate(_tuples(value), strict=True)
    except ValidationError as trouble:
        problems: dict[str, list[str]] = {}
        for error in trouble.errors(include_url=False):
            loc = _keys(value, error)
            start, said = _problem(model, error, loc, path, text)
            told = problems.setdefault(start, [])
            if said not in told:
                told.append(said)
        raise UsageError("\n".join(start + ", or ".join(told) for start, told in problems.items())) from trouble


def dump_yaml(value: Data) -> str:
    """Return a model as YAML that reads back to the same model: keys in model order, unset keys left out."""
    return yaml.safe_dump(
        value.model_dump(mode="json", exclude_none=True), sort_keys=False, width=120, allow_unicode=True
    )


def nearest(name: str, known: list[str]) -> str:
    """Return `` (did you mean X?)`` when a known name is near, else a list of the known ones."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(sorted(known))})"


def _tuples(value: Any) -> Any:  # noqa: ANN401 - any YAML value
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return value


def _keys(value: Any, error: ErrorDetails) -> tuple[int | str, ...]:  # noqa: ANN401 - any YAML value
    """Return the keys that lead to an error, without the names that pydantic puts between them for the types tried."""
    found: list[int | str] = []
    *_, last = error["loc"] or ("",)
    for part in error["loc"]:
        if isinstance(value, dict) and part in value:
            value = value[str(part)]
        elif isinstance(value, list | tuple) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            continue
        found.append(part)
    return (*found, last) if error["type"] == "missing" else tuple(found)


def _problem(
    model: type[Data], error: ErrorDetails, loc: tuple[int | str, ...], path: Path, text: str
) -> tuple[str, str]:
    """Return where and what the field is, and what is wrong with it."""
    field = ".".join(str(part) for part in loc)
    where = f"{path}:{_line(text, loc)}" if text else f"{path}"
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key {field!r}", nearest(str(loc[-1]), _siblings(model, loc))
    if error["type"] == "missing":
        return f"{where}: the key {field!r} is missing", ""
    if error["type"] == "string_type":
        return f"{where}: {field}", f" must be text, found {error['input']!r}; put it in quotes"
    return f"{where}: {field}", f": {error['msg']}, found {str(error['input'])[:80]!r}"


def _siblings(model: type[Data], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are allowed beside the one at ``loc``, found by walking the model's fields."""
    here: list[type[Data]] = [model]
    for part in loc[:-1]:
        below: list[type[Data]] = []
        for candidate in here:
            info = candidate.model_fields.get(str(part))
            if info is not None:
                below += _models_in(info.annotation)
        here = below or here
    fields = [info.alias or name for candidate in here for name, info in candidate.model_fields.items()]
    return [*fields, *(key for candidate in here for key in candidate.file_keys)]


def _models_in(annotation: Any) -> list[type[Data]]:  # noqa: ANN401 - a type expression
    if isinstance(annotation, type) and issubclass(annotation, Data):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in _models_in(part)]


def _line(text: str, loc: tuple[int | str, ...]) -> int:
    """Return the line (from 1) of the deepest node of ``loc`` that the text holds."""
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    line = 1
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == part), None)
            if pair is None:
                continue
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line
