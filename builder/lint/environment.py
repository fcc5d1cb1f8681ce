"""Rules about variables, for both engines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.lint.rule import Found, rule, set_flag, vllm_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lint.command import Command

EVERY_ADDRESS = {"0.0.0.0", "::"}  # noqa: S104 - what the rule looks for
VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


@rule(
    "warning",
    reason="A 7900 XTX is a gfx1100: there is nothing to override. On an integrated GPU beside it the variable makes "
    "that one pose as a gfx1100 too.",
    source="https://rocm.docs.amd.com/en/latest/reference/env-variables.html",
    bad="HSA_OVERRIDE_GFX_VERSION=11.0.0 vllm serve m",
    good="vllm serve m",
)
def no_gfx_override(command: Command) -> Iterator[Found]:
    """Find HSA_OVERRIDE_GFX_VERSION."""
    value = command.environment.get("HSA_OVERRIDE_GFX_VERSION")
    if value:
        yield Found.variable_out("HSA_OVERRIDE_GFX_VERSION", f"{value} is needless on a gfx1100")


@rule(
    "error",
    reason="Set but empty, ROCr stops with HSA_STATUS_ERROR_OUT_OF_RESOURCES.",
    source="https://github.com/sgl-project/sglang/blob/main/docker/rocm.Dockerfile",
    bad="HSA_OVERRIDE_GFX_VERSION= vllm serve m",
    good="vllm serve m",
)
def no_empty_gfx_override(command: Command) -> Iterator[Found]:
    """Find an empty HSA_OVERRIDE_GFX_VERSION."""
    if command.environment.get("HSA_OVERRIDE_GFX_VERSION") == "":
        yield Found.variable_out("HSA_OVERRIDE_GFX_VERSION", "it is set to nothing")


@rule(
    "error",
    reason="vLLM refuses to start when the two name different cards.",
    source="https://github.com/vllm-project/vllm/blob/main/vllm/platforms/rocm.py",
    bad="HIP_VISIBLE_DEVICES=0,1 CUDA_VISIBLE_DEVICES=1,2 vllm serve m --tensor-parallel-size 2",
    good="HIP_VISIBLE_DEVICES=0,1 vllm serve m --tensor-parallel-size 2",
)
def visible_devices_agree(command: Command) -> Iterator[Found]:
    """Find two lists of visible devices that differ."""
    hip, cuda = (command.environment.get(name) for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
    if hip is not None and cuda is not None and hip != cuda:
        yield Found.variable_out(
            "CUDA_VISIBLE_DEVICES", f"{cuda}, but HIP_VISIBLE_DEVICES is {hip}", fix="keep HIP_VISIBLE_DEVICES alone"
        )


@rule(
    "error",
    reason="Each worker takes one card; fewer visible cards than workers is an error, more leaves cards idle.",
    source="https://docs.vllm.ai/en/latest/serving/parallelism_scaling/",
    bad="HIP_VISIBLE_DEVICES=0 vllm serve m --tensor-parallel-size 2",
    good="HIP_VISIBLE_DEVICES=0,1 vllm serve m --tensor-parallel-size 2",
)
def visible_devices_match_the_workers(command: Command) -> Iterator[Found]:
    """Find a number of visible cards below the tensor-parallel size."""
    for name in VISIBLE:
        given = command.environment.get(name)
        count = len([part for part in (given or "").split(",") if part.strip()])
        if given is not None and count < command.cards:
            yield Found(
                flag=name,
                message=f"{count} cards are visible for {command.cards} workers",
                fix=f"{name} with {command.cards} cards, or a tensor-parallel size of {count}",
            )


@rule(
    "warning",
    reason="Numbers change when a card is added or an integrated GPU comes first; a device node does not. "
    "ROCR_VISIBLE_DEVICES also takes a card's UUID.",
    source="https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html",
    bad="docker run --device /dev/kfd --device /dev/dri -e ROCR_VISIBLE_DEVICES=0,1 vllm vllm serve m "
    "--tensor-parallel-size 2",
    good="docker run --device /dev/kfd --device /dev/dri/renderD128 --device /dev/dri/renderD129 vllm vllm serve m "
    "--tensor-parallel-size 2",
)
def cards_by_their_nodes(command: Command) -> Iterator[Found]:
    """Find cards that are chosen by number although the container could get just their nodes."""
    for name in VISIBLE:
        if command.box is not None and re.fullmatch(r"[\d, ]+", command.environment.get(name, "")):
            yield Found(
                flag=name,
                message=f"{command.environment[name]} chooses cards by number",
                fix="pass only the render nodes that `gfx1100 doctor` chose, and drop the variable",
            )


@vllm_rule(
    "warning",
    reason="vLLM lets AITER on CDNA and gfx1201 alone, so the switch does nothing on gfx1100, and RDNA is not on "
    "AITER's roadmap.",
    source="https://github.com/ROCm/aiter/issues/4604",
    bad="VLLM_ROCM_USE_AITER=1 vllm serve m",
    good="vllm serve m",
)
def no_aiter_switch(command: Command) -> Iterator[Found]:
    """Find the AITER switches."""
    for name, value in command.environment.items():
        if name.startswith("VLLM_ROCM_USE_AITER") and value not in {"0", ""}:
            yield Found.variable_out(name, "AITER does not run on gfx1100")


@vllm_rule(
    "error",
    reason="Set but empty, it goes through int() and ends the start.",
    source="https://github.com/vllm-project/vllm/blob/main/vllm/envs.py",
    bad="VLLM_PREFIX_CACHE_RETENTION_INTERVAL= vllm serve m",
    good="VLLM_PREFIX_CACHE_RETENTION_INTERVAL=1584 vllm serve m",
)
def no_empty_retention_variable(command: Command) -> Iterator[Found]:
    """Find an empty retention variable."""
    name = "VLLM_PREFIX_CACHE_RETENTION_INTERVAL"
    if command.environment.get(name) == "":
        yield Found.variable_out(name, "it is set to nothing")


@vllm_rule(
    "warning",
    reason="The variable counts only as the word TRUE in capitals.",
    source="https://github.com/ROCm/flash-attention",
    bad="FLASH_ATTENTION_TRITON_AMD_ENABLE=1 vllm serve m",
    good="FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE vllm serve m",
)
def flash_attention_switch_is_spelled_right(command: Command) -> Iterator[Found]:
    """Find the flash-attention switch in another spelling."""
    name = "FLASH_ATTENTION_TRITON_AMD_ENABLE"
    value = command.environment.get(name)
    if value is not None and value != "TRUE" and value.lower() in {"true", "1", "yes", "on"}:
        yield Found.variable_to(name, "TRUE", f"{value} does not count")


@rule(
    "warning",
    reason="amdsmi of another ROCm release than the image's loads a second libamd_smi, and torch then sees no device. "
    "The path names one release and breaks with the next image.",
    source="https://github.com/pytorch/pytorch/issues/186516",
    bad="PYTHONPATH=/opt/rocm-7.2.4/share/amd_smi vllm serve m",
    good="vllm serve m",
)
def no_amdsmi_path_of_one_release(command: Command) -> Iterator[Found]:
    """Find PYTHONPATH into one ROCm release's amd_smi."""
    if re.search(r"/opt/rocm-[\d.]+/share/amd_smi", command.environment.get("PYTHONPATH", "")):
        yield Found.variable_out(
            "PYTHONPATH",
            f"{command.environment['PYTHONPATH']} belongs to one ROCm release",
            fix="take it out with an image that has exactly one amdsmi, or use /opt/rocm/share/amd_smi",
        )


