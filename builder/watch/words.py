"""A report in words: for a terminal, as Markdown, and as plain lines; strangers' words cannot act in any of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.console import clean, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.watch.report import News, PatchTrial, Report

SHOWN = 20
BODY_CHARACTERS = 60_000
"""GitHub refuses texts of more than 65,536 characters."""

_OUTCOMES = {
    "applied": "applies",
    "failed": "drifted",
    "present": "in upstream: retire it",
    "unneeded": "unneeded",
}


def headline(report: Report) -> str:
    """Return the situation in one line of plain text."""
    head, pin = (report.head or "")[:12], (report.pinned or "")[:12]
    if report.state == "gone":
        return f"{report.stack}: {report.ref} is gone from {report.source}"
    if report.state == "same":
        return f"{report.stack}: nothing new, the pin {pin} is the head of {report.ref}"
    if report.rewritten and report.ahead is None:
        said = f"{report.ref} was rewritten: the pin {pin} is no ancestor of the head {head}"
    elif report.rewritten:
        before = (report.previous or "")[:12]
        said = f"{report.ref} was rewritten: {before}, seen before, is no ancestor of the head {head}"
    elif report.pinned is None:
        said = f"{report.ref} is at {head}, and nothing is pinned yet"
    else:
        plural = "s" if report.ahead != 1 else ""
        said = f"{report.ahead} new commit{plural} on {report.ref}: {pin} -> {head}"
    broken = ", ".join(patch.id for patch in report.broken)
    fits = f"; the series breaks: {broken}" if broken else "; the series applies" if report.patches else ""
    return f"{report.stack}: {said}{fits}"


def as_text(report: Report, news: Iterable[News] = ()) -> str:
    """Return a report for a terminal."""
    parts = [headline(report)]
    if report.hint:
        parts.append(f"  {report.hint}")
    if report.transfer == "plain":
        parts.append("  the server has no filters: its whole history was fetched, with all files")
    if report.patches and report.state != "gone":
        rows = [(patch.id, _OUTCOMES[patch.outcome], _since(patch), _reason(patch)) for patch in report.patches]
        parts.append(table(["patch", "outcome", "since", "what was found"], rows))
    if report.changes and report.state != "gone":
        parts.append("\n".join(["what the lock and the profiles depend on:", *_changes(report, SHOWN)]))
    if report.commits:
        rows = [
            (commit.sha[:12], commit.author_date[:10], short(commit.title, 60), ", ".join(commit.areas))
            for commit in report.commits[:SHOWN]
        ]
        parts.append(table(["commit", "written", "title", "touches"], rows))
        if len(report.commits) > SHOWN:
            parts.append(f"and {len(report.commits) - SHOWN} more; --json names them")
    told = [item.text for item in news]
    if told:
        parts.append("\n".join(["new since the last run:", *(f"  {line}" for line in told)]))
    return "\n\n".join(parts)


def as_markdown(report: Report, *, repository: str | None = None) -> str:
    """Return a report as Markdown, for an issue, a pull request or a job summary.

    ``repository`` is the web address of upstream's, for links to its commits.
    """
    lines = [f"**{code(headline(report))}**", ""]
    if report.hint:
        lines += [code(report.hint), ""]
    if link := compare_link(report, repository):
        lines += [f"[compare]({link})", ""]
    if report.patches and report.state != "gone":
        lines += ["| patch | outcome | since | what was found |", "|---|---|---|---|"]
        lines += [
            f"| {code(patch.id)} | {_OUTCOMES[patch.outcome]} | {_cell(_since(patch))} | {_cell(_reason(patch))} |"
            for patch in report.patches
        ]
        lines.append("")
    if report.changes and report.state != "gone":
        lines += ["What the lock and the profiles depend on:", ""]
        lines += [f"- {code(line.strip())}" for line in _changes(report, 100)]
        lines.append("")
    if report.commits:
        lines += [f"Commits ({report.ahead}):", ""]
        for commit in report.commits[:100]:
            areas = f" ({', '.join(commit.areas)})" if commit.areas else ""
            lines.append(f"- {code(commit.sha[:12])} {commit.author_date[:10]} {code(commit.title)}{areas}")
    text = "\n".join(lines).rstrip() + "\n"
    return text if len(text) <= BODY_CHARACTERS else text[:BODY_CHARACTERS].rpartition("\n")[0] + "\n- …\n"


def code(text: str) -> str:
    """Return any text as Markdown code on one line, in which no mention, link or markup acts, also in a table."""
    line = " ".join(clean(text).split()).replace("`", "'").replace("|", "¦")
    return f"`{line}`" if line else "`(empty)`"


def plain(text: str) -> str:
    """Return any text for a messenger whose markup is unknown: no mentions, links or tags, on one line."""
    line = " ".join(clean(text).split())
    line = re.sub(r"[@#](?=\w)", "\\g<0>\N{ZERO WIDTH SPACE}", line)
    line = line.replace("://", ":\N{ZERO WIDTH SPACE}//").replace("<", "(")
    return re.sub(r"[*`~\[\]]", "·", line)


def short(text: str, most: int) -> str:
    """Return a text, cut to a number of characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def compare_link(report: Report, repository: str | None) -> str | None:
    """Return the forge's page that compares pin and head, or None when there is none."""
    if repository is None or not re.fullmatch(r"https://[\w.-]+/[\w./-]+", repository):
        return None
    if report.pinned is None or report.head is None or report.state == "same":
        return None
    return f"{repository.removesuffix('.git').rstrip('/')}/compare/{report.pinned}...{report.head}"


def _changes(report: Report, most: int) -> list[str]:
    ordered = sorted(report.changes, key=lambda change: not change.used)
    lines = [f"  {change.sentence()}" for change in ordered[:most]]
    return lines + ([f"  and {len(ordered) - most} more"] if len(ordered) > most else [])


def _since(patch: PatchTrial) -> str:
    if patch.broken_by is None:
        return ""
    by = f", merged by {patch.merged_by[:12]}" if patch.merged_by else ""
    return f"{patch.broken_by[:12]} {short(patch.title or '', 40)}{by}"


def _reason(patch: PatchTrial) -> str:
    near = f"; the nearest is line {patch.line}: {patch.nearest}" if patch.nearest else ""
    return patch.reason + ("" if near and near[2:20] in patch.reason else near)


def _cell(text: str) -> str:
    return code(text) if text else ""
