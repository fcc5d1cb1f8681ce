"""What a rule is: a small function that looks at a command and tells what it found, with its reason and its cure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from builder.lint.command import Command, EngineName

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a rule found in one command.

    Attributes:
        flag: The flag, variable or container option that is meant.
        message: What is there and what comes of it.
        fix: What to do.
        change: Makes the command right; None when only a person can decide.
    """

    flag: str
    message: str
    fix: str
    change: Callable[[Command], Command] | None = None

    @classmethod
    def flag_to(cls, flag: str, value: str, message: str) -> Found:
        """Return the finding whose cure is a value of the flag."""
        return cls(flag=flag, message=message, fix=f"{flag} {value}", change=set_flag(flag, value))

    @classmethod
    def variable_to(cls, name: str, value: str, message: str) -> Found:
        """Return the finding whose cure is a value of the variable."""
        return cls(
            flag=name, message=message, fix=f"{name}={value}", change=lambda given: given.with_variable(name, value)
        )

    @classmethod
    def variable_out(cls, name: str, message: str, *, fix: str = "take it out") -> Found:
        """Return the finding whose cure is to take the variable out."""
        return cls(flag=name, message=message, fix=fix, change=lambda given: given.with_variable(name, None))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    Attributes:
        id: Its name.
        severity: ``error`` fails or gives garbage, ``warning`` loses speed, memory or safety, ``info`` is to know.
        engine: The engine that it is for, or None for both.
        reason: Why, in a sentence or two.
        source: Where that is known from.
        bad: A command line that it finds fault with.
        good: One that it passes.
        check: The function.
    """

    id: str
    severity: Severity
    engine: EngineName | None
    reason: str
    source: str
    bad: str
    good: str
    check: Callable[[Command], Iterator[Found]]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule's finding with the rule's own words."""

    rule: Rule
    found: Found

    def as_json(self) -> dict[str, Any]:
        """Return what scripts read."""
        return {
            "id": self.rule.id,
            "severity": self.rule.severity,
            "flag": self.found.flag,
            "message": self.found.message,
            "fix": self.found.fix,
            "source": self.rule.source,
            "fixable": self.found.change is not None,
        }


REGISTRY: list[Rule] = []


def rule(
    severity: Severity,
    *,
    engine: EngineName | None = None,
    reason: str,
    source: str,
    bad: str,
    good: str,
) -> Callable[[Callable[[Command], Iterator[Found]]], Rule]:
    """Make a rule of a function; its id is the function's name with hyphens, its engine is both unless one is named."""

    def made(check: Callable[[Command], Iterator[Found]]) -> Rule:
        new = Rule(
            id=check.__name__.replace("_", "-"),
            severity=severity,
            engine=engine,
            reason=reason,
            source=source,
            bad=bad,
            good=good,
            check=check,
        )
        REGISTRY.append(new)
        return new

    return made


vllm_rule, sglang_rule = partial(rule, engine="vllm"), partial(rule, engine="sglang")


def set_flag(flag: str, value: str | None) -> Callable[[Command], Command]:
    """Return the change that sets a flag."""
    return lambda command: command.with_flag(flag, value)


def drop_flag(flag: str) -> Callable[[Command], Command]:
    """Return the change that takes a flag out."""
    return lambda command: command.without_flag(flag)
