"""The source station: where an engine's code comes from, its exact files, and the version that they carry."""

from builder.source.folder import repository_of
from builder.source.git import GoneError
from builder.source.repository import LogEntry, Source, open_source
from builder.source.tree import Exported, Missing, export
from builder.source.version import matches, pin_environment, pinned_version, suspicious

__all__ = [
    "Exported",
    "GoneError",
    "LogEntry",
    "Missing",
    "Source",
    "export",
    "matches",
    "open_source",
    "pin_environment",
    "pinned_version",
    "repository_of",
    "suspicious",
]
