"""One case per endpoint: request, reply, each error, each accepted deviation; always in the envelope."""

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from adapter.bfia.examples import A_COMPONENT, A_JOB, A_PROVIDER
from gateway.bootstrap.node import Gateway
from gateway.domain.run import Address
from tests.e2e.nodes import example, wait_for
from tests.inprocess import ME, PEER, STRANGER, ask, pair

CONTROL = "/v1/interconn/schedule"
PLATFORM = "/v1/platform/schedule"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    images = {"example:1.0.0": {"command": ["/bin/sleep", "300"]}}
    engine = {"kind": "process", "process": {"images": images}}
    with pair(tmp_path_factory.mktemp("nodes"), engine=engine) as (gateway, partner):
        for each in (gateway, partner):
            body = copy.deepcopy(A_PROVIDER)
            assert ask(each, "operator", "POST", "/v2/provider/register", json=body).json()["code"] == 0
        yield gateway


def job_body(**more: Any) -> dict[str, Any]:
    return copy.deepcopy(A_JOB) | more


def submit(node: Gateway, hosts: Sequence[str] = (ME,), **headers: str) -> str:
    body = job_body()
    body["config"]["role"]["host"] = list(hosts)
    answer = ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", json=body, headers=headers)
    assert answer.json()["code"] == 0, answer.text
    return str(answer.json()["data"]["job_id"])


def envelope(answer: Any) -> dict[str, Any]:
    body = answer.json()
    assert set(body) == {"code", "msg", "data"}, body
    assert isinstance(body["code"], int) and isinstance(body["msg"], str) and isinstance(body["data"], dict)
    return dict(body)


def refused(answer: Any, reason: str) -> dict[str, Any]:
    body = envelope(answer)
    assert answer.status_code == 200
    assert body["code"] != 0 and body["data"]["reason"] == reason, body
    return body


def peer(node: Gateway, path: str, body: Any, sender: str = PEER, **headers: str) -> Any:
    return ask(node, "peer", "POST", CONTROL + path, json=body, headers={"x-source-node-id": sender} | headers)


# ---------------------------------------------------------------- platform


def test_create_all_answers_in_exactly_the_users_shape(node: Gateway):
    for path in (f"{PLATFORM}/job/create_all", "/v2/schedule/job/create_all"):
        answer = ask(node, "operator", "POST", path, json=job_body())
        body = envelope(answer)
        assert answer.status_code == 200
        assert body["code"] == 0 and body["msg"] == "success"
        assert list(body["data"]) == ["job_id"]
        assert body["data"]["job_id"].startswith("job-") and len(body["data"]["job_id"]) == 36


def test_keys_and_roles_that_nobody_knows_are_warned_of_or_refused(node: Gateway):
    create = f"{PLATFORM}/job/create_all"
    body = job_body(job_id="job-mine", flow="x")
    answer = envelope(ask(node, "operator", "POST", create, json=body))
    assert list(answer["data"]) == ["job_id"] and answer["data"]["job_id"] != "job-mine"
    shown = ask(node, "operator", "GET", f"/api/v1/jobs/{answer['data']['job_id']}").json()["warnings"]
    assert [w for w in shown if w.startswith("job_id: is ignored")]
    assert [w for w in shown if w.startswith("flow: ") and "did you mean flow_id?" in w]
    planned = ask(node, "operator", "POST", "/api/v1/jobs/plan", json=body).json()
    assert "did you mean flow_id?" in json.dumps(planned)
    body["config"]["job_params"] = {"common": {"strict": True}}
    found = refused(ask(node, "operator", "POST", create, json=body), "INVALID")
    assert {p["path"] for p in found["data"]["problems"]} >= {"job_id", "flow"}
    mistyped = job_body()
    roles = mistyped["config"]["role"]
    roles["hots"] = roles.pop("host")
    found = refused(ask(node, "operator", "POST", create, json=mistyped), "INVALID")
    (problem,) = (p for p in found["data"]["problems"] if p["path"] == "config.role.hots")
    assert problem["suggestion"] == "host"