@rule(
    "error",
    reason="A replacement librccl that is preloaded deadlocks; the file must be replaced where torch loads it from.",
    source="https://github.com/unknownue/server-forge",
    bad="LD_PRELOAD=/opt/rccl/librccl.so vllm serve m",
    good="vllm serve m",
)
def no_preloaded_rccl(command: Command) -> Iterator[Found]:
    """Find RCCL in LD_PRELOAD."""
    if "rccl" in command.environment.get("LD_PRELOAD", ""):
        yield Found.variable_out("LD_PRELOAD", "a preloaded RCCL deadlocks", fix="replace the library in the image")


@rule(
    "warning",
    reason="Whoever reaches the port uses the model and reads what others asked.",
    source="https://docs.vllm.ai/en/latest/usage/security.html",
    bad="docker run --network host vllm vllm serve m --host 0.0.0.0",
    good="docker run -p 127.0.0.1:8080:8080 vllm vllm serve m --host 0.0.0.0 --port 8080",
)
def open_port_has_a_key(command: Command) -> Iterator[Found]:
    """Find a server that listens on every address of the host without a key."""
    host = command.get("--host")
    if host not in EVERY_ADDRESS or command.get("--api-key") or command.environment.get("VLLM_API_KEY"):
        return
    published = command.box.all("--publish") if command.box else []
    wide = [port for port in published if not port.startswith(("127.", "[::1]", "localhost"))]
    if command.box is not None and (command.box.all("--network") == ["host"] or wide):
        yield Found(
            flag="--host",
            message="the port is open to the whole network and takes every request",
            fix="publish it as -p 127.0.0.1:PORT:PORT, or set --api-key",
            change=set_flag("--host", "127.0.0.1") if command.box.all("--network") == ["host"] else None,
        )
