"""The interface description: every body is described, and every example in it works."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import httpx
import pytest

from adapter.bfia.examples import JOB, JOB_ASKED, JOB_HERE, TASK_HERE, UPLOAD
from gateway.bootstrap.node import Gateway
from tests.fuzz.nodes import LISTENERS, a_node, described, judged
from tests.inprocess import ME, containers
from tests.plain import NO_TLS

ORDER = (
    "/v2/provider/register",
    "/component/register",
    "/v2/component/upload",
    "/platform/schedule/job/create_all",
    "/interconn/schedule/job/create_all",
    "/job/create",
    "/job/start",
    "/task/start",
    "/job/status_all",
    "/task/poll",
    "/platform/schedule/task/callback",
    "/interconn/schedule/task/callback",
    "/chan/push",
    "/chan/invoke",
    "/chan/pop",
    "/chan/peek",
    "/chan/release",
    "/job/suspend",
    "/job/resume",
    "/job/audit_confirm",
    "/job/audit/apply",
    "/job/audit/confirm",
    "/job/audit/terminate",
    "/job/stop_task",
    "/task/stop",
    "/job/stop",
    "/job/stop_all",
    "/schedule/job/rerun",
    "/providers/{provider_name}/retire",
    "/providers/{provider_name}/unretire",
    "/providers/{provider_name}/approve",
    "/v2/provider/delete",
)
"""in which a fresh node takes the examples; a path that is not named comes last"""
MAKE_JOBS = ("/job/create", "/job/create_all", "/job/audit/apply")
NOT_SERVED = {"/v1/interconn/chan/transport": "E0000000614"}
"""paths that refuse everything, by a code of their own"""
NOT_HERE = {
    **{
        f"/api/v1/jobs/{{job_id}}/{word}": "JOB_UNKNOWN"
        for word in ("approve", "reject", "suspend", "resume", "rerun")
    },
    "/v1/interconn/schedule/output/metadata": "NOT_AUTHORISED",  # nothing is granted to anybody
    "/api/v1/models/{model_id}/{version}/deploy": "MODEL_UNKNOWN",
    "/api/v1/models/{model_id}/{version}/undeploy": "MODEL_UNKNOWN",
    "/api/v1/models/import": "ARCHIVE_INVALID",
    "/api/v1/providers/{provider_name}/approve": "IMAGE_NOT_USABLE",  # the process engine pins nothing
    "/api/v1/provider-owners/{name}": "PROVIDER_UNKNOWN",
}
"""paths that need a model or a job by name, and how a fresh node refuses them"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with a_node(tmp_path_factory.mktemp("node"), "/bin/sleep", "20") as gateway:
        yield gateway
        for job_id in gateway.coordinator.jobs(None):
            if gateway.store.local_jobs.find(job_id):
                gateway.participant.stop_job(job_id, "", None, "")


def posts(node: Gateway) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for listener in LISTENERS:
        for path, methods in described(node, listener)["paths"].items():
            if "post" in methods:
                yield listener, path, methods["post"]


