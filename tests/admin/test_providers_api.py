"""``/api/v1/providers`` with tokens: whose a name is, what the audit keeps, what is shown of a provider's past."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastapi.applications as openapi
import httpx
import pytest

from adapter import body as adapter_body
from gateway.auth import Role, new_token
from gateway.bootstrap.node import Gateway
from provider_registry import registry
from tests.aside import watch
from tests.e2e.nodes import wait_for
from tests.inprocess import ask, running
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
        text, token = new_token(name, role, datetime.now(UTC))
        node.tokens.add(token)
        headers = {"authorization": f"Bearer {text}"}
        return lambda method, path, **more: ask(node, "operator", method, path, headers=headers, **more)

    return of


def test_another_vendors_token_is_refused_and_every_change_is_in_the_audit(
    node: Gateway, as_: Callable[[str], Send]
):
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
        assert (answer.status_code, answer.json()["code"]) == (200, 403)
        assert answer.json()["data"]["reason"] == "NOT_OWNER"
    for path in ("", f"/{KEY}/retire", f"/{KEY}/unretire", f"/{KEY}/approve"):
        answer = bob("POST", f"/api/v1/providers{path}", json={} if path else a_request())
        assert (answer.status_code, answer.json()["data"]["reason"]) == (403, "NOT_OWNER")
    assert bob("PUT", "/api/v1/provider-owners/acme", json={"owner": "bob"}).status_code == 403
    changed = ann("POST", "/api/v1/providers?reason=titles", json=a_request(a_description(title="new")))
    assert changed.json()["changes"] == [
        {"path": "components_description.Algo.title", "before": "Algo", "after": "new"}
    ]
    assert root("PUT", "/api/v1/provider-owners/acme", json={"owner": "bob"}).json()["before"] == "ann"
    assert bob("POST", f"/api/v1/providers/{KEY}/retire", json={"reason": "mine now"}).status_code == 200
    assert ann("POST", "/v2/provider/register", json=a_request()).json()["code"] == 403

    def written() -> dict[tuple[str, Any], Any]:
        return {(e.who, e.detail.get("action")): e.detail for e in node.audit.list() if e.detail}

    wait_for(lambda: written().keys() >= {("ann", "updated"), ("bob", "retired"), ("root", None)}, 20)
    told = written()
    assert told["ann", "updated"]["changes"] == changed.json()["changes"]
    assert told["bob", "retired"]["changes"] == [{"path": "retired", "before": None, "after": True}]
    assert told["root", None].items() >= {"name": "acme", "before": "ann", "owner": "bob"}.items()


def test_providers_are_listed_by_filters_and_shown_with_their_past(as_: Callable[[str], Send]):
    carl, eve = as_("carl"), as_("eve")
    for version, component in (("1", "A"), ("2", "B")):
        body = a_request(a_description(component), name="carls", version=version)
        assert carl("POST", "/v2/provider/register", json=body).json()["code"] == 0
    carl("POST", "/api/v1/providers/carls:1@docker/retire", json={"reason": "old"})

    def listed(**query: str) -> list[str]:
        found = eve("GET", "/api/v1/providers", params=query).json()["providers"]
        return [p["provider_name"] for p in found]

    assert listed(owner="carl") == listed(name="carls") == ["carls:1@docker", "carls:2@docker"]
    assert listed(component="B") == listed(provider_name="carls:2") == ["carls:2@docker"]
    assert listed(name="carls", retired="true") == ["carls:1@docker"]
    assert listed(image="no") == []
    shown = eve("GET", "/api/v1/providers/carls:1@docker").json()
    assert (shown["owner"], shown["revision"], shown["retired"], shown["jobs"]) == ("carl", 2, True, [])
    past = eve("GET", "/api/v1/providers/carls:1@docker/history?limit=1").json()["history"]
    assert [(r["author"], r["action"], r["reason"]) for r in past] == [("carl", "retired", "old")]
    difference: Any = eve("GET", "/api/v1/providers/carls:1@docker/diff").json()
    assert (difference["since"], difference["until"], difference["diff"]) == (1, 2, "+ retired: true")
    for path in (
        "nobody:1@docker",
        "nobody:1@docker/history",
        "nobody:1@docker/diff",
        "carls:1@docker/diff?until=9",
    ):
        assert eve("GET", f"/api/v1/providers/{path}").status_code == 404


def test_the_schemas_are_served(as_: Callable[[str], Send]):
    eve = as_("eve")
    names = [s["name"] for s in eve("GET", "/api/v1/schemas").json()["schemas"]]
    assert names == ["description-1.json", "registration.json", "component-registration.json"]
    for name in names:
        answer = eve("GET", f"/api/v1/schemas/{name}")
        assert answer.headers["content-type"] == "application/schema+json"
        assert answer.json()["$schema"].startswith("https://json-schema.org/")
    assert eve("GET", "/api/v1/schemas/none.json").json()["data"]["reason"] == "SCHEMA_UNKNOWN"


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 70_000, b"[1]", b"\xff", b'{"imageUrl": NaN}', b"9" * 5000])
def test_what_is_no_registration_is_refused_in_words(as_: Callable[[str], Send], body: bytes):
    answer = as_("dora")("POST", "/api/v1/providers", content=body)
    assert answer.status_code == 400 and answer.json()["data"]["problems"]


def test_a_large_description_is_read_as_a_small_one_is(node: Gateway, as_: Callable[[str], Send]):
    body = a_request(a_description(description="d" * 10_000), name="large")
    body["components_description"] |= {
        f"C{i}": a_description(f"C{i}", description="d" * 10_000, title=3 if i == 7 else "t") for i in range(10)
    }
    dora = as_("dora")
    refused = dora("POST", "/v2/provider/register", json=body).json()
    assert [p["path"] for p in refused["data"]["problems"]] == ["components_description.C7.title"]
    body["components_description"].pop("C7")
    assert dora("POST", "/v2/provider/register", json=body).json()["code"] == 0
    assert dora("POST", "/api/v1/providers", json=body).json()["changes"] == []
    assert len(node.registry.get("large:1.0.0@docker").components) == 10


def test_no_large_registration_holds_up_others(
    node: Gateway, as_: Callable[[str], Send], monkeypatch: pytest.MonkeyPatch
):
    parsed = watch(monkeypatch, adapter_body, "read_json")
    compared = watch(monkeypatch, registry, "changes")
    body = a_request(a_description(description="d" * 10_000), name="aside")
    for number, path in enumerate(("/v2/provider/register", "/api/v1/providers")):
        body["components_description"] |= {
            f"C{i}": a_description(f"C{i}", description=str(number) * 10_000) for i in range(10)
        }
        assert as_("dora")("POST", path, json=body).json().get("code", 0) == 0
    assert parsed == [] and compared and not any(compared)


def test_the_description_of_a_listener_is_made_aside_and_once(
    node: Gateway, as_: Callable[[str], Send], monkeypatch: pytest.MonkeyPatch
):
    made = watch(monkeypatch, openapi, "get_openapi")
    first, second = (as_("root")("GET", "/openapi.json").json() for _ in range(2))
    assert first == second and "/api/v1/providers" in first["paths"]
    assert made == [False]


def test_the_samples_last_commas_are_a_warning(as_: Callable[[str], Send]):
    text = json.dumps(a_request(name="commas"))[:-1] + ",}"
    assert as_("dora")("POST", "/v2/provider/register", content=text).json() == {
        "code": 0,
        "message": "create success",
    }
    shown = as_("dora")("GET", "/api/v1/providers/commas:1.0.0@docker").json()
    assert any("has a comma before a closing bracket" in w["rule"] for w in shown["warnings"])
    for content, says in (('{"name": ,}', "must be JSON"), ('{"name": "a", "name": "b",}', "name: duplicate key")):
        wrong = as_("dora")("POST", "/v2/provider/register", content=content).json()
        assert wrong["code"] == 400 and says in wrong["message"]
    for much in ("", " " * 70_000):
        wrong = as_("dora")("POST", "/api/v1/providers", content='{"name": "a", "name": "b",' + much + "}").json()
        assert wrong["code"] == 400 and "duplicate key" in str(wrong)


def test_the_guard_is_not_fooled_by_a_name_with_signs(as_: Callable[[str], Send], tmp_path: Path):
    for name in ("a%2Fb:1@docker", "..", "a:1@docker%00"):
        assert as_("eve")("GET", f"/api/v1/providers/{name}").status_code in (404, 403)
