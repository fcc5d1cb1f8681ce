"""What the watchdog remembers and tells: state, event log, messages, timers, workflow, the command itself."""

import errno
import json
import os
import subprocess
import sys
import types
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from watch_project import START, Project, Upstream, told

from builder import cli
from builder.errors import HostError, UpstreamError, UsageError
from builder.models.stack import load_stack
from builder.settings import load_settings
from builder.watch.outcome import Result, worst
from builder.watch.run import acknowledge, status, watch_all
from builder.watch.state import held, load_state, state_path
from builder.watch.timers import render_timers
from builder.watch.words import as_markdown, as_text, code, compare_link, plain

ROOT = Path(__file__).parents[2]


@pytest.fixture
def up(tmp_path):
    made = Upstream(tmp_path / "up.git")
    made.base = made.commit("the beginning")
    return made


@pytest.fixture
def project(tmp_path, up):
    made = Project(tmp_path, str(up.repo.path))
    made.pin(up.head)
    return made


@pytest.fixture
def apprise(monkeypatch):
    """Return the messages that a stand-in for Apprise was given; it fails while ``works`` is False."""
    sent = types.SimpleNamespace(messages=[], works=True)

    class Apprise:
        def add(self, url):
            return url.startswith("json://")

        def notify(self, **message):
            sent.messages.append(message)
            return sent.works

    module = types.SimpleNamespace(Apprise=Apprise, NotifyFormat=types.SimpleNamespace(TEXT="text"))
    monkeypatch.setitem(sys.modules, "apprise", module)
    return sent


def events(project):
    path = project.settings.state / "watch/events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def test_without_a_pin_the_first_look_tells_the_head_and_tries_the_series(tmp_path, up):
    project = Project(tmp_path / "another", str(up.repo.path))
    result = project.watch()
    assert (result.exit_code, result.report.pinned, result.report.state, result.news) == (10, None, "new", ())
    assert "nothing is pinned yet" in as_text(result.report)
    up.idle()
    assert [kind for kind, _, _ in told(project.watch())] == ["commits"]


def test_a_patch_that_is_broken_from_the_start_is_told_once_with_its_commit(tmp_path, up):
    guilty = up.change("smoke_engine/launch.py", "tile = 16", "tile = 8")
    project = Project(tmp_path / "another", str(up.repo.path))
    assert told(project.watch()) == [("broken", "tile", guilty)]
    assert project.watch().news == ()


def test_without_a_pin_what_changes_between_two_looks_is_told_once_and_not_taken_back(tmp_path, up):
    project = Project(tmp_path / "another", str(up.repo.path))
    project.watch()
    up.change("requirements/common.txt", "2.11.0", "2.12.0")
    guilty = up.change("smoke_engine/launch.py", "tile = 16", "tile = 8")
    assert told(project.watch()) == [
        ("commits", "2", up.head),
        ("broken", "tile", guilty),
        ("change", "torch", up.head),
    ]
    up.idle()
    result = project.watch()
    assert told(result) == [("commits", "1", up.head)]
    assert result.report.broken[0].broken_by == guilty


def test_a_named_pin_is_compared_instead_of_the_locks(project, up):
    new = up.idle()
    assert project.watch(pin=new).report.state == "same"
    with pytest.raises(UsageError, match="40 lower-case"):
        project.watch(pin="abc")


def remembered(project):
    return {path: path.read_bytes() for path in (project.settings.state / "watch").glob("*.json*")}


def test_a_look_at_another_upstream_leaves_no_trace_in_what_is_remembered_of_the_stack(project, up, tmp_path):
    other = Upstream(tmp_path / "other.git")
    pin = other.commit("another engine", files={"docs/readme.md": "other\n"})
    other.change("smoke_engine/launch.py", "tile = 16", "tile = 8")
    assert project.watch().exit_code == 0
    before = remembered(project)
    found = project.watch(source=str(other.repo.path), pin=pin, environ={"GITHUB_TOKEN": "x"})
    assert (found.exit_code, found.news, found.told, found.report.rewritten) == (11, (), (), False)
    assert project.watch(source="file:///nowhere/at-all.git").exit_code == 4
    assert project.watch(ref="refs/heads/nowhere").exit_code == 11
    assert remembered(project) == before
    again = project.watch()
    assert (again.exit_code, again.news) == (0, ())


def test_what_is_remembered_of_the_stack_does_not_change_a_look_at_another_upstream(project, up, tmp_path):
    other = Upstream(tmp_path / "other.git")
    pin = other.commit("another engine", files={"docs/readme.md": "other\n"})
    project.watch()
    acknowledge(project.settings, "mini")
    (project.settings.state / "watch/mini.json").write_text("damaged")
    with held(project.settings.state, "mini"):
        found = project.watch(source=str(other.repo.path), pin=pin)
    assert (found.exit_code, found.report.state, found.acknowledged) == (0, "same", False)


