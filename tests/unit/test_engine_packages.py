"""Packages of the distribution: said first, refused when not allowed, and as root only where it must be."""

import os
import sys

import pytest

from builder.console import Console
from builder.engine import packages
from builder.errors import HostError


@pytest.fixture
def bin_folder(tmp_path, monkeypatch):
    """A folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin")
    monkeypatch.setattr(packages, "_SEARCH", str(folder))
    return folder


def put(folder, name, body):
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_root_needs_no_words(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert packages.as_root() == []


def test_a_user_with_sudo_gets_its_words(bin_folder, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(bin_folder))
    put(bin_folder, "sudo", "exit 0")
    assert packages.as_root()[:2] == [str(bin_folder / "sudo"), "-n"]


def test_a_sudo_that_wants_a_password_without_a_terminal_is_an_error_with_a_next_step(bin_folder, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    put(bin_folder, "sudo", "exit 1")
    with pytest.raises(HostError, match="password without a terminal") as caught:
        packages.as_root()
    assert "sudo -v" in caught.value.hint


def test_a_user_without_sudo_is_told(monkeypatch, bin_folder):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(bin_folder))
    with pytest.raises(HostError, match="sudo is not installed"):
        packages.as_root()


APT = 'echo "$DEBIAN_FRONTEND $*" >> {log}; case "$*" in *update*) touch {log}.updated;; esac; exit {status}'
POLICY = 'if [ -e {log}.updated ] || [ "$2" = old ]; then echo "  Candidate: 1.0"; else echo "  Candidate: (none)"; fi'


def distribution(folder, *, status=0):
    log = folder.parent / "apt.log"
    put(folder, "apt-get", APT.format(log=log, status=status))
    put(folder, "apt-cache", POLICY.format(log=log))
    return log


def install(*names, allowed=True):
    packages.install(names, allowed=allowed, why="a test wants it", console=Console())


def test_what_is_installed_is_said_before(bin_folder, monkeypatch, capsys):
    monkeypatch.setattr(packages, "as_root", list)
    log = distribution(bin_folder)
    install("old")
    assert "installing old from the distribution's packages: a test wants it" in capsys.readouterr().err
    assert log.read_text().split() == ["noninteractive", "-q", "-y", "install", "--no-install-recommends", "old"]


def test_the_lists_are_fetched_only_when_the_package_is_not_in_them(bin_folder, monkeypatch):
    monkeypatch.setattr(packages, "as_root", list)
    log = distribution(bin_folder)
    install("new")
    assert [line.split()[-1] for line in log.read_text().splitlines()] == ["update", "new"]


def test_packages_that_this_release_does_not_have_are_left_out(bin_folder, monkeypatch):
    monkeypatch.setattr(packages, "as_root", list)
    log = distribution(bin_folder)
    install("old", "absent")
    assert log.read_text().split()[-1] == "old"


def test_installing_that_is_not_allowed_says_the_command(bin_folder):
    log = distribution(bin_folder)
    with pytest.raises(HostError, match="old is not installed; a test wants it") as caught:
        install("old", allowed=False)
    assert "sudo apt-get install --no-install-recommends old" in caught.value.hint
    assert not log.exists()


def test_another_distribution_is_named_as_such(bin_folder):
    with pytest.raises(HostError, match="neither Debian nor Ubuntu"):
        install("old")


def test_a_failed_installation_shows_its_end(bin_folder, monkeypatch):
    monkeypatch.setattr(packages, "as_root", list)
    distribution(bin_folder, status=100)
    with pytest.raises(HostError, match="ended with status 100"):
        install("old")


def test_a_package_is_unpacked_without_root_and_without_installing_it(bin_folder, monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "as_root", lambda: pytest.fail("root is not needed"))
    distribution(bin_folder)
    put(bin_folder, "apt-get", "touch old.deb")
    put(bin_folder, "dpkg-deb", 'mkdir -p "$3/usr/bin"; touch "$3/usr/bin/old"')
    packages.unpack("old", tmp_path / "out", allowed=True, why="a test wants it", console=Console())
    assert sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()) == [
        "usr/bin/old"
    ]
