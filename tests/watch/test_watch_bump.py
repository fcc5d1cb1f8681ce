"""Moving the pin: only to a head that is green and has been there long enough; as files or as a pull request."""

import threading
from datetime import timedelta

import pytest
import yaml
from watch_forge import FakeForge
from watch_project import START, Project, Upstream

from builder.errors import UsageError
from builder.models.lock import load_lock


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def forge():
    with FakeForge() as served:
        yield served


@pytest.fixture
def up(tmp_path):
    made = Upstream(tmp_path / "up.git")
    made.base = made.commit("the beginning")
    return made


@pytest.fixture
def project(tmp_path, up):
    made = Project(tmp_path, str(up.repo.path))
    made.pin(up.head)
    return made


def pinned(project):
    return load_lock(project.root, "mini").commit


def bump(project, day, **options):
    return project.watch(day=day, bump=True, **options)


def test_a_green_head_is_taken_when_it_has_been_there_for_a_day(project, up):
    new = up.idle()
    early = bump(project, 0)
    assert (early.exit_code, pinned(project)) == (10, up.base)
    assert "no new head has been there for 24 hours yet" in early.told[0]
    assert "2026-01-02T05:43+00:00" in early.told[0]
    result = bump(project, 1)
    assert (result.exit_code, pinned(project)) == (0, new)
    lock = load_lock(project.root, "mini")
    assert lock.version == f"0.0.dev0+g{new[:12]}"
    assert (project.root / "dockerfiles/mini/Dockerfile").read_text() == f"FROM scratch\nLABEL commit={new}\n"
    assert result.bump.moved == (f"commit: {up.base} -> {new}", f"version: 0.0.dev0+g{up.base[:12]} -> {lock.version}")
    assert (result.bump.branch, result.bump.title) == (f"watch/mini-{new[:12]}", f"mini: pin {new[:12]}")
    assert project.watch(day=1).report.state == "same"


def test_on_a_branch_that_moves_daily_the_newest_head_that_is_old_enough_is_taken(project, up):
    heads = []
    for day in range(3):
        heads.append(up.idle())
        project.watch(day=day)
    heads.append(up.idle())
    result = bump(project, 3)
    assert pinned(project) == heads[2]
    assert f"The branch has moved on to `{heads[3]}` since." in result.bump.body


def test_a_head_that_breaks_the_series_is_never_taken(project, up):
    bad = up.change("smoke_engine/launch.py", "tile = 16", "tile = 8")
    project.watch()
    result = bump(project, 5)
    assert (result.exit_code, pinned(project)) == (11, up.base)
    assert result.told == (f"the pin stays: at {bad} these would break: tile",)


def test_a_head_that_was_broken_is_not_taken_when_the_branch_is_mended_but_young(project, up):
    bad = up.change("smoke_engine/launch.py", "tile = 16", "tile = 8")
    project.watch()
    up.change("smoke_engine/launch.py", "tile = 8", "tile = 16")
    result = bump(project, 2)
    assert (result.exit_code, pinned(project)) == (10, up.base)
    assert bad in result.told[0]


def test_a_head_without_a_flag_that_a_profile_uses_is_not_taken(project, up):
    up.change("smoke_engine/server.py", '"--host"', '"--bind"')
    project.watch()
    result = bump(project, 2)
    assert pinned(project) == up.base
    assert "these would break: --host" in result.told[0]


def test_a_head_that_was_rewritten_away_is_not_taken(project, up):
    up.idle("lost")
    project.watch()
    up.head = up.base
    up.idle("instead")
    result = bump(project, 2)
    assert (result.exit_code, pinned(project)) == (11, up.base)


def test_the_pin_does_not_go_back(project, up):
    first, second = up.idle(), up.idle()
    up.repo.point("refs/heads/main", first)
    project.watch()
    up.repo.point("refs/heads/main", second)
    project.pin(second)
    assert bump(project, 3).told == ()
    up.idle()
    assert "no new head has been there" in bump(project, 4).told[0]
    assert pinned(project) == second


def test_a_clock_that_was_set_back_makes_nothing_old(project, up):
    up.idle()
    project.watch(day=30)
    result = project.watch(now=START, bump=True)
    assert "no new head has been there" in result.told[0]
    assert pinned(project) == up.base


def test_a_lock_that_does_not_belong_to_the_stack_is_not_moved(project, up):
    up.idle()
    stack = project.root / "stacks/mini.yaml"
    stack.write_text(stack.read_text().replace("A made-up", "Another made-up"))
    project.watch()
    with pytest.raises(UsageError, match="is stale"):
        bump(project, 2)


def test_the_quarantine_can_be_set(project, up):
    new = up.idle()
    bump(project, 0, min_age=timedelta(0))
    assert pinned(project) == new


def test_a_pull_request_is_opened_once_as_one_commit_and_the_checkout_stays(project, up, forge):
    new = up.idle("by @somebody")
    project.watch()
    result = bump(project, 2, pull_request=True, environ=forge.environ())
    assert (result.exit_code, result.told) == (0, ("opened pull request 7",))
    assert pinned(project) == up.base
    [pull] = forge.pulls
    assert (pull["head"], pull["base"]) == (f"watch/mini-{new[:12]}", "main")
    assert "`by @somebody`" in pull["body"]
    [tree] = forge.trees
    files = {entry["path"]: entry["content"] for entry in tree["tree"]}
    assert set(files) == {"stacks/mini.lock.yaml", "dockerfiles/mini/Dockerfile"}
    assert yaml.safe_load(files["stacks/mini.lock.yaml"])["commit"] == new
    again = bump(project, 3, pull_request=True, environ=forge.environ())
    assert again.told == ("pull request 7 is there already",)
    assert len(forge.pulls) == 1


def test_a_branch_left_by_a_run_that_got_no_further_is_used(project, up, forge):
    new = up.idle()
    project.watch()
    forge.spoil("POST", "/pulls", 500, body=b'{"message": "oops"}')
    result = bump(project, 2, pull_request=True, environ=forge.environ())
    assert (result.exit_code, result.bump) == (4, None)
    assert bump(project, 3, pull_request=True, environ=forge.environ()).told == ("opened pull request 7",)
    assert forge.refs[f"refs/heads/watch/mini-{new[:12]}"] == "e" * 40


def test_two_runs_at_once_tell_it_once(project, up):
    up.idle()
    results, start = [], threading.Barrier(2)

    def run():
        start.wait()
        try:
            results.append(len(project.watch().news))
        except Exception as trouble:  # noqa: BLE001 - the loser's error is looked at
            results.append(type(trouble).__name__)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = (project.settings.state / "watch/events.jsonl").read_text().splitlines()
    assert len(log) == 1
    assert sorted(map(str, results)) in (["0", "1"], ["1", "HostError"])
