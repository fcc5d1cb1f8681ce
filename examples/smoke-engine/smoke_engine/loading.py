"""Loading: what an engine does, and says, between its start and the moment it listens."""

import json
import logging
import time
from pathlib import Path

from smoke_engine.defaults import DEFAULT_MAX_MODEL_LEN, KV_CACHE_TOKENS
from smoke_engine.moods import Moods
from smoke_engine.native import load_library

logger = logging.getLogger(__name__)

_SHARDS = 8
_GRAPH_SIZES = (1, 2, 4, 8)
_STEPS = _SHARDS + len(_GRAPH_SIZES)


class LoadingError(Exception):
    """The engine cannot start; the message is the last thing it logs."""


def context_length(model: str, wanted: int | None) -> int:
    """The context to serve, in tokens: what is wanted, else the model's own, else the default.

    A model that is a folder states its own in config.json; any other name stands for the toy model.

    Raises:
        LoadingError: the folder is missing or is no checkpoint, or it holds less context than is wanted.
    """
    folder = Path(model)
    if not folder.is_dir():
        if folder.is_absolute():
            raise LoadingError(f"There is no folder {model}: is the model's volume mounted?")
        return wanted or DEFAULT_MAX_MODEL_LEN
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadingError(f"{model} is no checkpoint: its config.json cannot be read ({error})") from error
    own = int(config.get("max_position_embeddings", wanted or DEFAULT_MAX_MODEL_LEN))
    if wanted and wanted > own:
        raise LoadingError(f"--max-model-len {wanted} is more than the {own} tokens that {model}/config.json allows")
    return wanted or own


def load(model: str, max_model_len: int, moods: Moods) -> None:
    """Load, or do what the mood wants instead.

    Raises:
        LoadingError: the engine cannot start.
    """
    _load_native()
    pause = moods.start_seconds / _STEPS
    logger.info("Starting to load model %s", model)
    for shard in range(1, _SHARDS + 1):
        logger.info("Loading shards %d/%d", shard, _SHARDS)
        time.sleep(pause)
    if moods.start_fails:
        raise LoadingError("Engine core initialization failed: SMOKE_START_FAILS is set")
    if moods.out_of_memory:
        raise LoadingError(
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.41 GiB. "
            "GPU 0 has a total capacity of 23.98 GiB of which 1.02 GiB is free."
        )
    logger.info("GPU KV cache size: %s tokens", f"{KV_CACHE_TOKENS:,}")
    concurrency = KV_CACHE_TOKENS / max_model_len
    logger.info("Maximum concurrency for %s tokens per request: %.2fx", f"{max_model_len:,}", concurrency)
    for done, size in enumerate(_GRAPH_SIZES, start=1):
        logger.info("Capturing graphs %d/%d (batch size %d)", done, len(_GRAPH_SIZES), size)
        time.sleep(pause)
    while moods.never_ready:
        logger.info("Waiting for the engine core to come up")
        time.sleep(5)


def _load_native() -> None:
    """Load the native library; without it the engine goes on, so that a broken build is for others to notice."""
    try:
        library = load_library()
    except OSError as error:
        logger.warning("Failed to load the native library: %s", error)
    else:
        logger.info("Native library loaded, %d GPU(s)", library.smoke_device_count())
