"""Login at an OpenID provider: with a real one in the browser, and what a bad answer or an attacker comes to."""

import json
import re
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx
import pytest
from fastapi import FastAPI
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from playwright.sync_api import expect
from pydantic import ValidationError

from gateway.admin.deps import provide
from gateway.auth import LoginRefused, Role, new_token
from gateway.bootstrap.node import Gateway
from gateway.config.schema import Auth, Oidc
from gateway.console.oidc import BACK, Provider
from gateway.console.session import Logins, oidc_router
from gateway.errors import Invalid
from gateway.http.guard import cookie_name
from tests.e2e.nodes import free_ports
from tests.inprocess import ME, ask, running
from tests.services import openid
from tests.services.browser import chromium

NOW = datetime(2026, 11, 25, 8, 0, tzinfo=UTC)
OWN = "0123456789abcdef0123"
SECRET = "of the browser"
CONSOLE = "https://bfia.bank.example"
expect.set_options(timeout=120_000)  # there to end a hang
ROLES = {"admins": "admin", "analysts": "platform"}


KEY = RSAKey.generate_key(2048, {"kid": "first"})
OTHER = RSAKey.generate_key(2048, {"kid": "second"})


# ---------------------------------------------------------------- a provider that says what a test wants


class Liar:
    """An OpenID provider whose answers a test changes."""

    def __init__(self, address: str) -> None:
        self.issuer = address
        self.keys = [KEY]
        self.foreign: list[dict[str, Any]] = []
        """keys of a kind that is unknown here"""
        self.looks: list[str] = []
        self.about: dict[str, Any] = {
            "issuer": address,
            "authorization_endpoint": f"{address}/authorize",
            "token_endpoint": f"{address}/token",
            "jwks_uri": f"{address}/keys",
        }
        self.status, self.raw = 200, ""
        self.claims: dict[str, Any] = {}
        self.header: dict[str, Any] = {"alg": "RS256", "kid": "first"}
        self.key: Any = self.keys[0]
        self.state = ""
        self.asked: dict[str, str] = {}
        self.tokens: Callable[[], Any] = lambda: {"access_token": "a", "id_token": self.signed()}

    def signed(self) -> str:
        """Return the ID token."""
        if self.header["alg"] == "none":
            parts = (
                urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
                for part in (self.header, self.claims)
            )
            return ".".join((*parts, ""))
        return jwt.encode(self.header, self.claims, self.key, [self.header["alg"]])

    def answer(self, path: str, body: bytes) -> Any:
        """Return the JSON of a path."""
        self.looks.append(path)
        if path == "/token":
            self.asked = dict(parse_qsl(body.decode()))
            return self.tokens()
        keys = [*self.foreign, *(key.as_dict(private=False) for key in self.keys)]
        return {"keys": keys} if path == "/keys" else self.about


@contextmanager
def liar() -> Iterator[Liar]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = said.answer(
                self.path, self.rfile.read(int(self.headers["content-length"] or 0))
            )
            content = said.raw or json.dumps(found)
            self.send_response(said.status)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(content.encode())

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        said = Liar(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield said
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def lies() -> Iterator[tuple[Liar, Provider]]:
    with liar() as one:
        provider = Provider(settings(one.issuer), lambda: NOW)
        query = dict(parse_qsl(urlsplit(provider.begin(SECRET)).query))
        one.claims = {
            "iss": one.issuer,
            "sub": "7",
            "aud": openid.CLIENT,
            "exp": int(NOW.timestamp()) + 300,
            "iat": int(NOW.timestamp()),
            "nonce": query["nonce"],
            "preferred_username": "li.na",
            "groups": ["staff", "analysts", "admins"],
        }
        one.state = query["state"]
        yield one, provider


def settings(issuer: str, **more: Any) -> Oidc:
    fields = {
        "client_id": openid.CLIENT,
        "client_secret": openid.SECRET,
        "console": CONSOLE,
        "roles": ROLES,
    }
    return Oidc.model_validate(
        {
            "issuer": issuer,
            **fields,
            **more,
        }
    )


def come_back(
    one: Liar,
    provider: Provider,
    **answer: str,
) -> Any:
    return provider.person(
        SECRET,
        {
            "state": one.state,
            "code": "c",
            **answer,
        },
    )


def test_a_person_has_the_first_role_of_the_settings(lies):
    one, provider = lies
    person = come_back(one, provider)
    assert person.subject == "7"
    assert person.name == "li.na"
    assert person.role == Role.ADMIN
    assert one.asked["redirect_uri"] == CONSOLE + BACK
    assert one.asked["code"] == "c"
    assert len(one.asked["code_verifier"]) >= 43


def test_a_name_is_printable_and_a_group_may_lie_deeper(lies):
    one, _ = lies
    state = one.state
    one.claims |= {"preferred_username": "li\n\x1b[31mna\u202e", "realm": {"groups": "analysts"}}
    deeper = Provider(settings(one.issuer, role_claim="realm.groups"), lambda: NOW)
    person = deeper.person(SECRET, {"state": state, "code": "c"})
    assert person.name == "li[31mna"
    assert person.role == Role.PLATFORM


SECONDS = int(NOW.timestamp())


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"iss": "https://evil.example"}, "iss"),
        ({"aud": "another-client"}, "aud"),
        ({"aud": [openid.CLIENT, "another"], "azp": "another"}, "azp"),
        ({"nonce": "of another login"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"exp": SECONDS - 61}, "expired"),
        ({"iat": SECONDS + 3600}, "future"),
        ({"nbf": SECONDS + 3600}, "not valid|nbf|future|yet"),
        ({"exp": None}, "exp"),
        ({"sub": None}, "sub"),
        ({"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"}, "at_hash"),
    ],
)
def test_a_token_for_others_or_another_time_is_refused(lies, claims, words):
    one, provider = lies
    merged = {**one.claims, **claims}
    one.claims = {key: value for key, value in merged.items() if value is not None}
    with pytest.raises(LoginRefused, match=words) as found:
        come_back(one, provider)
    assert found.value.reason == "OIDC_TOKEN"


