"""``/api/v1/providers`` with tokens: whose a name is, what the audit keeps, what is shown of a provider's past."""

from collections.abc import Callable, Iterator
from typing import Any

import fastapi.applications as openapi
import httpx
import pytest

from adapter import body as adapter_body
from gateway.auth import Role
from gateway.bootstrap.node import Gateway
from provider_registry import registry
from tests.aside import watch
from tests.e2e.nodes import wait_for
from tests.inprocess import running, token_of
from tests.registry.builders import a_component_request, a_description, a_request

KEY = "acme:1.0.0@docker"
Send = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("node"), auth={"mode": "on"}) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def as_(node: Gateway) -> Callable[[str], Send]:
    def of(name: str) -> Send:
        role = {"root": Role.ADMIN, "eve": Role.VIEWER}.get(name, Role.VENDOR)
        headers = {"authorization": f"Bearer {token_of(node, role, name)}"}

        def send(method: str, path: str, **kwargs: Any) -> httpx.Response:
            return node.request(method, path, headers=headers, **kwargs)

        return send

    return of


def test_another_vendors_token_is_refused_and_every_change_is_in_the_audit(node, as_):
    ann, bob, root = as_("ann"), as_("bob"), as_("root")
    assert ann("POST", "/v2/provider/register", json=a_request()).json() == {
        "code": 0,
        "message": "create success",
    }
    for path, body in (
        ("/v2/provider/register", a_request(version="2.0.0")),
        ("/v1/platform/schedule/component/register", a_component_request()),
        ("/v2/provider/delete", {"name": "acme"}),
    ):
        answer = bob("POST", path, json=body)
        assert answer.status_code == 200
        assert answer.json()["code"] == 403
        assert answer.json()["data"]["reason"] == "NOT_OWNER"
    for path in ("", f"/{KEY}/retire", f"/{KEY}/unretire", f"/{KEY}/approve"):
        answer = bob("POST", f"/api/v1/providers{path}", json={} if path else a_request())
        assert answer.status_code == 403
        assert answer.json()["data"]["reason"] == "NOT_OWNER"
    assert bob("PUT", "/api/v1/provider-owners/acme", json={"owner": "bob"}).status_code == 403
    changed = ann(
        "POST", "/api/v1/providers?reason=titles", json=a_request(a_description(title="new"))
    )
    assert changed.json()["changes"] == [
        {
            "path": "components_description.Algo.title",
            "before": "Algo",
            "after": "new",
        }
    ]
    assert (
        root("PUT", "/api/v1/provider-owners/acme", json={"owner": "bob"}).json()["before"] == "ann"
    )
    assert (
        bob("POST", f"/api/v1/providers/{KEY}/retire", json={"reason": "mine now"}).status_code
        == 200
    )
    assert ann("POST", "/v2/provider/register", json=a_request()).json()["code"] == 403

    def written() -> dict[tuple[str, Any], Any]:
        return {(e.who, e.detail.get("action")): e.detail for e in node.audit.list() if e.detail}

    wait_for(
        lambda: written().keys() >= {("ann", "updated"), ("bob", "retired"), ("root", None)}, 20
    )
    told = written()
    assert told["ann", "updated"]["changes"] == changed.json()["changes"]
    assert told["bob", "retired"]["changes"] == [
        {
            "path": "retired",
            "before": None,
            "after": True,
        }
    ]
    assert (
        told["root", None].items()
        >= {
            "name": "acme",
            "before": "ann",
            "owner": "bob",
        }.items()
    )


def test_the_schemas_are_served(as_):
    eve = as_("eve")
    names = [s["name"] for s in eve("GET", "/api/v1/schemas").json()["schemas"]]
    assert names == ["description-1.json", "registration.json", "component-registration.json"]
    for name in names:
        answer = eve("GET", f"/api/v1/schemas/{name}")
        assert answer.headers["content-type"] == "application/schema+json"
        assert answer.json()["$schema"].startswith("https://json-schema.org/")
    assert eve("GET", "/api/v1/schemas/none.json").json()["data"]["reason"] == "SCHEMA_UNKNOWN"


def test_the_guard_is_not_fooled_by_a_name_with_signs(as_, tmp_path):
    for name in ("a%2Fb:1@docker", "..", "a:1@docker%00"):
        assert as_("eve")("GET", f"/api/v1/providers/{name}").status_code in (404, 403)


def test_no_large_registration_holds_up_others(node, as_, monkeypatch):
    parsed = watch(monkeypatch, adapter_body, "read_json")
    compared = watch(monkeypatch, registry, "changes")
    body = a_request(a_description(description="d" * 10_000), name="aside")
    for number, path in enumerate(("/v2/provider/register", "/api/v1/providers")):
        body["components_description"] |= {
            f"C{i}": a_description(f"C{i}", description=str(number) * 10_000) for i in range(10)
        }
        assert as_("dora")("POST", path, json=body).json().get("code", 0) == 0
    assert parsed == []
    assert compared
    assert not any(compared)


def test_the_description_of_a_listener_is_made_aside_and_once(node, as_, monkeypatch):
    made = watch(monkeypatch, openapi, "get_openapi")
    first, second = (as_("root")("GET", "/openapi.json").json() for _ in range(2))
    assert first == second
    assert "/api/v1/providers" in first["paths"]
    assert made == [False]


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
        root("POST", "/v2/provider/register", json=a_request(name="several", version=version))
    root("POST", "/api/v1/providers/several:2.0.0@docker/retire", json={})
    for path in ("", "/components/Algo/parameters"):
        assert root("GET", f"/api/v1/providers/{name}{path}").status_code == 200
    assert root("GET", f"/api/v1/providers/{name}").json()["provider_name"] == key


@pytest.mark.parametrize("name", ["changed", "changed:1.0.0", "changed@docker"])
def test_a_change_without_version_or_device_lists_the_existing_ones(as_, name):
    root = as_("root")
    root("POST", "/v2/provider/register", json=a_request(name="changed", version="1.0.0"))
    for method, what in (
        ("POST", "retire"),
        ("POST", "approve"),
        ("GET", "history"),
        ("GET", "diff"),
    ):
        answer = root(method, f"/api/v1/providers/{name}/{what}").json()
        assert (
            answer["msg"]
            == "VERSION_UNKNOWN: name a version and a device of provider changed: changed:1.0.0@docker"
        )
