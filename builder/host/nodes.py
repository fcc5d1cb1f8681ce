"""The device nodes of the chosen cards: who may open them, told in numbers, as names differ between host and image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.host.host import Host

Status = Literal["ok", "warning", "failed", "skipped"]
GROUP_READ_WRITE = 0o060
WORLD_READ_WRITE = 0o006


@dataclass(frozen=True, kw_only=True)
class HostCheck:
    """One check.

    Attributes:
        id: Its name.
        status: What came of it; a warning does not make a host unfit.
        message: What was found and what it means.
        fix: What to do; empty when nothing is.
    """

    id: str
    status: Status
    message: str
    fix: str = ""


def node_checks(host: Host) -> Iterator[HostCheck]:
    """Yield the checks of /dev/kfd and the render nodes: there, of a group, open to it, and the user in it."""
    user = host.facts["user"]
    mine = {int(number) for number in user.get("groups", ())}
    names = {number: name for name, number in host.facts["groups"].items()}
    kfd = host.facts.get("kfd")
    nodes = [("/dev/kfd", kfd["gid"], kfd["mode"])] if kfd else []
    for gpu in host.chosen:
        if gpu.gid is None:
            yield HostCheck(
                id="render-node",
                status="failed",
                message=f"{gpu.pci} has no render node ({gpu.render_node or 'none is named'})",
                fix="sudo udevadm trigger --subsystem-match=drm; in a container or VM, pass the node in",
            )
        else:
            nodes.append((gpu.render_node or "", gpu.gid, gpu.mode))
    for path, gid, mode in nodes:
        open_to_all = mode & WORLD_READ_WRITE == WORLD_READ_WRITE
        if gid == 0 and not open_to_all:
            yield HostCheck(
                id="render-group",
                status="failed",
                message=f"{path} belongs to group 0 (root): no group opens it",
                fix='sudo groupadd --system --force render, put SUBSYSTEM=="kfd", GROUP="render", MODE="0660" into '
                '/etc/udev/rules.d/70-kfd.rules (and SUBSYSTEM=="drm", KERNEL=="renderD*" likewise), '
                "then sudo udevadm trigger",
            )
        elif mode & GROUP_READ_WRITE != GROUP_READ_WRITE and not open_to_all:
            yield HostCheck(
                id="render-group",
                status="failed",
                message=f"{path} has mode {mode:03o}: its group {gid} may not use it",
                fix=f'sudo chmod g+rw {path}, and MODE="0660" in its udev rule',
            )
        else:
            called = names.get(gid)
            told = f"{gid} ({called})" if called else f"{gid}, which has no name here"
            yield HostCheck(id="render-group", status="ok", message=f"{path}: --group-add {told}")
    if nodes and host.local and user.get("uid") and not {gid for _, gid, _ in nodes} <= mine:
        missing = sorted({gid for _, gid, _ in nodes} - mine)
        yield HostCheck(
            id="user-groups",
            status="failed" if host.rootless else "warning",
            message=f"this user is not in group {', '.join(map(str, missing))}"
            + (
                ", and a rootless engine can pass on only groups that its user has"
                if host.rootless
                else "; an engine that runs as root does not mind"
            ),
            fix=f"sudo usermod -aG {','.join(names.get(gid, str(gid)) for gid in missing)} $USER, then log in again",
        )
