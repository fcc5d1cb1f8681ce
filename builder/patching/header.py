"""What a patch says of itself: the fields of a header and of an edit. ``docs/patches.md`` is their reference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from builder.errors import UsageError
from builder.files import inside
from builder.models.base import Commit, Data, Name, pattern

Text = Annotated[str, StringConstraints(min_length=1), AfterValidator(lambda text: text.replace("\r\n", "\n"))]
Count = Annotated[int, Field(ge=1, le=10_000)]
ParameterName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
PLACEHOLDER = re.compile(r"\{\{ ([a-z][a-z0-9_]*) \}\}")


def tree_path(text: str) -> str:
    """Return the normal form of a path inside a source tree; raises ValueError when it is none."""
    try:
        path = inside(text)
    except UsageError as trouble:
        raise ValueError(trouble.message) from trouble
    if not path.name or ".git" in path.parts:
        raise ValueError(f"the path {text!r} names no file of a source tree")
    return str(path)


def render(text: str, parameters: Mapping[str, int]) -> str:
    """Return a text with ``{{ name }}`` replaced by the parameter's value; other names stay as they are."""
    return PLACEHOLDER.sub(lambda found: str(parameters.get(found[1], found[0])), text)


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as trouble:
        raise ValueError("no version condition such as '>=7.14'") from trouble
    return text


TreePath = Annotated[str, AfterValidator(tree_path)]
Pattern = Annotated[Text, AfterValidator(pattern)]
Specifier = Annotated[str, AfterValidator(_specifier)]


class AppliesTo(Data):
    """For which trees a patch is meant; what is left out does not matter. A tree outside makes it ``unneeded``.

    Attributes:
        repository: URL of the repository; scheme, user, case and ``.git`` do not count.
        since: The first commit that it is meant for.
        until: The first commit that it is no longer meant for.
        file: A file that must be in the tree.
        rocm: A condition on the stack's ROCm release, such as ``>=7.14``.
    """

    repository: str | None = None
    since: Commit | None = None
    until: Commit | None = None
    file: TreePath | None = None
    rocm: Specifier | None = None


class Parameter(Data):
    """A whole number that the stack may set and that stands as ``{{ name }}`` in replacements.

    Attributes:
        default: Its value when the stack does not set it.
        meaning: One line for people.
        power_of_two: Only powers of two are allowed.
        least: The smallest value.
        most: The largest value.
        vram_bytes_each: Bytes of VRAM a card that each unit of the value costs, for the plan.
    """

    default: int
    meaning: str
    power_of_two: bool = False
    least: int = 1
    most: int
    vram_bytes_each: int = 0

    def fault(self, value: int) -> str:
        """Return what is wrong with a value, or an empty text."""
        if not self.least <= value <= self.most:
            return f"must be between {self.least} and {self.most}"
        if self.power_of_two and value & (value - 1):
            return "must be a power of two"
        return ""

    @model_validator(mode="after")
    def _default_fits(self) -> Parameter:
        if fault := self.fault(self.default):
            raise ValueError(f"the default {self.default} {fault}")
        return self


class Place(Data):
    """A text (or a regular expression) in a file of the tree, perhaps inside one function only."""

    file: TreePath
    text: Text | None = None
    regex: Pattern | None = None
    scope: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Place:
        if (self.text is None) == (self.regex is None):
            raise ValueError("exactly one of text and regex is needed")
        return self


class Assumption(Place):
    """What a patch relies on, before and after it: how often something stands in a file.

    Attributes:
        count: Exactly so often.
        at_most: At most so often.
    """

    count: Annotated[int, Field(ge=0)] | None = None
    at_most: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _one_figure(self) -> Assumption:
        if (self.count is None) == (self.at_most is None):
            raise ValueError("exactly one of count and at_most is needed")
        return self


class Unneeded(Place):
    """A sign in the tree that the patch is not needed there.

    Attributes:
        reason: The fact, in words.
    """

    reason: str


