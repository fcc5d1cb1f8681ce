"""Unified diffs as `git diff` writes them: read, and what goes beyond text refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from builder.errors import UsageError
from builder.patching.header import tree_path

if TYPE_CHECKING:
    from pathlib import Path

HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
REFUSED = {
    "rename ": "a rename",
    "copy ": "a copy",
    "similarity index": "a rename or a copy",
    "dissimilarity index": "a rewrite",
    "old mode": "a change of mode",
    "new mode": "a change of mode",
    "GIT binary patch": "a binary change",
    "Binary files": "a binary change",
}
NO_NEWLINE = "\\ No newline at end of file"
NOTHING = "/dev/null"
Mark = Literal[" ", "-", "+"]
Kind = Literal["create", "delete", "change"]
MARKS: dict[str, Mark] = {" ": " ", "-": "-", "+": "+"}


@dataclass(frozen=True)
class Line:
    """A line of a hunk: kept, removed or added, with its newline if it has one."""

    kind: Mark
    text: str


@dataclass(frozen=True)
class Hunk:
    """A stretch of a file before and after.

    Attributes:
        start: The line at which the diff says that it stands: for messages, and for a hunk at the file's begin.
        lines: Its lines in order.
    """

    start: int
    lines: tuple[Line, ...]

    @property
    def old(self) -> str:
        """The stretch before."""
        return "".join(line.text for line in self.lines if line.kind != "+")

    @property
    def new(self) -> str:
        """The stretch after."""
        return "".join(line.text for line in self.lines if line.kind != "-")

    def undone(self) -> Hunk:
        """Return the hunk that takes this one back."""
        swap: dict[Mark, Mark] = {" ": " ", "-": "+", "+": "-"}
        return replace(self, lines=tuple(Line(swap[line.kind], line.text) for line in self.lines))


@dataclass(frozen=True, kw_only=True)
class FileDiff:
    """What a diff does to one file.

    Attributes:
        file: The file, by its path in the tree.
        kind: Whether it is created, deleted or changed.
        hunks: What changes in it.
        executable: A created file may be executed.
    """

    file: str
    kind: Kind
    hunks: tuple[Hunk, ...]
    executable: bool = False


def parse_diff(text: str, path: Path, *, first_line: int) -> tuple[FileDiff, ...]:
    """Return the files of a unified diff; ``path`` and ``first_line`` are for messages.

    Raises:
        UsageError: It is no unified diff, or it asks for what is not done here: renames, modes, binary files, links.
    """
    return _Reader(text, path, first_line).files()


class _Reader:
    """Reads a diff line by line; counts in the hunk heads decide what belongs to a hunk."""

    def __init__(self, text: str, path: Path, first_line: int) -> None:
        self._lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
        self._path = path
        self._first = first_line
        self._at = 0

    def files(self) -> tuple[FileDiff, ...]:
        """Return the files of the whole diff."""
        found: dict[str, FileDiff] = {}
        while self._at < len(self._lines) and self._line() != "-- ":  # the signature of git format-patch
            if not self._line():
                self._at += 1
                continue
            start = self._at
            diff = self._file()
            if diff.file in found:
                raise self._fault(f"{diff.file} stands in the diff twice", at=start)
            found[diff.file] = diff
        return tuple(found.values())

    def _file(self) -> FileDiff:
        start, named, modes = self._at, None, {}
        if match := re.match(r"diff --git a/(.+) b/\1$", self._line()):
            named = match[1]
        if self._line().startswith("diff "):
            self._at += 1
            modes = self._modes()
        executable = modes.get("new file mode") == "100755"
        if not self._line().startswith("--- "):
            if named is None or not modes:
                raise self._fault("a file's `--- a/…` line is expected here")
            kind: Kind = "create" if "new file mode" in modes else "delete"
            return FileDiff(file=self._path_of(named), kind=kind, hunks=(Hunk(0, ()),), executable=executable)
        old, new = self._name("--- ", "a/"), self._name("+++ ", "b/")
        if old is not None and new is not None and old != new:
            raise self._fault(f"{old} becomes {new}: renames are not done here")
        hunks = []
        while self._line().startswith("@@ "):
            hunks.append(self._hunk())
        file = old or new
        kind = "create" if old is None else "delete" if new is None else "change"
        if file is None or not hunks or (kind != "change" and len(hunks) > 1):
            raise self._fault("the file's hunks are expected here")
        if kind == "change" and any(hunk.old == hunk.new for hunk in hunks):
            raise self._fault(f"a hunk of {file} changes nothing but line endings, which are kept here", at=start)
        return FileDiff(file=file, kind=kind, hunks=tuple(hunks), executable=executable)

    def _modes(self) -> dict[str, str]:
        """Read git's lines between ``diff --git`` and ``---``; what they ask for beyond text is refused."""
        modes = {}
        while self._at < len(self._lines) and not self._line().startswith(("--- ", "diff ", "@@ ")):
            line = self._line()
            for prefix, what in REFUSED.items():
                if line.startswith(prefix):
                    raise self._fault(f"`{line}` is {what}, which is not done here")
            if match := re.match(r"(new file mode|deleted file mode) (\d+)$", line):
                if match[2] not in {"100644", "100755"}:
                    raise self._fault(f"`{line}` is no regular file, and no other is made here")
                modes[match[1]] = match[2]
            elif line and not line.startswith("index "):
                raise self._fault(f"`{line[:80]}` has no meaning here")
            self._at += 1
        return modes

    def _name(self, mark: str, prefix: str) -> str | None:
        line = self._line()
        name = line.removeprefix(mark).partition("\t")[0]
        if not line.startswith(mark) or not (name == NOTHING or name.startswith(prefix)):
            raise self._fault(f"`{mark}{prefix}…` or `{mark}{NOTHING}` is expected here, as plain `git diff` writes it")
        path = None if name == NOTHING else self._path_of(name.removeprefix(prefix))
        self._at += 1
        return path

    def _path_of(self, name: str) -> str:
        try:
            return tree_path(name)
        except ValueError as trouble:
            raise self._fault(str(trouble)) from trouble

    def _hunk(self) -> Hunk:
        head = HUNK.match(self._line())
        if head is None:
            raise self._fault("`@@ -LINE,COUNT +LINE,COUNT @@` is expected here")
        start, old, new = int(head[1]), int(head[2] or 1), int(head[4] or 1)
        self._at += 1
        lines: list[Line] = []
        while old or new or self._line() == NO_NEWLINE:
            kind, text = self._line()[:1] or " ", self._line()[1:]
            if self._line() == NO_NEWLINE and lines:
                lines[-1] = Line(lines[-1].kind, lines[-1].text.removesuffix("\n"))
            elif kind not in MARKS or self._at >= len(self._lines):
                raise self._fault(f"the hunk ends too early: {old} old and {new} new lines are still to come")
            else:
                lines.append(Line(MARKS[kind], text + "\n"))
                old, new = old - (kind != "+"), new - (kind != "-")
                if min(old, new) < 0:
                    raise self._fault("the hunk is longer than its head says")
            self._at += 1
        return Hunk(start, tuple(lines))

    def _line(self) -> str:
        return self._lines[self._at] if self._at < len(self._lines) else ""

    def _fault(self, what: str, *, at: int | None = None) -> UsageError:
        return UsageError(f"{self._path}:{self._first + (self._at if at is None else at)}: {what}")
