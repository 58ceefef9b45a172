"""Registering, uploading and submitting as users do: warnings, refusals, and their places."""

import copy
import json
from typing import Any

import httpx
import pytest

from adapter.bfia.examples import A_JOB, A_PROVIDER
from gateway.domain.run import Address
from gateway.store import queries
from tests.adapter.bfia.contract import Caller, problem_paths, read_envelope, read_refusal
from tests.adapter.bfia.site import CONTROL, PLATFORM
from tests.e2e.nodes import example, wait_for
from tests.inprocess import ME, PEER, Node
from tests.world import NodeSetup, World

SETUP = NodeSetup(
    commands={"example:1.0.0": ["/bin/sleep", "300"]},
    providers=[A_PROVIDER],
)


@pytest.fixture(scope="module")
def node(shared_world: World) -> Node:
    """A node with a partner."""
    node = shared_world.node(SETUP)
    shared_world.node(SETUP, node_id=PEER)
    shared_world.connect()
    return node


def a_job(**fields: Any) -> dict[str, Any]:
    """Return the body of a job; ``fields`` replace the top-level ones."""
    return copy.deepcopy(A_JOB) | fields


def a_job_with_guest_parameters(**parameters: Any) -> dict[str, Any]:
    """Return the body of a job with parameters for its guest; its host reads no data."""
    body = a_job()
    body["config"]["task_params"] = {
        "guest": {"0": {"echo_1": parameters}},
        "host": {"0": {"echo_1": {"dataset_id": ""}}},
    }
    return body


def submit(
    node: Node,
    body: dict[str, Any],
) -> httpx.Response:
    """Submit a job."""
    return node.post(f"{PLATFORM}/job/create_all", body)


def submitted_id(
    node: Node,
    body: dict[str, Any],
) -> str:
    """Submit a job; return its id."""
    return str(read_envelope(submit(node, body))["data"]["job_id"])


def set_strict(body: dict[str, Any]) -> None:
    """Let a job be refused for everything that is only a warning otherwise."""
    body["config"]["job_params"] = {"common": {"strict": True}}


# ---------------------------------------------------------------- unknown names


def test_unknown_keys_are_warnings_or_refused(node):
    body = a_job(
        job_id="job-mine",
        flow="x",
    )

    job_id = submitted_id(node, body)
    assert job_id != "job-mine"
    warnings = node.get(f"/api/v1/jobs/{job_id}").json()["warnings"]
    assert any(warning.startswith("job_id: is ignored") for warning in warnings)
    flow_warnings = [warning for warning in warnings if warning.startswith("flow: ")]
    assert any("did you mean flow_id?" in warning for warning in flow_warnings)
    assert "did you mean flow_id?" in node.post("/api/v1/jobs/plan", body).text

    set_strict(body)
    assert problem_paths(submit(node, body)) >= {"job_id", "flow"}


def test_a_mistyped_role_is_refused_with_a_suggestion(node):
    body = a_job()
    roles = body["config"]["role"]
    roles["hots"] = roles.pop("host")

    problems = read_refusal(submit(node, body), 400, "INVALID")["data"]["problems"]

    suggestions = [p["suggestion"] for p in problems if p["path"] == "config.role.hots"]
    assert suggestions == ["host"]


def test_a_strict_job_is_refused_with_every_unknown_parameter(node):
    body = a_job()
    body["config"]["task_params"] = {"common": {"echo_1": {"unheard": 1, "of": 2}}}
    assert read_envelope(submit(node, body))["code"] == 0

    set_strict(body)
    refusal = read_envelope(submit(node, body))
    assert refusal["code"] != 0
    assert "echo_1.unheard" in refusal["msg"]
    assert "echo_1.of" in refusal["msg"]

    body["config"]["task_params"] = {
        "common": {"nobody": {}},
        "guest": {"7": {}},
    }
    assert len(problem_paths(submit(node, body))) == 2


def submit_with_key(node: Node, body: dict[str, Any], key: str) -> httpx.Response:
    """Submit a job with a key, by which a repeated submission is recognised."""
    return node.post(f"{PLATFORM}/job/create_all", body, headers={"Idempotency-Key": key})


def test_a_repeated_submission_with_the_same_key_creates_no_second_job(node):
    body = a_job()
    jobs_before = set(queries.statuses(node.store))

    first = read_envelope(submit_with_key(node, body, "order-7"))
    second = read_envelope(submit_with_key(node, body, "order-7"))
    assert first["data"]["job_id"] == second["data"]["job_id"]
    assert len(set(queries.statuses(node.store)) - jobs_before) == 1

    other = read_envelope(submit_with_key(node, body, "order-8"))
    assert other["data"]["job_id"] != first["data"]["job_id"]


def test_a_key_of_another_job_or_without_form_is_refused(node):
    submit_with_key(node, a_job(), "order-9")
    refusal = read_envelope(submit_with_key(node, a_job(flow_id="another"), "order-9"))
    assert refusal["data"]["reason"] == "JOB_ID_CONFLICT"

    refusal = read_envelope(submit_with_key(node, a_job(), "x" * 256))
    assert refusal["data"]["reason"] == "INVALID"