@pytest.mark.parametrize("options", [{"issue": True}, {"bump": True}])
def test_another_upstream_has_no_issue_and_moves_no_pin(project, up, options):
    with pytest.raises(UsageError, match="the stack's own upstream"):
        project.watch(pin=up.base, **options)


def test_a_changed_series_is_tried_again_at_the_same_head(project, up):
    project.watch()
    tile = project.root / "patches/mini/tile.yaml"
    tile.write_text(tile.read_text().replace("tile = 16", "tile = 17"))
    result = project.watch()
    assert (result.exit_code, [patch.id for patch in result.report.broken]) == (11, ["tile"])


def test_an_acknowledged_head_ends_with_0_until_the_next_one(project, up):
    with pytest.raises(UsageError, match="has not been watched yet"):
        acknowledge(project.settings, "mini")
    up.change("smoke_engine/launch.py", "tile = 16", "tile = 8")
    assert project.watch().exit_code == 11
    acknowledge(project.settings, "mini")
    assert project.watch().exit_code == 0
    up.idle()
    assert project.watch().exit_code == 11


def test_an_acknowledged_deletion_ends_with_0_until_the_branch_is_back(project, up):
    up.delete()
    assert project.watch().exit_code == 11
    acknowledge(project.settings, "mini")
    assert project.watch().exit_code == 0
    up.repo.point("refs/heads/main", up.head)
    up.idle()
    assert project.watch().exit_code == 10


def test_status_fails_when_the_last_answer_is_older_than_two_days_missing_or_in_the_future(project):
    with pytest.raises(UpstreamError, match="never been watched"):
        status(project.settings, "mini", now=START)
    project.watch(now=START)
    assert status(project.settings, "mini", now=START + timedelta(days=2)).last_ok == START.isoformat()
    with pytest.raises(UpstreamError, match=r"2\.1 days ago") as trouble:
        status(project.settings, "mini", now=START + timedelta(days=2.1))
    assert trouble.value.exit_code == 4
    with pytest.raises(UpstreamError, match="this clock was changed"):
        status(project.settings, "mini", now=START - timedelta(days=1))


def test_status_names_the_last_error_and_failed_runs_are_counted_until_one_goes_well(project):
    project.watch(now=START)
    url = load_stack(project.root, "mini").source.repository
    project.follow("file:///nowhere/at-all.git")
    for _ in range(3):
        project.watch(now=START + timedelta(days=3))
    project.follow(url)
    assert load_state(project.settings.state, "mini").attempts == 3
    with pytest.raises(UpstreamError, match=r"3\.0 days ago; the last error: file:///nowhere"):
        status(project.settings, "mini", now=START + timedelta(days=3))
    project.watch(now=START + timedelta(days=3))
    state = load_state(project.settings.state, "mini")
    assert (state.attempts, state.last_error) == (0, None)


def test_a_head_is_first_seen_once(project, up):
    for day in range(3):
        project.watch(day=day)
    up.idle()
    project.watch(day=3)
    sightings = load_state(project.settings.state, "mini").sightings
    assert [(sighting.head, sighting.at[:10]) for sighting in sightings] == [
        (up.base, "2026-01-01"),
        (up.head, "2026-01-04"),
    ]


def test_a_branch_that_was_gone_is_compared_with_what_it_held_before(project, up):
    project.watch()
    up.delete()
    project.watch()
    up.idle()
    assert [kind for kind, _, _ in told(project.watch())] == ["back", "commits"]


def test_what_changed_is_not_taken_back_when_the_pin_moves_past_it(project, up):
    up.change("requirements/common.txt", "2.11.0", "2.12.0")
    assert [kind for kind, _, _ in told(project.watch())] == ["commits", "change"]
    project.pin(up.head)
    assert [kind for kind, _, _ in told(project.watch())] == ["caught up"]


def test_a_clock_that_goes_back_changes_nothing_of_what_is_told(project, up):
    up.idle()
    assert len(project.watch(now=START).news) == 1
    assert project.watch(now=START - timedelta(days=400)).news == ()


def test_a_full_disk_ends_with_3_leaves_the_memory_and_the_news_are_told_later(project, up, monkeypatch):
    project.watch()
    before = state_path(project.settings.state, "mini").read_bytes()
    up.idle()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(HostError, match="No space left on device") as trouble:
            project.watch()
    assert trouble.value.exit_code == 3
    assert state_path(project.settings.state, "mini").read_bytes() == before
    assert len(project.watch().news) == 1


