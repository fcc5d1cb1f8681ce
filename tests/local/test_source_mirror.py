from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from source_repos import MAIN, Repo, git_daemon, http_server, paths_of

from builder.errors import UpstreamError
from builder.files import locked
from builder.source.git import GoneError
from builder.source.repository import open_source
from builder.source.tree import export


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def repo(tmp_path):
    return Repo(tmp_path / "served/up.git")


@pytest.fixture
def daemon(repo):
    with git_daemon(repo.path.parent) as server:
        yield server


@pytest.fixture
def source(tmp_path, daemon):
    return open_source(daemon.url("up.git"), cache=tmp_path / "cache", timeout=20)


@pytest.fixture
def nearby(tmp_path, repo):
    """The same protocol without a network, which spares each test some 50 ms."""
    return open_source(f"file://{repo.path}", cache=tmp_path / "cache")


def objects(source, *kinds):
    listed = source.git.run("cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").text.split()
    return sum(kind in kinds for kind in listed)


def test_a_commit_comes_without_blobs_and_once(repo, daemon, source):
    old = repo.commit({"a": b"1", "b/c": b"2"})
    new = repo.commit({"a": b"3", "b/c": b"2"}, old)
    assert source.mirror.transfer == ""
    assert source.resolve(MAIN) == new
    source.fetch(new)
    assert source.mirror.transfer == "blob-less"
    assert (objects(source, "commit"), objects(source, "tree"), objects(source, "blob")) == (2, 3, 0)
    asked = daemon.connections
    assert source.git.count(old, new) == 1
    assert source.is_ancestor(old, new)
    assert paths_of(source, new) == [b"a", b"b/c"]
    assert daemon.connections == asked


def test_a_ref_is_asked_for_in_one_round_trip(repo, daemon, source):
    commit = repo.commit({"a": b"1"})
    assert source.resolve(MAIN) == commit
    assert daemon.connections == 1


def test_only_the_files_that_are_read_are_fetched_in_one_transfer(repo, daemon, source):
    commit = repo.commit({f"f{number}": b"%d" % number for number in range(20)})
    source.fetch(commit)
    asked = daemon.connections
    assert source.read_files(commit, ["f1", "f2", "nothing"]) == {"f1": b"1", "f2": b"2"}
    assert objects(source, "blob") == 2
    assert daemon.connections == asked + 1
    source.read_files(commit, ["f1"])
    assert daemon.connections == asked + 1


def test_an_export_fetches_all_blobs_in_one_transfer_and_the_next_one_none(tmp_path, repo, daemon, source):
    files = {f"d{number}/f": b"%d" % number for number in range(20)}
    commit = repo.commit(files)
    source.fetch(commit)
    asked = daemon.connections
    export(source, commit, tmp_path / "one")
    export(source, commit, tmp_path / "two")
    assert daemon.connections == asked + 1
    for name in ("one", "two"):
        assert {path: (tmp_path / name / path).read_bytes() for path in files} == files


def test_an_update_brings_only_what_is_new(repo, nearby):
    old = repo.commit({"a": b"1"})
    repo.commit({"z": b"other"}, ref="refs/heads/other", title=b"other")
    nearby.fetch(old)
    new = repo.commit({"a": b"2"}, old)
    nearby.fetch(new)
    assert objects(nearby, "commit") == 2


def test_blobs_that_the_server_lacks_are_found_out_and_the_others_fetched(tmp_path, repo, source):
    commit = repo.commit({"docs/a": b"a", "docs/b": b"b", "c": b"c"})
    for content in (b"a", b"b"):
        repo.object(repo.put("blob", content)).unlink()
    result = export(source, commit, tmp_path / "out", allow_missing=["docs/*"])
    assert result.missing == ("docs/a", "docs/b")
    assert (tmp_path / "out/c").read_bytes() == b"c"


def test_a_server_without_filters_gives_everything_and_the_mirror_says_so(tmp_path, repo, daemon, source):
    daemon.filters = False
    commit = repo.commit({"a": b"1"})
    source.fetch(commit)
    assert source.mirror.transfer == "plain"
    asked = daemon.connections
    export(source, commit, tmp_path / "out")
    assert daemon.connections == asked


def test_similar_names_and_annotated_tags_of_a_remote(repo, nearby):
    right = repo.commit({"a": b"right"})
    for name in ("refs/heads/backup/main", "refs/heads/refs/heads/main", "refs/heads/refs/heads/gone"):
        repo.commit({"a": b"wrong"}, ref=name, title=b"wrong")
    repo.tag("v2", repo.tag("v1", right), kind="tag")
    assert nearby.resolve(MAIN) == right
    assert nearby.resolve("refs/tags/v2") == right
    with pytest.raises(GoneError, match="has no refs/heads/gone: it was deleted or renamed"):
        nearby.resolve("refs/heads/gone")


