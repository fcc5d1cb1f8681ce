"""An edit is made where its anchor stands exactly as often as it must, and nowhere else."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from made_patches import LAUNCH, Facts, check, one_edit, patch, series, tree

from builder.patching.edits import make_edit
from builder.patching.header import Edit
from builder.patching.scope import scopes
from builder.patching.text import Source, Span, nearest_line


def made(text, **edit):
    finding, source = make_edit(Edit(**{"file": "x.py", **edit}), Source.of(text.encode()), {})
    return finding, source.data().decode()


def test_an_anchor_that_stands_once_is_replaced_and_the_line_is_told(tmp_path):
    report, finding, data = one_edit(tmp_path, LAUNCH)

    assert (report.outcome, finding.outcome, finding.lines, finding.found) == ("applied", "applied", (2,), 1)
    assert data.decode() == LAUNCH.replace("tile = 16", "tile = 32")


def test_an_edit_that_is_there_already_is_present_and_changes_nothing(tmp_path):
    done = LAUNCH.replace("tile = 16", "tile = 32")

    report, finding, data = one_edit(tmp_path, done)

    assert (report.outcome, finding.outcome, finding.lines) == ("present", "present", (2,))
    assert data.decode() == done


def test_an_anchor_that_is_gone_fails_and_tells_the_nearest_line(tmp_path):
    moved = LAUNCH.replace("tile = 16", "tile = 24  # swept")

    report, finding, data = one_edit(tmp_path, moved)

    assert (finding.outcome, finding.found, finding.expected) == ("failed", 0, 1)
    assert (finding.near.line, finding.near.text) == (2, "tile = 24  # swept")
    assert report.reason == (
        "upstream moved: engine/launch.py: the anchor `tile = 16` stands 0 times, expected 1; "
        "the nearest is line 2: `tile = 24  # swept`"
    )
    assert data.decode() == moved


def test_a_second_match_that_the_patch_does_not_know_fails_and_tells_both_lines(tmp_path):
    twice = LAUNCH + LAUNCH.replace("launch", "launch_twin")

    report, finding, data = one_edit(tmp_path, twice)

    assert (finding.outcome, finding.found, finding.lines) == ("failed", 2, (2, 10))
    assert "stands 2 times (lines 2, 10), expected 1" in report.reason
    assert data.decode() == twice


def test_a_file_that_is_not_there_fails(tmp_path):
    patch(tmp_path / "patches")

    report = check(series(tmp_path / "patches"), tree(tmp_path / "tree", {"engine/start.py": LAUNCH}), Facts()).patches[
        0
    ]

    assert report.outcome == "failed"
    assert report.reason == "upstream moved: engine/launch.py is not in the tree"


@pytest.mark.parametrize("text", ["subtile = 16", "tile = 160", "tile = 16_000", "_tile = 16"])
def test_plain_text_never_matches_a_part_of_a_word(text):
    finding, after = made(f"{text}\n", anchor="tile = 16", replacement="tile = 32")

    assert finding.outcome == "failed"
    assert after == f"{text}\n"


def test_a_replacement_that_holds_its_own_anchor_is_made_once():
    edit = {"anchor": "import torch", "replacement": "import amdsmi\nimport torch"}

    _, once = made("import torch\n", **edit)
    finding, twice = made(once, **edit)

    assert finding.outcome == "present"
    assert twice == once == "import amdsmi\nimport torch\n"


def test_an_anchor_that_holds_its_own_replacement_is_not_taken_for_present():
    edit = {"anchor": "tile = 32 if big else 16", "replacement": "tile = 32"}

    finding, once = made("    tile = 32 if big else 16\n", **edit)
    again, twice = made(once, **edit)

    assert (finding.outcome, again.outcome) == ("applied", "present")
    assert twice == once == "    tile = 32\n"


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("x.py", "tile = 32 // n"),
        ("x.py", "tile = 32 if big else 16"),
        ("x.py", "tile = 32, 16"),
        ("x.py", "tile = 32 \\"),
        ("x.py", "tile = 32.5"),
        ("x.py", "old.tile = 32"),
        ("x.py", "# tile = 32"),
        ("x.cu", "tile = 32 + n; // tile"),
        ("x.cu", "tile = 32 /* keys */ * n;"),
        ("x.cu", "it->tile = 32;"),
        ("x.cu", "// tile = 32;"),
    ],
)
def test_a_replacement_is_not_found_present_as_a_part_of_something_longer(file, line):
    finding, after = made(f"{line}\n", file=file, anchor="tile = 16", replacement="tile = 32")

    assert (finding.outcome, finding.found) == ("failed", 0)
    assert finding.reason.startswith(f"upstream moved: {file}: ")
    assert after == f"{line}\n"


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("x.py", "tile = 32"),
        ("x.py", "    tile = 32 \t"),
        ("x.py", "if big: tile = 32  # // swept"),
        ("x.py", "launch(tile = 32)[0]"),
        ("x.cu", "tile = 32;  n = 1;"),
        ("x.cu", "tile = 32 // n"),
        ("x.cu", "tile = 32 /* keys"),
        ("x.cu", "tile = 32 /* keys */ "),
    ],
)
@pytest.mark.parametrize("ending", ["\n", "\r\n", ""])
def test_a_replacement_is_present_where_it_is_the_whole_of_what_it_says(file, line, ending):
    finding, _ = made(f"{line}{ending}", file=file, anchor="tile = 16", replacement="tile = 32")

    assert finding.outcome == "present"


def test_a_replacement_that_ends_with_a_comma_or_a_semicolon_may_have_anything_behind_it():
    finding, _ = made("f(segments=64, tile=2)", anchor="segments=32,", replacement="segments=64,")
    assert finding.outcome == "present"
    finding, _ = made("n = 2; n += 1;", file="x.cu", anchor="n = 1;", replacement="n = 2;")
    assert finding.outcome == "present"


def test_an_anchor_that_is_a_part_of_something_longer_fails_and_tells_the_line():
    finding, after = made("a\ntile = 16 // n\n", anchor="tile = 16", replacement="tile = 32")

    assert (finding.outcome, finding.lines, after) == ("failed", (2,), "a\ntile = 16 // n\n")
    assert finding.reason == (
        "upstream moved: x.py: the anchor `tile = 16` (line 2) is only a part of `tile = 16 // n`; "
        "take the whole statement as the anchor, or say by `present` how the edit is known"
    )


def test_a_sign_that_is_stated_is_taken_as_it_is_written():
    edit = {"anchor": "tile = 16", "replacement": "tile = 32", "present": "tile = 32"}

    finding, once = made("tile = 16 // n\n", **edit)
    again, _ = made(once, **edit)

    assert (finding.outcome, again.outcome, once) == ("applied", "present", "tile = 32 // n\n")


def test_the_places_to_change_and_those_changed_already_add_up_to_the_count():
    text = "segments=32,\nsegments=64,\n"
    edit = {"anchor": "segments=32,", "replacement": "segments=64,"}

    both, after = made(text, **edit, count=2)
    one, untouched = made(text, **edit)

    assert (both.outcome, both.lines, after) == ("applied", (1,), "segments=64,\nsegments=64,\n")
    assert (one.outcome, untouched) == ("failed", text)
    assert "stands 1 times (line 1), and 1 places (line 2) are changed already, expected 1" in one.reason


def test_matches_that_lie_over_one_another_are_refused():
    finding, after = made("a.a.a\n", anchor="a.a", replacement="b", count=2)

    assert (finding.outcome, after) == ("failed", "a.a.a\n")
    assert "some over one another" in finding.reason


def test_an_edit_whose_sign_would_not_be_found_afterwards_is_refused():
    finding, after = made("x = 1\n", anchor="x = 1", replacement="x = 2", present="x == 2")

    assert (finding.outcome, after) == ("failed", "x = 1\n")
    assert finding.reason == "x.py: the edit would not be recognised afterwards by its sign `x == 2`"


def test_a_deletion_is_known_by_the_sign_that_it_leaves():
    edit = {"anchor": "a\nb\nc\n", "replacement": "a\nc\n"}

    _, once = made("a\nb\nc\n", **edit)
    finding, twice = made(once, **edit)

    assert (finding.outcome, twice) == ("present", "a\nc\n")


def test_a_regular_expression_may_keep_what_it_found():
    edit = {
        "anchor": r"tile = (\d+)(  # .*)?$",
        "replacement": r"tile = 32\2",
        "present": "tile = 32(  # .*)?$",
        "regex": True,
    }

    finding, once = made("tile = 16  # swept\n", **edit)
    again, twice = made(once, **edit)

    assert (finding.outcome, again.outcome) == ("applied", "present")
    assert twice == once == "tile = 32  # swept\n"


def test_a_regular_expression_that_matches_nothing_at_all_is_no_match():
    finding, _ = made("x\n", anchor="y*", replacement="z", present="z", regex=True)

    assert (finding.outcome, finding.found) == ("failed", 0)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "end"])
def test_line_endings_and_a_missing_last_newline_stay_as_they_are(ending, last):
    text = ending.join(["first", "tile = 16", "third", last])

    finding, after = made(text, anchor="first\ntile = 16", replacement="first\nwarps = 2\ntile = 32")

    assert finding.outcome == "applied"
    assert after == ending.join(["first", "warps = 2", "tile = 32", "third", last])


def test_each_line_of_a_mixed_file_keeps_its_own_ending():
    finding, after = made("a\r\nb\ntile = 16\r\nc\nd", anchor="tile = 16", replacement="tile = 32\nwarps = 2")

    assert finding.outcome == "applied"
    assert after == "a\r\nb\ntile = 32\r\nwarps = 2\r\nc\nd"


def test_an_edit_at_the_end_of_a_file_without_newline_takes_the_ending_of_the_line_before():
    _, after = made("a\r\nlast", anchor="last", replacement="last\nmore")

    assert after == "a\r\nlast\r\nmore"


def test_bytes_that_are_no_utf_8_pass_through(tmp_path):
    binary = b"\xff\xfe\x00caf\xe9 tile = 16 \x80\r\n\x00"

    report, _, data = one_edit(tmp_path, binary)

    assert report.outcome == "applied"
    assert data == binary.replace(b"16", b"32")


PYTHON = '''
class One:
    @decorated
    def twin(
        self,
        text="def twin():",
    ) -> None:
        """Not the end:
