"""Background programs: started once, shared, stopped by the last user, told with their log when they fail."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from builder.engine import address, local
from builder.engine.daemon import Daemon
from builder.errors import HostError

PYTHON = os.path.realpath(sys.executable)


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def server(tmp_path):
    """A small web server as a daemon; ``begin`` starts it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [PYTHON, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(tmp_path), str(port)]
    daemon = Daemon(words, pidfile=tmp_path / "pid", log=tmp_path / "log")

    def answers():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("GET", "/")
            return connection.getresponse().status == 200
        return False

    daemon.begin, daemon.answers, daemon.folder = (lambda: daemon.start(answers)), answers, tmp_path / "state"
    yield daemon
    daemon.stop()


def test_it_answers_inside_the_block_and_is_gone_after_it(server):
    with server.shared(server.begin, folder=server.folder, keep=False):
        assert server.answers()
    assert not server.is_running()
    assert not server.answers()


def test_it_goes_when_the_block_raises(server):
    with pytest.raises(KeyboardInterrupt), server.shared(server.begin, folder=server.folder, keep=False):
        raise KeyboardInterrupt
    assert not server.is_running()


def test_the_last_of_several_users_stops_it(server):
    def never():
        pytest.fail("it runs already")

    with server.shared(server.begin, folder=server.folder, keep=False):
        with server.shared(never, folder=server.folder, keep=False):
            pass
        assert server.answers()
    assert not server.is_running()


def test_kept_once_it_stays_for_later_users_too(server):
    with server.shared(server.begin, folder=server.folder, keep=True):
        pass
    with server.shared(server.begin, folder=server.folder, keep=False):
        pass
    assert server.answers()


def test_one_that_a_killed_run_left_is_taken_over_and_stopped(server):
    server.begin()  # by a run that died: it runs, and nobody holds the lock
    with server.shared(server.begin, folder=server.folder, keep=False):
        assert server.answers()
    assert not server.is_running()


def test_a_program_that_ends_at_once_is_told_with_the_end_of_its_log(tmp_path):
    daemon = Daemon([PYTHON, "-c", "raise SystemExit('no such flag')"], pidfile=tmp_path / "pid", log=tmp_path / "log")
    with pytest.raises(HostError, match=r"(?s)ended at once; the end of .*no such flag"):
        daemon.start(lambda: False)


def test_a_program_that_never_answers_is_stopped_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr("builder.engine.daemon.START_SECONDS", 0.0)
    sleep = os.path.realpath("/bin/sleep")
    daemon = Daemon([sleep, "100"], pidfile=tmp_path / "pid", log=tmp_path / "log")
    with pytest.raises(HostError, match="did not answer within 0 s"):
        daemon.start(lambda: False)
    assert not daemon.is_running()


def test_a_stale_pid_file_harms_no_other_process(tmp_path):
    with subprocess.Popen(["/bin/sleep", "100"]) as other:
        (tmp_path / "pid").write_text(f"{other.pid}\n")
        Daemon([PYTHON], pidfile=tmp_path / "pid", log=tmp_path / "log").stop()
        assert alive(other.pid)
        other.send_signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("said", "works"),
    [(b"HTTP/1.0 200 OK\r\n\r\nOK", True), (b"HTTP/1.0 503 Service Unavailable\r\n\r\n", False), (b"", False)],
)
def test_an_engine_answers_when_it_says_so_and_not_when_its_socket_only_takes_connections(tmp_path, said, works):
    path = str(tmp_path / "docker.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def answer():
            taken, _ = listening.accept()
            with taken:
                taken.recv(1024)
                taken.sendall(said)

        answering = threading.Thread(target=answer)
        answering.start()
        assert local._pings(address.Address(url=f"unix://{path}", origin="a test")) is works
        answering.join()
    assert local._pings(address.Address(url=f"unix://{path}", origin="a test")) is False
