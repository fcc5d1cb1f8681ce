"""Stacks, locks, records and profiles: strict keys, errors with place, texts that read back."""

import json
from pathlib import Path

import pytest
from pydantic import Field

from builder.errors import UsageError
from builder.models.base import Commit, Data, Name, dump_yaml, load_yaml, parse_yaml, validated
from builder.models.lock import Lock, load_lock
from builder.models.profile import load_profile
from builder.models.record import parse_record, read_record, write_record
from builder.models.stack import Stack, load_stack, stack_names

ROOT = Path(__file__).parents[2]
SMOKE = (ROOT / "stacks" / "smoke.yaml").read_text()


def write(folder, text, name="smoke.yaml"):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", stack_names(ROOT))
def test_every_stack_and_its_lock_can_be_read(name):
    stack, lock = load_stack(ROOT, name), load_lock(ROOT, name)
    assert lock.stack == stack.name == name


@pytest.mark.parametrize("path", sorted((ROOT / "profiles").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_profile_names_a_stack_that_is_there(path):
    # none: the image is the user's to name
    assert load_profile(ROOT, path.stem).stack in {None, *stack_names(ROOT)}


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_known_key(tmp_path):
    path = write(tmp_path, SMOKE.replace("template: smoke", "templat: smoke"))
    with pytest.raises(UsageError) as caught:
        load_yaml(Stack, path)
    assert f"{path}:3: unknown key 'templat' (did you mean 'template'?)" in caught.value.message


def test_an_unknown_key_deep_inside_is_told_against_its_own_neighbours(tmp_path):
    path = write(tmp_path, SMOKE.replace("  ref: refs", "  rev: refs"))
    with pytest.raises(UsageError, match=r"smoke.yaml:\d+: unknown key 'source.rev' \(did you mean 'ref'\?\)"):
        load_yaml(Stack, path)


def test_a_bare_short_sha_is_an_error_that_names_the_field(tmp_path):
    path = write(tmp_path, SMOKE.replace("  ref: refs/heads/main", "  ref: refs/heads/main\n  commit: 1234567"))
    with pytest.raises(UsageError, match=r"source\.commit must be text, found 1234567; put it in quotes"):
        load_yaml(Stack, path)


def test_a_key_that_stands_twice_is_refused(tmp_path):
    path = write(tmp_path, SMOKE + "arch: gfx1100\n")
    with pytest.raises(UsageError, match="the key 'arch' stands twice, first in line 4"):
        load_yaml(Stack, path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "a mapping of keys is expected, found list"),
        ("a: [\n", r":2: "),
        ("1: x\n", "the key 1 is not text"),
        ("a: !!python/object:os.system x\n", "could not determine a constructor"),
    ],
)
def test_what_is_no_mapping_of_texts_is_refused_with_its_line(text, message):
    with pytest.raises(UsageError, match=message):
        parse_yaml(text, Path("x.yaml"))


def test_an_unknown_stack_is_answered_with_the_nearest_one():
    with pytest.raises(UsageError, match=r"no stack 'smok' .did you mean 'smoke'"):
        load_stack(ROOT, "smok")


def test_a_stack_whose_name_is_not_its_files_is_refused(tmp_path):
    (tmp_path / "stacks").mkdir()
    write(tmp_path / "stacks", SMOKE, "other.yaml")
    with pytest.raises(UsageError, match="the name is 'smoke', but the file is called 'other'"):
        load_stack(tmp_path, "other")


def test_a_ref_that_is_no_full_name_is_refused(tmp_path):
    path = write(tmp_path, SMOKE.replace("refs/heads/main", "main"))
    with pytest.raises(UsageError, match=r"source\.ref"):
        load_yaml(Stack, path)


def test_a_source_needs_exactly_one_origin(tmp_path):
    path = write(tmp_path, SMOKE.replace("  ref:", "  repository: https://example.org/x\n  ref:"))
    with pytest.raises(UsageError, match="exactly one of repository and folder"):
        load_yaml(Stack, path)


def test_a_lock_reads_back_from_its_own_text(tmp_path):
    lock = load_lock(ROOT, "vllm")
    path = write(tmp_path, lock.text())
    assert load_yaml(Lock, path) == lock
    assert load_yaml(Lock, path).text() == lock.text()


def test_a_lock_names_what_is_unresolved():
    lock = load_lock(ROOT, "smoke").model_copy(update={"commit": "unresolved"})
    assert lock.unresolved() == ["commit"]


def test_an_all_digit_commit_stays_text_in_a_lock(tmp_path):
    lock = load_lock(ROOT, "smoke").model_copy(update={"commit": "0" + "1" * 39})
    assert load_yaml(Lock, write(tmp_path, dump_yaml(lock))).commit == "0" + "1" * 39


def test_a_record_is_one_file_an_image_and_reads_back(tmp_path, record):
    path = write_record(tmp_path, record)
    write_record(tmp_path, record.model_copy(update={"version": "0.0.dev0+gffffffffffff"}))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert read_record(path).version == "0.0.dev0+gffffffffffff"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}', "[" * 5000])
def test_what_is_no_record_is_refused(text):
    with pytest.raises(UsageError, match=r"x\.json"):
        parse_record(text, Path("x.json"))


def test_a_record_of_a_newer_form_is_refused(record):
    value = json.loads(record.text()) | {"format": 2}
    with pytest.raises(UsageError, match="format"):
        parse_record(json.dumps(value), Path("x.json"))


def test_a_problem_without_a_text_still_names_the_file(tmp_path):
    with pytest.raises(UsageError, match=r"y\.json: the key 'stack' is missing"):
        validated(Lock, {"format": 1}, Path("y.json"))


class Member(Data):
    """What a choice may be."""

    depth: int


class Choice(Data):
    """A field of several types."""

    which: Commit | Name
    many: dict[str, Member | str] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ({"which": 7}, ["x: which must be text, found 7; put it in quotes"]),
        (
            {"which": "a", "many": {"k": {}}},
            ["x: the key 'many.k.depth' is missing", "x: many.k must be text, found {}"],
        ),
    ],
)
def test_a_field_of_several_types_is_told_in_a_line_without_internals(value, lines):
    with pytest.raises(UsageError) as caught:
        validated(Choice, value, Path("x"))
    said = caught.value.message.splitlines()
    assert len(said) == len(lines)
    assert all(one.startswith(line) for one, line in zip(said, lines, strict=True)), said


def test_a_pattern_that_no_type_of_a_field_has_is_one_line():
    with pytest.raises(UsageError) as caught:
        validated(Choice, {"which": "!"}, Path("x"))
    assert len(caught.value.message.splitlines()) == 1
    assert caught.value.message.startswith("x: which: ")
    assert "constrained" not in caught.value.message


def test_the_known_keys_of_a_stack_include_those_that_only_its_file_has(tmp_path):
    path = write(tmp_path, SMOKE + "zzzzzz: 1\n")
    with pytest.raises(UsageError, match=r"known: .*extends.*rehearsal"):
        load_yaml(Stack, path)
