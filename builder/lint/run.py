"""Rules over a serve command: what hangs the card, halves the cache or does nothing, before it is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.lint import (  # noqa: F401 - they register
    container,
    environment,
    kv,
    numbers,
    prefix,
    sglang,
    speculation,
    timeouts,
)
from builder.lint.rule import REGISTRY, Finding

if TYPE_CHECKING:
    from builder.lint.command import Command
    from builder.lint.rule import Rule

RULES: tuple[Rule, ...] = tuple(REGISTRY)
RANK = {"error": 0, "warning": 1, "info": 2}
ROUNDS = 5


def lint(command: Command) -> list[Finding]:
    """Return what the rules find in a command, the worst first."""
    findings = [
        Finding(rule=rule, found=found)
        for rule in RULES
        if rule.engine in {None, command.engine}
        for found in rule.check(command)
    ]
    return sorted(findings, key=lambda finding: RANK[finding.rule.severity])


def fixed(command: Command) -> Command:
    """Return a command with every safe change made; changes may call for others, so it is looked at again."""
    for _ in range(ROUNDS):
        changes = [finding.found.change for finding in lint(command) if finding.found.change is not None]
        if not changes:
            break
        command = changes[0](command)
        for change in changes[1:]:
            command = change(command)
    return command
