"""The history of a deployment: what ran when, and which image is the way back. One JSON file a profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from builder.errors import UsageError
from builder.files import canonical_json, read_text, write_atomic
from builder.models.base import Data, Digest, Name, validated

Event = Literal["ready", "failed", "stopped", "rolled-back"]
KEPT = 200


class Entry(Data):
    """One event.

    Attributes:
        at: UTC time, ISO 8601.
        event: What happened.
        image: What was started: ``repository@digest``, or the engine's id of an image that was not published.
        image_id: The engine's id of it.
        seconds: Seconds to the first answered prompt, or until it failed.
        note: The first line of the reason, for a failure.
        model: The model folder on the host; empty when there was none.
        drafter: The draft model's folder; empty when there was none.
        kv_tokens: What the KV cache held, as the log said; 0 when it did not say.
    """

    at: str
    event: Event
    image: str
    image_id: Digest
    seconds: float = 0.0
    note: str = ""
    model: str = ""
    drafter: str = ""
    kv_tokens: int = 0


class History(Data):
    """All events of a profile, oldest first."""

    format: Literal[1] = 1
    profile: Name
    entries: tuple[Entry, ...] = ()

    def last_ready(self, *, but: str = "") -> Entry | None:
        """Return the newest entry that became ready, leaving out the image ``but``."""
        return next((e for e in reversed(self.entries) if e.event == "ready" and e.image_id != but), None)

    def usual_seconds(self, image_id: str) -> float | None:
        """Return the seconds that the last start of an image took until it was ready, or None when there was none."""
        starts = (e.seconds for e in reversed(self.entries) if e.event == "ready" and e.image_id == image_id)
        return next(starts, None)


def read_history(state: Path, profile: str) -> History:
    """Return the history of a profile; empty when there is none.

    Raises:
        UsageError: The file is damaged or of a newer version.
    """
    path = _path(state, profile)
    if not path.exists():
        return History(profile=profile)
    try:
        value = json.loads(read_text(path))
    except ValueError as trouble:
        raise UsageError(
            f"{path} is no JSON: {trouble}", hint="move it away; the containers are not touched"
        ) from trouble
    return validated(History, value, path)


def append(state: Path, profile: str, entry: Entry) -> None:
    """Add an event to a profile's history."""
    history = read_history(state, profile)
    entries = (*history.entries, entry)[-KEPT:]
    write_atomic(_path(state, profile), canonical_json(history.model_copy(update={"entries": entries}).model_dump()))


def _path(state: Path, profile: str) -> Path:
    return state / "deployments" / f"{profile}.json"
