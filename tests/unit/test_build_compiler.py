"""What the build's own compiler accepts decides whether a patch around a builtin is needed."""

from pathlib import Path

import pytest
from fake_engine import FakeEngine

from builder.build.compiler import accepted, compiler_questions
from builder.engine.port import Output
from builder.errors import BuildError
from builder.patching.series import load_series

ROOT = Path(__file__).parents[2]


class Compiler(FakeEngine):
    """An engine whose hipcc answers with one status and one text."""

    def __init__(self, status, said):
        super().__init__()
        self.status, self.said = status, said

    def run_once(self, image, argv, *, files, timeout):
        self.calls.append((argv, files))
        if argv[-1] == "--version":
            return Output(returncode=0, stdout="HIP version: 7.14\nAMD clang version 22\n", stderr="")
        return Output(returncode=self.status, stdout="", stderr=self.said)


def test_a_source_that_compiles_makes_the_patch_needless_with_the_compiler_that_says_so():
    facts = accepted(Compiler(0, ""), "image", {"store": "source"}, arch="gfx1100")
    assert facts == {"store": "the build's compiler accepts it for gfx1100: AMD clang version 22"}


def test_a_source_that_does_not_compile_leaves_the_patch_needed():
    engine = Compiler(1, "question.hip:5:3: error: use of undeclared identifier")
    assert accepted(engine, "image", {"store": "source"}, arch="gfx1100") == {}
    argv, files = engine.calls[0]
    assert "--offload-arch=gfx1100" in argv
    assert files == {"/tmp/question.hip": b"source"}


@pytest.mark.parametrize(("status", "said"), [(127, "hipcc: not found"), (137, "")])
def test_a_compiler_that_gives_no_reason_is_an_error_and_no_answer(status, said):
    with pytest.raises(BuildError, match=f"status {status}"):
        accepted(Compiler(status, said), "image", {"store": "source"}, arch="gfx1100")


@pytest.mark.parametrize(("stack", "patch"), [("smoke", "smoke-store"), ("sglang", "rdna-ar-store")])
def test_the_store_patches_ask_the_compiler_about_the_builtin(stack, patch):
    questions = compiler_questions(load_series(ROOT / "patches" / stack))
    assert "__builtin_amdgcn_global_store_b128" in questions[patch]
