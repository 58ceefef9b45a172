"""Sessions of people who log in at a real OpenID provider, with requests and in the browser."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from playwright.sync_api import Page, expect

from gateway.auth import Role, new_token
from gateway.console.oidc import CALLBACK_PATH
from gateway.http.guard import cookie_name
from tests.console.fake_provider import oidc_settings
from tests.e2e.nodes import free_ports
from tests.inprocess import ME, Node
from tests.services import openid
from tests.services.browser import chromium
from tests.world import NodeSetup, World

TOKEN = "0123456789abcdef0123"
expect.set_options(timeout=120_000)  # ms; only ends a hang


@pytest.fixture(scope="module")
def node(shared_world: World) -> Iterator[Node]:
    """A node with a real provider, which has the users li.na and wang."""
    (port,) = free_ports(1)
    console = f"http://127.0.0.1:{port}"
    users = {
        "li.na": ["analysts"],
        "wang": ["staff"],  # has no role
    }
    with openid.provider(console + CALLBACK_PATH, users) as issuer:
        oidc = oidc_settings(issuer, console=console)
        auth = {
            "mode": "on",
            "token": TOKEN,
            "oidc": oidc.model_dump(mode="json"),
        }
        listen = {
            "operator": {"bind": f"127.0.0.1:{port}"},
            "peer": {"bind": "127.0.0.1:0"},
            "container": {"bind": "127.0.0.1:0"},
        }
        settings = {
            "auth": auth,
            "listen": listen,
        }
        yield shared_world.node(NodeSetup(settings=settings))


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
        console = node.addresses()["operator"]
        to_provider = browser.get(f"{console}/api/v1/session/oidc")
        assert to_provider.status_code == 303
        form = browser.get(
            to_provider.headers["location"],
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
        next_page = accepted.url.join(accepted.headers["location"])
        yield browser, location_of(browser, next_page)


def location_of(
    browser: httpx.Client,
    address: str | httpx.URL,
) -> str:
    """Return the address to which a page redirects."""
    return browser.get(address).headers["location"]


@pytest.fixture
def session(node: Node) -> dict[str, str]:
    """The header with the cookie of li.na's session."""
    name = cookie_name(ME)
    with logged_in_at_provider(node, "li.na") as (browser, back):
        response = browser.get(back)
    return {"cookie": f"{name}={response.cookies[name]}"}


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
        attributes = session_cookie.split("; ")
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(attributes)
        assert planted not in session_cookie
        (login_cookie,) = cookies.values()
        assert "-login=" in login_cookie
        assert "Max-Age=0" in login_cookie
        # The address is good for one login.
        assert location_of(browser, back) == "/console/#refused=OIDC_STATE"


def test_a_person_acts_in_the_role_of_its_group(node, session):
    user = node.get("/api/v1/session", headers=session).json()
    name = user["user"]
    assert re.fullmatch("oidc:li.na#[0-9a-f]{8}", name)
    assert user["role"] == "platform"
    refused = node.get("/api/v1/audit", headers=session)
    assert refused.status_code == 403

    # Without the console's header, as from a page of another site.
    path = "/api/v1/jobs/cancel-waiting"
    refused = node.post(path, {}, headers=session)
    assert refused.status_code == 401
    accepted = node.post(
        path,
        {},
        headers=session | FROM_CONSOLE,
    )
    assert accepted.status_code == 200

    audit = node.audit.list(limit=20)
    audited = [(entry.who, entry.action) for entry in audit]
    assert (name, "login") in audited
    assert (name, f"POST {path}") in audited


def test_a_logout_revokes_the_token_and_names_the_provider(node, session):
    user = node.get("/api/v1/session", headers=session).json()
    name = user["user"]
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
    count = 0
    for token in node.tokens.list():
        is_valid = token.revoked_at is None
        if is_valid and token.name == name:
            count += 1
    return count


def test_a_stolen_code_or_cookie_logs_no_one_in(node):
    tokens_before = len(node.tokens.list())
    with (
        logged_in_at_provider(node, "li.na") as (victim, back),
        logged_in_at_provider(node, "wang") as (thief, _),
        new_browser() as fresh_browser,
    ):
        for browser in (thief, fresh_browser):
            assert location_of(browser, back) == "/console/#refused=OIDC_STATE"

        query = urlsplit(back).query
        state = dict(parse_qsl(query))["state"]
        console = node.addresses()["operator"]
        forged = f"{console}{CALLBACK_PATH}?code=made-up&state={state}"
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

    tokens = node.tokens.list()
    names = {token.name for token in tokens}
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
