"""A series is applied as a whole or not at all, and every patch says what became of it and why."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from made_patches import EDIT, LAUNCH, Facts, apply, check, diff, fingerprint, outcomes, patch, series, tree

from builder.errors import PatchError, UsageError
from builder.files import sha256
from builder.patching.when import repository_name

SEGMENTS = {"file": "engine/launch.py", "anchor": "segments = 8", "replacement": "segments = 64"}
WRONG = {"file": "engine/launch.py", "anchor": "stages = 2", "replacement": "stages = 1"}
NOTES = {"file": "NOTES", "anchor": "slow", "replacement": "fast"}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "patches"


@pytest.fixture
def source(tmp_path):
    return tree(tmp_path / "tree", {"engine/launch.py": LAUNCH, "NOTES": "slow\n", "docs/a.md": "a\n"})


def test_all_patches_are_applied_each_sees_what_came_before_and_the_hashes_are_told(folder, source):
    patch(folder, "a.yaml", id="a")
    patch(folder, "b.yaml", id="b", edits=[SEGMENTS, NOTES])

    report = apply(series(folder), source, Facts())

    done = LAUNCH.replace("= 16", "= 32").replace("= 8", "= 64")
    assert outcomes(report) == ["applied", "applied"]
    assert (source / "engine/launch.py").read_text() == done
    first, second = (file for one in report.patches for file in one.files if file.path == "engine/launch.py")
    assert first.before == sha256(LAUNCH)
    assert first.after == second.before
    assert second.after == sha256(done)
    assert {file.path: file.after for file in report.patches[1].files}["NOTES"] == sha256("fast\n")
    report.require_success()


def test_one_patch_that_fails_leaves_everything_as_it_was(folder, source):
    patch(folder, "a.yaml", id="a")
    patch(folder, "b.yaml", id="b", edits=[WRONG])
    patch(folder, "c.yaml", id="c", edits=[NOTES])
    before = fingerprint(source)

    report = apply(series(folder), source, Facts())

    assert outcomes(report) == ["applied", "failed", "applied"]
    assert fingerprint(source) == before
    with pytest.raises(PatchError, match=r"b: upstream moved: engine/launch.py: .*stages = 2"):
        report.require_success()


def test_an_edit_that_fails_takes_back_the_edits_of_its_own_patch_for_the_patches_after_it(folder, source):
    patch(folder, "a.yaml", id="a", edits=[EDIT, WRONG])
    patch(folder, "b.yaml", id="b")

    report = check(series(folder), source, Facts())

    assert [[one.outcome for one in each.edits] for each in report.patches] == [["applied", "failed"], ["applied"]]


def test_check_says_what_apply_would_do_and_writes_nothing(folder, source):
    patch(folder, "a.yaml", id="a")
    before, beside = fingerprint(source), sorted(source.parent.iterdir())

    told = check(series(folder), source, Facts())

    assert fingerprint(source) == before
    assert sorted(source.parent.iterdir()) == beside
    assert told.patches == apply(series(folder), source, Facts()).patches


def test_check_reads_a_tree_that_nobody_may_write(folder, source):
    patch(folder)
    for path in (source / "engine", source):
        path.chmod(0o555)

    assert outcomes(check(series(folder), source, Facts())) == ["applied"]


def test_the_second_time_every_patch_is_present_and_nothing_changes(folder, source):
    patch(folder, "a.yaml", id="a")
    patch(folder, "b.yaml", id="b", edits=[SEGMENTS, NOTES])
    apply(series(folder), source, Facts())
    before = fingerprint(source)

    again = apply(series(folder), source, Facts())

    assert outcomes(again) == ["present", "present"]
    assert all(change.before == change.after for one in again.patches for change in one.files)
    assert fingerprint(source) == before


def test_a_patch_of_which_a_part_is_there_applies_the_rest(folder, source):
    (source / "NOTES").write_text("fast\n")
    patch(folder, edits=[EDIT, NOTES])

    report = apply(series(folder), source, Facts())

    assert [one.outcome for one in report.patches[0].edits] == ["applied", "present"]
    assert outcomes(report) == ["applied"]


def test_patches_that_change_the_same_lines_after_one_another_are_present_the_second_time(folder, source):
    for number, (old, new) in enumerate([("16", "32"), ("32", "48"), ("48", "64")]):
        head = "--- a/engine/launch.py\n+++ b/engine/launch.py\n@@ -1,3 +1,3 @@\n def launch(queries):\n"
        body = f"-    tile = {old}\n+    tile = {new}\n     return run(queries, tile)\n"
        diff(folder, head + body, f"{number}.patch", id=f"step{number}")

    first = apply(series(folder), source, Facts())
    again = apply(series(folder), source, Facts())

    assert outcomes(first) == ["applied"] * 3
    assert outcomes(again) == ["present"] * 3
    assert "tile = 64" in (source / "engine/launch.py").read_text()


def test_edits_that_change_the_same_place_after_one_another_are_present_the_second_time(folder, source):
    for old, new in ((16, 32), (32, 48), (48, 64)):
        edit = {**EDIT, "anchor": f"tile = {old}", "replacement": f"tile = {new}"}
        patch(folder, f"{new}.yaml", id=f"tile{new}", edits=[edit])

    assert outcomes(apply(series(folder), source, Facts())) == ["applied"] * 3
    before = fingerprint(source)
    assert outcomes(apply(series(folder), source, Facts())) == ["present"] * 3
    assert fingerprint(source) == before


def test_a_series_whose_second_run_would_not_know_it_again_is_refused(folder, source):
    patch(folder, "a.yaml", id="a", edits=[EDIT])
    patch(folder, "b.yaml", id="b", edits=[{**EDIT, "anchor": "tile = 32", "replacement": "tile = 16"}])
    before = fingerprint(source)

    report = apply(series(folder), source, Facts())

    assert outcomes(report) == ["failed", "failed"]
    assert "a second run would not find the patch present: it would be applied once more" in report.patches[0].reason
    assert fingerprint(source) == before


def test_a_patch_whose_need_failed_is_not_tried(folder, source):
    patch(folder, "a.yaml", id="a", edits=[WRONG])
    patch(folder, "b.yaml", id="b", needs=["a"])

    report = check(series(folder), source, Facts())

    assert [one.reason for one in report.patches][1] == "it needs a, which failed"


def test_links_are_not_followed_out_of_the_tree(folder, source, tmp_path):
    outside = tree(tmp_path / "outside", {"launch.py": LAUNCH})
    (source / "engine/launch.py").unlink()
    patch(folder)

    (source / "engine/launch.py").symlink_to(outside / "launch.py")
    report = apply(series(folder), source, Facts())
    assert report.patches[0].reason == "engine/launch.py: engine/launch.py is a link, and links are not followed"

    (source / "engine/launch.py").unlink()
    (source / "engine").rmdir()
    (source / "engine").symlink_to(outside)
    report = apply(series(folder), source, Facts())
    assert report.patches[0].reason == "engine/launch.py: engine is a link, and links are not followed"
    assert (outside / "launch.py").read_text() == LAUNCH


def test_a_file_is_not_created_through_a_link(folder, source, tmp_path):
    (tmp_path / "outside").mkdir()
    (source / "tools").symlink_to(tmp_path / "outside")
    diff(folder, "--- /dev/null\n+++ b/tools/run.sh\n@@ -0,0 +1 @@\n+x\n")

    report = apply(series(folder), source, Facts())

    assert report.patches[0].reason == "tools/run.sh: tools is a link, and links are not followed"
    assert list((tmp_path / "outside").iterdir()) == []


def test_folders_and_huge_files_are_no_targets(folder, source):
    patch(folder)
    (source / "engine/launch.py").unlink()
    (source / "engine/launch.py").mkdir()
    assert check(series(folder), source, Facts()).patches[0].reason == "engine/launch.py is no regular file"
    (source / "engine/launch.py").rmdir()
    with (source / "engine/launch.py").open("wb") as file:
        file.truncate(33 << 20)
    assert check(series(folder), source, Facts()).patches[0].reason == "engine/launch.py is larger than 32 MiB"


def test_a_file_where_a_folder_is_meant_counts_as_missing(folder, source):
    patch(folder, edits=[{**EDIT, "file": "NOTES/launch.py"}])

    report = check(series(folder), source, Facts())

    assert report.patches[0].reason == "upstream moved: NOTES/launch.py is not in the tree"


def test_mode_and_hard_links_of_the_users_files_stay_theirs(folder, source, tmp_path):
    (source / "engine/launch.py").chmod(0o751)
    os.link(source / "engine/launch.py", tmp_path / "mine.py")
    os.link(source / "docs/a.md", tmp_path / "a.md")
    patch(folder)

    apply(series(folder), source, Facts())

    assert (source / "engine/launch.py").stat().st_mode & 0o7777 == 0o751
    assert (tmp_path / "mine.py").read_text() == LAUNCH
    assert (source / "docs/a.md").samefile(tmp_path / "a.md")


def test_a_tree_that_is_no_folder_is_a_usage_error(folder, tmp_path):
    patch(folder)

    with pytest.raises(UsageError, match="tree is no folder"):
        check(series(folder), tmp_path / "tree", Facts())


GREY = "3" * 40


@pytest.mark.parametrize(
    ("applies_to", "facts", "outcome", "reason"),
    [
        ({"repository": "https://host/one/engine"}, {"repository": "git@host:One/engine.git"}, "applied", ""),
        (
            {"repository": "https://host/one/engine"},
            {"repository": "https://host/two/engine/"},
            "unneeded",
            "it is for host/one/engine, and this tree is of host/two/engine",
        ),
        ({"repository": "https://host/one/engine"}, {}, "applied", ""),
        ({"rocm": ">=7.14"}, {"rocm": "7.14"}, "applied", ""),
        ({"rocm": ">=7.14"}, {"rocm": "10.0.0"}, "applied", ""),
        ({"rocm": ">=7.13"}, {"rocm": "7.13.1a20260513"}, "applied", ""),
        ({"rocm": ">=7.14"}, {"rocm": "7.2.4"}, "unneeded", "it is for ROCm >=7.14, and the stack has 7.2.4"),
        ({"rocm": ">=7.14"}, {}, "failed", "it is for ROCm >=7.14, and the stack does not name its ROCm release"),
        ({"file": "engine/launch.py"}, {}, "applied", ""),
        ({"file": "engine/start.py"}, {}, "unneeded", "it is for trees with engine/start.py, and this one has none"),
        ({"since": "1" * 40}, {"commit": GREY}, "applied", ""),
        (
            {"since": "4" * 40},
            {"commit": GREY},
            "unneeded",
            "it is for commits since 444444444444, and 333333333333 is none of them",
        ),
        ({"until": "4" * 40}, {"commit": GREY}, "applied", ""),
        (
            {"until": "1" * 40},
            {"commit": GREY},
            "unneeded",
            "it is for commits before 111111111111, and 333333333333 holds that one",
        ),
        ({"since": "9" * 40, "until": "9" * 40}, {"commit": GREY}, "applied", ""),
        ({"since": "4" * 40}, {}, "applied", ""),
    ],
)
def test_a_tree_that_the_patch_is_not_meant_for_makes_it_unneeded_with_the_fact(
    folder, source, applies_to, facts, outcome, reason
):
    patch(folder, applies_to=applies_to)

    def older(one, other):
        return None if one.startswith("9") else one <= other

    report = check(series(folder), source, Facts(**facts, is_ancestor=older)).patches[0]

    assert (report.outcome, report.reason) == (outcome, reason)


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/Owner/Engine",
        "https://token@github.com/owner/engine.git/",
        "ssh://git@github.com/owner/engine.git",
        "git@github.com:owner/engine.git",
        "git@github.com:/owner/engine",
        "ssh://git@github.com:22/owner/engine",
    ],
)
def test_a_repository_has_one_name_in_all_forms_of_its_url(url):
    assert repository_name(url) == "github.com/owner/engine"


def test_what_the_build_found_out_makes_a_patch_unneeded_and_its_fact_is_kept(folder, source):
    patch(folder)
    facts = Facts(unneeded={"tile": "clang 23 of the build accepts it"})

    report = apply(series(folder), source, facts).patches[0]

    assert (report.outcome, report.reason) == ("unneeded", "clang 23 of the build accepts it")
    assert (source / "engine/launch.py").read_text() == LAUNCH


def test_a_sign_in_the_tree_makes_a_patch_unneeded(folder, source):
    patch(folder, unneeded_when=[{"file": "NOTES", "regex": "^sl.w$", "reason": "it is known to be slow"}])
    assert check(series(folder), source, Facts()).patches[0].reason == "it is known to be slow (NOTES)"
    (source / "NOTES").unlink()
    assert outcomes(check(series(folder), source, Facts())) == ["applied"]


def test_a_tree_that_breaks_what_the_patch_relies_on_fails_although_the_anchor_fits(folder, source):
    patch(folder, assume=[{"file": "engine/launch.py", "text": "return", "count": 3}])
    report = check(series(folder), source, Facts()).patches[0]
    assert report.outcome == "failed"
    assert report.reason == (
        "upstream moved: engine/launch.py: `return` stands 2 times (lines 3, 8), and the patch knows 3"
    )
    patch(folder, assume=[{"file": "engine/launch.py", "regex": "tile = ", "at_most": 1}])
    assert outcomes(check(series(folder), source, Facts())) == ["applied"]
    patch(folder, assume=[{"file": "gone.py", "text": "x", "count": 1}])
    assert check(series(folder), source, Facts()).patches[0].reason == "upstream moved: gone.py is not in the tree"


def test_the_stacks_parameter_stands_in_the_file_and_another_value_is_not_taken_for_present(folder, source):
    parameter = {"tile": {"meaning": "keys at a time", "default": 32, "most": 64, "power_of_two": True}}
    patch(folder, edits=[{**EDIT, "replacement": "tile = {{ tile }}"}], parameters=parameter)
    loaded = series(folder)

    apply(loaded, source, Facts(parameters={"tile": 64}))

    assert "tile = 64\n" in (source / "engine/launch.py").read_text()
    assert outcomes(check(loaded, source, Facts(parameters={"tile": 64}))) == ["present"]
    assert outcomes(check(loaded, source, Facts())) == ["failed"]
    with pytest.raises(UsageError, match="must be a power of two"):
        check(loaded, source, Facts(parameters={"tile": 48}))


def test_a_value_that_the_tree_has_already_is_present(folder, source):
    parameter = {"tile": {"meaning": "keys at a time", "default": 16, "most": 64}}
    patch(folder, edits=[{**EDIT, "replacement": "tile = {{ tile }}"}], parameters=parameter)

    assert outcomes(check(series(folder), source, Facts())) == ["present"]


def test_the_report_in_json_has_the_keys_that_scripts_rely_on(folder, source):
    patch(folder, "a.yaml", id="a")
    patch(folder, "b.yaml", id="b", edits=[WRONG])

    told = check(series(folder), source, Facts()).as_json()["patches"]

    assert [(one["id"], one["outcome"]) for one in told] == [("a", "applied"), ("b", "failed")]
    assert told[0]["edits"] == [
        {
            "file": "engine/launch.py",
            "outcome": "applied",
            "found": 1,
            "expected": 1,
            "line": 2,
            "lines": [2],
            "nearest": None,
        }
    ]
    assert told[0]["files"] == [
        {"path": "engine/launch.py", "before": sha256(LAUNCH), "after": sha256(LAUNCH.replace("= 16", "= 32"))}
    ]
    assert (told[1]["edits"][0]["line"], told[1]["edits"][0]["found"]) == (None, 0)


NAMES = ("alpha", "beta", "gamma")


@examples(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
    st.integers(0, 3),
    st.lists(st.sampled_from(["", "# alpha", "other = 1", "    indented"]), max_size=4),
    st.sampled_from(["\n", "\r\n"]),
)
def test_every_prefix_of_a_series_and_the_rest_after_it_give_the_tree_that_the_whole_gives(
    tmp_path_factory, order, cut, noise, ending
):
    root = tmp_path_factory.mktemp("prefix")
    lines = [text for name in NAMES for text in (*noise, f"{name} = 1")]
    for where in ("whole", "stepwise"):
        tree(root / where, {"x.py": ending.join([*lines, ""])})
    for name in order:
        edit = {"file": "x.py", "anchor": f"{name} = 1", "replacement": f"{name} = 2\n{name}_more = 3"}
        patch(root / "patches", f"{name}.yaml", id=name, edits=[edit])
    files = [f"{name}.yaml" for name in order]
    whole = series(root / "patches", *files)
    part = type(whole)(patches=whole.patches[:cut])

    apply(part, root / "stepwise", Facts())
    report = apply(whole, root / "stepwise", Facts())
    apply(whole, root / "whole", Facts())

    assert outcomes(report) == ["present" if place < cut else "applied" for place in range(len(order))]
    assert fingerprint(root / "stepwise") == fingerprint(root / "whole")
    assert (root / "whole" / "x.py").read_bytes().count(ending.encode()) == len(lines) + len(order)
