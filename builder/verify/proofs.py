"""Look for each patch's own proof in the image: a text in an installed file, a marker in the machine code, a symbol."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.objects import read_library
from builder.objects.code import count_dwords, names_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.patching.header import Proof


def proof_files(proofs: list[Proof]) -> list[str]:
    """Return the installed files whose text the probe must read for some proofs."""
    return sorted({proof.file for proof in proofs if proof.text is not None and proof.file})


def missing_proofs(
    proofs: Mapping[str, tuple[Proof, ...]], answer: Mapping[str, Any], libraries: Mapping[str, bytes]
) -> list[str]:
    """Return a sentence for every proof that is not found, with the patch's id; empty when all are there.

    Args:
        proofs: What shows that a patch is in the image, by the patch's id.
        answer: What the probe said; ``site`` and ``texts`` of it matter here.
        libraries: Content of the engine's extensions, by absolute path.
    """
    look = _Places(answer, libraries)
    return [f"{patch}: {fault}" for patch, several in proofs.items() for fault in _faults(look, several) if fault]


class _Places(NamedTuple):
    answer: Mapping[str, Any]
    libraries: Mapping[str, bytes]


def _faults(evidence: _Places, proofs: tuple[Proof, ...]) -> Iterator[str]:
    shown = 0
    for proof in proofs:
        if proof.text is not None:
            shown += 1
            yield _count_fault(proof, f"{proof.text.strip()!r}", _texts(evidence, proof, proof.text))
        elif proof.symbol is not None:
            shown += 1
            yield _count_fault(proof, f"the symbol {proof.symbol}", _symbols(evidence, proof, proof.symbol))
        elif proof.isa is not None and proof.code is not None:
            shown += 1
            what = f"the dword {proof.code} in the machine code of {proof.isa}"
            yield _count_fault(proof, what, _dwords(evidence, proof, proof.isa, proof.code))
        if proof.isa is not None and proof.max_vgprs is not None:
            yield _budget_fault(evidence, proof, proof.isa, proof.max_vgprs)
    if not shown:
        yield "it has no proof that an image can show (a text, a symbol, or a code of isa)"


def _count_fault(proof: Proof, what: str, counts: dict[str, int]) -> str:
    """Return what is wrong with how often a proof was found, by file; empty when nothing is."""
    count = sum(counts.values())
    if not counts:
        return f"{what}: no file {proof.file or 'of the extensions'} to look in"
    if count == (proof.count or count) and count:
        return ""
    return f"{what} stands {count} times in {', '.join(counts)}, not {proof.count or 'at least once'}"


def _texts(evidence: _Places, proof: Proof, text: str) -> dict[str, int]:
    """Count a text: in an extension by its bytes, in any other file as text with either line ending."""
    libraries = _libraries(evidence, proof)
    if libraries:
        return {path: data.count(text.encode()) for path, data in libraries.items()}
    found = evidence.answer["texts"].get(proof.file, {})
    return {path: file.get("text", "").replace("\r\n", "\n").count(text) for path, file in found.items()}


def _symbols(evidence: _Places, proof: Proof, symbol: str) -> dict[str, int]:
    wanted = b"\0" + symbol.encode() + b"\0"
    return {path: int(wanted in data) for path, data in _libraries(evidence, proof).items()}


def _dwords(evidence: _Places, proof: Proof, kernel: str, code: str) -> dict[str, int]:
    libraries = _libraries(evidence, proof)
    return {path: count_dwords(data, kernel, code, name=path) for path, data in libraries.items()}


def _budget_fault(evidence: _Places, proof: Proof, kernel: str, most: int) -> str:
    """Return what is wrong with the registers of a kernel, by the metadata of the code objects in the image."""
    used = [
        found.vgpr
        for path, data in _libraries(evidence, proof).items()
        for found in read_library(data, name=path).kernels
        if names_kernel(found.name.encode(), kernel.encode())
    ]
    if not used:
        return f"no kernel {kernel} in the image to hold to its budget of {most} vector registers"
    return "" if max(used) <= most else f"{kernel} uses {max(used)} vector registers, at most {most} are allowed"


def _libraries(evidence: _Places, proof: Proof) -> dict[str, bytes]:
    """Return the extensions that a proof's glob names, absolute or below site-packages; all when it names none."""
    if proof.file is None:
        return dict(evidence.libraries)
    pattern = PurePosixPath(evidence.answer.get("site", "/"), proof.file).as_posix()
    return {path: data for path, data in evidence.libraries.items() if fnmatchcase(path, pattern)}
