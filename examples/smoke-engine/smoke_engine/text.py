"""The toy language model: a token is a word or a punctuation mark, and an answer follows from its prompt alone."""

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

_TOKEN = re.compile(r"\w+|[^\w\s]")
_WORDS = (  # noqa: SIM905 - 64 words in five lines
    "amber anchor basin birch canyon cedar cinder cobalt copper coral delta ember fern flint garnet glacier granite "
    "harbor hazel heron indigo iris jade juniper kelp lagoon lantern larch linen maple marble meadow mica mist moss "
    "nectar oak onyx opal orchid otter pebble pine plum quartz raven reed ridge river sage shale slate sparrow spruce "
    "thistle timber topaz tundra umber violet walnut willow"
).split()
_SHORTEST_ANSWER = 48
_LONGEST_ANSWER = 80


def token_count(text: str) -> int:
    """The number of tokens that a text takes."""
    return sum(1 for _ in _TOKEN.finditer(text))


def answer_tokens(prompt: str, *, endless: bool = False) -> Iterator[str]:
    """The tokens of the answer to a prompt, each with its leading blank; the same ones every time.

    An answer ends by itself after 48 to 80 tokens unless it is wanted endless, as with `ignore_eos`.
    """
    generator = random.Random(hashlib.sha256(prompt.encode()).digest())
    length = generator.randint(_SHORTEST_ANSWER, _LONGEST_ANSWER)
    position = 0
    while endless or position < length:
        yield " " + generator.choice(_WORDS)
        position += 1


def chat_prompt(messages: Sequence[Mapping[str, str]]) -> str:
    """The prompt of a conversation, from chat_template.txt and the messages' `role` and `content`."""
    template = resources.files("smoke_engine").joinpath("chat_template.txt").read_text(encoding="utf-8")
    return "".join(template.format(role=message["role"], content=message["content"]) for message in messages)
