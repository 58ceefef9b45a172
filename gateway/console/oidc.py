"""Login at the institution's own OpenID provider: authorization code with PKCE.

One random secret lies in the browser's cookie while its user is at the provider. State, nonce and the code's
verifier are derived from it: nothing of a login under way is stored, and an answer is good for that browser only.
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
from gateway.config.schema import Oidc
from gateway.config.values import is_private
from gateway.domain.problems import Problem
from gateway.errors import Invalid

BACK = "/api/v1/session/oidc/callback"
_SIGNED = [f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)] + ["EdDSA"]
"""algorithms of signatures that only the provider can make: neither `none` nor one with the client's secret"""
_LEEWAY = 60
"""seconds by which the clocks may differ"""
_TIMEOUT = 10.0
_KEPT = timedelta(seconds=60)
"""for which its metadata is cached: a login needs no credentials to begin"""


@dataclass(frozen=True)
class Person:
    """Who logged in, and what the settings let them do."""

    subject: str
    name: str
    role: Role


class Provider:
    """An OpenID provider. Its keys are read at each login: one that it gave up is not used."""

    def __init__(self, settings: Oidc, clock: Callable[[], datetime]) -> None:
        """Read the files that the settings name. Raises `Invalid`."""
        self._settings = settings
        self._clock = clock
        file = "client_secret_file"
        try:
            self._secret = settings.secret()
            file = "ca"
            self._verify = ssl.create_default_context(cafile=settings.ca)
        except (OSError, ValueError) as error:
            raise Invalid(
                [Problem(f"auth.oidc.{file}", "cannot be used", str(error)[:200])]
            ) from error
        self.back = f"{settings.console}{BACK}"
        self._known: tuple[datetime, dict[str, Any]] | None = None

    def begin(self, secret: str) -> str:
        """Return where the browser logs in. Raises `LoginRefused`."""
        about = self._about()
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self.back,
            "scope": " ".join(self._settings.scopes),
            "state": _part(secret, "state"),
            "nonce": _part(secret, "nonce"),
            "code_challenge": create_s256_code_challenge(_part(secret, "verifier")),
            "code_challenge_method": "S256",
        }
        return str(httpx.URL(about["authorization_endpoint"]).copy_merge_params(asked))

    def person(self, secret: str, answer: Mapping[str, str]) -> Person:
        """Return who comes back with the provider's answer. Raises `LoginRefused`."""
        state = answer.get("state", "").encode("utf-8", "replace")
        if not secret or not hmac.compare_digest(state, _part(secret, "state").encode()):
            text = "the answer belongs to no login that this browser began, or it is too late"
            raise LoginRefused(text, reason="OIDC_STATE")
        if "code" not in answer:
            raise LoginRefused(
                f"the provider says {answer.get('error', 'neither code nor error')[:200]!r}"
            )
        about = self._about()
        tokens = self._tokens(answer["code"], secret, about)
        return self._trusted(self._claims(tokens, secret, about))

    def _claims(
        self,
        tokens: Mapping[str, Any],
        secret: str,
        about: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        issuer, client = self._settings.issuer, self._settings.client_id
        try:
            token = jwt.decode(str(tokens["id_token"]), self._keys(about), _SIGNED)
            options = {"iss": {"values": [about["issuer"]]}, "aud": {"value": client}}
            asked = {
                "nonce": _part(secret, "nonce"),
                "client_id": client,
                "access_token": tokens.get("access_token"),
            }
            claims = CodeIDToken(token.claims, token.header, options, asked)
            claims.validate(self._clock().timestamp(), _LEEWAY)
        except KeyError as error:
            raise LoginRefused(f"{issuer} sent no {error}", reason="OIDC_TOKEN") from error
        except (JoseError, AuthlibBaseError, ValueError, TypeError, AttributeError) as error:
            raise LoginRefused(
                f"the ID token is not valid: {str(error)[:200]}", reason="OIDC_TOKEN"
            ) from error
        return dict(claims)

    def _keys(self, about: Mapping[str, Any]) -> KeySet:
        keys = []
        for key in self._get(about["jwks_uri"])["keys"]:
            with suppress(
                JoseError, LookupError, ValueError, TypeError
            ):  # RFC 7517 5: ignore what is unknown
                keys.append(import_key(key))
        return KeySet(keys)

    def _trusted(self, claims: Mapping[str, Any]) -> Person:
        settings = self._settings
        subject = str(claims["sub"])
        found = _at(claims, settings.name_claim)
        name = (
            "".join(c for c in (found if isinstance(found, str) else "") if c.isprintable()).strip()
            or subject
        )
        held = _at(claims, settings.role_claim)
        groups = (
            {held}
            if isinstance(held, str)
            else set(map(str, held))
            if isinstance(held, list)
            else set()
        )
        for group, role in settings.roles.items():
            if group in groups:
                return Person(subject, name[:200], role)
        text = f"{name[:200]!r} has none of the groups in auth.oidc.roles, by the claim {settings.role_claim}"
        raise LoginRefused(text, reason="OIDC_NO_ROLE")

    def _about(self) -> dict[str, Any]:
        issuer, now, known = self._settings.issuer, self._clock(), self._known
        if known is not None and now - known[0] < _KEPT:
            return known[1]
        about = self._get(f"{issuer}/.well-known/openid-configuration")
        name = str(about.get("issuer", "")).rstrip("/")
        if name != issuer:
            raise LoginRefused(
                f"the provider at {issuer} calls itself {name[:200]!r}", reason="OIDC_UNREACHABLE"
            )
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not is_private(str(about.get(name, ""))):
                raise LoginRefused(f"{issuer} has no {name} with https", reason="OIDC_UNREACHABLE")
        self._known = (now, about)
        return about

    def _tokens(
        self,
        code: str,
        secret: str,
        about: Mapping[str, Any],
    ) -> dict[str, Any]:
        client, own = self._settings.client_id, self._secret
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.back,
            "client_id": client,
            "code_verifier": _part(secret, "verifier"),
        }
        known = about.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        by_header = own and "client_secret_basic" in known
        if own and not by_header:
            form["client_secret"] = own
        auth = httpx.BasicAuth(quote(client, safe=""), quote(own, safe="")) if by_header else None
        answer = self._request("POST", about["token_endpoint"], data=form, auth=auth)
        found = _object(answer)
        if answer.status_code != 200 or "error" in found:
            error = str(found.get("error", answer.status_code))[:200]
            raise LoginRefused(f"the provider does not take the code: {error!r}")
        return found

    def _get(self, url: str) -> dict[str, Any]:
        answer = self._request("GET", url)
        if answer.status_code != 200:
            raise _unreachable(url, f"status {answer.status_code}")
        return _object(answer)

    def _request(
        self,
        method: str,
        url: str,
        **more: Any,
    ) -> httpx.Response:
        try:
            with httpx.Client(
                verify=self._verify,
                timeout=_TIMEOUT,
                trust_env=False,
            ) as http:
                return http.request(method, url, headers={"accept": "application/json"}, **more)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _unreachable(url, str(error) or type(error).__name__) from error


def _object(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _unreachable(str(answer.url), f"no JSON object, status {answer.status_code}")
    return found


def _unreachable(url: str, why: str) -> LoginRefused:
    return LoginRefused(f"{url} gives no usable answer: {why[:200]}", reason="OIDC_UNREACHABLE")


def _part(secret: str, purpose: str) -> str:
    return (
        urlsafe_b64encode(hmac.digest(secret.encode(), purpose.encode(), "sha256"))
        .rstrip(b"=")
        .decode()
    )


def _at(claims: Any, path: str) -> Any:
    """Return a claim by its name, or by a path such as ``realm_access.roles``."""
    if isinstance(claims, Mapping) and path in claims:
        return claims[path]
    for name in path.split("."):
        claims = claims.get(name) if isinstance(claims, Mapping) else None
    return claims
