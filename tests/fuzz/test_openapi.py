"""The interface description: it says what every operation takes and answers, its examples work, and it is true."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest

from adapter.bfia.examples import A_JOB, A_PROVIDER, JOB_HERE, TASK_HERE, UPLOAD
from gateway.bootstrap.node import Gateway
from gateway.identity.keys import Keyring
from tests.e2e.nodes import wait_for
from tests.fuzz.nodes import (
    LISTENERS,
    NEIGHBOUR,
    a_node,
    described,
    examples,
    judged,
    operations,
    posts,
    sent,
)
from tests.inprocess import ME, ask, containers

NOT_SERVED = {
    "/v1/interconn/chan/transport": "E0000000614",
    "/v1/interconn/chan/part": "E0000000614",
}
"""paths that refuse everything, or of jobs that are not known, by a code of their own"""
NOT_HERE = {
    **{
        f"/api/v1/jobs/{{job_id}}/{word}": "JOB_UNKNOWN"
        for word in ("approve", "reject", "suspend", "resume", "rerun", "parameters")
    },
    "/v1/interconn/schedule/output/metadata": "NOT_AUTHORISED",  # nothing is granted to anybody
    "/api/v1/models/{model_id}/{version}/deploy": "MODEL_UNKNOWN",
    "/api/v1/models/{model_id}/{version}/undeploy": "MODEL_UNKNOWN",
    "/api/v1/models/{model_id}/{version}/predict": "MODEL_UNKNOWN",
    "/api/v1/models/import": "ARCHIVE_INVALID",
    "/api/v1/providers/{provider_name}/approve": "IMAGE_NOT_USABLE",  # the process engine pins nothing
    "/api/v1/provider-owners/{name}": "PROVIDER_UNKNOWN",
    "/api/v1/applications": "NO_CONTRACT",
    "/api/v1/invitation/words": "NOT_FOUND",  # the node has no key pair
    "/api/v1/datasets": "STORAGE_UNKNOWN",
    **{
        f"/api/v1/applications/{{application}}/{word}": "APPLICATION_UNKNOWN"
        for word in ("approve", "reject", "terminate", "refresh")
    },
    "/v1/interconn/node/update": "SIGNATURE_MISSING",
    **{
        f"/v1/interconn/{kind}/{word}": "APPLICATION_UNKNOWN"
        for kind in ("node/contract", "dataset/audit", "project/audit", "flow/audit", "model/audit")
        for word in ("confirm", "terminate")
    },
    **{f"/v1/interconn/{kind}/audit/apply": "CONTRACT_UNKNOWN" for kind in ("dataset", "project")},
    **{f"/v1/interconn/{kind}/audit/apply": "NO_CONTRACT" for kind in ("flow", "model")},
}
"""paths that need something first, such as a job, a contract or a storage, and how a fresh node refuses them"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with a_node(tmp_path_factory.mktemp("node"), "/bin/sleep", "20") as gateway:
        yield gateway
        for job_id in gateway.coordinator.jobs(None):
            if gateway.store.local_jobs.find(job_id):
                gateway.participant.stop_job(job_id, "", None, "")


@pytest.fixture(scope="module")
def fate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with a_node(tmp_path_factory.mktemp("node"), "/bin/true", fate={"enabled": True}) as gateway:
        yield gateway


def kept(
    document: dict[str, Any],
    content: dict[str, Any],
    value: Any,
) -> list[str]:
    """Return where a value does not keep to the schema."""
    schema = {**content["schema"], "components": document["components"]}
    return [
        f"{e.json_path} {e.message[:200]}"
        for e in jsonschema.Draft202012Validator(schema).iter_errors(value)
    ]


