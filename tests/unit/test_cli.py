"""The program: exit codes, JSON alone on stdout, help with an example, and a start that nobody waits for."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer.main
from fake_engine import FakeEngine

from builder import cli
from builder.cli.state import State, find_root
from builder.errors import HostError, UsageError

ROOT = Path(__file__).parents[2]
GROUP = typer.main.get_command(cli.app)
COMMANDS = {
    **{name: command for name, command in GROUP.commands.items() if not hasattr(command, "commands")},
    **{
        f"{name} {below}": command
        for name, group in GROUP.commands.items()
        for below, command in getattr(group, "commands", {}).items()
    },
}


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Return a function that runs the program in this process: exit code, stdout, stderr."""
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"GFX1100_{name}_DIR", str(tmp_path / name.lower()))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gfx1100", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_help_is_there_in_under_a_third_of_a_second():
    times = []
    for _ in range(3):
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "builder", "--help"], cwd=ROOT, capture_output=True, check=True)
        times.append(time.monotonic() - started)
    assert b"quickstart" in done.stdout
    assert min(times) < 0.3


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_an_example(name):
    assert "Example: gfx1100" in COMMANDS[name].help


def test_an_expected_error_is_words_on_stderr_and_its_exit_code(run):
    code, out, err = run("lock", "nothing", "--check")
    assert (code, out) == (2, "")
    assert err.startswith("error: there is no stack 'nothing'")


@pytest.mark.parametrize(
    "arguments",
    [["render", "", "--check"], ["watch", ""], ["watch", "", "--ack"], ["watch", "", "--status"], ["verify", ""]],
)
def test_an_empty_name_is_refused(run, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "name a" in err


def test_with_json_an_error_is_one_document_on_stdout(run):
    code, out, _ = run("--json", "lock", "nothing")
    error = json.loads(out)["error"]
    assert (code, error["code"], error["class"]) == (2, 2, "UsageError")


def test_a_wrong_option_ends_with_2(run):
    assert run("lock", "--nonsense")[0] == 2


def test_the_version_is_printed(run):
    assert run("--version")[:2] == (0, "0.1.0\n")


def test_lock_check_passes_on_the_committed_locks(run):
    assert run("lock", "smoke", "--check")[0] == 0


def test_render_check_passes_on_the_committed_files(run):
    assert run("render", "--all", "--check")[0] == 0


def test_render_needs_a_stack_or_all(run):
    assert run("render")[0] == 2


def test_stage_prints_the_keys_that_scripts_rely_on(run, tmp_path):
    code, out, _ = run("--json", "stage", "smoke", "-o", str(tmp_path / "context"))
    made = json.loads(out)
    assert code == 0
    assert {
        "stack",
        "commit",
        "version",
        "patches",
        "dockerfile_sha256",
        "context_sha256",
        "context_bytes",
        "seconds",
    } <= set(made)
    assert {"id", "outcome", "files"} == set(made["patches"][0])


def test_patches_are_listed_checked_and_applied(run, tmp_path):
    run("stage", "smoke", "-o", str(tmp_path / "context"))
    tree = tmp_path / "context" / "source"
    assert "smoke-store" in run("patches", "list", "smoke")[1]
    code, out, _ = run("--json", "patches", "check", "smoke", "--tree", str(tree))
    assert (code, {patch["outcome"] for patch in json.loads(out)["patches"]}) == (0, {"present"})
    assert run("patches", "apply", "smoke", "--tree", str(tree))[0] == 0


def test_a_patch_that_fails_ends_with_5_and_changes_nothing(run, tmp_path):
    run("stage", "smoke", "-o", str(tmp_path / "context"))
    file = tmp_path / "context" / "source" / "smoke_engine" / "defaults.py"
    file.write_text("nothing\n")
    code, out, err = run("patches", "apply", "smoke", "--tree", str(tmp_path / "context" / "source"))
    assert code == 5
    assert "smoke-max-tokens" in out + err
    assert file.read_text() == "nothing\n"


def test_a_folder_that_is_no_checkout_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="no checkout of this project"):
        find_root(tmp_path)


def test_the_checkout_is_found_from_any_folder_inside(monkeypatch):
    monkeypatch.chdir(ROOT / "tests" / "unit")
    assert find_root(None) == ROOT


def test_a_serve_without_a_record_says_what_to_run(run, tmp_path, monkeypatch):
    monkeypatch.setattr("builder.cli.state.State.records", property(lambda _: tmp_path / "records"))
    code, _, err = run("serve", "smoke", "--dry-run")
    assert code == 2
    assert "gfx1100 build smoke" in err


def test_a_publish_without_a_target_says_what_to_set(run):
    code, _, err = run("publish", "smoke")
    assert code == 2
    assert "--to" in err


def test_a_result_and_the_error_after_it_are_one_document(run, tmp_path):
    run("stage", "smoke", "-o", str(tmp_path / "context"))
    tree = tmp_path / "context" / "source"
    (tree / "smoke_engine" / "defaults.py").write_text("nothing\n")
    for command in ("check", "apply"):
        code, out, _ = run("--json", "patches", command, "smoke", "--tree", str(tree))
        document = json.loads(out)
        assert (code, document["error"]["code"], document["error"]["class"]) == (5, 5, "PatchError")
        assert set(document["error"]) == {"code", "class", "message", "hint"}
        assert "failed" in {patch["outcome"] for patch in document["patches"]}


