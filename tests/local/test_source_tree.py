from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path

import pytest
from source_repos import Repo, git, work_tree

from builder.errors import HostError, UpstreamError, UsageError, VerifyError
from builder.source.repository import open_source
from builder.source.tree import export

TIME = 1_700_000_000


@pytest.fixture
def repo(tmp_path):
    return Repo(tmp_path / "up.git")


@pytest.fixture
def exported(tmp_path, repo):
    def run(commit, **options):
        return export(open_source(str(repo.path), cache=tmp_path / "cache"), commit, tmp_path / "out", **options)

    return run


def blob_sha(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def found(folder):
    return sorted(os.path.relpath(path, folder) for path in Path(folder).rglob("*"))


def test_the_files_of_a_commit_come_out_with_plain_modes_and_the_commits_time(tmp_path, repo, exported):
    commit = repo.commit({"a.txt": b"one\n", "bin/run": ("100755", b"#!/bin/sh\n"), "old": ("100664", b"")})
    old = os.umask(0o077)
    try:
        result = exported(commit)
    finally:
        os.umask(old)
    out = tmp_path / "out"
    assert (out / "a.txt").read_bytes() == b"one\n"
    modes = {name: stat.S_IMODE((out / name).stat().st_mode) for name in found(out)}
    assert modes == {"a.txt": 0o644, "bin": 0o755, "bin/run": 0o755, "old": 0o644}
    assert {int((out / name).stat().st_mtime) for name in [*found(out), "."]} == {TIME}
    assert (result.commit_time.isoformat(), result.missing) == ("2023-11-14T22:13:20+00:00", ())


def test_a_second_export_gives_the_same_bytes_and_times(tmp_path, repo):
    commit = repo.commit({"a": b"1", "b/c": b"2", "l": ("120000", b"b/c")})
    source = open_source(str(repo.path), cache=tmp_path)
    for name in ("x", "y"):
        export(source, commit, tmp_path / name)
    listing = ["find", ".", "-printf", "%p %m %s %T@ %l\n"]
    first, second = (subprocess.run(listing, cwd=tmp_path / name, stdout=-1, check=True).stdout for name in ("x", "y"))
    assert sorted(first.splitlines()) == sorted(second.splitlines())


def test_attributes_change_no_content(tmp_path, repo, exported):
    attributes = b"* text eol=crlf ident export-subst\nsecret export-ignore\n*.bin filter=lfs\n"
    files = {".gitattributes": attributes, "a": b"$Id$\n$Format:%H$\n", "secret": b"s\r\n", "x.bin": b"\0\n"}
    exported(repo.commit(files))
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files} == files


def test_names_that_are_no_utf8_keep_their_bytes(tmp_path, repo, exported):
    exported(repo.commit({b"caf\xe9/\xff.txt": b"x", "ünï".encode(): b"y"}))
    written = [os.fsencode(path) for path in found(tmp_path / "out")]
    assert written == [b"caf\xe9", b"caf\xe9/\xff.txt", "ünï".encode()]


@pytest.mark.parametrize("path", [b"../up", b".git/config"])
def test_a_strange_path_is_refused_and_nothing_is_written(tmp_path, repo, exported, path):
    with pytest.raises(UsageError, match="the tree is refused"):
        exported(repo.commit({path: b"x", "fine": b"y"}))
    assert [path.name for path in tmp_path.iterdir()] == ["up.git"]


def test_a_slash_in_a_name_cannot_smuggle_a_path(repo, exported):
    blob = repo.put("blob", b"x")
    with pytest.raises(UsageError, match="'a/b' holds a slash"):
        exported(repo.commit(repo.tree(("100644", b"a/b", blob))))


def test_a_tree_that_folds_into_billions_of_files_is_refused(repo, exported, monkeypatch):
    monkeypatch.setattr("builder.source.git.MOST_ENTRIES", 2_000)
    tree = repo.put("blob", b"x")
    tree = repo.tree(*(("100644", b"f%d" % number, tree) for number in range(10)))
    for _ in range(9):
        tree = repo.tree(*(("40000", b"d%d" % number, tree) for number in range(10)))
    with pytest.raises(UsageError, match="more than 2,000 entries"):
        exported(repo.commit(tree))


def test_a_name_that_is_a_link_and_a_folder_is_refused(repo, exported):
    link, below = repo.put("blob", b"elsewhere"), repo.files({b"x": ("100644", b"x")})
    with pytest.raises(UsageError, match="file and a folder"):
        exported(repo.commit(repo.tree(("120000", b"a", link), ("40000", b"a", below))))


def test_a_name_that_stands_twice_is_refused(repo, exported):
    one, two = repo.put("blob", b"1"), repo.put("blob", b"2")
    with pytest.raises(UsageError, match="stands twice"):
        exported(repo.commit(repo.tree(("100644", b"a", one), ("100644", b"a", two))))


