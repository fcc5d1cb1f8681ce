"""Reads a GPU host below a root and prints JSON. One file without imports of ours, so that it also runs in a container.

``python3 reader.py [ROOT]``: ROOT holds ``sys``, ``proc`` and ``dev`` of the host (default ``/``). The paths are the
kernel's own: Documentation/ABI/testing/sysfs-bus-pci, Documentation/gpu/amdgpu/driver-misc.rst and the KFD topology
(drivers/gpu/drm/amd/amdkfd/kfd_topology.c). A copy of a host cannot hold device nodes, so ``host.json`` in its root
says what a copy loses: ``nodes`` (``{"kfd": {"gid": 992, "mode": 432}, "dri/renderD128": …}``), ``shm_bytes``, ``user``
(``{"uid": 1000, "groups": [992]}``), ``engine`` (its name), ``rootless`` and ``disk_free``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
CARD = "sys/class/drm"
TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
DISCRETE_HEAPS = {"1", "2"}  # HSA_HEAPTYPE_FRAME_BUFFER_PUBLIC and _PRIVATE
LISTENING = "0A"


def read(root: Path) -> Facts:
    """Return everything that is known of the host below ``root``; what is not there is None or empty."""
    aside = _aside(root)
    # a container that looks at its host must ask the host's first process, not itself
    net = root / "proc/1/net" if _text(root / "proc/1/net/tcp") else root / "proc/net"
    return {
        "kernel": _text(root / "proc/sys/kernel/osrelease"),
        "cmdline": _text(root / "proc/cmdline") or "",
        "amdgpu": (root / "sys/module/amdgpu").is_dir(),
        "amdgpu_version": _text(root / "sys/module/amdgpu/version"),
        "kfd": _node(root, aside, "kfd"),
        "gpus": [_gpu(root, aside, node) for node in _children(root / TOPOLOGY) if _simds(node)],
        "cards": _cards(root),
        "iommu_groups": len(_children(root / "sys/kernel/iommu_groups")),
        "hypervisor": "hypervisor" in (_text(root / "proc/cpuinfo") or ""),
        "memory": _memory(root),
        "shm_bytes": _shm(root, aside),
        "limits": _limits(root),
        "listening": sorted(_listening(net)),
        "groups": _groups(root),
        "user": aside.get("user") or {"uid": os.getuid(), "groups": sorted({*os.getgroups(), os.getgid()})},
        "users": _users(root),
        "engine": aside.get("engine"),
        "rootless": bool(aside.get("rootless")),
        "disk_free": aside.get("disk_free"),
    }


def _gpu(root: Path, aside: Facts, node: Path) -> Facts:
    said = _properties(node / "properties")
    version, location, domain, minor, simds = (
        _whole(said.get(key, "0"), f"{node}/properties: {key}")
        for key in ("gfx_target_version", "location_id", "domain", "drm_render_minor", "simd_count")
    )
    pci = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
    device = root / "sys/bus/pci/devices" / pci
    if not device.is_dir():
        device = root / CARD / f"renderD{minor}" / "device"
    banks = {bank: _properties(bank / "properties") for bank in _children(node / "mem_banks")}
    heap = sum(
        _whole(b.get("size_in_bytes", "0"), f"{bank}/properties: size_in_bytes")
        for bank, b in banks.items()
        if b.get("heap_type") in DISCRETE_HEAPS
    )
    numbers = {name: _number(device / f"mem_info_{name}") for name in ("vram_total", "vram_used", "vis_vram_total")}
    return {
        "gpu_id": _text(node / "gpu_id"),
        "gfx": f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}",
        "pci": pci,
        "simds": simds,
        "vram_bytes": numbers["vram_total"] or heap,
        "vram_used": numbers["vram_used"],
        "visible_bytes": numbers["vis_vram_total"],
        "render": _node(root, aside, f"dri/renderD{minor}") if minor else None,
        "render_node": f"/dev/dri/renderD{minor}" if minor else None,
        "link": _link(device),
        "iommu": _text(device / "iommu_group/type"),
        "screens": _screens(root, device),
    }


def _link(device: Path) -> Facts:
    """Return the narrowest width and the slowest speed on the way from the card up to the processor.

    The card's own function hangs below a switch on the card and always shows 16 lanes; the slot is further up.
    """
    real = device.resolve()
    way = [path for path in (real, *real.parents) if _text(path / "current_link_width")]
    widths = [_number(path / "current_link_width") or 0 for path in way]
    speeds = [text for path in way if (text := _text(path / "max_link_speed")) and text[0].isdigit()]
    return {
        "current_link_width": min(widths, default=None),
        "max_link_speed": min(speeds, key=lambda text: float(text.split()[0]), default=None),
    }


def _cards(root: Path) -> list[Facts]:
    """Return the DRM cards, whoever drives them."""
    found = []
    for path in _children(root / CARD):
        if path.name.startswith("card") and "-" not in path.name:
            said = dict(line.partition("=")[::2] for line in (_text(path / "device/uevent") or "").splitlines())
            found.append({"name": path.name, "driver": said.get("DRIVER")})
    return found


def _screens(root: Path, device: Path) -> int:
    names = {path.name for path in _children(device / "drm")}
    return sum(
        1
        for path in _children(root / CARD)
        if path.name.split("-")[0] in names and "-" in path.name and _text(path / "status") == "connected"
    )


def _users(root: Path) -> list[Facts]:
    """Return the processes that hold compute queues, with their bytes on each GPU (``vram_<gpu_id>``)."""
    found = []
    for process in _children(root / "sys/class/kfd/kfd/proc"):
        held = {path.name[5:]: _number(path) or 0 for path in _children(process) if path.name.startswith("vram_")}
        name = _text(root / "proc" / process.name / "comm")
        found.append({"pid": int(process.name) if process.name.isdigit() else 0, "name": name, "vram": held})
    return found


def _node(root: Path, aside: Facts, name: str) -> Facts | None:
    told = aside.get("nodes")
    if isinstance(told, dict):
        return told.get(name)
    try:
        found = (root / "dev" / name).stat()
    except OSError:
        return None
    return {"gid": found.st_gid, "mode": found.st_mode & 0o777}


def _memory(root: Path) -> Facts:
    path = root / "proc/meminfo"
    rows = [line.split(":")[:1] + line.split()[1:2] for line in (_text(path) or "").splitlines()]
    said = {row[0]: _whole(row[1], f"{path}: {row[0]}") * 1024 for row in rows if row[1:]}
    return {"total": said.get("MemTotal"), "available": said.get("MemAvailable")}


def _shm(root: Path, aside: Facts) -> int | None:
    if aside.get("shm_bytes") is not None:
        return int(aside["shm_bytes"])
    try:
        found = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def _limits(root: Path) -> Facts:
    lines = (_text(root / "proc/self/limits") or "").splitlines()
    rows = {line[:26].strip(): line[26:].split()[0] for line in lines[1:] if line[26:].split()}
    return {"memlock": rows.get("Max locked memory"), "nofile": rows.get("Max open files")}


def _listening(net: Path) -> set[int]:
    lines = [line for name in ("tcp", "tcp6") for line in (_text(net / name) or "").splitlines()[1:]]
    fields = [line.split() for line in lines]
    return {int(one[1].rpartition(":")[2], 16) for one in fields if one[3:4] == [LISTENING]}


def _groups(root: Path) -> dict[str, int]:
    rows = [line.split(":") for line in (_text(root / "etc/group") or "").splitlines()]
    return {row[0]: int(row[2]) for row in rows if row[3:] and row[2].isdigit()}


def _aside(root: Path) -> Facts:
    # the real root is never overridden by a file that happens to lie there
    if root.resolve() == Path("/"):
        return {}
    path = root / "host.json"
    try:
        value = json.loads(_text(path) or "{}")
    except (ValueError, RecursionError) as trouble:
        raise ValueError(f"{path} is no JSON: {trouble}") from trouble
    if not isinstance(value, dict):
        raise ValueError(f"{path} is no JSON object")  # noqa: TRY004 - callers expect ValueError of any file
    nodes, user = value.get("nodes", {}), value.get("user", {})
    for key, sound in (
        ("nodes", isinstance(nodes, dict) and all(one is None or _is_node(one) for one in nodes.values())),
        ("user", isinstance(user, dict) and _is_user(user)),
        ("engine", isinstance(value.get("engine") or "", str)),
        *((key, isinstance(value.get(key) or 0, int)) for key in ("shm_bytes", "disk_free")),
    ):
        if not sound:
            raise ValueError(f"{path}: {key} is {value[key]!r}, which is not of the form that a host has")
    return value


def _is_node(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), int) for key in ("gid", "mode"))


def _is_user(value: Facts) -> bool:
    groups = value.get("groups", [])
    numbers = [value.get("uid", 0), *groups] if isinstance(groups, list) else [None]
    return all(isinstance(number, int) for number in numbers)


def _simds(node: Path) -> int:
    return _whole(_properties(node / "properties").get("simd_count", "0"), f"{node}/properties: simd_count")


def _whole(text: str, where: str) -> int:
    try:
        return int(text)
    except ValueError as trouble:
        raise ValueError(f"{where} is {text!r}, which is no whole number") from trouble


def _properties(path: Path) -> dict[str, str]:
    return dict(line.partition(" ")[::2] for line in (_text(path) or "").splitlines())


def _children(path: Path) -> list[Path]:
    try:
        found = list(path.iterdir())
    except OSError:
        return []
    return sorted(found, key=lambda one: (not one.name.isdigit(), int(one.name) if one.name.isdigit() else 0, one.name))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.isdigit() else None


if __name__ == "__main__":
    json.dump(read(Path(sys.argv[1] if len(sys.argv) > 1 else "/")), sys.stdout)
