"""Reads a registry, with the credentials of ``docker login``. What it sends is bounded in size and time.

An image's cosign signatures have the tag ``sha256-….sig`` there; they are found here and not verified.
"""

import hashlib
import ipaddress
import json
import re
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
from docker import auth
from docker.errors import DockerException
from docker.utils import parse_repository_tag

from engines.base import PullDenied, PullFailed, SignatureMissing, SignatureUnchecked
from engines.docker.logins import login_for

_LARGEST = 1024 * 1024
_READ_TIMEOUT = 10.0
"""seconds for the next piece of a response"""
_LONGEST = 120.0
"""seconds for all requests about one image"""
_CHALLENGE = re.compile(r'(realm|service|scope)="([^"]*)"')
_SIMPLE = "application/vnd.dev.cosign.simplesigning.v1+json"
_SIGNATURE = "dev.cosignproject.cosign/signature"
_MANIFESTS = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json;q=0.9"
_MOST = 32
"""signatures of one image that are read"""
_HUB, _HUBS_ADDRESS = "docker.io", "registry-1.docker.io"
NOT_VALID = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""what reading a document raises that is not of the form it should have"""


class Registry:
    """One repository of a registry."""

    def __init__(self, registry: str, repository: str) -> None:
        """``registry``: ``host[:port]`` as in image names, or docker.io. Connects only when first used."""
        self._registry = registry
        self._repository = repository
        self._until = time.monotonic() + _LONGEST
        host = _HUBS_ADDRESS if registry == _HUB else registry
        official = registry == _HUB and "/" not in repository
        local = _is_local(host)
        self._base = (
            f"http{'' if local else 's'}://{host}/v2/{'library/' if official else ''}{repository}"
        )
        self._authorization: dict[str, str] = {}
        self._explanation = ""
        self._http = httpx.Client(
            timeout=_READ_TIMEOUT,
            follow_redirects=True,
            trust_env=not local,
        )

    def __enter__(self) -> "Registry":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, accept: str) -> bytes | None:
        """Return the content of a path, None if there is none. Raises `EngineError`, of which `PullDenied`."""
        url = f"{self._base}/{path}"
        try:
            status, body, challenge = self._request(url, accept)
            if status == httpx.codes.UNAUTHORIZED and self._log_in(challenge):
                status, body, challenge = self._request(url, accept)
        except (httpx.HTTPError, httpx.InvalidURL, *NOT_VALID) as error:
            raise PullFailed(
                f"{self._registry} does not respond: {type(error).__name__} {error}"
            ) from error
        if status == httpx.codes.NOT_FOUND:
            return None
        where = f"{self._repository}/{path}"
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            explanation = self._explanation or "; log in: docker login"
            raise PullDenied(f"{self._registry} responds with {status} to {where}{explanation}")
        if status != httpx.codes.OK:
            raise PullFailed(f"{self._registry} responds with {status} to {where}")
        return body

    def _request(self, url: str, accept: str) -> tuple[int, bytes, str]:
        headers = {"accept": accept, **self._authorization}
        with self._http.stream("GET", url, headers=headers) as answer:
            return (
                answer.status_code,
                self._whole(answer),
                answer.headers.get("www-authenticate", ""),
            )

    def _whole(self, answer: httpx.Response) -> bytes:
        """Return the body of a response. Raises ValueError for one that is too long or too slow."""
        body = bytearray()
        for piece in answer.iter_bytes():
            body += piece
            if len(body) > _LARGEST:
                raise ValueError(f"{answer.url} has more than {_LARGEST} bytes")
            if time.monotonic() >= self._until:
                raise ValueError(f"{answer.url} responds too slowly")
        return bytes(body)

    def _log_in(self, challenge: str) -> bool:
        """Answer the registry's challenge; return whether to try again."""
        if self._authorization:
            return False
        stored = login_for(self._registry)
        login, self._explanation = stored.password, stored.explanation
        if challenge.lower().startswith("basic"):
            if login is None:
                return False
            self._authorization = {
                "authorization": f"Basic {b64encode(':'.join(login).encode()).decode()}"
            }
            return True
        challenged = dict(_CHALLENGE.findall(challenge))
        realm = challenged.pop("realm", "")
        plain = self._base.startswith("http:")
        if urlsplit(realm).scheme not in (("http", "https") if plain else ("https",)):
            return False  # credentials for https are never sent in the clear
        with self._http.stream("GET", realm, params=challenged, auth=login) as answer:
            body = self._whole(answer)
        if answer.status_code == httpx.codes.OK:
            found = json.loads(body)
            self._authorization = {
                "authorization": f"Bearer {found.get('token') or found['access_token']}"
            }
        return bool(self._authorization)


def repository_of(image: str) -> tuple[str, str, str]:
    """Return registry, repository and tag or digest of an image's name; empty if that is not valid."""
    try:
        name, tag = parse_repository_tag(image)
        registry, repository = auth.resolve_repository_name(name)
    except DockerException:
        return "", "", ""
    return str(registry), str(repository), tag or "latest"


@dataclass(frozen=True)
class Signed:
    """One signature: base64 over the bytes of a text that names an image's digest."""

    payload: bytes
    signature: str
    digest: str
    """of the manifest that it was found for, which the text has to name"""


def signatures_of(image: str, repo_digests: Sequence[str]) -> tuple[Signed, ...]:
    """Return the signatures of an image, of which the daemon knows these digests.

    Raises `SignatureMissing` if there are none, `SignatureUnchecked` if the registry does not say.
    """
    registry, repository, _ = repository_of(image)
    if not registry:
        raise SignatureMissing(f"{image} is not a valid image name")
    known = [repository_of(digest) for digest in repo_digests]
    digests = [digest for *of, digest in known if of == [registry, repository]]
    if not digests:
        raise SignatureMissing(
            f"the image {image} was never pulled from its registry, or pushed: push it, sign it there, pull it"
        )
    with Registry(registry, repository) as there:
        found = [one for digest in digests for one in _signatures(there, digest)]
    if not found:
        names = ", ".join(digests)
        raise SignatureMissing(
            f"{image} has no signature ({names}) in {registry}: cosign sign --key … {image}"
        )
    return tuple(found[:_MOST])


def _signatures(there: Registry, digest: str) -> Iterator[Signed]:
    """Yield the signatures of the manifest with this digest."""
    manifest = _ask(there, f"manifests/{digest.replace(':', '-')}.sig", _MANIFESTS)
    try:
        layers = json.loads(manifest or "{}").get("layers", ())
        signed = [
            (layer["digest"], str(layer["annotations"][_SIGNATURE]))
            for layer in layers[:_MOST]
            if layer["mediaType"] == _SIMPLE
            and re.fullmatch("sha256:[0-9a-f]{64}", layer["digest"])
        ]
    except NOT_VALID:
        return
    for name, signature in signed:
        payload = _ask(there, f"blobs/{name}", "*/*")
        if payload is not None and f"sha256:{hashlib.sha256(payload).hexdigest()}" == name:
            yield Signed(payload, signature, digest)


def _ask(
    there: Registry,
    path: str,
    accept: str,
) -> bytes | None:
    try:
        return there.get(path, accept)
    except (PullDenied, PullFailed) as error:
        raise SignatureUnchecked(f"whether the image is signed is unknown: {error}") from error


def _is_local(host: str) -> bool:
    """Whether Docker considers it a registry of this machine, which needs no certificate."""
    name = host.rpartition(":")[0].strip("[]") if ":" in host else host
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