@pytest.fixture(scope="module")
def tree_provider(node: Node) -> str:
    """The name of a provider whose component Echo describes the parameter num_trees."""
    name = "trees"
    provider = copy.deepcopy(A_PROVIDER) | {"name": name}
    echo = provider["components_description"]["Echo"] | {"provider": name}
    echo["inputParam"] = [
        {
            "name": "num_trees",
            "title": "trees",
            "description": "number of trees",
            "type": "int",
            "optional": "true",
            "defaultValue": "5",
        }
    ]
    provider["components_description"] = {"Echo": echo}
    assert node.post("/v2/provider/register", provider).json()["code"] == 0
    return name


def a_job_of_trees(provider: str, **parameters: Any) -> dict[str, Any]:
    """Return the body of a job with parameters for a task of the `tree_provider`."""
    body = a_job()
    body["dag"]["components"][0]["provider"] = provider
    body["config"]["task_params"] = {"common": {"echo_1": parameters}}
    return body


@pytest.mark.parametrize("path", [f"{PLATFORM}/job/create_all", "/api/v1/jobs/plan"])
def test_a_misspelled_parameter_is_refused_before_anything_runs(node, tree_provider, path):
    answer = node.post(path, a_job_of_trees(tree_provider, num_tree=3)).text

    assert "PARAMETER_UNKNOWN: config.task_params.common.echo_1.num_tree: is not" in answer or (
        '"about":"config.task_params.common.echo_1.num_tree"' in answer
    )
    assert "did you mean num_trees?" in answer


def test_a_plan_does_not_warn_of_the_parameter_that_it_refuses(node, tree_provider):
    plan = node.post("/api/v1/jobs/plan", a_job_of_trees(tree_provider, num_tree=3)).json()

    path = "config.task_params.common.echo_1.num_tree"
    checks = plan["nodes"][0]["checks"]
    assert [check["standing"] for check in checks if check["about"] == path] == ["problem"]
    assert path not in [warning["about"] for warning in plan["warnings"]]


def test_the_refusal_of_a_misspelled_parameter_has_its_reason(node, tree_provider):
    body = a_job_of_trees(tree_provider, num_tree=3)

    [problem] = read_refusal(submit(node, body), 400, "PARAMETER_UNKNOWN")["data"]["problems"]

    assert problem["suggestion"] == "num_trees"
    assert problem["got"] == 3
    assert problem["next_step"].startswith("Take the name that the message suggests")


def test_a_name_unlike_any_described_one_is_a_warning_in_every_answer(node, tree_provider):
    """Published jobs have parameters that no description lists."""
    answer = submit(node, a_job_of_trees(tree_provider, num_trees=3, sampler="goss"))

    body = read_envelope(answer)
    assert set(body) == {"code", "msg", "data"}
    assert set(body["data"]) == {"job_id"}
    listed = json.loads(answer.headers["x-job-warnings"])
    assert len(listed) == int(answer.headers["x-job-warning-count"])
    assert any("echo_1.sampler: is not a parameter of Echo" in text for text in listed)
    status = node.get(f"{PLATFORM}/job/status_all?job_id={body['data']['job_id']}").json()
    assert set(listed) <= set(status["data"]["warnings"])


def test_long_warnings_leave_the_header_short(node, tree_provider):
    unheard = {f"unheard{number}": "x" * 200 for number in range(90)}

    answer = submit(node, a_job_of_trees(tree_provider, **unheard))

    assert len(answer.headers["x-job-warnings"]) <= 4000
    listed = json.loads(answer.headers["x-job-warnings"])
    assert 0 < len(listed) < int(answer.headers["x-job-warning-count"])


# ---------------------------------------------------------------- errors


def test_syntax_and_semantic_errors_are_reported_together(node):
    """One refusal has required keys, the initiator's role and the flow, each with its value."""
    jobs_before = set(queries.statuses(node.store))
    body = a_job(flow_id=["x"])
    component = body["dag"]["components"][0]
    component["input"] = [{"type": "dataset", "key": "nobody.out"}]
    body["config"]["task_params"] = 7
    body["config"]["initiator"] = {
        "role": "arbiter",
        "node_id": ME,
    }
    body["config"]["role"]["host"] = [5]

    problems = read_refusal(submit(node, body), 400, "INVALID")["data"]["problems"]
    values = {problem["path"]: problem["got"] for problem in problems}
    del values["flow_id"]
    assert values == {
        "config.initiator.node_id": ME,
        "dag.components[0].input[0].key": "nobody.out",
        "config.role.host[0]": 5,
        "config.task_params": 7,
    }

    # A component that cannot be read itself is not checked for its inputs.
    del component["version"]
    body["config"]["initiator"]["role"] = "host"
    assert problem_paths(submit(node, body)) == {
        "flow_id",
        "dag.components[0].version",
        "config.initiator.node_id",
        "config.role.host[0]",
        "config.task_params",
    }
    assert set(queries.statuses(node.store)) == jobs_before


