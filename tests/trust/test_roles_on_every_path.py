"""A token of a lesser role asks for every path of the operators' listener.

Who may is read from docs/endpoints.md, so that roles change nowhere but in a page that is reviewed.
"""

import re
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from gateway.auth import Role, may
from gateway.bootstrap.node import Gateway
from tests.admin.test_outputs import have
from tests.e2e.nodes import ROOT
from tests.inprocess import ask, routes_of, running, token_of
from tests.plain import NO_TLS

ALL, PLATFORM, ADMIN = "admin vendor platform viewer", "admin platform", "admin"
SCHEDULE = "/v1/platform/schedule/"
OPEN = (
    "/health",
    "/health/live",
    "/health/ready",
    "/docs",
    "/",
    "/console",
    "/api/v1/session/ways",
)
"""without a token"""
PAGE = (ROOT / "docs/endpoints.md").read_text(encoding="utf-8").partition("(`listen.peer`)")[0]
ROLES = {
    (method, path): {"every role": ALL, "no token needed": ADMIN}.get(who, who.replace(",", ""))
    for method, path, who in re.findall(
        r"^\| ([A-Z]+) \| `(\S+)` \| .* \| (.+) \|$", PAGE, re.MULTILINE
    )
}
"""method and path -> who may"""
BESIDES = {
    ("GET", path): ALL
    for path in ("/", "/health", "/console", "/docs", "/openapi.json", "/api/v1/session/ways")
}
"""what the page has no row for, or no role; another spelling of a path and another method are as the row"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    auth = {"mode": "on", "token": "0123456789abcdef0123"}
    with running(tmp_path_factory.mktemp("node"), auth=auth, fate={"enabled": True}) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def routes(node: Gateway) -> dict[tuple[str, str], str]:
    """Every method and path that the application declares, with who may by the table."""
    for listener, app in node.apps.items():
        declared = Counter((m, r.path) for r in routes_of(app) for m in r.methods)
        assert [one for one, times in declared.items() if times > 1] == [], (
            f"declared twice at {listener}"
        )
    found = {
        (m, r.path): "" for r in routes_of(node.apps["operator"]) for m in r.methods if m != "HEAD"
    }
    table = ROLES | BESIDES
    for method, path in found.keys() - table.keys():
        described = path.replace("/v2/schedule/", SCHEDULE)
        same = ROLES.get((method, described)) or (
            described.startswith(SCHEDULE) and ROLES.get(("GET", described))
        )
        if same:
            table[method, path] = same
    assert found.keys() == table.keys(), sorted(found.keys() ^ table.keys())
    return table


def concrete(path: str) -> str:
    return path.replace(":path", "").replace("{", "").replace("}", "")


def test_every_path_has_its_row_and_the_rules_say_the_same(routes: dict[tuple[str, str], str]):
    said = {
        one: " ".join(role for role in Role if may(role, one[0], concrete(one[1])))
        for one in routes
    }
    assert {one: who for one, who in said.items() if who != routes[one]} == {}


def test_roles_without_permission_are_refused_by_the_listener(
    node: Gateway, routes: dict[tuple[str, str], str]
):
    tokens = {role: token_of(node, role) for role in Role}
    base = node.addresses()["operator"]
    with httpx.Client(
        base_url=base,
        trust_env=False,
        verify=NO_TLS,
        timeout=60,
    ) as client:
        for (method, path), who in routes.items():
            if path in OPEN:
                continue
            assert client.request(method, concrete(path)).status_code == 401, (method, path)
            for role in Role:
                if role not in who.split():
                    headers = {"authorization": f"Bearer {tokens[role]}"}
                    answer = client.request(method, concrete(path), headers=headers)
                    assert answer.status_code in (200, 403), (method, path, role)
                    assert "NOT_AUTHORISED" in answer.text, (method, path, role)


def test_a_list_of_outputs_shows_contents_only_to_roles_that_may_read_them(node: Gateway):
    have(node, "job-listed", "model", b'{"coefficients": [0.25]}')
    seen = {}
    for role in Role:
        headers = {"authorization": f"Bearer {token_of(node, role)}"}
        answer = ask(node, "operator", "GET", "/api/v1/jobs/job-listed/outputs", headers=headers)
        assert answer.status_code == 200
        seen[role] = "coefficients" in answer.text
    assert seen == {
        Role.ADMIN: True,
        Role.PLATFORM: True,
        Role.VENDOR: False,
        Role.VIEWER: False,
    }
