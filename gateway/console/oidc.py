"""Login at the institution's own OpenID provider: authorization code with PKCE.

While the user is at the provider, the browser has a random secret in a cookie. State, nonce and the
code's verifier are derived from that secret. So this node stores nothing of a login under way, and
the provider's response is valid for this browser only.
"""

import hmac
import ssl
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
from authlib.common.errors import AuthlibBaseError
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, import_key

from gateway.auth import LoginRefused, Role
from gateway.config.schema.access import Oidc
from gateway.config.values import is_https_or_local
from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.runtime.client_proxies import client_proxy
from route_table.proxies import DefaultProxy, ProxyFailed

CALLBACK_PATH = "/api/v1/session/oidc/callback"
# Algorithms of signatures that only the provider can make: neither ``none``, nor those with the
# client's secret as the key.
_ALGORITHMS = [
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
]
_LEEWAY = 60  # seconds by which the clocks may differ
_TIMEOUT = 10.0  # seconds of a request to the provider
# Time for which the metadata is cached. As beginning a login needs no credentials, the number of
# requests to the provider would otherwise be unlimited.
_METADATA_AGE = timedelta(seconds=60)
_FAILURE_AGE = timedelta(seconds=5)  # the same for a failure to get the metadata
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
Metadata = dict[str, Any]


@dataclass(frozen=True)
class Person:
    """A person who logged in, with the role that the settings give them."""

    subject: str
    name: str
    role: Role


class Provider:
    """An OpenID provider. Its keys are read at each login, so that a withdrawn one is not used."""

    def __init__(
        self,
        settings: Oidc,
        clock: Callable[[], datetime],
        proxy: DefaultProxy = DefaultProxy(),
    ) -> None:
        """Read the authorities in the settings. Raises `Invalid` for a file that cannot be used.

        ``settings.client_secret`` has the secret, whatever its source is.
        """
        self._settings = settings
        self._secret = settings.client_secret
        self._clock = clock
        self._proxy = proxy
        try:
            self._verify = ssl.create_default_context(cafile=settings.ca)
        except (OSError, ValueError) as error:
            problem = Problem("auth.oidc.ca", "cannot be used", str(error)[:200])
            raise Invalid([problem]) from error
        self._redirect_uri = f"{settings.console}{CALLBACK_PATH}"
        # The time at which the metadata was read, and the metadata; None before the first login.
        self._cache: tuple[datetime, Metadata] | None = None
        # The time and the cause of the last failure to get the metadata; None without a failure.
        self._failure: tuple[datetime, LoginRefused] | None = None

    def begin(self, secret: str) -> str:
        """Return the URL at which the browser logs in. Raises `LoginRefused`.

        ``secret`` is random, and also put into the browser's cookie.
        """
        metadata = self._metadata()
        parameters = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._redirect_uri,
            "scope": " ".join(self._settings.scopes),
            "state": _derive(secret, "state"),
            "nonce": _derive(secret, "nonce"),
            "code_challenge": create_s256_code_challenge(_derive(secret, "verifier")),
            "code_challenge_method": "S256",
        }
        return str(httpx.URL(metadata["authorization_endpoint"]).copy_merge_params(parameters))

    def person(
        self,
        secret: str,
        response: Mapping[str, str],
    ) -> Person:
        """Return the person who comes back with the provider's response.

        ``secret``: from the browser's cookie; empty without one. Raises `LoginRefused`.
        """
        state = response.get("state", "")
        if not secret or not _is_derived(state, secret, "state"):
            text = "the answer belongs to no login that this browser began, or it is too late"
            raise LoginRefused(text, reason="OIDC_STATE")
        if "code" not in response:
            raise LoginRefused(
                f"the provider says {response.get('error', 'neither code nor error')[:200]!r}"
            )
        metadata = self._metadata()
        tokens = self._fetch_tokens(response["code"], secret, metadata)
        return self._person_of(self._claims(tokens, secret, metadata))

    def _metadata(self) -> Metadata:
        """Return the provider's metadata, cached for a minute.

        Raises `LoginRefused` for unusable metadata; after a failure, for five seconds without a
        request.
        """
        now = self._clock()
        if self._cache is not None:
            read_at, metadata = self._cache
            if now - read_at < _METADATA_AGE:
                return metadata
        if self._failure is not None:
            failed_at, failure = self._failure
            if now - failed_at < _FAILURE_AGE:
                raise LoginRefused(str(failure), reason=failure.reason)
        try:
            metadata = self._get(f"{self._settings.issuer}/.well-known/openid-configuration")
            self._check_metadata(metadata)
        except LoginRefused as error:
            # The request may have taken seconds, so the time is read once more.
            self._failure = (self._clock(), error)
            raise
        self._cache = (now, metadata)
        return metadata

    def _check_metadata(self, metadata: Metadata) -> None:
        """Raise `LoginRefused` for another issuer's metadata, and for endpoints without https.

        Within this machine, endpoints may be without https.
        """
        issuer = self._settings.issuer
        name = str(metadata.get("issuer", "")).rstrip("/")
        if name != issuer:
            raise LoginRefused(
                f"the provider at {issuer} calls itself {name[:200]!r}", reason="OIDC_UNREACHABLE"
            )
        for endpoint in _ENDPOINTS:
            if not is_https_or_local(str(metadata.get(endpoint, ""))):
                raise LoginRefused(
                    f"{issuer} has no {endpoint} with https", reason="OIDC_UNREACHABLE"
                )

    def _fetch_tokens(
        self,
        code: str,
        secret: str,
        metadata: Metadata,
    ) -> dict[str, Any]:
        """Exchange a code for tokens. Raises `LoginRefused`."""
        client = self._settings.client_id
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "client_id": client,
            "code_verifier": _derive(secret, "verifier"),
        }
        auth = None
        if self._secret and _accepts_basic(metadata):
            auth = httpx.BasicAuth(
                quote(client, safe=""),
                quote(self._secret, safe=""),
            )
        elif self._secret:
            form["client_secret"] = self._secret
        response = self._request(
            "POST",
            metadata["token_endpoint"],
            data=form,
            auth=auth,
        )
        tokens = _json_object(response)
        if response.status_code != 200 or "error" in tokens:
            error = str(tokens.get("error", response.status_code))[:200]
            raise LoginRefused(f"the provider does not take the code: {error!r}")
        return tokens

    def _claims(
        self,
        tokens: Mapping[str, Any],
        secret: str,
        metadata: Metadata,
    ) -> Mapping[str, Any]:
        """Return the claims of the ID token. Raises `LoginRefused` for an invalid token."""
        issuer = self._settings.issuer
        client = self._settings.client_id
        try:
            token = jwt.decode(
                str(tokens["id_token"]),
                self._keys(metadata),
                _ALGORITHMS,
            )
            options = {
                "iss": {"values": [metadata["issuer"]]},
                "aud": {"value": client},
            }
            parameters = {
                "nonce": _derive(secret, "nonce"),
                "client_id": client,
                "access_token": tokens.get("access_token"),
            }
            claims = CodeIDToken(token.claims, token.header, options, parameters)
            claims.validate(self._clock().timestamp(), _LEEWAY)
        except KeyError as error:
            raise LoginRefused(f"{issuer} sent no {error}", reason="OIDC_TOKEN") from error
        except (JoseError, AuthlibBaseError, ValueError, TypeError, AttributeError) as error:
            raise LoginRefused(
                f"the ID token is not valid: {str(error)[:200]}", reason="OIDC_TOKEN"
            ) from error
        return dict(claims)

    def _keys(self, metadata: Metadata) -> KeySet:
        """Return the provider's keys, except keys of unknown kinds (RFC 7517, 5)."""
        keys = []
        for key in self._get(metadata["jwks_uri"])["keys"]:
            with suppress(JoseError, LookupError, ValueError, TypeError):
                keys.append(import_key(key))
        return KeySet(keys)

    def _person_of(self, claims: Mapping[str, Any]) -> Person:
        """Return the person of the claims, with a role from the settings.

        The first group in the settings that is also in the claims gives the role. Raises
        `LoginRefused` if there is no such group.
        """
        settings = self._settings
        subject = str(claims["sub"])
        name = _printable(_claim_at(claims, settings.name_claim)) or subject
        groups = _texts(_claim_at(claims, settings.role_claim))
        for group, role in settings.roles.items():
            if group in groups:
                return Person(subject, name[:200], role)
        text = (
            f"{name[:200]!r} has none of the groups in auth.oidc.roles, by the claim "
            f"{settings.role_claim}"
        )
        raise LoginRefused(text, reason="OIDC_NO_ROLE")

    def _get(self, url: str) -> dict[str, Any]:
        """Return the JSON object at a URL. Raises `LoginRefused`."""
        response = self._request("GET", url)
        if response.status_code != 200:
            raise _unreachable(url, f"status {response.status_code}")
        return _json_object(response)

    def _request(
        self,
        method: str,
        url: str,
        **options: Any,
    ) -> httpx.Response:
        """Send a request; ``options`` are passed to httpx. Raises `LoginRefused`."""
        try:
            with httpx.Client(
                verify=self._verify,
                timeout=_TIMEOUT,
                proxy=client_proxy(self._proxy.on_way_to(url)),
                trust_env=False,
            ) as http:
                return http.request(method, url, headers={"accept": "application/json"}, **options)
        except (httpx.HTTPError, httpx.InvalidURL, ProxyFailed) as error:
            raise _unreachable(url, str(error) or type(error).__name__) from error


