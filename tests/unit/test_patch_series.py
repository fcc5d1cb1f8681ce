"""A series is read whole: every fault of its files is found before a tree is touched, and named with its place."""

from __future__ import annotations

import pytest
import yaml
from made_patches import EDIT, HEADER, diff, patch, series

from builder.errors import UsageError
from builder.files import sha256_file
from builder.patching.series import load_series

DIFF = """--- a/engine/launch.py
+++ b/engine/launch.py
@@ -1,3 +1,3 @@
 def launch(queries):
-    tile = 16
+    tile = 32
     return run(queries, tile)
"""


def refused(tmp_path, *names, **options) -> str:
    with pytest.raises(UsageError) as trouble:
        series(tmp_path, *names, **options)
    return trouble.value.message + trouble.value.hint


def test_the_series_file_gives_the_order_and_comments_do_not_count(tmp_path):
    patch(tmp_path, "a.yaml", id="first")
    diff(tmp_path, DIFF, "b.patch", id="second")
    (tmp_path / "series").write_text("# why this order\nb.patch  # before a\n\na.yaml\n")

    loaded = load_series(tmp_path)

    assert [one.id for one in loaded.patches] == ["second", "first"]
    assert loaded.patches[1].sha256 == sha256_file(tmp_path / "a.yaml")
    assert [one.files for one in loaded.patches] == [("engine/launch.py",)] * 2


def test_a_patch_that_the_series_does_not_name_is_an_error_and_not_left_out_in_silence(tmp_path):
    patch(tmp_path, "a.yaml", id="a")
    patch(tmp_path, "b.yaml", id="b")

    assert "does not name b.yaml" in refused(tmp_path, "a.yaml")


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (["tile.yml"], "series:1: 'tile.yml' is no patch file"),
        (["tilo.yaml", "tile.yaml"], "series:1: tilo.yaml is not there (did you mean 'tile.yaml'?)"),
        (["tile.yaml", "tile.yaml"], "series:2: tile.yaml stands in the series twice, first in line 1"),
        (["../tile.yaml"], "does not stay inside"),
    ],
)
def test_a_wrong_line_of_the_series_is_named(tmp_path, listed, message):
    patch(tmp_path)

    assert message in refused(tmp_path, *listed)


def test_a_folder_without_a_series_file_is_no_series(tmp_path):
    with pytest.raises(UsageError, match="series cannot be read"):
        load_series(tmp_path)


def test_the_users_own_folders_are_appended_by_name_or_by_their_own_series(tmp_path):
    patch(tmp_path / "main", "z.yaml", id="main")
    patch(tmp_path / "own", "b.yaml", id="b")
    patch(tmp_path / "own", "a.yaml", id="a")
    patch(tmp_path / "ordered", "d.yaml", id="d")
    patch(tmp_path / "ordered", "c.yaml", id="c")
    (tmp_path / "ordered" / "series").write_text("d.yaml\nc.yaml\n")

    loaded = series(tmp_path / "main", extra=[tmp_path / "own", tmp_path / "ordered"])

    assert [one.id for one in loaded.patches] == ["main", "a", "b", "d", "c"]


def test_two_patches_of_one_id_or_one_file_name_are_refused_as_the_image_could_hold_only_one(tmp_path):
    patch(tmp_path / "main", "a.yaml", id="a")
    patch(tmp_path / "own", "b.yaml", id="a")
    assert "the id 'a' is taken by" in refused(tmp_path / "main", extra=[tmp_path / "own"])

    patch(tmp_path / "own", "b.yaml", id="b").rename(tmp_path / "own" / "a.yaml")
    assert "the file name 'a.yaml' is taken by" in refused(tmp_path / "main", extra=[tmp_path / "own"])


def test_a_patch_that_is_off_waits_until_it_is_asked_for_by_name(tmp_path):
    patch(tmp_path, "a.yaml", id="a")
    patch(tmp_path, "b.yaml", id="b", enabled=False)

    plain, asked = series(tmp_path), series(tmp_path, enable=["b"])

    assert [one.id for one in plain.patches] == ["a"]
    assert [one.id for one in plain.off] == ["b"]
    assert [one.id for one in asked.patches] == ["a", "b"]
    assert "no patch is called 'bb' (did you mean 'b'?)" in refused(tmp_path, enable=["bb"])


def test_a_need_must_stand_before_the_patch_and_be_on(tmp_path):
    patch(tmp_path, "a.yaml", id="a")
    patch(tmp_path, "b.yaml", id="b", needs=["a"])

    assert [one.id for one in series(tmp_path, "a.yaml", "b.yaml").patches] == ["a", "b"]
    assert "b needs a, which does not stand before it" in refused(tmp_path, "b.yaml", "a.yaml")
    patch(tmp_path, "a.yaml", id="a", enabled=False)
    assert "b needs a, which does not stand before it" in refused(tmp_path, "a.yaml", "b.yaml")


