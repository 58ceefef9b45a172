"""Registering, uploading and submitting as users do: what is warned of, what is refused, and where it is wrong."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from adapter.bfia.examples import A_JOB, A_PROVIDER
from gateway.bootstrap.node import Gateway
from gateway.domain.run import Address
from gateway.store import queries
from tests.adapter.bfia.contract import Caller, envelope, paths, refused
from tests.e2e.nodes import example, wait_for
from tests.inprocess import ME, PEER, ask, pair


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    images = {"example:1.0.0": {"command": ["/bin/sleep", "300"]}}
    engine = {"kind": "process", "process": {"images": images}}
    with pair(tmp_path_factory.mktemp("nodes"), engine=engine) as (gateway, partner):
        for each in (gateway, partner):
            assert (
                ask(each, "operator", "POST", "/v2/provider/register", json=A_PROVIDER).json()[
                    "code"
                ]
                == 0
            )
        yield gateway


def job_body(**more: Any) -> dict[str, Any]:
    return copy.deepcopy(A_JOB) | more


def submit(node: Gateway, body: dict[str, Any]) -> Any:
    return Caller(node, "operator", "/v1/platform/schedule", {})("/job/create_all", body)


def at_guest(**parameters: Any) -> dict[str, Any]:
    """Return a job with parameters of its guest."""
    body = job_body()
    alone = {"0": {"echo_1": {"dataset_id": ""}}}
    body["config"]["task_params"] = {"guest": {"0": {"echo_1": parameters}}, "host": alone}
    return body


def test_unknown_keys_and_roles_are_warnings_or_refused(node: Gateway):
    body = job_body(job_id="job-mine", flow="x")
    job_id = envelope(submit(node, body))["data"]["job_id"]
    assert job_id != "job-mine"
    shown = ask(node, "operator", "GET", f"/api/v1/jobs/{job_id}").json()["warnings"]
    assert [w for w in shown if w.startswith("job_id: is ignored")]
    assert [w for w in shown if w.startswith("flow: ") and "did you mean flow_id?" in w]
    assert (
        "did you mean flow_id?"
        in ask(node, "operator", "POST", "/api/v1/jobs/plan", json=body).text
    )
    body["config"]["job_params"] = {"common": {"strict": True}}
    assert paths(submit(node, body)) >= {"job_id", "flow"}
    mistyped = job_body()
    roles = mistyped["config"]["role"]
    roles["hots"] = roles.pop("host")
    found = refused(submit(node, mistyped), 400, "INVALID")["data"]["problems"]
    assert [p["suggestion"] for p in found if p["path"] == "config.role.hots"] == ["host"]


def test_syntax_and_semantic_errors_are_reported_together(
    node: Gateway,
):
    """Required keys, the initiator's role and the flow in one answer, each with what was got."""
    before = queries.statuses(node.store, None)
    body = job_body(flow_id=["x"])
    body["dag"]["components"][0]["input"] = [{"type": "dataset", "key": "nobody.out"}]
    body["config"] |= {"task_params": 7, "initiator": {"role": "arbiter", "node_id": ME}}
    body["config"]["role"]["host"] = [5]
    found = refused(submit(node, body), 400, "INVALID")["data"]["problems"]
    assert {p["path"]: p["got"] for p in found if p["path"] != "flow_id"} == {
        "config.initiator.node_id": ME,
        "dag.components[0].input[0].key": "nobody.out",
        "config.role.host[0]": 5,
        "config.task_params": 7,
    }
    del body["dag"]["components"][0][
        "version"
    ]  # what such a task needs is not told: it cannot be read itself
    body["config"]["initiator"]["role"] = "host"
    assert paths(submit(node, body)) == {
        *("flow_id", "dag.components[0].version", "config.initiator.node_id"),
        *("config.role.host[0]", "config.task_params"),
    }
    assert queries.statuses(node.store, None) == before


def test_a_strict_job_is_refused_with_every_unknown_parameter(node: Gateway):
    body = job_body()
    body["config"]["task_params"] = {"common": {"echo_1": {"unheard": 1, "of": 2}}}
    assert envelope(submit(node, body))["code"] == 0
    body["config"]["job_params"] = {"common": {"strict": True}}
    found = envelope(submit(node, body))
    assert found["code"] != 0 and "echo_1.unheard" in found["msg"] and "echo_1.of" in found["msg"]
    body["config"]["task_params"] = {"common": {"nobody": {}}, "guest": {"7": {}}}
    assert len(paths(submit(node, body))) == 2


