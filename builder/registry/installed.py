"""What is installed in an image: asked of the image itself, in a container without network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from builder.errors import VerifyError
from builder.models.base import Data

if TYPE_CHECKING:
    from builder.engine.port import Engine

LISTER = Path(__file__).with_name("package_list.py")
SECONDS = 300.0


class Distribution(Data):
    """A Python distribution.

    Attributes:
        name: Its name, as it writes it.
        version: Its version.
        licence: Its SPDX licence expression, or empty.
        sha256: Hash of its RECORD, which holds the hashes of its files; empty where there is none.
        folder: The folder that it is installed in.
    """

    name: str
    version: str
    licence: str = ""
    sha256: str = ""
    folder: str = ""


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