def _json_object(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object in a response. Raises `LoginRefused` for anything else."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise _unreachable(str(response.url), f"no JSON object, status {response.status_code}")
    return body


def _accepts_basic(metadata: Metadata) -> bool:
    """Return whether the client authenticates in a header, which is the default (RFC 8414, 2)."""
    methods = metadata.get("token_endpoint_auth_methods_supported")
    return not methods or "client_secret_basic" in methods


def _unreachable(url: str, why: str) -> LoginRefused:
    """Return the refusal of a login because of the provider's response."""
    return LoginRefused(f"{url} gives no usable answer: {why[:200]}", reason="OIDC_UNREACHABLE")


def _derive(secret: str, purpose: str) -> str:
    """Return the value for a purpose, such as the nonce.

    It cannot be computed without the secret.
    """
    value = hmac.digest(secret.encode(), purpose.encode(), "sha256")
    return urlsafe_b64encode(value).rstrip(b"=").decode()


def _is_derived(value: str, secret: str, purpose: str) -> bool:
    """Return in constant time whether a value is the derived one."""
    expected = _derive(secret, purpose).encode()
    return hmac.compare_digest(value.encode("utf-8", "replace"), expected)


def _claim_at(claims: Any, path: str) -> Any:
    """Return a claim by its name, or by a path such as ``realm_access.roles``; None without it."""
    if isinstance(claims, Mapping) and path in claims:
        return claims[path]
    value = claims
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def _printable(claim: Any) -> str:
    """Return the printable characters of a claim; "" for one that is not a text."""
    if not isinstance(claim, str):
        return ""
    return "".join(filter(str.isprintable, claim)).strip()


def _texts(claim: Any) -> set[str]:
    """Return the texts of a claim that is a list or one text; none of another claim."""
    if isinstance(claim, str):
        return {claim}
    if isinstance(claim, list):
        return set(map(str, claim))
    return set()
