"""The wheelhouse: a folder of wheels that a build installs from, so that it needs no index and no network.

``pinned/`` holds the lock's wheels, each with the lock's hash; ``<stack>/build`` and ``<stack>/run`` hold what the
build's and the run-time requirements resolved to, for the image's Python and not for this machine's.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from builder.errors import HostError, UpstreamError, UsageError, VerifyError
from builder.files import MIB, sha256_file
from builder.models.lock import LockedWheel
from builder.process import run
from builder.resolve.wheels import Found, fits, version_of
from builder.source.repository import open_source
from builder.stage.inputs import require_resolved, source_location
from builder.stage.pins import run_requirements, stand_in_pins, write_stand_ins

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


def filled(root: Path, stack: Stack, lock: Lock, *, settings: Settings) -> Lock:
    """Fill the wheelhouse for a stack and return its lock with what the run-time requirements resolved to.

    Raises:
        UsageError: Something in the lock is unresolved, or the source lacks a requirements file.
        UpstreamError: The source or a wheel could not be fetched.
        VerifyError: A wheel is not what the lock names.
    """
    require_resolved(lock)
    source = open_source(source_location(root, stack, settings), cache=settings.cache, ca_bundle=settings.ca_bundle)

    def read(name: str) -> str:
        found = source.read_files(lock.commit, [name])
        if name not in found:
            raise UsageError(f"{source.location} has no file {name} at {lock.commit}")
        return found[name].decode()

    wanted = {"build": stack.build_requirements, "run": run_requirements(stack, read)}
    pinned = settings.wheels / PINNED
    for wheel in lock.wheels:
        _fetch(wheel, pinned, stack.python, settings)
    locked = [f"{wheel.name}=={wheel.version}" for wheel in lock.wheels]
    with tempfile.TemporaryDirectory() as scratch:
        stand_ins = Path(scratch) / "stand-ins"
        stand_ins.mkdir()
        write_stand_ins(stand_ins, stack)
        constraints = _lines(Path(scratch) / "constraints.txt", [*locked, *stand_in_pins(stack)])
        for name, lines in wanted.items():
            folder = settings.wheels / stack.name / name
            folder.mkdir(parents=True, exist_ok=True)
            requirements = _lines(Path(scratch) / f"{name}.txt", [*locked, *lines])
            words = [f"--constraint={constraints}", f"--requirement={requirements}"]
            words += [f"--find-links={pinned}", f"--find-links={stand_ins}"]
            _pip_download(words, folder, stack.python)
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


def _lines(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def _fitting(folder: Path, wheel: Wheel, python: str) -> list[Path]:
    return sorted(path for path in folder.glob("*.whl") if fits(path.name, wheel, python))


def _closure(folder: Path) -> Iterator[LockedWheel]:
    for path in sorted(folder.glob("*.whl")):
        name = canonicalize_name(path.name.partition("-")[0])
        yield LockedWheel(name=name, version=version_of(path.name), url=path.name, sha256=sha256_file(path))


def _pip_download(words: Iterable[str], folder: Path, python: str) -> None:
    """Have pip download wheels for the image's Python, with the mirrors that this machine's pip is set up with."""
    platforms = ["linux", "manylinux1", "manylinux2014", *(f"manylinux_2_{minor}" for minor in GLIBC)]
    target = [f"--platform={name}_x86_64" for name in platforms]
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


def _fetch(wheel: LockedWheel, folder: Path, python: str, settings: Settings) -> None:
    """Download a locked wheel, unless it is there, and believe it by its hash alone."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / wheel.file
    if not path.exists() and "://" not in wheel.url:
        _pip_download([f"{wheel.name}=={wheel.version}", "--no-deps"], folder, python)
    elif not path.exists():
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as file:
            unfinished = Path(file.name)
            try:
                file.writelines(_pieces(wheel.url, settings))
                file.flush()
                _require_hash(unfinished, wheel)
                unfinished.chmod(0o644)
                unfinished.replace(path)
            finally:
                unfinished.unlink(missing_ok=True)
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