@pytest.mark.parametrize("listener", LISTENERS)
def test_every_operation_describes_its_request_responses_and_errors(fate, listener):
    document = described(fate, listener)
    told = list(operations(fate, listener))
    assert (
        len(told)
        >= {
            "operator": 100,
            "peer": 40,
            "container": 5,
        }[listener]
    )
    for method, path, operation in told:
        responses = operation["responses"]
        assert "422" not in responses, "that is the framework's way, and not ours"
        assert responses["default"]["content"], f"{method} {path}"
        for kind, content in responses.get("200", responses.get("201"))["content"].items():
            schema = content["schema"]
            named = schema.keys() & {"$ref", "anyOf", "properties"} or schema["type"] == "string"
            assert named, f"{method} {path} does not say what its {kind} holds"
            assert "example" not in content or not kept(document, content, content["example"]), path


@pytest.mark.parametrize(
    ("listener", "method", "path"),
    [
        ("operator", "POST", "/v1/platform/schedule/job/create_all"),
        ("operator", "GET", "/v1/platform/schedule/job/status_all"),
        ("operator", "POST", "/v2/provider/register"),
        ("peer", "POST", "/v1/interconn/schedule/task/poll"),
        ("peer", "POST", "/v1/interconn/chan/invoke"),
    ],
)
def test_a_refusal_with_http_200_is_described(fate, listener, method, path):
    refused = ask(fate, listener, method, path, headers={"x-source-node-id": NEIGHBOUR})
    document = described(fate, listener)
    content = document["paths"][path][method.lower()]["responses"]["200"]["content"][
        "application/json"
    ]
    assert refused.status_code == 200
    assert refused.json()["code"] not in (0, "E0000000000")
    assert not kept(document, content, refused.json())
    assert len(content["schema"]["anyOf"]) == 2


@pytest.mark.parametrize("listener", LISTENERS)
def test_the_interface_page_loads_nothing_from_other_hosts(fate, listener):
    page = ask(fate, listener, "GET", "/docs")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "openapi.json" in page.text
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert not re.findall(r"(?:https?:)?//[a-z0-9-]+[.][a-z]", page.text), "it names another host"


def test_every_example_is_taken_by_a_fresh_node(node):
    made: dict[str, str] = {}
    own = containers(node, "job-of-a-container", {"guest": (ME,)})["guest.0"]
    run = node.run_tokens.issue(node.store.local_jobs.get("job-of-a-container").runs[0].run_id)
    for listener, path, operation in posts(node):
        assert list(examples(operation)), f"{path} shows no example"
        for kind, example in examples(operation):
            if isinstance(
                example, dict
            ):  # ids that the node has made itself in the place of the example's
                example = {
                    k: made.get(v, v) if isinstance(v, str) else v for k, v in example.items()
                }
            at = f"{path}?run={run}" if path.endswith("platform/schedule/task/callback") else path
            more = own if listener == "container" else {}
            answer = sent(node, listener, "POST", at, operation, (kind, example), more)
            body = judged(answer)
            if path in NOT_HERE:
                assert body["data"]["reason"] == NOT_HERE[path]
                continue
            if path.startswith("/api/v1/"):  # real HTTP statuses, no envelope around what was done
                assert answer.status_code < 300, f"{path}: {body}"
                continue
            ending = path.endswith(("/job/delete", "/job/resource/return", "/schedule/job/rerun"))
            if (
                ending and body["code"] == 409
            ):  # another example has stopped the job: it is being tidied up
                continue
            expected = {NOT_SERVED[path]} if path in NOT_SERVED else {0, "E0000000000"}
            if "/job/parameters" in path:  # whose tasks have all begun, or which is not running yet
                expected = {400, 409}
            assert body["code"] in expected, f"{listener} {path}: {body}"
            if path.endswith("interconn/schedule/job/create_all"):
                task, *_ = node.store.jobs.get(JOB_HERE).tasks.values()
                made[TASK_HERE] = task.task_id


