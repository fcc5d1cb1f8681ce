"""A kill at any moment leaves the tree as it was or wholly patched, at once and not only after the next run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from made_patches import EDIT, LAUNCH, Facts, apply, diff, fingerprint, outcomes, patch, series, tree

from builder.errors import HostError
from builder.patching import swap

CREATE = "--- /dev/null\n+++ b/tools/new/run.sh\n@@ -0,0 +1 @@\n+exec engine\n"
DELETE = "--- a/NOTES\n+++ /dev/null\n@@ -1 +0,0 @@\n-slow\n"
PROGRAM = """
import os, shutil, signal, sys
from pathlib import Path
from builder.patching.apply import Facts, apply
from builder.patching.series import load_series
from made_patches import fingerprint

root = Path(sys.argv[1])
loaded, facts, tree = load_series(root / "patches"), Facts(), root / "tree"
old, new, states = fingerprint(tree), fingerprint(root / "patched"), []

def until(number):
    # every operation on files, folders and processes is an audit event of the interpreter; at one of them we die
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

for number in range(1, 10_000):
    child = os.fork()
    if child == 0:
        until(number)
        apply(loaded, tree, facts)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    now = fingerprint(tree)
    states.append("old" if now == old else "new" if now == new else f"torn at {number}: {sorted(now)}")
    if status == 0:
        break
    if states[-1] == "new":
        shutil.rmtree(tree)
        shutil.copytree(root / "original", tree, symlinks=True)
