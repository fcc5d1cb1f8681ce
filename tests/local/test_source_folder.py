from __future__ import annotations

import os

import pytest
from source_repos import MAIN, git, paths_of

from builder.errors import UsageError
from builder.source.folder import repository_of
from builder.source.repository import open_source
from builder.source.tree import export

# of these very files, on any machine at any time
COMMIT = "25eb78387c794ff37e0c9ff41823060574dedf4d"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "engine"
    (folder / "pkg").mkdir(parents=True)
    (folder / "setup.py").write_bytes(b"print('hi')\r\n")
    (folder / "pkg/run").write_bytes(b"#!/bin/sh\n")
    (folder / "pkg/run").chmod(0o755)
    (folder / "PKG").mkdir()
    (folder / "PKG/data").write_bytes(b"another folder than pkg\n")
    (folder / "link").symlink_to("./pkg//run")
    (folder / ".gitattributes").write_bytes(b"* text=auto eol=lf\n")
    (folder / ".gitignore").write_bytes(b"*\n")
    return folder


def commit_of(folder, cache, ref=MAIN):
    return open_source(str(repository_of(folder, cache=cache, ref=ref)), cache=cache).resolve(ref)


def test_the_same_files_give_the_same_commit_everywhere_and_at_any_time(tmp_path, folder):
    assert commit_of(folder, tmp_path / "cache") == COMMIT


def test_the_users_git_does_not_change_the_commit(tmp_path, folder, monkeypatch):
    (tmp_path / "templates/hooks").mkdir(parents=True)
    hook = tmp_path / "templates/hooks/reference-transaction"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    (tmp_path / "config").write_text(
        "[user]\nname = Me\nemail = me@example.com\n[core]\nautocrlf = true\nignoreCase = true\n"
        f"hooksPath = {tmp_path}/templates/hooks\n[commit]\ngpgSign = true\n[gpg]\nprogram = false\n"
        f"[init]\ntemplateDir = {tmp_path}/templates\ndefaultBranch = other\ndefaultObjectFormat = sha256\n"
        "[i18n]\ncommitEncoding = latin1\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Me")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2001-01-01T00:00:00Z")
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    assert commit_of(folder, tmp_path / "cache") == COMMIT


def test_the_files_come_out_as_they_went_in(tmp_path, folder):
    repository = repository_of(folder, cache=tmp_path / "cache", ref=MAIN)
    source = open_source(str(repository), cache=tmp_path / "cache")
    result = export(source, source.resolve(MAIN), tmp_path / "out")
    assert (tmp_path / "out/setup.py").read_bytes() == b"print('hi')\r\n"
    assert os.access(tmp_path / "out/pkg/run", os.X_OK)
    assert not os.access(tmp_path / "out/setup.py", os.X_OK)
    assert os.readlink(tmp_path / "out/link") == "./pkg//run"  # noqa: PTH115 - not tidied
    assert sum(not path.is_dir() or path.is_symlink() for path in (tmp_path / "out").rglob("*")) == 6
    assert result.commit_time.year == 2020
    assert git(repository, "fsck", "--strict") == ""


def test_what_tools_leave_behind_is_not_taken(tmp_path, folder):
    for name in (
        "__pycache__/x.pyc",
        "pkg/__pycache__/y.pyc",
        "pkg/_C.abi3.so",
        "pkg/_version.py",
        "build/x",
        "a.egg-info/x",
        ".git/HEAD",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("left behind")
    (folder / "empty").mkdir()
    assert commit_of(folder, tmp_path / "cache") == COMMIT


def test_the_second_time_the_same_repository_is_found_and_not_made_again(tmp_path, folder):
    first = repository_of(folder, cache=tmp_path / "cache", ref=MAIN)
    inode = first.stat().st_ino
    assert repository_of(folder, cache=tmp_path / "cache", ref=MAIN) == first
    assert first.stat().st_ino == inode


@pytest.mark.parametrize("change", ["content", "mode", "name", "link"])
def test_another_content_mode_name_or_link_is_another_commit(tmp_path, folder, change):
    repository_of(folder, cache=tmp_path / "cache", ref=MAIN)
    if change == "content":
        (folder / "setup.py").write_bytes(b"print('ho')\r\n")
    elif change == "mode":
        (folder / "setup.py").chmod(0o755)
    elif change == "name":
        (folder / "setup.py").rename(folder / "setup2.py")
    else:
        (folder / "link").unlink()
        (folder / "link").symlink_to("pkg/run")
    assert commit_of(folder, tmp_path / "cache") != COMMIT


def test_permissions_beside_the_executable_bit_do_not_matter(tmp_path, folder):
    (folder / "setup.py").chmod(0o600)
    (folder / "pkg/run").chmod(0o700)
    os.utime(folder / "setup.py", (1, 1))
    assert commit_of(folder, tmp_path / "cache") == COMMIT


def test_the_branch_has_the_name_that_is_asked_for(tmp_path, folder):
    assert commit_of(folder, tmp_path / "cache", "refs/heads/smoke/v1") == COMMIT
    repository = repository_of(folder, cache=tmp_path / "cache", ref="refs/heads/smoke/v1")
    assert git(repository, "for-each-ref", "--format=%(refname)") == "refs/heads/smoke/v1"
    assert git(repository, "rev-parse", "HEAD") == COMMIT


def test_odd_names_keep_their_bytes(tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    names = [b'a "quoted" name', b"caf\xe9", b" space ", "ünï".encode()]
    for name in names:
        (folder / os.fsdecode(name)).write_bytes(name)
    repository = repository_of(folder, cache=tmp_path / "cache", ref=MAIN)
    source = open_source(str(repository), cache=tmp_path)
    commit = source.resolve(MAIN)
    assert paths_of(source, commit) == sorted(names)


def test_a_folder_without_files_or_no_folder_is_refused(tmp_path):
    (tmp_path / "empty/build").mkdir(parents=True)
    with pytest.raises(UsageError, match="holds no file"):
        repository_of(tmp_path / "empty", cache=tmp_path / "cache", ref=MAIN)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        repository_of(tmp_path / "nowhere", cache=tmp_path / "cache", ref=MAIN)


def test_what_git_cannot_keep_is_refused(tmp_path, folder):
    os.mkfifo(folder / "pipe")
    with pytest.raises(UsageError, match="pipe is no file, folder or link"):
        repository_of(folder, cache=tmp_path / "cache", ref=MAIN)


def test_a_name_that_no_source_needs_is_refused(tmp_path, folder):
    (folder / "a\nb").touch()
    with pytest.raises(UsageError, match="control character"):
        repository_of(folder, cache=tmp_path / "cache", ref=MAIN)


def test_a_ref_that_git_refuses_leaves_nothing(tmp_path, folder):
    with pytest.raises(UsageError):
        repository_of(folder, cache=tmp_path / "cache", ref="refs/heads/a..b")
    assert not any(path.is_dir() for path in (tmp_path / "cache/folders").iterdir())