def test_every_example_of_a_change_in_place_is_taken(node):
    table = {**UPLOAD, "overwrite": True}
    assert ask(node, "operator", "POST", "/v2/component/upload", json=table).json()["code"] == 0
    partner = {
        "route": {"host": "127.0.0.1", "port": 9}
    }  # a dataset is granted to nodes that have a route
    assert (
        ask(node, "operator", "PUT", "/api/v1/routes/JG0100002200000020", json=partner).status_code
        == 200
    )
    found = [
        (m, name, p, told)
        for name in LISTENERS
        for m, p, told in operations(node, name, "put", "patch")
    ]
    for method, listener, path, operation in sorted(found, key=lambda one: one[0], reverse=True):
        assert list(examples(operation)), f"{path} shows no example"
        for example in examples(operation):
            answer = sent(node, listener, method.upper(), path, operation, example)
            if path in NOT_HERE:
                assert answer.json()["data"]["reason"] == NOT_HERE[path]
            else:
                assert answer.status_code == 200, f"{method} {path}: {answer.text}"


def looked_at(gateway: Gateway, values: Mapping[str, str]) -> Iterator[str]:
    """Yield the paths of our own API that answer with JSON, and need no more in the path than is given here."""
    for _, path, operation in operations(gateway, "operator", "get"):
        ours = (
            path.startswith(("/health/", "/api/v1/")) and path != "/api/v1/events"
        )  # which has no end
        kinds = operation["responses"]["200"]["content"]
        if (
            ours
            and any("json" in kind for kind in kinds)
            and set(re.findall(r"\{(\w+)\}", path)) <= values.keys()
        ):
            yield path


def test_responses_match_their_description(fate):
    document = described(fate, "operator")
    wrong: list[str] = []

    def answered(
        method: str,
        path: str,
        values: dict[str, str],
        **more: Any,
    ) -> Any:
        answer = ask(fate, "operator", method, path.format(**values), **more)
        assert answer.status_code < 300, f"{path}: {answer.text}"
        operation = document["paths"][path.partition("?")[0]][method.lower()]
        kind = answer.headers["content-type"].partition(";")[0]
        content = operation["responses"]["200"]["content"][kind]
        wrong.extend(f"{method} {path}: {text}" for text in kept(document, content, answer.json()))
        return answer.json()

    answered("POST", "/v2/provider/register", {}, json=A_PROVIDER)
    answered("POST", "/v2/component/upload", {}, json=UPLOAD)
    job_id = answered("POST", "/v1/platform/schedule/job/create_all", {}, json=A_JOB)["data"][
        "job_id"
    ]
    provider = fate.registry.query()[0].key
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
    answered("POST", "/api/v1/jobs/plan", values, json=A_JOB)
    answered("PUT", "/api/v1/templates/{name}", values, json={"job": A_JOB})
    answered("GET", "/api/v1/events?follow=0", values)
    wait_for(lambda: fate.coordinator.status(job_id).outcome is not None, 60)
    job, said = answered("GET", "/api/v1/jobs/{job_id}", values), document["components"]["schemas"]
    assert job.keys() == said["Job"]["properties"].keys()
    assert job["runs"][0].keys() <= said["Run"]["properties"].keys()
    seen = list(looked_at(fate, values))
    assert len(seen) > 30
    schedule = "/v1/platform/schedule/job"
    seen += [
        "/v2/provider/query",
        f"{schedule}/query_job_list",
        f"{schedule}/status_all?job_id={job_id}",
    ]
    Keyring(fate.settings.state_dir).make("ed25519")
    seen[seen.index("/api/v1/invitation")] += "?address=http://127.0.0.1:7380"
    for path in seen:
        own = {"name": "description-1.json"} if path.startswith("/api/v1/schemas/") else {}
        answered("GET", path, values | own)
    answered("POST", "/api/v1/jobs/{job_id}/rerun", values, json={})
    answered("DELETE", dataset + "/grants/{node}", values)
    answered("POST", "/api/v1/gc", values, json={"dry_run": True})
    refused = ask(fate, "operator", "GET", "/api/v1/jobs?limit=0")
    default = document["paths"]["/api/v1/jobs"]["get"]["responses"]["default"]
    assert wrong + kept(document, default["content"]["application/json"], refused.json()) == []
