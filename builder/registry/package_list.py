"""Lists what is installed in an image: one self-contained file that runs inside it and prints JSON.

It needs nothing but the image's own Python, 3.8 or newer. A distribution's RECORD holds the hash of each of its files
(https://packaging.python.org/en/latest/specifications/recording-installed-packages/), so the hash of RECORD stands
for all of them; dpkg keeps such a list a package too.
"""

import hashlib
import json
import sys
from importlib.metadata import PathDistribution
from pathlib import Path

DPKG = Path("/var/lib/dpkg")


def main() -> None:
    """Print the lists."""
    answer = {
        "system": system(Path("/etc/os-release")),
        "distributions": distributions([Path(folder) for folder in sys.path[1:] if folder]),
        "packages": packages(DPKG),
    }
    json.dump(answer, sys.stdout)


def distributions(folders: "list[Path]") -> "list[dict[str, str]]":
    """Return name, version, licence and the hash of RECORD of every distribution; no hash where there is no RECORD."""
    found = []
    for folder in folders:
        for info in sorted([*folder.glob("*.dist-info"), *folder.glob("*.egg-info")]):
            metadata = PathDistribution(info).metadata
            if metadata["Name"] and metadata["Version"]:
                found.append(
                    {
                        "name": metadata["Name"],
                        "version": metadata["Version"],
                        "licence": metadata["License-Expression"] or "",
                        "sha256": hash_of(info / "RECORD"),
                    }
                )
    return found


def packages(dpkg: Path) -> "list[dict[str, str]]":
    """Return name, version, architecture and the SHA-256 of the list of checksums of every installed package."""
    try:
        text = (dpkg / "status").read_text("utf-8", "replace")
    except OSError:
        return []
    found = []
    for paragraph in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed"):
            name, architecture = fields["Package"], fields.get("Architecture", "")
            lists = [dpkg / "info" / f"{end}.md5sums" for end in (name, f"{name}:{architecture}")]
            found.append(
                {
                    "name": name,
                    "version": fields.get("Version", ""),
                    "architecture": architecture,
                    "sha256": next(filter(None, map(hash_of, lists)), ""),
                }
            )
    return found


def system(path: Path) -> "dict[str, str]":
    """Return the fields of os-release."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return {}
    return {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines) if value}


def hash_of(path: Path) -> str:
    """Return a file's SHA-256, or an empty text when it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
