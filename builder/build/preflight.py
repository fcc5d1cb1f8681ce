"""What the host must have before anything heavy begins: engine, space, inodes, memory for the jobs, and the network."""

from __future__ import annotations

import os
import socket
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.engine.address import is_here
from builder.engine.base import base_reference, base_tar, own_mirror
from builder.errors import HostError, RegistryError
from builder.settings import proxies

if TYPE_CHECKING:
    from builder.engine.buildkit import Builder
    from builder.engine.port import Engine
    from builder.models.stack import Stack
    from builder.settings import Settings

GIB = 1 << 30
# Full host and device objects of RDNA3 kernel files against torch's headers took 0.86 GB each, the largest 1.9 GB:
# our own measurement, docs/engine.md.
JOB_BYTES = 2 * GIB
LEAST_BYTES = 1 * GIB
RESERVED_BYTES = 2 * GIB
# An image made from the distribution's packages has 1.3 GB, its stages and cache about as much again.
SMALL_BYTES, SMALL_INODES = 6 * GIB, 200_000
# Published ROCm images of vLLM and PyTorch unpack to 22 and 32 GB (https://github.com/ROCm/vllm/issues/363,
# https://github.com/ROCm/legacy-rocm-build/issues/3935); a build holds two bases and its own stages, and torch, about
# 8 GB, once more: as it was installed and as layers.
LARGE_BYTES, LARGE_INODES = 88 * GIB, 1_000_000
REACH_SECONDS = 5.0
PROBE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a build takes.

    Attributes:
        free_bytes: Space where the engine keeps its data.
        free_inodes: Inodes there.
        images: Base images of registries, by digest where it is pinned.
        suites: Suites whose base image is made from packages.
        urls: Where its steps download from.
    """

    free_bytes: int
    free_inodes: int
    images: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    @classmethod
    def of(cls, stack: Stack) -> Needs:
        """Return the needs of a stack's build."""
        bases = (stack.bases.build, stack.bases.runtime)
        indexes = [wheel.index for wheel in stack.wheels if wheel.index]
        origin = [stack.source.repository] if stack.source.repository else []
        images = [f"{base.image}@{base.digest}" if base.digest else base.image for base in bases if base.image]
        return cls(
            free_bytes=LARGE_BYTES if images else SMALL_BYTES,
            free_inodes=LARGE_INODES if images else SMALL_INODES,
            images=tuple(dict.fromkeys(images)),
            suites=tuple(dict.fromkeys(base.bootstrap.suite for base in bases if base.bootstrap)),
            urls=tuple(dict.fromkeys((*indexes, *(fetch.repository for fetch in stack.fetch), *origin))),
        )


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """A host that can build.

    Attributes:
        jobs: Compile jobs.
        lines: What was found, a line each; one says why so many jobs.
    """

    jobs: int
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Free:
    """What is free on the engine's host; None is unknown."""

    where: str
    bytes: int | None
    inodes: int | None
    memory: int


def preflight(engine: Engine, builder: Builder, needs: Needs, settings: Settings) -> Readiness:
    """Check that a build can succeed here, and choose its jobs.

    Raises:
        HostError: It cannot; every reason with what to do.
    """
    cores, memory = engine.capacity()
    free = _free(engine, needs, memory)
    fine = [f"engine: {engine.name}", f"builder: {builder.name}"]
    wrong: list[str] = []
    _space(free, needs, fine, wrong)
    jobs, reason = choose_jobs(cores, free.memory, settings.jobs)
    fine.append(reason)
    if free.memory < LEAST_BYTES:
        wrong.append(
            f"memory: {free.memory / GIB:.1f} GiB free, one compile job takes 1 to {JOB_BYTES // GIB} GiB: "
            "end other programs, or build on another host (DOCKER_HOST)"
        )
    _bases(engine, needs, settings, fine, wrong)
    fine += [_reached(url)[1] for url in needs.urls]
    if wrong:
        raise HostError("\n".join(["this host is not ready to build:", *(f"  {line}" for line in wrong)]))
    return Readiness(jobs=jobs, lines=tuple(fine))


