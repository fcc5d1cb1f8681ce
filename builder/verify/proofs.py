"""Look for each patch's own proof in the image: a text in an installed file, a marker in the machine code, a symbol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.objects.code import count_dwords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.patching.header import Proof
    from builder.verify.checks import Evidence


def proof_files(proofs: list[Proof]) -> list[str]:
    """Return the installed files whose text the probe must read for some proofs."""
    return sorted({proof.file for proof in proofs if proof.text is not None and proof.file})


def missing_proofs(evidence: Evidence) -> list[str]:
    """Return a sentence for every proof that is not found, with the patch's id; empty when all are there."""
    return [
        f"{patch}: {fault}" for patch, proofs in evidence.proofs.items() for fault in _faults(evidence, proofs) if fault
    ]


def _faults(evidence: Evidence, proofs: tuple[Proof, ...]) -> Iterator[str]:
    for proof in proofs:
        if proof.text is not None:
            yield _text_fault(evidence, proof, proof.text)
        elif proof.isa is not None and proof.code is not None:
            yield _code_fault(evidence, proof, proof.isa, proof.code)
        elif proof.symbol is not None:
            yield _symbol_fault(evidence, proof, proof.symbol)


def _text_fault(evidence: Evidence, proof: Proof, text: str) -> str:
    found = evidence.answer["texts"].get(proof.file, {})
    if "text" not in found:
        return f"{proof.file} cannot be read: {found.get('error', 'not there')}"
    count = found["text"].replace("\r\n", "\n").count(text)
    if count == (proof.count or count):
        return "" if count else f"{text.strip()!r} is not in {proof.file}"
    return f"{text.strip()!r} stands {count} times in {proof.file}, not {proof.count}"


def _code_fault(evidence: Evidence, proof: Proof, kernel: str, code: str) -> str:
    libraries = [
        (path, data)
        for path, data in evidence.libraries.items()
        if proof.file is None or path.endswith("/" + proof.file) or path == proof.file
    ]
    if not libraries:
        return f"no library {proof.file} to look for {kernel} in"
    count = sum(count_dwords(data, kernel, code, name=path) for path, data in libraries)
    if count == (proof.count or count) and count:
        return ""
    return f"the machine code of {kernel} has the dword {code} {count} times, not {proof.count or 'at least once'}"


def _symbol_fault(evidence: Evidence, proof: Proof, symbol: str) -> str:
    wanted = symbol.encode()
    for path, data in evidence.libraries.items():
        if (proof.file is None or path.endswith("/" + proof.file)) and b"\0" + wanted + b"\0" in data:
            return ""
    return f"no library exports {symbol}"
