"""The build context: what is in it, what its hash covers, and what it refuses."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from builder.errors import PatchError, UsageError
from builder.files import sha256
from builder.models.lock import load_lock
from builder.models.stack import load_stack
from builder.settings import load_settings
from builder.stage.context import Origin, context_sha256, make_context

ROOT = Path(__file__).parents[2]


@pytest.fixture
def settings(tmp_path):
    return load_settings(ROOT, {"HOME": str(tmp_path / "home")})


def make(output, settings, **origin):
    return make_context(
        ROOT, load_stack(ROOT, "smoke"), load_lock(ROOT, "smoke"), output, origin=Origin(**origin), settings=settings
    )


def work_tree(folder):
    """Return a git work tree of the example engine."""
    shutil.copytree(ROOT / "examples" / "smoke-engine", folder, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    return folder


def test_two_runs_give_the_same_context(tmp_path, settings):
    one, two = make(tmp_path / "a", settings), make(tmp_path / "b", settings)
    assert one.context_sha256 == two.context_sha256
    assert one.dockerfile_sha256 == sha256((tmp_path / "a" / "Dockerfile").read_bytes())


def test_the_context_holds_the_patched_source_the_chain_and_nothing_else(tmp_path, settings):
    made = make(tmp_path / "context", settings)
    assert sorted(entry.name for entry in made.folder.iterdir()) == ["Dockerfile", "chain", "source", "tools"]
    assert "DEFAULT_MAX_TOKENS = 32" in (made.folder / "source" / "smoke_engine" / "defaults.py").read_text()
    manifest = json.loads((made.folder / "chain" / "manifest.json").read_text())
    assert manifest["commit"] == made.commit
    assert [patch["outcome"] for patch in manifest["patches"]] == ["applied"] * 3
    assert not list(made.folder.rglob(".git"))


def test_every_file_carries_the_commits_time_and_a_normal_mode(tmp_path, settings):
    made = make(tmp_path / "context", settings)
    paths = list(made.folder.rglob("*"))
    assert len({int(path.stat().st_mtime) for path in paths}) == 1
    assert {oct(path.stat().st_mode & 0o777) for path in paths} <= {"0o755", "0o644"}


@pytest.mark.parametrize("change", ["content", "mode", "name", "link"])
def test_the_hash_covers_content_mode_name_and_links(tmp_path, change):
    file = tmp_path / "folder" / "file"
    file.parent.mkdir()
    file.write_text("x")
    (file.parent / "link").symlink_to("file")
    before = context_sha256(tmp_path / "folder")[0]
    if change == "content":
        file.write_text("y")
    elif change == "mode":
        file.chmod(0o755)
    elif change == "name":
        file.rename(file.with_name("other"))
    else:
        (file.parent / "link").unlink()
        (file.parent / "link").symlink_to("elsewhere")
    assert context_sha256(tmp_path / "folder")[0] != before


def test_times_and_owners_do_not_enter_the_hash(tmp_path):
    file = tmp_path / "folder" / "file"
    file.parent.mkdir()
    file.write_text("x")
    before = context_sha256(tmp_path / "folder")
    os.utime(file, (1, 1))
    assert context_sha256(tmp_path / "folder") == before


def test_a_folder_that_is_no_context_is_not_replaced(tmp_path, settings):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("x")
    with pytest.raises(UsageError, match="holds something that is no build context"):
        make(precious, settings)
    assert (precious / "thesis.txt").read_text() == "x"


def test_an_earlier_context_is_replaced(tmp_path, settings):
    made = make(tmp_path / "context", settings)
    (made.folder / "stray").write_text("x")
    make(tmp_path / "context", settings)
    assert not (made.folder / "stray").exists()


def test_a_patch_that_fails_leaves_no_context(tmp_path, settings):
    tree = work_tree(tmp_path / "tree")
    (tree / "smoke_engine" / "defaults.py").write_text("DEFAULT_MAX_TOKENS = 99\n")
    with pytest.raises(PatchError, match="smoke-max-tokens"):
        make(tmp_path / "context", settings, location=str(tree), dirty=True)
    assert not (tmp_path / "context").exists()


def test_a_dirty_work_tree_is_refused_unless_asked_for_and_then_the_version_says_so(tmp_path, settings):
    tree = work_tree(tmp_path / "tree")
    (tree / "README.md").write_text("changed\n")
    with pytest.raises(UsageError, match="uncommitted"):
        make(tmp_path / "context", settings, location=str(tree), ref="refs/heads/main")
    made = make(tmp_path / "context", settings, location=str(tree), dirty=True)
    assert made.version.endswith(".dirty")
    assert (made.folder / "source" / "README.md").read_text() == "changed\n"


def test_a_local_patch_is_appended_and_enters_the_lock_of_the_image(tmp_path, settings):
    folder = tmp_path / "patches"
    folder.mkdir()
    (folder / "mine.yaml").write_text(
        "id: mine\ntitle: t\nwhy: w\norigin: o\nretire_when: never\n"
        "edits:\n  - {file: smoke_engine/defaults.py, anchor: KV_CACHE_TOKENS = 65536, "
        "replacement: KV_CACHE_TOKENS = 1024}\n"
        "proof:\n  - {text: KV_CACHE_TOKENS = 1024, file: smoke_engine/defaults.py}\n"
    )
    plain = make(tmp_path / "a", settings)
    made = make(tmp_path / "b", settings, patches=(folder,))
    assert made.patches[-1].id == "mine"
    assert "mine.yaml" in (made.folder / "chain" / "lock.yaml").read_text()
    assert made.dockerfile_sha256 != plain.dockerfile_sha256


def test_a_lock_without_a_commit_asks_to_be_resolved(tmp_path, settings):
    lock = load_lock(ROOT, "smoke").model_copy(update={"commit": "unresolved"})
    with pytest.raises(UsageError, match="unresolved entries: commit"):
        make_context(ROOT, load_stack(ROOT, "smoke"), lock, tmp_path / "context", origin=Origin(), settings=settings)