@pytest.mark.parametrize("hostile", ["../../x", ".", "a\\b", "a\x00b", "x" * 180])
def test_no_name_of_another_node_becomes_a_path(node: Gateway, hostile: str):
    call = Caller(node, "peer", "/v1/interconn/schedule", {"x-source-node-id": PEER})
    named = job_body(job_id="job-hostile")
    named["dag"]["components"][0]["name"] = hostile
    output = job_body(job_id="job-hostile")
    output["dag"]["components"][0]["output"][0]["key"] = hostile
    role = job_body(job_id="job-hostile")
    role["config"]["role"][hostile] = [ME]
    for body in (job_body(job_id=hostile), named, output, role):
        assert envelope(call("/job/create", body))["code"] == 400
    assert envelope(call("/job/create", job_body(job_id="job-tasks")))["code"] == 0
    start = {
        "job_id": "job-tasks",
        "task_id": hostile,
        "task_name": "echo_1",
    }
    assert envelope(call("/task/start", start))["code"] == 400
    assert node.store.local_jobs.get("job-tasks").runs == ()


def test_the_users_registration_and_what_follows(node: Gateway):
    def call(
        path: str,
        method: str = "POST",
        **body: Any,
    ) -> Any:
        return ask(node, "operator", method, f"/v2/provider/{path}", **body).json()

    body = example("register_unionpay.json")
    said = [call("register", json=body) for _ in range(2)]
    assert said == [
        {"code": 0, "message": "create success"},
        {"code": 0, "message": "update success"},
    ]
    by_query = call("query", "GET", params={"name": "unionpay"})
    assert by_query["data"][0]["components_description"] == body["components_description"]
    assert call("query", "GET", json={"provider_name": "unionpay:2.0.0@docker"}) == by_query
    gone = call("delete", json={"name": "unionpay", "version": "2.0.0"})
    assert gone["code"] == 0 and gone["data"]["deleted"] == 1
    assert call("delete", json={})["code"] == 400


def upload(
    node: Gateway,
    namespace: str,
    name: str,
) -> None:
    form = {
        "namespace": namespace,
        "name": name,
        "meta": json.dumps({"match_id_name": "id"}),
        "overwrite": "true",
    }
    files = {"file": ("t.csv", b"id,x\n1,2\n", "text/csv")}
    answer = ask(node, "operator", "POST", "/v2/component/upload/file", data=form, files=files)
    assert answer.json()["code"] == 0, answer.text


@pytest.mark.parametrize(
    "where",
    [{"dataset_id": "both#forms"}, {"namespace": "both", "name": "forms"}],
    ids=["id", "name"],
)
def test_both_forms_of_a_dataset_resolve_to_the_same_address(node: Gateway, where: dict[str, str]):
    if not node.storage.exists(Address("both", "forms")):
        upload(node, "both", "forms")
    job_id = envelope(submit(node, at_guest(**where)))["data"]["job_id"]
    runs = wait_for(lambda: node.store.local_jobs.get(job_id).runs, 10)
    guest = next(r for r in runs if r.party.role == "guest")
    assert guest.inputs == {"train_data": Address("both", "forms")}
    assert guest.outputs == {"train_data": Address(f"{job_id}-guest-0", f"{guest.task_id}-data0")}


def test_a_format_that_the_input_does_not_list_is_a_warning_naming_both(node: Gateway):
    provider = copy.deepcopy(A_PROVIDER) | {"name": "formats"}
    echo = provider["components_description"]["Echo"] | {"provider": "formats"}
    echo["inputData"][0]["dataFormat"] = ["yaml"]
    provider["components_description"] = {"Echo": echo}
    assert ask(node, "operator", "POST", "/v2/provider/register", json=provider).json()["code"] == 0
    upload(node, "formats", "table")
    body = at_guest(dataset_id="formats#table")
    first = body["dag"]["components"][0] | {"provider": "formats"}
    second = copy.deepcopy(first) | {
        "name": "echo_2",
        "input": [{"type": "dataset", "key": "echo_1.data0"}],
    }
    body["dag"]["components"] = [first, second]
    warnings = node.store.local_jobs.get(envelope(submit(node, body))["data"]["job_id"]).warnings
    assert (
        sum("csv" in w and "yaml" in w for w in warnings) == 2
    )  # the table, and the second for both its parties
