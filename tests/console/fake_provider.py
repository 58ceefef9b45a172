"""An OpenID provider whose responses a test changes, and logins at it."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

from gateway.config.schema.access import Oidc
from gateway.console.oidc import Provider
from tests.services import openid

NOW = datetime(
    2026,
    11,
    25,
    8,
    0,
    tzinfo=UTC,
)
NOW_SECONDS = int(NOW.timestamp())
# The secret in the cookie of the browser that begins the login.
BROWSER_SECRET = "of the browser"
CONSOLE = "https://bfia.bank.example"
ROLES = {
    "admins": "admin",
    "analysts": "platform",
}
KEY = RSAKey.generate_key(2048, {"kid": "first"})


def unpadded_base64(value: Any) -> str:
    """Return a JSON value as a part of an ID token."""
    text = json.dumps(value)
    encoded = urlsafe_b64encode(text.encode())
    return encoded.decode().rstrip("=")


class FakeProvider:
    """An OpenID provider with responses that a test changes."""

    def __init__(self, address: str) -> None:
        self.issuer = address
        self.metadata: dict[str, Any] = {
            "issuer": address,
            "authorization_endpoint": f"{address}/authorize",
            "token_endpoint": f"{address}/token",
            "jwks_uri": f"{address}/keys",
        }
        # the published keys, and further ones as they are published
        self.keys = [KEY]
        self.raw_keys: list[dict[str, Any]] = []
        # the claims, the header and the signing key of the ID token
        self.claims: dict[str, Any] = {}
        self.header: dict[str, Any] = {
            "alg": "RS256",
            "kid": "first",
        }
        self.key: Any = KEY
        # the response of the token endpoint; None: one with the signed ID token
        self.tokens: Mapping[str, Any] | None = None
        # the status of each response, and its text in place of JSON
        self.status = 200
        self.text = ""
        # the requested paths, and the form that the token endpoint received
        self.paths: list[str] = []
        self.form: dict[str, str] = {}

    def id_token(self) -> str:
        """Return the ID token."""
        algorithm = self.header["alg"]
        if algorithm == "none":
            # The empty part behind the last dot is the missing signature.
            return f"{unpadded_base64(self.header)}.{unpadded_base64(self.claims)}."
        return jwt.encode(
            self.header,
            self.claims,
            self.key,
            [algorithm],
        )

    def respond(self, path: str, body: bytes) -> Any:
        """Record a request and return the JSON of its response."""
        self.paths.append(path)
        match path:
            case "/token":
                self.form = dict(parse_qsl(body.decode()))
                if self.tokens is not None:
                    return self.tokens
                return {
                    "access_token": "a",
                    "id_token": self.id_token(),
                }
            case "/keys":
                published = [key.as_dict(private=False) for key in self.keys]
                return {"keys": self.raw_keys + published}
        return self.metadata


class ProviderHandler(BaseHTTPRequestHandler):
    """Serves the fake provider of its server."""

    def do_GET(self) -> None:
        size = int(self.headers["content-length"] or 0)
        body = self.rfile.read(size)
        fake: FakeProvider = self.server.provider  # type: ignore[attr-defined]
        response = fake.respond(self.path, body)
        self.send_response(fake.status)
        self.send_header(
            "content-type",
            "application/json",
        )
        self.end_headers()
        content = fake.text or json.dumps(response)
        self.wfile.write(content.encode())

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def oidc_settings(issuer: str, **changes: Any) -> Oidc:
    """Return the settings of a provider; ``changes`` replace some."""
    fields = {
        "issuer": issuer,
        "client_id": openid.CLIENT,
        "client_secret": openid.SECRET,
        "console": CONSOLE,
        "roles": ROLES,
    }
    return Oidc.model_validate(fields | changes)


def fixed_clock() -> datetime:
    return NOW


def provider_of(fake: FakeProvider, **changes: Any) -> Provider:
    """Return the gateway's client of the fake provider; ``changes`` replace settings."""
    settings = oidc_settings(fake.issuer, **changes)
    return Provider(settings, fixed_clock)


class Login:
    """A login that a browser has begun; the fake provider's ID token is the right one for it."""

    def __init__(self, fake: FakeProvider) -> None:
        self.provider = provider_of(fake)
        address = self.provider.begin(BROWSER_SECRET)
        query = dict(parse_qsl(urlsplit(address).query))
        self.state = query["state"]
        fake.claims = {
            "iss": fake.issuer,
            "sub": "7",
            "aud": openid.CLIENT,
            "exp": NOW_SECONDS + 300,
            "iat": NOW_SECONDS,
            "nonce": query["nonce"],
            "preferred_username": "li.na",
            "groups": ["staff", "analysts", "admins"],
        }

    def finish(
        self,
        provider: Provider | None = None,
    ) -> Any:
        """Return the person, as the browser comes back with a code."""
        provider = provider or self.provider
        return provider.person(
            BROWSER_SECRET,
            {
                "state": self.state,
                "code": "c",
            },
        )
