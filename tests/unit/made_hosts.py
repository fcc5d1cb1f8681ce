"""Made-up GPU hosts: small folder trees with the files of sysfs and proc that doctor reads, and a host.json aside."""

import json

GIB = 1 << 30
XTX = 25_753_026_560


def put(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def add_gpu(
    root,
    node,
    *,
    bus,
    minor,
    version=110000,
    simds=192,
    vram=XTX,
    used=30 * 1024**2,
    visible=None,
    width=16,
    speed="16.0 GT/s PCIe",
    screen=False,
    iommu=None,
    above=(),
):
    """Add one GPU as KFD and amdgpu show it; ``location_id`` is bus and device of its PCI address."""
    pci = f"0000:{bus:02x}:00.0"
    topology = f"sys/class/kfd/kfd/topology/nodes/{node}"
    put(root, f"{topology}/gpu_id", 40000 + node)
    properties = {
        "cpu_cores_count": 0,
        "simd_count": simds,
        "gfx_target_version": version,
        "vendor_id": 4098,
        "device_id": 29772,
        "location_id": bus << 8,
        "domain": 0,
        "drm_render_minor": minor,
    }
    put(root, f"{topology}/properties", "\n".join(f"{key} {value}" for key, value in properties.items()))
    put(root, f"{topology}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {vram}\nflags 0")
    device = f"sys/bus/pci/devices/{pci}"
    if above:
        behind_bridges(root, device, pci, above)
    if iommu:
        put(root, f"{device}/iommu_group/type", iommu)
    for name, value in (("vram_total", vram), ("vram_used", used), ("vis_vram_total", visible or vram)):
        put(root, f"{device}/mem_info_{name}", value)
    put(root, f"{device}/current_link_width", width)
    put(root, f"{device}/max_link_width", 16)
    put(root, f"{device}/current_link_speed", "2.5 GT/s PCIe")
    put(root, f"{device}/max_link_speed", speed)
    card = f"card{minor - 128}"
    (root / device / "drm" / card).mkdir(parents=True)
    put(root, f"sys/class/drm/{card}/device/uevent", f"DRIVER=amdgpu\nPCI_ID=1002:744C\nPCI_SLOT_NAME={pci}")
    put(root, f"sys/class/drm/{card}-DP-1/status", "connected" if screen else "disconnected")


def behind_bridges(root, device, pci, widths):
    """Put the device below bridges of these widths, as the kernel does: the bus folder holds a link."""
    path = "sys/devices/pci0000:00"
    for i, width in enumerate(widths):
        path += f"/0000:0{i}:01.0"
        put(root, f"{path}/current_link_width", width)
        put(root, f"{path}/max_link_speed", "16.0 GT/s PCIe")
    (root / path / pci).mkdir(parents=True)
    (root / device).parent.mkdir(parents=True, exist_ok=True)
    (root / device).symlink_to(root / path / pci)


def add_processor(root, *, ram=128, free=110, kernel="6.8.0-45-generic", hypervisor=False):
    """Add what every host has: a processor's node, memory, kernel, limits and listening ports."""
    put(root, "sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0")
    (root / "sys/module/amdgpu").mkdir(parents=True)
    put(root, "proc/sys/kernel/osrelease", kernel)
    put(root, "proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro iommu=pt")
    put(root, "proc/cpuinfo", "flags : fpu vme" + (" hypervisor" if hypervisor else ""))
    kib = GIB // 1024
    put(
        root, "proc/meminfo", f"MemTotal: {ram * kib} kB\nMemFree: 1 kB\nMemAvailable: {free * kib} kB\nSwapTotal: 0 kB"
    )
    put(root, "proc/self/limits", LIMITS)
    put(
        root,
        "proc/net/tcp",
        "  sl  local_address rem_address   st tx_queue\n   0: 0100007F:0016 00000000:0000 0A 00000000:0",
    )
    put(root, "etc/group", "root:x:0:\nvideo:x:44:me\nrender:x:992:me")


LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max locked memory         unlimited            unlimited            bytes
Max open files            1048576              1048576              files"""


def say(root, *, minors=(), gid=992, kfd_gid=992, mode=0o660, groups=(44, 992), uid=1000, **more):
    """Write host.json: the device nodes, which a copy cannot hold, the user and the engine."""
    nodes = {f"dri/renderD{minor}": {"gid": gid, "uid": 0, "mode": mode} for minor in minors}
    if kfd_gid is not None:
        nodes["kfd"] = {"gid": kfd_gid, "uid": 0, "mode": mode}
    told = {
        "nodes": nodes,
        "shm_bytes": 64 * GIB,
        "user": {"uid": uid, "groups": list(groups)},
        "engine": "docker 28.0 at unix:///var/run/docker.sock",
        "disk_free": 500 * GIB,
    }
    (root / "host.json").write_text(json.dumps(told | more))
    return root


def xtx(root, count=2, **processor):
    """One, two or four RX 7900 XTX with everything in order."""
    add_processor(root, **processor)
    for i in range(count):
        add_gpu(root, i + 1, bus=0x03 + 0x20 * i, minor=128 + i)
    return say(root, minors=range(128, 128 + count))


def mixed(root):
    """A 7900 XTX, an RX 6800 and an RX 9070 XT."""
    add_processor(root)
    add_gpu(root, 1, bus=0x03, minor=128, version=100300, simds=120, vram=16 * GIB)
    add_gpu(root, 2, bus=0x23, minor=129)
    add_gpu(root, 3, bus=0x43, minor=130, version=120001, simds=128, vram=16 * GIB)
    return say(root, minors=(128, 129, 130))


def igpu_in_front(root, version=100306):
    """An integrated GPU before two cards; with ``version`` 110000 it poses as a gfx1100, as an override makes it."""
    add_processor(root, ram=32, free=26)
    add_gpu(root, 1, bus=0x10, minor=128, version=version, simds=4, vram=512 * 1024**2, screen=True)
    add_gpu(root, 2, bus=0x03, minor=129, width=8)
    add_gpu(root, 3, bus=0x07, minor=130, width=8)
    return say(root, minors=(128, 129, 130))


def no_render_group(root):
    """Nodes of a group that has no name on the host."""
    xtx(root)
    put(root, "etc/group", "root:x:0:\nvideo:x:44:me")
    return say(root, minors=(128, 129), gid=992, groups=(44,))


def wrong_gids(root):
    """Nodes that belong to root alone, as without udev's rules."""
    xtx(root)
    return say(root, minors=(128, 129), gid=0, kfd_gid=0)


def no_kfd(root):
    """The driver without compute."""
    add_processor(root)
    put(root, "sys/class/drm/card0/device/uevent", "DRIVER=amdgpu\nPCI_ID=1002:744C\nPCI_SLOT_NAME=0000:03:00.0")
    return say(root, kfd_gid=None)


def headless_with_bmc(root):
    """A server whose first DRM card is its management chip."""
    xtx(root)
    put(root, "sys/class/drm/card9/device/uevent", "DRIVER=ast\nPCI_ID=1A03:2000\nPCI_SLOT_NAME=0000:c3:00.0")
    return root


def vm_without_card(root):
    """A virtual machine to which no card was passed through."""
    add_processor(root, hypervisor=True)
    (root / "sys/module/amdgpu").rmdir()
    put(root, "sys/class/drm/card0/device/uevent", "DRIVER=virtio-pci\nPCI_ID=1AF4:1050\nPCI_SLOT_NAME=0000:00:01.0")
    return say(root, kfd_gid=None)


def rootless_podman(root):
    """Podman without root, whose user is not in the nodes' group."""
    xtx(root)
    name = "podman 4.9 at unix:///run/user/1000/podman/podman.sock"
    return say(root, minors=(128, 129), groups=(1000,), rootless=True, engine=name)
