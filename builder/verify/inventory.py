"""The files of an image: what its libraries link against, foreign architectures, secrets, hashes.

Only the standard library: it runs inside an image as root, without network, and prints what it found as JSON:
``main(ASK.json)``, where ASK.json holds ``{"package": NAME, "distribution": NAME, "extensions": [GLOB], "arch": NAME,
"installed": {PATH: PLACE}, "spared": [PATH]}``; a place is absolute, or below the folder of the package.
"""

# os.path is what every Python of an image has
# ruff: noqa: PTH113, PTH118, PTH119, PTH123, PTH202, PTH207

from __future__ import annotations

import base64
import csv
import glob
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from builder.verify import probe
from builder.verify.linking import Linker

MOST_SHOWN = 50
AMDGPU = b"\xe0\x00"  # e_machine 224
RECORD_LIMIT = 64 << 20
ROOTS = ("/opt", "/usr/lib", "/usr/local/lib", "/usr/share")
# gfx1100, gfx9-4-generic, gfx11xx; MIOpen appends the number of compute units: gfx90878 is gfx908 with 120
PROCESSOR = re.compile(r"gfx(?:\d+-(?:\d+-)?generic|[0-9]+x+|[1-9][0-9a-f]{2,})")
# files in which a processor's name is a word about it and no code for it
WORDS = (".py", ".pyi", ".pyc", ".h", ".hpp", ".cuh", ".cu", ".hip", ".md", ".rst", ".json", ".yaml", ".yml", ".cmake",
         ".html", ".csv", ".s")  # fmt: skip
PRIVATE = {
    "/run/secrets/*": "a build secret",
    "/root/.netrc /home/*/.netrc": "logins",
    "/root/.pypirc /home/*/.pypirc": "logins of package indexes",
    "/root/.docker/config.json /home/*/.docker/config.json": "logins of registries",
    "/root/.git-credentials /home/*/.git-credentials": "logins of git servers",
    "/root/.ssh/id_* /home/*/.ssh/id_*": "a private key",
    "/root/.aws/credentials /home/*/.aws/credentials": "logins of a cloud",
    "/root/.cache/huggingface/token /home/*/.cache/huggingface/token": "a login of a model hub",
    "/etc/pip.conf /root/.config/pip/pip.conf /root/.pip/pip.conf /opt/venv/pip.conf": "the builder's package index",
    "/etc/apt/apt.conf.d/90gfx1100 /etc/apt/auth.conf /etc/apt/auth.conf.d/*": "the builder's mirror",
    "/usr/local/share/ca-certificates/*": "a certificate of the builder's network",
}
BUNDLE, ISSUED = "/etc/ssl/certs/ca-certificates.crt", "/usr/share/ca-certificates"
CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)


def main(path: str) -> None:
    """Answer the questions of a file."""
    with open(path, encoding="utf-8") as file:
        ask = json.load(file)
    site = probe.site_of(ask["package"])
    linker = Linker(
        site,
        library_path=os.environ.get("LD_LIBRARY_PATH", ""),
        interpreter=os.path.realpath(sys.executable),
        in_place=True,
    )
    foreign, copies = walk((site, *ROOTS), ask["arch"], tuple(ask["spared"]))
    answer = {
        "links": linker.report(libraries(site, ask["package"], ask["extensions"])),
        "foreign": foreign,
        "libamd_smi": copies,
        "secrets": [*private_files(), *foreign_certificates()],
        "installed": {name: sha256(os.path.join(site, place)) for name, place in ask["installed"].items()},
        "record": record(site, ask["distribution"]),
    }
    json.dump(answer, sys.stdout)


def libraries(site: str, package: str, extensions: Iterable[str]) -> list[str]:
    """Return the host libraries of a package and those that some globs match."""
    own = glob.glob(os.path.join(glob.escape(site), package, "**", "*.so*"), recursive=True)
    named = [path for pattern in extensions for path in probe.matches(site, pattern)]
    return sorted({path for path in (*own, *named) if is_host_library(path)})


