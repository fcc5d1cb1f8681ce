"""Which versions of ROCm, torch, triton, torchvision and Python go together: a table of what was seen to work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import UsageError
from builder.models.base import Data

if TYPE_CHECKING:
    from collections.abc import Mapping

TRITONS = ("triton-rocm", "triton", "pytorch-triton-rocm")


class Mix(Data):
    """One mix of versions.

    Attributes:
        rocm: ROCm release of the base images and of torch's build.
        torch: Version of torch, with the local part.
        triton: Version of the distribution that owns ``triton/``; None where torch's own requirement decides.
        torchvision: Version of torchvision; None where there is none.
        python: Python of the wheels.
        source: Where the mix was seen.
    """

    rocm: str
    torch: str
    triton: str | None = None
    torchvision: str | None = None
    python: str
    source: str = ""

    @classmethod
    def of(cls, rocm: str, python: str, versions: Mapping[str, str]) -> Mix:
        """Return the mix that a stack's pinned wheels are."""
        triton = next((versions[name] for name in TRITONS if name in versions), None)
        return cls(
            rocm=rocm, torch=versions["torch"], triton=triton, torchvision=versions.get("torchvision"), python=python
        )

    def parts(self) -> dict[str, str]:
        """Return the versions by what they are of."""
        return self.model_dump(exclude={"source"}, exclude_none=True)


class Compatibility(Data):
    """The table."""

    mixes: tuple[Mix, ...]

    def check(self, mix: Mix, stack: str) -> None:
        """Accept a mix of the table.

        Raises:
            UsageError: It is none of them; the message names the nearest one and what differs from it.
        """
        given = mix.parts()
        if any(given.items() <= row.parts().items() for row in self.mixes):
            return
        best = min(self.mixes, key=lambda row: len(_differing(given, row)))
        differing = _differing(given, best)
        raise UsageError(
            f"the stack {stack} mixes {_told(given)}, which was not seen to work",
            hint=f"the nearest good mix has {_told({name: best.parts().get(name, 'none') for name in differing})}"
            f" instead ({best.source}); a new one belongs into stacks/shared/compatibility.yaml",
        )


def _differing(given: Mapping[str, str], row: Mix) -> list[str]:
    there = row.parts()
    return [name for name, version in given.items() if there.get(name) != version]


def _told(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in parts.items())
