"""A serve command in one neutral form, whatever it was read from: a profile, a compose file, docker run or argv."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

EngineName = Literal["vllm", "sglang"]
SIZE = re.compile(r"([\d.]+)\s*([kmgt]?)(i?b)?$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Option:
    """One flag with the words that follow it; ``flag`` is in its canonical spelling, ``written`` as it stood."""

    flag: str
    values: tuple[str, ...] = ()
    written: str = ""

    @property
    def value(self) -> str:
        """All its words as one; empty for a bare flag."""
        return " ".join(self.values)

    def words(self) -> list[str]:
        """Return it as words of a command line."""
        return [self.written or self.flag, *self.values]


@dataclass(frozen=True, kw_only=True)
class Box:
    """How the container is made.

    Attributes:
        options: Options of ``docker run`` without the variables, with their long names.
        image: The image's reference.
    """

    options: tuple[Option, ...]
    image: str

    def all(self, flag: str) -> list[str]:
        """Return the values of an option that may be repeated."""
        return [option.value for option in self.options if option.flag == flag]

    def has(self, flag: str) -> bool:
        """Return whether an option is given, and not as false."""
        return any(option.flag == flag and option.value.lower() != "false" for option in self.options)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A serve command.

    Attributes:
        engine: Whose flags it speaks.
        head: The words before the first flag, such as ``vllm serve MODEL``.
        options: Its flags in order.
        environment: Its variables.
        box: The container's options, or None when it is no container.
        version: The engine's version as numbers, or None when it is not known.
        ops: The operators that the image has, or None when they are not known.
    """

    engine: EngineName
    head: tuple[str, ...]
    options: tuple[Option, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    box: Box | None = None
    version: tuple[int, ...] | None = None
    ops: frozenset[str] | None = None

    def get(self, flag: str) -> str | None:
        """Return a flag's last value, ``""`` for a bare flag, None when it is not there."""
        found = [option.value for option in self.options if option.flag == flag]
        return found[-1] if found else None

    def number(self, flag: str, default: int | None = None) -> int | None:
        """Return a flag's whole number (``8192``, ``8k``, ``8K``); the default when it is missing or no number."""
        value = self.get(flag)
        return default if value is None else number(value, default)

    def on(self, flag: str) -> bool:
        """Return whether a switch is on: given bare or true, and not as ``--no-…``."""
        value = self.get(flag)
        off = self.get("--no-" + flag.removeprefix("--"))
        return value is not None and value.lower() not in {"false", "0"} and off is None

    def json(self, flag: str) -> dict[str, Any]:
        """Return a flag's JSON object, or an empty one when it is missing or not sound."""
        try:
            value = json.loads(self.get(flag) or "{}")
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def model(self) -> str:
        """The model's path or name, or an empty text."""
        named = self.get("--model" if self.engine == "vllm" else "--model-path")
        if named is not None:
            return named
        return self.head[-1] if self.head and self.head[-1] not in {"serve", "sglang.launch_server"} else ""

    @property
    def cards(self) -> int:
        """The tensor-parallel size."""
        return self.number("--tensor-parallel-size" if self.engine == "vllm" else "--tp-size", 1) or 1

    @property
    def drafted(self) -> int:
        """Tokens that are drafted a step (k); 0 without speculative decoding."""
        if self.engine == "sglang":
            tokens = self.number("--speculative-num-draft-tokens", 0) or 0
            return max(tokens - 1, 0) if self.get("--speculative-algorithm") else 0
        given = self.json("--speculative-config").get("num_speculative_tokens")
        return int(given) if isinstance(given, int) else self.number("--spec-tokens", 0) or 0

    @property
    def spec_method(self) -> str:
        """The method of speculative decoding in lower case, or an empty text."""
        if self.engine == "sglang":
            return (self.get("--speculative-algorithm") or "").lower()
        return str(self.json("--speculative-config").get("method") or self.get("--spec-method") or "").lower()

    @property
    def mtp(self) -> bool:
        """It drafts with the model's own MTP head."""
        if self.engine == "sglang":
            return self.spec_method in {"eagle", "nextn", "mtp"}
        return self.spec_method.endswith("mtp")

    def with_flag(self, flag: str, value: str | None) -> Command:
        """Return it with a flag set in place or added."""
        new = Option(flag=flag, values=() if value is None else (value,))
        if self.get(flag) is None:
            return replace(self, options=(*self.options, new))
        kept = [option for option in self.options if option.flag != flag]
        at = next(i for i, option in enumerate(self.options) if option.flag == flag)
        return replace(self, options=(*kept[:at], new, *kept[at:]))

    def without_flag(self, flag: str) -> Command:
        """Return it without a flag."""
        return replace(self, options=tuple(option for option in self.options if option.flag != flag))

    def with_variable(self, name: str, value: str | None) -> Command:
        """Return it with a variable set, or without it for None."""
        kept = {key: held for key, held in self.environment.items() if key != name}
        return replace(self, environment=kept if value is None else {**kept, name: value})

    def words(self) -> list[str]:
        """Return the engine's words: head and flags."""
        return [*self.head, *(word for option in self.options for word in option.words())]

    def text(self) -> str:
        """Return it as a shell line: docker run with its options, or variables and the engine's words."""
        if self.box is None:
            return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in self.environment.items()), shlex.join(self.words())])
        options = [word for option in self.box.options for word in option.words()]
        variables = [word for name, value in self.environment.items() for word in ("-e", f"{name}={value}")]
        return shlex.join(["docker", "run", *options, *variables, self.box.image, *self.words()])


def number(text: str, default: int | None = None) -> int | None:
    """Return a whole number, also with k, m, g in powers of 1,000 (small) or 1,024 (capital), as vLLM reads it."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", text.replace(",", "").strip())
    if not found:
        return default
    base = 1000 if found[2].islower() else 1024
    return int(float(found[1]) * base ** " kmg".index(found[2].lower() or " "))


def share(text: str) -> float | None:
    """Return a share of a whole, above 0 and at most 1, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 1 else None


def size(text: str) -> int | None:
    """Return a size as docker reads it (``32g``, ``64m``, bytes), or None."""
    found = SIZE.match(text.strip())
    return None if not found else int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))