def test_a_deleted_branch_is_gone_and_its_commit_stays_in_the_mirror(repo, nearby):
    commit = repo.commit({"a": b"1"})
    nearby.fetch(commit)
    repo.point("refs/heads/other", commit)
    (repo.path / MAIN).unlink()
    with pytest.raises(GoneError):
        nearby.resolve(MAIN)
    assert paths_of(nearby, commit) == [b"a"]


def test_a_commit_that_the_server_does_not_have_is_gone(nearby, repo):
    repo.commit({"a": b"1"})
    with pytest.raises(GoneError, match="does not have the commit"):
        nearby.fetch("1" * 40)


def test_a_rewritten_branch_is_no_descendant(repo, nearby):
    old = repo.commit({"a": b"1"})
    nearby.fetch(old)
    new = repo.commit({"a": b"1"}, title=b"rewritten")
    assert not nearby.is_ancestor(old, new)
    assert not nearby.is_ancestor("1" * 40, new)  # of which the server has no copy any more


def test_a_repository_without_any_ref_is_unknown_not_gone(repo, nearby):
    assert repo.path.exists()
    with pytest.raises(UpstreamError, match="shows no branch or tag at all") as refused:
        nearby.resolve(MAIN)
    assert not isinstance(refused.value, GoneError)


def test_a_repository_that_is_not_there_is_unknown(tmp_path, daemon):
    source = open_source(daemon.url("other.git"), cache=tmp_path / "cache")
    with pytest.raises(UpstreamError, match="what is new there is unknown") as refused:
        source.resolve(MAIN)
    assert not isinstance(refused.value, GoneError)


