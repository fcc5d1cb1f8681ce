import json
import os
from pathlib import Path

import pytest
from checkpoint_twin import PLUS, TINY, TINY_MTP, dumps, header_of, tiny, write_shard

from builder.checkpoint import inspect, tensors
from builder.errors import UsageError

SHARD = "model_extra_tensors.safetensors"


def file_of(folder, raw, size):
    path = folder / "x.safetensors"
    path.write_bytes(raw)
    os.truncate(path, size)
    return path


def with_header(folder, header, *, data=64):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return file_of(folder, len(raw).to_bytes(8, "little") + raw, 8 + len(raw) + data)


def refusal(path):
    with pytest.raises(UsageError) as caught:
        tensors.read_header(path, path.name)
    assert str(path) in caught.value.message
    return caught.value.message


def one(**fields):
    return {"a": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64], **fields}}


def test_a_header_gives_names_dtypes_and_shapes(tmp_path):
    found = tensors.read_header(write_shard(tmp_path / "a.safetensors", TINY_MTP), "a.safetensors")
    assert [(t.name, t.dtype, list(t.shape)) for t in found] == [(n, *spec) for n, spec in TINY_MTP.items()]


def test_not_one_byte_of_the_weights_is_read(tmp_path, monkeypatch):
    folder = tiny(tmp_path / "m", PLUS)
    spans, pread = [], os.pread
    monkeypatch.setattr(
        os,
        "pread",
        lambda fd, n, at: spans.append((Path(f"/proc/self/fd/{fd}").readlink(), at + n)) or pread(fd, n, at),
    )
    inspect(folder)
    assert {path.name for path, _ in spans} == {SHARD, "model.safetensors"}
    for path, end in spans:
        with path.open("rb") as file:
            assert end <= 8 + int.from_bytes(file.read(8), "little")


def test_a_file_of_seven_bytes_is_cut_off(tmp_path):
    assert "cut off" in refusal(file_of(tmp_path, b"1234567", 7))


def test_an_empty_file_is_cut_off(tmp_path):
    assert "cut off" in refusal(file_of(tmp_path, b"", 0))


def test_a_header_longer_than_its_file_is_cut_off(tmp_path):
    assert "should have 500 bytes" in refusal(file_of(tmp_path, (500).to_bytes(8, "little"), 100))


@pytest.mark.parametrize("length", [100_000_001, 2**63, 2**64 - 1])
def test_a_header_above_the_formats_bound_is_refused_before_it_is_read(tmp_path, length, monkeypatch):
    path = file_of(tmp_path, length.to_bytes(8, "little"), 200_000_000)
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("it was read"))
    assert "more than the format's 100000000" in refusal(path)


@pytest.mark.parametrize("header", [b"", b"hello", b"{", b'{"a":1,}', b"{}x", b"\xff\xfe{}", b'{"a": "\x00"}'])
def test_a_header_that_is_no_json_is_refused(tmp_path, header):
    assert any(word in refusal(with_header(tmp_path, header)) for word in ("JSON", "UTF-8"))


@pytest.mark.parametrize("header", [b"[]", b"1", b'"x"', b"null"])
def test_a_header_that_is_no_object_is_refused(tmp_path, header):
    assert "no JSON object" in refusal(with_header(tmp_path, header))


def test_a_name_that_stands_twice_is_refused_and_named(tmp_path):
    entry = json.dumps(one()["a"])
    assert "'mtp.fc'" in refusal(with_header(tmp_path, f'{{"mtp.fc": {entry}, "mtp.fc": {entry}}}'.encode()))


def test_a_field_that_stands_twice_is_refused(tmp_path):
    raw = b'{"a": {"dtype": "I32", "dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]}}'
    assert "'dtype'" in refusal(with_header(tmp_path, raw))


@pytest.mark.parametrize("offsets", [[0, 65], [64, 128], [10, 2], [2**70, 2**70 + 64]])
def test_offsets_outside_the_file_are_refused(tmp_path, offsets):
    assert "outside" in refusal(with_header(tmp_path, one(data_offsets=offsets)))


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": 3}, {"dtype": None}, {"shape": "4"}, {"shape": [4, -8]}, {"shape": [4.0, 8]}, {"shape": [True, 8]},
        {"data_offsets": [0]}, {"data_offsets": [-1, 63]}, {"data_offsets": None}, {"data_offsets": [0, 1, 2]},
    ],
)  # fmt: skip
def test_an_entry_of_a_wrong_shape_is_refused(tmp_path, fields):
    assert "lacks a sound dtype" in refusal(with_header(tmp_path, one(**fields)))


@pytest.mark.parametrize("entry", [None, [], 1, "x"])
def test_an_entry_that_is_no_object_is_refused(tmp_path, entry):
    assert "lacks a sound dtype" in refusal(with_header(tmp_path, {"a": entry}))


def test_a_dtype_that_its_bytes_rule_out_is_refused(tmp_path):
    assert "not the 64 bytes" in refusal(with_header(tmp_path, one(dtype="F32")))


def test_a_dtype_of_tomorrow_is_read(tmp_path):
    path = with_header(tmp_path, one(dtype="F3_NEW"))
    assert tensors.read_header(path, "x")[0].dtype == "F3_NEW"


