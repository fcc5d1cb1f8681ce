"""One HTTP exchange with a registry: bounded in size, time and tries, authorised on demand, faults told in words."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from builder import __version__
from builder.errors import ToolError
from builder.files import MIB
from builder.registry.auth import Challenge, Credentials, find_credentials, parse_challenge, token_request
from builder.registry.reference import Reference, is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from requests import Response

    from builder.settings import Settings

# The distribution specification has registries take manifests of 4 MiB
MANIFEST_LIMIT = 4 * MIB
TRIES = 4
LONGEST_WAIT = 120.0
CONNECT_TIMEOUT, SILENCE_TIMEOUT, WHOLE_TIMEOUT = 15.0, 60.0, 600.0

T = TypeVar("T")


class TryAgain(Exception):  # noqa: N818 - a signal to Transport.retrying, never seen outside of this package
    """A fault that may pass.

    Args:
        message: The fact and its place.
        hint: The next step when it does not pass.
        wait: Seconds that the registry asks for, or None.
    """

    def __init__(self, message: str, *, hint: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.message, self.hint, self.wait = message, hint, wait


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to ask a registry.

    Attributes:
        method: The HTTP method.
        repository: The repository that it is about.
        path: What follows the repository's URL, such as ``/manifests/latest``; or a whole URL.
        expected: The statuses that are an answer; any other is a fault.
        headers: Headers that are added.
        data: The body.
        limit: The most bytes that the answer may have.
        redirects: Follow redirects.
        sink: Takes the body of an expected answer piece by piece, with its status; the answer's own is then empty.
    """

    method: str
    repository: Reference
    path: str
    expected: Collection[int] = (HTTPStatus.OK,)
    headers: Mapping[str, str] = field(default_factory=dict)
    data: bytes | None = None
    limit: int = MANIFEST_LIMIT
    redirects: bool = True
    sink: Callable[[int, bytes], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a registry answered: status, headers (in any case), the body, and the URL that was asked."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


class Transport:
    """Exchanges with registries; :meth:`close` it at the end.

    Args:
        settings: The CA bundle comes from here.
        failure: The class that every fault is raised as.
        on_wait: Takes a line when a request is to be tried again, before the pause.
    """

    def __init__(self, settings: Settings, *, failure: type[ToolError], on_wait: Callable[[str], None]) -> None:
        import requests

        self._failure = failure
        self._on_wait = on_wait
        self._session = requests.Session()
        # no .netrc: who we are comes from the docker configuration alone
        self._session.trust_env = False
        self._session.max_redirects = 5
        self._session.verify = settings.ca_bundle or True
        self._session.headers["User-Agent"] = f"gfx1100-images/{__version__}"
        self._authorizations: dict[tuple[str, str], str] = {}

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def request(self, request: Request) -> Answer:
        """Exchange a request for its answer, again when the fault may pass.

        Raises:
            ToolError: ``failure``: not authorised, rate limit, too large, a fault of the registry, network.
        """
        return self.retrying(lambda: self.attempt(request))

    def retrying(self, attempt: Callable[[], T]) -> T:
        """Return what ``attempt`` returns; while it raises TryAgain, a few times, with growing pauses."""
        for number in range(1, TRIES + 1):
            try:
                return attempt()
            except TryAgain as trouble:
                wait = trouble.wait if trouble.wait is not None else 2.0 ** (number - 1)
                if number == TRIES or wait > LONGEST_WAIT:
                    raise self._failure(trouble.message, hint=trouble.hint) from trouble
                self._on_wait(f"{trouble.message}; next try in {wait:.0f} s")
                sleep(wait)
        raise AssertionError  # pragma: no cover - the last try returns or raises

    def attempt(self, request: Request) -> Answer:
        """Do what :meth:`request` does once; raises TryAgain for a fault that may pass."""
        repository = request.repository
        url = request.path if "://" in request.path else repository.api + request.path
        # an upload may go to another host, which must not see who we are
        ours = urlsplit(url)[:2] == urlsplit(repository.api)[:2]
        action = "pull" if request.method in {"GET", "HEAD"} else "pull,push"
        key = (repository.repository, action)

        def send() -> Answer:
            known = {"Authorization": self._authorizations[key]} if ours and key in self._authorizations else {}
            return self._send(request, url, {**request.headers, **known})

        answer = send()
        if answer.status == HTTPStatus.UNAUTHORIZED and ours:
            self._authorizations[key] = self._authorization(answer, repository, action)
            answer = send()
        if answer.status not in request.expected:
            raise self._refusal(answer, request.method, repository)
        return answer

    def _authorization(self, answer: Answer, repository: Reference, action: str) -> str:
        """Return the Authorization header that a 401 asks for."""
        challenge = parse_challenge(answer.headers.get("WWW-Authenticate", ""))
        if challenge is None:
            raise self._failure(
                f"{repository.host} wants to be authorised for {repository.name} in no way that is known here"
            )
        credentials = find_credentials(repository.host)
        if challenge.scheme == "bearer":
            return "Bearer " + self._token(challenge, credentials, repository, action)
        if credentials is None:
            raise self._failure(
                f"not authorised: {repository.repository} wants a user, and the docker configuration knows none",
                hint=f"run `docker login {repository.host}`",
            )
        return credentials.basic()

    def _token(self, challenge: Challenge, credentials: Credentials | None, repository: Reference, action: str) -> str:
        """Get a token from the challenge's realm."""
        realm = urlsplit(challenge.realm)
        if realm.scheme != "https" and not (realm.scheme == "http" and is_loopback(realm.netloc)):
            raise self._failure(f"{repository.host} sends us for a token to {challenge.realm!r}, which is no https URL")
        method, url, headers, data = token_request(challenge, credentials, f"repository:{repository.name}:{action}")
        asked = Request(method=method, repository=repository, path=url, headers=headers, data=data)
        answer = self._send(asked, url, headers)
        if answer.status != HTTPStatus.OK:
            raise self._refusal(answer, "the request of a token", repository)
        try:
            given = json.loads(answer.body)
            token = given.get("token") or given.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise self._failure(f"{realm.netloc} gave no token for {repository.repository}")
        return token

    def _send(self, request: Request, url: str, headers: Mapping[str, str]) -> Answer:
        import requests

        place = urlsplit(url).netloc
        try:
            with self._session.request(
                request.method,
                url,
                headers=dict(headers),
                data=request.data,
                allow_redirects=request.redirects,
                timeout=(CONNECT_TIMEOUT, SILENCE_TIMEOUT),
                stream=True,
                proxies={} if is_loopback(place) else requests.utils.get_environ_proxies(url),
            ) as response:
                body = self._body(response, request, place)
                return Answer(status=response.status_code, headers=response.headers, body=body, url=url)
        except requests.exceptions.SSLError as trouble:
            raise self._failure(
                f"no trusted connection to {place}: {_reason(trouble)}",
                hint="name the PEM file of your CA in the setting ca_bundle (or GFX1100_CA_BUNDLE)",
            ) from None
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as trouble:
            # from None: the text of such an exception may hold a proxy's password
            raise TryAgain(
                f"{place} cannot be reached, or broke off: {_reason(trouble)}",
                hint="check the network, the proxy variables and the registry's name, then try again",
            ) from None
        except requests.RequestException as trouble:
            raise self._failure(f"{place} gave an answer that cannot be followed: {type(trouble).__name__}") from None

    def _body(self, response: Response, request: Request, place: str) -> bytes:
        body, received = bytearray(), 0
        sink = request.sink if response.status_code in request.expected else None
        end = None if sink else monotonic() + WHOLE_TIMEOUT
        for piece in response.iter_content(1 << 16):
            received += len(piece)
            if received > request.limit:
                raise self._failure(
                    f"{place} sent more than {request.limit} bytes, which is no such answer as is expected here"
                )
            if end is not None and monotonic() > end:
                raise self._failure(f"{place} did not end its answer within {WHOLE_TIMEOUT:.0f} s")
            if sink:
                sink(response.status_code, piece)
            else:
                body += piece
        return bytes(body)

    def _refusal(self, answer: Answer, what: str, repository: Reference) -> Exception:
        """Return the error for a status that is no answer."""
        said = _registry_words(answer.body)
        fact = f"{repository.host} answered {what} for {repository.name} with status {answer.status}{said}"
        if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            return self._failure(
                f"not authorised: {fact}", hint=f"run `docker login {repository.host}` as a user who may do this"
            )
        if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            wait = _retry_after(answer.headers.get("Retry-After", ""))
            when = "later" if wait is None else f"in {wait:.0f} s"
            return TryAgain(
                f"rate limit: {fact}", hint=f"try again {when}; a user who is logged in has more", wait=wait
            )
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return TryAgain(f"the registry has a fault: {fact}", hint="try again later; the registry's log says more")
        if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return self._failure(f"too large for the registry, or for a proxy before it: {fact}")
        return self._failure(fact)


def _registry_words(body: bytes) -> str:
    """Return the registry's own error words behind a colon; of any other page only that it is one."""
    try:
        errors = json.loads(body)["errors"]
        words = "; ".join(f"{error.get('code', '')} {error.get('message', '')}".strip() for error in errors)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ", on a web page (of a proxy, or to log in?)" if body.lstrip()[:1] == b"<" else ""
    return f": {words[:300]}" if words else ""


def _retry_after(header: str) -> float | None:
    """Return the seconds of a Retry-After header (RFC 9110, section 10.2.3), or None when it says nothing."""
    if re.fullmatch(r"[0-9]{1,9}", header.strip()):
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time())
    except ValueError:
        return None


def _reason(trouble: BaseException) -> str:
    """Return the operating system's words at the bottom of a network exception, or else the exception's kind."""
    seen: BaseException | None = trouble
    words = type(trouble).__name__
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            words = seen.strerror
        seen = seen.__cause__ or seen.__context__
    return words
