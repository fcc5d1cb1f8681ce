"""Who we are to a registry: challenges, and credentials of the docker configuration, which never enter a message."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

from builder.engine.address import docker_config
from builder.errors import HostError, UsageError
from builder.process import run
from builder.registry.reference import HUB, HUB_API

if TYPE_CHECKING:
    from collections.abc import Mapping

# The name under which `docker login` keeps Docker Hub's credentials
HUB_SERVER = "https://index.docker.io/v1/"
HELPER_TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """A user of a registry.

    Attributes:
        username: The user's name; empty with an identity token.
        secret: Password, access token or identity token; not shown in a repr.
        is_identity_token: The secret is to be exchanged for tokens (OAuth 2 refresh token).
    """

    username: str
    secret: str = field(repr=False)
    is_identity_token: bool = False

    def basic(self) -> str:
        """Return the Authorization header of HTTP basic authentication."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.secret}".encode()).decode()


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """What a registry asks for with status 401.

    Attributes:
        scheme: HTTP basic authentication, or a token of the realm.
        realm: The URL that gives tokens.
        service: The service that the token is for.
        scope: What the token must allow.
    """

    scheme: Literal["basic", "bearer"]
    realm: str = ""
    service: str = ""
    scope: str = ""


def parse_challenge(header: str) -> Challenge | None:
    """Return the challenge of a WWW-Authenticate header, the token one when there are two; None when none is known.

    Form: RFC 9110, section 11.6.1; the parameters are those of the distribution project's token authentication.
    """
    bearer = re.search(r"\bbearer\s+(.*)", header, re.IGNORECASE | re.DOTALL)
    if bearer:
        given = {key.lower(): value for key, value in re.findall(r'(\w+)="([^"]*)"', bearer[1])}
        return Challenge(
            scheme="bearer",
            realm=given.get("realm", ""),
            service=given.get("service", ""),
            scope=given.get("scope", ""),
        )
    return Challenge(scheme="basic") if re.search(r"\bbasic\b", header, re.IGNORECASE) else None


def token_request(
    challenge: Challenge, credentials: Credentials | None, scope: str
) -> tuple[str, str, dict[str, str], bytes | None]:
    """Return method, URL, headers and body of the request that gets a token.

    Forms: distribution.github.io/distribution/spec/auth, pages token, and oauth for identity tokens.

    Args:
        challenge: What the registry asks for.
        credentials: Who we are; None for anybody.
        scope: What we need; asked for beside the challenge's own scope, which some registries name too narrowly.
    """
    scopes = list(dict.fromkeys(part for part in (challenge.scope, scope) if part))
    if credentials and credentials.is_identity_token:
        form = {
            "grant_type": "refresh_token",
            "client_id": "gfx1100",
            "refresh_token": credentials.secret,
            "service": challenge.service,
            "scope": " ".join(scopes),
        }
        return (
            "POST",
            challenge.realm,
            {"Content-Type": "application/x-www-form-urlencoded"},
            urlencode(form).encode(),
        )
    query = urlencode([("service", challenge.service), *(("scope", part) for part in scopes)])
    joint = "&" if "?" in challenge.realm else "?"
    headers = {"Authorization": credentials.basic()} if credentials else {}
    return "GET", f"{challenge.realm}{joint}{query}", headers, None


def find_credentials(host: str, environ: Mapping[str, str] | None = None) -> Credentials | None:
    """Return what the docker configuration knows for a registry: a credential helper first, then ``auths``.

    Args:
        host: The registry's host, with its port when it has one.
        environ: Where DOCKER_CONFIG and HOME are looked up.

    Raises:
        UsageError: The configuration is damaged.
        HostError: The helper that it names is missing or fails.
    """
    path, config = docker_config(os.environ if environ is None else environ)
    helper = _section(config, "credHelpers", path).get(host) or config.get("credsStore")
    if helper:
        server = HUB_SERVER if host == HUB else host
        found = _ask_helper(str(helper), server, path)
        if found:
            return found
    entry = next((e for key, e in _section(config, "auths", path).items() if _same_server(key, host)), None)
    return _from_entry(entry, host, path) if entry else None


def _section(config: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    section = config.get(key)
    if not isinstance(section, dict | None):
        raise UsageError(f"{path}: {key} must be a mapping")
    return section or {}


def _same_server(key: str, host: str) -> bool:
    bare = key.removeprefix("https://").removeprefix("http://").partition("/")[0]
    return bare in {HUB, "index.docker.io", HUB_API} if host == HUB else bare == host


def _from_entry(entry: Any, host: str, path: Path) -> Credentials | None:  # noqa: ANN401 - any JSON value
    try:
        if entry.get("identitytoken"):
            return Credentials(username="", secret=str(entry["identitytoken"]), is_identity_token=True)
        if entry.get("auth"):
            user, _, secret = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
            return Credentials(username=user, secret=secret)
        if entry.get("username"):
            return Credentials(username=str(entry["username"]), secret=str(entry["password"]))
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError, binascii.Error):
        # without a cause: the text of the entry must not reach a log
        raise UsageError(f"{path}: the entry for {host} is damaged", hint=f"run `docker login {host}` again") from None
    return None


def _ask_helper(helper: str, server: str, path: Path) -> Credentials | None:
    """Ask ``docker-credential-<helper>``; its protocol is that of github.com/docker/docker-credential-helpers."""
    program = f"docker-credential-{helper}"
    if not re.fullmatch(r"[A-Za-z0-9._-]+", helper):
        raise UsageError(f"{path}: {helper!r} is no name of a credential helper")
    try:
        answer = run([program, "get"], stdin=server.encode(), timeout=HELPER_TIMEOUT, check=False)
    except HostError as missing:
        raise HostError(
            f"{path} names the credential helper {program}, which is not installed",
            hint="install it, or take credsStore or credHelpers out of that file",
        ) from missing
    if answer.returncode != 0:
        if "not found" in answer.stdout + answer.stderr:
            return None
        raise HostError(f"{program} ended with status {answer.returncode} when asked for {server}")
    try:
        given = json.loads(answer.stdout)
        user, secret = str(given["Username"]), str(given["Secret"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise HostError(f"{program} gave no credentials in the form that it must have for {server}") from None
    # the helpers' own mark for an identity token
    return Credentials(username="" if user == "<token>" else user, secret=secret, is_identity_token=user == "<token>")
