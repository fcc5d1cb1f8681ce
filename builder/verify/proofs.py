"""Look for each patch's own proof in the image: a text in an installed file, a marker in the machine code, a symbol."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from builder.objects import read_library
from builder.objects.code import count_dwords, names_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.patching.header import Proof


def missing_proofs(
    proofs: Mapping[str, tuple[Proof, ...]], answer: Mapping[str, Any], libraries: Mapping[str, bytes]
) -> list[str]:
    """Return a sentence for every proof that is not found, with the patch's id; empty when all are there.

    Args:
        proofs: What shows that a patch is in the image, by the patch's id.
        answer: What the probe said; ``site`` and ``texts`` of it matter here.
        libraries: Content of the engine's extensions, by absolute path.
    """
    return [
        f"{patch}: {fault}"
        for patch, several in proofs.items()
        for fault in _faults(several, answer, libraries)
        if fault
    ]


def _faults(proofs: tuple[Proof, ...], answer: Mapping[str, Any], libraries: Mapping[str, bytes]) -> Iterator[str]:
    shown = 0
    for proof in proofs:
        within = _named(proof, answer, libraries)
        what, counts = "", {}
        if proof.text is not None:
            what, counts = f"{proof.text.strip()!r}", _texts(proof.text, within, answer["texts"].get(proof.file, {}))
        elif proof.symbol is not None:
            entry = b"\0" + proof.symbol.encode() + b"\0"
            what, counts = f"the symbol {proof.symbol}", {path: int(entry in data) for path, data in within.items()}
        elif proof.isa is not None and proof.code is not None:
            what = f"the dword {proof.code} in the machine code of {proof.isa}"
            counts = {path: count_dwords(data, proof.isa, proof.code, name=path) for path, data in within.items()}
        if what:
            shown += 1
            yield _count_fault(proof, what, counts)
        if proof.isa is not None and proof.max_vgprs is not None:
            yield _budget_fault(within, proof.isa, proof.max_vgprs)
    if not shown:
        yield "it has no proof that an image can show (a text, a symbol, or a code of isa)"


def _named(proof: Proof, answer: Mapping[str, Any], libraries: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the extensions that a proof's glob names, absolute or below site-packages; all when it names none."""
    if proof.file is None:
        return libraries
    pattern = PurePosixPath(answer.get("site", "/"), proof.file).as_posix()
    return {path: data for path, data in libraries.items() if fnmatchcase(path, pattern)}


def _texts(text: str, libraries: Mapping[str, bytes], files: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """Count a text: in an extension by its bytes, in any other file as text with either line ending."""
    if libraries:
        return {path: data.count(text.encode()) for path, data in libraries.items()}
    return {path: file.get("text", "").replace("\r\n", "\n").count(text) for path, file in files.items()}


def _count_fault(proof: Proof, what: str, counts: dict[str, int]) -> str:
    """Return what is wrong with how often a proof was found, by file; empty when nothing is."""
    count = sum(counts.values())
    if not counts:
        return f"{what}: no file {proof.file or 'of the extensions'} to look in"
    if count == (proof.count or count) and count:
        return ""
    return f"{what} stands {count} times in {', '.join(counts)}, not {proof.count or 'at least once'}"


def _budget_fault(libraries: Mapping[str, bytes], kernel: str, most: int) -> str:
    """Return what is wrong with the registers of a kernel, by the metadata of the code objects in the image."""
    used = [
        found.vgpr
        for path, data in libraries.items()
        for found in read_library(data, name=path).kernels
        if names_kernel(found.name.encode(), kernel.encode())
    ]
    if not used:
        return f"no kernel {kernel} in the image to hold to its budget of {most} vector registers"
    return "" if max(used) <= most else f"{kernel} uses {max(used)} vector registers, at most {most} are allowed"
