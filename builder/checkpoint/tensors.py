"""Safetensors headers: the names, dtypes and shapes of a checkpoint's tensors, and no byte of its weights.

The format is 8 bytes of header length (little endian), that many bytes of JSON, then the data; the header is at
most 100 MB (https://github.com/huggingface/safetensors, "Format").
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.errors import UsageError
from builder.files import inside, opened, read_text

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "model.safetensors.index.json"
HEADER_LIMIT = 100_000_000
INDEX_LIMIT = 100_000_000
LENGTH_BYTES = 8
DOWNLOAD_AGAIN = "download the file again"
BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class Tensor(NamedTuple):
    """One tensor as its file's header describes it.

    Attributes:
        name: Its name in the checkpoint, such as ``mtp.fc.weight``.
        dtype: The format's name of the element type, such as ``BF16``.
        shape: Its dimensions.
        shard: The file that holds it, relative to the checkpoint.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str


class Shards(NamedTuple):
    """The tensors of a checkpoint.

    Attributes:
        tensors: Every tensor that a file holds, by name.
        notes: What a person should know about the files.
    """

    tensors: dict[str, Tensor]
    notes: tuple[str, ...]


def read_shards(folder: Path) -> Shards:
    """Read the headers of all safetensors files of a checkpoint and hold them against its index.

    Engines load the files that the index names and skip the others, so a tensor of an unlisted file yields to one
    of the same name in a listed file.

    Raises:
        UsageError: A file or the index is not what the format says, or they contradict each other.
    """
    weight_map = _weight_map(folder / INDEX)
    present = {entry.name for entry in os.scandir(folder) if _is_shard(entry.name)}
    listed = present if weight_map is None else set(weight_map.values())
    for shard in sorted(listed - present):
        if not (folder / shard).is_file():
            raise UsageError(f"{folder / INDEX} names the shard {shard!r}, which is not there", hint=DOWNLOAD_AGAIN)
    tensors: dict[str, Tensor] = {}
    for shard in sorted(listed):
        for tensor in read_header(folder / shard, shard):
            other = tensors.setdefault(tensor.name, tensor)
            if other is not tensor:
                raise UsageError(f"{folder}: the tensor {tensor.name!r} stands in {other.shard!r} and in {shard!r}")
    for name, shard in (weight_map or {}).items():
        if name not in tensors or tensors[name].shard != shard:
            raise UsageError(f"{folder / INDEX} looks for {name!r} in {shard!r}, whose header does not have it")
    notes = []
    for shard in sorted(present - listed):
        found = [tensor for tensor in read_header(folder / shard, shard) if tensor.name not in tensors]
        tensors.update((tensor.name, tensor) for tensor in found)
        if any("mtp" in tensor.name for tensor in found):
            notes.append(f"{shard} holds MTP tensors, but {INDEX} does not name it: engines skip the file")
    return Shards(tensors, tuple(notes))


def read_header(path: Path, shard: str) -> list[Tensor]:
    """Return the tensors of one safetensors file; only its header is read.

    Args:
        path: The file.
        shard: How messages and tensors name it.

    Raises:
        UsageError: The header is cut off, too long, not JSON, or says what the file's size rules out.
    """
    with opened(path) as whole:
        file = whole.fileno()
        size = os.fstat(file).st_size
        if size < LENGTH_BYTES:
            raise UsageError(f"{path} is cut off: {size} bytes hold no safetensors header", hint=DOWNLOAD_AGAIN)
        length = int.from_bytes(_read(file, LENGTH_BYTES, 0), "little")
        if length > HEADER_LIMIT:
            raise UsageError(f"{path} claims a header of {length} bytes, more than the format's {HEADER_LIMIT}")
        if length > size - LENGTH_BYTES:
            raise UsageError(
                f"{path} is cut off: its header should have {length} bytes, the file has {size - LENGTH_BYTES} left",
                hint=DOWNLOAD_AGAIN,
            )
        raw = _read(file, length, LENGTH_BYTES)
    header = parse_json(_utf8(raw, path), f"{path}: the header")
    if not isinstance(header, dict):
        raise UsageError(f"{path}: the header is no JSON object")
    room = size - LENGTH_BYTES - length
    return [_tensor(name, entry, room, path, shard) for name, entry in header.items() if name != "__metadata__"]


def parse_json(text: str, what: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a JSON text; ``what`` names it in messages.

    Raises:
        UsageError: It is not JSON, is nested too deeply, or an object has a name twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError as trouble:
        raise UsageError(f"{what} is nested too deeply") from trouble
    except ValueError as trouble:
        raise UsageError(f"{what} is not sound JSON: {trouble}") from trouble


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        msg = f"the name {twice!r} stands twice in one object"
        raise ValueError(msg)
    return value


def _is_shard(name: str) -> bool:
    return name.endswith(".safetensors") and not name.startswith(".")


def _weight_map(path: Path) -> dict[str, str] | None:
    """Return the index's map from tensor to file, or None when there is no index."""
    if not os.path.lexists(path):
        return None
    value = parse_json(read_text(path, limit=INDEX_LIMIT), str(path))
    weight_map = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UsageError(f"{path} has no weight_map of tensors to files")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not name.isprintable() or not shard.isprintable():
            raise UsageError(f"{path}: the entry {name!r}: {shard!r} is no pair of plain names")
    for shard in sorted(set(weight_map.values())):
        try:
            inside(shard)
        except UsageError as trouble:
            raise UsageError(f"{path} names the shard {shard!r}, which is not inside the folder") from trouble
    return weight_map


def _tensor(name: str, entry: object, room: int, path: Path, shard: str) -> Tensor:
    where = f"{path}: the tensor {name!r}"
    if not name.isprintable():
        raise UsageError(f"{where} has a name with a NUL or another unprintable character")
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), _sizes(fields.get("shape")), _sizes(fields.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2:  # noqa: PLR2004 - a pair
        raise UsageError(f"{where} lacks a sound dtype, shape or data_offsets")
    begin, end = offsets
    if not begin <= end <= room:
        raise UsageError(
            f"{where} lies at {begin}..{end}, outside the {room} bytes of data that the file has", hint=DOWNLOAD_AGAIN
        )
    if dtype in BITS and math.prod(shape) * BITS[dtype] != (end - begin) * 8:
        raise UsageError(f"{where} is {dtype} {shape}, which are not the {end - begin} bytes that it occupies")
    return Tensor(name, dtype, shape, shard)


def _sizes(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(item) is int and item >= 0 for item in value):
        return tuple(value)
    return None


def _utf8(raw: bytes, path: Path) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as trouble:
        raise UsageError(f"{path}: the header is not UTF-8 text") from trouble


def _read(file: int, count: int, offset: int) -> bytes:
    """Return exactly ``count`` bytes; a buffered reader would go on into the weights."""
    parts = []
    while count > 0:
        part = os.pread(file, count, offset)
        if not part:
            raise UsageError("a safetensors file became shorter while it was read", hint=DOWNLOAD_AGAIN)
        parts.append(part)
        count -= len(part)
        offset += len(part)
    return b"".join(parts)
