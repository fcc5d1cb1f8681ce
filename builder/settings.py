"""Local settings that are nobody else's business: ``gfx1100.local.yaml`` or GFX1100_* variables, the variable first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from builder.errors import UsageError
from builder.files import read_text
from builder.models.base import Data, nearest, parse_yaml, validated

if TYPE_CHECKING:
    from collections.abc import Mapping

# pip, requests and OpenSSL each have a name for "the CA bundle of this host"
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")


class Settings(Data):
    """Settings of one machine.

    Attributes:
        state_dir: Deployments, watch state, history.
        cache_dir: Mirrors, wheels, base images, layers of pulls that did not end.
        ca_bundle: A PEM file that builds and downloads trust, mounted for the build and never kept in an image.
        registry: The repository that ``publish`` goes to without ``--to``; ``{stack}`` in it is the stack's name.
        build_cache: An image of a registry, ``host/name:tag``, that builds take the layers of finished stages from, and
            that ``build --stage`` pushes to.
        require_signature: A public key's file; ``pull`` then takes only what cosign finds to be signed with it.
        jobs: Compile jobs, instead of the number chosen from cores and memory.
        pip_config: A pip.conf for the build (mirrors), mounted and never kept.
        apt_config: An apt.conf snippet for the build (mirrors, proxies), mounted and never kept.
        registry_mirror: ``host[:port][/path]`` that is asked for base images whose names have no host, as the engine's
            own ``registry-mirrors`` is when it pulls them.
        wheelhouse: A folder of wheels that builds install from before they ask an index; filled by ``lock --download``.
        apt_mirror: The mirror that base images made from packages come from, instead of debootstrap's own.
        notify: Apprise URLs that the watchdog sends its news to, separated by spaces (the extra ``notify``).
    """

    state_dir: str
    cache_dir: str
    ca_bundle: str | None = None
    registry: str | None = None
    build_cache: str | None = None
    require_signature: str | None = None
    jobs: Annotated[int, Field(ge=1)] | None = None
    pip_config: str | None = None
    apt_config: str | None = None
    apt_mirror: str | None = None
    notify: str | None = None
    registry_mirror: str | None = None
    wheelhouse: str | None = None

    @property
    def state(self) -> Path:
        """The state folder."""
        return Path(self.state_dir)

    @property
    def cache(self) -> Path:
        """The cache folder."""
        return Path(self.cache_dir)

    def repository(self, stack: str) -> str | None:
        """Return the repository that a stack is published to, or None when no registry is set."""
        return self.registry.replace("{stack}", stack) if self.registry else None

    @property
    def wheels(self) -> Path:
        """The wheelhouse."""
        return Path(self.wheelhouse) if self.wheelhouse else self.cache / "wheelhouse"


def load_settings(root: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this machine for a checkout.

    Raises:
        UsageError: An unknown key or variable, a value that does not fit, a CA bundle that is not there.
    """
    env = os.environ if environ is None else environ
    path = root / "gfx1100.local.yaml"
    text = read_text(path) if path.exists() else ""
    value = parse_yaml(text, path) if text.strip() else {}
    for name, given in env.items():
        if name.startswith("GFX1100_"):
            key = name.removeprefix("GFX1100_").lower()
            if key not in Settings.model_fields:
                known = [f"GFX1100_{field.upper()}" for field in Settings.model_fields]
                raise UsageError(f"the variable {name} names no setting{nearest(name, known)}")
            value[key] = _number(given, name) if key == "jobs" else given
    home = Path(env.get("HOME", "/root"))
    value.setdefault("state_dir", str(Path(env.get("XDG_STATE_HOME") or home / ".local/state") / "gfx1100"))
    value.setdefault("cache_dir", str(Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "gfx1100"))
    value.setdefault("ca_bundle", next((env[name] for name in CA_VARIABLES if env.get(name)), None))
    settings = validated(Settings, value, path, text)
    for key in ("ca_bundle", "pip_config", "apt_config", "require_signature"):
        named = getattr(settings, key)
        if named and not Path(named).is_file():
            raise UsageError(f"the setting {key} names {named}, which is no file")
    for key in ("state_dir", "cache_dir"):
        place = Path(getattr(settings, key))
        if place.exists() and not place.is_dir():
            raise UsageError(f"the setting {key} names {place}, which is no folder")
    return settings


def proxies(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the proxy variables of this host by their lower-case names."""
    env = os.environ if environ is None else environ
    found = {name: env.get(name) or env.get(name.upper(), "") for name in PROXY_VARIABLES}
    return {name: value for name, value in found.items() if value}


def _number(given: str, name: str) -> int:
    if not given.isdigit() or int(given) < 1:
        raise UsageError(f"{name} must be a whole number of at least 1, found {given!r}")
    return int(given)
