"""The probe: one self-contained file that runs inside an image, without network, and prints what it found as JSON.

It needs nothing but the image's own Python: ``python3 probe.py ASK.json``, where ASK.json holds
``{"package": NAME, "modules": [NAME], "extensions": [GLOB], "texts": [PATH], "ops": {NAMESPACE: [NAME]},
"folders": [NAME], "first": {"program": NAME, "module": NAME} or null}``, globs and paths below site-packages.
"""

import ast
import ctypes
import glob
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import sysconfig

TEXT_LIMIT = 8 << 20
FIRST_SECONDS = 300
# run in a process of its own: tells the order in which the top-level packages are looked for, and which were loaded
ORDER = """
import json, runpy, shutil, sys
program, module = sys.argv[1:]
# a .pth file may have imported some already
known = sys.stdlib_module_names
seen = [name for name in list(sys.modules) if "." not in name and not name.startswith("_") and name not in known]
class Listener:
    def find_spec(self, name, path=None, target=None):
        if "." not in name and name not in seen and name not in known:
            seen.append(name)
sys.meta_path.insert(0, Listener())
try:
    path = shutil.which(program)
    with open(path or "/dev/null", "rb") as file:
        is_python = b"python" in file.readline()
    if is_python:
        runpy.run_path(path, run_name="watched")  # what stands at its top, as a spawned worker runs it
    __import__(module)
    error = ""
except BaseException as trouble:
    error = repr(trouble)[:300]
print(json.dumps({"order": seen, "loaded": [name for name in seen if name in sys.modules], "error": error}))
"""


def main() -> None:
    """Answer the questions of the file that is named on the command line."""
    with open(sys.argv[1], encoding="utf-8") as file:
        ask = json.load(file)
    site = site_of(ask["package"])
    answer = {
        "python": sys.version.split()[0],
        "site": site,
        "user": os.getuid(),
        "distributions": distributions(),
        "requires": requirements(),
        "markers": markers(),
        "owners": owners(ask["folders"]),
        "torch": torch_version(site_of("torch")),
        "version": package_version(ask["package"]),
        "modules": {name: imported(name) for name in ask["modules"]},
        "extensions": {pattern: matches(site, pattern) for pattern in ask["extensions"]},
        "loads": {path: loaded(path) for pattern in ask["extensions"] for path in matches(site, pattern)},
        "texts": {pattern: {path: text_of(path) for path in matches(site, pattern)} for pattern in ask["texts"]},
        "ops": {space: {name: registered(space, name) for name in names} for space, names in ask["ops"].items()},
        "first": order_of_imports(**ask["first"]) if ask["first"] else None,
    }
    json.dump(answer, sys.stdout)


def site_of(package: str) -> str:
    """Return the folder that holds a package, without importing it."""
    for folder in (*sys.path[1:], sysconfig.get_paths()["purelib"]):
        if os.path.isdir(os.path.join(folder, package)):
            return folder
    return sysconfig.get_paths()["purelib"]


def distributions(path: "list[str] | None" = None) -> "list[list[str]]":
    """Return name and version of every distribution of this Python, or of some folders."""
    found = {(dist.metadata["Name"] or "?", dist.version or "?") for dist in installed(path)}
    return sorted([name, version] for name, version in found)


def requirements(path: "list[str] | None" = None) -> "list[list[str]]":
    """Return every distribution's name with each of its requirements, as its metadata says them."""
    return sorted([dist.metadata["Name"] or "?", line] for dist in installed(path) for line in dist.requires or ())


def owners(folders: "list[str]", path: "list[str] | None" = None) -> "dict[str, list[str]]":
    """Return, for top-level folders, the distributions whose RECORD says that files in it are theirs."""
    found: dict[str, set[str]] = {folder: set() for folder in folders}
    for dist in installed(path):
        lines = (dist.read_text("RECORD") or "").splitlines()
        for folder in folders:
            if any(line.startswith(folder + "/") for line in lines):
                found[folder].add(dist.metadata["Name"] or "?")
    return {folder: sorted(names) for folder, names in found.items()}


def installed(path: "list[str] | None") -> "list[importlib.metadata.Distribution]":
    """Return the distributions of this Python, or of some folders."""
    return list(importlib.metadata.distributions() if path is None else importlib.metadata.distributions(path=path))


def markers() -> "dict[str, str]":
    """Return what environment markers of requirements ask for (PEP 508)."""
    version = sys.implementation.version
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": ".".join(map(str, version[:3])),
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    }


def torch_version(site: str) -> "dict[str, str | None] | None":
    """Return version, CUDA and HIP release of the torch below a folder, read from its file; None without torch."""
    path = os.path.join(site, "torch", "version.py")
    if not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    found: dict[str, str | None] = {"__version__": None, "cuda": None, "hip": None}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and target.id in found and isinstance(value, ast.Constant):
                found[target.id] = None if value.value is None else str(value.value)
    return found


def registered(space: str, name: str) -> bool:
    """Return whether torch knows an op; the modules that register it were imported before."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(getattr(torch.ops, space, None), name)


def order_of_imports(program: str, module: str) -> "dict[str, object]":
    """Run the top of a program and import a module, in a new process, and return in which order packages were asked."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", ORDER, program, module],
            capture_output=True,
            text=True,
            timeout=FIRST_SECONDS,
            check=False,
        )
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as trouble:
        return {"order": [], "loaded": [], "error": repr(trouble)[:300]}


def package_version(package: str) -> str:
    """Return ``__version__`` of a package, or an empty text."""
    try:
        return str(getattr(importlib.import_module(package), "__version__", ""))
    except Exception as trouble:  # the report is the purpose, whatever a module raises
        return f"import failed: {trouble!r}"[:300]


def imported(name: str) -> str:
    """Import a module and return ``ok`` or what it raised."""
    try:
        importlib.import_module(name)
    except BaseException as trouble:  # also SystemExit: the report is the purpose
        return f"{type(trouble).__name__}: {trouble}"[:500]
    return "ok"


def loaded(path: str) -> str:
    """Load a shared library as the dynamic linker does and return ``ok`` or what it said."""
    try:
        ctypes.CDLL(path)
    except OSError as trouble:
        return str(trouble)[:500]
    return "ok"


def matches(site: str, pattern: str) -> "list[str]":
    """Return the files that an absolute glob, or one below site-packages, matches, as absolute paths."""
    return sorted(glob.glob(os.path.join(glob.escape(site), pattern), recursive=True))


def text_of(path: str) -> "dict[str, str]":
    """Return a file's text, or why it cannot be read; only its first 8 MiB are looked at."""
    try:
        with open(path, "rb") as file:
            return {"text": file.read(TEXT_LIMIT).decode("utf-8", "replace")}
    except OSError as trouble:
        return {"error": trouble.strerror or "unreadable"}


if __name__ == "__main__":
    main()
