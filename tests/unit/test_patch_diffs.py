"""A unified diff is made where its hunks stand word for word, and only once; nothing is guessed."""

from __future__ import annotations

import difflib
import shutil

import pytest
from hypothesis import assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from made_patches import LAUNCH, Facts, apply, diff, outcomes, series, tree

from builder.patching.diffs import parse_diff
from builder.patching.hunks import make_diff, undo_diff
from builder.patching.text import Source

TILE = """diff --git a/engine/launch.py b/engine/launch.py
index 1111111..2222222 100644
--- a/engine/launch.py
+++ b/engine/launch.py
@@ -1,5 +1,6 @@ class Engine:
 def launch(queries):
-    tile = 16
+    tile = 32
+    warps = 2
     return run(queries, tile)
~
~
@@ -6,3 +7,3 @@
 def reduce(queries):
-    segments = 8
+    segments = 64
     return combine(queries, segments)
""".replace("~", " ")  # an empty line of context is one blank
DONE = LAUNCH.replace("tile = 16", "tile = 32\n    warps = 2").replace("segments = 8", "segments = 64")


def run(tmp_path, text, files=None):
    """Apply a diff to a tree; return the patch's report and the tree."""
    shutil.rmtree(tmp_path / "patches", ignore_errors=True)
    diff(tmp_path / "patches", text)
    source = tmp_path / "tree"
    if not source.exists():
        tree(source, files)
    return apply(series(tmp_path / "patches"), source, Facts()).patches[0], source


def made(text, before):
    (file,) = parse_diff(text, "x.patch", first_line=1)
    findings, after = make_diff(file, None if before is None else Source.of(before.encode()))
    return findings, None if after is None else after.data().decode()


def test_hunks_that_stand_word_for_word_are_made_and_found_present_the_second_time(tmp_path):
    first, source = run(tmp_path, TILE)
    second, _ = run(tmp_path, TILE)

    assert [(one.outcome, one.lines) for one in first.edits] == [("applied", (1,)), ("applied", (6,))]
    assert [(one.outcome, one.lines) for one in second.edits] == [("present", (1,)), ("present", (7,))]
    assert (source / "engine/launch.py").read_text() == DONE


def test_a_hunk_may_stand_elsewhere_as_long_as_it_stands_there_word_for_word():
    findings, after = made(TILE, "# one\n# more\n" + LAUNCH)

    assert [one.outcome for one in findings] == ["applied", "applied"]
    assert after == "# one\n# more\n" + DONE


def test_a_changed_line_of_context_fails_though_it_is_not_the_line_to_change():
    moved = LAUNCH.replace("return run(queries, tile)", "return run(queries, tile, 1)")

    findings, after = made(TILE, moved)

    assert [one.outcome for one in findings] == ["failed", "applied"]
    assert after == moved
    assert "the hunk that was at line 1 stands 0 times, expected 1; there is no fuzz" in findings[0].reason
    assert (findings[0].near.line, findings[0].near.text) == (2, "tile = 16")


def test_a_twin_of_the_hunk_fails_even_when_one_of_the_two_stands_on_the_stated_line():
    findings, after = made(TILE, LAUNCH + LAUNCH)

    assert [one.outcome for one in findings] == ["failed", "failed"]
    assert findings[0].lines == (1, 9)
    assert after == LAUNCH + LAUNCH


def test_hunks_in_another_order_than_the_diffs_fail():
    head, tail = LAUNCH.split("\n\n\n")

    findings, after = made(TILE.replace(" \n \n", "").replace("-1,5 +1,6", "-1,3 +1,4"), f"{tail}\n\n{head}\n")

    assert [one.outcome for one in findings] == ["failed", "failed"]
    assert "do not stand in the order of the diff" in findings[0].reason
    assert after == f"{tail}\n\n{head}\n"


def test_a_hunk_that_is_there_and_one_that_is_not_are_told_apart():
    findings, after = made(TILE, LAUNCH.replace("tile = 16", "tile = 32\n    warps = 2"))

    assert [one.outcome for one in findings] == ["present", "applied"]
    assert after == DONE


def test_a_hunk_at_the_files_end_stays_at_the_end():
    end = "--- a/x\n+++ b/x\n@@ -2,2 +2,3 @@\n b\n c\n+d\n"

    assert made(end, "a\nb\nc\n")[1] == "a\nb\nc\nd\n"
    assert [one.outcome for one in made(end, "a\nb\nc\nx\n")[0]] == ["failed"]


def test_a_hunk_at_the_files_begin_stays_at_the_begin():
    begin = "--- a/x\n+++ b/x\n@@ -1,2 +1,3 @@\n+z\n a\n b\n"

    assert made(begin, "a\nb\nc\n")[1] == "z\na\nb\nc\n"
    assert [one.outcome for one in made(begin, "y\na\nb\nc\n")[0]] == ["failed"]


def test_a_hunk_without_any_context_is_refused_where_it_could_stand_anywhere():
    bare = "--- a/x\n+++ b/x\n@@ -2 +2 @@\n-b\n+z\n"

    assert [one.outcome for one in made(bare, "a\nb\nc\n")[0]] == ["failed"]


