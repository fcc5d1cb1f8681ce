"""Ask a server its first prompts: one file of the standard library, for ``serve`` and for the probes of ``export``.

Run by itself it ends with 0 when every prompt was answered:

    python3 warm-up.py http://127.0.0.1:8080 --prompt hi --contexts 512,2048 [--within 1800] [--mark FILE]

A prompt is sampled, never greedy: on an idle gfx1100 a greedy one can make the sampler read past its end
(``top_k=0``) and kill the queue.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

REQUEST_SECONDS = 5.0
PAUSE_SECONDS = 2.0
TEMPERATURE = 0.7
ANSWER_TOKENS = 8
# ids that are plain text pieces in the vocabularies of today, down to the smallest; special ones lie below or above
FIRST_ID, IDS = 300, 200
CONTEXTS = (512, 2048, 8192, 32768)
CLIENT_ERROR, SERVER_ERROR = 400, 500
# what goes wrong between two ends; HTTPError is a URLError, and that is an OSError
UNANSWERED = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError)

# no proxy stands between this and a server of ours, whatever the environment says
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class RefusedError(Exception):
    """The server is fine and does not want this prompt (HTTP 4xx)."""


def healthy(url: str) -> bool:
    """Return whether a health endpoint answers 200."""
    try:
        with _open(url, timeout=REQUEST_SECONDS) as answer:
            return bool(answer.status == http.client.OK)
    except UNANSWERED:
        return False


def served(base: str) -> tuple[str, int | None]:
    """Return the name of the model that a server has, and the tokens of its longest context when it says so."""
    with _open(f"{base}/v1/models", timeout=REQUEST_SECONDS) as answer:
        model = json.load(answer)["data"][0]
    longest = model.get("max_model_len")
    return str(model["id"]), longest if isinstance(longest, int) else None


def ask(base: str, model: str, prompt: str | list[int], *, timeout: float) -> str:
    """Send one sampled prompt, as text or as token ids, and return the text of the answer.

    Raises:
        RefusedError: The server does not take such a prompt.
        OSError, http.client.HTTPException, ValueError, LookupError, TypeError: It did not answer, or no completion.
    """
    body = {"model": model, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": TEMPERATURE}
    request = urllib.request.Request(  # noqa: S310 - http is what these servers speak
        f"{base}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with _open(request, timeout=timeout) as answer:
            return str(json.load(answer)["choices"][0]["text"])
    except urllib.error.HTTPError as no:
        said = no.read(2000).decode(errors="replace")
        no.close()
        if CLIENT_ERROR <= no.code < SERVER_ERROR:
            raise RefusedError(f"HTTP {no.code}: {said}") from no
        raise ValueError(f"HTTP {no.code}: {said}") from no


def prompt_of(tokens: int) -> list[int]:
    """Return a prompt of so many token ids; two lengths share no beginning, so a prefix cache has none of it."""
    return [FIRST_ID + (at * 7 + tokens) % IDS for at in range(tokens)]


def contexts_within(longest: int | None) -> tuple[int, ...]:
    """Return the prompt lengths to warm up, with room for an answer; none when the longest context is not known."""
    return tuple(min(tokens, longest - ANSWER_TOKENS) for tokens in CONTEXTS if tokens <= longest) if longest else ()


def warm_up(base: str, prompt: str, contexts: tuple[int, ...] | None, *, timeout: float) -> list[str]:
    """Ask the prompt and then one prompt for each context; return what was done, a line each.

    Args:
        base: ``http://host:port``.
        prompt: The first prompt.
        contexts: Prompt lengths in tokens, or None for the usual ones that fit.
        timeout: Seconds for each answer.
    """
    model, longest = served(base)
    done = [f"{model} answered {ask(base, model, prompt, timeout=timeout)!r}"]
    for tokens in contexts_within(longest) if contexts is None else contexts:
        began = time.monotonic()
        try:
            ask(base, model, prompt_of(tokens), timeout=timeout)
        except RefusedError as no:
            done.append(f"{tokens} tokens were refused: {no}")
        else:
            done.append(f"{tokens} tokens answered in {time.monotonic() - began:.2f} s")
    return done


def main(arguments: list[str] | None = None) -> int:
    """Warm a server up from the command line; return 0 when it is, 1 when it is not."""
    parser = argparse.ArgumentParser(prog="warm-up", description="Ask a server its first prompts.")
    parser.add_argument("base", help="http://host:port")
    parser.add_argument("--prompt", default="hi")
    parser.add_argument("--contexts", help="prompt lengths in tokens, joined by commas; by default those that fit")
    parser.add_argument("--health", default="/health", help="endpoint that is asked once the server is warm")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one answer")
    parser.add_argument("--within", type=float, default=0.0, help="seconds to go on trying")
    parser.add_argument("--process", type=int, help="stop trying when this process is gone")
    parser.add_argument("--mark", type=Path, help="file that says that the server was warmed up already")
    options = parser.parse_args(arguments)
    if options.mark and options.mark.exists():
        return 0 if healthy(options.base + options.health) else 1
    contexts = None if options.contexts is None else tuple(int(word) for word in options.contexts.split(",") if word)
    deadline = time.monotonic() + options.within
    while True:
        try:
            done = warm_up(options.base, options.prompt, contexts, timeout=options.timeout)
        except (*UNANSWERED, RefusedError) as trouble:
            gone = options.process is not None and not Path(f"/proc/{options.process}").exists()
            if gone or time.monotonic() >= deadline:
                sys.stderr.write(f"{options.base} is not warm: {type(trouble).__name__}: {trouble}\n")
                return 1
            time.sleep(PAUSE_SECONDS)
            continue
        sys.stdout.write("\n".join(done) + "\n")
        if options.mark:
            options.mark.touch()
        return 0


if __name__ == "__main__":
    sys.exit(main())
