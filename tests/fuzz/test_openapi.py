"""The OpenAPI documents: complete, with examples that work, and true about the responses."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest

from adapter.bfia.examples import A_JOB, A_PROVIDER, JOB_HERE, TASK_HERE, UPLOAD
from gateway.identity.keys import Keyring
from tests.conformance.platforms.reports import report_content, signed_report
from tests.e2e.nodes import wait_for
from tests.fuzz.nodes import (
    JSON,
    LISTENERS,
    PARTNER,
    body_examples,
    check_response,
    openapi_document,
    operations,
    post_operations,
    send_example,
    start_node,
)
from tests.inprocess import ME, Node, containers

SUBMIT = "/v1/platform/schedule/job/create_all"

# Codes of paths that refuse every request, or every request about an unknown job.
REFUSAL_CODES = {
    "/v1/interconn/chan/part": "E0000000614",
}

# Reasons of refusal by a new node, where an example needs something that the node lacks.
REFUSAL_REASONS = {
    "/v1/platform/tee/report": "INVALID",  # without a run's token
    "/v1/interconn/schedule/output/metadata": "NOT_AUTHORISED",  # there are no grants
    "/api/v1/models/{model_id}/{version}/deploy": "MODEL_UNKNOWN",
    "/api/v1/models/{model_id}/{version}/undeploy": "MODEL_UNKNOWN",
    "/api/v1/models/{model_id}/{version}/predict": "MODEL_UNKNOWN",
    "/api/v1/models/import": "ARCHIVE_INVALID",
    # the process engine has no digests to pin
    "/api/v1/providers/{provider_name}/approve": "IMAGE_NOT_USABLE",
    "/api/v1/provider-owners/{name}": "PROVIDER_UNKNOWN",
    "/api/v1/applications": "NO_CONTRACT",
    "/api/v1/partner-reports/{node}": "REPORT_SIGNATURE_WRONG",  # the example is not signed
    "/api/v1/tokens": "AUTH_OFF",  # the node requires no tokens
    "/api/v1/invitation/words": "NOT_FOUND",  # the node has no key pair
    "/api/v1/datasets": "STORAGE_UNKNOWN",
    "/v1/interconn/node/update": "SIGNATURE_MISSING",
    "/v1/interconn/dataset/audit/apply": "CONTRACT_UNKNOWN",
    "/v1/interconn/project/audit/apply": "CONTRACT_UNKNOWN",
    "/v1/interconn/flow/audit/apply": "NO_CONTRACT",
    "/v1/interconn/model/audit/apply": "NO_CONTRACT",
}
for action in ("approve", "reject", "suspend", "resume", "rerun", "parameters"):
    REFUSAL_REASONS[f"/api/v1/jobs/{{job_id}}/{action}"] = "JOB_UNKNOWN"
for action in ("approve", "reject", "terminate", "refresh"):
    path = f"/api/v1/applications/{{application}}/{action}"
    REFUSAL_REASONS[path] = "APPLICATION_UNKNOWN"
for subject in ("node/contract", "dataset/audit", "project/audit", "flow/audit", "model/audit"):
    for action in ("confirm", "terminate"):
        REFUSAL_REASONS[f"/v1/interconn/{subject}/{action}"] = "APPLICATION_UNKNOWN"

# The least number of operations, by listener.
MIN_OPERATIONS = {
    "operator": 100,
    "peer": 40,
    "container": 5,
}


@pytest.fixture(scope="module")
def node(shared_world):
    """A node whose tasks run for a while, so that examples find a running job."""
    node = start_node(shared_world, "/bin/sleep", "20")
    yield node
    for job_id in node.job_statuses.jobs():
        if node.store.local_jobs.find(job_id):
            node.participant.stop_job(job_id, "", None, "")


@pytest.fixture(scope="module")
def fate(shared_world):
    """A node that also serves the platform of FATE."""
    return start_node(
        shared_world,
        fate={"enabled": True},
    )


def schema_violations(
    document: dict[str, Any],
    content: dict[str, Any],
    value: Any,
) -> list[str]:
    """Return the violations of a value against a content's schema; empty if it is valid."""
    schema = {**content["schema"], "components": document["components"]}
    errors = jsonschema.Draft202012Validator(schema).iter_errors(value)
    return [f"{error.json_path} {error.message[:200]}" for error in errors]