def test_a_token_without_the_providers_signature_is_refused(lies):
    """Unsigned; with the client's secret as the key of an HMAC; with a key that is not its own."""
    one, provider = lies
    attacks = [
        ({"alg": "none"}, None),
        ({"alg": "HS256"}, OctKey.import_key(openid.SECRET)),
        ({"alg": "RS256", "kid": "first"}, OTHER),
        ({"alg": "RS256", "kid": "second"}, OTHER),
    ]
    for one.header, one.key in attacks:
        with pytest.raises(LoginRefused) as found:
            come_back(one, provider)
        assert found.value.reason == "OIDC_TOKEN", one.header
    for tokens in (
        {},
        {"access_token": "a"},
        {"access_token": "a", "id_token": "x.y.z"},
        {"error": "invalid_grant"},
    ):
        one.tokens = lambda tokens=tokens: tokens  # type: ignore[misc]
        with pytest.raises(LoginRefused):
            come_back(one, provider)


def test_a_key_that_the_provider_gave_up_is_refused_and_its_new_one_taken(lies):
    one, provider = lies
    one.keys = [OTHER]
    with pytest.raises(LoginRefused):
        come_back(one, provider)
    one.key, one.header = OTHER, {"alg": "RS256", "kid": "second"}
    one.foreign = [
        {
            "kty": "EC",
            "crv": "brainpoolP256r1",
            "kid": "third",
            "x": "AA",
            "y": "AA",
        },
        {"kty": "EC"},
    ]
    assert come_back(one, provider).name == "li.na"


def test_many_who_begin_have_the_provider_asked_once_a_minute(lies):
    one, _ = lies
    now = [NOW]
    provider = Provider(settings(one.issuer), lambda: now[0])
    one.looks.clear()
    for seconds, looks in ((0, 1), (59, 1), (60, 2)):
        now[0] = NOW + timedelta(seconds=seconds)
        assert provider.begin(SECRET).startswith(f"{one.issuer}/authorize?")
        assert len(one.looks) == looks


@pytest.mark.anyio
async def test_a_crowd_of_logins_is_turned_away_while_the_provider_is_slow():
    free, turned_away = threading.Event(), anyio.Event()
    own: Any = SimpleNamespace(cookie="c", secure=False)
    provider: Any = SimpleNamespace(begin=lambda secret: free.wait(60) and "https://login.example")
    app = FastAPI()
    provide(app, Logins(own, provider))
    app.include_router(oidc_router)
    went: list[str] = []

    async def log_in(browser: httpx.AsyncClient) -> None:
        went.append((await browser.get("/api/v1/session/oidc")).headers["location"])
        if len(went) == 4:
            turned_away.set()

    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as browser,
        anyio.create_task_group() as crowd,
    ):
        for _ in range(40):
            crowd.start_soon(log_in, browser)
        with anyio.move_on_after(60):
            await turned_away.wait()
        free.set()
    assert went.count("/console/#refused=OIDC_UNREACHABLE") == 4


def test_an_answer_is_for_the_browser_that_began(lies):
    one, provider = lies
    state = one.state
    for secret, answer in (
        (SECRET, {"code": "c"}),
        (SECRET, {"code": "c", "state": ""}),
        (SECRET, {"code": "c", "state": state[:-1] + "é"}),
        ("of another browser", {"code": "c", "state": state}),
        ("", {"code": "c", "state": state}),
    ):
        with pytest.raises(LoginRefused) as found:
            provider.person(secret, answer)
        assert found.value.reason == "OIDC_STATE"
    assert "code" not in one.asked  # no code was ever sent on