def twin():
"""
        anchor  # here

        # a comment at no depth
# does not end it
        deep = [
    1,
]
        inner = 2

    async def twin_two(self):
        anchor


class Two:
    def twin(self): return anchor

def after():
    anchor
'''


def test_a_python_scope_reaches_from_the_definition_to_its_last_line_of_code():
    (span,) = scopes(PYTHON, "One.twin", "x.py")

    assert PYTHON[span.start : span.end].startswith("    def twin(\n")
    assert PYTHON[span.start : span.end].endswith("        inner = 2\n")


def test_a_name_that_is_defined_twice_is_no_scope_until_the_class_tells_which():
    assert len(scopes(PYTHON, "twin", "x.py")) == 2
    (span,) = scopes(PYTHON, "Two.twin", "x.py")
    assert PYTHON[span.start : span.end] == "    def twin(self): return anchor\n"
    assert PYTHON[slice(*scopes(PYTHON, "after", "x.py")[0])] == "def after():\n    anchor\n"


def test_a_scope_chooses_between_twins_and_nothing_outside_is_touched():
    text = "def one():\n    tile = 16\n\n\ndef two():\n    tile = 16\n"

    finding, after = made(text, anchor="tile = 16", replacement="tile = 32", scope="two")

    assert (finding.outcome, finding.lines) == ("applied", (6,))
    assert after == "def one():\n    tile = 16\n\n\ndef two():\n    tile = 32\n"


def test_a_scope_that_is_gone_fails_with_its_name():
    finding, _ = made(PYTHON, anchor="anchor", replacement="x", scope="three")
    assert finding.reason == "upstream moved: x.py: three is defined 0 times, expected 1"
    finding, _ = made(PYTHON, anchor="anchor", replacement="x", scope="twin")
    assert "twin is defined 2 times (lines 4, 25), expected 1" in finding.reason


KERNEL = r"""
// copy(a) { is a comment }
__global__ void copy(const v4* s, v4* d);
template <int N>
__global__ void __launch_bounds__(256) copy(const v4* s,
                                            v4* d) {
  const char* text = "} \" {";
  char one = '}'; /* } */
  int big = 1'000'000;
  if (n) { d[0] = s[0]; }
}
void host() { copy<<<1, 1>>>(s, d); run(copy(s, d)); if (copy(s, d)) { return; } }
namespace n { struct S { void put() const { return; } }; }
"""


def test_a_scope_in_c_is_a_definition_and_no_call_declaration_or_comment():
    (span,) = scopes(KERNEL, "copy", "x.hip")

    assert KERNEL[span.start : span.end].startswith("__global__ void __launch_bounds__(256) copy(")
    assert KERNEL[span.start : span.end].endswith("d[0] = s[0]; }\n}")
    assert len(scopes(KERNEL, "put", "x.cu")) == 1
    assert scopes(KERNEL, "run", "x.cu") == []
    assert scopes("void open() {\n", "open", "x.cu") == []
    assert scopes("void later(int a);\nstruct Next { int b; };\n", "later", "x.cu") == []


def test_the_nearest_line_of_a_long_file_is_found_in_a_moment():
    lines = [f"    value_{number} = load(block_{number}, mask=ok, other=0.0)" for number in range(20_000)]
    lines[15_000] = "    tile_size = 64 if wide else (16 if q.element_size() >= 2 else 32)"
    started = time.perf_counter()

    near = nearest_line("\n".join(lines), "tile_size = 32 if not use_3d else (16 if q.element_size() >= 2 else 32)")

    assert time.perf_counter() - started < 1
    assert near.line == 15_001


def test_nothing_is_near_when_no_word_is_shared():
    assert nearest_line("alpha\nbeta\n", "gamma") is None


LINE = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=12)


@examples(max_examples=40, deadline=None)
@given(st.lists(LINE, max_size=8), st.lists(LINE, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_unrelated_edits_around_an_anchor_change_neither_the_outcome_nor_themselves(before, after, ending):
    assume(not any("tile" in line for line in (*before, *after)))
    lines = [*before, "    tile = 16", *after]

    finding, changed = made(ending.join(lines), anchor="tile = 16", replacement="tile = 32")

    assert finding.outcome == "applied"
    assert changed == ending.join([*before, "    tile = 32", *after])


@examples(max_examples=40, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 60), st.text("ab\n", max_size=5))
def test_any_bytes_come_back_as_they_were_outside_of_what_is_replaced(data, one, two, new):
    source = Source.of(data)
    assert source.data() == data
    start, end = sorted((min(one, len(source.text)), min(two, len(source.text))))

    spliced = source.splice(Span(start, end), new)

    assert spliced.text == source.text[:start] + new + source.text[end:]
    assert len(spliced.returns) == spliced.text.count("\n")
    assert re.sub(b"\r\n", b"\n", spliced.data()) == re.sub(
        b"\r\n", b"\n", spliced.text.encode(errors="surrogateescape")
    )


@examples(max_examples=40, deadline=None)
@given(st.text("ab\n ", max_size=40), st.text("ab ", min_size=1, max_size=4), st.text("abc ", min_size=1, max_size=6))
def test_an_edit_that_was_made_is_found_present_and_makes_nothing_more(text, anchor, replacement):
    assume(anchor != replacement)
    finding, once = made(text, anchor=anchor, replacement=replacement)
    again, twice = made(once, anchor=anchor, replacement=replacement)

    assert twice == once
    assert again.outcome == {"applied": "present", "present": "present", "failed": "failed"}[finding.outcome]


VALUE = st.sampled_from(["32", "tile", "f(n)", "n[0]", "'fast'", "32 if big else n"])
MORE = st.sampled_from(["//", "+", "*", "**", "if", "or", "==", ",", ".", "%", "@", "\\"])


@examples(max_examples=60, deadline=None)
@given(VALUE, st.text(" ", max_size=2), MORE, st.text("n1 ()#;", max_size=6))
def test_no_value_is_present_or_replaced_when_an_operator_goes_on_behind_it(value, blanks, operator, rest):
    line = f"tile = {value}{blanks}{operator}{rest}\n"

    there, after = made(line, anchor="tile = 16", replacement=f"tile = {value}")
    old, untouched = made(line, anchor=f"tile = {value}", replacement="tile = 16")

    assert (there.outcome, old.outcome) == ("failed", "failed")
    assert after == untouched == line
