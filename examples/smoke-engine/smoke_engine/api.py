"""The HTTP interface: health, models, metrics and OpenAI's two ways to ask for text."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse

from smoke_engine import __version__
from smoke_engine.defaults import DEFAULT_MAX_TOKENS
from smoke_engine.engine import Engine, Job, Piece
from smoke_engine.metrics import CONTENT_TYPE
from smoke_engine.protocol import (
    LAST_EVENT,
    ApiError,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    event,
)
from smoke_engine.text import chat_prompt, token_count


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How the two kinds of answer differ on the wire."""

    id_prefix: str
    whole: str  # the object of an answer in one piece
    chunk: str  # the object of a streamed part
    is_chat: bool

    def choice(self, text: str, finish_reason: str | None, *, streamed: bool) -> dict[str, Any]:
        """The one choice of an answer or a part."""
        if not self.is_chat:
            content: dict[str, Any] = {"text": text}
        elif streamed:
            content = {"delta": {"content": text}}
        else:
            content = {"message": {"role": "assistant", "content": text}}
        return {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}


COMPLETION = Shape(id_prefix="cmpl-", whole="text_completion", chunk="text_completion", is_chat=False)
CHAT = Shape(id_prefix="chatcmpl-", whole="chat.completion", chunk="chat.completion.chunk", is_chat=True)


def create_app(engine: Engine) -> FastAPI:
    """The application of a loaded engine."""
    app = FastAPI(title="smoke-engine", version=__version__)
    _add_status_routes(app, engine)

    @app.post("/v1/completions")
    async def completions(request: CompletionRequest, connection: Request) -> Response:
        """Continue a text."""
        job = _job(engine, request, request.prompt_text(), request.max_tokens, DEFAULT_MAX_TOKENS)
        return await _respond(engine, request, connection, job, COMPLETION)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: ChatRequest, connection: Request) -> Response:
        """Answer in a conversation; without a limit the answer may fill the context."""
        wanted = request.max_completion_tokens or request.max_tokens
        job = _job(engine, request, chat_prompt(request.turns()), wanted, engine.max_model_len)
        return await _respond(engine, request, connection, job, CHAT)

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body(), status_code=error.status)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        invalid = ApiError(HTTPStatus.BAD_REQUEST, f"{where or 'body'}: {first['msg']}", param=where or None)
        return JSONResponse(invalid.body(), status_code=invalid.status)

    return app


def _add_status_routes(app: FastAPI, engine: Engine) -> None:
    started = int(time.time())

    @app.get("/health")
    async def health() -> Response:
        """200 while the engine lives."""
        return Response()

    @app.get("/version")
    async def version() -> dict[str, str]:
        """The version of the installed package."""
        return {"version": __version__}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        model = {"id": engine.served_name, "object": "model", "created": started, "owned_by": "smoke-engine"}
        return {"object": "list", "data": [{**model, "root": engine.model, "max_model_len": engine.max_model_len}]}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text."""
        return Response(engine.metrics.text(), headers={"content-type": CONTENT_TYPE})


def _job(engine: Engine, request: GenerationRequest, prompt: str, wanted: int | None, default: int) -> Job:
    """Check a request against the model that is served.

    Raises:
        ApiError: another model, an empty prompt, or more tokens than the context holds.
    """
    if request.model is not None and request.model != engine.served_name:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"The model `{request.model}` does not exist: this is `{engine.served_name}`",
            param="model",
        )
    prompt_tokens = token_count(prompt)
    if prompt_tokens == 0:
        raise ApiError(HTTPStatus.BAD_REQUEST, "The prompt is empty", param="prompt")
    room = engine.max_model_len - prompt_tokens
    if room < (wanted or 1):
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            f"This model's maximum context length is {engine.max_model_len} tokens. However, the prompt has "
            f"{prompt_tokens} and the answer may take {wanted or 1}: shorten one of them",
            param="max_tokens" if room > 0 else "prompt",
        )
    return Job(
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        max_tokens=wanted or min(default, room),
        ignore_eos=request.ignore_eos,
    )


async def _respond(engine: Engine, request: GenerationRequest, connection: Request, job: Job, shape: Shape) -> Response:
    head = {"id": shape.id_prefix + uuid.uuid4().hex, "created": int(time.time()), "model": engine.served_name}
    if request.stream:
        events = _events(engine, request, job, shape, {**head, "object": shape.chunk})
        return StreamingResponse(_while_connected(events, connection), media_type="text/event-stream")
    pieces = [piece async for piece in engine.answer(job)]
    choice = shape.choice("".join(piece.text for piece in pieces), pieces[-1].finish_reason, streamed=False)
    return JSONResponse({**head, "object": shape.whole, "choices": [choice], "usage": _usage(job, len(pieces) - 1)})


async def _while_connected(events: AsyncGenerator[str, None], connection: Request) -> AsyncGenerator[str, None]:
    """Pass the events on until the client goes away, which uvicorn 0.32.0 tells nobody who does not ask."""
    async with aclosing(events):
        async for line in events:
            if await connection.is_disconnected():
                return
            yield line


async def _events(
    engine: Engine, request: GenerationRequest, job: Job, shape: Shape, head: dict[str, Any]
) -> AsyncGenerator[str, None]:
    with_usage = request.stream_options is not None and request.stream_options.include_usage
    no_usage = {"usage": None} if with_usage else {}
    if shape.is_chat:
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        yield event({**head, "choices": [first], **no_usage})
    generated = 0
    async with aclosing(engine.answer(job)) as pieces:
        async for piece in pieces:
            generated += _is_token(piece)
            choice = shape.choice(piece.text, piece.finish_reason, streamed=True)
            yield event({**head, "choices": [choice], **no_usage})
    if with_usage:
        yield event({**head, "choices": [], "usage": _usage(job, generated)})
    yield LAST_EVENT


def _is_token(piece: Piece) -> bool:
    return piece.finish_reason is None


def _usage(job: Job, generated: int) -> dict[str, int]:
    return {
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": job.prompt_tokens + generated,
    }
