"""A stack: what to build, in the words of a person. Read from ``stacks/<name>.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from builder.errors import UsageError
from builder.models.base import Commit, Data, Digest, FullRef, Name, load_yaml, nearest
from builder.models.kernels import KernelTarget

EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")]


class Source(Data):
    """Where the engine's source comes from: a git repository, or a folder of this checkout that becomes one.

    Attributes:
        repository: URL of a git repository.
        folder: A folder of this checkout; its files become a repository of one commit.
        ref: The full name of the branch or tag that is followed.
        commit: A commit that is wanted instead of the ref's head.
        native: Paths that the compilers read; only they enter the native-build stage.
    """

    repository: str | None = None
    folder: str | None = None
    ref: FullRef
    commit: Commit | None = None
    native: tuple[str, ...]

    @model_validator(mode="after")
    def _one_origin(self) -> Source:
        if (self.repository is None) == (self.folder is None):
            msg = "exactly one of repository and folder is needed"
            raise ValueError(msg)
        return self


class Pin(Data):
    """How the version reaches the engine's build.

    Attributes:
        variable: The variable that its setuptools-scm reads; None for a static version, which is not pinned.
        distribution: The name of the distribution that carries the version.
    """

    variable: EnvName | None
    distribution: str


class Bootstrap(Data):
    """A base image made from a distribution's own packages by debootstrap.

    Attributes:
        suite: The distribution's release, such as trixie.
    """

    suite: Name


class Base(Data):
    """A base image: one of a registry by digest, or one made here.

    Attributes:
        image: Name and tag in a registry.
        digest: The digest that the tag must have.
        bootstrap: How to make it from packages.
    """

    image: str | None = None
    digest: Digest | None = None
    bootstrap: Bootstrap | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Base:
        if (self.image is None) == (self.bootstrap is None):
            msg = "exactly one of image and bootstrap is needed"
            raise ValueError(msg)
        return self


class Bases(Data):
    """The base of the stages that compile and the base of the image that runs."""

    build: Base
    runtime: Base


class Wheel(Data):
    """A wheel that is pinned by version here and by hash in the lock.

    Attributes:
        name: The distribution's name.
        version: Its exact version, with the local part.
        index: The simple index that has it.
    """

    name: str
    version: str
    index: str


class Expect(Data):
    """What the finished image must hold.

    Attributes:
        package: The import name of the engine.
        modules: Modules that must import without a GPU.
        extensions: Globs below site-packages; each must match files that hold gfx1100 code objects and no other.
    """

    package: str
    modules: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


class Stack(Data):
    """What to build.

    Attributes:
        name: The stack's name, equal to the file's.
        title: One line for people.
        template: ``templates/Dockerfile.<template>.j2``.
        arch: The GPU architecture.
        rocm: ROCm release, or None where the base's own packages bring HIP.
        python: Python of the image, such as 3.12.
        source: The engine's source.
        pin: The version's way into the build.
        bases: The base images.
        wheels: Wheels that are installed before the engine.
        build_requirements: What the engine's build imports, pinned apart from the engine's own requirement files.
        series: The folder below ``patches/``.
        enable: Patches of the series that are off by default and wanted all the same.
        kernels: The kernels that ``gfx1100 kernels`` compiles.
        parameters: Whole numbers that patches may use.
        expect: What the image must hold.
    """

    name: Name
    title: str
    template: Name
    arch: Literal["gfx1100"]
    rocm: str | None = None
    python: str
    source: Source
    pin: Pin
    bases: Bases
    wheels: tuple[Wheel, ...] = ()
    build_requirements: tuple[str, ...] = ()
    series: Name
    enable: tuple[Name, ...] = ()
    kernels: tuple[KernelTarget, ...] = ()
    parameters: dict[str, int] = Field(default_factory=dict)
    expect: Expect


def load_stack(root: Path, name: str) -> Stack:
    """Return the stack ``name`` of a checkout.

    Raises:
        UsageError: There is no such stack, or its file does not fit.
    """
    known = stack_names(root)
    if name not in known:
        raise UsageError(f"there is no stack {name!r}{nearest(name, known)}")
    path = root / "stacks" / f"{name}.yaml"
    stack = load_yaml(Stack, path)
    if stack.name != name:
        raise UsageError(f"{path}: the name is {stack.name!r}, but the file is called {name!r}")
    return stack


def stack_names(root: Path) -> list[str]:
    """Return the names of the stacks of a checkout, sorted."""
    return sorted(
        path.name.removesuffix(".yaml")
        for path in (root / "stacks").glob("*.yaml")
        if not path.name.endswith(".lock.yaml")
    )