@pytest.mark.parametrize("name", ["mtp.fc\0.weight", "mtp\n.fc", "\ud800"])
def test_a_name_with_a_nul_or_a_control_character_is_refused(tmp_path, name):
    assert "unprintable" in refusal(with_header(tmp_path, {name: one()["a"]}))


def test_a_header_nested_without_end_is_refused(tmp_path):
    assert "nested too deeply" in refusal(with_header(tmp_path, b'{"a":' + b"[" * 200_000))


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path, monkeypatch):
    path = write_shard(tmp_path / "a.safetensors", TINY)
    monkeypatch.setattr(os, "pread", lambda _fd, count, at: (100).to_bytes(count, "little") if at == 0 else b"")
    with pytest.raises(UsageError, match="became shorter"):
        tensors.read_header(path, "a")


def test_a_pipe_in_place_of_a_shard_does_not_make_us_wait(tmp_path):
    os.mkfifo(tmp_path / "x.safetensors")
    assert "no regular file" in refusal(tmp_path / "x.safetensors")


def test_a_pipe_in_place_of_a_config_does_not_make_us_wait(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(UsageError, match="no regular file"):
        inspect(folder)


def test_a_shard_of_the_index_that_is_missing_is_named(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    (folder / SHARD).unlink()
    with pytest.raises(UsageError, match=SHARD):
        inspect(folder)


def test_a_shard_whose_link_leads_nowhere_is_named(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    (folder / SHARD).unlink()
    (folder / SHARD).symlink_to("../blobs/gone")
    with pytest.raises(UsageError, match=SHARD):
        inspect(folder)


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/passwd", "a/../../b", "", "a\\b", "x\0y"])
def test_an_index_that_leads_out_of_the_folder_is_refused(tmp_path, shard):
    folder = tiny(tmp_path / "m", PLUS)
    (folder / tensors.INDEX).write_text(json.dumps({"weight_map": {"mtp.fc.weight": shard}}))
    with pytest.raises(UsageError, match=r"not inside the folder|no pair of plain names"):
        inspect(folder)


@pytest.mark.parametrize(
    "index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{", '{"weight_map": {"a\\u0000": "b"}}']
)
def test_an_index_that_is_none_is_refused(tmp_path, index):
    folder = tiny(tmp_path / "m", PLUS)
    (folder / tensors.INDEX).write_text(index)
    with pytest.raises(UsageError, match=tensors.INDEX):
        inspect(folder)


def test_an_index_that_looks_for_a_tensor_in_the_wrong_file_is_refused(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    index = json.loads((folder / tensors.INDEX).read_text())
    index["weight_map"]["mtp.fc.weight"] = "model.safetensors"
    (folder / tensors.INDEX).write_text(dumps(index))
    with pytest.raises(UsageError, match=r"mtp\.fc\.weight"):
        inspect(folder)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    folder = tiny(tmp_path / "m", PLUS, index=False)
    write_shard(folder / "again.safetensors", {"mtp.fc.weight": ("I32", [2, 2])})
    with pytest.raises(UsageError, match=r"stands in 'again\.safetensors' and in"):
        inspect(folder)


def test_a_file_that_the_index_does_not_name_is_told_and_its_tensors_count(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    (folder / tensors.INDEX).write_text(dumps({"weight_map": dict.fromkeys(TINY, "model.safetensors")}))
    found = inspect(folder)
    assert found.verdict == "rewrite"
    assert any(SHARD in note and "skip" in note for note in found.notes)


def test_a_listed_tensor_wins_over_one_of_the_same_name_in_an_unlisted_file(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    write_shard(folder / "consolidated.safetensors", {"mtp.fc.weight": ("I32", [2, 2])})
    found = inspect(folder)
    assert found.shards.tensors["mtp.fc.weight"].dtype == "BF16"
    assert found.notes == ()


def test_a_config_of_fifty_megabytes_is_refused(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    os.truncate(folder / "config.json", 50_000_000)
    with pytest.raises(UsageError, match="larger than 16 MiB"):
        inspect(folder)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000])
def test_a_config_nested_without_end_is_refused(tmp_path, text):
    folder = tiny(tmp_path / "m", config=text)
    with pytest.raises(UsageError, match="nested too deeply"):
        inspect(folder)


@pytest.mark.parametrize(
    "text", ["", "\0", "{}\0", "\ufeff{}", "[]", "null", '{"a": 1, "a": 2}', '{"a": ' + "9" * 5000 + "}"]
)
def test_a_config_that_is_no_sound_object_is_refused(tmp_path, text):
    with pytest.raises(UsageError, match=r"config\.json"):
        inspect(tiny(tmp_path / "m", config=text))


def test_a_config_that_is_no_utf8_is_refused(tmp_path):
    folder = tiny(tmp_path / "m", PLUS)
    (folder / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(UsageError, match="UTF-8"):
        inspect(folder)


def test_the_header_helper_of_these_tests_writes_what_the_format_says():
    header, size = header_of(TINY)
    assert size == 8 * 64 * 4 + 64 * 2 + 64 * 2
    assert json.loads(header)["model.layers.0.mlp.down_proj.scales"]["data_offsets"] == [2048, 2176]
