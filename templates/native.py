"""Keeps the native build apart from the Python files: what it reads goes in, what it made comes out.

``native.py reduce SETUP SETTINGS`` cuts the engine's module of settings down to those that its setup.py asks for, so
that another setting in that file does not compile the kernels again.

``native.py join BASE OUT ADDED...`` writes a wheel with all files of BASE and those that it lacks: a wheel (``*.whl``)
adds what is missing, a folder replaces what is there.
"""

import base64
import csv
import glob
import hashlib
import importlib.util
import io
import os
import re
import sys
import zipfile

TIME = (1980, 1, 1, 0, 0, 0)


def reduce(setup: str, settings: str) -> None:
    """Write the settings module anew with the names alone that setup.py asks for, and their defaults."""
    with open(setup, encoding="utf-8") as file:
        names = sorted(set(re.findall(r"\benvs\.([A-Z][A-Z0-9_]*)", file.read())))
    spec = importlib.util.spec_from_file_location("envs", settings)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        defaults = {name: getattr(module, name) for name in names}
    except Exception as trouble:  # noqa: BLE001 - whatever the engine's own file raises
        # then every change of that file compiles again, which is slower and no less right
        print(f"{settings} stays whole: {trouble!r}")
        return
    odd = [name for name, value in defaults.items() if not isinstance(value, str | int | float | None)]
    if odd:
        print(f"{settings} stays whole: {', '.join(odd)}")
        return
    lines = [f"{name} = os.environ.get({name!r}) or {value!r}\n" for name, value in defaults.items()]
    with open(settings, "w", encoding="utf-8") as file:
        file.write("import os\n\n\ndef is_set(name):\n    return name in os.environ\n\n\n" + "".join(lines))
    print(f"{settings}: {', '.join(names)}")


def join(base: str, out: str, *added: str) -> None:
    """Write BASE's wheel to the folder OUT with the added files in it; names are sorted and times fixed."""
    files: dict[str, bytes] = {}
    modes: dict[str, int] = {}
    with zipfile.ZipFile(base) as wheel:
        take(wheel, files, modes)
    own = set(files)
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    for source in added:
        if source.endswith(".whl"):
            with zipfile.ZipFile(source) as wheel:
                take(wheel, files, modes)
        else:
            for path in sorted(glob.glob(f"{source}/**", recursive=True, include_hidden=True)):
                if os.path.isfile(path) and "/__pycache__/" not in path:
                    with open(path, "rb") as file:
                        files[os.path.relpath(path, source)] = file.read()
    files[record] = recorded(files, record)
    os.makedirs(out, exist_ok=True)
    with zipfile.ZipFile(os.path.join(out, os.path.basename(base)), "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, TIME)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, modes.get(name, 0o100644) << 16
            wheel.writestr(info, files[name])
    for name in sorted(set(files) - own):
        print(f"added {name}, {len(files[name])} bytes")


def take(wheel: zipfile.ZipFile, files: "dict[str, bytes]", modes: "dict[str, int]") -> None:
    """Add the files of a wheel that are not there yet; its own metadata only to an empty set."""
    first = not files
    for info in wheel.infolist():
        if not info.is_dir() and info.filename not in files and (first or ".dist-info/" not in info.filename):
            files[info.filename] = wheel.read(info)
            modes[info.filename] = info.external_attr >> 16 or 0o100644


def recorded(files: "dict[str, bytes]", record: str) -> bytes:
    """Return the list of a wheel's files with their hashes (Binary distribution format, ``RECORD``)."""
    rows = [(name, digest(data), len(data)) for name, data in sorted(files.items()) if name != record]
    text = io.StringIO()
    # names of tuning tables hold commas
    csv.writer(text, lineterminator="\n").writerows([*rows, (record, "", "")])
    return text.getvalue().encode()


def digest(data: bytes) -> str:
    """Return a hash as RECORD writes it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    {"reduce": reduce, "join": join}[sys.argv[1]](*sys.argv[2:])
