"""The wheelhouse: a folder of wheels that a build installs from, so that it needs no index and no network.

``pinned/`` holds the lock's wheels, each with the lock's hash; ``<stack>/build`` and ``<stack>/run`` hold what the
build's and the run-time requirements resolved to, for the image's Python and not for this machine's.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import HostError, UpstreamError, UsageError, VerifyError
from builder.files import MIB, sha256_file
from builder.models.lock import UNRESOLVED, LockedWheel
from builder.process import run
from builder.resolve.wheels import Found, fits, normalized, version_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from builder.models.lock import Lock
    from builder.models.stack import Stack, Wheel
    from builder.settings import Settings

PINNED = "pinned"
PIP_SECONDS = 3600
SECONDS = 60.0
# glibc of the bases: 2.36 in Debian 12, 2.39 in Ubuntu 24.04
GLIBC = range(5, 37)


def local_wheel(wheel: Wheel, *, python: str, folder: Path) -> Found:
    """Return a pinned wheel that has no index of its own: from the wheelhouse, else from where pip here looks.

    Args:
        wheel: Name and version.
        python: Python of the image.
        folder: The wheelhouse.

    Raises:
        UpstreamError: pip could not get it.
    """
    pinned = folder / PINNED
    pinned.mkdir(parents=True, exist_ok=True)
    if not (found := _fitting(pinned, wheel, python)):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _pip_download([f"{wheel.name}=={wheel.version}", "--no-deps"], Path(scratch), python)
            for path in Path(scratch).iterdir():
                path.replace(pinned / path.name)
        found = _fitting(pinned, wheel, python)
    if not found:
        raise UpstreamError(f"pip gave no wheel of {wheel.name} {wheel.version} for Python {python} on x86-64 Linux")
    return Found(version=version_of(found[-1].name), url=found[-1].name, sha256=sha256_file(found[-1]))


def fill(
    stack: Stack,
    lock: Lock,
    *,
    run_lines: Sequence[str],
    held: Sequence[str],
    stand_ins: Path,
    settings: Settings,
) -> Lock:
    """Fill the wheelhouse for a stack and return its lock with what the run-time requirements resolved to.

    Args:
        stack: What is built.
        lock: Its lock, whose wheels are resolved.
        run_lines: The run-time requirements.
        held: Constraints beside the lock's wheels.
        stand_ins: A folder with the wheels that stand for others.
        settings: The wheelhouse, the CA bundle.

    Raises:
        UsageError: A wheel of the lock is unresolved.
        UpstreamError: Something could not be fetched.
        VerifyError: A file is not what the lock names.
    """
    pinned = settings.wheels / PINNED
    for wheel in lock.wheels:
        _fetch(wheel, pinned, stack.python, settings)
    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch) / "constraints.txt"
        locked = [f"{wheel.name}=={wheel.version}" for wheel in lock.wheels]
        constraints.write_text("".join(f"{line}\n" for line in [*locked, *held]))
        for name, lines in (("build", stack.build_requirements), ("run", run_lines)):
            folder = settings.wheels / stack.name / name
            folder.mkdir(parents=True, exist_ok=True)
            wanted = Path(scratch) / f"{name}.txt"
            wanted.write_text("".join(f"{line}\n" for line in [*locked, *lines]))
            found = [f"--find-links={pinned}", f"--find-links={stand_ins}"]
            _pip_download([f"--constraint={constraints}", f"--requirement={wanted}", *found], folder, stack.python)
            for path in folder.iterdir():
                if (pinned / path.name).exists() or (stand_ins / path.name).exists():
                    path.unlink()
    return lock.model_copy(update={"requirements": tuple(_closure(settings.wheels / stack.name / "run"))})


def require_full(stack: Stack, lock: Lock, settings: Settings) -> None:
    """Raise HostError when the wheelhouse lacks a wheel that the lock names: a build offline would fail, and late."""
    wanted = [settings.wheels / PINNED / wheel.file for wheel in lock.wheels]
    wanted += [settings.wheels / stack.name / "run" / wheel.file for wheel in lock.requirements]
    missing = [path.name for path in wanted if not path.is_file()]
    if missing or (stack.wheels and not lock.requirements):
        first = missing[0] if missing else "the run-time requirements, which the lock has not resolved"
        raise HostError(
            f"the wheelhouse {settings.wheels} lacks {first}" + (f" ({len(missing)} in all)" if missing else ""),
            hint=f"run `gfx1100 lock {stack.name} --download` where the network is",
        )


def _fitting(folder: Path, wheel: Wheel, python: str) -> list[Path]:
    return sorted(path for path in folder.glob("*.whl") if fits(path.name, wheel, python))


def _closure(folder: Path) -> Iterator[LockedWheel]:
    for path in sorted(folder.glob("*.whl")):
        name = normalized(path.name.partition("-")[0])
        yield LockedWheel(name=name, version=version_of(path.name), url=path.name, sha256=sha256_file(path))


def _pip_download(words: Iterable[str], folder: Path, python: str) -> None:
    """Have pip download wheels for the image's Python, with the mirrors that this machine's pip is set up with."""
    platforms = ["linux_x86_64", "manylinux1_x86_64", "manylinux2014_x86_64", *_manylinux()]
    target = [f"--platform={name}" for name in platforms]
    try:
        run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--python-version={python}",
             "--implementation=cp", *target, f"--dest={folder}", *words],
            timeout=PIP_SECONDS,
            failure=UpstreamError,
        )  # fmt: skip
    except UpstreamError as trouble:
        if "No module named pip" in trouble.message:
            raise HostError(
                f"{sys.executable} has no pip, which fetches the wheels", hint=f"{sys.executable} -m ensurepip"
            ) from trouble
        hint = "check the network and pip's configuration; a package without a wheel needs a mirror that has one"
        raise UpstreamError(trouble.message, hint=hint) from trouble


def _manylinux() -> Iterator[str]:
    return (f"manylinux_2_{minor}_x86_64" for minor in GLIBC)


def _fetch(wheel: LockedWheel, folder: Path, python: str, settings: Settings) -> None:
    """Download a locked wheel, unless it is there, and believe it by its hash alone."""
    if UNRESOLVED in {wheel.url, wheel.sha256}:
        raise UsageError(f"the wheel of {wheel.name} is unresolved", hint="run `gfx1100 lock` where the network is")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / wheel.file
    if not path.exists():
        if "://" not in wheel.url:
            _pip_download([f"{wheel.name}=={wheel.version}", "--no-deps"], folder, python)
            _require_hash(path, wheel)
            return
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as file:
            unfinished = Path(file.name)
            try:
                for piece in _pieces(wheel.url, settings):
                    file.write(piece)
                file.flush()
                _require_hash(unfinished, wheel)
                unfinished.chmod(0o644)
                unfinished.replace(path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    unfinished.unlink()
    _require_hash(path, wheel)


def _pieces(url: str, settings: Settings) -> Iterator[bytes]:
    import requests

    try:
        with requests.get(url, timeout=SECONDS, verify=settings.ca_bundle or True, stream=True) as answer:
            answer.raise_for_status()
            yield from answer.iter_content(MIB)
    except (requests.RequestException, OSError) as trouble:
        raise UpstreamError(f"{url} could not be fetched: {type(trouble).__name__}: {trouble}") from trouble


def _require_hash(path: Path, wheel: LockedWheel) -> None:
    found = sha256_file(path) if path.is_file() else "no file"
    if found != wheel.sha256:
        raise VerifyError(
            f"{wheel.file} has the hash {found[:12]}, the lock says {wheel.sha256[:12]}",
            hint=f"take it away ({path.parent}) if it is damaged; else its publisher changed it under the same name",
        )
