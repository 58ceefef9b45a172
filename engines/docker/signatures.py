"""Finds the cosign signatures of an image in its registry, where they have the tag ``sha256-….sig``.

They are not verified here. What a registry sends is bounded in size, number and time.
"""

import hashlib
import ipaddress
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
from docker import auth
from docker.errors import DockerException
from docker.utils import parse_repository_tag

from engines.base import EngineError, SignatureMissing, SignatureUnchecked

_SIMPLE = "application/vnd.dev.cosign.simplesigning.v1+json"
_SIGNATURE = "dev.cosignproject.cosign/signature"
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json;q=0.9"
)
_LARGEST = 1024 * 1024
_MOST = 32
"""signatures of one image that are read"""
_READ_TIMEOUT = 10.0
"""seconds for the next piece of a response"""
_LONGEST = 120.0
"""seconds for all requests about one image"""
_CHALLENGE = re.compile(r'(realm|service|scope)="([^"]*)"')
_HUB, _HUBS_ADDRESS = "docker.io", "registry-1.docker.io"


@dataclass(frozen=True)
class Signed:
    """One signature: base64 over the bytes of a text that names an image's digest."""

    payload: bytes
    signature: str
    digest: str
    """of the manifest that it was found for, which the text has to name"""


def registry_of(image: str) -> str:
    """Return the registry of an image's name: ``host[:port]``, or docker.io for a name without a host."""
    try:
        return str(auth.resolve_repository_name(parse_repository_tag(image)[0])[0])
    except DockerException:
        return ""


def signatures_of(image: str, repo_digests: Sequence[str]) -> tuple[Signed, ...]:
    """Return the signatures of an image, of which the daemon knows these digests.

    Raises `SignatureMissing` if there are none, `SignatureUnchecked` if the registry does not say.
    """
    try:
        registry, repository = auth.resolve_repository_name(parse_repository_tag(image)[0])
    except DockerException as error:
        raise SignatureMissing(f"{image} is not a valid image name: {error}") from error
    digests = [digest for digest in map(_digest, repo_digests) if digest[0] == (registry, repository)]
    if not digests:
        raise SignatureMissing(
            f"the image {image} was never pulled from its registry, or pushed: push it, sign it there, pull it"
        )
    found: list[Signed] = []
    with _Registry(registry, repository) as there:
        for _, digest in digests:
            found += there.signatures(digest)
    if not found:
        names = ", ".join(digest for _, digest in digests)
        raise SignatureMissing(f"{image} has no signature ({names}) in {registry}: cosign sign --key … {image}")
    return tuple(found[:_MOST])


def _digest(known: str) -> tuple[tuple[str, str], str]:
    name, _, digest = known.partition("@")
    with suppress(DockerException):
        return auth.resolve_repository_name(name), digest
    return ("", ""), digest


class _Registry:
    """One repository of a registry, read with the credentials of ``docker login``."""

    def __init__(self, registry: str, repository: str) -> None:
        self._registry = registry
        self._until = time.monotonic() + _LONGEST
        host = _HUBS_ADDRESS if registry == _HUB else registry
        official = registry == _HUB and "/" not in repository
        self._base = f"{_scheme(host)}://{host}/v2/{'library/' if official else ''}{repository}"
        self._authorization: dict[str, str] = {}
        self._http = httpx.Client(timeout=_READ_TIMEOUT, follow_redirects=True, trust_env=not _is_local(host))

    def __enter__(self) -> "_Registry":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def signatures(self, digest: str) -> Iterator[Signed]:
        """Yield the signatures of the manifest with this digest."""
        algorithm, _, code = digest.partition(":")
        manifest = self._get(f"manifests/{algorithm}-{code}.sig", _MANIFESTS)
        if manifest is None:
            return
        for layer in _layers(manifest)[:_MOST]:
            annotations = layer.get("annotations")
            signature = annotations.get(_SIGNATURE) if isinstance(annotations, Mapping) else None
            name = str(layer.get("digest"))
            payload = self._get(f"blobs/{name}", "*/*") if re.fullmatch("sha256:[0-9a-f]{64}", name) else None
            whole = payload is not None and f"sha256:{hashlib.sha256(payload).hexdigest()}" == name
            if isinstance(signature, str) and payload is not None and whole:
                yield Signed(payload, signature, digest)

    def _get(self, path: str, accept: str) -> bytes | None:
        """Return the content of a path, None if there is none. Raises `EngineError`."""
        url = f"{self._base}/{path}"
        try:
            status, body, challenge = self._request(url, accept)
            if status == httpx.codes.UNAUTHORIZED and self._log_in(challenge):
                status, body, challenge = self._request(url, accept)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
            text = f"{self._registry} does not say whether the image is signed: {type(error).__name__} {error}"
            raise SignatureUnchecked(text) from error
        if status == httpx.codes.NOT_FOUND:
            return None
        if status != httpx.codes.OK:
            hint = "; log in: docker login" if status in (401, 403) else ""
            raise SignatureUnchecked(f"{self._registry} responds with {status} to {path}{hint}")
        return body

    def _request(self, url: str, accept: str) -> tuple[int, bytes, str]:
        headers = {"accept": accept, **self._authorization}
        with self._http.stream("GET", url, headers=headers) as answer:
            return answer.status_code, self._whole(answer), answer.headers.get("www-authenticate", "")

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
        own = self._credentials()
        if challenge.lower().startswith("basic"):
            request = httpx.Request("GET", self._base)
            if own is None:
                return False
            next(own.auth_flow(request))
            self._authorization = {"authorization": request.headers["authorization"]}
            return True
        challenged = dict(_CHALLENGE.findall(challenge))
        realm = challenged.pop("realm", "")
        plain = self._base.startswith("http:")
        if urlsplit(realm).scheme not in (("http", "https") if plain else ("https",)):
            return False  # credentials for https are never sent in the clear
        with self._http.stream("GET", realm, params=challenged, auth=own) as answer:
            body = self._whole(answer)
        found = json.loads(body) if answer.status_code == httpx.codes.OK else {}
        token = found.get("token") or found.get("access_token") if isinstance(found, Mapping) else None
        self._authorization = {"authorization": f"Bearer {token}"} if isinstance(token, str) else {}
        return bool(self._authorization)

    def _credentials(self) -> httpx.BasicAuth | None:
        try:
            known = auth.load_config().resolve_authconfig(self._registry) or {}
        except (DockerException, OSError, ValueError) as error:
            raise EngineError(f"the credentials for {self._registry} cannot be read: {error}") from error
        user, password = known.get("username"), known.get("password")
        return httpx.BasicAuth(user, password) if user and password else None


def _layers(manifest: bytes) -> list[Mapping[str, Any]]:
    try:
        layers = json.loads(manifest).get("layers")
    except (ValueError, AttributeError, RecursionError):
        return []
    if not isinstance(layers, list):
        return []
    return [layer for layer in layers if isinstance(layer, Mapping) and layer.get("mediaType") == _SIMPLE]


def _scheme(host: str) -> str:
    return "http" if _is_local(host) else "https"


def _is_local(host: str) -> bool:
    """Whether Docker considers it a registry of this machine, which needs no certificate."""
    name = host.rpartition(":")[0].strip("[]") if ":" in host else host
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