@pytest.mark.parametrize("hostile", ["../../x", ".", "a\\b", "a\x00b", "x" * 180])
def test_no_name_of_another_node_becomes_a_path(node, hostile):
    call = Caller(node, "peer", CONTROL, {"x-source-node-id": PEER})
    hostile_task = a_job(job_id="job-hostile")
    hostile_task["dag"]["components"][0]["name"] = hostile
    hostile_output = a_job(job_id="job-hostile")
    hostile_output["dag"]["components"][0]["output"][0]["key"] = hostile
    hostile_role = a_job(job_id="job-hostile")
    hostile_role["config"]["role"][hostile] = [ME]
    for body in (a_job(job_id=hostile), hostile_task, hostile_output, hostile_role):
        assert read_envelope(call("/job/create", body))["code"] == 400

    assert read_envelope(call("/job/create", a_job(job_id="job-tasks")))["code"] == 0
    start = {
        "job_id": "job-tasks",
        "task_id": hostile,
        "task_name": "echo_1",
    }
    assert read_envelope(call("/task/start", start))["code"] == 400
    assert node.store.local_jobs.get("job-tasks").runs == ()


# ---------------------------------------------------------------- registration


def test_the_users_registration_and_what_follows(node):
    body = example("register_unionpay.json")

    first = node.post("/v2/provider/register", body).json()
    second = node.post("/v2/provider/register", body).json()
    assert first == {
        "code": 0,
        "message": "create success",
    }
    assert second == {
        "code": 0,
        "message": "update success",
    }

    by_name = node.get("/v2/provider/query", params={"name": "unionpay"}).json()
    [provider] = by_name["data"]
    assert provider["components_description"] == body["components_description"]
    full_name = {"provider_name": "unionpay:2.0.0@docker"}
    by_full_name = node.request("GET", "/v2/provider/query", json=full_name).json()
    assert by_full_name == by_name

    deletion = node.post("/v2/provider/delete", {"name": "unionpay", "version": "2.0.0"}).json()
    assert deletion["code"] == 0
    assert deletion["data"]["deleted"] == 1
    assert node.post("/v2/provider/delete", {}).json()["code"] == 400


# ---------------------------------------------------------------- datasets


def upload(
    node: Node,
    namespace: str,
    name: str,
) -> None:
    """Upload a table of one row."""
    form = {
        "namespace": namespace,
        "name": name,
        "meta": json.dumps({"match_id_name": "id"}),
        "overwrite": "true",
    }
    files = {"file": ("t.csv", b"id,x\n1,2\n", "text/csv")}
    response = node.post(
        "/v2/component/upload/file",
        data=form,
        files=files,
    )
    assert response.json()["code"] == 0, response.text


@pytest.fixture(scope="module")
def dataset(node: Node) -> Address:
    """An uploaded dataset; it cannot be replaced while a job uses it."""
    upload(node, "both", "forms")
    return Address("both", "forms")


@pytest.mark.parametrize(
    "parameters",
    [
        {"dataset_id": "both#forms"},
        {"namespace": "both", "name": "forms"},
    ],
    ids=["id", "name"],
)
def test_both_forms_of_a_dataset_resolve_to_the_same_address(node, dataset, parameters):
    job_id = submitted_id(node, a_job_with_guest_parameters(**parameters))

    def local_runs() -> Any:
        return node.store.local_jobs.get(job_id).runs

    runs = wait_for(local_runs, 10)
    [guest] = [run for run in runs if run.party.role == "guest"]
    assert guest.data.inputs == {"train_data": dataset}
    assert guest.data.outputs == {
        "train_data": Address(f"{job_id}-guest-0", f"{guest.task_id}-data0")
    }


def test_a_format_that_the_input_does_not_list_is_a_warning_naming_both(node):
    register_yaml_reader(node)
    upload(node, "formats", "table")
    body = a_job_with_guest_parameters(dataset_id="formats#table")
    first = body["dag"]["components"][0] | {"provider": "formats"}
    second = first | {
        "name": "echo_2",
        "input": [{"type": "dataset", "key": "echo_1.data0"}],
    }
    body["dag"]["components"] = [first, second]

    job_id = submitted_id(node, body)

    warnings = node.store.local_jobs.get(job_id).warnings
    about_formats = [text for text in warnings if "csv" in text and "yaml" in text]
    # One about the uploaded table, one about the input of the second task at both parties.
    assert len(about_formats) == 2


def register_yaml_reader(node: Node) -> None:
    """Register the provider ``formats``, whose component reads only YAML."""
    provider = copy.deepcopy(A_PROVIDER) | {"name": "formats"}
    echo = provider["components_description"]["Echo"] | {"provider": "formats"}
    echo["inputData"][0]["dataFormat"] = ["yaml"]
    provider["components_description"] = {"Echo": echo}
    assert node.post("/v2/provider/register", provider).json()["code"] == 0