def test_the_event_log_holds_a_line_of_json_for_each_piece_of_news(project, up):
    up.idle()
    project.watch()
    up.change("smoke_engine/launch.py", "tile = 16", "tile = 8", title='break\u2028 "it"')
    project.watch()
    assert [(event["stack"], event["kind"], event["about"]) for event in events(project)] == [
        ("mini", "commits", "1"),
        ("mini", "commits", "1"),
        ("mini", "broken", "tile"),
    ]
    assert events(project)[2]["head"] == up.head
    assert events(project)[2]["time"] == START.isoformat()


def test_a_line_that_broke_off_stays_by_itself(project, up):
    log = project.settings.state / "watch/events.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"cut')
    up.idle()
    project.watch()
    assert json.loads(log.read_text().splitlines()[1])["kind"] == "commits"


def test_messages_that_could_not_be_sent_are_sent_by_the_next_run(project, up, apprise, monkeypatch):
    monkeypatch.setattr(project, "settings", project.settings.model_copy(update={"notify": "json://one json://two"}))
    up.idle()
    apprise.works = False
    result = project.watch()
    assert (result.exit_code, "could not be sent" in result.error) == (4, True)
    apprise.works = True
    up.change("smoke_engine/launch.py", "tile = 16", "tile = 8", title="@channel <!here> http://x.y *b*")
    assert project.watch().told == ("sent 3 lines",)
    body = apprise.messages[-1]["body"]
    assert len(body.splitlines()) == 3
    for part in ("@channel", "<!here>", "http://", "*b*"):
        assert part not in body
    count = len(apprise.messages)
    project.watch()
    assert len(apprise.messages) == count


def test_a_url_of_no_kind_and_a_missing_apprise_are_told_without_the_secret(project, up, apprise, monkeypatch):
    monkeypatch.setattr(project, "settings", project.settings.model_copy(update={"notify": "json://a what://SECRET"}))
    up.idle()
    result = project.watch()
    assert (result.exit_code, "URL 2" in result.error, "SECRET" in str(result)) == (2, True, False)
    monkeypatch.setitem(sys.modules, "apprise", None)
    assert "apprise is not installed" in project.watch().error


def test_any_text_becomes_one_line_of_code_or_of_plain_words():
    assert code("a `b`\n|c| \x1b[31m") == "`a 'b' ¦c¦ \N{REPLACEMENT CHARACTER}[31m`"
    assert code("  ") == "`(empty)`"
    assert plain("@all <b>\n[x](https://y) a_b -> c") == "@\u200ball (b> ·x·(https:\u200b//y) a_b -> c"


def test_the_compare_link_is_made_for_a_forge_and_never_of_strangers_words(project, up):
    up.idle()
    report = project.watch().report
    link = f"https://example.org/a/b/compare/{up.base}...{up.head}"
    assert compare_link(report, "https://example.org/a/b.git") == link
    assert f"[compare]({link})" in as_markdown(report, repository="https://example.org/a/b")
    assert compare_link(report, "file:///a)") is None


def test_stacks_are_watched_side_by_side_and_one_that_fails_does_not_stop_the_others():
    def one(name):
        if name == "bad":
            raise UsageError("no")
        return Result(stack=name, exit_code=10)

    results = watch_all(["bad", "good"], one)
    assert [(result.stack, result.exit_code, result.error) for result in results] == [
        ("bad", 2, "no"),
        ("good", 10, ""),
    ]


@pytest.mark.parametrize(
    ("codes", "code"), [([], 0), ([0, 10], 10), ([10, 4], 4), ([4, 11, 10], 11), ([11, 3], 3), ([0, 0], 0)]
)
def test_the_exit_code_of_several_runs_is_the_worst(codes, code):
    assert worst(codes) == code


@pytest.fixture
def run(project, monkeypatch, capsys):
    """Return a function that runs the command in this process: exit code and stdout."""
    monkeypatch.setenv("GFX1100_STATE_DIR", project.settings.state_dir)
    monkeypatch.setenv("GFX1100_CACHE_DIR", project.settings.cache_dir)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gfx1100", "--root", str(project.root), *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        return code, capsys.readouterr().out

    return call


def test_the_command_prints_one_document_with_the_keys_that_scripts_rely_on(run, up):
    up.change("smoke_engine/launch.py", "tile = 16", "tile = 8", title="smaller")
    code_, out = run("--json", "watch", "mini")
    document = json.loads(out)
    assert code_ == 11
    assert (document["stack"], document["pinned"], document["head"]) == ("mini", up.base, up.head)
    assert (document["state"], document["ahead"], document["rewritten"], document["error"]) == ("new", 1, False, None)
    assert document["targets"] == ["smoke_engine/launch.py"]
    assert document["commits"][0]["title"] == "smaller"
    assert set(document["commits"][0]) >= {"sha", "title", "author_date"}
    patches = {patch["id"]: (patch["outcome"], patch["broken_by"]) for patch in document["patches"]}
    assert patches == {"tile": ("failed", up.head), "store": ("applied", None), "limit": ("applied", None)}