def test_a_refused_connection_is_unknown(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        source = open_source(f"git://127.0.0.1:{unused.getsockname()[1]}/x", cache=tmp_path)
        with pytest.raises(UpstreamError, match="unknown"):
            source.resolve(MAIN)


@pytest.mark.parametrize("scheme", ["git", "http"])
def test_a_server_that_says_nothing_is_given_up(tmp_path, scheme):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = open_source(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/x", cache=tmp_path, timeout=0.08)
        begun = time.monotonic()
        with pytest.raises(UpstreamError, match="did not end within"):
            source.resolve(MAIN)
        assert time.monotonic() - begun < 10


@pytest.mark.parametrize("page", [b"<!DOCTYPE html>", b"<!DOCTYPE html>\n<title>Please\tlog in</title>\n" * 20])
def test_a_web_page_instead_of_git_is_unknown(tmp_path, page):
    with http_server(tmp_path, page=page) as server:
        source = open_source(server.url("x", "http"), cache=tmp_path)
        with pytest.raises(UpstreamError, match="unknown") as refused:
            source.resolve(MAIN)
    assert not isinstance(refused.value, GoneError)


def test_an_answer_that_is_no_list_of_refs_is_unknown(tmp_path, repo, source, monkeypatch):
    (tmp_path / "git").write_text("#!/bin/sh\nprintf '<html>\\n'\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UpstreamError, match="answered '<html>' where a commit and a ref are expected"):
        source.mirror.ask(MAIN)


def test_everything_works_over_http_too(tmp_path, repo):
    commit = repo.commit({"a": b"1", "b": b"2"})
    with http_server(repo.path.parent) as server:
        source = open_source(server.url("up.git", "http"), cache=tmp_path / "cache")
        assert source.resolve(MAIN) == commit
        export(source, commit, tmp_path / "out")
        assert [(tmp_path / "out" / name).read_bytes() for name in ("a", "b")] == [b"1", b"2"]
        assert source.mirror.transfer == "blob-less"


def test_a_server_of_the_old_protocol_gives_commits_that_are_no_branchs_head(tmp_path, repo):
    old = repo.commit({"a": b"1"})
    repo.commit({"a": b"2"}, old)
    with http_server(repo.path.parent) as server:
        server.filters = False
        source = open_source(server.url("up.git", "http"), cache=tmp_path / "cache")
        export(source, old, tmp_path / "out")
        assert (tmp_path / "out/a").read_bytes() == b"1"
        assert source.mirror.transfer == "plain"
        with pytest.raises(GoneError, match="does not have the commit"):
            source.fetch("1" * 40)


def test_the_users_choice_of_the_old_protocol_does_not_stop_single_files(repo, source, monkeypatch):
    for name, value in {"COUNT": "1", "KEY_0": "protocol.version", "VALUE_0": "0"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    assert source.read_files(repo.commit({"a": b"1", "b": b"2"}), ["a"]) == {"a": b"1"}


def test_a_file_address_gets_a_mirror(tmp_path, repo, nearby):
    commit = repo.commit({"a": b"1"})
    assert nearby.resolve(MAIN) == commit
    export(nearby, commit, tmp_path / "out")
    assert (tmp_path / "out/a").read_bytes() == b"1"
    assert nearby.mirror.transfer == "blob-less"


@pytest.mark.parametrize("address", ["ssh://git@example.invalid/up.git", "git@example.invalid:up.git"])
def test_ssh_is_told_to_ask_nothing(tmp_path, monkeypatch, address):
    monkeypatch.delenv("GIT_SSH_COMMAND", raising=False)
    (tmp_path / "ssh").write_text(
        f'#!/bin/sh\necho "$@" >{tmp_path}/arguments\necho "Permission denied" >&2\nexit 255\n'
    )
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UpstreamError, match="unknown") as refused:
        open_source(address, cache=tmp_path / "cache").resolve(MAIN)
    assert "SSH agent" in refused.value.hint
    said = (tmp_path / "arguments").read_text()
    assert "BatchMode=yes" in said
    assert "git@example.invalid" in said


@pytest.mark.parametrize("who", ["", "me:s3cret@"])
def test_a_private_repository_asks_for_no_password_and_shows_none(tmp_path, monkeypatch, who):
    (tmp_path / "ask").write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    (tmp_path / "ask").chmod(0o755)
    monkeypatch.setenv("SSH_ASKPASS", str(tmp_path / "ask"))
    with http_server(tmp_path, page=b"no", status=401) as server:
        source = open_source(f"http://{who}127.0.0.1:{server.port}/x", cache=tmp_path / "cache", timeout=20)
        with pytest.raises(UpstreamError) as refused:
            source.resolve(MAIN)
    assert "private" in refused.value.hint
    assert not (tmp_path / "asked").exists()
    stored = [path.read_text(errors="replace") for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not any("s3cret" in text for text in [refused.value.message, source.location, repr(source), *stored])


def test_a_new_token_in_the_address_finds_the_same_mirror(tmp_path):
    mirrors = {
        open_source(f"https://{who}example.com/x{end}", cache=tmp_path).git.git_dir
        for who in ("", "a:b@", "c@")
        for end in ("", "/")
    }
    assert len(mirrors) == 1
    assert mirrors != {open_source("https://example.com/y", cache=tmp_path).git.git_dir}


def test_a_bundle_of_certificates_is_trusted_when_it_is_named(tmp_path, repo):
    commit = repo.commit({"a": b"1"})
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    subprocess.run([*make, "-keyout", key, "-out", certificate, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with http_server(repo.path.parent, context=context) as server:
        url = server.url("up.git", "https")
        trusting = open_source(url, cache=tmp_path / "cache", ca_bundle=str(certificate))
        assert trusting.resolve(MAIN) == commit
        with pytest.raises(UpstreamError, match=r"certificate|SSL"):
            open_source(url, cache=tmp_path / "cache").resolve(MAIN)


KILLED = """
import sys
from pathlib import Path
from builder.source.repository import open_source
open_source(sys.argv[1], cache=Path(sys.argv[2])).fetch(sys.argv[3])
"""


def test_a_killed_clone_is_not_trusted_and_the_next_one_heals_it(tmp_path, repo, daemon):
    commit = repo.commit({f"{number}": os.urandom(3000) for number in range(50)})
    daemon.filters, daemon.stall_after = False, 50_000
    url, cache = daemon.url("up.git"), tmp_path / "cache"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, url, str(cache), commit], cwd=Path(__file__).parents[2]
    ) as child:
        assert daemon.stalled.wait(30)
        child.send_signal(signal.SIGKILL)
    daemon.stall_after = 0
    source = open_source(url, cache=cache, timeout=20)
    for stale in ("shallow.lock", f"refs/kept/{commit}.lock"):
        (source.mirror.folder / stale).parent.mkdir(exist_ok=True)
        (source.mirror.folder / stale).touch()
    asked = daemon.connections
    export(source, commit, tmp_path / "out")
    assert len(list((tmp_path / "out").iterdir())) == 50
    assert daemon.connections > asked
    daemon.released.set()


def test_a_clone_killed_before_it_began_leaves_no_folder_that_looks_like_a_mirror(tmp_path, monkeypatch, repo, daemon):
    commit = repo.commit({"a": b"1"})
    url, cache = daemon.url("up.git"), tmp_path / "cache"

    def killed(*_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("builder.source.mirror.Git.run", killed)
        with pytest.raises(KeyboardInterrupt):
            open_source(url, cache=cache)
    assert open_source(url, cache=cache).resolve(MAIN) == commit


def test_what_is_in_the_mirror_is_read_while_another_run_fills_it(tmp_path, repo, daemon, source):
    commit = repo.commit({"a": b"1"})
    source.fetch(commit)
    reader = threading.Thread(
        target=lambda: paths_of(open_source(daemon.url("up.git"), cache=tmp_path / "cache"), commit), daemon=True
    )
    with locked(source.mirror.folder.with_suffix(".lock")):
        reader.start()
        reader.join(10)
        assert not reader.is_alive()


def test_two_runs_do_not_fill_a_mirror_at_once(repo, daemon, source):
    commit = repo.commit({"a": b"1"})
    second = threading.Thread(target=source.fetch, args=(commit,))
    with locked(source.mirror.folder.with_suffix(".lock")):
        second.start()
        second.join(0.05)
        assert second.is_alive()
        assert daemon.connections == 0
    second.join(30)
    assert daemon.connections == 1