@pytest.mark.parametrize("listener", LISTENERS)
def test_every_operation_describes_its_request_responses_and_errors(fate, listener):
    document = openapi_document(fate, listener)
    described = list(operations(fate, listener))

    assert len(described) >= MIN_OPERATIONS[listener]
    for method, path, operation in described:
        responses = operation["responses"]
        assert "422" not in responses, "the framework's response, which is never sent"
        assert responses["default"]["content"], f"{method} {path}"
        success = responses.get("200", responses.get("201"))
        for content_type, content in success["content"].items():
            assert has_shape(content["schema"]), f"{method} {path} {content_type}"
            if "example" in content:
                assert not schema_violations(document, content, content["example"]), path


def has_shape(schema: dict[str, Any]) -> bool:
    """Return whether a schema says more about its value than that it is an object or a list."""
    if schema.keys() & {"$ref", "anyOf", "properties"}:
        return True
    return schema["type"] == "string"


@pytest.mark.parametrize(
    ("listener", "method", "path"),
    [
        ("operator", "POST", SUBMIT),
        ("operator", "GET", "/v1/platform/schedule/job/status_all"),
        ("operator", "POST", "/v2/provider/register"),
        ("peer", "POST", "/v1/interconn/schedule/task/poll"),
        ("peer", "POST", "/v1/interconn/chan/invoke"),
    ],
)
def test_a_refusal_with_http_200_is_described(fate, listener, method, path):
    document = openapi_document(fate, listener)
    responses = document["paths"][path][method.lower()]["responses"]
    content = responses["200"]["content"][JSON]

    headers = {"x-source-node-id": PARTNER}
    response = fate.request(
        method,
        path,
        listener=listener,
        headers=headers,
    )

    assert response.status_code == 200
    assert response.json()["code"] not in (0, "E0000000000")
    assert not schema_violations(document, content, response.json())
    assert len(content["schema"]["anyOf"]) == 2  # success and refusal


@pytest.mark.parametrize("listener", LISTENERS)
def test_the_interface_page_loads_nothing_from_other_hosts(fate, listener):
    page = fate.get("/docs", listener=listener)

    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["x-content-type-options"] == "nosniff"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "openapi.json" in page.text
    assert not re.findall(r"(?:https?:)?//[a-z0-9-]+[.][a-z]", page.text), "it names another host"


# ---------------------------------------------------------------- examples


def test_every_example_is_taken_by_a_fresh_node(node):
    job_id = "job-of-a-container"
    container_headers = containers(node, job_id, {"guest": (ME,)})["guest.0"]
    run_id = node.store.local_jobs.get(job_id).runs[0].run_id
    run_token = node.run_tokens.issue(run_id)
    new_ids = {}  # ids made by the node, by the id in the examples

    for listener, path, operation in post_operations(node):
        examples = list(body_examples(operation))
        assert examples, f"{path} has no example"
        target = path
        if path.endswith("platform/schedule/task/callback"):
            target = f"{path}?run={run_token}"
        headers = {}
        if listener == "container":
            headers = container_headers
        for content_type, body in examples:
            example = (
                content_type,
                with_new_ids(body, new_ids),
            )
            response = send_example(
                node,
                listener,
                "POST",
                target,
                operation,
                example,
                headers,
            )
            check_example_response(listener, path, response)
            if path.endswith("interconn/schedule/job/create_all"):
                task, *_ = node.store.jobs.get(JOB_HERE).tasks.values()
                new_ids[TASK_HERE] = task.task_id