def test_a_failed_verification_is_one_document(run, tmp_path):
    (tmp_path / "bad.so").write_bytes(b"\x7fELF nothing")
    code, out, _ = run("--json", "verify", str(tmp_path / "bad.so"))
    document = json.loads(out)
    assert (code, document["error"]["class"], document["verdict"]) == (7, "VerifyError", "failed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "nonsense"),
        (["--nonsense", "lock"], "--nonsense"),
        (["patches"], "command"),
        (["patches", "check", "smoke"], "--tree"),
        (["stage"], "STACK"),
        (["kernels", "smoke", "--jobs", "many"], "--jobs"),
        (["lock", "smoke", "--json"], "--json"),
        ([], "command"),
    ],
)
def test_with_json_a_wrong_command_line_is_the_same_document(run, words, said):
    code, out, err = run("--json", *words)
    error = json.loads(out)["error"]
    assert (code, error["code"], error["class"], err) == (2, 2, "UsageError", "")
    assert said in error["message"]
    assert "--help" in error["hint"]


def test_a_wrong_command_line_is_told_to_people_on_stderr(run):
    code, out, err = run("nonsense")
    assert (code, out) == (2, "")
    assert err.startswith("Usage: ")
    assert "Error: No such command 'nonsense'" in err


def test_json_in_a_linted_command_is_not_ours(run):
    code, out, err = run("lint", "--service", "x", "--nonsense", "--", "vllm", "serve", "--json")
    assert (code, out) == (2, "")
    assert "--nonsense" in err


@pytest.mark.parametrize("words", [["lint", "--rules"], ["--json", "lint", "--rules"], ["--version"], ["--help"]])
def test_a_full_or_closed_stdout_is_an_error_of_the_host(words):
    program = [sys.executable, "-m", "builder", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(program, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("error: ")) == (3, True)
    assert ("No space left" in done.stderr, "Traceback" in done.stderr) == (True, False)


def test_a_closed_stdout_is_an_error_of_the_host():
    line = f"{sys.executable} -m builder lint --rules >&-"
    done = subprocess.run(["/bin/sh", "-c", line], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "closed" in done.stderr, "Traceback" in done.stderr) == (3, True, False)


@pytest.mark.parametrize("words", [["lint", "--rules"], ["--json", "lint", "--rules"]])
def test_a_reader_that_leaves_is_no_error(words):
    reading, writing = os.pipe()
    os.close(reading)
    program = [sys.executable, "-m", "builder", *words]
    done = subprocess.run(program, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_current_folder_that_is_gone_or_unreadable_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(HostError, match="the current folder cannot be read: No such file"):
        find_root(None)
    monkeypatch.chdir(tmp_path)

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", denied)
    with pytest.raises(HostError, match=f"{tmp_path}.* cannot be read: Permission denied"):
        find_root(None)


def test_trouble_with_a_file_that_nobody_foresaw_names_it(run, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied", "/some/where")

    monkeypatch.setattr("builder.models.stack.stack_names", denied)
    code, out, _ = run("--json", "lock", "smoke", "--check")
    assert (code, json.loads(out)["error"]["message"]) == (3, "/some/where: Permission denied")


def test_a_cache_folder_that_is_a_file_is_an_error(run, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GFX1100_CACHE_DIR", str(tmp_path / "file"))
    code, _, err = run("stage", "smoke", "-o", str(tmp_path / "context"))
    assert (code, "cache_dir" in err, str(tmp_path / "file") in err) == (2, True, True)


def test_a_stage_is_built_with_the_options_of_a_whole_build(run, monkeypatch):
    jobs = []
    monkeypatch.setattr(State, "engine", FakeEngine())
    monkeypatch.setattr("builder.build.run.build_stage", lambda job, stage: jobs.append((job, stage)) or "pushed")
    code, out, _ = run("build", "smoke", "--stage", "native-build", "--no-cache", "--offline", "--jobs", "3")
    assert (code, out) == (0, "pushed\n")
    ((job, stage),) = jobs
    assert (stage, job.no_cache, job.offline, job.install, job.settings.jobs) == ("native-build", True, True, False, 3)


@pytest.mark.parametrize(
    ("name", "before", "code"),
    [
        (signal.SIGTERM, signal.SIG_DFL, 143),
        (signal.SIGHUP, signal.SIG_DFL, 129),
        (signal.SIGHUP, signal.SIG_IGN, 0),
    ],
)
def test_a_signal_ends_the_program_through_its_clean_up_unless_it_was_ignored(monkeypatch, name, before, code):
    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(name, before)
    cleaned = []

    def work(_):
        try:
            signal.raise_signal(name)
        finally:
            cleaned.append(name)
        return 0

    monkeypatch.setattr("builder.cli._run", work)
    monkeypatch.setattr("sys.argv", ["gfx1100"])
    try:
        with pytest.raises(SystemExit) as caught:
            cli.main()
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)
    assert (caught.value.code, cleaned) == (code, [name])


def test_a_bundle_into_a_folder_is_refused_before_anything_is_asked(run, tmp_path):
    code, _, err = run("bundle", "nothing-was-built", "-o", str(tmp_path))
    assert code == UsageError.exit_code
    assert f"{tmp_path} is a folder" in err
