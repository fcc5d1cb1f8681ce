"""Files, processes, settings and the screen: what everything stands on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from builder import files, process
from builder.console import Console, clean, table
from builder.errors import BuildError, HostError, ToolError, UsageError
from builder.settings import load_settings, proxies


def test_a_file_is_replaced_whole_and_keeps_no_temporary_beside_it(tmp_path):
    path = tmp_path / "deep" / "file"
    files.write_atomic(path, "one")
    files.write_atomic(path, "two")
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_failed_write_leaves_the_old_bytes(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write_atomic(path, "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HostError, match="No space left"):
        files.write_atomic(path, "new")
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_beyond_its_bound_is_refused(tmp_path):
    path = tmp_path / "big"
    path.write_bytes(b"x" * 11)
    with pytest.raises(UsageError, match="larger than"):
        files.read_bytes(path, limit=10)


def test_a_file_that_is_no_utf8_is_refused_with_the_byte(tmp_path):
    path = tmp_path / "latin"
    path.write_bytes(b"ab\xff")
    with pytest.raises(UsageError, match="byte 2"):
        files.read_text(path)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../b", "a\0b", "a\\b"])
def test_a_path_that_leaves_its_folder_is_refused(path):
    with pytest.raises(UsageError, match="does not stay inside"):
        files.inside(path)


def test_a_fresh_folder_takes_the_place_of_the_old_one(tmp_path):
    target = tmp_path / "context"
    for content in ("one", "two"):
        with files.fresh_folder(target) as folder:
            (folder / "file").write_text(content)
    assert (target / "file").read_text() == "two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["context"]


def test_a_fresh_folder_that_fails_leaves_the_old_one(tmp_path):
    target = tmp_path / "context"
    with files.fresh_folder(target) as folder:
        (folder / "file").write_text("one")
    with pytest.raises(OSError, match="missing"), files.fresh_folder(target) as folder:
        (folder / "missing" / "file").write_text("two")
    assert (target / "file").read_text() == "one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["context"]


def test_a_kill_between_the_two_renames_is_mended_by_the_next_run(tmp_path):
    target = tmp_path / "context"
    with files.fresh_folder(target) as folder:
        (folder / "file").write_text("one")
    target.rename(tmp_path / ".context.old")
    with pytest.raises(RuntimeError), files.fresh_folder(target):
        raise RuntimeError
    assert (target / "file").read_text() == "one"


def test_a_lock_is_held_against_another_process_and_freed_by_its_death(tmp_path):
    path = tmp_path / "lock"
    script = (
        "import fcntl,sys,signal; f=open(sys.argv[1],'a'); fcntl.flock(f,2); print('held',flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(HostError, match="another run holds"), files.locked(path, wait=False):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with files.locked(path, wait=False):
        assert path.exists()


def test_a_missing_program_is_named():
    with pytest.raises(HostError, match="no-such-program is not installed"):
        process.run(["no-such-program"], timeout=5)


def test_a_failed_program_shows_command_status_and_last_lines():
    with pytest.raises(BuildError) as caught:
        process.run([sys.executable, "-c", "import sys; sys.exit('boom')"], timeout=10, failure=BuildError)
    assert "ended with status 1" in caught.value.message
    assert caught.value.message.endswith("boom")


def test_a_program_that_hangs_is_killed():
    with pytest.raises(ToolError, match="did not end within"):
        process.run([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.3)


def test_a_stream_hands_over_both_outputs_in_order():
    lines = []
    script = "import sys; print('a', flush=True); print('b', file=sys.stderr, flush=True); print('c'); sys.exit(3)"
    done = process.stream([sys.executable, "-c", script], timeout=10, on_line=lines.append)
    assert (lines, done.returncode, done.stdout) == (["a", "b", "c"], 3, "a\nb\nc")


def test_a_stream_that_hangs_is_killed():
    with pytest.raises(ToolError, match="did not end within"):
        process.stream([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.3, on_line=print)


def test_settings_come_from_the_file_and_the_variable_wins(tmp_path):
    (tmp_path / "gfx1100.local.yaml").write_text("jobs: 3\ncache_dir: /var/cache/x\n")
    settings = load_settings(tmp_path, {"HOME": "/home/u", "GFX1100_JOBS": "5"})
    assert (settings.jobs, settings.cache_dir) == (5, "/var/cache/x")
    assert settings.state == Path("/home/u/.local/state/gfx1100")


def test_an_unknown_setting_is_answered_with_the_nearest(tmp_path):
    (tmp_path / "gfx1100.local.yaml").write_text("registri: x\n")
    with pytest.raises(UsageError, match="did you mean 'registry'"):
        load_settings(tmp_path, {"HOME": "/home/u"})


def test_jobs_must_be_a_whole_number(tmp_path):
    with pytest.raises(UsageError, match="GFX1100_JOBS must be a whole number"):
        load_settings(tmp_path, {"HOME": "/home/u", "GFX1100_JOBS": "many"})


def test_the_bundle_that_the_host_names_is_taken_without_being_asked(tmp_path):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("")
    assert load_settings(tmp_path, {"HOME": "/h", "PIP_CERT": str(bundle)}).ca_bundle == str(bundle)


def test_a_bundle_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="ca_bundle names /nowhere"):
        load_settings(tmp_path, {"HOME": "/h", "GFX1100_CA_BUNDLE": "/nowhere"})


def test_proxies_are_found_under_both_spellings():
    assert proxies({"HTTPS_PROXY": "http://p:1", "no_proxy": "x"}) == {"https_proxy": "http://p:1", "no_proxy": "x"}


def test_a_strangers_words_cannot_steer_the_terminal():
    assert clean("a\x1b[31mb\r\n\u202ec") == "a\ufffd[31mb\ufffd\n\ufffdc"


def test_json_results_stand_alone_on_stdout(capsys):
    console = Console(as_json=True)
    console.step("working")
    console.result({"a": 1}, "text")
    console.finish()
    out, err = capsys.readouterr()
    assert out == '{\n  "a": 1\n}\n'
    assert "working" in err


def test_details_are_for_those_who_ask(capsys):
    Console().detail("quiet")
    Console(verbose=True).detail("loud")
    assert capsys.readouterr().err == "loud\n"


def test_a_table_is_aligned():
    assert table(["a", "b"], [["long", 1], ["x", 22]]) == "a     b\nlong  1\nx     22"


def test_a_folder_that_cannot_be_made_is_an_error_of_the_host_with_path_and_reason(tmp_path):
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "folder" / "target"
    with pytest.raises(HostError, match=f"{place.parent}.*: Not a directory"), files.fresh_folder(place):
        pass
    with pytest.raises(HostError, match=f"{place}.*: Not a directory"), files.locked(place):
        pass


def test_a_fresh_folder_that_cannot_take_its_place_is_an_error_of_the_host(tmp_path):
    (tmp_path / "target").mkdir()

    def swap():
        with files.fresh_folder(tmp_path / "target"):
            (tmp_path / ".target.old").mkdir()
            (tmp_path / ".target.old" / "stray").write_text("")

    with pytest.raises(HostError, match=r"target could not be written: Directory not empty"):
        swap()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".target.old", "target"]


def test_an_unknown_variable_is_named_and_answered_with_the_nearest(tmp_path):
    with pytest.raises(UsageError) as caught:
        load_settings(tmp_path, {"HOME": "/home/u", "GFX1100_REGISTRI": "x"})
    assert "GFX1100_REGISTRI" in caught.value.message
    assert "did you mean 'GFX1100_REGISTRY'?" in caught.value.message
    assert "gfx1100.local.yaml" not in caught.value.message


@pytest.mark.parametrize("key", ["state_dir", "cache_dir"])
def test_a_folder_setting_that_names_a_file_is_refused(tmp_path, key):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=f"{key} names .*file, which is no folder"):
        load_settings(tmp_path, {"HOME": "/home/u", f"GFX1100_{key.upper()}": str(tmp_path / "file")})


def test_no_job_at_all_is_refused_in_the_file_as_in_the_variable(tmp_path):
    (tmp_path / "gfx1100.local.yaml").write_text("jobs: 0\n")
    with pytest.raises(UsageError, match=r"gfx1100\.local\.yaml:1: jobs: .*greater than or equal to 1"):
        load_settings(tmp_path, {"HOME": "/home/u"})
    (tmp_path / "gfx1100.local.yaml").unlink()
    with pytest.raises(UsageError, match="GFX1100_JOBS must be a whole number of at least 1, found '0'"):
        load_settings(tmp_path, {"HOME": "/home/u", "GFX1100_JOBS": "0"})