def with_new_ids(
    example: Any,
    new_ids: Mapping[str, str],
) -> Any:
    """Return an example with the node's own ids in place of the example's."""
    if not isinstance(example, dict):
        return example
    replaced = {}
    for key, value in example.items():
        replaced[key] = new_ids.get(value, value) if isinstance(value, str) else value
    return replaced


def check_example_response(
    listener: str,
    path: str,
    response: Any,
) -> None:
    """Fail unless an example was processed, or refused for the reason that its path has here."""
    body = check_response(response)
    if path in REFUSAL_REASONS:
        assert body["data"]["reason"] == REFUSAL_REASONS[path]
    elif path.endswith("/tee/uas/verify"):  # the standard has another envelope there
        assert body["result_code"] == "TEE_SERVICE_WITHOUT_KEY"
    elif path.startswith("/api/v1/"):  # real HTTP statuses, no envelope
        assert response.status_code < 300, f"{path}: {body}"
    else:
        assert body["code"] in expected_codes(path), f"{listener} {path}: {body}"


def expected_codes(path: str) -> set[Any]:
    """Return the codes with which a new node may respond to the example of a path."""
    if "/job/parameters" in path:  # its tasks have all begun, or the job does not run yet
        return {400, 409}
    if path in REFUSAL_CODES:
        return {REFUSAL_CODES[path]}
    codes: set[Any] = {0, "E0000000000"}
    if path.endswith(("/job/delete", "/task/clean", "/job/resource/return", "/schedule/job/rerun")):
        codes.add(409)  # the job of another example was stopped and is being cleaned up
    return codes


def test_every_example_of_a_change_in_place_is_taken(node):
    table = {**UPLOAD, "overwrite": True}
    assert node.post("/v2/component/upload", table).json()["code"] == 0
    # A dataset can only be granted to a node with a route.
    route = {"route": {"host": "127.0.0.1", "port": 9}}
    response = node.request(
        "PUT",
        "/api/v1/routes/JG0100002200000020",
        json=route,
    )
    assert response.status_code == 200
    changes = []
    for listener in LISTENERS:
        for method, path, operation in operations(node, listener, "put", "patch"):
            changes.append((method, listener, path, operation))
    changes.sort(key=lambda change: change[0], reverse=True)  # PUT makes what PATCH changes

    for method, listener, path, operation in changes:
        examples = list(body_examples(operation))
        assert examples, f"{path} has no example"
        for example in examples:
            response = send_example(
                node,
                listener,
                method.upper(),
                path,
                operation,
                example,
            )
            if path in REFUSAL_REASONS:
                assert response.json()["data"]["reason"] == REFUSAL_REASONS[path]
            else:
                assert response.status_code == 200, f"{method} {path}: {response.text}"


# ---------------------------------------------------------------- responses