def test_create_all_names_every_problem_with_its_path(node: Gateway):
    body = job_body()
    body["dag"]["components"][0]["name"] = 5
    del body["dag"]["components"][0]["version"]
    body["config"]["role"] = {"guest": "A"}
    del body["config"]["initiator"]
    found = refused(ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", json=body), "INVALID")
    assert {p["path"] for p in found["data"]["problems"]} == {
        "dag.components[0].name",
        "dag.components[0].version",
        "config.role.guest",
        "config.initiator",
    }


def test_fields_that_cannot_be_read_hide_no_mistake_of_meaning_and_nothing_is_stored(node: Gateway):
    """Required keys, the initiator's role and the flow in one answer, each with what was got."""
    before = [one.job_id for one in node.store.jobs.list()]
    body = job_body()
    body["config"]["initiator"]["role"] = "arbiter"
    body["dag"]["components"][0]["input"] = [{"type": "dataset", "key": "nobody.out"}]
    body["config"]["role"]["host"] = [5]
    body["config"]["task_params"] = 7
    body["flow_id"] = ["x"]
    found = refused(ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", json=body), "INVALID")
    problems = {p["path"]: (p["rule"], p["got"]) for p in found["data"]["problems"]}
    assert problems.pop("flow_id")[0] == "must be text"
    assert problems == {
        "config.initiator.node_id": ("must be listed under config.role.arbiter", ME),
        "dag.components[0].input[0].key": (
            "echo_1 needs the output of a task that is not in the flow",
            "nobody.out",
        ),
        "config.role.host[0]": ("must be text", 5),
        "config.task_params": ("must be an object (name: value)", 7),
    }
    del body["dag"]["components"][0]["version"]  # what such a task needs is not told: it cannot be read itself
    body["config"]["initiator"]["role"] = "host"
    found = refused(ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", json=body), "INVALID")
    paths = {p["path"] for p in found["data"]["problems"]}
    assert "dag.components[0].version" in paths and "dag.components[0].input[0].key" not in paths
    assert "config.initiator.node_id" in paths
    assert [one.job_id for one in node.store.jobs.list()] == before


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000])
def test_a_body_that_is_no_job_is_refused(node: Gateway, raw: bytes):
    headers = {"content-type": "application/json"}
    answer = ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", content=raw, headers=headers)
    body = envelope(answer)
    assert answer.status_code == 200 and body["code"] == 400


def test_a_body_without_a_content_type_is_read(node: Gateway):
    raw = json.dumps(job_body()).encode()
    assert envelope(ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", content=raw))["code"] == 0


def test_null_flow_id_and_the_second_spellings_are_read(node: Gateway):
    body = job_body(flow_id=None, old_job_id=None, unknown="kept out")
    component = body["dag"]["components"][0]
    component["inputData"] = component.pop("input")
    component["outputData"] = component.pop("output")
    component["module_name"] = component.pop("componentName")
    component["code"] = component.pop("provider")
    body["config"]["initiator"]["nodeId"] = body["config"]["initiator"].pop("node_id")
    assert envelope(ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", json=body))["code"] == 0


def test_an_unknown_component_is_refused_and_the_job_is_rejected(node: Gateway):
    body = job_body(flow_id="unknown-component")
    body["dag"]["components"][0]["componentName"] = "Nothing"
    found = envelope(ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", json=body))
    assert found["code"] != 0 and "COMPONENT_UNKNOWN" in found["msg"]
    listed = ask(
        node, "operator", "GET", f"{PLATFORM}/job/query_job_list", params={"flow_id": "unknown-component"}
    )
    assert set(envelope(listed)["data"]["job_list"].values()) == {"REJECTED"}


def test_a_strict_job_is_refused_for_unknown_parameters_and_tells_each(node: Gateway):
    body = job_body(flow_id="strict")
    body["config"]["task_params"] = {"common": {"echo_1": {"unheard": 1, "of": 2}}}
    assert envelope(ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", json=body))["code"] == 0
    body["config"]["job_params"] = {"common": {"strict": True}}
    found = envelope(ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", json=body))
    assert found["code"] != 0 and "echo_1.unheard" in found["msg"] and "echo_1.of" in found["msg"]
    body["config"]["task_params"] = {"common": {"nobody": {}}, "guest": {"7": {}}}
    refused_ = refused(ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", json=body), "INVALID")
    assert len(refused_["data"]["problems"]) == 2


def test_status_all_in_all_spellings(node: Gateway):
    job_id = submit(node)
    path = f"{PLATFORM}/job/status_all"
    by_query = ask(node, "operator", "GET", path, params={"job_id": job_id})
    by_body = ask(node, "operator", "GET", path, json={"job_id": job_id})
    by_post = ask(node, "operator", "POST", path, json={"job_id": job_id})
    alias = ask(node, "operator", "GET", "/v2/schedule/job/status_all", params={"job_id": job_id})
    shown = [envelope(a)["data"] for a in (by_query, by_body, by_post, alias)]
    assert all(s["job_id"] == job_id and s["job_status"] in ("READY", "RUNNING") for s in shown)
    assert all(len(s["status"]) == 1 and next(iter(s["status"])).startswith("task_") for s in shown)


def test_status_of_an_unknown_job_and_without_an_id(node: Gateway):
    path = f"{PLATFORM}/job/status_all"
    refused(ask(node, "operator", "GET", path, params={"job_id": "job-none"}), "JOB_UNKNOWN")
    refused(ask(node, "operator", "GET", path), "INVALID")
    refused(ask(node, "operator", "GET", path, json={"job_id": 5}), "INVALID")


def test_query_job_list_with_and_without_a_flow(node: Gateway):
    job_id = submit(node)
    path = f"{PLATFORM}/job/query_job_list"
    assert job_id in envelope(ask(node, "operator", "GET", path))["data"]["job_list"]
    mine = ask(node, "operator", "GET", path, json={"flow_id": "my-flow"})
    assert job_id in envelope(mine)["data"]["job_list"]
    other = ask(node, "operator", "GET", path, params={"flow_id": "no such flow"})
    assert envelope(other)["data"]["job_list"] == {}


# ---------------------------------------------------------------- containers


def test_the_callback_of_a_container(node: Gateway):
    job_id = submit(node)
    run = wait_for(lambda: next((r for r in node.store.local_jobs.get(job_id).runs), None), 10)
    wait_for(lambda: str(node.store.local_jobs.get(job_id).runs[0].status) == "RUNNING", 10)
    path = f"{PLATFORM}/task/callback"
    with_token = f"{path}?run={node.run_tokens.issue(run.run_id)}"
    for body in (
        {"task_id": run.task_id, "status": "READY", "role": "guest"},
        {"task_id": run.task_id, "status": "done", "role": "guest"},
        {"status": "SUCCESS"},
    ):
        assert envelope(ask(node, "container", "POST", path, json=body))["code"] == 400
    refused(ask(node, "container", "POST", f"{path}?run=nobody", json={"status": "SUCCESS"}), "RUN_UNKNOWN")
    refused(
        ask(node, "container", "POST", path, json={"task_id": "task_none", "status": "SUCCESS", "role": "guest"}),
        "TASK_UNKNOWN",
    )
    for role in ("guest", "guest.0"):  # without the token: processes have no address of their own
        said = {"task_id": run.task_id, "status": "RUNNING", "role": role}
        refused(ask(node, "container", "POST", path, json=said), "NOT_AUTHORISED")
    said = {"status": "FAILED", "result_code": "00000000"}
    assert envelope(ask(node, "container", "POST", with_token, json=said))["code"] == 0
    wait_for(lambda: str(node.store.jobs.get(job_id).status) == "FINISHED", 20)
    failure = node.store.jobs.get(job_id).ending.failure
    assert failure.reason == "REPORTED_FAILED" and "ok" in failure.message  # the vendor's own text for its code
    assert envelope(ask(node, "container", "POST", with_token, json=said))["code"] == 0  # late


# ---------------------------------------------------------------- between nodes


def created(node: Gateway, job_id: str) -> None:
    assert envelope(peer(node, "/job/create", job_body(job_id=job_id)))["code"] == 0


def test_create_is_the_same_when_repeated_and_a_conflict_with_another_body(node: Gateway):
    created(node, "job-twice")
    created(node, "job-twice")
    other = job_body(job_id="job-twice", flow_id="another")
    refused(peer(node, "/job/create", other), "JOB_ID_CONFLICT")


def test_create_refuses_a_job_of_other_nodes_and_an_unknown_sender(node: Gateway):
    body = job_body(job_id="job-foreign")
    body["config"]["role"] = {"guest": [STRANGER], "host": [STRANGER]}
    refused(peer(node, "/job/create", body), "NOT_A_PARTY")
    refused(peer(node, "/job/create", job_body(job_id="job-x"), sender=STRANGER), "NOT_AUTHORISED")
    refused(peer(node, "/job/start", {"job_id": "job-foreign"}), "JOB_UNKNOWN")


@pytest.mark.parametrize("hostile", ["../../x", "a/b", "..", ".", "a\\b", "a\x00b", " a", "x" * 90])
def test_no_name_of_another_node_becomes_a_path(node: Gateway, hostile: str):
    assert envelope(peer(node, "/job/create", job_body(job_id=hostile)))["code"] == 400
    for change in ("name", "key"):
        body = job_body(job_id="job-hostile")
        component = body["dag"]["components"][0]
        (component if change == "name" else component["output"][0])[change] = hostile * (
            2 if hostile[0] == "x" else 1
        )
        assert envelope(peer(node, "/job/create", body))["code"] == 400
    body = job_body(job_id="job-hostile")
    body["config"]["role"][hostile] = [ME]
    assert envelope(peer(node, "/job/create", body))["code"] == 400
    created(node, "job-tasks")
    start = {"job_id": "job-tasks", "task_id": hostile, "task_name": "echo_1"}
    assert envelope(peer(node, "/task/start", start))["code"] == 400
    assert node.store.local_jobs.get("job-tasks").runs == ()


def test_the_sender_is_read_in_every_spelling(node: Gateway):
    for header in ("x-source-node-id", "x_source_node_id", "x-node-id", "x_node_id", "X-Node-Id"):
        answer = ask(
            node, "peer", "POST", f"{CONTROL}/job/start", json={"job_id": "j"}, headers={header: STRANGER}
        )
        refused(answer, "NOT_AUTHORISED")
    nobody = ask(node, "peer", "POST", f"{CONTROL}/job/start", json={"job_id": "j"})
    refused(nobody, "NOT_AUTHORISED")


def test_start_poll_and_stop(node: Gateway):
    created(node, "job-run")
    refused(peer(node, "/task/poll", {"task_id": "task_run", "role": ""}), "TASK_UNKNOWN")
    assert envelope(peer(node, "/job/start", {"job_id": "job-run"}))["data"] == {}
    start = {"job_id": "job-run", "task_id": "task_run", "task_name": "echo_1"}
    for _ in range(3):
        assert envelope(peer(node, "/task/start", start))["code"] == 0
    assert len(node.store.local_jobs.get("job-run").runs) == 2  # guest and host, each once
    refused(peer(node, "/task/start", start | {"task_id": "task_other"}), "TASK_ID_CONFLICT")
    refused(peer(node, "/task/start", start | {"task_id": "t2", "task_name": "nothing"}), "TASK_UNKNOWN")
    created(node, "job-other")
    refused(peer(node, "/task/start", start | {"job_id": "job-other"}), "TASK_ID_CONFLICT")
    for role in ("", "guest", "guest.0", "host"):
        status = envelope(peer(node, "/task/poll", {"task_id": "task_run", "role": role}))["data"]["status"]
        assert status in ("READY", "RUNNING")
    refused(peer(node, "/task/poll", {"task_id": "task_run", "role": "arbiter"}), "ROLE_UNKNOWN")
    for _ in range(2):
        assert envelope(peer(node, "/job/stop", {"job_id": "job-run"}))["code"] == 0
    wait_for(
        lambda: (
            envelope(peer(node, "/task/poll", {"task_id": "task_run", "role": ""}))["data"]["status"] == "FAILED"
        ),
        15,
    )
    refused(peer(node, "/task/start", start | {"task_id": "late"}), "JOB_ENDED")
    refused(peer(node, "/job/start", {"job_id": "job-run"}), "JOB_ENDED")


def test_stop_of_a_task_that_never_started_or_is_unknown(node: Gateway):
    created(node, "job-stop")
    assert envelope(peer(node, "/job/stop", {"job_id": "job-stop", "task_name": "echo_1"}))["code"] == 0
    refused(peer(node, "/job/stop", {"job_id": "job-stop", "task_name": "nothing"}), "TASK_UNKNOWN")
    assert envelope(peer(node, "/job/stop", {"job_id": "job-stop", "task_name": None}))["code"] == 0
    refused(peer(node, "/job/stop", {"job_id": "job-none"}), "JOB_UNKNOWN")


def test_create_all_between_nodes_schedules_here(node: Gateway):
    body = job_body(job_id="job-handed")
    body["config"] |= {"initiator": {"role": "guest", "node_id": PEER}, "role": {"guest": [PEER], "host": [ME]}}
    for _ in range(2):
        assert envelope(peer(node, "/job/create_all", body))["code"] == 0
    assert node.store.jobs.get("job-handed").spec.scheduler == ME
    refused(peer(node, "/job/create_all", body | {"flow_id": "other"}), "JOB_ID_CONFLICT")
    status = peer(node, "/job/status_all?job_id=job-handed", {})
    assert envelope(status)["data"]["job_status"] in ("READY", "RUNNING")
    mine = {"x-source-node-id": PEER}
    get = ask(node, "peer", "GET", f"{CONTROL}/job/status_all", json={"job_id": "job-handed"}, headers=mine)
    assert envelope(get)["data"]["job_status"] in ("READY", "RUNNING")


def test_a_report_between_nodes(node: Gateway):
    job_id = submit(node, [PEER])
    task = wait_for(lambda: next(iter(node.store.jobs.get(job_id).tasks.values())), 5)
    wait_for(lambda: str(node.store.jobs.get(job_id).status) == "RUNNING", 10)
    refused(
        peer(node, "/task/callback", {"task_id": "none", "status": "SUCCESS", "role": "guest"}), "TASK_UNKNOWN"
    )
    refused(
        peer(node, "/task/callback", {"task_id": task.task_id, "status": "WON", "role": "g"}), "STATUS_UNKNOWN"
    )
    said = {"task_id": task.task_id, "status": "FAILED", "role": "host.0"}
    assert envelope(peer(node, "/task/callback", said))["code"] == 0
    wait_for(lambda: str(node.store.jobs.get(job_id).status) == "FINISHED", 20)
    assert node.store.jobs.get(job_id).ending.failure.role == "host"


# ---------------------------------------------------------------- everything else


def test_404_405_and_413_are_in_the_envelope_with_their_status(node: Gateway):
    for listener in ("peer", "container", "operator"):
        missing = ask(node, listener, "GET", "/v1/no/such/path")
        assert missing.status_code == 404 and envelope(missing)["data"]["reason"] == "PATH_UNKNOWN"
    wrong = ask(node, "peer", "GET", f"{CONTROL}/job/create")
    assert wrong.status_code == 405 and envelope(wrong)["code"] == 405
    large = ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", content=b" " * (33 << 20))
    assert large.status_code == 413 and envelope(large)["code"] == 413


@pytest.mark.parametrize(
    ("listener", "path"),
    [
        ("operator", f"{CONTROL}/job/create"),
        ("peer", f"{PLATFORM}/job/create_all"),
        ("container", f"{PLATFORM}/job/create_all"),
        ("peer", f"{PLATFORM}/task/callback"),
        ("operator", f"{PLATFORM}/task/callback"),
        ("peer", "/v1/interconn/chan/push"),
        ("operator", "/v1/interconn/chan/invoke"),
        ("container", "/v1/interconn/chan/invoke"),
        ("peer", "/v2/provider/register"),
    ],
)
def test_a_path_on_the_wrong_listener_is_not_there(node: Gateway, listener: str, path: str):
    assert ask(node, listener, "POST", path, json={}).status_code == 404


def test_the_users_registration_and_what_follows(node: Gateway):
    body = example("register_unionpay.json")
    said = [ask(node, "operator", "POST", "/v2/provider/register", json=body).json() for _ in range(2)]
    assert said == [{"code": 0, "message": "create success"}, {"code": 0, "message": "update success"}]
    by_get = ask(node, "operator", "GET", "/v2/provider/query", params={"name": "unionpay"}).json()
    assert by_get["data"][0]["components_description"] == body["components_description"]
    by_body = ask(
        node, "operator", "GET", "/v2/provider/query", json={"provider_name": "unionpay:2.0.0@docker"}
    ).json()
    assert by_body == by_get
    gone = ask(
        node, "operator", "POST", "/v2/provider/delete", json={"name": "unionpay", "version": "2.0.0"}
    ).json()
    assert gone["code"] == 0 and gone["data"]["deleted"] == 1
    assert ask(node, "operator", "POST", "/v2/provider/delete", json={}).json()["code"] == 400


def test_a_broken_registration_stores_nothing(node: Gateway):
    body = copy.deepcopy(A_PROVIDER) | {"name": "broken"}
    body["components_description"]["Echo"]["roleList"] = "guest"
    body["components_description"]["Echo"]["inputParam"] = [{"name": 1}]
    answer = ask(node, "operator", "POST", "/v2/provider/register", json=body).json()
    assert answer["code"] == 400 and answer["message"]
    paths = {p["path"] for p in answer["data"]["problems"]}
    assert any("roleList" in p for p in paths) and any("inputParam[0]" in p for p in paths)
    assert ask(node, "operator", "GET", "/v2/provider/query", params={"name": "broken"}).json()["data"] == []


def test_the_standards_registration_registers_the_same_thing(node: Gateway):
    body = copy.deepcopy(A_COMPONENT)
    body["component_info"] |= {"provider": "byspec"}
    answer = ask(node, "operator", "POST", f"{PLATFORM}/component/register", json=body)
    assert envelope(answer)["code"] == 0
    found = ask(node, "operator", "GET", "/v2/provider/query", params={"name": "byspec"}).json()["data"][0]
    assert found["metadata"]["image"] == "example:1.0.0" and list(found["components_description"]) == ["Echo"]


def test_health_tells_what_is_usable(node: Gateway):
    ready = ask(node, "operator", "GET", "/health/ready")
    assert ready.status_code == 200 and ready.json()["ready"]
    assert ask(node, "operator", "GET", "/health/live").json() == {"status": "ok"}
    assert ask(node, "operator", "GET", "/api/v1/jobs/job-none").status_code == 404


# ---------------------------------------------------------------- data of a job


def upload(node: Gateway, namespace: str, name: str) -> None:
    form = {
        "namespace": namespace,
        "name": name,
        "head": "true",
        "partitions": "1",
        "meta": '{"match_id_name": "id"}',
    }
    files = {"file": ("t.csv", b"id,x\n1,2\n", "text/csv")}
    answer = ask(node, "operator", "POST", "/v2/component/upload/file", data=form, files=files)
    assert answer.json()["code"] == 0, answer.text


@pytest.mark.parametrize(
    "where", [{"dataset_id": "both#forms"}, {"namespace": "both", "name": "forms"}], ids=["id", "name"]
)
def test_both_forms_of_a_dataset_resolve_to_the_same_address(node: Gateway, where: dict[str, str]):
    if not node.storage.exists(Address("both", "forms")):
        upload(node, "both", "forms")
    body = job_body()
    body["config"]["task_params"] = {"guest": {"0": {"echo_1": where}}}
    answer = envelope(ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", json=body))
    job_id = answer["data"]["job_id"]
    runs = wait_for(lambda: node.store.local_jobs.get(job_id).runs, 10)
    guest = next(r for r in runs if r.party.role == "guest")
    assert guest.inputs == {"train_data": Address("both", "forms")}
    assert guest.outputs == {"train_data": Address(f"{job_id}-guest-0", f"{guest.task_id}-data0")}


def test_a_dataset_that_is_not_there_is_named_with_its_path(node: Gateway):
    body = job_body()
    body["config"]["task_params"] = {"guest": {"0": {"echo_1": {"dataset_id": "no#where"}}}}
    answer = envelope(ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", json=body))
    assert answer["code"] != 0
    assert "config.task_params.guest.0.echo_1.dataset_id" in answer["msg"] and "no#where" in answer["msg"]


def test_a_format_that_the_input_does_not_list_is_a_warning_naming_both(node: Gateway):
    provider = copy.deepcopy(A_PROVIDER) | {"name": "formats"}
    echo = provider["components_description"]["Echo"]
    echo["provider"] = "formats"
    echo["inputData"][0]["dataFormat"] = ["yaml"]
    assert ask(node, "operator", "POST", "/v2/provider/register", json=provider).json()["code"] == 0
    upload(node, "formats", "table")
    body = job_body()
    first = body["dag"]["components"][0] | {"provider": "formats"}
    second = copy.deepcopy(first) | {"name": "echo_2", "input": [{"type": "dataset", "key": "echo_1.data0"}]}
    body["dag"]["components"] = [first, second]
    body["config"]["task_params"] = {"guest": {"0": {"echo_1": {"dataset_id": "formats#table"}}}}
    answer = envelope(ask(node, "operator", "POST", f"{PLATFORM}/job/create_all", json=body))
    warnings = node.store.local_jobs.get(answer["data"]["job_id"]).warnings
    assert sum("csv" in w and "yaml" in w for w in warnings) == 2  # the table, and the second for both its parties
