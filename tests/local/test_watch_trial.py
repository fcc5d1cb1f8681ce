"""The trial at a head, and the first commit that breaks a patch: on the branch, beside it, and among many."""

import pytest
from source_repos import MAIN
from watch_project import DEFAULTS, LAUNCH, Project, Upstream

from builder.errors import UpstreamError
from builder.models.stack import load_stack
from builder.patching.apply import check
from builder.source.repository import open_source
from builder.source.tree import export
from builder.stage.inputs import facts_of, series_of
from builder.watch.history import File, state_at, steps, touched
from builder.watch.trial import Trial, files_of

TILE = "smoke_engine/launch.py"
LIMIT = "smoke_engine/defaults.py"


@pytest.fixture
def up(tmp_path):
    made = Upstream(tmp_path / "up.git")
    made.base = made.commit("the beginning")
    return made


@pytest.fixture
def trial(tmp_path, up):
    project = Project(tmp_path, str(up.repo.path))
    stack = load_stack(project.root, "mini")
    source = open_source(str(up.repo.path), cache=tmp_path / "cache")
    return Trial(source=source, series=series_of(project.root, stack), facts=facts_of(stack))


def outcomes(trial, commit):
    return {report.id: report.outcome for report in trial.at(commit)}


def culprit(trial, up, *, base=None, patch="tile"):
    return trial.culprits(base or up.base, up.head, [patch]).get(patch)


def test_the_trial_says_what_the_applier_says_of_the_whole_tree(tmp_path, trial, up):
    up.change("csrc/copy.hip", "builtin_store", "volatile_store")
    up.change(TILE, "tile = 16", "tile = 8")
    export(trial.source, up.head, tmp_path / "whole")
    whole = check(trial.series, tmp_path / "whole", trial.facts).patches
    assert trial.at(up.head) == whole
    assert outcomes(trial, up.head) == {"tile": "failed", "store": "present", "limit": "applied"}


def test_a_file_that_became_a_link_is_refused_as_in_the_whole_tree(trial, up):
    up.commit(files={TILE: ("120000", b"defaults.py")})
    assert trial.at(up.head)[0].reason == f"{TILE}: {TILE} is a link, and links are not followed"


def test_a_link_that_leads_out_of_the_tree_is_not_followed(tmp_path, trial, up):
    outside = tmp_path / "outside"
    outside.write_text("tile = 16\n")
    up.commit(files={TILE: ("120000", str(outside).encode())})
    assert outcomes(trial, up.head)["tile"] == "failed"
    assert outside.read_text() == "tile = 16\n"


def test_a_link_of_bytes_that_no_link_can_hold_is_refused_too(trial, up):
    up.commit(files={TILE: ("120000", b"a\0b" * 4000)})
    assert outcomes(trial, up.head)["tile"] == "failed"


def test_a_huge_file_is_not_read_into_memory(trial, up):
    up.commit(files={TILE: "x" * (17 << 20)})
    with pytest.raises(UpstreamError, match="larger than 16 MiB"):
        trial.at(up.head)


def test_a_tree_with_a_link_and_a_folder_of_one_name_writes_nothing_outside(tmp_path, trial, up):
    blob = up.repo.put("blob", b"tile = 16\n")
    link = up.repo.put("blob", str(tmp_path).encode())
    below = up.repo.tree(("100644", b"launch.py", blob))
    twice = up.repo.tree(("120000", b"smoke_engine", link), ("40000", b"smoke_engine", below))
    up.head = up.repo.commit(twice, up.head)
    assert outcomes(trial, up.head)["limit"] == "failed"
    assert not (tmp_path / "launch.py").exists()


def test_the_first_commit_that_breaks_a_patch_is_named_among_many(trial, up):
    for number in range(20):
        up.commit(files={TILE: up.files[TILE] + f"# {number}\n"})
    guilty = up.change(TILE, "tile = 16", "tile = 8")
    for number in range(20):
        up.commit(files={TILE: up.files[TILE] + f"# more {number}\n"})
    assert culprit(trial, up).sha == guilty


def test_a_break_that_was_mended_and_came_again_is_dated_by_its_return(trial, up):
    up.change(TILE, "tile = 16", "tile = 8")
    up.change(TILE, "tile = 8", "tile = 16")
    guilty = up.change(TILE, "tile = 16", "tile = 8")
    up.idle()
    assert culprit(trial, up).sha == guilty


def test_a_deleted_file_is_dated_and_so_is_its_return_in_another_form(trial, up):
    guilty = up.commit(files={TILE: None})
    up.commit(files={TILE: LAUNCH.replace("16", "8")})
    assert culprit(trial, up).sha == guilty


