"""The engine's answers: its JSON as our data, its failures as our errors."""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Any

from builder.engine.port import Container, Image
from builder.errors import HostError, RegistryError, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

PROGRESS_SECONDS = 10.0
LAYER_ENDS = {"Pushed", "Pull complete", "Layer already exists", "Already exists"}
# "Digest: sha256:…" ends a pull; "TAG: digest: sha256:… size: N" a push, and containerd's store says it nowhere else
_DIGEST = re.compile(r"(?:\S+: )?digest: (sha256:[0-9a-f]{64})(?: size: \d+)?\s*$", re.IGNORECASE)
GONE = "it was never pushed there, or was deleted: publish again, or pin another"
# the first that is found in a message counts
HINTS = {
    r"manifest unknown|manifest for .* not found|not found: manifest|@sha256:[0-9a-f]{64}\S*: not found": GONE,
    r"unauthorized|denied|authentication required|no basic auth":
        "log in with `docker login`, and check that you may use this repository",
    r"server gave HTTP response to HTTPS":
        "the registry speaks plain http: use a loopback address, or list it as insecure-registries of the engine",
    r"x509|certificate":
        "the engine does not trust the registry's certificate: put its CA into /etc/docker/certs.d/<registry>/ca.crt",
    r"toomanyrequests|too many requests|rate limit":
        "the registry limits how often it is asked: log in with `docker login`, or wait, then try again",
    r"HTTP 413|unexpected (?:HTTP )?status.* 413|entity too large":
        "the registry, or a proxy before it, takes no layer of this size: raise its limit, or take another registry",
    r"unexpected (?:HTTP )?status.* 5[0-9]{2}\b|bad gateway|service unavailable|/v2/.*deadline exceeded":
        "the registry has a fault or is overloaded: try again; finished layers are kept",
    r"no such host|connection refused|i/o timeout|handshake timeout|network is unreachable|EOF|connection reset":
        "the registry cannot be reached from the engine's host: check its address and the network, then try again",
    r"no space left on device|disk quota":
        "free space where the engine keeps its data: `docker system df`, `docker system prune`",
    r"does not exist locally|no such image|tag does not exist": "the engine has no such image: build or pull it first",
}  # fmt: skip


def image(told: dict[str, Any], history: Iterable[dict[str, Any]]) -> Image:
    """Return the image of an inspect answer and a history answer."""
    config = told.get("Config") or {}
    layers = list(history)
    health = tuple((config.get("Healthcheck") or {}).get("Test") or ())
    return Image(
        id=told["Id"],
        repo_digests=tuple(sorted(told.get("RepoDigests") or ())),
        tags=tuple(sorted(told.get("RepoTags") or ())),
        labels=dict(config.get("Labels") or {}),
        environment=tuple(config.get("Env") or ()),
        entrypoint=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
        user=config.get("User") or "",
        # containerd's store says what it takes packed
        size=max(int(told.get("Size") or 0), sum(int(layer.get("Size") or 0) for layer in layers)),
        history=tuple(layer.get("CreatedBy") or "" for layer in layers),
        layers=tuple(int(layer.get("Size") or 0) for layer in layers),
        healthcheck=() if health == ("NONE",) else health,
    )


def container(told: dict[str, Any]) -> Container:
    """Return the container of an inspect answer."""
    state = told["State"]
    ended = state["Status"] in {"exited", "dead"}
    return Container(
        id=told["Id"],
        name=told["Name"].lstrip("/"),
        image_id=told["Image"],
        state=state["Status"],
        exit_code=state.get("ExitCode") if ended else None,
        out_of_memory=bool(state.get("OOMKilled")),
        restarts=int(told.get("RestartCount") or 0),
        # an engine writes year 1 for "never"
        started_at="" if state.get("StartedAt", "").startswith("0001-") else state.get("StartedAt", ""),
        labels=dict((told.get("Config") or {}).get("Labels") or {}),
        shm_bytes=int((told.get("HostConfig") or {}).get("ShmSize") or 0),
    )


@contextlib.contextmanager
def answering(engine: str, what: str, failure: type[ToolError] = HostError) -> Iterator[None]:
    """Turn what docker-py raises inside the block into our errors.

    Args:
        engine: The engine's name, for the message.
        what: What was asked of it, such as ``start the container x``.
        failure: The class for an answer that says no; an engine that does not answer is a HostError, and for a
            RegistryError's question it is the registry behind it that does not.
    """
    import docker.errors
    import requests
    import urllib3

    try:
        yield
    except docker.errors.APIError as no:
        said = str(no.explanation or no)
        raise failure(f"{engine} could not {what}: {said}", hint=hint(said)) from no
    except (requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError) as late:
        if failure is RegistryError:
            raise RegistryError(
                f"could not {what}: nothing came for a long time", hint="the registry or the way to it hangs: try again"
            ) from late
        raise HostError(
            f"{engine} did not answer in time when asked to {what}", hint="look at its log; restart it when it hangs"
        ) from late
    except (
        requests.RequestException,
        urllib3.exceptions.HTTPError,
        docker.errors.DockerException,
        ConnectionError,
        TimeoutError,
    ) as lost:
        raise HostError(
            f"{engine} was lost when asked to {what}: {lost}", hint="check that it still runs (`docker version`)"
        ) from lost


def hint(said: str) -> str:
    """Return the next step for a message of the engine or the registry, or an empty text."""
    return next((step for pattern, step in HINTS.items() if re.search(pattern, said, re.IGNORECASE)), "")


def follow_transfer(events: Iterable[dict[str, Any]], what: str, on_progress: Callable[[str], None]) -> str | None:
    """Read a push or pull to its end: a failure is only in the stream, the call itself succeeds.

    Args:
        events: The daemon's JSON stream.
        what: ``push x`` or ``pull x``, for messages.
        on_progress: Takes a line when a layer is finished and every ten seconds while some are on their way.

    Returns:
        The manifest's digest, or None when the stream names none.

    Raises:
        RegistryError: The stream holds an error; with the daemon's own message.
    """
    digest: str | None = None
    error: str | None = None
    layers: dict[str, tuple[int, int]] = {}
    told = time.monotonic()
    for event in events:
        # read on to the end, where the connection is given back
        error = error or (event.get("errorDetail") or {}).get("message") or event.get("error")
        status, layer = str(event.get("status", "")), event.get("id")
        named = _DIGEST.match(status) if layer is None else None
        digest = named[1] if named else (event.get("aux") or {}).get("Digest", digest)
        detail = event.get("progressDetail") or {}
        if layer and status in {"Pushing", "Downloading"} and detail.get("current"):
            layers[layer] = (detail["current"], detail.get("total") or layers.get(layer, (0, 0))[1])
        elif layer and (status in LAYER_ENDS or status.startswith("Mounted from ")):
            on_progress(f"{what}: {layer} {status.lower()}")
        if layers and time.monotonic() - told >= PROGRESS_SECONDS:
            told = time.monotonic()
            done, total = (sum(pair[i] for pair in layers.values()) for i in (0, 1))
            on_progress(f"{what}: {done / 1e6:.0f} of {max(done, total) / 1e6:.0f} MB")
    if error:
        raise RegistryError(f"could not {what}: {error}", hint=hint(error))
    return digest
