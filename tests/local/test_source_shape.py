from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.source.git import Entry
from builder.source.shape import check_links, check_names


def entries(*paths, mode="100644"):
    return [Entry(mode, "0" * 40, path) for path in paths]


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"/abs",
        b"..",
        b"../up",
        b"a/../../up",
        b"a/./b",
        b"a//b",
        b"a/",
        b".git",
        b".git/config",
        b"a/.GIT/hooks/post-checkout",
        b".git. /x",
        b"GIT~1/config",
        b"a\nb",
        b"a\x7f/b",
        b"a\\b",
        b"x" * 256,
        b"x" * 256 + b"/y",
    ],
)
def test_a_path_that_no_source_needs_is_refused(path):
    with pytest.raises(UsageError, match="the tree is refused"):
        check_names(entries(b"fine", path))


@pytest.mark.parametrize(
    "path", [b".gitignore", b".github/x", b"a.git/b", b"...", b"a b", b"\xff\xfe", b"x" * 255, b"-rf"]
)
def test_an_odd_but_harmless_path_is_fine(path):
    check_names(entries(b"fine", path))


def test_a_file_that_is_also_a_folder_is_refused_wherever_it_stands():
    for paths in [(b"a", b"a/b/c"), (b"a/b/c", b"a"), (b"a/b/c", b"a/b")]:
        with pytest.raises(UsageError, match="a file and a folder"):
            check_names(entries(*paths))


def test_a_path_that_stands_twice_is_refused():
    with pytest.raises(UsageError, match="stands twice"):
        check_names(entries(b"a/b", b"c", b"a/b"))


@pytest.mark.parametrize("mode", ["060000", "0", "140000", "40000"])
def test_a_mode_that_is_no_file_link_or_submodule_is_refused(mode):
    with pytest.raises(UsageError, match=f"the mode {mode}"):
        check_names(entries(b"a", mode=mode))


@pytest.mark.parametrize(
    "links",
    [
        {b"l": b"/etc/passwd"},
        {b"l": b"../x"},
        {b"a/l": b"../../x"},
        {b"a/l": b"b/../../../x"},
        {b"here": b".", b"l": b"here/../x"},
        {b"a/up": b"..", b"l": b"a/up/../x"},
        {b"to": b"/etc", b"l": b"to/passwd"},
        {b"one": b"two", b"two": b"a/../.."},
        {b"l": b""},
        {b"l": b"x\0y"},
        {b"l": b"x" * 4096},
    ],
)
def test_a_link_that_leaves_the_tree_is_refused(links):
    with pytest.raises(UsageError, match="link"):
        check_links(links)


@pytest.mark.parametrize(
    "links",
    [
        {b"a/l": b"../b"},
        {b"l": b"nowhere/at/all"},
        {b"l": b"l"},
        {b"one": b"two", b"two": b"one"},
        {b"a/b/up": b"../..", b"l": b"a/b/up/a"},
        {b"l": b"./a//b/./c"},
    ],
)
def test_a_link_that_stays_is_fine(links):
    check_links(links)


NAMES = st.sampled_from(["a", "b", "a/a", "a/b", "a/a/a", "b/a"])
TARGETS = st.lists(st.sampled_from(["..", ".", "a", "b", "a/a", "..", "l"]), min_size=1, max_size=6).map("/".join)


def lands(link):
    try:
        link.stat()
    except OSError as trouble:
        if trouble.errno == errno.ELOOP:
            return link
    return Path(os.path.realpath(link))


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(NAMES, TARGETS, min_size=1, max_size=4))
def test_links_that_pass_lead_nowhere_outside_on_a_real_disk(links):
    with tempfile.TemporaryDirectory() as outer:
        root = Path(os.path.realpath(outer)) / "1/2/3/4/root"
        root.mkdir(parents=True)
        made = {}
        for name, target in sorted(links.items(), key=lambda pair: -len(pair[0])):
            place = root / name
            if not place.exists() and not place.is_symlink():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(target)
                made[name.encode()] = target.encode()
        inside = all(lands(root / os.fsdecode(name)).is_relative_to(root) for name in made)
        try:
            check_links(made)
        except UsageError:
            return
        assert inside
