"""Base images made from a distribution's own packages by debootstrap, with no registry involved."""

from __future__ import annotations

import email.utils
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from builder.engine import packages
from builder.errors import HostError, UsageError
from builder.files import canonical_json, locked, read_text, sha256
from builder.models.base import nearest
from builder.process import run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.console import Console
    from builder.engine.port import Engine, Image

BOOTSTRAP_SECONDS = 1800
RECIPE_LABEL = "org.gfx1100.base.recipe"
SUITES = ("bookworm", "trixie", "sid")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# What makes a base image; a change here makes other images, so that locks show it.
SCHEMA = 1
VARIANT = "minbase"
COMPONENTS = "main"
LEFT_OUT = (
    "./dev/*",
    "./proc/*",
    "./sys/*",
    "./tmp/*",
    "./run/*",
    "./etc/.pwd.lock",
    "./etc/hostname",
    "./etc/machine-id",
    "./etc/resolv.conf",
    "./etc/*-",
    "./var/cache/apt/*",
    "./var/cache/debconf/*-old",
    "./var/cache/ldconfig/*",
    "./var/lib/apt/lists/*",
    "./var/lib/dpkg/*-old",
    "./var/lib/systemd/*",
    "./var/log/*",
)


def recipe_sha256(suite: str) -> str:
    """Return the hash of what makes a suite's base image: variant, components, what is left out. No time in it.

    Raises:
        UsageError: The suite is not one that can be made here.
    """
    if suite not in SUITES:
        raise UsageError(f"no base image can be made of the suite {suite!r}{nearest(suite, list(SUITES))}")
    return sha256(canonical_json([SCHEMA, suite, VARIANT, COMPONENTS, LEFT_OUT]))


def base_reference(suite: str) -> str:
    """Return the name of a suite's base image, ``gfx1100/base-<suite>:<first 12 digits of the recipe's hash>``."""
    return f"gfx1100/base-{suite}:{recipe_sha256(suite)[:12]}"


def base_tar(cache: Path, suite: str) -> Path:
    """Return where the cache keeps a suite's base image."""
    return cache / "bases" / f"{suite}-{recipe_sha256(suite)[:12]}.tar"


def bootstrap_base(
    engine: Engine, suite: str, *, cache: Path, mirror: str | None, console: Console, install: bool = False
) -> Image:
    """Return the base image of a suite: the engine's own, else imported from the cache, else made (half a minute).

    Args:
        engine: Where the image shall be.
        suite: The distribution's release, such as ``trixie``.
        cache: The cache folder; the tar file lies in ``bases`` below it.
        mirror: Where packages come from instead of debootstrap's own mirror; it is not written into the image.
        console: Where long steps are told.
        install: Whether debootstrap and the keyring may be installed when they are missing.

    Raises:
        HostError: No root, no debootstrap, or it failed.
        UsageError: The suite is not known.
    """
    recipe, reference = recipe_sha256(suite), base_reference(suite)
    with locked(cache / "bases" / f"{suite}.lock"):
        image = engine.image(reference)
        if image is not None and image.labels.get(RECIPE_LABEL) == recipe:
            return image
        tar = base_tar(cache, suite)
        if not tar.is_file():
            _make(suite, tar, mirror, install=install, console=console)
        console.step(f"importing {reference} ({tar.stat().st_size / 1e6:.0f} MB)")
        return engine.import_image(tar, reference, labels={RECIPE_LABEL: recipe})


def own_mirror() -> str | None:
    """Return the mirror that debootstrap takes when none is named, read off the program; None when it is not there.

    Raises:
        HostError: The program, which is a shell script, names none.
    """
    debootstrap = packages.program("debootstrap")
    if debootstrap is None:
        return None
    found = re.search(r'^DEF_MIRROR="(\S+)"$', read_text(Path(debootstrap)), re.MULTILINE)
    if found is None:
        raise HostError(f"{debootstrap} names no mirror of its own", hint="upgrade it")
    return found[1]


