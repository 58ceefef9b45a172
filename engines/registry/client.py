"""A read-only client of an image registry, with the credentials of ``docker login``.

The size of each response is limited, and so is the time of all requests about one image.
"""

import ipaddress
import json
import re
import time
from base64 import b64encode
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from engines.base import PullDenied, PullFailed
from engines.registry.logins import login_for
from engines.registry.names import DOCKER_HUB

MAX_RESPONSE = 1024 * 1024  # bytes
READ_TIMEOUT = 10.0  # seconds for the next piece of a response
MAX_SECONDS = 120.0  # for all requests about one image

# Exceptions of code that reads a document of an unexpected form.
NOT_VALID = (ValueError, LookupError, TypeError, AttributeError, RecursionError)

_DOCKER_HUB_HOST = "registry-1.docker.io"
_CHALLENGE = re.compile(r'(realm|service|scope)="([^"]*)"')


@dataclass(frozen=True)
class _Response:
    """A response that was read completely."""

    status: int
    body: bytes
    challenge: str  # the header that says how to authenticate; empty without such a header


class Registry:
    """One repository of a registry."""

    def __init__(self, registry: str, repository: str) -> None:
        """``registry``: as in `ImageName.registry`. Connects only when first used."""
        self._registry = registry
        self._repository = repository
        self._deadline = time.monotonic() + MAX_SECONDS
        host, path = _location(registry, repository)
        is_local = _is_local(host)
        self._scheme = "https"
        if is_local:
            self._scheme = "http"
        self._base_url = f"{self._scheme}://{host}/v2/{path}"
        self._authorization: dict[str, str] = {}  # header; empty until the registry asks for it
        self._explanation = ""  # why no login could be read; empty without a failure
        self._http = httpx.Client(
            timeout=READ_TIMEOUT,
            follow_redirects=True,
            trust_env=not is_local,  # a proxy does not reach a registry on this machine
        )

    def __enter__(self) -> "Registry":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, accept: str) -> bytes | None:
        """Return the content of a path; None if there is none.

        Raises `PullDenied`, `PullFailed`.
        """
        response = self._get_authorized(f"{self._base_url}/{path}", accept)
        if response.status == httpx.codes.OK:
            return response.body
        if response.status == httpx.codes.NOT_FOUND:
            return None
        text = f"{self._registry} responds with {response.status} to {self._repository}/{path}"
        if response.status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise PullDenied(text + (self._explanation or "; log in: docker login"))
        raise PullFailed(text)

    def _get_authorized(self, url: str, accept: str) -> _Response:
        """Send a request, once more with credentials if the registry asks for them.

        Raises `PullFailed`.
        """
        try:
            response = self._request(url, accept)
            needs_login = response.status == httpx.codes.UNAUTHORIZED
            if needs_login and self._log_in(response.challenge):
                response = self._request(url, accept)
        except (httpx.HTTPError, httpx.InvalidURL, *NOT_VALID) as error:
            raise PullFailed(
                f"{self._registry} does not respond: {type(error).__name__} {error}"
            ) from error
        return response

    def _request(self, url: str, accept: str) -> _Response:
        """Send a request with the credentials so far, and read its response."""
        headers = {"accept": accept, **self._authorization}
        with self._http.stream("GET", url, headers=headers) as response:
            body = self._read(response)
            challenge = response.headers.get("www-authenticate", "")
            return _Response(response.status_code, body, challenge)

    def _read(self, response: httpx.Response) -> bytes:
        """Return the body of a response. Raises ValueError if it is too long or too slow."""
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MAX_RESPONSE:
                raise ValueError(f"{response.url} has more than {MAX_RESPONSE} bytes")
            if time.monotonic() >= self._deadline:
                raise ValueError(f"{response.url} responds too slowly")
        return bytes(body)

    def _log_in(self, challenge: str) -> bool:
        """Obtain the credentials that the challenge asks for; return whether there are new ones.

        False also if the registry has just refused those of an earlier challenge.
        """
        if self._authorization:
            return False
        login = login_for(self._registry)
        self._explanation = login.explanation
        if challenge.lower().startswith("basic"):
            self._authorize_basic(login.password)
        else:
            self._authorize_by_token(challenge, login.password)
        return bool(self._authorization)

    def _authorize_basic(self, password: tuple[str, str] | None) -> None:
        """Send the password with all further requests; without a password, nothing changes."""
        if password is not None:
            credentials = b64encode(":".join(password).encode()).decode()
            self._authorization = {"authorization": f"Basic {credentials}"}

    def _authorize_by_token(
        self,
        challenge: str,
        password: tuple[str, str] | None,
    ) -> None:
        """Get a token from the server that the challenge names; without a token, nothing changes.

        A password is never sent in the clear to another machine: the server's URL must begin with
        https, or with http if the registry is on this machine.
        """
        parameters = dict(_CHALLENGE.findall(challenge))
        realm = parameters.pop("realm", "")
        if urlsplit(realm).scheme not in ("https", self._scheme):
            return
        with self._http.stream("GET", realm, params=parameters, auth=password) as response:
            body = self._read(response)
        if response.status_code == httpx.codes.OK:
            document = json.loads(body)
            token = document.get("token") or document["access_token"]
            self._authorization = {"authorization": f"Bearer {token}"}


def _location(registry: str, repository: str) -> tuple[str, str]:
    """Return the host and the path of a repository, which differ from its name at Docker Hub."""
    if registry != DOCKER_HUB:
        return registry, repository
    is_official = "/" not in repository
    if is_official:
        return _DOCKER_HUB_HOST, f"library/{repository}"
    return _DOCKER_HUB_HOST, repository


def _is_local(host: str) -> bool:
    """Whether Docker considers a registry to be on this machine; such a registry needs no TLS.

    ``host``: with or without a port.
    """
    name = host
    has_port = ":" in host
    if has_port:
        name = host.rpartition(":")[0].strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:  # a name
        return False
