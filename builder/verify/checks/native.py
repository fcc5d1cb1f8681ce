"""Checks of the compiled side: libraries, symbols, run paths and code objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from builder.verify.checks.spec import Finding, check, failed, listed, ok, skipped

if TYPE_CHECKING:
    from builder.objects import Library

Links = Mapping[str, Mapping[str, Any]]
ABI = "https://github.com/lemonade-sdk/vllm-rocm/issues/36"
NO_EXTENSION = "there is no shared library to look at"


@check(
    "libraries",
    "the extensions load without a GPU",
    means="the engine starts without its kernels, or not at all",
    fix="the loader's message names the library or the symbol; see the checks needed and symbols",
    caught={
        'a tool said "ready" while vllm._C could not load': "https://github.com/ROCm/rocm-cli/issues/257",
        "an undefined symbol of HIP streams: torch and the wheel were built apart": ABI,
    },
)
def extensions_load(loaded: Mapping[str, Any]) -> Finding:
    """The image's own dynamic linker loads each extension, after the modules were imported, as the image's user."""
    results = loaded["loads"]
    if not results:
        return skipped("the stack names no extension")
    wrong = [f"{path}: {result}" for path, result in results.items() if result != "ok"]
    return failed("; ".join(wrong)) if wrong else ok(f"{len(results)} loaded")


@check(
    "needed",
    "every library that the engine needs is there, in a version that fits",
    means='"cannot open shared object file" when the extension is loaded, on every host',
    fix="install the package that has the library into the runtime stage; build on the same distribution as it runs on",
    caught={'a tool said "ready" while vllm._C could not load': "https://github.com/ROCm/rocm-cli/issues/257"},
)
def needed_libraries_exist(links: Links) -> Finding:
    """All that the engine's libraries need, and what that needs in turn, is found where the dynamic linker looks."""
    if not links:
        return skipped(NO_EXTENSION)
    wrong = [f"{path}: {row['error']}" for path, row in links.items() if "error" in row]
    wrong += sorted({f"{fault}, is nowhere" for row in links.values() for fault in row.get("missing", ())})
    wrong += [f"{path} needs {fault}" for path, row in links.items() for fault in row.get("versions", ())]
    if wrong:
        return failed(listed(wrong))
    outside = sorted({name for row in links.values() for name in row.get("outside", ())})
    if outside:
        return skipped(f"an image must bring {', '.join(outside)}")
    return ok(f"for {len(links)} libraries")


@check(
    "symbols",
    "every symbol of the engine's libraries is in the libraries that they need",
    means='"undefined symbol" when the extension is loaded: it was compiled against another torch or ROCm',
    fix="build the engine against the very torch wheel of the lock, in the same build",
    caught={"an undefined symbol of HIP streams: torch and the wheel were built apart": ABI},
)
def symbols_resolve(links: Links) -> Finding:
    """The undefined symbols of the engine's libraries are exported by the image's torch, ROCm and C library."""
    if not links:
        return skipped(NO_EXTENSION)
    wrong = [f"{path}: {_symbol(one)}" for path, row in links.items() for one in row.get("unresolved", ())]
    if wrong:
        return failed(listed(wrong))
    if any(row.get("outside") for row in links.values()):
        return skipped("an image must bring the libraries that have them")
    return ok(f"for {len(links)} libraries")


@check(
    "run-paths",
    "the libraries look for others inside the image only",
    means="a library from the builder's machine is missing, or one that somebody else put there is loaded",
    fix="link with $ORIGIN, or without a run path (CMAKE_SKIP_RPATH, patchelf --remove-rpath)",
    caught={"a run path pointed into the folder of the build": ""},
)
def run_paths_stay_inside(links: Links) -> Finding:
    """Each RPATH and RUNPATH is $ORIGIN or a folder of the image that only root may write to."""
    if not links:
        return skipped(NO_EXTENSION)
    wrong = [f"{path}: {fault}" for path, row in links.items() for fault in row.get("run_paths", ())]
    return failed(listed(wrong)) if wrong else ok(f"of {len(links)} libraries")


@check(
    "libamd-smi",
    "one copy of libamd_smi",
    means='two copies in one process: zero cards are seen, "Failed to infer device type"',
    fix="keep one and make the other a link to it, in the RUN that brings it",
    caught={
        "amdsmi saw no card after torch was imported": "https://github.com/pytorch/pytorch/issues/186516",
        '"failed to infer device type" on a 7900 XTX': "https://github.com/vllm-project/vllm/issues/39378",
    },
)
def one_libamd_smi(libamd_smi: Sequence[str]) -> Finding:
    """Among the files of ROCm, of the distribution and of all packages there is one libamd_smi; links do not count."""
    if len(libamd_smi) > 1:
        return failed(f"{len(libamd_smi)} copies: {', '.join(libamd_smi)}")
    return ok(libamd_smi[0]) if libamd_smi else skipped("there is no libamd_smi")


@check(
    "code-objects",
    "the extensions hold gfx1100 code and no other",
    means='the card refuses it: "no kernel image is available", "invalid device function"',
    fix="PYTORCH_ROCM_ARCH, AMDGPU_TARGET and GPU_TARGETS must be gfx1100 in the stage that compiles",
    caught={
        "a 7900 XTX image lacked the card's kernels": "https://github.com/ROCm/vllm/issues/527",
        "no kernel image for the card": "https://github.com/vllm-project/vllm/issues/31035",
        "without a card in the builder, SGLang's kernels were built for gfx942 in silence": "",
    },
)
def code_objects_are_ours(objects: Mapping[str, tuple[Library, ...]], arch: str) -> Finding:
    """Each device library has code objects for gfx1100 (else the card refuses it) and for nothing else."""
    if not objects:
        return skipped("no library with device code is expected")
    kernels = 0
    for pattern, libraries in objects.items():
        if not libraries:
            return failed(f"no file below site-packages matches {pattern}")
        for library in libraries:
            if library.archs != (arch,):
                return failed(
                    f"{library.path} holds code for {', '.join(library.archs) or 'no GPU'}, not for {arch} alone"
                )
            kernels += len(library.kernels)
    return ok(f"{kernels} kernels for {arch} in {sum(map(len, objects.values()))} libraries")


def _symbol(one: Mapping[str, Any]) -> str:
    name = str(one.get("name", one["symbol"]))
    if name == one["symbol"]:
        return name
    kindred = f"; with other arguments there is {', '.join(one['kindred'])}" if one.get("kindred") else ""
    return f"{name} ({one['symbol']}){kindred}"
