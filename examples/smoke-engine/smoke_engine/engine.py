"""The engine behind the server: takes jobs, yields answers, counts."""

import asyncio
import itertools
import logging
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from smoke_engine.metrics import Metrics
from smoke_engine.moods import Moods
from smoke_engine.text import answer_tokens

logger = logging.getLogger(__name__)

_ABORTED = 134  # what a shell shows for a process that abort() ended


@dataclass(frozen=True, kw_only=True)
class Job:
    """One prompt to answer."""

    prompt: str
    prompt_tokens: int
    max_tokens: int
    ignore_eos: bool


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A token of an answer, or its end: then the text is empty and there is a reason.

    It is "stop" for an answer that is whole, "length" for one that was cut, "abort" when the server stops.
    """

    text: str
    finish_reason: str | None = None


class Engine:
    """One loaded model: `model` is its name or folder, `served_name` what clients call it."""

    def __init__(self, *, model: str, served_name: str, max_model_len: int, moods: Moods) -> None:
        self.model = model
        self.served_name = served_name
        self.max_model_len = max_model_len
        self.metrics = Metrics(model=served_name)
        self._moods = moods
        self._stopping = False

    def stop(self) -> None:
        """End the answers that are under way at their next token."""
        self._stopping = True

    async def answer(self, job: Job) -> AsyncGenerator[Piece, None]:
        """Yield the answer token by token, then its end."""
        if self._moods.dies_at_prompt:
            _die()
        held = job.prompt_tokens
        reason = "abort"  # what stays when the client goes away or the server stops
        self.metrics.requests_running += 1
        self.metrics.prompt_tokens += job.prompt_tokens
        self.metrics.kv_tokens_in_use += held
        try:
            tokens = answer_tokens(job.prompt, endless=job.ignore_eos)
            for token in itertools.islice(tokens, job.max_tokens):
                await asyncio.sleep(self._moods.token_seconds)
                if self._stopping:
                    break
                held += 1
                self.metrics.generation_tokens += 1
                self.metrics.kv_tokens_in_use += 1
                yield Piece(text=token)
            else:
                reason = "length" if held == job.prompt_tokens + job.max_tokens else "stop"
            yield Piece(text="", finish_reason=reason)
        finally:
            self.metrics.requests_running -= 1
            self.metrics.kv_tokens_in_use -= held
            self.metrics.requests_finished[reason] += 1


def _die() -> None:
    """End the process at once, as a fault on the GPU does: no answer, no clean-up."""
    logger.error("HSA_STATUS_ERROR_EXCEPTION: an HSAIL operation resulted in a hardware exception. code: 0x1016")
    logging.shutdown()
    os._exit(_ABORTED)
