"""From the words of a serve command, or from a profile, to a :class:`Command`."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.lint.command import Box, Command, EngineName, Option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.models.profile import Profile

# the other spellings of flags that rules and plan look at: `vllm serve --help=all`, SGLang's server_args.py
ALIASES: dict[str, dict[str, str]] = {
    "vllm": {
        "-tp": "--tensor-parallel-size",
        "-q": "--quantization",
        "--spec-num-tokens": "--spec-tokens",
        "--kv-cache-memory": "--kv-cache-memory-bytes",
    },
    "sglang": {
        "--tp": "--tp-size",
        "--tensor-parallel-size": "--tp-size",
        "--model": "--model-path",
        "--speculative-draft-model": "--speculative-draft-model-path",
        "--speculative-dflash-block-size": "--speculative-num-draft-tokens",
        "--speculative-dflash-draft-window-size": "--speculative-draft-window-size",
    },
}
SHORT = re.compile(r"-[a-zA-Z]+$")


def of_profile(profile: Profile, *, version: str | None = None) -> Command:
    """Return a profile's command.

    Raises:
        UsageError: Its engine is not one whose flags are known here.
    """
    if profile.engine not in {"vllm", "sglang"}:
        raise UsageError(
            f"the flags of the profile {profile.name} ({profile.engine or 'no engine is named'}) are not known here",
            hint="lint and plan know vllm and sglang",
        )
    return of_words(profile.command, profile.environment, engine=profile.engine, version=version)


def of_words(
    words: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    engine: EngineName | None = None,
    box: Box | None = None,
    version: str | None = None,
) -> Command:
    """Return the command of an engine's words; the engine is told by the words, else by the image's name.

    Raises:
        UsageError: Neither tells which engine it is.
    """
    given = list(words)
    if len(given) == 3 and given[0].rsplit("/", 1)[-1] in {"sh", "bash"} and given[1].endswith("c"):  # noqa: PLR2004
        given = [word for word in split(given[2]) if word != "exec"]
    variables = dict(environment or {})
    while given and re.match(r"[A-Za-z_]\w*=|(?:\S*/)?env$", given[0]):
        name, joined, value = given.pop(0).partition("=")
        if joined:
            variables[name] = value
    named: EngineName = engine or _engine(given, box.image if box else "")
    head, options = _options(given, named)
    return Command(
        engine=named, head=head, options=options, environment=variables, box=box, version=version_numbers(version)
    )


def split(text: str, where: str = "") -> list[str]:
    """Return the words of a shell line; ``where`` is for messages.

    Raises:
        UsageError: A quotation mark is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as trouble:
        raise UsageError(f"{where}{text[:120]!r} is no shell line: {trouble} (is a quotation mark open?)") from trouble


def version_numbers(text: str | None) -> tuple[int, ...] | None:
    """Return ``0.30.1`` as (0, 30, 1); None for none, and for a development version, which says nothing.

    Raises:
        UsageError: It is no version.
    """
    if text is None or text.startswith(("0.0", "0.1.dev")):
        return None
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    if not found:
        raise UsageError(f"{text!r} is no engine version", hint="give it as 0.31 or 0.31.2")
    return tuple(int(part) for part in found.groups() if part is not None)


def _engine(words: list[str], image: str) -> EngineName:
    text = " ".join(words)
    if "sglang" in text.split(" --")[0] or re.search(r"--(model-path|tp-size|mem-fraction-static)\b", text):
        return "sglang"
    if "vllm" in text.split(" --")[0] or re.search(r"--(tensor-parallel-size|max-model-len|kv-cache-dtype)\b", text):
        return "vllm"
    if "sglang" in image.lower():
        return "sglang"
    if "vllm" in image.lower():
        return "vllm"
    raise UsageError(
        f"neither vLLM nor SGLang is started by {text[:120]!r}",
        hint="give `vllm serve MODEL …` or `python -m sglang.launch_server …` after --",
    )


def _options(words: list[str], engine: EngineName) -> tuple[tuple[str, ...], tuple[Option, ...]]:
    """Split an engine's words into what stands before the first flag and the flags with their values."""
    module = words.index("-m") + 2 if "-m" in words else 0
    start = next((i for i, word in enumerate(words) if i >= module and _is_flag(word)), len(words))
    options: list[Option] = []
    for word in words[start:]:
        if _is_flag(word):
            written, joined, value = word.partition("=")
            flag = written.replace("_", "-")
            flag = ALIASES[engine].get(flag, flag)
            options.append(
                Option(flag=flag, values=(value,) if joined else (), written=written if written != flag else "")
            )
        else:
            options[-1] = replace(options[-1], values=(*options[-1].values, word))
    return tuple(words[:start]), tuple(options)


def _is_flag(word: str) -> bool:
    return word.startswith("--") or bool(SHORT.match(word))
