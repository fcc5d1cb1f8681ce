"""The watchdog against real git on loopback: what moves a branch, and what keeps one from being asked."""

import contextlib
import http.server
import json
import os
import shutil
import socket
import threading
import time

import pytest
from source_repos import MAIN, git_daemon, http_server
from watch_project import Project, Upstream, told

from builder.errors import HostError, UsageError
from builder.watch.state import held, load_state, state_path
from builder.watch.words import as_text


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def up(tmp_path):
    made = Upstream(tmp_path / "served/up.git")
    made.commit("the beginning")
    made.repo.point("refs/heads/another", made.head)
    return made


@pytest.fixture
def daemon(up):
    with git_daemon(up.repo.path.parent) as server:
        yield server


@pytest.fixture
def project(tmp_path, up, daemon):
    made = Project(tmp_path, daemon.url("up.git"))
    made.pin(up.head)
    return made


@contextlib.contextmanager
def answering(door):
    """Serve HTTP with a handler's do_GET."""
    handler = type("Door", (http.server.BaseHTTPRequestHandler,), {"do_GET": door, "log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/up.git"
        finally:
            server.shutdown()
            thread.join()


def unknown(project, url, **options):
    """Watch a URL that cannot answer, within seconds, and return what is said; the memory must stay as it is."""
    before = load_state(project.settings.state, "mini")
    started = time.monotonic()
    if url:
        project.follow(url)
    result = project.watch(**options)
    assert time.monotonic() - started < 5
    after = load_state(project.settings.state, "mini")
    assert (result.exit_code, result.as_json()["state"], result.news) == (4, "unknown", ())
    assert after.attempts == before.attempts + 1
    assert after.last_error is not None
    kept = {"attempts", "last_error"}
    assert after.model_dump(exclude=kept) == before.model_dump(exclude=kept)
    return result.error


def test_nothing_new_ends_with_0_and_is_one_question(project, daemon):
    assert project.watch().exit_code == 0
    asked = daemon.connections
    result = project.watch()
    assert (result.exit_code, result.report.state, result.news) == (0, "same", ())
    assert daemon.connections == asked + 1


def test_one_new_commit_ends_with_10_and_is_told_once(project, up, daemon):
    project.watch()
    new = up.change("csrc/copy.hip", "void copy", "void  copy", title="a change")
    result = project.watch()
    assert result.exit_code == 10
    assert told(result) == [("commits", "1", new)]
    assert [(commit.sha, commit.title, commit.areas) for commit in result.report.commits] == [
        (new, "a change", ("patch targets", "kernels"))
    ]
    assert result.report.targets == ("csrc/copy.hip",)
    asked = daemon.connections
    again = project.watch()
    assert (again.exit_code, again.news, again.report) == (10, (), result.report)
    assert daemon.connections == asked + 1


def test_once_ends_with_0_when_an_earlier_run_has_told_it(project, up):
    up.idle()
    assert project.watch(once=True).exit_code == 10
    assert project.watch(once=True).exit_code == 0


def test_only_the_blobs_of_the_watched_files_are_fetched(project, up):
    up.idle()
    project.watch()
    mirror = next((project.settings.cache / "mirrors").glob("*.git"))
    from builder.source.git import Git

    kinds = Git(git_dir=mirror).run("cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").text.split()
    assert kinds.count("blob") == 3


def test_five_hundred_new_commits_are_counted_and_listed(project, up):
    for _ in range(500):
        up.idle()
    result = project.watch()
    assert (result.exit_code, result.report.ahead, len(result.report.commits)) == (10, 500, 500)
    assert len(as_text(result.report).splitlines()) < 40


def test_a_force_push_is_told_with_old_and_new_head_and_no_count(project, up):
    old = up.head
    project.watch()
    new = up.commit("another beginning", parents=[])
    result = project.watch()
    report = result.report
    assert (result.exit_code, report.state, report.rewritten, report.ahead) == (11, "rewritten", True, None)
    assert told(result) == [("rewritten", MAIN, new)]
    assert old in result.news[0].text
    assert new in result.news[0].text
    assert project.watch().news == ()
    up.idle()
    assert [kind for kind, _, _ in told(project.watch())] == ["commits"]


def test_a_force_push_behind_the_pin_is_told_even_though_the_pin_is_still_in_the_branch(project, up):
    base = up.head
    up.idle()
    project.watch()
    up.head = base
    up.commit("instead")
    result = project.watch()
    assert (result.exit_code, result.report.state, result.report.ahead) == (11, "rewritten", 1)
    assert [kind for kind, _, _ in told(result)] == ["rewritten"]


def test_a_deleted_branch_is_told_once_and_so_is_its_return(project, up):
    project.watch()
    up.delete()
    result = project.watch()
    assert (result.exit_code, result.report.state, result.report.head) == (11, "gone", None)
    assert told(result) == [("gone", MAIN, None)]
    assert project.watch().news == ()
    up.repo.point(MAIN, up.head)
    assert told(project.watch()) == [("back", MAIN, up.head)]


def test_similarly_named_branches_are_not_taken_for_the_branch(project, up):
    other = up.commit("other", parents=[], move=False, files={"a": "b"})
    for name in ("refs/heads/backup/main", "refs/heads/refs/heads/main", "refs/tags/main"):
        up.repo.point(name, other)
    assert project.watch().report.head == up.head
    up.delete()
    assert project.watch().report.state == "gone"


def test_a_renamed_default_branch_is_gone_with_a_hint_where_its_commit_is(project, up):
    project.watch()
    up.idle()
    project.watch()
    up.delete()
    up.repo.point("refs/heads/trunk", up.head)
    result = project.watch()
    assert (result.exit_code, result.report.state) == (11, "gone")
    assert result.report.hint == "renamed? refs/heads/trunk holds the commit that it held"


def test_a_name_that_is_near_is_a_hint_too(project, up):
    up.idle()
    project.watch()
    up.delete()
    up.repo.point("refs/heads/main2", up.commit("x", parents=[], move=False, files={"a": "b"}))
    assert project.watch().report.hint == "renamed? refs/heads/main2 has a name like it"


def test_an_empty_repository_is_unknown(project, up):
    project.watch()
    for ref in (MAIN, "refs/heads/another"):
        up.delete(ref)
    assert "shows no branch or tag at all" in unknown(project, None)


def test_titles_of_any_size_with_markup_and_an_author_of_no_encoding_are_one_printable_line(project, up):
    project.watch()
    title = b"\x1b[31m@you `x` <b>|a|</b> \xff\xe9 " + b"long " * 100_000
    up.commit(title)
    tree = up.repo.files({b"a": ("100644", b"b")})
    who = b"J\xf6rg <j@example.com> 1760000000 +0000"
    raw = b"tree %s\nparent %s\nauthor %s\ncommitter %s\n\nodd\n" % (tree.encode(), up.head.encode(), who, who)
    up.head = up.repo.put("commit", raw)
    up.repo.point(MAIN, up.head)
    report = project.watch().report
    assert report.commits[0].title == "odd"
    assert len(report.commits[1].title) == 200
    assert report.commits[1].title.isprintable()


def test_a_server_that_accepts_and_says_nothing_is_unknown(project):
    project.watch()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"git://127.0.0.1:{silent.getsockname()[1]}/up.git"
        assert "did not end within 1 s" in unknown(project, url, timeout=1.0)


def test_a_server_that_closes_half_way_is_unknown(project, up, daemon):
    project.watch()
    up.idle()
    daemon.stall_after = 60
    daemon.released.set()
    assert "what is new there is unknown" in unknown(project, None)


def test_nobody_there_is_unknown(project):
    project.watch()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "what is new there is unknown" in unknown(project, f"git://127.0.0.1:{port}/up.git")


def test_an_html_page_is_unknown(project, up):
    project.watch()
    with http_server(up.repo.path.parent, page=b"<!DOCTYPE html><html>log in</html>") as server:
        assert unknown(project, server.url("up.git", "http"))


def test_a_redirect_to_the_repository_is_followed_and_one_to_a_login_page_is_unknown(project, up):
    project.watch()

    def login(self):
        page = b"<html>log in</html>"
        self.send_response(302 if self.path.startswith("/up") else 200)
        self.send_header("Location", "/login")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    with http_server(up.repo.path.parent) as server, answering(login) as page:

        def moved(self):
            self.send_response(301)
            self.send_header("Location", server.url(self.path.lstrip("/"), "http"))
            self.send_header("Content-Length", "0")
            self.end_headers()

        with answering(moved) as address:
            assert project.watch(source=address).exit_code == 0
        assert unknown(project, page)


def test_a_question_for_a_password_is_unknown_and_nobody_is_asked(project):
    project.watch()

    def locked(self):
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="a"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    with answering(locked) as address:
        assert "terminal prompts disabled" in unknown(project, address)


def test_a_server_without_filters_gives_everything_and_the_report_says_so(project, up, daemon):
    daemon.filters = False
    up.change("smoke_engine/launch.py", "tile = 16", "tile = 8")
    result = project.watch()
    assert (result.exit_code, result.report.transfer) == (11, "plain")
    assert "the server has no filters" in as_text(result.report)


def test_a_disk_that_is_full_for_the_mirror_ends_with_3_and_the_memory_stays(project, up, tmp_path, monkeypatch):
    project.watch()
    up.idle()
    before = load_state(project.settings.state, "mini")
    real = shutil.which("git")
    full = "echo 'fatal: write error: No space left on device' >&2; exit 128"
    script = f'#!/bin/sh\ncase "$*" in *" fetch "*) {full};; esac\nexec {real} "$@"\n'
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text(script)
    (tmp_path / "bin/git").chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        with pytest.raises(HostError, match="No space left on device") as trouble:
            project.watch()
    assert trouble.value.exit_code == 3
    assert load_state(project.settings.state, "mini") == before
    assert [kind for kind, _, _ in told(project.watch())] == ["commits"]


def test_a_second_run_at_once_ends_with_3_and_changes_nothing(project):
    with held(project.settings.state, "mini"), pytest.raises(HostError, match="another run holds") as trouble:
        project.watch()
    assert trouble.value.exit_code == 3
    assert not state_path(project.settings.state, "mini").exists()


def test_a_state_of_a_newer_version_ends_with_2_and_is_left_alone(project):
    project.watch()
    path = state_path(project.settings.state, "mini")
    newer = json.dumps({**json.loads(path.read_text()), "format": 2, "more": True})
    path.write_text(newer)
    with pytest.raises(UsageError, match="a newer version wrote it"):
        project.watch()
    assert path.read_text() == newer


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 1}', '{"format": 1, "stack": "mini", "attempts": -1}'])
def test_a_damaged_state_ends_with_2_and_is_left_alone(project, damage):
    project.watch()
    path = state_path(project.settings.state, "mini")
    path.write_text(damage)
    with pytest.raises(UsageError):
        project.watch()
    assert path.read_text() == damage
