"""Is this host fit, for this profile? A line a check: what was found, what it means, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from builder.console import table
from builder.host.nodes import HostCheck, node_checks
from builder.plan.shape import gib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.host.host import Gpu, Host

GIB = 1 << 30
KERNEL = (5, 15)  # the oldest that ROCm 7's own list of supported systems has
LANES = 8
SPEED = 8.0
IN_USE = 2 * GIB
OPEN_FILES = 65_536
BMC = {"ast", "mgag200", "hibmc-drm", "matrox"}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The host and its checks."""

    host: Host
    checks: tuple[HostCheck, ...]

    @property
    def ok(self) -> bool:
        """Nothing failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[HostCheck, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "failed")

    def as_json(self) -> dict[str, Any]:
        """Return what scripts read."""
        return {
            "ok": self.ok,
            "host": self.host.where,
            "gpus": [gpu.as_json() for gpu in self.host.gpus],
            "devices": list(self.host.devices) if self.host.chosen else [],
            "gids": list(self.host.gids) if self.host.chosen else [],
            "checks": [asdict(check) for check in self.checks],
        }

    def text(self) -> str:
        """Return it for people."""
        rows = [
            (
                "*" if g.chosen else "",
                g.gfx,
                g.pci,
                gib(g.vram_bytes),
                _link(g),
                g.render_node or "-",
                g.gid if g.gid is not None else "-",
            )
            for g in self.host.gpus
        ]
        lines = [table(["", "gpu", "pci", "memory", "link", "node", "gid"], rows), ""] if rows else []
        lines += [table(["", "check", "found"], [(c.status, c.id, c.message) for c in self.checks])]
        fixes = [f"{c.id}: {c.fix}" for c in self.checks if c.fix and c.status in {"failed", "warning"}]
        return "\n".join([*lines, *(["", *fixes] if fixes else [])])


def diagnose(
    host: Host, *, engine: str | None = None, disk_free: int | None = None, more: Sequence[HostCheck] = ()
) -> Diagnosis:
    """Return what is right and wrong with a host.

    Args:
        host: What was read of it.
        engine: The engine's own name and what named it, or None when none answers.
        disk_free: Free bytes where it keeps its images, or None when they are not known.
        more: Checks of a profile (:func:`builder.host.fitness.profile_checks`).
    """
    checks = [
        *_driver(host),
        *_cards(host),
        *node_checks(host),
        *_system(host),
        *_engine(host, engine, disk_free),
        *more,
    ]
    return Diagnosis(host=host, checks=tuple(checks))


def _driver(host: Host) -> Iterator[HostCheck]:
    facts = host.facts
    version = f", DKMS {facts['amdgpu_version']}" if facts.get("amdgpu_version") else ", the kernel's own"
    numbers = tuple(int(part) for part in (facts.get("kernel") or "0.0").split("-")[0].split(".")[:2] if part.isdigit())
    if numbers < KERNEL:
        yield HostCheck(
            id="kernel",
            status="failed",
            message=f"Linux {facts.get('kernel') or 'unknown'} is older than ROCm supports",
            fix="install a kernel of 5.15 or later",
        )
    else:
        yield HostCheck(id="kernel", status="ok", message=f"Linux {facts['kernel']}")
    if facts.get("amdgpu"):
        yield HostCheck(id="amdgpu", status="ok", message=f"the driver is loaded{version}")
    else:
        yield HostCheck(
            id="amdgpu",
            status="failed",
            message="the driver amdgpu is not loaded",
            fix=_vm_fix(host) or "sudo modprobe amdgpu; a blacklist in /etc/modprobe.d keeps it out",
        )
    if facts.get("kfd"):
        yield HostCheck(id="kfd", status="ok", message=f"/dev/kfd is there, group {facts['kfd']['gid']}")
    else:
        yield HostCheck(
            id="kfd",
            status="failed",
            message="/dev/kfd is not there: the driver offers no compute",
            fix=_vm_fix(host) or "sudo modprobe amdgpu, then `dmesg | grep -i kfd` says why it found no card",
        )


def _vm_fix(host: Host) -> str:
    if host.facts.get("hypervisor") and not any(card["driver"] == "amdgpu" for card in host.facts["cards"]):
        return "this is a virtual machine without a card: pass the card through (vfio-pci) on its host"
    return ""


def _cards(host: Host) -> Iterator[HostCheck]:
    chosen = host.chosen
    if chosen:
        told = ", ".join(f"{gpu.pci} ({gib(gpu.vram_bytes)})" for gpu in chosen)
        yield HostCheck(id="cards", status="ok", message=f"{len(chosen)} gfx1100: {told}")
    else:
        others = ", ".join(gpu.gfx for gpu in host.gpus) or "none"
        yield HostCheck(
            id="cards",
            status="failed",
            message=f"no gfx1100 card (GPUs that compute: {others})",
            fix=_vm_fix(host) or "images of this project run on the RX 7900 XTX, XT and GRE and the PRO W7900, W7800",
        )
    for gpu in host.gpus:
        if not gpu.chosen:
            kind = "integrated" if gpu.integrated else "another architecture"
            yield HostCheck(id="left-out", status="ok", message=f"{gpu.gfx} at {gpu.pci} is left out: {kind}")
    for card in host.facts["cards"]:
        if card["driver"] in BMC:
            yield HostCheck(
                id="left-out", status="ok", message=f"{card['name']} is the server's management chip ({card['driver']})"
            )
    for gpu in chosen:
        yield from _card(host, gpu)


def _card(host: Host, gpu: Gpu) -> Iterator[HostCheck]:
    width = int(gpu.link.get("current_link_width") or 0)
    speed = _speed(gpu.link.get("max_link_speed"))
    if gpu.link.get("current_link_width") and (width < LANES or speed < SPEED):
        yield HostCheck(
            id="link",
            status="warning",
            message=f"{gpu.pci} has {_link(gpu)}: two cards exchange slowly",
            fix="put the card into a slot with 8 or more lanes of the processor; check the slot's bifurcation",
        )
    if gpu.visible_bytes is not None and gpu.visible_bytes < gpu.vram_bytes:
        yield HostCheck(
            id="large-bar",
            status="warning",
            message=f"the processor reaches {gib(gpu.visible_bytes)} of {gib(gpu.vram_bytes)} on {gpu.pci}: no peers",
            fix="switch on “Above 4G Decoding” and “Resizable BAR” in the firmware",
        )
    if gpu.vram_used is not None and gpu.vram_used > IN_USE:
        users = [u for u in host.facts["users"] if u["vram"].get(gpu.gpu_id or "", 0) > 0]
        told = ", ".join(f"{u['name'] or '?'} ({u['pid']}, {gib(u['vram'][gpu.gpu_id])})" for u in users) or "unknown"
        yield HostCheck(
            id="in-use",
            status="warning",
            message=f"{gib(gpu.vram_used)} of {gpu.pci} are in use by {told}",
            fix="stop what holds the card, or lower --gpu-memory-utilization; never reset a gfx1100 with rocm-smi",
        )
    if gpu.screens:
        yield HostCheck(
            id="screen",
            status="warning",
            message=f"{gpu.pci} drives {gpu.screens} screen(s), which takes some hundred MB",
            fix="plug the screen into the board, or take --gpu-memory-utilization 0.92",
        )


def _system(host: Host) -> Iterator[HostCheck]:
    facts = host.facts
    memory = facts["memory"]
    if memory["total"]:
        yield HostCheck(
            id="memory", status="ok", message=f"{gib(memory['total'])} RAM, {gib(memory['available'] or 0)} free"
        )
    if facts.get("shm_bytes") is not None:
        small = facts["shm_bytes"] < GIB
        yield HostCheck(
            id="shm",
            status="warning" if small else "ok",
            message=f"the host's /dev/shm has {gib(facts['shm_bytes'])}",
            fix="sudo mount -o remount,size=16G /dev/shm, or give containers a --shm-size" if small else "",
        )
    limits = facts["limits"]
    if (limits.get("nofile") or "").isdigit() and int(limits["nofile"]) < OPEN_FILES // 64:
        yield HostCheck(
            id="limits",
            status="warning",
            message=f"at most {limits['nofile']} open files",
            fix="ulimit -n 65536, or LimitNOFILE in the engine's unit",
        )
    elif limits.get("nofile"):
        yield HostCheck(
            id="limits", status="ok", message=f"open files {limits['nofile']}, locked memory {limits.get('memlock')}"
        )
    if len(host.chosen) > 1:
        yield _iommu(host)


def _iommu(host: Host) -> HostCheck:
    line = str(host.facts.get("cmdline", ""))
    groups = host.facts["iommu_groups"]
    translated = [gpu.pci for gpu in host.chosen if (gpu.iommu or "").startswith("DMA")]
    unknown = all(gpu.iommu is None for gpu in host.chosen)
    if translated or (unknown and groups and "iommu=pt" not in line):
        return HostCheck(
            id="iommu",
            status="warning",
            message="the IOMMU translates the cards' addresses: they may read zeros from each other",
            fix="add iommu=pt to the kernel's command line (GRUB_CMDLINE_LINUX_DEFAULT, then sudo update-grub), reboot",
        )
    return HostCheck(id="iommu", status="ok", message="pass-through" if groups else "off")


def _engine(host: Host, engine: str | None, disk_free: int | None) -> Iterator[HostCheck]:
    if engine is None:
        yield HostCheck(id="engine", status="skipped", message="no engine was asked")
        return
    room = f", {gib(disk_free)} free for images" if disk_free is not None else ""
    if host.rootless:
        yield HostCheck(
            id="engine",
            status="warning",
            message=f"{engine}, rootless{room}",
            fix="give containers --group-add keep-groups (crun), as numbers outside the user's map become nobody",
        )
    else:
        yield HostCheck(id="engine", status="ok", message=engine + room)


def _link(gpu: Gpu) -> str:
    width, speed = gpu.link.get("current_link_width"), gpu.link.get("max_link_speed")
    return f"x{width} {(speed or '?').removesuffix(' PCIe')}" if width else "-"


def _speed(text: str | None) -> float:
    """Return the GT/s of ``16.0 GT/s PCIe``; an idle card's current speed is low, so the largest is meant."""
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return SPEED
