"""Login at an OpenID provider under the test's control: bad responses, attacks, settings."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI
from joserfc.jwk import OctKey, RSAKey
from pydantic import ValidationError

from gateway.admin.deps import provide
from gateway.auth import LoginRefused, Role
from gateway.config.schema.access import Auth, Oidc
from gateway.console.oidc import CALLBACK_PATH, Provider
from gateway.console.session import Logins, oidc_router
from gateway.errors import Invalid
from tests.console.fake_provider import (
    BROWSER_SECRET,
    CONSOLE,
    NOW,
    NOW_SECONDS,
    ROLES,
    FakeProvider,
    Login,
    ProviderHandler,
    fixed_clock,
    oidc_settings,
    provider_of,
)
from tests.e2e.nodes import free_ports
from tests.services import openid

SECOND_KEY = RSAKey.generate_key(2048, {"kid": "second"})


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    """A fake provider whose ID token is right for the login that `Login` begins."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ProviderHandler) as server:
        fake = FakeProvider(f"http://127.0.0.1:{server.server_port}")
        server.provider = fake  # type: ignore[attr-defined]
        thread = threading.Thread(
            target=server.serve_forever,
            kwargs={"poll_interval": 0.01},
        )
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def login(fake: FakeProvider) -> Login:
    return Login(fake)


def test_a_person_has_the_first_role_of_the_settings(fake, login):
    person = login.finish()

    assert person.subject == "7"
    assert person.name == "li.na"
    assert person.role == Role.ADMIN
    assert fake.form["redirect_uri"] == CONSOLE + CALLBACK_PATH
    assert fake.form["code"] == "c"
    assert len(fake.form["code_verifier"]) >= 43


def test_a_name_becomes_printable_and_groups_may_be_nested(fake, login):
    fake.claims["preferred_username"] = "li\n\x1b[31mna\u202e"
    fake.claims["realm"] = {"groups": "analysts"}

    person = login.finish(provider_of(fake, role_claim="realm.groups"))

    assert person.name == "li[31mna"
    assert person.role == Role.PLATFORM


