"""What is installed in an image, and its bill of materials as CycloneDX 1.6 JSON; the same input, the same bytes.

Form: https://cyclonedx.org/docs/1.6/json/; package URLs: https://github.com/package-url/purl-spec.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from packaging.utils import canonicalize_name
from pydantic import ValidationError

from builder.errors import VerifyError
from builder.files import canonical_json
from builder.models.base import Data
from builder.models.lock import UNRESOLVED

if TYPE_CHECKING:
    from builder.engine.port import Engine
    from builder.models.lock import Lock
    from builder.models.record import Record

SBOM_TYPE = "application/vnd.cyclonedx+json"
PROPERTY = "gfx1100:"
# what may stand in a URL as it is (RFC 3986, section 2.2)
_URL = ":/?#[]@!$&'()*+,;=%~"
LISTER = Path(__file__).with_name("package_list.py")
SECONDS = 300.0


class Distribution(Data):
    """A Python distribution.

    Attributes:
        name: Its name, as it writes it.
        version: Its version.
        licence: Its SPDX licence expression, or empty.
        sha256: Hash of its RECORD, which holds the hashes of its files; empty where there is none.
    """

    name: str
    version: str
    licence: str = ""
    sha256: str = ""


class Package(Data):
    """A package of the Linux distribution in the image; ``sha256`` is that of dpkg's list of its files' sums."""

    name: str
    version: str
    architecture: str = ""
    sha256: str = ""


class Installed(Data):
    """What is installed in an image.

    Attributes:
        system: The fields of os-release.
        distributions: The Python distributions.
        packages: The system's packages.
    """

    system: dict[str, str]
    distributions: tuple[Distribution, ...]
    packages: tuple[Package, ...]


def installed_in(engine: Engine, image: str) -> Installed:
    """Return what is installed in an image.

    Raises:
        VerifyError: The image has no Python that could say so, or did not answer.
    """
    inside = "/tmp/package_list.py"  # noqa: S108 - inside a container of one process
    output = engine.run_once(image, ["python3", inside], files={inside: LISTER.read_bytes()}, timeout=SECONDS)
    try:
        return Installed.model_validate_json(output.stdout)
    except ValidationError as trouble:
        tail = "\n".join((output.stderr or output.stdout).splitlines()[-5:])
        said = json.dumps(tail[:500], ensure_ascii=False)
        raise VerifyError(
            f"the image {image} did not list what is in it: status {output.returncode}, {said}",
            hint="an image of this program has a python3, which is asked",
        ) from trouble


def sbom(record: Record, lock: Lock, installed: Installed) -> str:
    """Return the bill of materials of a published image.

    Args:
        record: The record, which says where the image was published.
        lock: The lock that the image carries.
        installed: What is installed in it.
    """
    published = record.published
    if published is None:
        raise AssertionError
    name = published.repository.rpartition("/")[2]
    image = f"pkg:oci/{name}@{published.digest}?repository_url={_quoted(published.repository)}"
    engine = _engine(record)
    patches = _patches(record)
    rocm = _rocm(record)
    libraries = [*(_distribution(one, lock) for one in installed.distributions), *_packages(installed)]
    parts = _once([engine, *patches, *rocm, *libraries])
    return canonical_json(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, image)}",
            "version": 1,
            "metadata": {
                "timestamp": record.created,
                "tools": {
                    "components": [{"type": "application", "name": "gfx1100-images", "version": record.tool}],
                },
                "component": {
                    "type": "container",
                    "bom-ref": image,
                    "name": published.repository,
                    "version": published.digest,
                    "purl": image,
                    "properties": _properties(
                        {"stack": record.stack, "tag": published.tag, "lock-sha256": record.lock_sha256}
                    ),
                },
            },
            "components": parts,
            "dependencies": [
                {"ref": image, "dependsOn": sorted(part["bom-ref"] for part in parts if part not in patches)},
                {"ref": engine["bom-ref"], "dependsOn": sorted(patch["bom-ref"] for patch in patches)},
            ],
        }
    )


def _engine(record: Record) -> dict[str, Any]:
    name = record.repository.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return {
        "type": "application",
        "bom-ref": f"engine:{record.commit}",
        "name": name or record.stack,
        "version": record.version,
        "externalReferences": [{"type": "vcs", "url": quote(record.repository, safe=_URL), "comment": record.ref}],
        "pedigree": {"commits": [{"uid": record.commit}]},
        "properties": _properties({"commit": record.commit, "ref": record.ref}),
    }


def _patches(record: Record) -> list[dict[str, Any]]:
    return [
        {
            "type": "file",
            "bom-ref": f"patch:{patch.id}",
            "name": patch.id,
            "hashes": _hashes(patch.sha256),
            "properties": _properties({"kind": "patch", "outcome": patch.outcome, "position": str(position)}),
        }
        for position, patch in enumerate(record.patches)
    ]


def _rocm(record: Record) -> list[dict[str, Any]]:
    """Return the ROCm release; none where the base's own packages bring HIP and stand among them."""
    if record.rocm is None:
        return []
    return [{"type": "platform", "bom-ref": f"rocm:{record.rocm}", "name": "ROCm", "version": record.rocm}]


def _distribution(one: Distribution, lock: Lock) -> dict[str, Any]:
    name = canonicalize_name(one.name)
    purl = f"pkg:pypi/{name}@{_quoted(one.version)}"
    wheel = next((w for w in lock.wheels if canonicalize_name(w.name) == name), None)
    source = (
        {"externalReferences": [{"type": "distribution", "url": wheel.url, "hashes": _hashes(wheel.sha256)}]}
        if wheel and wheel.version == one.version and wheel.sha256 != UNRESOLVED
        else {}
    )
    return {
        "type": "library",
        "bom-ref": purl,
        "name": one.name,
        "version": one.version,
        "purl": purl,
        **({"licenses": [{"expression": one.licence}]} if one.licence else {}),
        **_hashed(one.sha256, "RECORD"),
        **source,
    }


def _packages(installed: Installed) -> list[dict[str, Any]]:
    system, release = installed.system.get("ID", "debian"), installed.system.get("VERSION_ID", "")
    distro = f"&distro={quote(f'{system}-{release}', safe='')}" if release else ""
    return [_package(one, system, distro) for one in installed.packages]


def _package(one: Package, system: str, distro: str) -> dict[str, Any]:
    purl = f"pkg:deb/{system}/{_quoted(one.name)}@{_quoted(one.version)}?arch={one.architecture}{distro}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": one.name,
        "version": one.version,
        "purl": purl,
        **_hashed(one.sha256, "dpkg's list of checksums"),
    }


def _hashed(sha256: str, what: str) -> dict[str, Any]:
    return {"hashes": _hashes(sha256), "properties": _properties({"hash-of": what})} if sha256 else {}


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]


def _properties(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": PROPERTY + name, "value": value} for name, value in values.items()]


def _once(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts without those that a second folder of the image brings again."""
    return list({part["bom-ref"]: part for part in reversed(parts)}.values())[::-1]


def _quoted(text: str) -> str:
    return quote(text, safe=".-_~:/")
