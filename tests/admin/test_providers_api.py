"""``/api/v1/providers`` with tokens: the owner of a name, the audit, and a provider's past."""

import fastapi.applications as openapi
import pytest

from adapter import body as adapter_body
from gateway.auth import Role
from provider_registry import registry
from tests.aside import watch
from tests.e2e.nodes import wait_for
from tests.inprocess import token_of
from tests.registry.builders import a_component_request, a_description, a_request
from tests.world import NodeSetup

KEY = "acme:1.0.0@docker"
REGISTER = "/v2/provider/register"
OWNER = "/api/v1/provider-owners/acme"
# Roles of the users in these tests; everybody else is a vendor.
ROLES = {
    "root": Role.ADMIN,
    "eve": Role.VIEWER,
}

NODE = NodeSetup(settings={"auth": {"mode": "on"}})


@pytest.fixture(scope="module")
def as_(node):
    """Return a function of a user's name that returns a function which sends as this user."""

    def user(name):
        token = token_of(
            node,
            ROLES.get(name, Role.VENDOR),
            name,
        )

        def send(method, path, **kwargs):
            return node.request(method, path, token=token, **kwargs)

        return send

    return user


def test_another_vendors_token_is_refused_and_every_change_is_in_the_audit(node, as_):
    ann = as_("ann")
    bob = as_("bob")
    root = as_("root")
    created = ann(
        "POST",
        REGISTER,
        json=a_request(),
    )
    assert created.json() == {
        "code": 0,
        "message": "create success",
    }

    for path, body in (
        (REGISTER, a_request(version="2.0.0")),
        ("/v1/platform/schedule/component/register", a_component_request()),
        ("/v2/provider/delete", {"name": "acme"}),
    ):
        refused = bob(
            "POST",
            path,
            json=body,
        )
        assert refused.status_code == 200
        assert refused.json()["code"] == 403
        assert refused.json()["data"]["reason"] == "NOT_OWNER"
    for path, body in (
        ("", a_request()),
        (f"/{KEY}/retire", {}),
        (f"/{KEY}/unretire", {}),
        (f"/{KEY}/approve", {}),
    ):
        refused = bob(
            "POST",
            f"/api/v1/providers{path}",
            json=body,
        )
        assert refused.status_code == 403
        assert refused.json()["data"]["reason"] == "NOT_OWNER"
    assert bob("PUT", OWNER, json={"owner": "bob"}).status_code == 403

    retitled = a_request(a_description(title="new"))
    changed = ann(
        "POST",
        "/api/v1/providers?reason=titles",
        json=retitled,
    )
    assert changed.json()["changes"] == [
        {
            "path": "components_description.Algo.title",
            "before": "Algo",
            "after": "new",
        }
    ]

    assert root("PUT", OWNER, json={"owner": "bob"}).json()["before"] == "ann"
    retired = bob(
        "POST",
        f"/api/v1/providers/{KEY}/retire",
        json={"reason": "mine now"},
    )
    assert retired.status_code == 200
    assert ann("POST", REGISTER, json=a_request()).json()["code"] == 403

    expected = {
        ("ann", "updated"),
        ("bob", "retired"),
        ("root", None),
    }
    wait_for(lambda: audited_details(node).keys() >= expected, 20)
    details = audited_details(node)
    assert details["ann", "updated"]["changes"] == changed.json()["changes"]
    assert details["bob", "retired"]["changes"] == [
        {
            "path": "retired",
            "before": None,
            "after": True,
        }
    ]
    transfer = details["root", None]
    assert transfer["name"] == "acme"
    assert transfer["before"] == "ann"
    assert transfer["owner"] == "bob"


def audited_details(node):
    """Return the details in the audit, by user and action (None for a change of the owner)."""
    entries = [entry for entry in node.audit.list() if entry.detail]
    return {(entry.who, entry.detail.get("action")): entry.detail for entry in entries}


def test_the_schemas_are_served(as_):
    eve = as_("eve")
    names = [s["name"] for s in eve("GET", "/api/v1/schemas").json()["schemas"]]
    assert names == ["description-1.json", "registration.json", "component-registration.json"]
    for name in names:
        schema = eve("GET", f"/api/v1/schemas/{name}")
        assert schema.headers["content-type"] == "application/schema+json"
        assert schema.json()["$schema"].startswith("https://json-schema.org/")
    assert eve("GET", "/api/v1/schemas/none.json").json()["data"]["reason"] == "SCHEMA_UNKNOWN"


@pytest.mark.parametrize(
    "name",
    ["a%2Fb:1@docker", "..", "a:1@docker%00"],
)
def test_a_name_with_special_characters_does_not_pass_the_guard(as_, name):
    assert as_("eve")("GET", f"/api/v1/providers/{name}").status_code in (404, 403)


def test_a_large_registration_does_not_delay_other_requests(as_, monkeypatch):
    parsed = watch(monkeypatch, adapter_body, "read_json")
    compared = watch(monkeypatch, registry, "changes")
    body = a_request(a_description(description="d" * 10_000), name="aside")
    for number, path in enumerate((REGISTER, "/api/v1/providers")):
        for component in [f"C{i}" for i in range(10)]:
            description = a_description(component, description=str(number) * 10_000)
            body["components_description"][component] = description
        assert as_("dora")("POST", path, json=body).json().get("code", 0) == 0
    assert parsed == []
    assert compared
    assert not any(compared)


def test_openapi_is_built_once_and_outside_the_event_loop(as_, monkeypatch):
    builds = watch(monkeypatch, openapi, "get_openapi")
    first = as_("root")("GET", "/openapi.json").json()
    second = as_("root")("GET", "/openapi.json").json()
    assert first == second
    assert "/api/v1/providers" in first["paths"]
    assert builds == [False]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("several", "several:1.0.10@docker"),
        ("several:", "several:1.0.10@docker"),
        ("several@docker", "several:1.0.10@docker"),
        ("several:@docker", "several:1.0.10@docker"),
        ("several:1.0.9", "several:1.0.9@docker"),
        ("several:2.0.0", "several:2.0.0@docker"),
    ],
)
def test_a_name_without_version_or_device_shows_the_newest_in_use(as_, name, key):
    root = as_("root")
    for version in ("1.0.9", "1.0.10", "2.0.0"):
        root(
            "POST",
            REGISTER,
            json=a_request(
                name="several",
                version=version,
            ),
        )
    root(
        "POST",
        "/api/v1/providers/several:2.0.0@docker/retire",
        json={},
    )
    for path in ("", "/components/Algo/parameters"):
        assert root("GET", f"/api/v1/providers/{name}{path}").status_code == 200
    assert root("GET", f"/api/v1/providers/{name}").json()["provider_name"] == key


@pytest.mark.parametrize(
    "name",
    ["changed", "changed:1.0.0", "changed@docker"],
)
def test_a_change_without_version_or_device_lists_the_existing_ones(as_, name):
    root = as_("root")
    root(
        "POST",
        REGISTER,
        json=a_request(
            name="changed",
            version="1.0.0",
        ),
    )
    for method, action in (
        ("POST", "retire"),
        ("POST", "approve"),
        ("GET", "history"),
        ("GET", "diff"),
    ):
        refused = root(method, f"/api/v1/providers/{name}/{action}").json()
        assert refused["msg"] == (
            "VERSION_UNKNOWN: name a version and a device of provider changed: changed:1.0.0@docker"
        )
