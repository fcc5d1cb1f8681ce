"""Base images from packages: their recipe, their cache, and what a failed bootstrap says."""

import os
import tarfile
from pathlib import Path

import pytest

from builder.console import Console
from builder.engine import base, packages
from builder.engine.port import Image
from builder.errors import HostError, UsageError


class Engine:
    """An engine that knows one image or none and imports what it is given."""

    def __init__(self, image=None):
        self.known = image
        self.imported = []

    def image(self, _):
        return self.known

    def import_image(self, tar, reference, *, labels):
        self.imported.append((tar, reference))
        return Image(id="sha256:new", tags=(reference,), labels=labels)


def boot(engine, cache, suite="trixie", **more):
    return base.bootstrap_base(engine, suite, cache=cache, mirror=None, console=Console(), **more)


def test_the_recipe_is_the_same_every_time_and_differs_between_suites():
    assert base.recipe_sha256("trixie") == base.recipe_sha256("trixie")
    assert base.recipe_sha256("trixie") != base.recipe_sha256("sid")


@pytest.mark.parametrize(("name", "value"), [("SCHEMA", 2), ("VARIANT", "buildd"), ("LEFT_OUT", ())])
def test_the_recipe_changes_with_whatever_makes_the_image(monkeypatch, name, value):
    before = base.recipe_sha256("trixie")
    monkeypatch.setattr(base, name, value)
    assert base.recipe_sha256("trixie") != before


def test_an_unknown_suite_names_the_nearest_one():
    with pytest.raises(UsageError, match="did you mean 'trixie'"):
        base.recipe_sha256("trixi")


def test_an_image_of_the_same_recipe_is_used_as_it_is(tmp_path):
    image = Image(id="sha256:old", labels={base.RECIPE_LABEL: base.recipe_sha256("trixie")})
    assert boot(Engine(image), tmp_path) is image


def test_an_image_under_the_name_with_another_recipe_is_not_trusted(tmp_path):
    base.base_tar(tmp_path, "trixie").parent.mkdir(parents=True)
    base.base_tar(tmp_path, "trixie").write_bytes(b"tar")
    engine = Engine(Image(id="sha256:foreign", labels={base.RECIPE_LABEL: "0" * 64}))
    assert boot(engine, tmp_path).id == "sha256:new"
    assert engine.imported == [(base.base_tar(tmp_path, "trixie"), base.base_reference("trixie"))]


def test_without_debootstrap_and_without_leave_to_install_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "program", lambda name: None if name == "debootstrap" else f"/usr/bin/{name}")
    with pytest.raises(HostError, match="debootstrap is not installed") as caught:
        boot(Engine(), tmp_path)
    assert "apt-get install --no-install-recommends debootstrap" in caught.value.hint
    assert list(base.base_tar(tmp_path, "trixie").parent.glob("*.tar")) == []


def stub(folder, body, monkeypatch):
    """Take the place of debootstrap with a shell program; TREE is where it must put the files."""
    path = folder / "debootstrap"
    words = 'for word in "$@"; do case "$word" in */root) TREE=$word;; esac; done'
    path.write_text(f'#!/bin/sh\nDEF_MIRROR="http://own/debian"\n{words}\n{body}\n')
    path.chmod(0o755)
    monkeypatch.setattr(packages, "program", lambda name: str(path) if name == "debootstrap" else f"/usr/bin/{name}")
    monkeypatch.setattr(packages, "as_root", list)
    keyring = folder / "keyring.gpg"
    keyring.touch()
    monkeypatch.setattr(base, "KEYRING", keyring)


TREE = """
mkdir -p $TREE/etc/apt $TREE/var/lib/apt/lists $TREE/var/log $TREE/tmp
echo 'Date: Sat, 21 Nov 2026 09:15:44 UTC' > $TREE/var/lib/apt/lists/x_Release
echo 'root:*:29999:0:99999:7:::' > $TREE/etc/shadow
echo nameserver 10.0.0.1 > $TREE/etc/resolv.conf
echo buildhost > $TREE/etc/hostname
echo log > $TREE/var/log/bootstrap.log
echo "$@" > $TREE/words
echo "deb $DEF_MIRROR trixie main" > $TREE/etc/apt/sources.list
"""


def test_what_the_bootstrap_took_from_this_host_and_from_today_is_not_in_the_tar(tmp_path, monkeypatch):
    stub(tmp_path, TREE, monkeypatch)
    engine = Engine()
    boot(engine, tmp_path / "cache")
    with tarfile.open(engine.imported[0][0]) as tar:
        names = tar.getnames()
        shadow = tar.extractfile("./etc/shadow").read()
        latest = max(member.mtime for member in tar)
        sources = tar.extractfile("./etc/apt/sources.list").read().decode()
    assert not {
        "./etc/resolv.conf",
        "./etc/hostname",
        "./var/log/bootstrap.log",
        "./var/lib/apt/lists/x_Release",
    } & set(names)
    assert names == sorted(names)
    assert {"./var/log", "./tmp"} <= set(names)
    assert latest == 1795252544  # Sat, 21 Nov 2026 09:15:44 UTC
    assert shadow == b"root:*:20778:0:99999:7:::\n"
    assert sources == "deb http://own/debian trixie main\n"


def test_signatures_are_checked_always_and_the_settings_mirror_is_used_but_not_kept(tmp_path, monkeypatch):
    stub(tmp_path, TREE, monkeypatch)
    engine = Engine()
    base.bootstrap_base(engine, "trixie", cache=tmp_path / "cache", mirror="http://mirror/debian", console=Console())
    with tarfile.open(engine.imported[0][0]) as tar:
        words = tar.extractfile("./words").read().decode().split()
        sources = tar.extractfile("./etc/apt/sources.list").read()
    assert sources == b"deb http://own/debian trixie main\n"
    assert "--force-check-gpg" in words
    assert words[-1] == "http://mirror/debian"


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("E: Release signed by unknown key (key id 0)", "--only-upgrade debian-archive-keyring"),
        ("E: Invalid Release signature (key id 0)", "--only-upgrade debian-archive-keyring"),
        ("mknod: x/test-dev-null: Operation not permitted", "cache_dir"),
        ("E: Failed getting release file http://m/Release", "apt_mirror"),
    ],
)
def test_a_bootstrap_that_fails_says_what_to_do_and_leaves_nothing(tmp_path, monkeypatch, said, step):
    stub(tmp_path, f"mkdir -p $TREE/x; echo '{said}' >&2; exit 1", monkeypatch)
    with pytest.raises(HostError) as caught:
        boot(Engine(), tmp_path / "cache")
    assert said in caught.value.message
    assert step in caught.value.hint
    assert [path.name for path in (tmp_path / "cache" / "bases").iterdir()] == ["trixie.lock"]


def test_the_tar_belongs_to_the_user_who_asked_for_it(tmp_path, monkeypatch):
    stub(tmp_path, TREE, monkeypatch)
    boot(Engine(), tmp_path / "cache")
    assert Path(base.base_tar(tmp_path / "cache", "trixie")).stat().st_uid == os.getuid()