def is_host_library(path: str) -> bool:
    """Return whether a file is an ELF file that is no code object of a GPU."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        start = file.read(20)
    return start[:4] == b"\x7fELF" and start[18:20] != AMDGPU


def walk(roots: Iterable[str], arch: str, spared: tuple[str, ...] = ()) -> tuple[dict[str, Any], list[str]]:
    """Return the files that are named after another GPU, and the copies of ``libamd_smi``, below some folders.

    Args:
        roots: The folders.
        arch: The GPU whose files are no foreign ones.
        spared: Beginnings of paths below which foreign files are only counted.
    """
    shown: list[str] = []
    count = size = spared_count = 0
    copies: dict[tuple[int, int], str] = {}
    for root, path, found in files_below(roots):
        name = os.path.basename(path)
        if name.startswith("libamd_smi.so"):
            copies.setdefault((found.st_dev, found.st_ino), path)
        if is_foreign(os.path.relpath(path, root), arch) and not is_host_library(path):
            if path.startswith(spared):
                spared_count += 1
                continue
            count, size = count + 1, size + found.st_size
            shown += [path] if len(shown) < MOST_SHOWN else []
    foreign = {"count": count, "bytes": size, "files": sorted(shown), "spared": spared_count}
    return foreign, sorted(copies.values())


def is_foreign(name: str, arch: str) -> bool:
    """Return whether a relative path names GPUs, and none of the names stands for ``arch``."""
    if "gfx" not in name or name.endswith(WORDS):
        return False
    named = PROCESSOR.findall(name)
    return bool(named) and not any(covers(one, arch) for one in named)


def covers(name: str, arch: str) -> bool:
    """Return whether a name stands for a GPU: its own, with compute units, or its family's."""
    if name.endswith("generic"):
        return arch[3:].startswith(name[3:].partition("-")[0])
    if name.endswith("x"):
        return len(name) == len(arch) and arch.startswith(name.rstrip("x"))
    return name.startswith(arch)


def files_below(roots: Iterable[str]) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield root, path and status of every regular file below some folders, each once; links are not followed."""
    seen: set[str] = set()
    for root in roots:
        for folder, names, files in os.walk(os.path.realpath(root)):
            if folder in seen:
                names.clear()
                continue
            seen.add(folder)
            for name in files:
                path = os.path.join(folder, name)
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode):
                    yield os.path.realpath(root), path, status


def private_files() -> list[dict[str, str]]:
    """Return the files that belong to the machine or the person that built the image; empty ones do not count."""
    return [
        {"path": path, "what": what}
        for patterns, what in PRIVATE.items()
        for pattern in patterns.split()
        for path in sorted(glob.glob(pattern))
        if os.path.isfile(path) and os.path.getsize(path)
    ]


def foreign_certificates() -> list[dict[str, str]]:
    """Return the system's bundle when it holds certificates that the distribution's package did not bring."""
    issued = {body for _, path, _ in files_below((ISSUED,)) for body in certificates(path)}
    strange = [body for body in certificates(BUNDLE) if body not in issued]
    return [{"path": BUNDLE, "what": f"{len(strange)} certificates of the builder's network"}] if strange else []


def certificates(path: str) -> list[bytes]:
    """Return the bodies of a PEM file's certificates, without white space."""
    if not os.path.isfile(path):
        return []
    with open(path, "rb") as file:
        return [b"".join(found[1].split()) for found in CERTIFICATE.finditer(file.read(RECORD_LIMIT))]


def record(site: str, distribution: str) -> dict[str, Any]:
    """Compare a distribution's installed files with the hashes of its RECORD; no file is named when it has none."""
    wanted = re.sub(r"[-_.]+", "_", distribution).lower()
    for folder in glob.glob(os.path.join(glob.escape(site), "*.dist-info")):
        name = os.path.basename(folder).partition("-")[0]
        path = os.path.join(folder, "RECORD")
        if re.sub(r"[-_.]+", "_", name).lower() != wanted or not os.path.isfile(path):
            continue
        with open(path, encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) > 1 and row[1].startswith("sha256=")]
        wrong = [row[0] for row in rows if row[1] != f"sha256={url_safe(sha256(os.path.join(site, row[0])))}"]
        return {"files": len(rows), "wrong": wrong[:MOST_SHOWN], "wrong_count": len(wrong)}
    return {"files": 0, "wrong": [], "wrong_count": 0}


def sha256(path: str) -> str | None:
    """Return the hex SHA-256 of a file, or None when there is none."""
    if not os.path.isfile(path):
        return None
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def url_safe(digest: str | None) -> str:
    """Return a hash as RECORD writes it (PEP 376, PEP 427): base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(bytes.fromhex(digest or "")).decode().rstrip("=")