def test_the_command_says_unknown_in_its_document(run):
    code_, out = run("--json", "watch", "mini", "--source", "file:///nowhere/at-all.git")
    document = json.loads(out)
    assert (code_, document["state"], document["head"], document["commits"]) == (4, "unknown", None, [])
    error = document["error"]
    assert (set(error), error["code"], error["class"]) == ({"code", "class", "message", "hint"}, 4, "UpstreamError")
    assert "unknown" in error["message"]


def test_the_command_takes_note_shows_status_markdown_and_all_stacks(run, up):
    up.idle()
    assert run("watch", "mini", "--once")[0] == 10
    assert run("watch", "mini", "--ack")[0] == 0
    assert run("watch", "--all")[0] == 0
    code_, out = run("--json", "watch", "--all", "--status")
    assert (code_, json.loads(out)["stacks"][0]["acknowledged"]) == (0, up.head)
    code_, out = run("watch", "mini", "--markdown")
    assert (code_, out.splitlines()[0]) == (
        0,
        f"**`mini: 1 new commit on refs/heads/main: {up.base[:12]} -> {up.head[:12]}; the series applies`**",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("mini", "--all"),
        ("--all", "--pin", "a" * 40),
        ("mini", "--pr"),
        ("mini", "--ref", "main"),
        ("mini", "--ack", "--pin", "a" * 40),
    ],
)
def test_a_wrong_command_line_ends_with_2(run, arguments):
    assert run("watch", *arguments)[0] == 2


def test_the_timer_is_what_systemd_takes_and_the_cron_line_is_one_line(tmp_path):
    checkout = tmp_path / "a b 50%"
    (checkout / "templates").parent.mkdir()
    (checkout / "templates").symlink_to(ROOT / "templates")
    state = tmp_path / 'st"a$te %h'
    environ = {"HOME": str(tmp_path), "GFX1100_STATE_DIR": str(state), "OTHER": "x"}
    files = render_timers(checkout, program=[sys.executable, "-m", "builder"], environ=environ)
    service = files["watchdog.service"]
    escaped = str(state).replace('"', '\\"').replace("%", "%%")
    assert f'Environment="GFX1100_STATE_DIR={escaped}"' in service
    assert f'--root "{checkout}%" watch' in service
    assert "OTHER" not in files["watchdog.service"]
    assert "Persistent=true" in files["watchdog.timer"]
    [comment, line] = files["watchdog.cron"].splitlines()
    minute, _, *days, command = line.split(" ", 5)
    assert (comment[0], int(minute) % 15 != 0, days) == ("#", True, ["*", "*", "*"])
    done = subprocess.run(["sh", "-n"], input=command.replace("\\%", "%"), text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(UsageError, match="line break"):
        render_timers(checkout, program=["a\nb"], environ={"HOME": "/"})


def test_the_cron_line_is_silent_for_10_and_prints_for_11(tmp_path):
    program = tmp_path / "program"
    for code_, shown in ((0, ""), (10, ""), (11, "what it said\n"), (4, "what it said\n")):
        program.write_text(f"#!/bin/sh\necho what it said\nexit {code_}\n")
        program.chmod(0o755)
        files = render_timers(ROOT, program=[str(program)], environ={"HOME": str(tmp_path / "h%ome")})
        command = files["watchdog.cron"].splitlines()[1].split(" ", 5)[5].replace("\\%", "%")
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert done.stdout == shown


def test_the_workflow_runs_daily_at_an_odd_minute_one_at_a_time_with_the_least_permissions():
    workflow = yaml.safe_load((ROOT / ".github/workflows/watchdog.yml").read_text())
    minute, hour, *rest = workflow[True]["schedule"][0]["cron"].split()
    assert (int(minute) % 2, hour.isdigit(), rest) == (1, True, ["*", "*", "*"])
    assert workflow["permissions"] == {}
    assert workflow["concurrency"]["cancel-in-progress"] is False
    job = workflow["jobs"]["watch"]
    assert job["permissions"] == {"contents": "read", "issues": "write"}
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert [len(name.partition("@")[2]) for name in used] == [40, 40, 40]


def test_the_setting_notify_is_known():
    assert load_settings(ROOT, {"HOME": "/x", "GFX1100_NOTIFY": "json://a"}).notify == "json://a"