@pytest.mark.parametrize(
    ("about", "answer", "words"),
    [
        ({"issuer": "https://evil.example"}, {}, "calls itself 'https://evil.example'"),
        ({"token_endpoint": "http://evil.example/token"}, {}, "has no token_endpoint with https"),
        ({"jwks_uri": None}, {}, "has no jwks_uri with https"),
        ({}, {"status": 503}, "status 503"),
        ({}, {"raw": "<html>"}, "no JSON object"),
        ({}, {"raw": "[1]"}, "no JSON object"),
    ],
)
def test_a_provider_that_is_not_what_it_should_be(lies, about, answer, words):
    one, _ = lies
    provider = Provider(settings(one.issuer), lambda: NOW)
    one.about |= about
    vars(one).update(answer)
    for work in (lambda: provider.begin(SECRET), lambda: come_back(one, provider)):
        with pytest.raises(LoginRefused, match=words) as found:
            work()
        assert found.value.reason == "OIDC_UNREACHABLE"


def test_the_secret_goes_in_the_form_where_the_provider_takes_no_header(lies):
    one, _ = lies
    one.about["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    provider = Provider(settings(one.issuer), lambda: NOW)
    come_back(one, provider)
    assert one.asked["client_secret"] == openid.SECRET


def test_a_denial_no_group_and_a_provider_that_is_away(lies):
    one, provider = lies
    with pytest.raises(LoginRefused, match="access_denied") as found:
        provider.person(SECRET, {"state": one.state, "error": "access_denied"})
    assert found.value.reason == "OIDC_REFUSED"
    one.claims["groups"] = ["staff"]
    with pytest.raises(LoginRefused, match="has none of the groups") as found:
        come_back(one, provider)
    assert found.value.reason == "OIDC_NO_ROLE"
    away = Provider(settings(f"http://127.0.0.1:{free_ports(1)[0]}"), lambda: NOW)
    with pytest.raises(LoginRefused) as found:
        away.begin(SECRET)
    assert found.value.reason == "OIDC_UNREACHABLE"


def test_settings_that_cannot_work(tmp_path):
    fine = {
        "issuer": "https://login.example",
        "client_id": "c",
        "console": CONSOLE,
        "roles": ROLES,
    }
    file = tmp_path / "secret"
    file.write_text("from a file\n")
    assert (
        settings("https://a.example", client_secret="", client_secret_file=file).secret()
        == "from a file"
    )
    for wrong in (
        {"issuer": "http://login.example"},
        {"console": "http://bfia.bank.example"},
        {"roles": {}},
        {"roles": {"a": "king"}},
        {"scopes": ["profile"]},
        {"client_secret": "x", "client_secret_file": file},
    ):
        with pytest.raises(ValidationError):
            Oidc.model_validate(fine | wrong)
    with pytest.raises(ValidationError, match="mode: on"):
        Auth.model_validate({"mode": "off", "oidc": fine})
    for wrong in (
        {"client_secret_file": tmp_path / "none", "client_secret": ""},
        {"ca": tmp_path / "none"},
    ):
        with pytest.raises(Invalid):
            Provider(settings("https://login.example", **wrong), lambda: NOW)


# ---------------------------------------------------------------- a real provider


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    (port,) = free_ports(1)
    console = f"http://127.0.0.1:{port}"
    users = {"li.na": ["analysts"], "wang": ["staff"]}
    with openid.provider(console + BACK, users) as issuer:
        oidc = settings(issuer, console=console).model_dump(mode="json")
        listen = {"operator": {"bind": f"127.0.0.1:{port}"}, "peer": {"bind": "127.0.0.1:0"}}
        listen |= {"container": {"bind": "127.0.0.1:0"}}
        auth = {
            "mode": "on",
            "token": OWN,
            "oidc": oidc,
        }
        with running(tmp_path_factory.mktemp("node"), auth=auth, listen=listen) as gateway:
            yield gateway


@contextmanager
def at_provider(node: Gateway, user: str) -> Iterator[tuple[httpx.Client, str]]:
    """Log in at the provider; return the browser, and the address to which the provider sends it."""
    with httpx.Client(timeout=120, trust_env=False) as browser:
        answer = browser.get(f"{node.addresses()['operator']}/api/v1/session/oidc")
        assert answer.status_code == 303
        answer = browser.get(answer.headers["location"], follow_redirects=True)
        form = {
            "username": user,
            "password": openid.PASSWORD,
            "csrfmiddlewaretoken": browser.cookies["csrftoken"],
        }
        answer = browser.post(answer.url, data=form)
        answer = browser.get(answer.url.join(answer.headers["location"]))
        yield browser, answer.headers["location"]


def test_a_person_logs_in_acts_in_its_role_and_logs_out(node):
    with at_provider(node, "li.na") as (browser, back):
        planted = "planted by an attacker"
        browser.cookies.set(cookie_name(ME), planted, "127.0.0.1", "/")
        answer = browser.get(f"{back}&next=https://evil.example&redirect_uri=https://evil.example")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/console/"
        kept, forgotten = sorted(
            answer.headers.get_list("set-cookie"), key=lambda one: "-login=" in one
        )
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(kept.split("; "))
        assert planted not in kept
        assert "Max-Age=0" in forgotten
        token = kept.partition("=")[2].partition(";")[0]
        mine = {"cookie": f"{cookie_name(ME)}={token}"}
        assert (
            browser.get(back).headers["location"] == "/console/#refused=OIDC_STATE"
        )  # it was good for once
    session = ask(node, "operator", "GET", "/api/v1/session", headers=mine).json()
    name = session["user"]
    assert re.fullmatch("oidc:li.na#[0-9a-f]{8}", name) and session["role"] == "platform"
    assert ask(node, "operator", "GET", "/api/v1/audit", headers=mine).status_code == 403
    change: dict[str, Any] = {
        "method": "POST",
        "path": "/api/v1/jobs/cancel-waiting",
        "json": {},
    }
    assert (
        ask(node, "operator", **change, headers=mine).status_code == 401
    )  # sent by a page of another site
    assert ask(node, "operator", **change, headers=mine | {"x-console": "1"}).status_code == 200
    assert ask(node, "operator", "DELETE", "/api/v1/session", headers=mine).status_code == 401
    ended = ask(node, "operator", "DELETE", "/api/v1/session", headers=mine | {"x-console": "1"})
    assert ended.json()["provider"].endswith("/o")
    (kept_token,) = (one for one in node.tokens.list() if one.name == name)
    assert kept_token.revoked_at is not None
    lines = [(e.who, e.action) for e in node.audit.list(limit=20)]
    assert {(name, "login"), (name, "POST /api/v1/jobs/cancel-waiting")} <= set(lines)


def test_a_code_or_a_cookie_of_somebody_else_logs_nobody_in(node):
    before = len(node.tokens.list())
    with (
        at_provider(node, "li.na") as (victim, back),
        at_provider(node, "wang") as (other, _),
        httpx.Client(timeout=120, trust_env=False) as bare,
    ):
        stolen = urlsplit(back)
        own_state = dict(parse_qsl(stolen.query))["state"]
        for browser in (other, bare):
            assert browser.get(back).headers["location"] == "/console/#refused=OIDC_STATE"
        made_up = f"{node.addresses()['operator']}{BACK}?code=made-up&state={own_state}"
        assert victim.get(made_up).headers["location"] == "/console/#refused=OIDC_REFUSED"
    assert len(node.tokens.list()) == before


def test_a_login_of_the_past_is_forgotten_at_the_next(node):
    old = node.clock() - timedelta(days=2)
    for name in ("oidc:gone", "kept"):
        node.tokens.add(new_token(name, Role.VIEWER, old, old + timedelta(hours=1))[1])
    with at_provider(node, "li.na") as (browser, back):
        assert browser.get(back).headers["location"] == "/console/"
    names = {token.name for token in node.tokens.list()}
    assert "oidc:gone" not in names
    assert "kept" in names


@pytest.mark.slow
@pytest.mark.browser
def test_people_log_in_by_the_browser(node):
    with chromium() as browser:
        page = browser.new_context(locale="zh-CN").new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{node.addresses()['operator']}/console/#/data")
        page.get_by_role("link", name="使用机构账号登录").click()
        page.locator("input[name=username]").fill("wang")
        page.locator("input[name=password]").fill(openid.PASSWORD)
        page.locator("button").click()
        expect(page.get_by_role("alert")).to_contain_text("OIDC_NO_ROLE")
        page.context.clear_cookies()
        page.get_by_role("link", name="使用机构账号登录").click()
        page.locator("input[name=username]").fill("li.na")
        page.locator("input[name=password]").fill(openid.PASSWORD)
        page.locator("button").click()
        expect(page.get_by_text("li.na")).to_be_visible()
        expect(page.locator("nav a[aria-current=page]")).to_have_attribute(
            "href", "#/data"
        )  # where the person was
        page.get_by_role("button", name="退出登录").click()
        expect(page.get_by_role("link", name="使用机构账号登录")).to_be_visible()
