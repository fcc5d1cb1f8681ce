"""One family of errors; a class is a kind of trouble and carries the exit code that scripts rely on."""

from __future__ import annotations

from typing import Any


class ToolError(Exception):
    """An expected failure, told in words: what was found, where, and what to do next.

    Args:
        message: The fact and its place, in one or a few lines.
        hint: The next step for the user; empty when the message already says it.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def as_json(self) -> dict[str, Any]:
        """Return what stands under ``error`` in the document of ``--json``."""
        return {"code": self.exit_code, "class": type(self).__name__, "message": self.message, "hint": self.hint}


class UsageError(ToolError):
    """A wrong command line, configuration or input file."""

    exit_code = 2


class HostError(ToolError):
    """This host cannot do the job: a tool, an engine, space or memory is missing."""

    exit_code = 3


class UpstreamError(ToolError):
    """Upstream, network or registry could not be asked: the answer is unknown."""

    exit_code = 4


class PatchError(ToolError):
    """A patch of the series does not apply as it must."""

    exit_code = 5


class BuildError(ToolError):
    """The image build failed."""

    exit_code = 6


class VerifyError(ToolError):
    """An image, or a link of its chain, is not what it must be."""

    exit_code = 7


class RegistryError(ToolError):
    """A publish or a pull failed."""

    exit_code = 8


class DeployError(ToolError):
    """A deployment failed; what ran before it runs on or was brought back."""

    exit_code = 9