class DescribedNode:
    """A node whose responses are compared with the document of its operators' listener."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.document = openapi_document(node, "operator")
        self.values: dict[str, str] = {}  # parameters in the path, by name
        self.violations: list[str] = []

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        **values: str,
    ) -> Any:
        """Send a request that must succeed; return the response's body.

        ``values`` replace parameters in the path.
        """
        target = path.format(**{**self.values, **values})
        response = self.node.request(
            method,
            target,
            json=body,
        )
        assert response.status_code < 300, f"{path}: {response.text}"
        operation = self.document["paths"][path.partition("?")[0]][method.lower()]
        content_type = response.headers["content-type"].partition(";")[0]
        content = operation["responses"]["200"]["content"][content_type]
        for violation in schema_violations(self.document, content, response.json()):
            self.violations.append(f"{method} {path}: {violation}")
        return response.json()

    def readable_paths(self) -> Iterator[str]:
        """Yield the paths of our own API that return JSON and need no further values."""
        for _, path, operation in operations(self.node, "operator", "get"):
            is_own = path.startswith(("/health/", "/api/v1/"))
            never_ends = path == "/api/v1/events"
            content_types = operation["responses"]["200"]["content"]
            is_json = any("json" in content_type for content_type in content_types)
            parameters = set(re.findall(r"\{(\w+)\}", path))
            if is_own and is_json and not never_ends and parameters <= self.values.keys():
                yield path


def test_responses_match_their_description(fate):
    api = DescribedNode(fate)
    job_id = submit_described_job(api)
    change_everything(api)

    job = api.request("GET", "/api/v1/jobs/{job_id}")
    schemas = api.document["components"]["schemas"]
    assert job.keys() == schemas["Job"]["properties"].keys()
    assert job["runs"][0].keys() <= schemas["Run"]["properties"].keys()
    read_everything(api, job_id)
    remove_everything(api)

    refusal = fate.get("/api/v1/jobs?limit=0").json()
    default = api.document["paths"]["/api/v1/jobs"]["get"]["responses"]["default"]
    api.violations += schema_violations(
        api.document,
        default["content"][JSON],
        refusal,
    )
    assert api.violations == []


DATASET = "/api/v1/datasets/{namespace}/{name}"


def submit_described_job(api: DescribedNode) -> str:
    """Register the examples' provider, upload their table and submit their job; return its id."""
    api.request("POST", "/v2/provider/register", A_PROVIDER)
    api.request("POST", "/v2/component/upload", UPLOAD)
    job_id = str(api.request("POST", SUBMIT, A_JOB)["data"]["job_id"])
    api.values = {
        "job_id": job_id,
        "node": PARTNER,
        "number": "1",
        "provider_name": api.node.registry.query()[0].key,
        "name": UPLOAD["name"],
        "namespace": UPLOAD["namespace"],
    }
    return job_id


def change_everything(api: DescribedNode) -> None:
    """Make a change of every kind, and wait for the end of the job."""
    api.request(
        "PUT",
        DATASET + "/grants/{node}",
        {"reason": "a test"},
    )
    api.request("POST", f"{DATASET}/disable", {})
    api.request("POST", f"{DATASET}/enable", {})
    api.request(
        "PATCH",
        "/api/v1/routes/{node}",
        {"route": {"deadline": 5}},
    )
    api.request("POST", "/api/v1/routes/{node}/test", {})
    api.request("POST", "/api/v1/route-versions/{number}/rollback", {})
    api.request("POST", "/api/v1/providers/{provider_name}/retire", {})
    api.request("POST", "/api/v1/providers/{provider_name}/unretire", {})
    api.request("POST", "/api/v1/jobs/plan", A_JOB)
    api.request("PUT", "/api/v1/templates/{name}", {"job": A_JOB})
    report = signed_report(report_content(PARTNER))
    api.request("PUT", "/api/v1/partner-reports/{node}", report)
    api.request("GET", "/api/v1/events?follow=0")

    def has_ended() -> bool:
        return api.node.job_statuses.status(api.values["job_id"]).outcome is not None

    wait_for(has_ended, 60)


def read_everything(api: DescribedNode, job_id: str) -> None:
    """Read every path that can be read."""
    paths = list(api.readable_paths())
    assert len(paths) > 30
    Keyring(api.node.settings.state_dir).make("ed25519")  # an invitation names the public key
    paths.remove("/api/v1/invitation")
    paths += [
        "/api/v1/invitation?address=http://127.0.0.1:7380",
        "/v2/provider/query",
        "/v1/platform/schedule/job/query_job_list",
        f"/v1/platform/schedule/job/status_all?job_id={job_id}",
    ]
    for path in paths:
        if path.startswith("/api/v1/schemas/"):
            api.request(
                "GET",
                path,
                name="description-1.json",
            )
        else:
            api.request("GET", path)


def remove_everything(api: DescribedNode) -> None:
    """Rerun the job, withdraw the grant and plan a cleaning."""
    api.request("POST", "/api/v1/jobs/{job_id}/rerun", {})
    api.request("DELETE", DATASET + "/grants/{node}")
    api.request("DELETE", "/api/v1/partner-reports/{node}")
    api.request("POST", "/api/v1/gc", {"dry_run": True})
