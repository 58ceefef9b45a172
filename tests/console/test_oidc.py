"""Login at an OpenID provider: with a real one in the browser, bad responses, and attacks."""

import json
import re
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx
import pytest
from fastapi import FastAPI
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from playwright.sync_api import Page, expect
from pydantic import ValidationError

from gateway.admin.deps import provide
from gateway.auth import LoginRefused, Role, new_token
from gateway.config.schema import Auth, Oidc
from gateway.console.oidc import BACK, Provider
from gateway.console.session import Logins, oidc_router
from gateway.errors import Invalid
from gateway.http.guard import cookie_name
from tests.e2e.nodes import free_ports
from tests.inprocess import ME, Node
from tests.services import openid
from tests.services.browser import chromium
from tests.world import NodeSetup, World

NOW = datetime(
    2026,
    11,
    25,
    8,
    0,
    tzinfo=UTC,
)
NOW_SECONDS = int(NOW.timestamp())
TOKEN = "0123456789abcdef0123"
# The secret in the cookie of the browser that begins the login.
BROWSER_SECRET = "of the browser"
CONSOLE = "https://bfia.bank.example"
ROLES = {
    "admins": "admin",
    "analysts": "platform",
}
expect.set_options(timeout=120_000)  # ms; only ends a hang

KEY = RSAKey.generate_key(2048, {"kid": "first"})
SECOND_KEY = RSAKey.generate_key(2048, {"kid": "second"})


# ---------------------------------------------------------------- a provider under control


