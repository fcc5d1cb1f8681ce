from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
from source_repos import MAIN, Repo, git, work_tree

from builder.errors import UpstreamError, UsageError
from builder.source.git import GoneError
from builder.source.repository import open_source


@pytest.fixture
def repo(tmp_path):
    return Repo(tmp_path / "up.git")


@pytest.fixture
def source(tmp_path, repo):
    return open_source(str(repo.path), cache=tmp_path / "cache")


def state(folder):
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in folder.rglob("*")}


def test_a_bare_repository_is_read_in_place_and_not_changed(tmp_path, repo, source):
    commit = repo.commit({"a": b"x"})
    before = state(repo.path)
    assert source.resolve(MAIN) == commit
    assert source.read_files(commit, ["a"]) == {"a": b"x"}
    assert (source.mirror, source.work_tree) == (None, None)
    assert state(repo.path) == before
    assert not (tmp_path / "cache").exists()


def test_a_ref_is_the_one_of_exactly_this_name(repo, source):
    right = repo.commit({"a": b"right"})
    for name in ("refs/heads/backup/main", "refs/heads/main-old", "refs/tags/main", "refs/heads/refs/heads/gone"):
        repo.commit({"a": b"wrong"}, ref=name)
    assert source.resolve(MAIN) == right
    with pytest.raises(GoneError, match="has no refs/heads/gone"):
        source.resolve("refs/heads/gone")


def test_an_annotated_tag_is_peeled_to_its_commit_also_through_another_tag(repo, source):
    commit = repo.commit({"a": b"x"})
    repo.tag("v2", repo.tag("v1", commit), kind="tag")
    assert source.resolve("refs/tags/v1") == commit
    assert source.resolve("refs/tags/v2") == commit


def test_a_tag_of_no_commit_is_an_error(repo, source):
    repo.commit({})
    repo.tag("blob", repo.put("blob", b"x"), kind="blob")
    with pytest.raises(UpstreamError, match="leads to no commit"):
        source.resolve("refs/tags/blob")


def test_a_commit_resolves_to_itself(source):
    assert source.resolve("0123456789" * 4) == "0123456789" * 4


@pytest.mark.parametrize(
    "ref", ["main", "HEAD", "", "0123456", "heads/main", "refs/heads/a..b", "refs/heads/*", "--all", "refs/heads/a b"]
)
def test_anything_but_a_full_name_is_refused(source, ref):
    with pytest.raises(UsageError, match="no full ref name"):
        source.resolve(ref)


def test_a_tags_own_sha_is_no_commit(repo, source):
    tag = repo.tag("v1", repo.commit({"a": b"x"}))
    with pytest.raises(GoneError, match="has no commit"):
        source.fetch(tag)


def test_files_are_read_and_those_that_are_not_there_left_out(repo, source):
    commit = repo.commit(
        {"a": b"1", b"b/\xff": b"2", "same": b"1", "sub": ("160000", b"1" * 40), "big": b"\0" * 3_000_000}
    )
    paths = ["a", "same", os.fsdecode(b"b/\xff"), "b", "nothing", "sub", "big"]
    read = source.read_files(commit, paths)
    assert read == {"a": b"1", "same": b"1", os.fsdecode(b"b/\xff"): b"2", "big": b"\0" * 3_000_000}


def test_a_file_too_large_to_hold_is_refused(repo, source, monkeypatch):
    monkeypatch.setattr("builder.source.repository.FILE_LIMIT", 1 << 20)
    commit = repo.commit({"big": b"\0" * ((1 << 20) + 1)})
    with pytest.raises(UpstreamError, match="larger than 1 MiB"):
        source.read_files(commit, ["big"])


def test_a_file_whose_blob_is_missing_is_named(repo, source):
    name = os.fsdecode(b"b\xff")
    commit = repo.commit({"a": b"1", b"b\xff": b"2"})
    repo.object(hashlib.sha1(b"blob 1\x002").hexdigest()).unlink()
    assert source.read_files(commit, ["a"]) == {"a": b"1"}
    with pytest.raises(UpstreamError, match=r"of b\\xff at") as refused:
        source.read_files(commit, ["a", name])
    refused.value.message.encode()  # fit for any screen


def test_a_damaged_promisor_repository_is_not_asked_to_fetch(tmp_path, repo, source):
    commit = repo.commit({"a": b"1"})
    config = (
        f'[extensions]\n\tpartialClone = origin\n[remote "origin"]\n\turl = {tmp_path}/nowhere\n\tpromisor = true\n'
    )
    (repo.path / "config").write_text("[core]\n\trepositoryformatversion = 1\n" + config)
    repo.object(git(repo.path, "rev-parse", f"{commit}:a")).unlink()
    with pytest.raises(UpstreamError, match="lacks the blob"):
        source.read_files(commit, ["a"])


def test_an_ancestor_is_told_from_a_rewritten_commit(repo, source):
    old = repo.commit({"a": b"1"})
    new = repo.commit({"a": b"2"}, old)
    rewritten = repo.commit({"a": b"1"}, title=b"rewritten")
    assert source.is_ancestor(old, new)
    assert source.is_ancestor(new, new)
    assert not source.is_ancestor(new, old)
    assert not source.is_ancestor(rewritten, new)
    assert not source.is_ancestor("1" * 40, new)


