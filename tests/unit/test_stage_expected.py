"""Which ops are expected of a tree: by its commit, by its files."""

from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.models.stack import Ops, load_stack
from builder.patching.apply import Facts
from builder.stage.inputs import expected_ops

ROOT = Path(__file__).parents[2]
SINCE, HERE, UNTIL = "a" * 40, "b" * 40, "c" * 40


def holds(tmp_path, facts=None, **condition):
    stack = load_stack(ROOT, "smoke")
    group = Ops(name="x", namespace="_C", present=("f",), **condition)
    stack = stack.model_copy(update={"expect": stack.expect.model_copy(update={"ops": (group,)})})
    return expected_ops(stack, tmp_path, facts or Facts())["x"]


def history(**known):
    """Return facts of a tree at HERE, in which each named commit is an ancestor or is not."""
    answers = {SINCE: known.get("since"), UNTIL: known.get("until")}
    return Facts(commit=HERE, is_ancestor=lambda one, _: answers[one])


def test_ops_without_a_condition_are_expected(tmp_path):
    assert holds(tmp_path) is True


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [(True, False, True), (False, False, False), (True, True, False), (None, False, None), (None, True, False)],
)
def test_ops_of_a_range_are_expected_inside_it(tmp_path, since, until, expected):
    assert holds(tmp_path, history(since=since, until=until), since=SINCE, until=UNTIL) is expected


def test_a_range_is_unknown_without_history(tmp_path):
    assert holds(tmp_path, since=SINCE) is None


@pytest.mark.parametrize(("text", "expected"), [(None, True), ("octave_decode", True), ("octave_fly", False)])
def test_ops_of_a_file_are_expected_where_it_has_the_text(tmp_path, text, expected):
    (tmp_path / "bindings.cpp").write_text("ops.def(octave_decode)")
    assert holds(tmp_path, file="bindings.cpp", text=text) is expected


def test_ops_of_a_file_are_not_expected_without_it(tmp_path):
    assert holds(tmp_path, file="csrc/rocm/jart_ar.cu") is False


def test_a_file_outside_the_tree_is_refused(tmp_path):
    with pytest.raises(UsageError, match="does not stay inside"):
        holds(tmp_path, file="../secret")


def test_a_text_without_a_file_is_refused():
    with pytest.raises(ValueError, match="none is named"):
        Ops(name="x", namespace="_C", text="octave")