def test_two_patches_that_conflict_are_not_applied_together(tmp_path):
    patch(tmp_path, "a.yaml", id="a")
    patch(tmp_path, "b.yaml", id="b", conflicts=["a"], enabled=False)

    assert [one.id for one in series(tmp_path).patches] == ["a"]
    assert "b conflicts with a" in refused(tmp_path, enable=["b"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"retire_when": None}, "the key 'retire_when' is missing"),
        ({"proof": []}, "proof: Tuple should have at least 1 item"),
        ({"titel": "x"}, "unknown key 'titel' (did you mean 'title'?)"),
        ({"id": "Tile 32"}, "id: String should match pattern"),
        ({"edits": []}, "edits: Tuple should have at least 1 item"),
        ({"applies_to": {"since": "abc"}}, "applies_to.since: String should match"),
        ({"applies_to": {"rocm": "7.14 or newer"}}, "no version condition such as '>=7.14'"),
        ({"applies_to": {"repo": "x"}}, "unknown key 'applies_to.repo'"),
        ({"edits": [{**EDIT, "file": "../launch.py"}]}, "does not stay inside its folder"),
        ({"edits": [{**EDIT, "file": "/etc/passwd"}]}, "does not stay inside its folder"),
        ({"edits": [{**EDIT, "file": ".git/hooks/post-checkout"}]}, "names no file of a source tree"),
        ({"edits": [{**EDIT, "file": "engine/.."}]}, "does not stay inside its folder"),
        ({"edits": [{**EDIT, "count": 0}]}, "edits.0.count: Input should be greater than or equal to 1"),
        ({"edits": [{**EDIT, "anchor": ""}]}, "edits.0.anchor: String should have at least 1 character"),
        ({"edits": [{**EDIT, "replacement": "tile = 16"}]}, "the replacement equals the anchor"),
        ({"edits": [{**EDIT, "replacement": ""}]}, "present is needed here"),
        ({"edits": [{**EDIT, "regex": True}]}, "present is needed here"),
        ({"edits": [{**EDIT, "regex": True, "anchor": "tile = (", "present": "x"}]}, "no regular expression"),
        ({"edits": [{**EDIT, "scope": "launch()"}]}, "edits.0.scope: String should match"),
        ({"proof": [{"text": "x"}]}, "a text needs the file that holds it"),
        ({"proof": [{"text": "x", "symbol": "y", "file": "z"}]}, "exactly one of text, isa and symbol"),
        ({"proof": [{"symbol": "y", "max_vgprs": 96}]}, "belong to isa"),
        ({"proof": [{"isa": "kernel"}]}, "isa needs a marker"),
        ({"assume": [{"file": "a.py", "text": "x"}]}, "exactly one of count and at_most"),
        ({"unneeded_when": [{"file": "a.py", "reason": "x"}]}, "exactly one of text and regex"),
    ],
)
def test_a_fault_in_a_patch_names_file_line_and_field(tmp_path, change, message):
    patch(tmp_path, **{"edits": None, **change})

    told = refused(tmp_path)

    assert message in told
    assert told.startswith(f"{tmp_path / 'tile.yaml'}:")
    assert told.split(":")[1].isdigit()


def test_the_line_of_a_fault_is_the_line_of_its_field(tmp_path):
    lines = yaml.safe_dump({**HEADER, "edits": [EDIT]}, sort_keys=False).splitlines()
    (tmp_path / "tile.yaml").write_text("\n".join([*lines[:3], "retire_wen: never", *lines[3:]]) + "\n")

    assert "tile.yaml:4: unknown key 'retire_wen' (did you mean 'retire_when'?)" in refused(tmp_path)


def parameters(**rules):
    return {"tile": {"meaning": "keys at a time", "default": 32, "most": 64, "power_of_two": True, **rules}}


TILED = [{**EDIT, "replacement": "tile = {{ tile }}"}]


def test_parameters_take_the_stacks_value_or_their_default_and_keep_their_rule(tmp_path):
    patch(tmp_path, edits=TILED, parameters=parameters())
    loaded = series(tmp_path)

    assert loaded.parameters({}) == {"tile": 32}
    assert loaded.parameters({"tile": 16}) == {"tile": 16}
    for wrong, why in (
        (24, "it must be a power of two"),
        (128, "it must be between 1 and 64"),
        (0, "between 1 and 64"),
    ):
        with pytest.raises(UsageError, match=why):
            loaded.parameters({"tile": wrong})
    with pytest.raises(UsageError, match=r"no patch of the series has a parameter 'tiles'.*did you mean 'tile'"):
        loaded.parameters({"tiles": 16})