def test_in_a_shallow_clone_no_is_unknown(tmp_path, repo):
    old = repo.commit({"a": b"1"})
    repo.commit({"a": b"2"}, old)
    git(tmp_path, "clone", "-q", "--bare", "--depth=1", f"file://{repo.path}", "shallow")
    shallow = open_source(str(tmp_path / "shallow"), cache=tmp_path)
    with pytest.raises(UpstreamError, match="shallow clone"):
        shallow.is_ancestor(old, shallow.resolve(MAIN))


def test_a_graft_does_not_change_the_history(repo, source):
    old, other = repo.commit({"a": b"1"}), repo.commit({"b": b"1"}, title=b"other")
    new = repo.commit({"a": b"2"}, old)
    (repo.path / "info").mkdir()
    (repo.path / "info/grafts").write_text(f"{new} {other}\n")
    assert source.is_ancestor(old, new)
    assert not source.is_ancestor(other, new)


def test_a_clean_work_tree_gives_its_head_and_its_refs(tmp_path):
    head = work_tree(tmp_path / "work", {"a": b"x", ".gitignore": b"*.o\n"})
    (tmp_path / "work/x.o").write_bytes(b"ignored")
    before = state(tmp_path / "work")
    source = open_source(str(tmp_path / "work"), cache=tmp_path / "cache")
    assert source.resolve("HEAD") == source.resolve(MAIN) == head
    assert (source.work_tree, source.dirty) == (tmp_path / "work", False)
    assert state(tmp_path / "work") == before


@pytest.mark.parametrize("change", ["modified", "staged", "untracked", "mode"])
def test_a_dirty_work_tree_is_refused_by_the_name_of_the_file(tmp_path, change):
    folder = tmp_path / "work"
    work_tree(folder, {"a file": b"x"})
    path = folder / "a file"
    if change in {"modified", "staged"}:
        path.write_bytes(b"y")
        git(folder, *(["add", "-A"] if change == "staged" else ["--version"]))
    elif change == "untracked":
        path = folder / "new"
        path.write_bytes(b"")
    else:
        path.chmod(0o755)
    with pytest.raises(UsageError, match=f"uncommitted changes: '{path.name}'"):
        open_source(str(folder), cache=tmp_path / "cache")
    assert open_source(str(folder), cache=tmp_path / "cache", dirty=True).dirty


def test_a_linked_work_tree_is_read_with_its_own_head_and_dirt(tmp_path):
    work_tree(tmp_path / "work", {"a": b"x"})
    git(tmp_path / "work", "worktree", "add", "-q", "-b", "other", str(tmp_path / "linked"))
    (tmp_path / "linked/a").write_bytes(b"y")
    git(tmp_path / "linked", "commit", "-qam", "other")
    (tmp_path / "linked/b").write_bytes(b"z")
    source = open_source(str(tmp_path / "linked"), cache=tmp_path / "cache", dirty=True)
    head = source.resolve("HEAD")
    assert head == source.resolve("refs/heads/other") != source.resolve(MAIN)
    with source.snapshot(head) as snapshot:
        assert [entry.path for entry in snapshot.git.entries(snapshot.tree)] == [b"a", b"b"]


def test_a_work_tree_without_a_commit_is_refused(tmp_path):
    git(tmp_path, "init", "-q", "work")
    with pytest.raises(UsageError, match="no commit yet"):
        open_source(str(tmp_path / "work"), cache=tmp_path / "cache")


@pytest.mark.parametrize(
    "location",
    [
        "--upload-pack=touch pwned",
        "ext::sh -c true",
        "ftp://example.com/x",
        "nowhere",
        "",
        " ",
        "https://a\nb",
        "https://",
    ],
)
def test_a_location_that_is_no_source_is_refused(tmp_path, monkeypatch, location):
    (tmp_path / "cwd").mkdir()
    Repo(tmp_path / "cwd/.git")
    monkeypatch.chdir(tmp_path / "cwd")
    with pytest.raises(UsageError, match=r"no (location of a )?source"):
        open_source(location, cache=tmp_path / "cache")
    assert [path.name for path in tmp_path.iterdir()] == ["cwd"]


def test_a_plain_folder_and_a_folder_inside_a_work_tree_are_no_source(tmp_path):
    work_tree(tmp_path / "work", {"sub/a": b"x"})
    for folder in (tmp_path, tmp_path / "work/sub"):
        with pytest.raises(UsageError, match="work tree's root"):
            open_source(str(folder), cache=tmp_path / "cache")


def test_an_empty_repository_has_no_ref(source):
    with pytest.raises(GoneError, match=f"has no {MAIN}"):
        source.resolve(MAIN)


def test_a_git_that_called_us_does_not_lead_us_to_its_own_repository(tmp_path, repo, monkeypatch):
    right = repo.commit({"a": b"right"})
    other = Repo(tmp_path / "other.git")
    other.commit({"a": b"wrong"})
    monkeypatch.setenv("GIT_DIR", str(other.path))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(other.path / "objects"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "nonsense")
    source = open_source(str(repo.path), cache=tmp_path)
    assert source.read_files(source.resolve(MAIN), ["a"]) == {"a": b"right"}
    assert right == source.resolve(MAIN)


def test_the_station_loads_nothing_heavy():
    modules = "builder.source.repository, builder.source.tree, builder.source.version"
    code = f"import sys, {modules}; print({{'git', 'docker', 'requests', 'jinja2', 'pydantic'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
