"""Image references: ``host[:port]/name[:tag][@digest]``, split and checked before anything is sent."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from builder.errors import UsageError

HUB = "docker.io"
# Docker Hub answers the API under a name of its own
HUB_API = "registry-1.docker.io"

# https://github.com/distribution/reference: the grammar of names, tags and digests
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_NAME = 255


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An image, or a repository when it has neither tag nor digest.

    Attributes:
        host: The registry's host, with its port when one was given.
        name: The repository's name on that host.
        tag: The tag, or None.
        digest: ``sha256:…``, or None.
    """

    host: str
    name: str
    tag: str | None = None
    digest: str | None = None

    @property
    def repository(self) -> str:
        """Host and name, as an engine takes them."""
        return f"{self.host}/{self.name}"

    @property
    def api(self) -> str:
        """The URL below which the registry answers for this repository; plain http on loopback only."""
        scheme = "http" if is_loopback(self.host) else "https"
        return f"{scheme}://{HUB_API if self.host == HUB else self.host}/v2/{self.name}"

    def tagged(self, tag: str) -> Reference:
        """Return a tag of the same repository.

        Raises:
            UsageError: It is no tag.
        """
        if not _TAG.fullmatch(tag):
            raise UsageError(f"{tag!r} is no tag", hint="letters, digits, _ . - are allowed, 128 characters at most")
        return replace(self, tag=tag, digest=None)

    def at(self, digest: str) -> Reference:
        """Return a digest of the same repository."""
        return replace(self, tag=None, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


def parse_reference(text: str) -> Reference:
    """Return the reference that a text names, with Docker Hub's defaults: ``debian`` is ``docker.io/library/debian``.

    Raises:
        UsageError: It is no reference; says which part is wrong.
    """
    if "://" in text:
        raise UsageError(f"the image {_masked(text)!r} is a URL", hint="write host/name:tag or host/name@sha256:…")
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise UsageError(
            f"the image {_masked(text)!r}: what follows the @ is no digest",
            hint="a digest is sha256: and 64 hex digits; a user and a password are given with `docker login`",
        )
    head, slash, last = rest.rpartition("/")
    last, colon, tag = last.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise UsageError(f"the image {text!r}: {tag!r} is no tag")
    host, name = _host_and_name(head + slash + last)
    if not _HOST.fullmatch(host):
        raise UsageError(f"the image {text!r}: {host!r} is no host name")
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise UsageError(f"the image {text!r}: {name!r} is no repository name", hint="lower case, parts divided by /")
    return Reference(host=host, name=name, tag=tag or None, digest=digest or None)


def parse_repository(text: str) -> Reference:
    """Return the repository that a text names.

    Raises:
        UsageError: It is no reference, or it has a tag or a digest.
    """
    repository = parse_reference(text)
    if repository.tag or repository.digest:
        raise UsageError(f"a repository is needed, and {text!r} has a tag or a digest", hint=repository.repository)
    return repository


def is_loopback(host: str) -> bool:
    """Return whether a host (with or without a port) is this machine by its very name."""
    bare = host.rpartition(":")[0] if re.search(r":[0-9]+$", host) and not host.endswith("]") else host
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare.strip("[]")).is_loopback
    except ValueError:
        return False


def _masked(text: str) -> str:
    """Return a text without what stands before its last @: people put their password there."""
    _, at, rest = text.rpartition("@")
    return f"…@{rest}" if at else text


def _host_and_name(path: str) -> tuple[str, str]:
    """Divide a path: its first part is a host when it holds a dot or a colon, or is localhost."""
    first, slash, name = path.partition("/")
    if not slash or not (first == "localhost" or any(mark in first for mark in ".:")):
        first, name = HUB, path
    if first in {"index.docker.io", HUB_API}:
        first = HUB
    return first, f"library/{name}" if first == HUB and name and "/" not in name else name