WRONG_CLAIMS = [
    # claims that are replaced, None: left out; a part of the message
    ({"iss": "https://evil.example"}, "iss"),
    ({"aud": "another-client"}, "aud"),
    (
        {
            "aud": [openid.CLIENT, "another"],
            "azp": "another",
        },
        "azp",
    ),
    ({"nonce": "of another login"}, "nonce"),
    ({"nonce": None}, "nonce"),
    ({"exp": NOW_SECONDS - 61}, "expired"),
    ({"iat": NOW_SECONDS + 3600}, "future"),
    ({"nbf": NOW_SECONDS + 3600}, "not valid|nbf|future|yet"),
    ({"exp": None}, "exp"),
    ({"sub": None}, "sub"),
    ({"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}, "at_hash"),
]


@pytest.mark.parametrize(("claims", "text"), WRONG_CLAIMS)
def test_a_token_for_others_or_another_time_is_refused(fake, login, claims, text):
    changed = fake.claims | claims
    fake.claims = {name: value for name, value in changed.items() if value is not None}

    with pytest.raises(LoginRefused, match=text) as refused:
        login.finish()
    assert refused.value.reason == "OIDC_TOKEN"


FORGED_SIGNATURES = {
    # the token's header and the key of its signature
    "unsigned": (
        {"alg": "none"},
        None,
    ),
    "HMAC with the client's secret": (
        {"alg": "HS256"},
        OctKey.import_key(openid.SECRET),
    ),
    "another key as the first": (
        {"alg": "RS256", "kid": "first"},
        SECOND_KEY,
    ),
    "an unpublished key": (
        {"alg": "RS256", "kid": "second"},
        SECOND_KEY,
    ),
}


@pytest.mark.parametrize(
    ("header", "key"),
    FORGED_SIGNATURES.values(),
    ids=FORGED_SIGNATURES,
)
def test_a_token_without_the_provider_s_signature_is_refused(fake, login, header, key):
    fake.header = header
    fake.key = key

    with pytest.raises(LoginRefused) as refused:
        login.finish()
    assert refused.value.reason == "OIDC_TOKEN"


@pytest.mark.parametrize(
    "tokens",
    [
        {},
        {"access_token": "a"},
        {"access_token": "a", "id_token": "x.y.z"},
        {"error": "invalid_grant"},
    ],
)
def test_a_response_without_an_id_token_is_refused(fake, login, tokens):
    fake.tokens = tokens

    with pytest.raises(LoginRefused):
        login.finish()


def test_a_withdrawn_key_is_refused_and_its_successor_accepted(fake, login):
    fake.keys = [SECOND_KEY]
    with pytest.raises(LoginRefused):
        login.finish()

    fake.key = SECOND_KEY
    fake.header = {
        "alg": "RS256",
        "kid": "second",
    }
    # Keys of unknown kinds are ignored.
    fake.raw_keys = [
        {
            "kty": "EC",
            "crv": "brainpoolP256r1",
            "kid": "third",
            "x": "AA",
            "y": "AA",
        },
        {"kty": "EC"},
    ]
    assert login.finish().name == "li.na"


def test_a_failure_of_the_provider_is_kept_for_five_seconds(fake):
    now = NOW
    provider = Provider(oidc_settings(fake.issuer), lambda: now)
    fake.status = 500

    for seconds, requests in ((0, 1), (4, 1), (5, 2)):
        now = NOW + timedelta(seconds=seconds)
        with pytest.raises(LoginRefused, match="status 500") as refused:
            provider.begin(BROWSER_SECRET)
        assert refused.value.reason == "OIDC_UNREACHABLE"
        assert len(fake.paths) == requests

    fake.status = 200
    now = NOW + timedelta(seconds=10)
    assert provider.begin(BROWSER_SECRET).startswith(f"{fake.issuer}/authorize?")


def test_the_provider_s_metadata_is_requested_once_a_minute(fake):
    now = NOW
    provider = Provider(oidc_settings(fake.issuer), lambda: now)

    for seconds, requests in ((0, 1), (59, 1), (60, 2)):
        now = NOW + timedelta(seconds=seconds)
        assert provider.begin(BROWSER_SECRET).startswith(f"{fake.issuer}/authorize?")
        assert len(fake.paths) == requests


class SlowProvider:
    """A provider that begins no login before the test releases it, at most 60 s."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def begin(self, secret: str) -> str:
        self.released.wait(60)
        return "https://login.example"


def console_of(provider: Any) -> FastAPI:
    """Return an application that has nothing but the login at a provider."""
    app = FastAPI()
    sessions: Any = SimpleNamespace(
        cookie="c",
        secure=False,
    )
    provide(app, Logins(sessions, provider))
    app.include_router(oidc_router)
    return app


@pytest.mark.anyio
async def test_a_crowd_of_logins_is_turned_away_while_the_provider_is_slow():
    provider = SlowProvider()
    four_turned_away = anyio.Event()
    locations: list[str] = []

    async def log_in(browser: httpx.AsyncClient) -> None:
        response = await browser.get("/api/v1/session/oidc")
        locations.append(response.headers["location"])
        if len(locations) == 4:
            four_turned_away.set()

    transport = httpx.ASGITransport(console_of(provider))
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://a") as browser,
        anyio.create_task_group() as crowd,
    ):
        for _ in range(40):
            crowd.start_soon(log_in, browser)
        with anyio.move_on_after(60):
            await four_turned_away.wait()
        provider.released.set()

    assert locations.count("/console/#refused=OIDC_UNREACHABLE") == 4


FOREIGN_RESPONSES = [
    # the secret of the browser, and the end of the state; None: without a state
    (BROWSER_SECRET, None),
    (BROWSER_SECRET, ""),
    (BROWSER_SECRET, "é"),
    ("of another browser", "complete"),
    ("", "complete"),
]


@pytest.mark.parametrize(("secret", "state"), FOREIGN_RESPONSES)
def test_a_response_is_for_the_browser_that_began_the_login(fake, login, secret, state):
    response = {"code": "c"}
    match state:
        case "":
            response["state"] = ""
        case "é":
            response["state"] = login.state[:-1] + "é"
        case "complete":
            response["state"] = login.state

    with pytest.raises(LoginRefused) as refused:
        login.provider.person(secret, response)
    assert refused.value.reason == "OIDC_STATE"
    assert "code" not in fake.form  # the code was not sent to the provider


BROKEN_PROVIDERS = [
    # changed metadata, status and text of its responses, part of the message
    ({"issuer": "https://evil.example"}, 200, "", "calls itself 'https://evil.example'"),
    (
        {"token_endpoint": "http://evil.example/token"},
        200,
        "",
        "has no token_endpoint with https",
    ),
    ({"jwks_uri": None}, 200, "", "has no jwks_uri with https"),
    ({}, 503, "", "status 503"),
    ({}, 200, "<html>", "no JSON object"),
    ({}, 200, "[1]", "no JSON object"),
]


@pytest.mark.parametrize(
    ("metadata", "status", "text", "message"),
    BROKEN_PROVIDERS,
)
def test_a_broken_provider_is_unreachable(
    fake,
    login,
    metadata,
    status,
    text,
    message,
):
    provider = provider_of(fake)
    fake.metadata |= metadata
    fake.status = status
    fake.text = text

    with pytest.raises(LoginRefused, match=message) as refused:
        provider.begin(BROWSER_SECRET)
    assert refused.value.reason == "OIDC_UNREACHABLE"

    with pytest.raises(LoginRefused, match=message) as refused:
        login.finish(provider)
    assert refused.value.reason == "OIDC_UNREACHABLE"


def test_the_secret_is_in_the_form_if_the_provider_accepts_no_header(fake, login):
    fake.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_post"]

    login.finish(provider_of(fake))

    assert fake.form["client_secret"] == openid.SECRET


def test_a_denied_login_is_refused(login):
    response = {
        "state": login.state,
        "error": "access_denied",
    }

    with pytest.raises(LoginRefused, match="access_denied") as refused:
        login.provider.person(BROWSER_SECRET, response)
    assert refused.value.reason == "OIDC_REFUSED"


def test_a_person_without_a_group_of_the_settings_is_refused(fake, login):
    fake.claims["groups"] = ["staff"]

    with pytest.raises(LoginRefused, match="has none of the groups") as refused:
        login.finish()
    assert refused.value.reason == "OIDC_NO_ROLE"


def test_a_provider_that_is_down_is_unreachable():
    (port,) = free_ports(1)
    provider = Provider(oidc_settings(f"http://127.0.0.1:{port}"), fixed_clock)

    with pytest.raises(LoginRefused) as refused:
        provider.begin(BROWSER_SECRET)
    assert refused.value.reason == "OIDC_UNREACHABLE"


# ---------------------------------------------------------------- settings


MINIMAL_SETTINGS = {
    "issuer": "https://login.example",
    "client_id": "c",
    "console": CONSOLE,
    "roles": ROLES,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"issuer": "http://login.example"},
        {"console": "http://bfia.bank.example"},
        {"roles": {}},
        {"roles": {"a": "king"}},
        {"scopes": ["profile"]},
        {
            "client_secret": "x",
            "client_secret_file": Path("/a/file"),
        },
    ],
)
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(ValidationError):
        Oidc.model_validate(MINIMAL_SETTINGS | wrong)


def test_a_provider_needs_access_control():
    with pytest.raises(ValidationError, match="mode: on"):
        Auth.model_validate({"mode": "off", "oidc": MINIMAL_SETTINGS})


def test_a_missing_file_of_the_authorities_is_refused():
    settings = oidc_settings("https://login.example", ca=Path("/none"))

    with pytest.raises(Invalid, match=r"auth\.oidc\.ca"):
        Provider(settings, fixed_clock)
