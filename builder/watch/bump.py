"""Move the pin to a head that was tried and has been there for a while: the lock, the Dockerfile, a pull request."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import UpstreamError, UsageError
from builder.models.lock import load_lock, lock_path
from builder.resolve.lock import differences, stale
from builder.stage.inputs import at_commit
from builder.stage.render import dockerfile_path, render
from builder.watch.state import moment
from builder.watch.words import as_markdown, code

if TYPE_CHECKING:
    from builder.models.stack import Stack
    from builder.settings import Settings
    from builder.source.git import Git
    from builder.watch.forge import Forge
    from builder.watch.report import Report
    from builder.watch.state import WatchState


@dataclass(frozen=True, kw_only=True)
class Bump:
    """A pin that moves.

    Attributes:
        commit: The new pin.
        moved: What differs between the locks, a line each.
        files: The files to be written, by their path in the checkout.
        branch: A name for a branch.
        title: A title for a pull request.
        body: Its text, Markdown.
    """

    commit: str
    moved: tuple[str, ...]
    files: dict[str, str]
    branch: str
    title: str
    body: str

    def as_json(self) -> dict[str, Any]:
        """Return what ``watch --json`` says of it."""
        return {
            "commit": self.commit,
            "moved": list(self.moved),
            "files": sorted(self.files),
            "branch": self.branch,
            "title": self.title,
            "body": self.body,
        }


def candidate(state: WatchState, git: Git, *, head: str, pinned: str | None, age: timedelta, now: datetime) -> str:
    """Return the newest commit that was the head, that the head stands on, and that was first seen ``age`` ago.

    Raises:
        UsageError: There is none yet; says when there will be one.
    """
    newer = [sighting for sighting in reversed(state.sightings) if sighting.head != pinned]
    standing = [
        sighting
        for sighting in newer
        if git.is_ancestor(sighting.head, head) and not (pinned and git.is_ancestor(sighting.head, pinned))
    ]
    for sighting in standing:
        if now - moment(sighting.at) >= age:
            return sighting.head
    if not standing:
        raise UsageError("there is no new head to take")
    oldest = min(moment(sighting.at) for sighting in standing)
    raise UsageError(
        f"no new head has been there for {age / timedelta(hours=1):.0f} hours yet",
        hint=f"the first one will at {(oldest + age).isoformat(timespec='minutes')}; --min-age HOURS changes that",
    )


def prepare(root: Path, stack: Stack, commit: str, report: Report, *, settings: Settings, head: str) -> Bump:
    """Return the bump of a stack to a commit, of which ``report`` is; by now the branch is at ``head``.

    Only commit and version move, and what is rendered from them.

    Raises:
        UsageError: The lock does not belong to the stack as it is now.
    """
    lock = load_lock(root, stack.name)
    if found := stale(root, stack, lock, settings=settings):
        raise UsageError(
            f"{lock_path(root, stack.name)} is stale: {'; '.join(found)}", hint=f"run `gfx1100 lock {stack.name}`"
        )
    new = at_commit(stack, lock, commit)
    moved = tuple(differences(lock, new))
    files = {
        lock_path(root, stack.name).relative_to(root).as_posix(): new.text(),
        dockerfile_path(root, stack.name).relative_to(root).as_posix(): render(root, stack, new),
    }
    return Bump(
        commit=commit,
        moved=moved,
        files=files,
        branch=f"watch/{stack.name}-{commit[:12]}",
        title=f"{stack.name}: pin {commit[:12]}",
        body=_body(stack, moved, report, head),
    )


def open_pull_request(forge: Forge, bump: Bump) -> str:
    """Open the pull request of a bump as one commit on a branch of its own, and say which one it is.

    A pull request that was opened for the same commit before, whatever became of it, is left alone.

    Raises:
        UpstreamError: The forge could not be asked.
        UsageError: The token or the repository does not fit.
    """
    owner = forge.repository.partition("/")[0]
    known = forge.get(f"/pulls?state=all&head={owner}:{bump.branch}")
    if isinstance(known, list) and known:
        return f"pull request {known[0].get('number')} is there already"
    target = _text(forge.get(""), "default_branch")
    base = _text(forge.get(f"/git/ref/heads/{target}"), "object", "sha")
    tree = _text(forge.get(f"/git/commits/{base}"), "tree", "sha")
    entries = [
        {"path": name, "mode": "100644", "type": "blob", "content": text} for name, text in sorted(bump.files.items())
    ]
    tree = _text(forge.send("POST", "/git/trees", {"base_tree": tree, "tree": entries}), "sha")
    commit = {"message": bump.title, "tree": tree, "parents": [base]}
    sha = _text(forge.send("POST", "/git/commits", commit), "sha")
    existing = forge.get(f"/git/matching-refs/heads/{bump.branch}")
    if isinstance(existing, list) and any(ref.get("ref") == f"refs/heads/{bump.branch}" for ref in existing):
        # left by a run that got no further
        forge.send("PATCH", f"/git/refs/heads/{bump.branch}", {"sha": sha, "force": True})
    else:
        forge.send("POST", "/git/refs", {"ref": f"refs/heads/{bump.branch}", "sha": sha})
    opened = forge.send("POST", "/pulls", {"title": bump.title, "head": bump.branch, "base": target, "body": bump.body})
    return f"opened pull request {opened.get('number') if isinstance(opened, dict) else ''}".strip()


def _body(stack: Stack, moved: tuple[str, ...], report: Report, head: str) -> str:
    newest = "" if head == report.head else f"The branch has moved on to {code(head)} since.\n\n"
    lines = "\n".join(f"- {code(line)}" for line in moved)
    text = as_markdown(report, repository=stack.source.repository)
    return f"The pin of {code(stack.name)} moves:\n\n{lines}\n\n{newest}{text}"


def _text(value: Any, *keys: str) -> str:  # noqa: ANN401 - what the forge sent
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, str):
        raise UpstreamError(f"the forge's answer has no {'.'.join(keys)}", hint="the next run tries again")
    return value
