"""One issue a stack, for ever: opened, brought up to date, closed and opened again, and a comment only for news."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from builder.errors import UpstreamError
from builder.files import canonical_json, sha256
from builder.watch.words import as_markdown, code

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from builder.watch.forge import Forge
    from builder.watch.report import News, Report

LABEL = "upstream-watch"
MOST_PAGES = 10


def sync_issue(forge: Forge, report: Report, news: Sequence[News], *, repository: str | None) -> str:
    """Bring the issue of a stack in line with a report and say what was done.

    The issue is found by its label and by a hidden marker, which also holds what was told last: the same report changes
    nothing, also when a person has closed the issue meanwhile. The news go into a comment; ``repository`` is the web
    address of upstream's, for links.

    Raises:
        UpstreamError: The forge could not be asked.
        UsageError: The token or the repository does not fit.
    """
    issue = _find(forge, report.stack)
    caught_up = report.state == "same" and not report.broken
    if issue is None and caught_up:
        return "no issue is needed"
    told = fingerprint(report)
    body = f"{as_markdown(report, repository=repository)}\n{_marker(report.stack, told)}\n"
    if issue is None:
        made = forge.send("POST", "/issues", {"title": _title(report), "body": body, "labels": [LABEL]})
        return f"opened {_shown(made)}"
    if _told(issue, report.stack) == told:
        return f"{_shown(issue)} says it already"
    state = "closed" if caught_up else "open"
    path = f"/issues/{int(issue['number'])}"
    forge.send("PATCH", path, {"title": _title(report), "body": body, "state": state})
    forge.send("POST", f"{path}/comments", {"body": _comment(report, news)})
    return f"{'closed' if caught_up else 'updated'} {_shown(issue)}"


def fingerprint(report: Report) -> str:
    """Return a hash over what an issue tells: head, situation, outcomes and what else changed."""
    told = {
        "pinned": report.pinned,
        "head": report.head,
        "state": report.state,
        "patches": [(patch.id, patch.outcome, patch.broken_by) for patch in report.patches],
        "changes": [change.sentence() for change in report.changes],
    }
    return sha256(canonical_json(told))[:16]


def _find(forge: Forge, stack: str) -> dict[str, Any] | None:
    """Return the stack's issue, open or closed; the one with the lowest number when somebody made a second one."""
    found: list[dict[str, Any]] = []
    for page in range(1, MOST_PAGES + 1):
        listed = forge.get(f"/issues?labels={LABEL}&state=all&sort=created&direction=asc&per_page=100&page={page}")
        if not isinstance(listed, list):
            raise UpstreamError(f"{forge.api} answered with no list of issues", hint="the next run tries again")
        found += [
            issue for issue in listed if isinstance(issue, dict) and "pull_request" not in issue and "number" in issue
        ]
        if len(listed) < 100:  # noqa: PLR2004 - the page's size, above
            break
    return next((issue for issue in found if _told(issue, stack) is not None), None)


def _told(issue: dict[str, Any], stack: str) -> str | None:
    found = re.search(rf"<!-- gfx1100-watch {re.escape(stack)} ([0-9a-f]{{16}}) -->\s*\Z", str(issue.get("body") or ""))
    return found[1] if found else None


def _marker(stack: str, told: str) -> str:
    return f"<!-- gfx1100-watch {stack} {told} -->"


def _title(report: Report) -> str:
    if report.state == "gone":
        return f"{report.stack}: the upstream branch is gone"
    if report.broken:
        return f"{report.stack}: upstream breaks {', '.join(patch.id for patch in report.broken)}"[:250]
    if report.rewritten:
        return f"{report.stack}: the upstream branch was rewritten"
    return f"{report.stack}: new upstream commits" if report.state == "new" else f"{report.stack}: up to date"


def _comment(report: Report, news: Iterable[News]) -> str:
    lines = [f"- {code(item.text)}" for item in news][:50]
    return "\n".join(lines) or f"- {code(f'the head is {report.head}, the pin {report.pinned}')}"


def _shown(issue: Any) -> str:  # noqa: ANN401 - what the forge sent
    number = issue.get("number") if isinstance(issue, dict) else None
    return f"issue {number}" if isinstance(number, int) else "an issue"
