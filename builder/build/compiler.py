"""Ask the compiler of the build, in its own stage, what it accepts: a patch around a builtin may be needless there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import BuildError
from builder.kernels.place import WITH_ROCM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.port import Engine
    from builder.patching.series import Series

STAGE = "toolchain"
SECONDS = 120.0
HIPCC = ("sh", "-c", f'{WITH_ROCM} exec hipcc "$@"', "hipcc")
SOURCE = "/tmp/question.hip"  # noqa: S108 - inside a container of one process


def compiler_questions(series: Series) -> dict[str, str]:
    """Return the HIP sources that make a patch needless where the build's compiler accepts them, by the patch's id."""
    return {
        patch.id: patch.header.unneeded_if_compiles for patch in series.patches if patch.header.unneeded_if_compiles
    }


def accepted(engine: Engine, image: str, questions: Mapping[str, str], *, arch: str) -> dict[str, str]:
    """Return the questions that the compiler in an image accepts for an architecture, and the fact, by the patch's id.

    Args:
        engine: Where the image is.
        image: The image of the build's toolchain stage.
        questions: HIP sources, by the patch's id.
        arch: The GPU architecture.

    Raises:
        BuildError: There is no hipcc in the image, or it ended without saying why.
    """
    facts = {}
    for patch, source in questions.items():
        done = engine.run_once(
            image,
            [*HIPCC, "-x", "hip", f"--offload-arch={arch}", "--cuda-device-only", "-c", SOURCE, "-o", "/dev/null"],
            files={SOURCE: source.encode()},
            timeout=SECONDS,
        )
        said = done.stderr + done.stdout
        if done.returncode == 0:
            facts[patch] = f"the build's compiler accepts it for {arch}: {_version(engine, image)}"
        elif "error:" not in said:
            last = (said.strip().splitlines() or ["no word"])[-1]
            raise BuildError(
                f"the compiler of {STAGE} could not be asked about {patch} (status {done.returncode}): {last}",
                hint=f"the stage {STAGE} of the Dockerfile must have hipcc on its PATH or in /opt/rocm/bin",
            )
    return facts


def _version(engine: Engine, image: str) -> str:
    done = engine.run_once(image, [*HIPCC, "--version"], files={}, timeout=SECONDS)
    lines = done.stdout.splitlines()
    return next((line for line in lines if "clang version" in line), lines[0] if lines else "unknown version")
