"""Signatures of a digest, made and checked by cosign (https://docs.sigstore.dev/cosign), when it is installed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import HostError, RegistryError, UsageError, VerifyError
from builder.process import failed, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.registry.reference import Reference
    from builder.settings import Settings

KEYLESS = "keyless"
SECONDS = 300.0
# A key's signature stays between its owners: no entry in the public log
_PRIVATE = ("--tlog-upload=false",)
# cosign 3 needs these for it as well; they give the form that cosign 2 verifies too
_PRIVATE_3 = ("--use-signing-config=false", "--new-bundle-format=false")


def signer(key: str, settings: Settings) -> Callable[[Reference], None]:
    """Return what signs a digest in its registry.

    Args:
        key: A private key's file (COSIGN_PASSWORD opens it), a key service's URI as cosign takes it, or ``keyless``:
            who is logged in at an OpenID provider, such as the workflow that is running, in the public log.
        settings: The CA bundle comes from here.

    Raises:
        UsageError: There is no such key.
        HostError: cosign is not installed.
    """
    if key != KEYLESS and "://" not in key and not Path(key).is_file():
        raise UsageError(
            f"the key {key} is no file", hint=f"make one with `cosign generate-key-pair`, or say {KEYLESS}"
        )
    cosign = _cosign("sign")
    with_key = () if key == KEYLESS else ("--key", key, *_private(cosign))

    def sign(place: Reference) -> None:
        done = run(
            [cosign, "sign", "--yes", *with_key, str(place)],
            timeout=SECONDS,
            check=False,
            env=_env(settings),
            failure=RegistryError,
        )
        if done.returncode != 0:
            raise RegistryError(
                f"{place} could not be signed, so the channel was not moved: {failed(done)}",
                hint="check the key, COSIGN_PASSWORD and `docker login`, then publish again",
            )

    return sign


def require_signature(place: Reference, settings: Settings) -> str:
    """Check the signature of a digest when the setting ``require_signature`` names a public key.

    Returns:
        A line that says what was checked, or nothing when no key is configured.

    Raises:
        HostError: A key is configured and cosign is not installed.
        VerifyError: No signature of that key is there.
    """
    key = settings.require_signature
    if key is None:
        return ""
    cosign = _cosign("check the signature that require_signature asks for")
    argv = [cosign, "verify", "--key", key, "--insecure-ignore-tlog=true", str(place)]
    done = run(argv, timeout=SECONDS, check=False, env=_env(settings), failure=RegistryError)
    if done.returncode != 0:
        raise VerifyError(
            f"{place} has no signature of {key} that can be verified: {failed(done)}",
            hint="publish it again with --sign, or look for who pushed it; nothing of it was pulled",
        )
    return f"signed by the owner of {key}"


def _cosign(purpose: str) -> str:
    found = shutil.which("cosign")
    if found is None:
        raise HostError(
            f"cosign is not installed, which is needed to {purpose}",
            hint="install cosign (Debian 13 has it as a package), or take the signature out of what you ask for",
        )
    return found


def _private(cosign: str) -> tuple[str, ...]:
    """Return the options for a signature outside of the public log, as this release of cosign wants them."""
    words = run([cosign, "sign", "--help"], timeout=SECONDS).stdout
    return (*_PRIVATE, *(_PRIVATE_3 if "--use-signing-config" in words else ()))


def _env(settings: Settings) -> dict[str, str | None]:
    return {"SSL_CERT_FILE": settings.ca_bundle} if settings.ca_bundle else {}