def choose_jobs(cores: int, free_memory: int, wanted: int | None) -> tuple[int, str]:
    """Return the number of compile jobs and the line that says why.

    Args:
        cores: Cores of the engine's host.
        free_memory: Bytes of its memory that are free.
        wanted: What the settings or ``--jobs`` say, which wins.
    """
    if wanted is not None:
        return wanted, f"jobs: {wanted} as asked for, of {cores} cores, {free_memory / GIB:.0f} GiB free"
    jobs = max(1, min(cores, (free_memory - RESERVED_BYTES) // JOB_BYTES))
    return jobs, f"jobs: {jobs} of {cores} cores, {free_memory / GIB:.0f} GiB free, {JOB_BYTES // GIB} GiB each"


def _free(engine: Engine, needs: Needs, memory: int) -> _Free:
    data_root = engine.data_root()
    if is_here(engine, data_root, memory):
        disk = os.statvfs(data_root)
        # file systems that make inodes as they need them say 0
        inodes = disk.f_favail if disk.f_files else None
        available = _available(Path("/proc/meminfo").read_text())
        return _Free(where=str(data_root), bytes=disk.f_bavail * disk.f_frsize, inodes=inodes, memory=available)
    where = f"{data_root} of {engine.name}"
    known = [*needs.images, *map(base_reference, needs.suites)]
    image = next((found for found in map(engine.image, known) if found), None)
    if image is None:
        return _Free(where=where, bytes=None, inodes=None, memory=memory)
    ask = "stat --file-system --format '%a %S %d' / && cat /proc/meminfo"
    told = engine.run_once(image.id, ["sh", "-c", ask], files={}, timeout=PROBE_SECONDS).stdout
    blocks, size, inodes = map(int, told.splitlines()[0].split())
    return _Free(where=where, bytes=blocks * size, inodes=inodes or None, memory=_available(told))


def _available(text: str) -> int:
    """Return the free bytes that /proc/meminfo tells."""
    line = next(line for line in text.splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


def _space(free: _Free, needs: Needs, fine: list[str], wrong: list[str]) -> None:
    if free.bytes is None:
        fine.append(f"space: unknown at {free.where} until an image is there; {needs.free_bytes / GIB:.0f} GiB needed")
        return
    room = f"space: {free.bytes / GIB:.0f} GiB free at {free.where}, {needs.free_bytes / GIB:.0f} GiB needed"
    if free.bytes < needs.free_bytes:
        wrong.append(
            f"{room}: make room (`docker system df`, `docker system prune`), or move data-root to another disk"
        )
    else:
        fine.append(room)
    if free.inodes is not None and free.inodes < needs.free_inodes:
        wrong.append(
            f"inodes: {free.inodes:,} free at {free.where}, {needs.free_inodes:,} needed: "
            "remove images and caches with many small files (`docker system prune`), or move data-root"
        )


def _bases(engine: Engine, needs: Needs, settings: Settings, fine: list[str], wrong: list[str]) -> None:
    for reference in needs.images:
        if engine.image(reference):
            fine.append(f"base: {reference} is on the engine")
            continue
        try:
            engine.remote_digest(reference)
        except RegistryError as trouble:
            wrong.append(f"base: {trouble.message}: {trouble.hint or 'check the name and the network'}")
        else:
            fine.append(f"base: {reference} is in its registry")
    for suite in needs.suites:
        if engine.image(base_reference(suite)) or base_tar(settings.cache, suite).is_file():
            fine.append(f"base: {base_reference(suite)} is here")
            continue
        mirror = settings.apt_mirror or own_mirror()
        if mirror is None:
            fine.append(f"base: {base_reference(suite)} is made with debootstrap, which is installed first")
            continue
        reached, line = _reached(mirror)
        (fine if reached else wrong).append(line)


def _reached(url: str) -> tuple[bool, str]:
    """Return whether a connection to a URL's host, or to the proxy on the way to it, opens, and the line about it."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    named = proxies()
    proxy = named.get(f"{parts.scheme}_proxy") or named.get("all_proxy")
    if proxy and not urllib.request.proxy_bypass(host):
        way = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    else:
        way = parts
    at = (way.hostname or "", way.port or (443 if way.scheme == "https" else 80))
    told = f"{host} over the proxy {at[0]}:{at[1]}" if way is not parts else f"{at[0]}:{at[1]}"
    try:
        socket.create_connection(at, timeout=REACH_SECONDS).close()
    except OSError as trouble:
        how = "check the network, the proxy or the mirror settings"
        return False, f"network: {told} cannot be reached ({trouble}): {how}"
    return True, f"network: {told} answers"