def unpadded_base64(value: Any) -> str:
    """Return a JSON value as a part of an ID token."""
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


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

    def respond(
        self,
        path: str,
        body: bytes,
    ) -> Any:
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
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        fake: FakeProvider = self.server.provider  # type: ignore[attr-defined]
        response = fake.respond(self.path, body)
        self.send_response(fake.status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        content = fake.text or json.dumps(response)
        self.wfile.write(content.encode())

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


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
    return Provider(oidc_settings(fake.issuer, **changes), fixed_clock)


class Login:
    """A login that a browser has begun; the fake provider's ID token is the right one for it."""

    def __init__(self, fake: FakeProvider) -> None:
        self.provider = provider_of(fake)
        query = dict(parse_qsl(urlsplit(self.provider.begin(BROWSER_SECRET)).query))
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


@pytest.fixture
def login(fake: FakeProvider) -> Login:
    return Login(fake)


def test_a_person_has_the_first_role_of_the_settings(fake, login):
    person = login.finish()

    assert person.subject == "7"
    assert person.name == "li.na"
    assert person.role == Role.ADMIN
    assert fake.form["redirect_uri"] == CONSOLE + BACK
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


def test_the_secret_may_be_in_a_file(tmp_path):
    file = tmp_path / "secret"
    file.write_text("from a file\n")

    settings = oidc_settings(
        "https://a.example",
        client_secret="",
        client_secret_file=file,
    )

    assert settings.secret() == "from a file"


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


@pytest.mark.parametrize(
    "missing",
    [
        {
            "client_secret_file": Path("/none"),
            "client_secret": "",
        },
        {"ca": Path("/none")},
    ],
)
def test_a_missing_file_of_the_settings_is_refused(missing):
    settings = oidc_settings("https://login.example", **missing)

    with pytest.raises(Invalid):
        Provider(settings, fixed_clock)


# ---------------------------------------------------------------- a real provider


@pytest.fixture(scope="module")
def node(shared_world: World) -> Iterator[Node]:
    """A node with a real provider, which has the users li.na and wang."""
    (port,) = free_ports(1)
    console = f"http://127.0.0.1:{port}"
    users = {
        "li.na": ["analysts"],
        "wang": ["staff"],  # has no role
    }
    with openid.provider(console + BACK, users) as issuer:
        auth = {
            "mode": "on",
            "token": TOKEN,
            "oidc": oidc_settings(issuer, console=console).model_dump(mode="json"),
        }
        listen = {
            "operator": {"bind": f"127.0.0.1:{port}"},
            "peer": {"bind": "127.0.0.1:0"},
            "container": {"bind": "127.0.0.1:0"},
        }
        yield shared_world.node(NodeSetup(settings={"auth": auth, "listen": listen}))


def new_browser() -> httpx.Client:
    return httpx.Client(
        timeout=120,
        trust_env=False,
    )


@contextmanager
def logged_in_at_provider(
    node: Node,
    user: str,
) -> Iterator[tuple[httpx.Client, str]]:
    """Log in at the provider; yield the browser and the address to which it is sent back."""
    with new_browser() as browser:
        begun = browser.get(f"{node.addresses()['operator']}/api/v1/session/oidc")
        assert begun.status_code == 303
        form = browser.get(
            begun.headers["location"],
            follow_redirects=True,
        )
        fields = {
            "username": user,
            "password": openid.PASSWORD,
            "csrfmiddlewaretoken": browser.cookies["csrftoken"],
        }
        accepted = browser.post(
            form.url,
            data=fields,
        )
        redirected = browser.get(accepted.url.join(accepted.headers["location"]))
        yield browser, redirected.headers["location"]


def location_of(
    browser: httpx.Client,
    address: str,
) -> str:
    """Return the address to which a page redirects."""
    return browser.get(address).headers["location"]


@pytest.fixture
def session(node: Node) -> dict[str, str]:
    """The header with the cookie of li.na's session."""
    with logged_in_at_provider(node, "li.na") as (browser, back):
        cookie = browser.get(back).cookies[cookie_name(ME)]
    return {"cookie": f"{cookie_name(ME)}={cookie}"}


FROM_CONSOLE = {"x-console": "1"}


def test_a_login_sets_a_new_cookie_and_forgets_the_login(node):
    """Attack: a cookie planted before the login, and addresses of another site."""
    planted = "planted by an attacker"
    with logged_in_at_provider(node, "li.na") as (browser, back):
        browser.cookies.set(
            cookie_name(ME),
            planted,
            "127.0.0.1",
            "/",
        )
        evil = "https://evil.example"

        response = browser.get(f"{back}&next={evil}&redirect_uri={evil}")

        assert response.status_code == 303
        assert response.headers["location"] == "/console/"
        cookies = {}
        for cookie in response.headers.get_list("set-cookie"):
            cookies[cookie.partition("=")[0]] = cookie
        session_cookie = cookies.pop(cookie_name(ME))
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(session_cookie.split("; "))
        assert planted not in session_cookie
        (login_cookie,) = cookies.values()
        assert "-login=" in login_cookie
        assert "Max-Age=0" in login_cookie
        # The address is good for one login.
        assert location_of(browser, back) == "/console/#refused=OIDC_STATE"


def test_a_person_acts_in_the_role_of_its_group(node, session):
    response = node.get("/api/v1/session", headers=session).json()
    name = response["user"]
    assert re.fullmatch("oidc:li.na#[0-9a-f]{8}", name)
    assert response["role"] == "platform"
    assert node.get("/api/v1/audit", headers=session).status_code == 403

    # Without the console's header, as from a page of another site.
    path = "/api/v1/jobs/cancel-waiting"
    assert node.post(path, {}, headers=session).status_code == 401
    assert node.post(path, {}, headers=session | FROM_CONSOLE).status_code == 200

    audited = [(entry.who, entry.action) for entry in node.audit.list(limit=20)]
    assert (name, "login") in audited
    assert (name, f"POST {path}") in audited


def test_a_logout_revokes_the_token_and_names_the_provider(node, session):
    name = node.get("/api/v1/session", headers=session).json()["user"]
    valid_before = valid_tokens(node, name)

    refused = node.request(
        "DELETE",
        "/api/v1/session",
        headers=session,
    )
    assert refused.status_code == 401
    assert valid_tokens(node, name) == valid_before

    ended = node.request(
        "DELETE",
        "/api/v1/session",
        headers=session | FROM_CONSOLE,
    )
    assert ended.json()["provider"].endswith("/o")
    assert valid_tokens(node, name) == valid_before - 1


def valid_tokens(node: Node, name: str) -> int:
    """Return how many sessions of a person are not revoked; each test adds one."""
    tokens = [token for token in node.tokens.list() if token.name == name]
    return len([token for token in tokens if token.revoked_at is None])


def test_a_stolen_code_or_cookie_logs_no_one_in(node):
    tokens_before = len(node.tokens.list())
    with (
        logged_in_at_provider(node, "li.na") as (victim, back),
        logged_in_at_provider(node, "wang") as (thief, _),
        new_browser() as fresh_browser,
    ):
        for browser in (thief, fresh_browser):
            assert location_of(browser, back) == "/console/#refused=OIDC_STATE"

        state = dict(parse_qsl(urlsplit(back).query))["state"]
        forged = f"{node.addresses()['operator']}{BACK}?code=made-up&state={state}"
        assert location_of(victim, forged) == "/console/#refused=OIDC_REFUSED"
    assert len(node.tokens.list()) == tokens_before


def test_an_expired_login_is_forgotten_at_the_next(node):
    begin = node.clock() - timedelta(days=2)
    for name in ("oidc:gone", "kept"):
        _, token = new_token(
            name,
            Role.VIEWER,
            begin,
            begin + timedelta(hours=1),
        )
        node.tokens.add(token)

    with logged_in_at_provider(node, "li.na") as (browser, back):
        assert location_of(browser, back) == "/console/"

    names = {token.name for token in node.tokens.list()}
    assert "oidc:gone" not in names
    assert "kept" in names


LOG_IN = "使用机构账号登录"
LOG_OUT = "退出登录"


def log_in_as(page: Page, user: str) -> None:
    """Log in at the provider, from the console's login page."""
    page.get_by_role("link", name=LOG_IN).click()
    page.locator("input[name=username]").fill(user)
    page.locator("input[name=password]").fill(openid.PASSWORD)
    page.locator("button").click()


@pytest.mark.slow
@pytest.mark.browser
def test_people_log_in_by_the_browser(node):
    with chromium() as browser:
        page = browser.new_context(locale="zh-CN").new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{node.addresses()['operator']}/console/#/data")

        log_in_as(page, "wang")
        expect(page.get_by_role("alert")).to_contain_text("OIDC_NO_ROLE")

        page.context.clear_cookies()
        log_in_as(page, "li.na")
        expect(page.get_by_text("li.na")).to_be_visible()
        # The person is on the page from which the login began.
        current = page.locator("nav a[aria-current=page]")
        expect(current).to_have_attribute("href", "#/data")

        page.get_by_role("button", name=LOG_OUT).click()
        expect(page.get_by_role("link", name=LOG_IN)).to_be_visible()
