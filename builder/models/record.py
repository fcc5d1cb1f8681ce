"""A record: the chain of one build, from the upstream commit to the published digest; one JSON file."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from builder.errors import UsageError
from builder.files import canonical_json, read_text, write_atomic
from builder.models.base import Commit, Data, Digest, Name, Sha256, validated

# On an image of this program: which stack it is
STACK_LABEL = "io.gfx1100.stack"
Outcome = Literal["applied", "present", "unneeded", "failed"]


class PatchedFile(Data):
    """A file that a patch changed: its hash before and after; None where there is no file."""

    path: str
    before: Sha256 | None
    after: Sha256 | None


class PatchRecord(Data):
    """A patch of the series, its hash and what became of it."""

    id: Name
    sha256: Sha256
    outcome: Outcome
    reason: str = ""
    files: tuple[PatchedFile, ...] = ()


class Check(Data):
    """What one check of the verification found.

    Attributes:
        id: The check.
        status: Whether it passed; a skipped one could not be made.
        message: What was found, and where; or why it was skipped.
        means: What a failure means on the card; empty otherwise.
        fix: What to do about a failure; empty otherwise.
    """

    id: Name
    status: Literal["ok", "failed", "skipped"]
    message: str
    means: str = ""
    fix: str = ""


class Verification(Data):
    """The verdict over an image and the checks behind it.

    Attributes:
        verdict: ``failed`` when one check failed.
        checks: All checks.
        report_sha256: Hash of each report that the checks were made from: ``probe``, ``files``, ``objects``.
    """

    verdict: Literal["ok", "failed"]
    checks: tuple[Check, ...]
    report_sha256: dict[Name, Sha256] = Field(default_factory=dict)


class Published(Data):
    """Where the verified image was published."""

    repository: str
    tag: str
    digest: Digest


class Record(Data):
    """The chain of one build.

    Attributes:
        format: The version of this form.
        stack: The stack's name.
        created: UTC time with offset, ISO 8601.
        tool: Version of this program.
        lock_sha256: Hash of the lock's text.
        repository: Where the source came from, without credentials.
        ref: The full ref.
        commit: The upstream commit.
        version: The version that the engine carries.
        rocm: ROCm release of the stack, or None where the base's own packages bring HIP.
        patches: The series and its outcomes.
        dockerfile_sha256: Hash of the rendered Dockerfile.
        context_sha256: Hash of the whole build context.
        image_id: The engine's id of the image that was built.
        image_bytes: Bytes that it takes on disk; None in a record of an earlier version.
        kernels_sha256: Hash of the report on the kernels that were compiled before the build; None without one.
        unproven: What this build could not prove, a sentence each; a rehearsal's.
        verification: What the checks found; None before they ran.
        published: Where it went; None before that.
    """

    format: Literal[1]
    stack: Name
    created: str
    tool: str
    lock_sha256: Sha256
    repository: str
    ref: str
    commit: Commit
    version: str
    rocm: str | None = None
    patches: tuple[PatchRecord, ...]
    dockerfile_sha256: Sha256
    context_sha256: Sha256
    image_id: Digest
    image_bytes: int | None = None
    kernels_sha256: Sha256 | None = None
    unproven: tuple[str, ...] = ()
    verification: Verification | None = None
    published: Published | None = None

    def text(self) -> str:
        """Return the record's canonical JSON."""
        return canonical_json(self.model_dump(mode="json"))


def timestamp() -> str:
    """Return the time as records and histories write it: UTC with offset, ISO 8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def image_reference(record: Record) -> str:
    """Return what an engine calls the image: ``repository@digest`` once it is published, else its id."""
    published = record.published
    return f"{published.repository}@{published.digest}" if published else record.image_id


def write_record(folder: Path, record: Record) -> Path:
    """Write a record atomically and return its path: one file an image, so a later state replaces the earlier."""
    path = record_path(folder, record.stack, record.image_id)
    write_atomic(path, record.text())
    return path


def record_path(folder: Path, stack: str, image_id: str) -> Path:
    """Return where the record of an image is kept."""
    return folder / f"{stack}-{image_id.removeprefix('sha256:')[:16]}.json"


def read_record(path: Path) -> Record:
    """Return the record of a file; raises UsageError when it is not one."""
    return parse_record(read_text(path), path)


def parse_record(text: str, path: Path) -> Record:
    """Return the record of a text; ``path`` is for messages; raises UsageError when it is not one."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as trouble:
        raise UsageError(f"{path}: no record: {trouble}") from trouble
    if not isinstance(value, dict):
        raise UsageError(f"{path}: no record: it is no JSON object")
    return validated(Record, value, path)
