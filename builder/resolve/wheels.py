"""Find a pinned wheel in a simple index, in the JSON form (PEP 691) or the HTML form (PEP 503), and its SHA-256."""

from __future__ import annotations

import html.parser
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builder.errors import UpstreamError, UsageError

if TYPE_CHECKING:
    from builder.models.stack import Wheel
    from builder.settings import Settings

ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"
PAGE_LIMIT = 64 << 20
SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Found:
    """A wheel file: its version with the local part, its address without the fragment, and its hash."""

    version: str
    url: str
    sha256: str


def find_wheel(wheel: Wheel, *, python: str, settings: Settings) -> Found:
    """Return the one wheel file of a pinned distribution for x86-64 Linux and the image's Python, such as 3.12.

    Raises:
        UpstreamError: The index could not be asked, or answered with something else than an index page.
        UsageError: It has no such file, or gives no SHA-256 for it.
    """
    page = f"{str(wheel.index).rstrip('/')}/{canonicalize_name(wheel.name)}/"
    files = _files(page, settings)
    fitting = sorted(name for name in files if fits(name, wheel, python))
    if not fitting:
        near = ", ".join(sorted(name for name in files if f"-{wheel.version}-" in name)[:3])
        raise UsageError(
            f"{page} has no wheel of {wheel.name} {wheel.version} for Python {python} on x86-64 Linux"
            f" ({near or 'no file of that version'})"
        )
    url, fragment = files[fitting[-1]]
    if not re.fullmatch(r"[0-9a-f]{64}", fragment):
        raise UsageError(
            f"{page} gives no SHA-256 for {fitting[-1]}", hint="use an index with hashes, or a mirror of it"
        )
    return Found(version=version_of(fitting[-1]), url=url, sha256=fragment)


def version_of(file: str) -> str:
    """Return the version that a wheel's file name says."""
    return str(parse_wheel_filename(file)[1])


def is_version(found: str, wanted: str) -> bool:
    """Whether a version is the wanted one; a wanted one without a local part leaves that part open."""
    have, want = Version(found), Version(wanted)
    return have == want or (want.local is None and Version(have.public) == want)


def fits(file: str, wheel: Wheel, python: str) -> bool:
    """Whether a file is a wheel of a pinned distribution for x86-64 Linux and a Python."""
    try:
        name, version, _, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    interpreter = "cp" + python.replace(".", "")
    return (
        name == canonicalize_name(wheel.name)
        and is_version(str(version), wheel.version)
        and any(
            (tag.interpreter in {interpreter, "py3"} or tag.abi == "abi3")
            and (tag.platform == "any" or (tag.platform.endswith("x86_64") and "linux" in tag.platform))
            for tag in tags
        )
    )


def _files(page: str, settings: Settings) -> dict[str, tuple[str, str]]:
    """Return the files of an index page: name -> (address, SHA-256 or an empty text)."""
    import requests

    try:
        answer = requests.get(
            page, headers={"Accept": ACCEPT}, timeout=SECONDS, verify=settings.ca_bundle or True, stream=True
        )
        body = answer.raw.read(PAGE_LIMIT + 1, decode_content=True)
    except (requests.RequestException, OSError) as trouble:
        raise UpstreamError(f"{page} could not be asked: {type(trouble).__name__}") from trouble
    if answer.status_code == requests.codes.not_found:
        raise UsageError(f"{page} is not there: the index does not know this distribution")
    if answer.status_code != requests.codes.ok or len(body) > PAGE_LIMIT:
        raise UpstreamError(f"{page} answered {answer.status_code} with {len(body)} bytes")
    kind = answer.headers.get("Content-Type", "").partition(";")[0]
    if kind == "application/vnd.pypi.simple.v1+json":
        return _from_json(body, answer.url)
    if kind in {"text/html", "application/vnd.pypi.simple.v1+html"}:
        parser = _Links(answer.url)
        parser.feed(body.decode(errors="replace"))
        return parser.files
    raise UpstreamError(f"{page} answered with {kind or 'no content type'}, which is no index page")


def _from_json(body: bytes, base: str) -> dict[str, tuple[str, str]]:
    try:
        value: Any = json.loads(body)
        return {
            str(file["filename"]): (urljoin(base, str(file["url"])), str(file.get("hashes", {}).get("sha256", "")))
            for file in value["files"]
            if not file.get("yanked")
        }
    except (ValueError, KeyError, TypeError, AttributeError) as trouble:
        raise UpstreamError(f"{base} answered with JSON that is no index page") from trouble


class _Links(html.parser.HTMLParser):
    """Collects the links of an HTML index page."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self.base = base
        self.files: dict[str, tuple[str, str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the address, the file name and the hash of one link."""
        given = dict(attrs)
        href = given.get("href")
        if tag != "a" or not href or "data-yanked" in given:
            return
        url, _, fragment = urljoin(self.base, href).partition("#")
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        kind, _, value = fragment.partition("=")
        self.files[name] = (url, value if kind == "sha256" else "")