class Proof(Data):
    """What shows, in the built image, that the patch is in it. Exactly one of text, isa and symbol.

    Attributes:
        text: A text that stands in an installed file; placeholders allowed.
        isa: The name of a kernel whose machine code shows it.
        symbol: A symbol that a library exports.
        file: Path or glob in the image, relative to site-packages or absolute; for ``isa`` the library that holds it.
        count: How often: the text in the file, the marker in the kernel.
        marker: Regular expression on a line of the kernel's assembly, for ``gfx1100 kernels``.
        code: A dword of the kernel's machine code in hex, perhaps with a mask (``DC762000/FFFFE000``), for the image.
        no_new_spills: The patched kernel must not spill more registers than the unpatched one.
        max_vgprs: The most vector registers that the patched kernel may use.
    """

    text: Text | None = None
    isa: str | None = None
    symbol: str | None = None
    file: str | None = None
    count: Count | None = None
    marker: Pattern | None = None
    code: Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{8}(/[0-9A-F]{8})?$")] | None = None
    no_new_spills: bool = False
    max_vgprs: Annotated[int, Field(ge=1, le=256)] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Proof:
        if [self.text, self.isa, self.symbol].count(None) != 2:  # noqa: PLR2004 - one of three
            raise ValueError("exactly one of text, isa and symbol is needed")
        if self.isa is None and (self.marker or self.code or self.no_new_spills or self.max_vgprs):
            raise ValueError("marker, code, no_new_spills and max_vgprs belong to isa")
        if self.isa is not None and not (self.marker or self.code or self.no_new_spills or self.max_vgprs):
            raise ValueError("isa needs a marker, code, no_new_spills or max_vgprs")
        if self.text is not None and self.file is None:
            raise ValueError("a text needs the file that holds it")
        return self


class Header(Data):
    """What every patch must say.

    Attributes:
        id: Its name in reports, locks and records.
        title: One line for people.
        why: What goes wrong without it.
        origin: The report or thread that it comes from.
        upstream: URL of the thread in which upstream deals with it.
        applies_to: For which trees it is meant.
        needs: Patches that must come before it.
        conflicts: Patches that must not be in the same series.
        retire_when: When it can go.
        enabled: False for a patch that is off until somebody asks for it by id.
        parameters: What the stack may set.
        assume: What it relies on.
        unneeded_when: Signs in the tree that it is not needed.
        unneeded_if_compiles: A HIP source; the patch is needless where the build's own compiler accepts it.
        proof: What shows that it is in the image.
    """

    id: Name
    title: Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\n]*$")]
    why: Text
    origin: Text
    upstream: str | None = None
    applies_to: AppliesTo = Field(default_factory=AppliesTo)
    needs: tuple[Name, ...] = ()
    conflicts: tuple[Name, ...] = ()
    retire_when: Text
    enabled: bool = True
    parameters: dict[ParameterName, Parameter] = Field(default_factory=dict)
    assume: tuple[Assumption, ...] = ()
    unneeded_when: tuple[Unneeded, ...] = ()
    unneeded_if_compiles: Text | None = None
    proof: Annotated[tuple[Proof, ...], Field(min_length=1)]


class CheckpointPatch(Header):
    """A rewrite of a checkpoint's rules, which :mod:`builder.checkpoint` makes; here only for what it says of itself.

    Attributes:
        kind: What tells it from a patch of a source tree.
        rules: The rule that each quantisation method gets.
    """

    kind: Literal["checkpoint"]
    rules: dict[str, dict[str, Any]]


class Edit(Data):
    r"""An anchored search-and-replace.

    Attributes:
        file: The file, by its path in the tree.
        anchor: What to look for: plain text, or a regular expression.
        replacement: What takes its place; placeholders allowed. With a regular expression, groups as ``\1``.
        regex: The anchor and ``present`` are regular expressions.
        count: How often the anchor must be found.
        present: What the file holds once the edit is made; when left out the replacement, as a whole statement.
        scope: The function or kernel to look in; dotted for a method.
    """

    file: TreePath
    anchor: Text
    replacement: Annotated[str, AfterValidator(lambda text: text.replace("\r\n", "\n"))]
    regex: bool = False
    count: Count = 1
    present: Text | None = None
    scope: Annotated[str, StringConstraints(pattern=r"^\w+(\.\w+)*$")] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Edit:
        if self.regex:
            pattern(self.anchor)
            pattern(self.present or "")
        if self.present is None and (self.regex or not self.replacement):
            raise ValueError("present is needed here: it cannot be read off the replacement")
        if self.anchor == self.replacement:
            raise ValueError("the replacement equals the anchor")
        return self


class EditPatch(Header):
    """A header and its edits: the whole of an edit patch."""

    edits: Annotated[tuple[Edit, ...], Field(min_length=1)]