def test_a_link_out_of_the_tree_is_refused_and_nothing_is_written(tmp_path, repo, exported):
    with pytest.raises(UsageError, match=r"'l' is a link out of the tree, to 'a/up/\.\./x'"):
        exported(repo.commit({"a/f": b"x", "a/up": ("120000", b".."), "l": ("120000", b"a/up/../x")}))
    assert [path.name for path in tmp_path.iterdir()] == ["up.git"]


def test_a_link_inside_the_tree_is_kept_as_it_is(tmp_path, repo, exported):
    links = {"a/l": b"../b//f", "dangling": b"nowhere", "self": b"self", "a/b": b"./l"}
    exported(repo.commit({"b/f": b"x"} | {path: ("120000", target) for path, target in links.items()}))
    # not Path.readlink, which tidies
    assert {path: os.readlink(tmp_path / "out" / path).encode() for path in links} == links  # noqa: PTH115
    assert {int((tmp_path / "out" / path).lstat().st_mtime) for path in links} == {TIME}


def test_a_submodule_is_refused_by_path_and_address_without_its_credentials(repo, exported):
    modules = b'[submodule "cutlass"]\n\tpath = third/cutlass\n\turl = https://me:secret@example.com/cutlass\n'
    with pytest.raises(UsageError) as refused:
        exported(repo.commit({".gitmodules": modules, "third/cutlass": ("160000", b"1" * 40)}))
    assert "third/cutlass (from https://***@example.com/cutlass)" in refused.value.message


def test_a_submodule_that_no_file_describes_is_refused_by_path(repo, exported):
    with pytest.raises(UsageError, match=r"third/x .*does not name"):
        exported(repo.commit({"third/x": ("160000", b"1" * 40)}))


def test_missing_blobs_are_all_named_before_anything_is_written(tmp_path, repo, exported):
    commit = repo.commit({"docs/a.png": b"a", "docs/b.png": b"b", "c": b"c"})
    lost = [git(repo.path, "rev-parse", f"{commit}:docs/{name}") for name in ("a.png", "b.png")]
    for sha in lost:
        repo.object(sha).unlink()
    with pytest.raises(UpstreamError) as refused:
        exported(commit)
    assert f"lacks 2 blobs (the contents of files) of {commit}" in refused.value.message
    assert f"docs/a.png ({lost[0]}), docs/b.png ({lost[1]})" in refused.value.message
    assert "--allow-missing" in refused.value.hint
    assert not (tmp_path / "out").exists()
    with pytest.raises(UpstreamError, match=r"lacks 1 blobs .*b\.png"):
        exported(commit, allow_missing=["docs/a*"])
    result = exported(commit, allow_missing=["docs/*"])
    assert result.missing == ("docs/a.png", "docs/b.png")
    assert found(tmp_path / "out") == ["c"]


def test_a_long_list_of_missing_blobs_is_cut(repo, exported):
    commit = repo.commit({b"f\xff%d" % number: b"%d" % number for number in range(30)})
    for number in range(30):
        repo.object(blob_sha(b"%d" % number)).unlink()
    with pytest.raises(UpstreamError, match=r"lacks 30 blobs.* and 20 more") as refused:
        exported(commit)
    assert r"f\xff10" in refused.value.message.encode().decode()


def test_a_damaged_blob_is_found_by_its_hash(tmp_path, repo, exported):
    commit = repo.commit({"a": b"right"})
    repo.put("blob", b"wrong", sha=blob_sha(b"right"))
    with pytest.raises(VerifyError, match="does not hash to its name"):
        exported(commit)
    assert not (tmp_path / "out").exists()


def test_a_damaged_tree_is_found_by_its_hash(repo, exported):
    commit = repo.commit({"sub/a": b"right"})
    damaged = git(repo.path, "rev-parse", f"{commit}:sub")
    repo.put("tree", b"100644 a\0" + bytes.fromhex(repo.put("blob", b"wrong")), sha=damaged)
    with pytest.raises(VerifyError, match=f"the tree {damaged} does not hash to its name"):
        exported(commit)


def test_a_damaged_commit_is_found_by_its_hash(repo, exported):
    commit = repo.commit({"a": b"right"})
    other = repo.commit({"a": b"wrong"})
    repo.object(commit).write_bytes(repo.object(other).read_bytes())
    with pytest.raises((VerifyError, UpstreamError)):
        exported(commit)


def test_a_large_blob_passes_in_pieces(tmp_path, repo, exported):
    content = os.urandom(1 << 16) * 50 + b"end"
    exported(repo.commit({"big": content}))
    assert (tmp_path / "out/big").read_bytes() == content


