import json
import os
import signal
import sys

import pytest
from checkpoint_twin import BASE, PLUS, cache, dumps, tiny

from builder.checkpoint import fix, inspect, undo
from builder.checkpoint.backup import BACKUP, held
from builder.errors import HostError, UsageError

SECOND = ("quantization_config.json", "quantize_config.json")
MINUS = {"-:.*mtp.*": {}}


CHANGES = {
    "open",
    *(f"os.{name}" for name in ("rename", "mkdir", "rmdir", "remove", "link", "symlink", "chmod", "chown", "utime")),
}


def state(folder):
    """Return every entry below a folder: a link's text, or a file's bytes, mode and time."""
    return {
        str(path.relative_to(folder)): path.readlink()
        if path.is_symlink()
        else (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def without_backup(entries):
    return {name: entry for name, entry in entries.items() if not name.startswith(BACKUP)}


def read_by_engines(folder):
    """Return the rules that vLLM and SGLang read: config.json's."""
    return json.loads((folder / "config.json").read_text())["quantization_config"]["dynamic"]


@pytest.fixture
def quick(monkeypatch):
    """Bring nothing to the disk: these children are killed, the machine is not."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def killed_at(step, action, root):
    """Run an action in a child that is killed before its n-th change of the file system; return whether it was."""
    child = os.fork()
    if child == 0:
        left = [step]

        def hook(event, arguments):
            reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if (event in CHANGES and not reads) and any(str(root) in str(argument) for argument in arguments):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            action()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_in_place_all_files_are_replaced_and_undo_brings_every_byte_back(tmp_path):
    folder = tiny(tmp_path / "m", PLUS, files=SECOND)
    before = state(folder)
    done = fix(folder, in_place=True)
    assert done.as_json() == {
        "output": str(folder),
        "changed": ["config.json", *SECOND],
        "rules_before": 2,
        "rules_after": 1,
        "verdict": "fine",
    }
    back = undo(folder)
    assert (back.changed, back.rules_before, back.rules_after, back.verdict) == (
        ("config.json", *SECOND),
        1,
        2,
        "rewrite",
    )
    assert state(folder) == before


def test_in_place_a_second_run_changes_nothing(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    fix(folder, in_place=True)
    before = state(folder)
    assert fix(folder, in_place=True).changed == ()
    assert state(folder) == before


def test_links_into_a_cache_are_replaced_and_never_written_through(tmp_path):
    revision, other = cache(tmp_path / "hub")
    before, shared = state(revision), state(other)
    blobs = state(tmp_path / "hub" / "blobs")
    assert fix(revision, in_place=True).verdict == "fine"
    assert not (revision / "config.json").is_symlink()
    assert (state(other), state(tmp_path / "hub" / "blobs")) == (shared, blobs)
    assert inspect(other).verdict == "rewrite"
    undo(revision)
    assert state(revision) == before


def test_a_hard_link_elsewhere_keeps_its_bytes(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    (tmp_path / "same.json").hardlink_to(folder / "config.json")
    text = (folder / "config.json").read_bytes()
    fix(folder, in_place=True)
    assert (tmp_path / "same.json").read_bytes() == text


def test_no_engine_takes_the_backup_for_a_config(tmp_path):
    folder = tiny(tmp_path / "m", PLUS, files=SECOND)
    names = set(folder.rglob("*.json"))
    fix(folder, in_place=True)
    assert set(folder.rglob("*.json")) == names
    assert {path.name for path in folder.iterdir() if path.name.startswith(".")} == {BACKUP}
    assert not [path for path in (folder / BACKUP).iterdir() if path.name.endswith((".json", ".safetensors"))]


def test_the_backup_does_not_travel_into_a_new_folder(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    fix(folder, in_place=True)
    output = fix(folder, output=tmp_path / "out").output
    assert not (output / BACKUP).exists()


def test_without_a_backup_there_is_nothing_to_undo(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    with pytest.raises(UsageError, match="nothing was changed in place"):
        undo(folder)
    with pytest.raises(UsageError, match="is no folder"):
        undo(tmp_path / "gone")
    with pytest.raises(UsageError, match="is no folder"):
        fix(tmp_path / "gone", in_place=True)


def test_undo_does_not_lose_what_was_changed_since(tmp_path):
    folder = tiny(tmp_path / "m", PLUS, files=SECOND)
    fix(folder, in_place=True)
    (folder / "config.json").write_text("{}")
    before = state(folder)
    with pytest.raises(UsageError, match="changed since") as caught:
        undo(folder)
    assert BACKUP in caught.value.hint
    assert state(folder) == before
    (folder / "config.json").unlink()
    with pytest.raises(UsageError, match="changed since"):
        undo(folder)


def test_undo_works_although_the_weights_are_gone(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    before = (folder / "config.json").read_bytes()
    fix(folder, in_place=True)
    (folder / "model.safetensors").unlink()
    assert undo(folder).verdict == "unknown"
    assert (folder / "config.json").read_bytes() == before


def test_a_config_that_came_anew_is_fixed_anew_and_the_old_backup_is_kept_aside(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    first = (folder / "config.json").read_bytes()
    fix(folder, in_place=True)
    newer = dumps({"quantization_config": {**BASE, "dynamic": PLUS, "note": "newer"}})
    (folder / "config.json").write_text(newer)
    fix(folder, in_place=True)
    assert (folder / f"{BACKUP}.1" / "config.json.original").read_bytes() == first
    undo(folder)
    assert (folder / "config.json").read_text() == newer


def test_two_runs_at_once_do_not_mix(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    with held(folder), pytest.raises(HostError, match="another run"):
        fix(folder, in_place=True)


def test_a_folder_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    folder = tiny(tmp_path / "m", PLUS)
    monkeypatch.setattr(
        "pathlib.Path.mkdir", lambda *_, **__: (_ for _ in ()).throw(OSError(30, "Read-only file system", str(folder)))
    )
    with pytest.raises(HostError, match="Read-only file system"):
        fix(folder, in_place=True)


def test_a_folder_of_another_owner_is_told_with_what_to_do(tmp_path, monkeypatch):
    folder = tiny(tmp_path / "m", PLUS)
    denied = OSError(13, "Permission denied", str(folder))
    monkeypatch.setattr("pathlib.Path.mkdir", lambda *_, **__: (_ for _ in ()).throw(denied))
    with pytest.raises(HostError, match="Permission denied") as caught:
        fix(folder, in_place=True)
    assert "--user" in caught.value.hint


@pytest.mark.usefixtures("quick")
def test_in_place_killed_at_any_moment_the_checkpoint_loads_as_before_or_fixed(tmp_path):
    steps = states = 0
    for step in range(1, 200):
        folder = tmp_path / str(step) / "hub"
        revision, other = cache(folder)
        (revision / "quantize_config.json").write_text(dumps({**BASE, "dynamic": PLUS}))
        before, shared = state(revision), state(other)
        if not killed_at(step, lambda at=revision: fix(at, in_place=True), revision):
            break
        steps += 1
        assert list(read_by_engines(revision)) in (list(PLUS), list(MINUS))
        # config.json, which engines read, comes last
        assert inspect(revision).verdict == ("fine" if list(read_by_engines(revision)) == list(MINUS) else "rewrite")
        assert state(other) == shared
        states += without_backup(state(revision)) != before
        if step % 2:  # on we go
            assert fix(revision, in_place=True).verdict == "fine"
        if (revision / BACKUP).exists():
            undo(revision)
        assert without_backup(state(revision)) == before
        assert fix(revision, in_place=True).verdict == "fine"
        undo(revision)
        assert state(revision) == before
    assert steps > 20
    assert states == 2  # it was killed between the files, too


@pytest.mark.usefixtures("quick")
def test_undo_killed_at_any_moment_can_be_finished(tmp_path):
    steps = 0
    for step in range(1, 200):
        folder = tiny(tmp_path / str(step), PLUS, files=SECOND)
        before = state(folder)
        fix(folder, in_place=True)
        if not killed_at(step, lambda at=folder: undo(at), folder):
            break
        steps += 1
        assert list(read_by_engines(folder)) in (list(PLUS), list(MINUS))
        if step % 2 and (folder / BACKUP).exists():
            undo(folder)
            assert state(folder) == before
        else:
            assert fix(folder, in_place=True).verdict == "fine"
            undo(folder)
            assert state(folder) == before
        assert not list(folder.glob(f"{BACKUP}*"))
    assert steps >= 8


@pytest.mark.usefixtures("quick")
def test_a_new_folder_is_whole_or_absent_when_the_run_is_killed(tmp_path):
    steps = 0
    for step in range(1, 200):
        folder = tiny(tmp_path / str(step) / "m", PLUS, files=SECOND)
        (folder / "assets").mkdir()
        before, output = state(folder), folder.parent / "m-mtp-fixed"
        if not killed_at(step, lambda at=folder: fix(at, link="copy"), folder.parent):
            break
        steps += 1
        assert state(folder) == before
        assert not output.exists() or inspect(output).verdict == "fine"
        assert fix(folder, link="copy").verdict == "fine"
        assert {path.name for path in folder.parent.iterdir()} == {"m", "m-mtp-fixed"}
    assert steps > 20