def test_the_newline_at_the_files_end_is_a_part_of_the_hunk():
    gone = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n"
    came = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"

    assert made(gone, "a\nb\n")[1] == "a\nc"
    assert made(came, "a\nb")[1] == "a\nb\n"
    assert [one.outcome for one in made(gone, "a\nb")[0]] == ["failed"]
    assert [one.outcome for one in made(came, "a\nb\n")[0]] == ["present"]


def test_a_file_with_windows_line_endings_keeps_them_and_each_line_its_own():
    assert made(TILE, LAUNCH.replace("\n", "\r\n"))[1] == DONE.replace("\n", "\r\n")
    mixed = LAUNCH.replace("def launch(queries):\n    tile = 16\n", "def launch(queries):\n    tile = 16\r\n")
    assert made(TILE, mixed)[1] == DONE.replace("tile = 32\n    warps = 2\n", "tile = 32\r\n    warps = 2\r\n")


def test_a_diff_that_was_saved_with_windows_line_endings_means_the_same(tmp_path):
    path = diff(tmp_path / "patches", TILE)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    source = tree(tmp_path / "tree")

    report = apply(series(tmp_path / "patches"), source, Facts())

    assert outcomes(report) == ["applied"]
    assert (source / "engine/launch.py").read_bytes() == DONE.encode()


def test_an_empty_line_of_context_may_have_lost_its_blank():
    assert made(TILE.replace("\n \n \n", "\n\n\n"), LAUNCH)[1] == DONE


CREATE = """diff --git a/tools/run.sh b/tools/run.sh
new file mode 100755
index 0000000..3333333
--- /dev/null
+++ b/tools/run.sh
@@ -0,0 +1,2 @@
+#!/bin/sh
+exec python3 -m engine
"""
DELETE = """diff --git a/engine/launch.py b/engine/launch.py
deleted file mode 100644
index 1111111..0000000
--- a/engine/launch.py
+++ /dev/null
@@ -1,2 +0,0 @@
-a
-b
"""


def test_a_file_is_created_with_its_mode_and_once(tmp_path):
    first, source = run(tmp_path, CREATE)
    made_file = source / "tools" / "run.sh"

    assert (first.outcome, first.files[0].path, first.files[0].before) == ("applied", "tools/run.sh", None)
    assert made_file.read_text() == "#!/bin/sh\nexec python3 -m engine\n"
    assert made_file.stat().st_mode & 0o777 == 0o755
    assert run(tmp_path, CREATE)[0].outcome == "present"
    made_file.write_text("other\n")
    report, _ = run(tmp_path, CREATE)
    assert report.reason == "upstream moved: tools/run.sh is to be created, but it exists and differs"


def test_an_empty_file_is_created_from_gits_lines_alone(tmp_path):
    empty = "diff --git a/engine/__init__.py b/engine/__init__.py\nnew file mode 100644\nindex 0000000..e69de29\n"

    report, source = run(tmp_path, empty)

    assert report.outcome == "applied"
    assert (source / "engine/__init__.py").read_bytes() == b""


def test_a_file_is_deleted_only_when_it_is_the_one_that_is_meant(tmp_path):
    report, source = run(tmp_path, DELETE, {"engine/launch.py": "a\nb\n", "engine/keep.py": "x\n"})

    assert (report.outcome, report.files[0].path, report.files[0].after) == ("applied", "engine/launch.py", None)
    assert [path.name for path in (source / "engine").iterdir()] == ["keep.py"]
    assert run(tmp_path, DELETE)[0].outcome == "present"
    (source / "engine/launch.py").write_text("a\nb\nc\n")
    assert "is to be deleted, but it differs" in run(tmp_path, DELETE)[0].reason


LINES = st.lists(st.sampled_from(["alpha", "beta", "gamma", "", "  delta"]), max_size=12)


@examples(max_examples=40, deadline=None)
@given(LINES, LINES, st.sampled_from(["", "tail"]), st.sampled_from(["\n", "\r\n"]))
def test_a_diff_of_two_texts_makes_one_of_the_other_or_refuses_and_never_anything_else(old, new, tail, ending):
    assume(old != new)
    before, after = (ending.join([f"first {tail}", *lines, "last", ""]) for lines in (old, new))
    plain = [text.replace("\r\n", "\n").splitlines(keepends=True) for text in (before, after)]
    text = "".join(difflib.unified_diff(*plain, "a/x", "b/x"))

    findings, result = made(text, before)
    failed = any(one.outcome == "failed" for one in findings)

    assert result == (before if failed else after)
    if not failed:
        assert [one.outcome for one in made(text, after)[0]] == ["present"] * len(findings)
        (file,) = parse_diff(text, "x.patch", first_line=1)
        assert undo_diff(file, Source.of(after.encode())).text == "".join(plain[0])


@pytest.mark.parametrize(
    "text", ["@@ -1 +1 @@\n", "--- a/x\n", "diff --git a/x b/x\n", "\0\n", "--- a/x\n+++ b/x\n@@\n"]
)
def test_garbage_is_an_error_with_a_line_and_no_traceback(text):
    from builder.errors import UsageError

    with pytest.raises(UsageError, match=r"^x.patch:\d+: "):
        parse_diff(text, "x.patch", first_line=1)
