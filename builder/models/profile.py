"""A profile: how to serve a model with an image. Read from ``profiles/<name>.yaml`` or from a user's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from builder.errors import UsageError
from builder.files import read_text
from builder.models.base import Data, Name, nearest, parse_yaml, validated

ServeEngine = Literal["vllm", "sglang", "strata"]


class Ready(Data):
    """When a deployment counts as ready.

    Attributes:
        health: Path of the health endpoint.
        timeout: Seconds from the start until it must have answered a prompt.
        prompt: What the warm-up asks.
    """

    health: str = "/health"
    timeout: int = Field(default=1800, gt=0)
    prompt: str = "hi"


class Needs(Data):
    """What the model must be.

    Attributes:
        title: The model in words.
        shape: A file of ``profiles/models/`` with the model's dimensions, for ``plan`` without a model folder.
        mtp: The command uses the checkpoint's MTP head, so its rules must fit (``checkpoint inspect``).
        drafter: Where a separate draft model is mounted in the container, or None.
        drafter_shape: A file of ``profiles/models/`` with the drafter's dimensions, or None.
        context: The longest context that the model was trained for, in tokens.
    """

    title: str
    shape: Name | None = None
    mtp: bool = False
    drafter: str | None = None
    drafter_shape: Name | None = None
    context: int | None = None


class Memory(Data):
    """What the host must have, apart from what ``plan`` computes.

    Attributes:
        ram_bytes: RAM that must be free at the start: pinned caches, experts, the loader's buffers.
        shm_bytes: Bytes of the host's own /dev/shm (an arena that the engine puts there).
        disk_bytes: Free space where the engine keeps its images.
    """

    ram_bytes: int = 0
    shm_bytes: int = 0
    disk_bytes: int = 0


class Figure(Data):
    """One measured point of somebody's box, to compare with.

    Attributes:
        context: Prompt tokens.
        concurrency: Streams at once.
        tokens_per_second: Decode speed of one stream (the median).
        total_tokens_per_second: Sum of the streams.
        ttft_seconds: Seconds to the first token, cold.
        ttft_again_seconds: The same for a document whose prefix is cached.
    """

    context: int
    concurrency: int = 1
    tokens_per_second: float | None = None
    total_tokens_per_second: float | None = None
    ttft_seconds: float | None = None
    ttft_again_seconds: float | None = None


class Profile(Data):
    """How to serve.

    Attributes:
        name: The profile's name, equal to the file's.
        title: One line for people.
        extends: The profile that this one changes: a name, or a path beside this file. Already merged in when read.
        engine: Whose flags the command speaks; None for an engine that lint and plan do not know.
        stack: The stack whose image it serves; None when the user names the image (``serve --image``).
        command: The arguments that follow the image's entry point.
        flags: Flags on top of ``command``: a value, true for a bare flag, null to take it out. Merged in when read.
        address: The address on the host that the port is bound to.
        port: The port on the host; the container listens on the same number.
        environment: Variables of the container.
        gpus: How many gfx1100 cards it needs.
        model: Where the model folder is mounted in the container; None when none is needed.
        shm_bytes: Size of /dev/shm, or None for the host's.
        ready: When it counts as ready.
        needs: What the model must be.
        memory: What the host must have.
        kv_tokens: KV tokens that the source measured with these settings, or None.
        sources: Where the values come from.
        notes: What was changed against the source, and why.
        reference: Measured figures.
    """

    name: Name
    title: str
    extends: str | None = None
    engine: ServeEngine | None = None
    stack: Name | None
    command: tuple[str, ...]
    flags: dict[str, str | bool | None] = Field(default_factory=dict)
    address: str = "127.0.0.1"
    port: int = Field(ge=1, le=65535)
    environment: dict[str, str] = Field(default_factory=dict)
    gpus: int = Field(ge=0, le=16)
    model: str | None = None
    shm_bytes: int | None = None
    ready: Ready = Ready()
    needs: Needs | None = None
    memory: Memory = Memory()
    kv_tokens: int | None = None
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reference: tuple[Figure, ...] = ()


def load_profile(root: Path, name: str) -> Profile:
    """Return a profile of a checkout, of its ``profiles.local/``, or of any YAML file, with what it extends merged in.

    Args:
        root: The checkout.
        name: A profile's name, or a path that ends in ``.yaml``.

    Raises:
        UsageError: There is no such profile, its file does not fit, or two files claim the name.
    """
    path = _path(root, name)
    text = read_text(path)
    profile = validated(Profile, _merged(root, path, text, ()), path, text)
    if profile.name != path.stem:
        raise UsageError(f"{path}: the name is {profile.name!r}, but the file is called {path.stem!r}")
    return profile


def profile_names(root: Path) -> list[str]:
    """Return the names of all profiles of a checkout, the user's own among them, sorted."""
    return sorted({path.stem for folder in _folders(root) for path in folder.glob("*.yaml") if path.is_file()})


