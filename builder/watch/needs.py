"""What the lock and the profiles need of an engine's tree besides the patch targets, compared between two commits."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement

from builder.models.profile import load_profile, profile_names
from builder.watch.areas import COMPARED, FLAGS, OPS, PROJECTS, REQUIREMENTS, VERSIONS
from builder.watch.history import contents, state_at
from builder.watch.report import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from builder.models.stack import Stack
    from builder.source.repository import Source
    from builder.watch.history import File
    from builder.watch.report import ChangeKind, Status

Names = dict[tuple[str, str], str]
"""Values by file and name."""

_SETTING = re.compile(
    r"""^\s*(?:set\(\s*(\w*(?:VERSION|ARCHS)\w*)\s+"?([^")]+)"?\s*\)|ARG\s+(\w+)=["']?([^"'\s#]+)|(channel)\s*=\s*"([^"]+)")""",
    re.MULTILINE,
)
_IMAGE = re.compile(r"^FROM\s+(?:--\S+\s+)*([\w./-]+:[\w.-]+)", re.MULTILINE)
_FLAG = re.compile(r"""["'](--[a-z][a-z0-9-]*)["']""")
_FIELD = re.compile(r"^    ([a-z][a-z0-9_]+):\s", re.MULTILINE)
_VARIABLE = re.compile(r"\b((?:VLLM|SGLANG|SMOKE)_[A-Z0-9_]+)\b")
_OP = re.compile(r"""\b\w*(?:ops|m|ar)\.def\(\s*"(?:\w+::)?(\w+)""")


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a stack and its profiles use of the engine.

    Attributes:
        flags: Serve flags, without a value.
        variables: Environment variables of the engine.
        modules: Python and extension modules.
        words: All words of profiles and series in which the name of an op may stand.
        requirements: Distributions that the stack pins itself.
    """

    flags: frozenset[str]
    variables: frozenset[str]
    modules: frozenset[str]
    words: frozenset[str]
    requirements: frozenset[str]


def needs_of(root: Path, stack: Stack, words: str = "") -> Needs:
    """Return what a stack and the profiles that serve its image use; ``words`` is the text of the series."""
    profiles = [load_profile(root, name) for name in profile_names(root)]
    ours = [profile for profile in profiles if profile.stack == stack.name]
    arguments = [argument for profile in ours for argument in profile.command]
    variables = {name for profile in ours for name in profile.environment}
    text = " ".join([*arguments, words])
    return Needs(
        flags=frozenset(re.split(r"[=.]", argument)[0] for argument in arguments if argument.startswith("--")),
        variables=frozenset(name for name in variables if _VARIABLE.fullmatch(name)),
        modules=frozenset(name for name in stack.expect.modules if name.split(".")[0] == stack.expect.package),
        words=frozenset(re.findall(r"\w+", text)),
        requirements=frozenset(
            [wheel.name for wheel in stack.wheels]
            + [re.split(r"[=<>!~ ]", line)[0] for line in stack.build_requirements]
        ),
    )


def compare(source: Source, old: str, new: str, needs: Needs) -> tuple[Change, ...]:
    """Return what differs between two commits in what the lock and the profiles depend on.

    Raises:
        UpstreamError: A file of one of them is not to be had.
    """
    places = _places(needs)
    wanted = (*COMPARED, *places)
    here, there = state_at(source.git, old, wanted), state_at(source.git, new, wanted)
    before, after = _read(source, old, here, there), _read(source, new, there, here)
    return (
        *_pins("requirement", _requirements(before), _requirements(after), needs.requirements),
        *_pins("version", _versions(before), _versions(after), frozenset()),
        *_serving(before, after, needs),
        *_names("op", _defined(before, OPS, _OP), _defined(after, OPS, _OP), needs.words),
        *_modules(places, here, there),
    )


def _read(source: Source, commit: str, here: Mapping[str, File], there: Mapping[str, File]) -> dict[str, str]:
    """Return the compared files of a commit that differ at the other one; of flags and ops all, when one differs."""
    grouped = {path for group in (FLAGS, OPS) if any(here.get(p) != there.get(p) for p in group) for path in group}
    wanted = {
        path: file for path, file in here.items() if path in COMPARED and (file != there.get(path) or path in grouped)
    }
    blobs = contents(source, [commit], wanted, wanted.values())
    return {path: blobs[file.sha].decode(errors="replace") for path, file in wanted.items()}


def _requirements(files: Mapping[str, str]) -> Names:
    found: Names = {}
    for path, text in files.items():
        if path in REQUIREMENTS:
            lines = [re.sub(r"\s+#.*|^#.*", "", line).strip() for line in text.splitlines()]
            found |= {(path, name): value for name, value in _parsed(lines)}
        if path in PROJECTS:
            found |= {(path, name): value for name, value in _parsed(_of_project(text))}
    return found


def _parsed(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        marker = f"; {requirement.marker}" if requirement.marker else ""
        name = requirement.name.lower().replace("_", "-")
        yield f"{name}{marker}", str(requirement.specifier) or requirement.url or "any"


def _of_project(text: str) -> list[str]:
    try:
        project: Any = tomllib.loads(text)
        build, core = project.get("build-system", {}), project.get("project", {})
        extras = core.get("optional-dependencies", {}).values()
        lists = [build.get("requires", []), core.get("dependencies", []), *extras]
        return [line for listed in lists for line in listed if isinstance(line, str)]
    except (tomllib.TOMLDecodeError, AttributeError, TypeError):  # no TOML, or tables and lists are something else
        return []


def _versions(files: Mapping[str, str]) -> Names:
    found: Names = {}
    for path in VERSIONS:
        text = files.get(path, "")
        for match in _SETTING.finditer(text):
            name, value = (part for part in match.groups() if part is not None)
            found[path, name] = value
        found |= {(path, f"image {image.partition(':')[0]}"): image for image in _IMAGE.findall(text)}
    return found


def _defined(files: Mapping[str, str], paths: Iterable[str], pattern: re.Pattern[str]) -> dict[str, str]:
    """Return the names that a pattern finds in some of the files, and where each stands."""
    return {name: path for path in paths for name in pattern.findall(files.get(path, ""))}


def _flags(files: Mapping[str, str]) -> dict[str, str]:
    # the engines make flags of dataclass fields as well
    fields = _defined(files, reversed(FLAGS), _FIELD)
    made = {f"--{name.replace('_', '-')}": path for name, path in fields.items()}
    return made | _defined(files, FLAGS, _FLAG)


def _pins(kind: ChangeKind, before: Names, after: Names, used: frozenset[str]) -> Iterator[Change]:
    for file, name in sorted(before.keys() | after.keys()):
        old, new = before.get((file, name)), after.get((file, name))
        if old != new:
            status: Status = "added" if old is None else "gone" if new is None else "changed"
            mine = name.partition(";")[0] in used
            yield Change(kind=kind, name=name, status=status, file=file, before=old, after=new, used=mine)


def _serving(before: Mapping[str, str], after: Mapping[str, str], needs: Needs) -> Iterator[Change]:
    """Yield what became of flags and variables; when none of the files that define them is left, that alone."""
    places = [path for path in FLAGS if path in before]
    if places and not any(path in after for path in FLAGS):
        yield Change(kind="flag", name="(all of them)", status="gone", file=places[0], used=bool(needs.flags))
        return
    yield from _names("flag", _flags(before), _flags(after), needs.flags)
    was, now = (_defined(files, FLAGS, _VARIABLE) for files in (before, after))
    yield from _names("variable", was, now, needs.variables)


def _names(
    kind: ChangeKind, before: Mapping[str, str], after: Mapping[str, str], used: frozenset[str]
) -> Iterator[Change]:
    """Yield names that are gone, or perhaps renamed: all ops, and of flags and variables the ones that are used."""
    for name in sorted(before.keys() - after.keys()):
        if name not in used and kind != "op":
            continue
        near = difflib.get_close_matches(name, sorted(after.keys() - before.keys()), n=1, cutoff=0.75)
        yield Change(
            kind=kind,
            name=name,
            status="renamed" if near else "gone",
            file=before[name],
            after=near[0] if near else None,
            used=name in used,
        )


def _places(needs: Needs) -> dict[str, str]:
    """Return where the needed Python modules may stand; extension modules are no files of a tree."""
    return {
        f"{prefix}{module.replace('.', '/')}{end}": module
        for module in sorted(needs.modules)
        for prefix in ("", "python/")
        for end in (".py", "/__init__.py")
    }


def _modules(places: Mapping[str, str], here: Mapping[str, File], there: Mapping[str, File]) -> Iterator[Change]:
    """Yield modules that were there and are no longer."""
    still = {places[path] for path in there if path in places}
    for path in sorted(here):
        if path in places and places[path] not in still:
            yield Change(kind="module", name=places[path], status="gone", file=path, used=True)
