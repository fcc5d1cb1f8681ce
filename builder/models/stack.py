"""A stack: what to build, in the words of a person. Read from ``stacks/<name>.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints, model_validator

from builder.errors import UsageError
from builder.files import inside, read_text
from builder.models.base import Commit, Data, Digest, FullRef, Name, load_yaml, nearest, validated
from builder.models.compatibility import Compatibility, Mix
from builder.models.extends import merge, merged
from builder.models.kernels import KernelTarget

BaseName = Literal["build", "runtime", "rccl"]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")]


class Source(Data):
    """Where the engine's source comes from: a git repository, or a folder of this checkout that becomes one.

    Attributes:
        repository: URL of a git repository.
        folder: A folder of this checkout, relative to it; its files become a repository of one commit.
        ref: The full name of the branch or tag that is followed.
        commit: A commit that is wanted instead of the ref's head.
        native: Paths that the compilers read; only they enter the native-build stage.
    """

    repository: str | None = None
    folder: str | None = None
    ref: FullRef
    commit: Commit | None = None
    native: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_origin(self) -> Source:
        if (self.repository is None) == (self.folder is None):
            raise ValueError("exactly one of repository and folder is needed")
        if self.folder is not None:
            try:
                inside(self.folder)
            except UsageError as trouble:
                raise ValueError(trouble.message) from trouble
        return self


class Pin(Data):
    """How the version reaches the engine's build.

    Attributes:
        variable: The variable that its setuptools-scm reads; None for a static version, which is not pinned.
        distribution: The name of the distribution that carries the version.
    """

    variable: EnvName | None = None
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
            raise ValueError("exactly one of image and bootstrap is needed")
        return self


class Bases(Data):
    """The bases of a build's stages.

    Attributes:
        build: Of the stages that compile.
        runtime: Of the image that runs.
        rccl: Of the stage that compiles RCCL anew; None leaves the library that torch's wheel brings.
    """

    build: Base
    runtime: Base
    rccl: Base | None = None

    def named(self) -> dict[BaseName, Base]:
        """Return the ones that there are by their names, in this order."""
        return {"build": self.build, "runtime": self.runtime, **({"rccl": self.rccl} if self.rccl else {})}


class Wheel(Data):
    """A wheel that is pinned by version here and by hash in the lock.

    Attributes:
        name: The distribution's name.
        version: Its exact version; without a local part any local part fits, and the lock says which one it is.
        index: The simple index that has it; None is whatever this machine's pip is set up with.
        stands_for: A distribution that owns the same folder and that others require by name. An empty one of that name
            is installed instead, so that the real one never overwrites this wheel.
    """

    name: str
    version: str
    index: str | None = None
    stands_for: str | None = None


class Fetch(Data):
    """A second repository that the engine's build would clone in the middle of its compile.

    It is exported when the context is staged, so that the build needs no git and a network fault costs no hour.

    Attributes:
        name: Its folder below ``fetched/`` of the context.
        repository: URL of the git repository.
        ref: The full name of the tag or branch.
        path: The folder of it that is wanted.
    """

    name: Name
    repository: str
    ref: FullRef
    path: str = "."


class Packages(Data):
    """Packages of the base's distribution.

    Attributes:
        build: For the stages that compile.
        runtime: For the image that runs.
    """

    build: tuple[str, ...] = ()
    runtime: tuple[str, ...] = ()


class Requirements(Data):
    """What the engine needs at run time.

    Attributes:
        file: A requirements file of the source tree, taken with all that it includes.
        lines: Our own list, where the engine's names packages that must not come.
        left_out: Names that are taken out of the file.
    """

    file: str | None = None
    lines: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Ops(Data):
    """Ops of torch that the engine's extensions must register, or must not, and the trees for which that holds.

    Attributes:
        name: Its name in messages and in the image's manifest.
        namespace: Where they stand below ``torch.ops``.
        present: Ops that must be registered.
        absent: Ops that must not be, because they come with a build for other cards.
        since: It holds for this commit and those after it.
        until: It holds for the commits before this one.
        file: It holds for trees that have this file.
        text: It holds for trees whose ``file`` holds this text.
    """

    name: Name
    namespace: str
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    since: Commit | None = None
    until: Commit | None = None
    file: str | None = None
    text: str | None = None

    @model_validator(mode="after")
    def _text_of_a_file(self) -> Ops:
        if self.text is not None and self.file is None:
            raise ValueError("a text is looked for in a file, and none is named")
        return self


class Order(Data):
    """A package that must be imported before another one, whoever imports the engine.

    Attributes:
        module: The engine's module whose import is watched.
        first: The package that must come first, and must load.
        then: The package that must not come before it.
    """

    module: str
    first: str
    then: str


class Expect(Data):
    """What the finished image must hold.

    Attributes:
        package: The import name of the engine.
        modules: Modules that must import without a GPU.
        extensions: Globs below site-packages; each must match files that hold gfx1100 code objects and no other.
        ops: Ops that must be registered, or must not.
        imports: An order of imports that the card needs.
        installed: Where folders of the source tree lie in the image: a prefix of the path in the tree, and what stands
            for it there, absolute or below site-packages. Other files of the tree are compiled, not installed.
        unmet: Distributions that others require by name and that the image leaves out on purpose.
        foreign: Beginnings of paths below which files for other cards may lie, because a base brings them: a later
            layer that removes them makes no image smaller.
    """

    package: str
    modules: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    ops: tuple[Ops, ...] = ()
    imports: Order | None = None
    installed: dict[str, str] = Field(default_factory=dict)
    unmet: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


class Budget(Data):
    """How large an image may be.

    Attributes:
        image_bytes: All layers, unpacked.
        layer_bytes: The largest layer, unpacked: some registries give up on the push of a huge one
            (https://github.com/moby/moby/issues/53700).
    """

    image_bytes: int
    layer_bytes: int

    @property
    def layers(self) -> int:
        """The number of layers that what is installed before the engine is divided into."""
        return -(-self.image_bytes // self.layer_bytes)


class Stack(Data):
    """What to build.

    Attributes:
        name: The stack's name, equal to the file's.
        title: One line for people.
        template: ``templates/Dockerfile.<template>.j2``.
        arch: The GPU architecture.
        device: ``rocm``, or ``none`` for a rehearsal, which has CPU torch and compiles nothing for a GPU.
        rocm: ROCm release, or None where the base's own packages bring HIP.
        python: Python of the image, such as 3.12.
        source: The engine's source.
        pin: The version's way into the build.
        bases: The base images.
        packages: Packages of the bases' distribution.
        wheels: Wheels that are installed before the engine.
        build_requirements: What the engine's build imports, pinned apart from the engine's own requirement files.
        requirements: What the engine needs at run time.
        fetch: Repositories that the build would clone by itself.
        environment: Variables of the image.
        strip: Zero the code objects of other architectures inside shared libraries, too, not only remove their files.
        unproven: What a rehearsal cannot prove, a sentence each; it is printed and stands in the record.
        series: The folder below ``patches/``.
        enable: Patches of the series that are off by default and wanted all the same.
        kernels: The kernels that ``gfx1100 kernels`` compiles.
        parameters: Whole numbers that patches may use.
        expect: What the image must hold.
        budget: How large the image may be; None for any size, which a stack with wheels cannot be.
    """

    file_keys: ClassVar[tuple[str, ...]] = ("extends", "rehearsal")

    name: Name
    title: str
    template: Name
    arch: Literal["gfx1100"]
    device: Literal["rocm", "none"] = "rocm"
    rocm: str | None = None
    python: str
    source: Source
    pin: Pin
    bases: Bases
    packages: Packages = Packages()
    wheels: tuple[Wheel, ...] = ()
    build_requirements: tuple[str, ...] = ()
    requirements: Requirements = Requirements()
    fetch: tuple[Fetch, ...] = ()
    environment: dict[EnvName, str] = Field(default_factory=dict)
    strip: bool = True
    unproven: tuple[str, ...] = ()
    series: Name
    enable: tuple[Name, ...] = ()
    kernels: tuple[KernelTarget, ...] = ()
    parameters: dict[str, int] = Field(default_factory=dict)
    expect: Expect
    budget: Budget | None = None

    @model_validator(mode="after")
    def _wheels_have_a_budget(self) -> Stack:
        """The layers of the wheels are cut to it."""
        if self.wheels and self.budget is None:
            raise ValueError("a stack with wheels needs a budget, to which their layers are cut")
        return self


REHEARSAL = "-rehearsal"


def load_stack(root: Path, name: str) -> Stack:
    """Return the stack ``name`` of a checkout; ``<name>-rehearsal`` is its rehearsal.

    A stack's file may name another one in ``extends``, ``shared/…`` or a stack, whose keys it takes over and changes;
    its ``rehearsal`` holds the changes that make the rehearsal.

    Raises:
        UsageError: There is no such stack, its file does not fit, or its versions do not go together.
    """
    known = stack_names(root)
    plain = name.removesuffix(REHEARSAL)
    if plain not in known:
        raise UsageError(f"there is no stack {name!r}{nearest(name, known)}")
    path = root / "stacks" / f"{plain}.yaml"
    text, value, parents = read_text(path), *merged(root / "stacks", plain)
    changes = value.pop("rehearsal", None)
    if value.get("name") != plain:
        raise UsageError(f"{path}: the name is {value.get('name')!r}, but the file is called {plain!r}")
    if name != plain:
        if not isinstance(changes, dict):
            raise UsageError(f"{path}: the stack {plain} has no rehearsal")
        value = merge(value, {"name": name, "device": "none", **changes})
    elif not parents:
        return validated(Stack, value, path, text)
    # a line of this file alone would mislead where another one brings the key
    shown = Path(f"{path} ({', '.join([*parents, *(['its rehearsal'] if name != plain else [])])})")
    stack = validated(Stack, value, shown)
    check_mix(root, stack)
    return stack


def stack_names(root: Path) -> list[str]:
    """Return the names of the stacks of a checkout, sorted."""
    return sorted(
        path.name.removesuffix(".yaml")
        for path in (root / "stacks").glob("*.yaml")
        if not path.name.endswith(".lock.yaml")
    )


def check_mix(root: Path, stack: Stack) -> None:
    """Raise UsageError when a stack's ROCm, torch, triton, torchvision and Python are no row of the table."""
    versions = {wheel.name: wheel.version for wheel in stack.wheels}
    if stack.device == "rocm" and stack.rocm and "torch" in versions:
        load_yaml(Compatibility, root / "stacks" / "shared" / "compatibility.yaml").check(
            Mix.of(stack.rocm, stack.python, versions), stack.name
        )
