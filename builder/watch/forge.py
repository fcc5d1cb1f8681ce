"""GitHub's API over ``requests``: one repository, one token, answers that are JSON or an error in words.

https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from builder.errors import UpstreamError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import requests

SECONDS = 20.0
MOST_REDIRECTS = 3
MOST_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Forge:
    """One repository of a forge.

    Attributes:
        api: The API's address.
        repository: OWNER/NAME.
        token: The token; never shown.
        ca_bundle: A PEM file to trust instead of the system's.
        timeout: Seconds without a byte after which a request is given up.
    """

    api: str
    repository: str
    token: str = field(repr=False)
    ca_bundle: str | None = None
    timeout: float = SECONDS

    def get(self, path: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return what a path below the repository holds; raises like :meth:`send`."""
        return self.send("GET", path)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - likewise
        """Send one request and return its JSON.

        Raises:
            UpstreamError: The forge could not be asked, asks to wait, or answers with something else than JSON.
            UsageError: The token or the repository does not fit.
        """
        import requests

        address = f"{self.api.rstrip('/')}/repos/{self.repository}{path}"
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        for _ in range(MOST_REDIRECTS + 1):
            try:
                with requests.Session() as session:
                    # no .netrc, whose password would take the token's place
                    session.auth = self._sign
                    with session.request(
                        method,
                        address,
                        json=body,
                        headers=headers,
                        timeout=self.timeout,
                        allow_redirects=False,
                        stream=True,
                        verify=self.ca_bundle or True,
                    ) as answer:
                        if not answer.is_redirect:
                            return self._value(answer, method)
                        target = urljoin(address, answer.headers["Location"])
            except (requests.RequestException, OSError) as trouble:
                raise self._unknown(f"could not be asked: {type(trouble).__name__}") from trouble
            if urlsplit(target)[:2] != urlsplit(address)[:2]:
                raise self._unknown(f"sends to {urlsplit(target).netloc}, where the token is not sent")
            address = target
        raise self._unknown("sends from one address to the next without end")

    def _value(self, answer: requests.Response, method: str) -> Any:  # noqa: ANN401 - any JSON value
        content = answer.raw.read(MOST_BYTES, decode_content=True)
        status = answer.status_code
        value = _json(content) if "json" in answer.headers.get("Content-Type", "") else None
        said = str(value.get("message", ""))[:200] if isinstance(value, dict) else ""
        if status in {403, 429} and _asks_to_wait(answer.headers, said):
            when = answer.headers.get("Retry-After") or answer.headers.get("X-RateLimit-Reset", "")
            raise self._unknown(f"asks to wait ({said or status}; {when or 'it does not say how long'})")
        if status in {401, 403}:
            raise UsageError(
                f"{self.api} refuses the token for {method} on {self.repository}: {said or status}",
                hint="the token needs the permissions issues: write, and for --pr contents and pull-requests: write",
            )
        if status in {404, 410}:
            raise UsageError(
                f"{self.api} knows no {self.repository} that this token may change, or has its issues off: {status}",
                hint="set GITHUB_REPOSITORY to OWNER/NAME, and give the token access to it",
            )
        if value is None:
            kind = answer.headers.get("Content-Type", "no content type")
            raise self._unknown(f"answered {status} with {kind!r} instead of JSON")
        if status >= 400:  # noqa: PLR2004 - the client's and the server's errors begin there
            raise self._unknown(f"answered {method} with {status}: {said}")
        return value

    def _sign(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self.token}"
        return request

    def _unknown(self, what: str) -> UpstreamError:
        return UpstreamError(f"{self.api} {what}", hint="the next run tries again")


def forge_of(environ: Mapping[str, str], remote: str, *, ca_bundle: str | None = None) -> Forge:
    """Return the forge of this project: from the variables that GitHub Actions sets, or from a checkout's remote.

    Args:
        environ: GITHUB_TOKEN or GH_TOKEN, and GITHUB_REPOSITORY, GITHUB_API_URL when they are set.
        remote: The URL of the checkout's remote, or an empty text.
        ca_bundle: A PEM file to trust instead of the system's.

    Raises:
        UsageError: There is no token, or no repository.
    """
    token = environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN")
    if not token:
        raise UsageError("there is no token for the forge", hint="set GITHUB_TOKEN")
    found = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?$", remote)
    repository = environ.get("GITHUB_REPOSITORY") or (found[1] if found else "")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise UsageError("which repository the issue belongs to is unknown", hint="set GITHUB_REPOSITORY to OWNER/NAME")
    api = environ.get("GITHUB_API_URL") or "https://api.github.com"
    return Forge(api=api, repository=repository, token=token, ca_bundle=ca_bundle)


def _asks_to_wait(headers: Mapping[str, str], said: str) -> bool:
    limited = headers.get("X-RateLimit-Remaining") == "0" or "Retry-After" in headers
    return limited or "rate limit" in said.lower() or "abuse" in said.lower()


def _json(content: bytes) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(content)
    except ValueError:
        return None
