"""What every command gets: the checkout, the screen, the settings and, when it asks for it, the engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import HostError, UsageError

if TYPE_CHECKING:
    from builder.console import Console
    from builder.engine.port import Engine
    from builder.settings import Settings


@dataclass(frozen=True)
class State:
    """The surroundings of one command; nothing heavy is made before it is asked for."""

    root: Path
    console: Console
    yes: bool

    @cached_property
    def settings(self) -> Settings:
        """The settings of this machine."""
        from builder.settings import load_settings

        return load_settings(self.root)

    @cached_property
    def engine(self) -> Engine:
        """The container engine."""
        from builder.engine.docker import connect

        engine = connect()
        self.console.detail(f"engine: {engine.name}")
        return engine

    @property
    def records(self) -> Path:
        """Where the records of this checkout lie."""
        return self.root / ".gfx1100" / "records"


def find_root(named: Path | None) -> Path:
    """Return the checkout: the named folder, the one that this folder is in, or the one that the program lies in.

    Raises:
        HostError: The current folder, or one above it, cannot be read.
        UsageError: None of them has a ``stacks`` folder.
    """
    try:
        here = Path.cwd()
        places = [named.absolute()] if named else [here, *here.parents, Path(__file__).resolve().parents[2]]
        for place in places:
            if (place / "stacks").is_dir() and (place / "templates").is_dir():
                return place
    except OSError as trouble:
        raise HostError(
            f"{trouble.filename or 'the current folder'} cannot be read: {trouble.strerror}",
            hint="go to a folder that can be read",
        ) from trouble
    raise UsageError(
        f"no checkout of this project at {named or here}: a folder with stacks/ and templates/",
        hint="give it with --root DIR",
    )