def _make(suite: str, tar: Path, mirror: str | None, *, install: bool, console: Console) -> None:
    debootstrap = _debootstrap(install=install, console=console)
    root = packages.as_root()
    console.step(f"making a {suite} base image from packages" + (f" of {mirror}" if mirror else ""))
    # beside the tar, not in /tmp, which is often mounted without device files or in memory
    with tempfile.TemporaryDirectory(prefix=f".{suite}-", dir=tar.parent) as scratch:
        tree, unfinished = Path(scratch) / "root", Path(scratch) / "tar"
        try:
            _bootstrap([*root, debootstrap], suite, tree, mirror)
            if mirror:
                # the mirror is this machine's business; what the image says is debootstrap's own
                sources = f"deb {own_mirror()} {suite} {COMPONENTS}\n".encode()
                run([*root, "tee", f"{tree}/etc/apt/sources.list"], timeout=60, stdin=sources, failure=HostError)
            made = _release_time(tree)
            # the day of the last password change, which packages set to the day they are installed
            aged = f"s/^([^:]*:[^:]*):[0-9]*:/\\1:{made // 86400}:/"
            run([*root, "sed", "-E", "-i", aged, f"{tree}/etc/shadow"], timeout=60, failure=HostError)
            run([*root, *_tar_argv(tree, unfinished, made)], timeout=BOOTSTRAP_SECONDS, failure=HostError)
            run([*root, "chown", f"{os.getuid()}:{os.getgid()}", str(unfinished)], timeout=60, failure=HostError)
            unfinished.replace(tar)
        finally:
            _remove(root, tree)


def _bootstrap(program: Iterable[str], suite: str, tree: Path, mirror: str | None) -> None:
    try:
        # without --force-check-gpg debootstrap goes on unchecked when the keyring is missing
        run(
            [*program, f"--variant={VARIANT}", f"--components={COMPONENTS}", "--force-check-gpg",
             f"--keyring={KEYRING}", suite, str(tree), *([mirror] if mirror else [])],
            timeout=BOOTSTRAP_SECONDS,
            failure=HostError,
        )  # fmt: skip
    except HostError as trouble:
        said = trouble.message
        if re.search(r"unknown key|Invalid Release signature|keyring file not", said):
            step = f"this host's keys do not know {suite}: `sudo apt-get install --only-upgrade debian-archive-keyring`"
        elif re.search(r"mknod|noexec|nodev", said):
            step = "the cache folder lies on a file system without device files: set cache_dir to another one"
        else:
            step = "check the mirror (apt_mirror in gfx1100.local.yaml, or http_proxy), then try again"
        raise HostError(said, hint=step) from trouble


def _debootstrap(*, install: bool, console: Console) -> str:
    found = packages.program("debootstrap")
    if found is None or not KEYRING.is_file():
        packages.install(
            ["debootstrap", "debian-archive-keyring", "gpgv"],
            allowed=install,
            why="the base image is made with it",
            console=console,
        )
        found = packages.program("debootstrap")
    if found is None or not KEYRING.is_file():
        raise HostError(
            f"debootstrap or the keyring {KEYRING} is missing after its installation",
            hint="sudo apt-get install debootstrap debian-archive-keyring",
        )
    return found


def _tar_argv(tree: Path, tar: Path, made: int) -> list[str]:
    """Return tar's words: names sorted, owners kept, and no time later than the archive's, so that it repeats."""
    order = ["--sort=name", "--numeric-owner", "--format=gnu", "--one-file-system"]
    times = [f"--mtime=@{made}", "--clamp-mtime"]
    left_out = [f"--exclude={pattern}" for pattern in LEFT_OUT]
    return ["tar", "--create", f"--file={tar}", f"--directory={tree}", *order, *times, *left_out, "."]


def _release_time(tree: Path) -> int:
    """Return the date of the archive's Release file, in seconds since 1970."""
    for release in sorted((tree / "var/lib/apt/lists").glob("*Release")):
        found = re.search(r"^Date: (.+)$", release.read_text(errors="replace"), re.MULTILINE)
        if found:
            return int(email.utils.parsedate_to_datetime(found[1]).timestamp())
    raise HostError(f"debootstrap left no Release file below {tree}", hint="upgrade debootstrap")


def _remove(root: list[str], tree: Path) -> None:
    """Remove the tree; a killed debootstrap leaves /proc and /sys mounted in it."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        at = line.split()[1]
        if at.startswith(f"{tree}/"):
            run([*root, "umount", "--lazy", at], timeout=60, check=False)
    run([*root, "rm", "-rf", "--one-file-system", str(tree)], timeout=600, failure=HostError)
