"""The table of kernels before and after the series, the warnings that it calls for, and the proofs that it settles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from builder.console import table
from builder.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.kernels.assembly import Row
    from builder.patching.header import Proof

HEAD = ("file", "kernel", "when", "VGPRs", "SGPRs", "LDS", "spills", "scratch", "waves", "")


@dataclass(frozen=True, kw_only=True)
class Report:
    """Kernels before and after the series.

    Attributes:
        rows: A row a kernel and tree, sorted by file, kernel and tree.
        faults: What must not be: a kernel that compiled before and no longer does, or a proof that is not met.
        warnings: What the user should know, in plain words.
        notes: Which compilers made the figures.
    """

    rows: tuple[Row, ...]
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the document of ``kernels --json``."""
        return {
            "kernels": [row.document() for row in self.rows],
            "faults": list(self.faults),
            "warnings": list(self.warnings),
            "compilers": list(self.notes),
        }

    def require_success(self, stack: str) -> None:
        """Raise BuildError, with every fault, when a kernel is not as the series promises."""
        if self.faults:
            raise BuildError(
                f"the kernels of {stack} are not as the series promises:\n" + "\n".join(self.faults),
                hint=f"adapt the patch or its proof; `gfx1100 kernels {stack}` shows the figures without a build",
            )

    def text(self) -> str:
        """Return the table for people, what failed, and the warnings."""
        parts = [table(HEAD, _lines(self.rows))]
        for title, lines in (("failed", self.faults), ("warning", self.warnings), ("compiled with", self.notes)):
            parts += [f"{title}: {line}" for line in lines]
        return "\n".join(parts)


def make_report(rows: Sequence[Row], *, proofs: Mapping[str, Sequence[Proof]], notes: Sequence[str]) -> Report:
    """Return the report over compiled kernels.

    Args:
        rows: The kernels, in any order.
        proofs: Patch -> its proofs; those of kind ``isa`` are checked on the patched kernels.
        notes: Which compilers made the figures.
    """
    ordered = sorted(rows, key=lambda row: (row.file, row.name, row.kernel if row.figures else "", row.when == "after"))
    pairs = list(_pairs(ordered))
    return Report(
        rows=tuple(ordered),
        faults=(*_broken(ordered), *_unproven(ordered, pairs, proofs)),
        warnings=tuple(_warnings(pairs)),
        notes=tuple(notes),
    )


def sweep_text(rows: Sequence[Row]) -> str:
    """Return the table of a sweep, in the order of its rows."""
    head = ("rank", "launch", "spills", "scratch", "LDS", "VGPRs", "waves", "")
    return table(head, [_candidate(place, row) for place, row in enumerate(rows, start=1)])


def _candidate(place: int, row: Row) -> tuple[object, ...]:
    launch, figures = launch_text(row.launch), row.figures
    if figures is None:
        return ("-", launch, "", "", "", "", "", row.error)
    numbers = (figures.vgpr_spills, figures.scratch_bytes, figures.lds_bytes, figures.vgpr)
    return (place, launch, *numbers, f"{row.waves or 0:g}", "")


def launch_text(values: Mapping[str, int]) -> str:
    """Return the values of a launch in one line."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def _pairs(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield the rows of a kernel before and after; a kernel of one tree alone has no pair."""
    olds: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        place = olds.setdefault((row.file, row.kernel), [])
        if row.when == "before":
            place.append(row)
        elif place:
            # several targets may name one kernel: they come in the stack's order in both trees
            yield place.pop(0), row


