"""The interface description says what every operation answers, with an example; and that is what it answers."""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from adapter.bfia.examples import A_JOB, A_PROVIDER, UPLOAD
from gateway.bootstrap.node import Gateway
from tests.e2e.nodes import wait_for
from tests.fuzz.nodes import LISTENERS, NEIGHBOUR, a_node, described
from tests.inprocess import ask


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with a_node(tmp_path_factory.mktemp("node"), "/bin/true", fate={"enabled": True}) as gateway:
        yield gateway


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, path and description of every operation."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in ("get", "put", "post", "patch", "delete"):
                yield method, path, operation


def schema_of(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "components": document["components"]}


def kept(document: dict[str, Any], content: dict[str, Any], value: Any) -> None:
    """Fail unless a value keeps to the schema and to the names of its fields."""
    jsonschema.Draft202012Validator(schema_of(document, content["schema"])).validate(value)


@pytest.mark.parametrize("listener", LISTENERS)
def test_every_operation_says_what_it_answers_and_how_it_refuses(node: Gateway, listener: str):
    document = described(node, listener)
    told = list(operations(document))
    assert len(told) >= {"operator": 100, "peer": 40, "container": 5}[listener]
    for method, path, operation in told:
        responses = operation["responses"]
        assert "422" not in responses, "that is the framework's way, and not ours"
        assert responses["default"]["content"], f"{method} {path}"
        contents = responses.get("200", responses.get("201"))["content"]
        for kind, content in contents.items():
            schema = content["schema"]
            named = "$ref" in schema or schema.get("properties") or schema["type"] == "string"
            assert named, f"{method} {path} does not say what its {kind} holds"
            if "example" in content:
                kept(document, content, content["example"])


@pytest.mark.parametrize("listener", LISTENERS)
def test_the_page_that_shows_it_needs_nothing_from_elsewhere(node: Gateway, listener: str):
    page = ask(node, listener, "GET", "/docs")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "openapi.json" in page.text and "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.findall(r"(?:https?:)?//[a-z0-9-]+[.][a-z]", page.text), "it names another host"


SEEN = (
    "/health/live",
    "/health/ready",
    "/api/v1/jobs",
    "/api/v1/jobs/{job_id}",
    "/api/v1/jobs/{job_id}/timeline",
    "/api/v1/jobs/{job_id}/outputs",
    "/api/v1/jobs/{job_id}/reports",
    "/api/v1/approvals",
    "/api/v1/gc",
    "/api/v1/drain",
    "/api/v1/settings",
    "/api/v1/engine",
    "/api/v1/orphans",
    "/api/v1/resources",
    "/api/v1/events/webhooks",
    "/api/v1/audit",
    "/api/v1/tokens",
    "/api/v1/routes",
    "/api/v1/routes/{node}",
    "/api/v1/route-versions",
    "/api/v1/route-versions/{number}",
    "/api/v1/providers",
    "/api/v1/providers/{provider_name}",
    "/api/v1/providers/{provider_name}/history",
    "/api/v1/providers/{provider_name}/diff",
    "/api/v1/schemas",
    "/api/v1/schemas/{name}",
    "/api/v1/datasets",
    "/api/v1/datasets/{namespace}/{name}",
    "/api/v1/datasets/{namespace}/{name}/preview",
    "/api/v1/dataset-grants",
    "/api/v1/models",
    "/v2/provider/query",
    "/v1/platform/schedule/job/query_job_list",
    "/v1/platform/schedule/job/status_all?job_id={job_id}",
)
"""paths to look at"""


def test_what_is_answered_is_what_was_said(node: Gateway):
    document = described(node, "operator")
    wrong: list[str] = []

    def answered(method: str, path: str, values: dict[str, str], **more: Any) -> Any:
        answer = ask(node, "operator", method, path.format(**values), **more)
        assert answer.status_code < 300, f"{path}: {answer.text}"
        operation = document["paths"][path.partition("?")[0]][method.lower()]
        kind = answer.headers["content-type"].partition(";")[0]
        content = operation["responses"]["200"]["content"][kind]
        checker = jsonschema.Draft202012Validator(schema_of(document, content["schema"]))
        wrong.extend(
            f"{method} {path}: {e.json_path} {e.message[:200]}" for e in checker.iter_errors(answer.json())
        )
        return answer.json()

    register = A_PROVIDER
    answered("POST", "/v2/provider/register", {}, json=register)
    answered("POST", "/v2/component/upload", {}, json=UPLOAD)
    body = A_JOB
    job_id = answered("POST", "/v1/platform/schedule/job/create_all", {}, json=body)["data"]["job_id"]
    provider = node.registry.query()[0].key
    values = {
        "job_id": job_id,
        "node": NEIGHBOUR,
        "number": "1",
        "provider_name": provider,
        "name": UPLOAD["name"],
        "namespace": UPLOAD["namespace"],
    }
    dataset = "/api/v1/datasets/{namespace}/{name}"
    answered("PUT", dataset + "/grants/{node}", values, json={"reason": "a test"})
    for word in ("disable", "enable"):
        answered("POST", f"{dataset}/{word}", values, json={})
    answered("PATCH", "/api/v1/routes/{node}", values, json={"route": {"deadline": 5}})
    answered("POST", "/api/v1/routes/{node}/test", values, json={})
    answered("POST", "/api/v1/route-versions/{number}/rollback", values, json={})
    for word in ("retire", "unretire"):
        answered("POST", f"/api/v1/providers/{{provider_name}}/{word}", values, json={})
    answered("POST", "/api/v1/jobs/plan", values, json=body)
    answered("GET", "/api/v1/events?follow=0", values)
    wait_for(lambda: node.coordinator.status(job_id).outcome is not None, 60)
    for path in SEEN:
        own = {"name": "description-1.json"} if path.startswith("/api/v1/schemas/") else {}
        answered("GET", path, values | own)
    answered("POST", "/api/v1/jobs/{job_id}/rerun", values, json={})
    answered("DELETE", dataset + "/grants/{node}", values)
    answered("POST", "/api/v1/gc", values, json={"dry_run": True})
    refused = ask(node, "operator", "GET", "/api/v1/jobs?limit=0")
    default = document["paths"]["/api/v1/jobs"]["get"]["responses"]["default"]
    kept(document, default["content"]["application/json"], refused.json())
    assert wrong == []