def with_flags(command: tuple[str, ...], flags: dict[str, str | bool | None]) -> tuple[str, ...]:
    """Return a command with flags set, added or taken out; a flag keeps its place when it is there already."""
    words = list(command)
    for flag, value in flags.items():
        at = next((i for i, word in enumerate(words) if word == flag or word.startswith(f"{flag}=")), None)
        new = [] if value is None or value is False else [flag] if value is True else [flag, value]
        if at is None:
            words += new
            continue
        end = at + 1
        while "=" not in words[at] and end < len(words) and not words[end].startswith("--"):
            end += 1
        words[at:end] = new
    return tuple(words)


def _folders(root: Path) -> tuple[Path, Path]:
    return root / "profiles", root / "profiles.local"


def _path(root: Path, name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    found = [path for folder in _folders(root) if (path := folder / f"{name}.yaml").is_file()]
    if not found:
        for path in (folder / f"{name}.yaml" for folder in _folders(root)):
            if path.is_symlink() and not path.exists():
                raise UsageError(f"{path} is a link to {path.readlink()}, which is not there", hint="mend or remove it")
            if path.exists():
                raise UsageError(f"{path} is no regular file", hint="a profile is a file of YAML")
        raise UsageError(f"there is no profile {name!r}{nearest(name, profile_names(root))}")
    if len(found) > 1:
        raise UsageError(f"{found[0]} and {found[1]} have the same name", hint="rename your own one")
    return found[0]


def _merged(root: Path, path: Path, text: str, above: tuple[Path, ...]) -> dict[str, Any]:
    """Return a profile's mapping laid over the one that it extends."""
    if path.resolve() in above:
        raise UsageError(f"{path}: the profiles extend each other in a circle")
    value = parse_yaml(text, path)
    extended = value.get("extends")
    if extended is not None:
        if not isinstance(extended, str):
            raise UsageError(f"{path}: extends must be text, found {extended!r}")
        beside = path.parent / extended
        base = beside if extended.endswith((".yaml", ".yml")) else _path(root, extended)
        value = _over(_merged(root, base, read_text(base), (*above, path.resolve())), value)
    flags, command = value.get("flags"), value.get("command")
    if isinstance(flags, dict) and isinstance(command, list):
        if any(not isinstance(flag, str) or not flag.startswith("-") for flag in flags):
            raise UsageError(f"{path}: flags must begin with -, found {sorted(map(str, flags))}")
        if any(not isinstance(setting, str | bool | None) for setting in flags.values()):
            raise UsageError(f"{path}: the values of flags must be text in quotes, true or null")
        value = {**value, "command": list(with_flags(tuple(command), flags)), "flags": {}}
    return value


def _over(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return ``own`` over ``base``: mappings are merged key by key, anything else replaces."""
    merged = dict(base)
    for key, value in own.items():
        below = base.get(key)
        merged[key] = _over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