def _broken(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence for every file that the series broke."""
    failed_before = {row.file for row in rows if row.when == "before" and row.error}
    compared = any(row.when == "before" for row in rows)
    for row in rows:
        if compared and row.when == "after" and row.error and row.file not in failed_before:
            place = "" if row.file in row.error else f"{row.file}: "
            yield f"{row.name or 'the file'} does not compile after the series: {place}{row.error}"


def _warnings(pairs: Sequence[tuple[Row, Row]]) -> Iterator[str]:
    for old, new in pairs:
        if old.figures and new.figures and new.figures.vgpr_spills > old.figures.vgpr_spills:
            figures = f"{new.figures.vgpr_spills} instead of {old.figures.vgpr_spills}{_change(old, new)}"
            yield (
                f"{new.name} in {new.file} spills more registers after the series: {figures}. A spilled register is "
                "written to memory and read back where the kernel uses it. A static figure is no speed: measure it."
            )


def _change(old: Row, new: Row) -> str:
    moved = {name: value for name, value in new.launch.items() if old.launch.get(name) != value}
    return (
        f" ({launch_text({name: old.launch.get(name, 0) for name in moved})} -> {launch_text(moved)})" if moved else ""
    )


def _unproven(
    rows: Sequence[Row], pairs: Sequence[tuple[Row, Row]], proofs: Mapping[str, Sequence[Proof]]
) -> Iterator[str]:
    """Yield a sentence for every proof of kind ``isa`` that the patched kernels do not meet."""
    for patch, several in proofs.items():
        for proof in several:
            if proof.isa is None:
                continue
            mine = [row for row in rows if row.when == "after" and proof.isa in {row.name, row.kernel}]
            if not mine:
                failed = "".join(f"; {row.file}: {row.error}" for row in rows if row.when == "after" and row.error)
                yield f"{patch}: no kernel {proof.isa} is among those that the stack compiles{failed}"
            for row in mine:
                yield from (
                    f"{patch}: {fault}" for fault in _proof_faults(row, proof, _spills_before(row, rows, pairs))
                )


def _spills_before(row: Row, rows: Sequence[Row], pairs: Sequence[tuple[Row, Row]]) -> int | None:
    """Return how much a patched kernel spilled before: None where it was not, 0 where its file gave no figures.

    What did not compile before has no figure that would allow it to spill now.
    """
    figures = next((old.figures for old, new in pairs if new is row), None)
    if figures is not None:
        return figures.vgpr_spills
    return 0 if any(old.when == "before" and old.file == row.file and old.error for old in rows) else None


def _proof_faults(row: Row, proof: Proof, spills_before: int | None) -> Iterator[str]:
    figures = row.figures
    if figures is None:
        yield f"{row.name} does not compile: {row.error}"
        return
    if proof.marker:
        count = row.markers.get(proof.marker, 0)
        if count != (proof.count or count) or not count:
            wanted = proof.count or "at least one"
            yield f"{row.name} has {count} instructions like {proof.marker!r} where {wanted} must be"
    if proof.no_new_spills and spills_before is not None and figures.vgpr_spills > spills_before:
        yield f"{row.name} spills {figures.vgpr_spills} registers, {spills_before} before"
    if proof.max_vgprs is not None and figures.vgpr > proof.max_vgprs:
        yield f"{row.name} uses {figures.vgpr} vector registers, at most {proof.max_vgprs} are allowed"


def _lines(rows: Sequence[Row]) -> Iterator[tuple[object, ...]]:
    """Yield a line a row; a kernel that is the same before and after takes one."""
    same = {id(old): new for old, new in _pairs(rows) if _cells(replace(old, when="after")) == _cells(new)}
    skipped = {id(new) for new in same.values()}
    for row in rows:
        if id(row) not in skipped:
            cells = _cells(row)
            yield (*cells[:2], "both", *cells[3:]) if id(row) in same else cells


def _cells(row: Row) -> tuple[object, ...]:
    marks = " ".join(f"{pattern}: {count}" for pattern, count in row.markers.items())
    said = row.error or " ".join(part for part in (launch_text(row.launch), marks) if part)
    if row.figures is None:
        return (row.file, row.name or "-", row.when, "", "", "", "", "", "", said)
    figures = row.figures
    numbers = (figures.vgpr, figures.sgpr, figures.lds_bytes, figures.vgpr_spills, figures.scratch_bytes)
    return (row.file, row.name, row.when, *numbers, f"{row.waves or 0:g}", said)