print(len(states), *sorted(set(states)), states[-1], sorted(path.name for path in root.iterdir()), sep="|")
"""


@pytest.fixture
def source(tmp_path):
    files = {"engine/launch.py": LAUNCH, "NOTES": "slow\n", "docs/deep/a.md": "a\n", "docs/b.md": "b\n"}
    folder = tree(tmp_path / "tree", files)
    (folder / "docs" / "link").symlink_to("b.md")
    return folder


@pytest.fixture
def loaded(tmp_path):
    patch(tmp_path / "patches", "a.yaml", id="a")
    diff(tmp_path / "patches", CREATE, "b.patch", id="b")
    diff(tmp_path / "patches", DELETE, "c.patch", id="c")
    return series(tmp_path / "patches")


def test_a_kill_at_every_single_operation_leaves_the_tree_old_or_new(tmp_path, source, loaded):
    for copy in ("original", "patched"):
        shutil.copytree(source, tmp_path / copy, symlinks=True)
    assert outcomes(apply(loaded, tmp_path / "patched", Facts())) == ["applied"] * 3

    told = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2]}:{Path(__file__).parent}"},
        check=True,
    ).stdout.strip()

    count, *states, last, names = told.split("|")
    assert int(count) > 40
    assert states == ["new", "old"]
    assert last == "new"
    assert names == "['original', 'patched', 'patches', 'tree']"


def test_a_kill_from_outside_leaves_a_whole_tree_and_the_next_run_clears_what_it_left(tmp_path, source, loaded):
    before = fingerprint(source)
    program = (
        "import sys; from pathlib import Path; from builder.patching import swap\n"
        "def wait(*paths): print('ready', flush=True); sys.stdin.read()\n"
        "swap._exchange = wait\n"
        "from builder.patching.apply import Facts, apply; from builder.patching.series import load_series\n"
        "apply(load_series(Path(sys.argv[1]) / 'patches'), Path(sys.argv[1]) / 'tree', Facts())\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout.readline() == b"ready\n"
        (left,) = [path for path in tmp_path.iterdir() if path.name.startswith(".tree.gfx1100-")]
        assert outcomes(apply(loaded, source, Facts())) == ["applied"] * 3
        assert left.exists(), "the folder of a run that lives is not taken away"
        child.send_signal(signal.SIGKILL)
    after = fingerprint(source)
    patch(
        tmp_path / "patches",
        "d.yaml",
        id="d",
        edits=[{**EDIT, "anchor": "segments = 8", "replacement": "segments = 9"}],
    )

    assert outcomes(apply(series(tmp_path / "patches"), source, Facts())) == ["present"] * 3 + ["applied"]
    assert not left.exists()
    assert before != after != fingerprint(source)


def test_only_the_folder_that_holds_the_files_is_exchanged(tmp_path, source):
    patch(tmp_path / "patches")
    inode, engine = source.stat().st_ino, (source / "engine").stat().st_ino

    apply(series(tmp_path / "patches"), source, Facts())

    assert source.stat().st_ino == inode
    assert (source / "engine").stat().st_ino != engine


def test_a_process_that_stands_in_the_tree_stands_in_the_new_one_afterwards(source, loaded, monkeypatch):
    monkeypatch.chdir(source / "docs")

    apply(loaded, source, Facts())

    assert Path.cwd() == source / "docs"
    assert sorted(path.name for path in Path().iterdir()) == ["b.md", "deep", "link"]


def test_a_tree_that_is_named_by_a_link_is_patched_where_it_lies(tmp_path, source, loaded):
    (tmp_path / "name").symlink_to(source)

    apply(loaded, tmp_path / "name", Facts())

    assert (tmp_path / "name").is_symlink()
    assert "tile = 32" in (source / "engine/launch.py").read_text()


def test_a_file_that_changes_while_the_copy_is_made_stops_everything(source, loaded, monkeypatch):
    link = swap._link

    def meanwhile(*folders, **rest):
        link(*folders, **rest)
        (source / "engine/launch.py").write_text("mine\n")

    monkeypatch.setattr(swap, "_link", meanwhile)

    with pytest.raises(HostError, match=r"launch.py changed while the series was applied; the tree is as it was"):
        apply(loaded, source, Facts())

    assert (source / "engine/launch.py").read_text() == "mine\n"
    assert (source / "NOTES").exists()
    assert [path.name for path in source.parent.iterdir() if path.name.startswith(".")] == []


def test_a_file_that_comes_into_the_tree_while_it_is_exchanged_is_kept_and_told(tmp_path, source, loaded, monkeypatch):
    exchange = swap._exchange

    def meanwhile(one, other):
        (source / "docs/deep/new.md").write_text("written in an editor\n")
        (source / "docs/b.md").unlink()
        (source / "docs/b.md").write_text("saved by rename\n")
        exchange(one, other)

    monkeypatch.setattr(swap, "_exchange", meanwhile)

    with pytest.raises(HostError, match="2 files that came into the tree meanwhile lie in") as trouble:
        apply(loaded, source, Facts())

    (left,) = [path for path in tmp_path.iterdir() if path.name.startswith(".tree.gfx1100-")]
    assert str(left) in trouble.value.message
    kept = {path.name: path.read_text() for path in left.rglob("*") if path.is_file()}
    assert kept == {"new.md": "written in an editor\n", "b.md": "saved by rename\n"}


def test_a_file_system_that_cannot_exchange_is_named_and_nothing_is_left(tmp_path, source, loaded, monkeypatch):
    before = fingerprint(source)

    def refuse(one, other):
        raise OSError(22, "it cannot be exchanged in one step (Invalid argument)", str(one))

    monkeypatch.setattr(swap, "_exchange", refuse)

    with pytest.raises(HostError, match=r"cannot be exchanged in one step .Invalid argument.; the tree is as it was"):
        apply(loaded, source, Facts())

    assert fingerprint(source) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["patches", "tree"]


def test_a_mount_point_is_refused_before_anything_is_copied(source, loaded, monkeypatch):
    before = fingerprint(source)
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(source))

    with pytest.raises(HostError, match="is a mount point, which cannot be exchanged in one step"):
        apply(loaded, source, Facts())

    assert fingerprint(source) == before


def test_folders_that_nobody_may_write_are_exchanged_and_taken_away_all_the_same(tmp_path, source, loaded):
    (source / "docs" / "deep").chmod(0o555)

    apply(loaded, source, Facts())

    assert (source / "docs/deep").stat().st_mode & 0o777 == 0o555
    assert sorted(path.name for path in tmp_path.iterdir()) == ["patches", "tree"]
