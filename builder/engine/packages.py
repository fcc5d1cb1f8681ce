"""Programs from the distribution's own packages, installed with apt-get when they are missing and it is allowed."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from builder.errors import HostError
from builder.files import fresh_folder
from builder.process import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.console import Console

ASK_SECONDS = 60
INSTALL_SECONDS = 1800
# administration programs that a user's PATH may lack
_SEARCH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def program(name: str) -> str | None:
    """Return the path of a program, looked for among the administrator's programs too, or None."""
    return shutil.which(name, path=_SEARCH)


def as_root() -> list[str]:
    """Return the words that run a command as root: none for root itself, else sudo.

    Raises:
        HostError: This user is not root and may not use sudo.
    """
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is None:
        raise HostError("this needs root, and sudo is not installed", hint="run it as root, or install sudo")
    keep = "--preserve-env=http_proxy,https_proxy,no_proxy,DEBIAN_FRONTEND,RUNLEVEL"
    if run([sudo, "-n", "true"], timeout=ASK_SECONDS, check=False).returncode == 0:
        return [sudo, "-n", keep]
    if sys.stdin.isatty():
        return [sudo, keep]
    raise HostError(
        "this needs root, and sudo would ask for a password without a terminal",
        hint="run `sudo -v` in this terminal first, or run it as root",
    )


def install(packages: Sequence[str], *, allowed: bool, why: str, console: Console) -> None:
    """Install packages of the distribution; says so first.

    Services that a package brings are not started where there is no systemd to do it.

    Args:
        packages: Package names; those that this release does not have are left out, but for the first.
        allowed: Whether installing is allowed.
        why: What they are for.
        console: Where it is said.

    Raises:
        HostError: It is not allowed, this is no Debian or Ubuntu, or apt-get failed.
    """
    if not allowed:
        line = f"apt-get install --no-install-recommends {' '.join(packages)}"
        raise HostError(f"{packages[0]} is not installed; {why}", hint=f"install it (`sudo {line}`), or allow it")
    apt, root = _apt_get(packages[0], why), as_root()
    if not _known(packages[0]):
        _update(apt, console)
    wanted = [packages[0], *(name for name in packages[1:] if _known(name))]
    console.step(f"installing {' '.join(wanted)} from the distribution's packages: {why}")
    # a runlevel of 1 keeps invoke-rc.d from starting services outside of systemd, see invoke-rc.d(8)
    run(
        [*root, apt, "-q", "-y", "install", "--no-install-recommends", *wanted],
        timeout=INSTALL_SECONDS,
        env={"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"},
        failure=HostError,
    )


def unpack(package: str, folder: Path, *, allowed: bool, why: str, console: Console) -> None:
    """Unpack a package of the distribution into a folder, without installing it and without root; says so first.

    Raises:
        HostError: It is not allowed, this is no Debian or Ubuntu, or the package cannot be had.
    """
    if not allowed:
        raise HostError(f"{package} is not here; {why}", hint=f"`sudo apt-get install {package}`, or allow it")
    apt = _apt_get(package, why)
    if not _known(package):
        _update(apt, console)
    console.step(f"unpacking the distribution's {package}: {why}")
    with fresh_folder(folder) as fresh:
        run([apt, "-q", "download", package], timeout=INSTALL_SECONDS, cwd=fresh, failure=HostError)
        for archive in fresh.glob("*.deb"):
            run(["dpkg-deb", "-x", str(archive), str(fresh)], timeout=INSTALL_SECONDS, failure=HostError)
            archive.unlink()


def _apt_get(package: str, why: str) -> str:
    """Return the path of apt-get, which is to bring a package."""
    apt = program("apt-get")
    if apt is None:
        raise HostError(
            f"{package} is not installed, and this is neither Debian nor Ubuntu; {why}",
            hint=f"install {package} the way of this distribution, then try again",
        )
    return apt


def _update(apt: str, console: Console) -> None:
    console.step("apt-get update")
    # a third party's source that fails says so in the status; what is wanted may be there all the same
    run([*as_root(), apt, "-q", "update"], timeout=INSTALL_SECONDS, check=False, failure=HostError)


def _known(package: str) -> bool:
    """Whether apt's lists have a package that can be installed."""
    apt_cache = program("apt-cache")
    if apt_cache is None:
        return False
    told = run([apt_cache, "policy", package], timeout=ASK_SECONDS, check=False).stdout
    return "Candidate: " in told and "Candidate: (none)" not in told
