"""Attack: a token of a lesser role is used at every path of the operators' listener.

The permissions are read from docs/endpoints.md, so that roles change only in a reviewed page.
"""

import re
from collections import Counter

import httpx
import pytest

from gateway.auth import Role, may
from tests.admin.test_outputs import store_output
from tests.e2e.nodes import ROOT
from tests.inprocess import routes_of, token_of
from tests.plain import NO_TLS
from tests.world import NodeSetup

NODE = NodeSetup(
    token="0123456789abcdef0123",
    settings={"fate": {"enabled": True}},
)
EVERY_ROLE = "admin vendor platform viewer"
SCHEDULE = "/v1/platform/schedule/"
# Paths that need no token.
OPEN = (
    "/health",
    "/health/live",
    "/health/ready",
    "/docs",
    "/",
    "/console",
    "/api/v1/session/ways",
)


def read_permissions():
    """Return the roles that may use a method and path according to docs/endpoints.md."""
    page = (ROOT / "docs/endpoints.md").read_text(encoding="utf-8")
    operators_part = page.partition("(`listen.peer`)")[0]
    row = re.compile(r"^\| ([A-Z]+) \| `(\S+)` \| .* \| (.+) \|$", re.MULTILINE)
    words = {
        "every role": EVERY_ROLE,
        "no token needed": "admin",
    }
    permissions = {}
    for method, path, roles in row.findall(operators_part):
        permissions[method, path] = words.get(
            roles,
            roles.replace(",", ""),
        )
    return permissions


PERMISSIONS = read_permissions()
# Operations without a row or a role in the page.
NOT_IN_PAGE = {
    ("GET", path): EVERY_ROLE
    for path in ("/", "/health", "/console", "/docs", "/openapi.json", "/api/v1/session/ways")
}


def operations_of(app):
    """Return method and path of everything that an application serves."""
    operations = []
    for route in routes_of(app):
        for method in route.methods:
            operations.append((method, route.path))
    return operations


def roles_in_page(method, path):
    """Return the roles of an operation by the page, "" if it has none.

    Another spelling of a path and another method have the roles of their row.
    """
    path = path.replace("/v2/schedule/", SCHEDULE)
    if (method, path) in PERMISSIONS:
        return PERMISSIONS[method, path]
    if path.startswith(SCHEDULE):
        return PERMISSIONS.get(("GET", path), "")
    return ""


@pytest.fixture(scope="module", autouse=True)
def _people_have_come(node):
    """Have the node build the paths for people, as it does at the first request for one."""
    assert node.get("/api/v1/session/ways").status_code == 200


@pytest.fixture(scope="module")
def permissions(node):
    """Give the roles of each operation of the operators' listener, by method and path."""
    permissions = PERMISSIONS | NOT_IN_PAGE
    served = {
        operation for operation in operations_of(node.apps["operator"]) if operation[0] != "HEAD"
    }
    for operation in served - permissions.keys():
        roles = roles_in_page(*operation)
        if roles:
            permissions[operation] = roles
    assert served == permissions.keys(), sorted(served ^ permissions.keys())
    return permissions


def concrete(path):
    """Return a path with the names of its parameters as their values."""
    return path.replace(":path", "").replace("{", "").replace("}", "")


def test_no_operation_is_declared_twice(node):
    for listener, app in node.apps.items():
        counts = Counter(operations_of(app))
        repeated = [operation for operation, count in counts.items() if count > 1]
        assert repeated == [], listener


def test_every_path_has_its_row_and_the_rules_agree_with_it(permissions):
    for (method, path), roles in permissions.items():
        by_rules = [role for role in Role if may(role, method, concrete(path))]
        assert " ".join(by_rules) == roles, (method, path)


@pytest.fixture
def client(node):
    """Give a client of the operators' listener, as one connection is faster for many requests."""
    address = node.addresses()["operator"]
    with httpx.Client(base_url=address, trust_env=False, verify=NO_TLS, timeout=300) as client:
        yield client


def test_a_request_without_a_token_is_refused_by_the_listener(permissions, client):
    for method, path in permissions:
        if path not in OPEN:
            assert client.request(method, concrete(path)).status_code == 401, (method, path)


@pytest.mark.parametrize("role", Role)
def test_roles_without_permission_are_refused_by_the_listener(node, permissions, client, role):
    headers = {"authorization": f"Bearer {token_of(node, role)}"}
    for (method, path), roles in permissions.items():
        if path in OPEN or role in roles.split():
            continue
        response = client.request(
            method,
            concrete(path),
            headers=headers,
        )
        assert response.status_code in (200, 403), (method, path)
        assert "NOT_AUTHORISED" in response.text, (method, path)


@pytest.mark.parametrize(
    ("role", "may_read"),
    [
        (Role.ADMIN, True),
        (Role.PLATFORM, True),
        (Role.VENDOR, False),
        (Role.VIEWER, False),
    ],
)
def test_a_list_of_outputs_shows_contents_only_to_roles_that_may_read(node, role, may_read):
    job_id = f"job-listed-by-{role}"
    store_output(node, job_id, "model", b'{"coefficients": [0.25]}')

    response = node.get(
        f"/api/v1/jobs/{job_id}/outputs",
        token=token_of(node, role, "reader"),
    )

    assert response.status_code == 200
    assert ("coefficients" in response.text) is may_read
