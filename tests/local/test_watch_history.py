"""The log of upstream's commits, whatever they hold."""

import pytest
from source_repos import Repo

from builder.source.git import Git
from builder.watch.history import log


@pytest.fixture
def repo(tmp_path):
    return Repo(tmp_path / "up.git")


def test_the_log_is_what_new_has_and_old_has_not_newest_first(repo):
    git = Git(git_dir=repo.path)
    old = repo.commit({"a": b"1"})
    side = repo.commit({"a": b"1", "b": b"2"}, old, title=b"side", time=1_600_000_000)
    main = repo.commit({"a": b"3"}, old, title=b"main\n\nbody", time=1_700_000_100)
    new = repo.commit({"a": b"4"}, main, side, title=b"merge", time=1_700_000_200)
    found = log(git, old, new, limit=10)
    assert {(entry.sha, entry.title) for entry in found} == {(new, "merge"), (main, "main"), (side, "side")}
    assert found[0].sha == new
    assert found[0].author_date == "2023-11-14T22:16:40+00:00"
    assert [entry.sha for entry in log(git, old, new, limit=1)] == [new]
    assert git.count(old, new) == 3
    assert log(git, new, new, limit=10) == []


def test_a_title_is_one_bounded_printable_line_whatever_its_bytes(repo):
    git = Git(git_dir=repo.path)
    old = repo.commit({"a": b"1"})
    for title, shown in [
        (b"caf\xe9 \x1b[31mred\x07", "caf\ufffd ?[31mred?"),
        ("ünï".encode(), "ünï"),
        (b"x" * 5000, "x" * 199 + "…"),
        (b"", ""),
    ]:
        new = repo.commit({"a": title}, old, title=title)
        assert [entry.title for entry in log(git, old, new, limit=9)] == [shown]


def test_a_date_that_no_calendar_has_does_not_stop_the_log(repo):
    git = Git(git_dir=repo.path)
    old = repo.commit({"a": b"1"})
    new = repo.commit({"a": b"2"}, old, time=10**17)
    assert log(git, old, new, limit=9)[0].sha == new


def test_the_users_log_settings_do_not_change_the_log(repo):
    git = Git(git_dir=repo.path)
    old = repo.commit({"a": b"1"})
    new = repo.commit({"a": b"2"}, old, title=b"new")
    (repo.path / "config").write_text("[log]\nshowSignature = true\ndate = raw\n[i18n]\nlogOutputEncoding = utf-16\n")
    assert [entry.title for entry in log(git, old, new, limit=9)] == ["new"]
