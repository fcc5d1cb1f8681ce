"""A stack's list of kernels is strict data."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.models.base import Data, parse_yaml, validated
from builder.models.kernels import HipTarget, KernelTarget, TritonTarget


class Kernels(Data):
    kernels: tuple[KernelTarget, ...]


def read(text: str) -> tuple[KernelTarget, ...]:
    return validated(Kernels, parse_yaml(text, Path("s.yaml")), Path("s.yaml"), text).kernels


TRITON = """
kernels:
  - language: triton
    source: ops/verify.py
    function: verify
    roots: [.]
    signature: {q: "*bf16:16", n: i32, sink: none}
    constexprs: {TILE: 16, CAUSAL: true}
    %s
"""


def test_both_languages_are_read():
    hip = "kernels:\n  - {language: hip, source: 'csrc/*.cu', defines: [A, B=1], includes: [csrc], kernels: [copy]}\n"

    (target,) = read(hip)
    assert isinstance(target, HipTarget)
    assert (target.defines, target.kernels, target.cut) == (("A", "B=1"), ("copy",), None)
    (target,) = read(TRITON % "sweep: {TILE: [16, 32]}")
    assert isinstance(target, TritonTarget)
    assert (target.num_warps, target.num_stages, target.sweep) == (4, 2, {"TILE": (16, 32)})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kernels: [{source: a}]", "kernels.0"),
        ("kernels: [{language: hip, source: a, function: b}]", "unknown key"),
        ("kernels: [{language: hip, source: a, defines: ['-O0']}]", "defines"),
        ("kernels: [{language: hip, source: a, cut: '('}]", "no regular expression"),
        (TRITON % "launch: {TILES: '(1)'}", "TILES is neither a compile-time parameter"),
        (TRITON % "launch: {TILE: 'tile = 1'}", "the pattern of TILE has no group"),
        (TRITON % "sweep: {TILE: []}", "sweep"),
        (TRITON % "num_warps: 0", "num_warps"),
        (TRITON.replace("i32", "int") % "", "signature"),
    ],
)
def test_what_does_not_fit_is_named(text, said):
    with pytest.raises(UsageError, match=said):
        read(text)