def test_a_target_that_holds_something_is_refused_and_left_alone(tmp_path, repo, exported):
    commit = repo.commit({"a": b"x"})
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("mine")
    with pytest.raises(UsageError, match="not an empty folder"):
        exported(commit)
    assert found(tmp_path / "out") == ["mine"]


def test_an_empty_target_is_taken(tmp_path, repo, exported):
    (tmp_path / "out").mkdir()
    exported(repo.commit({"a": b"x"}))
    assert found(tmp_path / "out") == ["a"]


def test_a_disk_that_refuses_is_a_fault_of_the_host_and_leaves_nothing(tmp_path, repo, exported, monkeypatch):
    commit = repo.commit({"a": b"x"})

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device", str(tmp_path / "out/a"))

    monkeypatch.setattr(os, "fchmod", full)
    with pytest.raises(HostError, match="No space left"):
        exported(commit)
    assert [path.name for path in tmp_path.iterdir()] == ["up.git"]


def test_an_empty_tree_is_an_empty_folder(tmp_path, repo, exported):
    exported(repo.commit({}))
    assert found(tmp_path / "out") == []


def test_a_commit_that_is_not_there_is_named(exported, repo):
    repo.commit({"a": b"x"})
    with pytest.raises(UpstreamError, match="has no commit 1234567890123456789012345678901234567890"):
        exported("1234567890" * 4)


@pytest.mark.parametrize("commit", ["HEAD", "refs/heads/main", "abc123", "A" * 40, "-" * 40, "1" * 41, "1" * 40 + "\n"])
def test_only_whole_commits_are_exported(exported, repo, commit):
    repo.commit({"a": b"x"})
    with pytest.raises(UsageError, match="40 lower-case hexadecimal digits"):
        exported(commit)


def test_replacement_refs_do_not_change_what_is_exported(tmp_path, repo, exported):
    commit, other = repo.commit({"a": b"right"}), repo.commit({"a": b"replaced"})
    git(repo.path, "replace", commit, other)
    exported(commit)
    assert (tmp_path / "out/a").read_bytes() == b"right"


def test_the_dirty_state_of_a_work_tree_is_exported_on_its_commit(tmp_path):
    folder = tmp_path / "work"
    head = work_tree(folder, {"a": b"old\n", "gone": b"x", ".gitignore": b"*.o\n", "run": b"#!/bin/sh\n"})
    (folder / "a").write_bytes(b"new\n")
    (folder / "gone").unlink()
    (folder / "sub").mkdir()
    (folder / "sub/new").write_bytes(b"untracked\n")
    (folder / "x.o").write_bytes(b"ignored")
    (folder / "run").chmod(0o755)
    before = contents(folder)
    source = open_source(str(folder), cache=tmp_path / "cache", dirty=True)
    assert (source.resolve("HEAD"), source.dirty) == (head, True)
    export(source, head, tmp_path / "out")
    assert (tmp_path / "out/a").read_bytes() == b"new\n"
    assert found(tmp_path / "out") == [".gitignore", "a", "run", "sub", "sub/new"]
    assert os.access(tmp_path / "out/run", os.X_OK)
    assert contents(folder) == before


def test_a_change_in_the_very_second_of_the_last_add_is_seen(tmp_path):
    folder = tmp_path / "work"
    head = work_tree(folder, {"a": b"old\n", "b": b"x"})
    git(folder, "config", "core.trustctime", "false")
    os.utime(folder / "a", (TIME, TIME))
    git(folder, "update-index", "--refresh")
    (folder / "a").write_bytes(b"new\n")
    for path in (folder / "a", folder / ".git/index"):
        os.utime(path, (TIME, TIME))
    (folder / "b").write_bytes(b"longer")
    export(open_source(str(folder), cache=tmp_path / "cache", dirty=True), head, tmp_path / "out")
    assert (tmp_path / "out/a").read_bytes() == b"new\n"


def test_a_clean_work_tree_is_not_called_dirty_though_dirt_is_allowed(tmp_path):
    head = work_tree(tmp_path / "work", {"a": b"x"})
    source = open_source(str(tmp_path / "work"), cache=tmp_path / "cache", dirty=True)
    export(source, head, tmp_path / "out")
    assert source.dirty is False


def test_dirt_belongs_to_no_other_commit_than_head(tmp_path):
    first = work_tree(tmp_path / "work", {"a": b"x"})
    (tmp_path / "work/a").write_bytes(b"y")
    git(tmp_path / "work", "commit", "-qam", "second")
    (tmp_path / "work/a").write_bytes(b"z")
    source = open_source(str(tmp_path / "work"), cache=tmp_path / "cache", dirty=True)
    with pytest.raises(UsageError, match="changes on top of"):
        export(source, first, tmp_path / "out")