def examples(operation: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return (content type, example) of everything that a request body is shown with."""
    for kind, content in operation["requestBody"]["content"].items():
        schema = content["schema"]
        found = [e["value"] for e in content.get("examples", {}).values()]
        found += [part["example"] for part in (content, schema) if "example" in part]
        yield from ((kind, value) for value in found + schema.get("examples", []))


def place(path: str) -> int:
    return next((i for i, end in enumerate(ORDER) if path.endswith(end)), len(ORDER))


def test_every_post_describes_its_body_and_shows_an_example(node: Gateway):
    found = list(posts(node))
    assert len(found) > 20
    for listener, path, operation in found:
        content = operation["requestBody"]["content"]
        assert all(c["schema"] for c in content.values()), f"{listener} {path}"
        assert list(examples(operation)), f"{listener} {path} shows no example"


def test_every_example_is_taken_by_a_fresh_node(node: Gateway):
    made: dict[str, str] = {}
    own = containers(node, "job-of-a-container", {"guest": (ME,)})["guest.0"]
    run = node.run_tokens.issue(node.store.local_jobs.get("job-of-a-container").runs[0].run_id)
    shown = sorted(posts(node), key=lambda found: place(found[1]))
    for listener, path, operation in shown:
        for kind, example in examples(operation):
            more = own if listener == "container" else {}
            at = f"{path}?run={run}" if path.endswith("platform/schedule/task/callback") else path
            answer = sent(node, listener, at, operation, kind, with_ids(example, made), more)
            body = judged(answer)
            if path in NOT_HERE:
                assert body["data"]["reason"] == NOT_HERE[path]
                continue
            if path.startswith("/api/v1/"):  # real HTTP statuses, no envelope around what was done
                assert answer.status_code < 300, f"{path}: {body}"
                continue
            ending = path.endswith(("/job/delete", "/job/resource/return", "/schedule/job/rerun"))
            if ending and body["code"] == 409:  # another example has stopped the job: it is being tidied up
                continue
            if path in NOT_SERVED:
                assert body["code"] == NOT_SERVED[path]
                continue
            assert body["code"] in (0, "E0000000000"), f"{listener} {path}: {body}"
            if path.endswith("interconn/schedule/job/create_all"):
                task, *_ = node.store.jobs.get(JOB_HERE).tasks.values()
                made[TASK_HERE] = task.task_id


def test_every_example_of_a_change_in_place_is_taken(node: Gateway):
    table = {**UPLOAD, "overwrite": True}
    assert asked(node, "operator", "POST", "/v2/component/upload", json=table).json()["code"] == 0
    partner = {"route": {"host": "127.0.0.1", "port": 9}}  # a dataset is granted to nodes that have a route
    assert asked(node, "operator", "PUT", "/api/v1/routes/JG0100002200000020", json=partner).status_code == 200
    found = []
    for listener in LISTENERS:
        for path, methods in described(node, listener)["paths"].items():
            found += [(m, listener, path, methods[m]) for m in ("put", "patch") if m in methods]
    for method, listener, path, operation in sorted(found, key=lambda one: one[0], reverse=True):
        shown = list(examples(operation))
        assert shown, f"{method} {path} shows no example"
        for _, example in shown:
            answer = asked(node, listener, method, filled(path, operation), json=example)
            if path in NOT_HERE:
                assert answer.json()["data"]["reason"] == NOT_HERE[path]
            else:
                assert answer.status_code == 200, f"{method} {path}: {answer.text}"


def with_ids(example: Any, made: dict[str, str]) -> Any:
    """Put the ids that the node has made itself in the place of the example's."""
    if isinstance(example, dict):
        return {k: made.get(v, v) if isinstance(v, str) else v for k, v in example.items()}
    return example


def headers_of(operation: dict[str, Any]) -> dict[str, str]:
    """Return the headers of an operation, as the description shows them."""
    shown = (p for p in operation.get("parameters", ()) if p["in"] == "header")
    return {p["name"]: p["example"] if "example" in p else p["schema"]["examples"][0] for p in shown}


def sent(
    node: Gateway,
    listener: str,
    path: str,
    operation: dict[str, Any],
    kind: str,
    example: Any,
    more: Mapping[str, str] = MappingProxyType({}),
) -> httpx.Response:
    """Send an example with the headers that the description shows beside it, and those that only a run has."""
    headers = headers_of(operation) | more
    request: dict[str, Any] = {"json": example}
    if kind == "multipart/form-data":
        form = dict(example)
        request = {
            "files": {"file": ("table.csv", form.pop("file"))},
            "data": {k: str(v) for k, v in form.items()},
        }
        request["data"]["name"] = "another"  # the same table as in the other way of uploading
    return asked(node, listener, "POST", filled(path, operation), headers=headers, **request)


def filled(path: str, operation: dict[str, Any]) -> str:
    """Return the path with the examples of its parameters, where they have some."""
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path" and (shown := parameter["schema"].get("examples")):
            path = path.replace(f"{{{parameter['name']}}}", str(shown[0]))
    return path


def asked(node: Gateway, listener: str, method: str, path: str, **request: Any) -> httpx.Response:
    url = node.addresses()[listener] + path
    return httpx.request(method, url, timeout=120, trust_env=False, verify=NO_TLS, **request)


def test_the_examples_that_name_a_job_name_one_that_another_example_makes(node: Gateway):
    created = set()
    named = set()
    for _, path, operation in posts(node):
        for _, example in examples(operation):
            if isinstance(example, dict) and "job_id" in example:
                (created if path.endswith(MAKE_JOBS) else named).add(example["job_id"])
    assert named <= created == {JOB, JOB_HERE, JOB_ASKED}
