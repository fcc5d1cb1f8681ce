"""The kernels that ``gfx1100 kernels`` compiles: a stack's list ``kernels``, as data."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from builder.models.base import Data, pattern

Define = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(=.*)?$")]
TRITON_TYPE = r"^(none|\*?(fp(8e4nv|8e5|16|32|64)|bf16|[iu](1|8|16|32|64))(:(1|16))?)$"
LAUNCH = ("num_warps", "num_stages")
Pattern = Annotated[str, AfterValidator(pattern)]


class HipTarget(Data):
    """HIP sources that are compiled for the device only.

    Attributes:
        language: ``hip``.
        source: Path or glob in the source tree.
        cut: Regular expression (dot matches newlines, ``^`` every line) of the part of the file that is compiled, after
            HIP's own header; for a file whose rest needs headers that only the engine's build makes.
        defines: Macros, ``NAME`` or ``NAME=value``; USE_ROCM is always set, as torch's build does.
        includes: Folders of the tree with headers.
        kernels: Names of the kernels that are wanted, without namespace and arguments; all when empty.
    """

    language: Literal["hip"]
    source: str
    cut: Pattern | None = None
    defines: tuple[Define, ...] = ()
    includes: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()


class TritonTarget(Data):
    """A Triton kernel that is compiled ahead of time.

    Attributes:
        language: ``triton``.
        source: Path of the Python file in the source tree.
        function: The kernel's name in it.
        roots: Folders of the tree that hold its top-level packages.
        signature: Type of each parameter at run time, as Triton names them (``*bf16``, ``i64``, ``fp32``); ``:16`` says
            that it is divisible by 16, as the launcher finds out for aligned pointers and strides; ``none`` is None.
        constexprs: Value of each compile-time parameter.
        num_warps: Waves of a workgroup.
        num_stages: Stages of the compiler's software pipeline.
        launch: For values that the file's launcher chooses: name of a compile-time parameter, ``num_warps`` or
            ``num_stages``, and a regular expression whose first group is the number in the file. Where it is not found
            the value above counts.
        sweep: Values to try, by the same names.
    """

    language: Literal["triton"]
    source: str
    function: str
    roots: tuple[str, ...]
    signature: dict[str, Annotated[str, StringConstraints(pattern=TRITON_TYPE)]]
    constexprs: dict[str, int | bool | float | str] = Field(default_factory=dict)
    num_warps: Annotated[int, Field(ge=1, le=32)] = 4
    num_stages: Annotated[int, Field(ge=1, le=8)] = 2
    launch: dict[str, Pattern] = Field(default_factory=dict)
    sweep: dict[str, Annotated[tuple[int, ...], Field(min_length=1)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_are_known(self) -> TritonTarget:
        known = {*self.constexprs, *LAUNCH}
        unknown = [name for name in (*self.launch, *self.sweep) if name not in known]
        if unknown:
            raise ValueError(f"{unknown[0]} is neither a compile-time parameter of it nor {' nor '.join(LAUNCH)}")
        groupless = [name for name, wanted in self.launch.items() if not re.compile(wanted).groups]
        if groupless:
            raise ValueError(f"the pattern of {groupless[0]} has no group for the number")
        return self


KernelTarget = Annotated[HipTarget | TritonTarget, Field(discriminator="language")]
