"""A GPU host: its cards, which of them are chosen, and everything that a deployment asks of it. Read-only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import HostError, UsageError
from builder.host import reader
from builder.plan.plan import HostMemory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.engine.port import Engine

ARCH = "gfx1100"
READ_SECONDS = 60.0
MOUNT = "/gfx1100-host"
# A 7900 XTX has 24 GB; an integrated GPU borrows its memory from the host's and has one or two SIMD pairs
LEAST_SIMDS = 32


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        gfx: Its architecture, from KFD's gfx_target_version.
        pci: Its PCI address.
        vram_bytes: Its memory.
        vram_used: What of it is in use, or None.
        visible_bytes: What of it the processor can reach, or None.
        render_node: Its device node.
        gid: The number of the group that the node belongs to, or None when the node is not there.
        mode: The node's permission bits.
        link: Lanes in use and largest speed of its way to the processor.
        iommu: How the IOMMU treats it: ``identity``, ``DMA`` and its kinds, or None.
        screens: Screens that are connected to it.
        gpu_id: KFD's number for it.
        integrated: It is part of the processor.
        chosen: A deployment may use it.
    """

    gfx: str
    pci: str
    vram_bytes: int
    vram_used: int | None
    visible_bytes: int | None
    render_node: str | None
    gid: int | None
    mode: int
    link: Mapping[str, Any]
    iommu: str | None
    screens: int
    gpu_id: str | None
    integrated: bool
    chosen: bool

    def as_json(self) -> dict[str, Any]:
        """Return what scripts read."""
        return {
            "gfx": self.gfx,
            "pci": self.pci,
            "vram_bytes": self.vram_bytes,
            "vram_used": self.vram_used,
            "render_node": self.render_node,
            "gid": self.gid,
            "link": dict(self.link),
            "integrated": self.integrated,
            "chosen": self.chosen,
        }


@dataclass(frozen=True, kw_only=True)
class Host:
    """What was read of a host.

    Attributes:
        where: How messages call it.
        gpus: Its GPUs in KFD's order.
        facts: Everything else, as :func:`builder.host.reader.read` names it.
        local: It is this machine (or a copy of it), so its user and limits are those of a deployment.
        rootless: The engine runs as the user, and passes on only groups that the user has.
    """

    where: str
    gpus: tuple[Gpu, ...]
    facts: Mapping[str, Any]
    local: bool
    rootless: bool = False

    @property
    def chosen(self) -> tuple[Gpu, ...]:
        """The cards that a deployment may use."""
        return tuple(gpu for gpu in self.gpus if gpu.chosen)

    @property
    def devices(self) -> tuple[str, ...]:
        """The device nodes that a container gets: the compute device and the chosen cards' render nodes."""
        return ("/dev/kfd", *(gpu.render_node for gpu in self.chosen if gpu.render_node))

    @property
    def gids(self) -> tuple[int, ...]:
        """The groups of those nodes, as numbers."""
        return self.gids_of(self.chosen)

    def gids_of(self, cards: Iterable[Gpu]) -> tuple[int, ...]:
        """Return the groups of the compute device and of some cards' render nodes, as numbers."""
        numbers = ((self.facts.get("kfd") or {}).get("gid"), *(gpu.gid for gpu in cards))
        return tuple(dict.fromkeys(number for number in numbers if number is not None))

    def memory(self) -> HostMemory:
        """Return what ``plan`` needs to know."""
        memory = self.facts.get("memory") or {}
        return HostMemory(
            vram=tuple(gpu.vram_bytes for gpu in self.chosen),
            ram=memory.get("available"),
            shm=self.facts.get("shm_bytes"),
        )


def read_host(root: Path = Path("/"), *, rootless: bool = False) -> Host:
    """Return this machine, or the host whose copy lies below ``root``.

    Raises:
        UsageError: ``root`` holds no ``sys`` folder, or one of its files is not of the form that it must have.
    """
    if not (root / "sys").is_dir():
        raise UsageError(
            f"{root} is no copy of a host: it has no sys folder", hint="give its root with --host-root DIR"
        )
    try:
        facts = reader.read(root)
    except ValueError as trouble:
        raise UsageError(f"the host below {root} cannot be read: {trouble}") from trouble
    return host_of(facts, where="this machine" if root == Path("/") else str(root), local=True, rootless=rootless)


def read_engine_host(engine: Engine, image: str) -> Host:
    """Return the host of an engine, read in a container there.

    Args:
        engine: The engine, on whatever machine.
        image: An image with python3, which the engine has.

    Raises:
        HostError: The reader did not run there.
    """
    source = Path(reader.__file__).read_bytes()
    done = engine.run_once(
        image,
        ["python3", "/gfx1100-reader.py", MOUNT],
        files={"/gfx1100-reader.py": source},
        timeout=READ_SECONDS,
        mounts={f"/{name}": f"{MOUNT}/{name}" for name in ("sys", "proc", "dev", "etc/group")},
    )
    if done.returncode != 0:
        raise HostError(
            f"the host of {engine.name} could not be read with {image}: status {done.returncode}\n{done.stderr[-300:]}",
            hint="name an image that has python3 with --image",
        )
    return host_of(json.loads(done.stdout), where=f"the host of {engine.name}", local=False)


def host_of(facts: Mapping[str, Any], *, where: str, local: bool, rootless: bool = False) -> Host:
    """Return the host that the reader's facts describe; the gfx1100 cards are chosen, integrated GPUs never are."""
    return Host(
        where=where,
        gpus=tuple(_gpu(one) for one in facts["gpus"]),
        facts=facts,
        local=local,
        rootless=rootless or bool(facts.get("rootless")),
    )


def _gpu(one: Mapping[str, Any]) -> Gpu:
    integrated = one["simds"] < LEAST_SIMDS
    render = one["render"] or {}
    return Gpu(
        gfx=one["gfx"],
        pci=one["pci"],
        vram_bytes=one["vram_bytes"],
        vram_used=one["vram_used"],
        visible_bytes=one["visible_bytes"],
        render_node=one["render_node"],
        gid=render.get("gid"),
        mode=render.get("mode", 0),
        link=one["link"],
        iommu=one["iommu"],
        screens=one["screens"],
        gpu_id=one["gpu_id"],
        integrated=integrated,
        chosen=one["gfx"] == ARCH and not integrated,
    )
