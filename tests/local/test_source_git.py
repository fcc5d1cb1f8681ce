from __future__ import annotations

import os
import time

import pytest
from source_repos import Repo

from builder import process
from builder.errors import HostError, UpstreamError, UsageError
from builder.source.git import Git, redacted, require_commit


@pytest.fixture
def repo(tmp_path):
    return Repo(tmp_path / "up.git")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("fatal: 'https://me:tok%40en@example.com/x' not found", "fatal: 'https://***@example.com/x' not found"),
        ("https://token@example.com/a ssh://git@h/b", "https://***@example.com/a ssh://***@h/b"),
        ("https://example.com/a@b", "https://example.com/a@b"),
        ("git@example.com:a/b", "git@example.com:a/b"),
    ],
)
def test_credentials_in_an_address_are_not_shown(said, shown):
    assert redacted(said) == shown


def test_a_servers_words_cannot_steer_the_terminal():
    assert redacted("remote: \x1b[2Jhi\r\n\tthere é") == "remote: ?[2Jhi\n\tthere é"


def test_the_configuration_is_not_part_of_what_is_logged(repo):
    assert "secret" not in repr(Git(git_dir=repo.path, config={"remote.x.url": "https://me:secret@example.com"}))


def test_a_failed_command_shows_what_git_said_and_not_our_settings(repo):
    with pytest.raises(UsageError) as refused:
        Git(git_dir=repo.path, config={"remote.x.url": "https://me:secret@example.com"}).run(
            "rev-parse", "nothing", "--"
        )
    assert "`git rev-parse nothing --` ended with status 128" in refused.value.message
    assert "bad revision 'nothing'" in refused.value.message
    assert "secret" not in refused.value.message


def test_configuration_is_added_to_what_the_caller_stated(repo, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "x.theirs")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "1")
    git = Git(git_dir=repo.path, config={"x.ours": "2"})
    assert git.run("config", "x.theirs").text == "1"
    assert git.run("config", "x.ours").text == "2"


@pytest.mark.parametrize("protocol", ["file", "ext"])
def test_a_local_command_reaches_no_other_repository_and_a_network_command_runs_no_helper(repo, tmp_path, protocol):
    url = {"file": f"file://{repo.path}", "ext": f"ext::touch {tmp_path}/pwned"}[protocol]
    with pytest.raises(UpstreamError, match=f"transport '{protocol}' not allowed"):
        Git(git_dir=repo.path).run("ls-remote", url, failure=UpstreamError, network=protocol == "ext")
    assert not (tmp_path / "pwned").exists()


def test_a_missing_git_is_a_fault_of_the_host(repo, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HostError, match="git is not installed"):
        Git(git_dir=repo.path).run("version")


def test_objects_come_in_the_order_asked_with_what_is_left_unread_skipped(repo):
    one, two = repo.put("blob", b"1" * 3_000_000), repo.put("blob", b"two\n")
    read = [(sha, kind, next(pieces)[:4]) for sha, kind, pieces in Git(git_dir=repo.path).read([one, two, one])]
    assert read == [(one, "blob", b"1111"), (two, "blob", b"two\n"), (one, "blob", b"1111")]


def test_thousands_of_objects_do_not_block_each_other(repo):
    sha = repo.put("blob", b"x" * 2_000)
    assert sum(len(b"".join(pieces)) for _, _, pieces in Git(git_dir=repo.path).read([sha] * 2_000)) == 4_000_000


def test_an_object_that_is_not_there_is_named(repo):
    with pytest.raises(UpstreamError, match="no object " + "1" * 40):
        list(Git(git_dir=repo.path).read(["1" * 40]))


def test_a_tree_that_is_no_list_of_files_is_refused(repo):
    with pytest.raises(UsageError, match="no list of files"):
        Git(git_dir=repo.path).entries(repo.put("tree", b"100644 a\0short"))


def test_a_folder_of_old_tools_is_a_folder(repo):
    below = repo.tree(("100644", b"a", repo.put("blob", b"x")))
    entries = Git(git_dir=repo.path).entries(repo.tree(("040000", b"d", below)))
    assert [entry.path for entry in entries] == [b"d/a"]


def test_a_commit_is_forty_digits():
    assert require_commit("0123456789" * 4) == "0123456789" * 4
    with pytest.raises(UsageError, match="hexadecimal digits are expected") as refused:
        require_commit("123456")
    assert "in quotes" in refused.value.hint


def test_at_the_timeout_a_child_ends_with_its_own_children():
    begun = time.monotonic()
    two = process.piped(["sh", "-c", "sleep 50 & exec sleep 50"], timeout=0.1, failure=UpstreamError)
    with pytest.raises(UpstreamError, match="did not end within 0 s and was killed"), two as child:
        child.stdout.read()  # it stays open as long as any of the two lives
    assert time.monotonic() - begun < 10


def test_a_block_that_raises_ends_the_child_and_keeps_its_own_error():
    begun = time.monotonic()
    with pytest.raises(KeyError), process.piped(["sleep", "50"], timeout=50):
        raise KeyError
    assert time.monotonic() - begun < 10


def test_a_block_may_leave_output_unread_and_the_child_may_leave_input_unread():
    with process.piped(["sh", "-c", "exec yes >&1"], timeout=20) as child:
        assert child.stdout.readline() == b"y\n"
    assert child.returncode != 0
    with process.piped(["sh", "-c", "exec <&-; echo sorry >&2; exit 3"], timeout=20) as child:
        child.stdout.read()
        with pytest.raises(BrokenPipeError):
            child.stdin.write(b"x" * 100_000)
    assert (child.returncode, child.stderr) == (3, "sorry\n")


def test_a_variable_set_to_none_is_taken_from_the_child(monkeypatch):
    monkeypatch.setenv("GIVEN", "1")
    shown = process.run(["sh", "-c", "echo ${GIVEN-gone} $ADDED"], timeout=20, env={"GIVEN": None, "ADDED": "2"}).stdout
    assert shown == "gone 2\n"
    assert os.environ["GIVEN"] == "1"


def test_a_full_disk_is_an_error_of_the_host_whatever_the_command(tmp_path, monkeypatch):
    (tmp_path / "git").write_text("#!/bin/sh\necho 'fatal: write error: No space left on device' >&2; exit 128\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for failure in (UsageError, UpstreamError):
        with pytest.raises(HostError, match="No space left on device") as caught:
            Git(git_dir=tmp_path).run("write-tree", failure=failure)
        assert str(tmp_path) in caught.value.hint
