"""What clients send, and how errors look: the part of OpenAI's protocol that the engine speaks."""

import json
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ApiError(Exception):
    """An error for the client, with its HTTP status."""

    def __init__(self, status: HTTPStatus, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = "NotFoundError" if status == HTTPStatus.NOT_FOUND else "BadRequestError"
        self.param = param

    def body(self) -> dict[str, Any]:
        """The JSON that the client gets."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": int(self.status)}}


class StreamOptions(BaseModel):
    """Of a streamed answer."""

    include_usage: bool = False


class GenerationRequest(BaseModel):
    """What both kinds of request share. Sampling parameters are taken and change nothing."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    n: int = Field(default=1, ge=1, le=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False


class CompletionRequest(GenerationRequest):
    """/v1/completions: a prompt as text or as token ids, alone or as a list of one."""

    prompt: str | list[int] | list[str] | list[list[int]]

    def prompt_text(self) -> str:
        """The prompt as text; token ids become words."""
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise ApiError(
                    HTTPStatus.BAD_REQUEST, f"{len(prompt)} prompts in one request: send one", param="prompt"
                )
            prompt = prompt[0]
        return prompt if isinstance(prompt, str) else " ".join(str(token) for token in prompt)


class TextPart(BaseModel):
    """A part of a message's content."""

    text: str


class Message(BaseModel):
    """A turn of a conversation."""

    role: str
    content: str | list[TextPart]


class ChatRequest(GenerationRequest):
    """/v1/chat/completions: a conversation; the newer name of max_tokens is known too."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)

    def turns(self) -> list[dict[str, str]]:
        """The messages with their content as plain text."""
        return [
            {
                "role": message.role,
                "content": message.content
                if isinstance(message.content, str)
                else "\n".join(part.text for part in message.content),
            }
            for message in self.messages
        ]


def event(data: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"


LAST_EVENT = "data: [DONE]\n\n"