def test_a_default_keeps_its_own_rule(tmp_path):
    patch(tmp_path, edits=TILED, parameters=parameters(default=48))

    assert "the default 48 must be a power of two" in refused(tmp_path)


def test_placeholders_and_parameters_must_match(tmp_path):
    patch(tmp_path, edits=[{**EDIT, "replacement": "tile = {{ tiel }}"}], parameters=parameters())
    assert "it uses tiel" in refused(tmp_path)
    patch(tmp_path, parameters=parameters())
    assert "it never uses tile" in refused(tmp_path)


def test_without_parameters_double_braces_are_the_codes_own(tmp_path):
    patch(tmp_path, edits=[{**EDIT, "replacement": "tile = {{ tile }}"}])

    assert series(tmp_path).patches[0].edits[0].replacement == "tile = {{ tile }}"


def test_a_parameter_means_the_same_in_every_patch(tmp_path):
    patch(tmp_path, "a.yaml", id="a", edits=TILED, parameters=parameters())
    patch(tmp_path, "b.yaml", id="b", edits=TILED, parameters=parameters(default=16))

    assert "the parameter tile is declared otherwise in" in refused(tmp_path)


def test_proofs_carry_the_values_of_the_parameters(tmp_path):
    proof = [{"text": "tile = {{ tile }}", "file": "engine/launch.py"}, {"symbol": "run"}]
    patch(tmp_path, edits=TILED, parameters=parameters(), proof=proof)

    proofs = series(tmp_path).patches[0].proofs({"tile": 16})

    assert [one.text for one in proofs] == ["tile = 16", None]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (DIFF.replace("@@ -1,3 +1,3 @@", "@@ -1,4 +1,3 @@"), 7, "the hunk ends too early: 1 old and 0 new lines"),
        (DIFF.replace("@@ -1,3 +1,3 @@", "@@ -1,2 +1,3 @@"), 6, "the hunk is longer than its head says"),
        (DIFF.replace("b/engine", "b/motor"), 2, "renames are not done here"),
        (DIFF.replace("--- a/", "--- "), 0, "is expected here, as plain `git diff` writes it"),
        (DIFF.replace("a/engine", "a/../engine").replace("b/engine", "b/../engine"), 0, "does not stay inside"),
        (DIFF + "something else\n", 7, "a file's `--- a/…` line is expected here"),
        (DIFF + DIFF, 7, "engine/launch.py stands in the diff twice"),
        ("diff --git a/x b/y\nsimilarity index 90%\nrename from x\n", 1, "is a rename or a copy"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", 1, "is a change of mode"),
        ("diff --git a/x b/x\nindex 1..2 100644\nGIT binary patch\n", 2, "is a binary change"),
        ("diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n", 1, "is no regular file"),
        ("diff --git a/x b/x\nindex 1..2 100644\n", 2, "a file's `--- a/…` line is expected here"),
        ("--- a/x\n+++ b/x\n", 2, "the file's hunks are expected here"),
        (DIFF.replace("tile = 32", "tile = 16"), 0, "changes nothing but line endings"),
    ],
)
def test_a_diff_that_asks_for_more_than_text_is_refused_with_its_line(tmp_path, text, line, message):
    path = diff(tmp_path, text)
    header = path.read_text().index(text[:20])

    told = refused(tmp_path)

    assert message in told
    assert int(told.removeprefix(f"{path}:").split(":")[0]) == path.read_text()[:header].count("\n") + 1 + line


def test_a_diff_needs_a_header_and_a_header_a_diff(tmp_path):
    (tmp_path / "tile.patch").write_text(DIFF)
    assert "there is no header before the diff" in refused(tmp_path)
    (tmp_path / "tile.patch").write_text(yaml.safe_dump(HEADER))
    assert "there is no diff in it" in refused(tmp_path)
    diff(tmp_path, DIFF, parameters=parameters())
    assert "a unified diff has no parameters" in refused(tmp_path)


def test_the_mail_around_a_diff_of_git_format_patch_is_no_part_of_it(tmp_path):
    text = f"diff --git a/engine/launch.py b/engine/launch.py\nindex 1234567..89abcde 100644\n{DIFF}-- \n2.39.2\n\n"
    diff(tmp_path, text)

    assert series(tmp_path).patches[0].files == ("engine/launch.py",)


def test_the_shipped_series_are_read_and_say_everything_that_they_must(pytestconfig):
    for name in ("sglang", "vllm"):
        loaded = load_series(pytestconfig.rootpath / "patches" / name)

        assert loaded.patches
        assert all(one.header.applies_to.repository for one in (*loaded.patches, *loaded.off))
