"""Profiles: what ours hold, and how a user's own one extends them."""

from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.models.profile import load_profile, profile_names, with_flags
from builder.models.stack import stack_names

ROOT = Path(__file__).parents[2]
NAMES = profile_names(ROOT)
OWN = """\
name: mine
title: Mine
extends: vllm-int8-128k
port: 9000
flags:
  --max-model-len: "65536"
  --enable-chunked-prefill: null
  --disable-custom-all-reduce: true
environment:
  MINE: "1"
"""


def own(root, text=OWN, name="mine"):
    path = root / f"{name}.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "vllm-octave-256k",
        "vllm-int8-128k",
        "vllm-upstream-fp8",
        "vllm-upstream-fp8-mtp",
        "vllm-moe-offload",
        "sglang-dflash2",
        "sglang-mtp3",
        "strata-replicas",
        "smoke",
    ],
)
def test_every_system_of_the_field_has_a_profile_that_says_where_it_is_from(name):
    profile = load_profile(ROOT, name)
    assert profile.stack is None or profile.stack in stack_names(ROOT)
    if name != "smoke":
        assert profile.needs
        assert profile.sources
        assert profile.notes
        assert profile.memory.ram_bytes > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_port_of_a_profile_is_the_one_that_its_command_listens_on(name):
    profile = load_profile(ROOT, name)
    if "--port" in profile.command:
        assert profile.command[profile.command.index("--port") + 1] == str(profile.port)


@pytest.mark.parametrize("name", NAMES)
def test_no_profile_carries_the_mistakes_of_the_published_commands(name):
    profile = load_profile(ROOT, name)
    words = " ".join(profile.command)
    assert "cpu_capacity_bytes" not in words
    assert "225280" not in words
    assert not {"HSA_OVERRIDE_GFX_VERSION", "VLLM_ROCM_USE_AITER", "PYTHONPATH"} & set(profile.environment)


def test_a_profile_of_ones_own_changes_single_flags_and_keeps_the_rest(tmp_path):
    profile = load_profile(ROOT, str(own(tmp_path)))
    base = load_profile(ROOT, "vllm-int8-128k")
    assert profile.command == (
        *with_flags(base.command, {"--max-model-len": "65536", "--enable-chunked-prefill": None}),
        "--disable-custom-all-reduce",
    )
    assert profile.environment == {**base.environment, "MINE": "1"}
    assert (profile.port, profile.stack, profile.gpus, profile.needs) == (9000, base.stack, 2, base.needs)


def test_the_users_own_folder_is_looked_into(tmp_path):
    for folder in ("profiles", "profiles.local"):
        (tmp_path / folder).mkdir()
    (tmp_path / "profiles" / "vllm-int8-128k.yaml").write_text((ROOT / "profiles" / "vllm-int8-128k.yaml").read_text())
    own(tmp_path / "profiles.local")
    assert load_profile(tmp_path, "mine").port == 9000
    assert profile_names(tmp_path) == ["mine", "vllm-int8-128k"]


def test_two_profiles_of_one_name_are_refused(tmp_path):
    for folder in ("profiles", "profiles.local"):
        (tmp_path / folder).mkdir()
        own(tmp_path / folder)
    with pytest.raises(UsageError, match="have the same name"):
        load_profile(tmp_path, "mine")


def test_a_profile_extends_a_file_beside_it(tmp_path):
    own(tmp_path)
    own(tmp_path, "name: more\ntitle: More\nextends: mine.yaml\nflags: {--max-model-len: '8192'}\n", "more")
    profile = load_profile(ROOT, str(tmp_path / "more.yaml"))
    assert profile.command[profile.command.index("--max-model-len") + 1] == "8192"
    assert profile.port == 9000


def test_a_circle_is_refused(tmp_path):
    path = own(tmp_path, OWN.replace("vllm-int8-128k", "mine.yaml"))
    with pytest.raises(UsageError, match="in a circle"):
        load_profile(ROOT, str(path))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('--max-model-len: "65536"', "--max-model-len: 65536", "flags must be text in quotes"),
        ("--max-model-len", "max-model-len", "must begin with -"),
        ("extends: vllm-int8-128k", "extends: vllm-int8", "did you mean 'vllm-int8-128k'"),
        ("extends: vllm-int8-128k", "extends: 8", "extends must be text"),
        ("port: 9000", "prt: 9000", r"mine.yaml:4: unknown key 'prt' .did you mean 'port'"),
    ],
)
def test_a_mistake_is_told_with_its_file(tmp_path, old, new, message):
    with pytest.raises(UsageError, match=message):
        load_profile(ROOT, str(own(tmp_path, OWN.replace(old, new))))


def test_a_flag_is_set_in_its_place_added_and_taken_out():
    command = ("m", "--a", "1", "--sizes", "1", "2", "4", "--b=2", "--bare")
    assert with_flags(command, {"--sizes": "8", "--b": "3"}) == ("m", "--a", "1", "--sizes", "8", "--b", "3", "--bare")
    assert with_flags(command, {"--sizes": None, "--bare": False, "--c": True}) == ("m", "--a", "1", "--b=2", "--c")


def test_what_has_the_name_of_a_profile_and_is_none_is_told(tmp_path):
    folder = tmp_path / "profiles.local"
    (folder / "dir.yaml").mkdir(parents=True)
    (folder / "link.yaml").symlink_to("nowhere.yaml")

    with pytest.raises(UsageError, match=r"profiles.local/dir.yaml is no regular file"):
        load_profile(tmp_path, "dir")
    with pytest.raises(UsageError, match=r"link.yaml is a link to nowhere.yaml, which is not there"):
        load_profile(tmp_path, "link")
    assert profile_names(tmp_path) == []
