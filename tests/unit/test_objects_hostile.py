"""No file can make the reader crash, run on, or take much memory: it answers, or it says what is wrong and where."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import zipfile
import zlib

import made_objects as made
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import VerifyError
from builder.objects import read_library, survey
from builder.objects.msgpack import Walk
from builder.objects.window import Window

CODE = made.code_object(made.kernel("copy"), made.kernel("decode", vgpr_spill_count=48))
PLAIN = made.bundle((made.ID, CODE))
SEEDS = {
    "host": made.fat_library(PLAIN, PLAIN),
    "compressed host": made.fat_library(made.compressed(PLAIN), made.compressed(PLAIN, version=2, method="zlib")),
    "code": CODE,
    "bundle": made.bundle((made.ID, CODE), align=8),
    "compressed": made.compressed(made.bundle((made.ID, CODE), align=8), version=1),
}
MIB = 1 << 20


def answers(data: bytes):
    """Return the library, or None when the reader refused with a place."""
    try:
        return read_library(data, name="given.so")
    except VerifyError as trouble:
        refused = trouble
    assert refused.message.startswith("given.so, ")
    assert "byte 0x" in refused.message
    return None


def with_bytes(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


@given(st.sampled_from(sorted(SEEDS)), st.data())
@settings(max_examples=150, deadline=None)
def test_any_damage_to_an_object_is_answered_or_refused(name, data):
    seed = SEEDS[name]
    for _ in range(data.draw(st.integers(1, 4))):
        # the heads of structures matter most, so half of the damage goes there
        heads = [i for i in range(len(seed)) if seed[i : i + 4] in {b"\x7fELF", b"__CL", b"CCOB", b"AMDG"}] or [0]
        near = st.sampled_from(heads).flatmap(lambda head: st.integers(head, head + 250))
        at = min(data.draw(st.one_of(near, st.integers(0, len(seed) - 1))), len(seed) - 1)
        new = data.draw(
            st.one_of(
                st.binary(min_size=1, max_size=8),
                st.sampled_from([b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 3, struct.pack("<Q", len(seed))]),
            )
        )
        seed = with_bytes(seed, at, new)[: len(seed)]
    answers(seed)


@given(st.sampled_from(sorted(SEEDS)), st.data())
@settings(max_examples=60, deadline=None)
def test_a_file_cut_anywhere_is_answered_or_refused(name, data):
    seed = SEEDS[name]
    answers(seed[: data.draw(st.integers(0, len(seed)))])


@given(
    st.sampled_from([b"\x7fELF\x02\x01", b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB\x03\0\x01\0", b""]),
    st.binary(max_size=400),
)
@settings(max_examples=200, deadline=None)
def test_noise_behind_any_magic_is_answered_or_refused(magic, noise):
    answers(magic + noise)


@given(st.binary(max_size=120))
@settings(max_examples=200, deadline=None)
def test_noise_as_kernel_metadata_is_answered_or_refused(noise):
    library = answers(made.code_object(note=noise))
    assert library is None or all(kernel.name for kernel in library.kernels)


values = st.recursive(
    st.one_of(st.booleans(), st.integers(0, 2**32 - 1), st.text(max_size=40)),
    lambda inner: st.one_of(st.lists(inner, max_size=20), st.dictionaries(st.text(max_size=8), inner, max_size=20)),
    max_leaves=30,
)


@given(values)
@settings(max_examples=50, deadline=None)
def test_a_value_is_stepped_over_to_its_very_end(value):
    data = made.packed(value)
    walk = Walk(data + b"\xc0")

    walk.skip()

    assert walk.at == len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\xc4\x02ab",
        b"\xc5\0\x02ab",
        b"\xc7\x02\x01ab",
        b"\xc8\0\x02\x01ab",
        b"\xd4\x01a",
        b"\xd8\x01" + bytes(16),
        b"\xca" + bytes(4),
        b"\xcb" + bytes(8),
        b"\xd3" + bytes(8),
        b"\xdb\0\0\0\x02ab",
        b"\xdd\0\0\0\x02\x01\xe0",
        b"\xdf\0\0\0\x01\x01\x81\xa1a\x91\xc0",
    ],
)
def test_the_rarer_types_are_stepped_over_too(data):
    walk = Walk(data + b"\xc0")
    walk.skip()
    assert walk.at == len(data)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\xa5abcd", b"\xdf\xff\xff\xff\xff\x01", b"\x92\x01", b"\xc6\xff\xff\xff\xff"]
)
def test_a_value_that_does_not_end_is_refused(data):
    with pytest.raises(ValueError, match="value that"):
        Walk(data).skip()


def test_metadata_nested_a_million_deep_is_stepped_over():
    assert answers(made.code_object(note=b"\x81\xa1x" + b"\x91" * MIB + b"\xc0")).kernels == ()


@pytest.mark.parametrize(
    ("note", "said"),
    [
        (b"\xc0", "a map is due"),
        (b"\x81\xaeamdhsa.kernels\x81\xc0\xc0", "an? array is due"),
        (b"\x81\xaeamdhsa.kernels\xdd\xff\xff\xff\xff", "4294967295 kernels"),
        (made.packed({"amdhsa.kernels": [{".name": "copy"}]}), r"a kernel without \.vgpr_count"),
        (made.packed({"amdhsa.kernels": [{".name": 7}]}), "a text is due"),
        (made.packed({"amdhsa.kernels": [made.kernel("", vgpr_count=1)]}), r"a kernel without \.name"),
        (made.packed({"amdhsa.kernels": [{".vgpr_count": "many"}]}), "a number is due"),
        (made.packed({"amdhsa.kernels": []})[:-3], "ends too early"),
    ],
)
def test_damaged_metadata_is_refused_with_the_reason(note, said):
    with pytest.raises(VerifyError, match=said):
        read_library(made.code_object(note=note))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (with_bytes(PLAIN, 24, b"\xff" * 8), "at most 4096 are believed"),
        (with_bytes(PLAIN, 32 + 16, b"\xff" * 8), "whose id has"),
        (with_bytes(PLAIN, 32, struct.pack("<QQ", 4096, 8)), "overlaps another one"),
        (with_bytes(PLAIN, 32, struct.pack("<QQ", 8, 8)), "overlaps another one or the header"),
        (with_bytes(PLAIN, 56, b"\xff"), "no ASCII text"),
        (made.bundle(("hipv4-amdgcn-amd-amdhsa", CODE)), "names no processor"),
        (made.bundle((made.ID, b"no code object at all" * 9)), "no little-endian 64-bit ELF"),
        (made.bundle((made.ID, made.library({}))), "for the machine 62, not for AMDGPU"),
        (with_bytes(made.compressed(PLAIN), 4, b"\x04\0"), "of version 4, method 1"),
        (with_bytes(made.compressed(PLAIN), 6, b"\x02\0"), "of version 3, method 2"),
        (with_bytes(made.compressed(PLAIN), 8, b"\xff" * 8), "bytes, where"),
        (with_bytes(made.compressed(PLAIN), 8, bytes(8)), "a compressed bundle of 0 bytes"),
        (with_bytes(made.compressed(PLAIN), 24, bytes(8)), "does not have the hash"),
        (with_bytes(made.compressed(PLAIN), 32, b"nozstd"), "the zstd data is damaged"),
        (with_bytes(made.compressed(PLAIN, method="zlib"), 32, b"nozlib"), "the zlib data is damaged"),
        (made.compressed(PLAIN, version=1)[:-9], "the zstd data ends too early"),
        (made.compressed(PLAIN, size=len(PLAIN) + 1), "holds less than its"),
        (made.compressed(PLAIN, size=len(PLAIN) - 1), "holds more than its"),
        (made.compressed(PLAIN, size=1 << 40), "unpacks to 1099511627776 bytes"),
        (made.compressed(b"no bundle" * 9), "the content is no bundle"),
        (made.compressed(made.compressed(PLAIN)), "the content is no bundle"),
        (with_bytes(CODE, 54, b"\x20"), "program headers of 32 bytes"),
        (with_bytes(SEEDS["host"], 58, b"\x20"), "section headers of 32 bytes"),
        (with_bytes(SEEDS["host"], 62, b"\x09\0"), "section 9 should hold the names"),
        (with_bytes(SEEDS["host"], 40, b"\xff" * 8), "the first section header would span"),
        (with_bytes(CODE, 32, b"\xff" * 8), "the program headers would span"),
        (with_bytes(CODE, 120, b"\xff" * 4), "a note with an owner of 4294967295 bytes"),
        (with_bytes(CODE, 124, b"\xff" * 4), "a note's content would span"),
    ],
)
def test_each_lie_is_refused_with_its_name(data, said):
    with pytest.raises(VerifyError, match=said):
        read_library(data)


@pytest.mark.parametrize("method", ["zlib", "zstd"])
def test_a_bomb_takes_no_more_memory_than_a_few_pieces(method):
    raw = bytes(200 * MIB)
    packed = zlib.compress(raw, 1) if method == "zlib" else zstandard.ZstdCompressor().compress(raw)
    del raw
    header = b"CCOB" + struct.pack("<HHQQQ", 3, ["zlib", "zstd"].index(method), 32 + len(packed), 5000, 0)
    tracemalloc.start()

    with pytest.raises(VerifyError, match="holds more than its 5000 bytes"):
        read_library(header + packed)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 * MIB


def test_a_frame_that_wants_a_huge_window_is_refused():
    packed = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    ).compressobj()
    data = packed.compress(b"x" * 100) + packed.flush()
    header = b"CCOB" + struct.pack("<HHQQQ", 3, 1, 32 + len(data), 100, 0)

    with pytest.raises(VerifyError, match="the zstd data is damaged"):
        read_library(header + data)


def test_a_name_table_a_section_and_a_note_larger_than_any_are_not_loaded(tmp_path):
    path = tmp_path / "sparse.so"
    head = with_bytes(SEEDS["host"][:64], 40, struct.pack("<Q", 64))
    rows = bytes(64) + struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, 4096, 1 << 33, 0, 0, 1, 0)
    path.write_bytes(with_bytes(head, 60, struct.pack("<HH", 2, 1)) + rows)
    os.truncate(path, 1 << 34)

    with pytest.raises(VerifyError, match="the section names of 8589934592 bytes is larger than any"):
        read_library(path)


def test_a_file_that_shrinks_while_it_is_read_is_a_fault_and_no_crash(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(SEEDS["host"])
    with path.open("rb") as file:
        window = Window.of_file(file, "lib.so")
        os.truncate(path, 100)
        with pytest.raises(VerifyError, match=r"lib\.so, byte 0x40: the file ended within the table"):
            window.read(64, 100, "the table")


@given(st.binary(max_size=300), st.integers(0, 300), st.sampled_from([(b"CCOB",), (b"ab", b"CCOB")]))
@settings(max_examples=150, deadline=None)
def test_the_first_magic_is_found_wherever_it_lies(noise, at, needles):
    data = noise[:at] + b"CCOB" + noise[at:]
    found = Window.of_bytes(bytes(8190) + data, "x").find(needles, 0)
    assert found == min(hit for needle in needles if (hit := (bytes(8190) + data).find(needle)) >= 0)


def wheel(name: str, content: bytes, kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr(name, content)
    return file.getvalue()


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_damage_to_a_wheel_is_answered_or_refused(tmp_path_factory, data):
    content = wheel("ops/_C.so", SEEDS["code"])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.one_of(st.integers(0, 60), st.integers(len(content) - 90, len(content) - 1)))
        content = with_bytes(content, at, data.draw(st.binary(min_size=1, max_size=4)))
    path = tmp_path_factory.getbasetemp() / "fuzzed.whl"
    path.write_bytes(content)
    try:
        said = [library.path for library in survey(path)]
    except VerifyError as refused:
        said = refused.message
    assert isinstance(said, list) or "fuzzed.whl" in said


def test_a_wheel_with_a_member_that_no_wheel_has_is_refused(tmp_path):
    path = tmp_path / "odd.whl"
    path.write_bytes(wheel("ops/_C.so", CODE, zipfile.ZIP_LZMA))

    with pytest.raises(VerifyError, match="packed in a way that no wheel is"):
        survey(path)


def test_a_wheel_whose_directory_claims_gigabytes_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "big.whl"
    content = wheel("ops/_C.so", CODE)
    path.write_bytes(content[:4])
    os.truncate(path, 1 << 31)
    end = bytearray(content[-22:])
    end[12:16] = struct.pack("<I", (1 << 31) - 4)
    with path.open("ab") as file:
        file.write(end)

    with pytest.raises(VerifyError, match="a directory of 2147483644 bytes"):
        survey(path)