def test_a_commit_beside_the_branch_is_named_with_the_merge_that_brought_it(trial, up):
    text = LAUNCH.replace("16", "8")
    start = up.idle()
    one = up.commit(parents=[start], move=False, files={TILE: LAUNCH + "# beside\n"})
    guilty = up.commit(parents=[one], move=False, files={TILE: text + "# beside\n"})
    last = up.commit(parents=[guilty], move=False, files={TILE: text + "# beside\n# more\n"})
    up.idle()
    merge = up.commit(parents=[up.head, last], files={TILE: text + "# beside\n# more\n"})
    up.idle()
    found = culprit(trial, up)
    assert (found.sha, found.merge) == (guilty, merge)


def test_a_merge_inside_a_merge_is_looked_into(trial, up):
    text = LAUNCH.replace("16", "8")
    start = up.head
    guilty = up.commit(parents=[start], move=False, files={TILE: text})
    beside = up.commit(parents=[start], move=False, files={"README.md": "beside\n"})
    inner = up.commit(parents=[beside, guilty], move=False, files={TILE: text, "README.md": "beside\n"})
    merge = up.commit(parents=[up.idle(), inner], files={TILE: text, "README.md": "beside\n"})
    found = culprit(trial, up)
    assert (found.sha, found.merge) == (guilty, merge)


def test_a_merge_that_breaks_a_patch_by_itself_is_named(trial, up):
    start = up.head
    side = up.commit(parents=[start], move=False, files={TILE: LAUNCH + "# beside\n"})
    merge = up.commit(parents=[up.idle(), side], files={TILE: LAUNCH.replace("16", "8") + "# beside\n"})
    found = culprit(trial, up)
    assert (found.sha, found.merge) == (merge, None)


def test_a_file_that_both_sides_of_a_merge_changed_is_looked_into_as_well(trial, up):
    start = up.head
    guilty = up.commit(parents=[start], move=False, files={TILE: LAUNCH.replace("16", "8")})
    mine = up.commit(files={TILE: "# mine\n" + LAUNCH})
    merge = up.commit(parents=[mine, guilty], files={TILE: "# mine\n" + LAUNCH.replace("16", "8")})
    found = culprit(trial, up)
    assert (found.sha, found.merge) == (guilty, merge)


def test_a_merge_that_breaks_one_file_and_takes_over_another_is_named_itself(trial, up):
    side = up.commit(parents=[up.head], move=False, files={LIMIT: DEFAULTS + "# beside\n"})
    broken = {LIMIT: DEFAULTS + "# beside\n", TILE: LAUNCH.replace("16", "8")}
    merge = up.commit(parents=[up.idle(), side], files=broken)
    found = culprit(trial, up)
    assert (found.sha, found.merge) == (merge, None)


def test_two_patches_are_dated_each_by_its_own_commit(trial, up):
    first = up.change(TILE, "tile = 16", "tile = 8")
    second = up.change(LIMIT, "# a request", "# requests")
    found = trial.culprits(up.base, up.head, ["tile", "limit"])
    assert {name: one.sha for name, one in found.items()} == {"tile": first, "limit": second}


def test_a_patch_that_never_applied_on_the_stretch_has_no_culprit(trial, up):
    up.commit(files={LIMIT: DEFAULTS.replace("16", "8")})
    base = up.head
    up.idle()
    up.change(LIMIT, "8", "9")
    assert culprit(trial, up, base=base, patch="limit") is None


def test_after_a_rewrite_the_new_line_is_looked_through(trial, up):
    up.idle()
    gone = up.head
    up.head = up.base
    up.idle("again")
    guilty = up.change(TILE, "tile = 16", "tile = 8")
    assert culprit(trial, up, base=gone).sha == guilty


def test_the_trial_reads_the_files_that_the_series_names_and_no_others(trial, up):
    assert files_of(trial.series) == ("csrc/copy.hip", LIMIT, TILE)


def test_history_tells_states_steps_and_touched_paths(trial, up):
    git = trial.source.git
    first = up.commit(files={"odd name \u00e9": "1", TILE: "x"})
    second = up.commit(files={TILE: None})
    assert state_at(git, second, [TILE, "docs", "nothing"]) == {}
    assert state_at(git, first, [TILE])[TILE].mode == "100644"
    found = steps(git, up.base, up.head, [TILE], most=10)
    assert [(step.sha, step.parents) for step in found] == [(second, (first,)), (first, (up.base,))]
    assert found[1].before == {TILE: File("100644", state_at(git, up.base, [TILE])[TILE].sha)}
    assert touched(git, up.base, up.head) == {second: (TILE,), first: ("odd name \u00e9", TILE)}
    assert git.count(up.base, up.head) == 2
    assert git.is_ancestor(up.base, up.head)
    assert not git.is_ancestor("1" * 40, up.head)
    assert [step.before for step in steps(git, None, up.base, [TILE], most=10)] == [{TILE: None}]
    assert steps(git, None, MAIN, ["*"], most=10) == []
