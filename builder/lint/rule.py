"""What a rule is: a small function that looks at a command and tells what it found, with its reason and its cure."""

from __future__ import annotations

from dataclasses import dataclass
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
    engine: EngineName | None,
    reason: str,
    source: str,
    bad: str,
    good: str,
) -> Callable[[Callable[[Command], Iterator[Found]]], Rule]:
    """Make a rule of a function; its id is the function's name with hyphens."""

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


def set_flag(flag: str, value: str | None) -> Callable[[Command], Command]:
    """Return the change that sets a flag."""
    return lambda command: command.with_flag(flag, value)


def drop_flag(flag: str) -> Callable[[Command], Command]:
    """Return the change that takes a flag out."""
    return lambda command: command.without_flag(flag)


def set_variable(name: str, value: str | None) -> Callable[[Command], Command]:
    """Return the change that sets a variable, or takes it out for None."""
    return lambda command: command.with_variable(name, value)
