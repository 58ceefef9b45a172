"""Jobs and registrations that other platforms publish, sent as their users send them.

The files below ``published`` have the form of the platforms' files; names and numbers are made up.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from adapter.fate.dag.read import job_spec
from adapter.fate.dag.wire import DagSchema
from engines.base import LaunchSpec
from gateway.domain.run import Address
from gateway.store import queries
from tests.adapter.bfia.contract import read_envelope, read_refusal
from tests.adapter.bfia.site import CONTROL, PLATFORM
from tests.cli import call
from tests.e2e.nodes import example, wait_for
from tests.inprocess import ME, Node
from tests.memory_engine import Inside, Script
from tests.plain import NO_TLS
from tests.world import NodeSetup

FILES = Path(__file__).parent / "published"
CREATE_ALL = f"{PLATFORM}/job/create_all"

# The datasets that the published jobs read.
TABLES = (
    Address("testspace", "test_guest"),
    Address("testspace", "test_host"),
    Address("data", "breast_hetero_guest.csv"),
    Address("data", "breast_hetero_host.csv"),
)
IMAGES = ("unionpay:2.0.0", "federatedai/fate:2.0.0", "ic-ecdh:1.0.0")


def published(name: str) -> Any:
    """Return the content of a published file."""
    text = (FILES / name).read_text("utf-8")
    if name.endswith(".json"):
        return json.loads(text)
    return yaml.safe_load(text)


# ---------------------------------------------------------------- the node


def succeed(launch: LaunchSpec, inside: Inside) -> int:
    """Act as a successful container: write every output and report; return the exit code."""
    variables = launch.environment
    storage = Path(variables["system.storage"].removeprefix("file://"))
    for name, value in variables.items():
        if name.startswith("runtime.component.output."):
            write_output(storage, json.loads(value))
    report = {
        "task_id": variables["config.task_id"],
        "role": variables["config.self_role"],
        "status": "SUCCESS",
    }
    response = httpx.post(
        variables["system.callback"],
        json=report,
        timeout=300,
        trust_env=False,
        verify=NO_TLS,
    )
    assert response.json()["code"] == 0
    return 0


def write_output(
    storage: Path,
    address: dict[str, str],
) -> None:
    """Write a table of two rows at an address."""
    folder = storage / address["namespace"] / address["name"]
    folder.mkdir(
        parents=True,
        exist_ok=True,
    )
    (folder / "data_0").write_text("id\n1\n2\n")
    metadata = {
        **address,
        "count": 2,
        "partitions": 1,
        "column_info": [{"name": "id", "type": "string"}],
        "data_type": "dense",
    }
    (folder / "metadata").write_text(json.dumps(metadata))


def prepare(node: Node) -> None:
    """Write the datasets, grant them to alice, and register the published providers."""
    for address in TABLES:
        table = node.storage.root / address.namespace / address.name
        table.mkdir(parents=True)
        (table / "data_0").write_text("id,x\na,1\nb,2\n")
        node.sharing.grant(address, "alice", "ann")
    for registration in (
        example("register_unionpay.json"),
        published("fate_register.json"),
        published("kuscia_register.json"),
    ):
        response = node.post("/v2/provider/register", registration)
        assert response.json()["code"] == 0


# A node whose containers all succeed, with a route to a Kuscia node.
NODE = NodeSetup(
    routes={
        "alice": {
            "host": "127.0.0.1",
            "port": 1,
            "profile": "kuscia",
        }
    },
    scripts=dict.fromkeys(IMAGES, Script(body=succeed)),
    settings={"fate": {"enabled": True}},
    prepare=prepare,
)


def job_view(
    node: Node,
    job_id: str,
) -> dict[str, Any]:
    """Return a job as operators see it."""
    return dict(node.get(f"/api/v1/jobs/{job_id}").json())


def wait_for_end(
    node: Node,
    job_id: str,
) -> dict[str, Any]:
    """Wait until a job has ended; return it as operators see it."""

    def has_ended() -> bool:
        return node.store.jobs.get(job_id).ended_at is not None

    wait_for(has_ended, 120, 0.02, f"{job_id} has ended")
    return job_view(node, job_id)


def submit(
    node: Node,
    body: dict[str, Any],
) -> str:
    """Submit a job; return its id."""
    return str(read_envelope(node.post(CREATE_ALL, body))["data"]["job_id"])


def send_as_alice(
    node: Node,
    path: str,
    body: dict[str, Any],
) -> dict[str, Any]:
    """Send a control request as the Kuscia node; return the body of the response."""
    headers = {"x-node-id": "alice"}
    response = node.post(
        CONTROL + path,
        body,
        listener="peer",
        headers=headers,
    )
    return dict(response.json())


def roles_of_runs(job: dict[str, Any]) -> set[str]:
    """Return the roles whose containers a job ran."""
    return {run["party"]["role"] for run in job["runs"]}


# ---------------------------------------------------------------- UnionPay

PSI = "intersect_rsa_1"
LR = "hetero_logistic_regression_1"

# The warnings about the values of UnionPay's published job.
VALUE_WARNINGS = [
    "optimizer: is none of rmsprop, sgd, adam, sqn, adagrad (got 'nesterov_momentum_sgd')",
    "batch_size: is none of all, 2048, 4096, 8192 (got -1)",
    "batch_size: lies outside (0,1000) (got -1)",
]


def value_warnings(texts: list[str]) -> list[str]:
    """Return the warnings about the regression's optimizer and batch size, without their place."""
    about_values = []
    for text in texts:
        _, place, warning = text.rpartition(f".{LR}.")
        if place and warning.startswith(("optimizer", "batch_size")):
            about_values.append(warning)
    return about_values


def test_unionpays_published_job_runs_with_warnings_about_its_values(node):
    job = wait_for_end(node, submit(node, published("unionpay_psi_lr.json")))

    assert job["status"] == "FINISHED"
    assert job["outcome"] == "SUCCEEDED"
    assert roles_of_runs(job) == {"guest", "host", "arbiter"}
    assert value_warnings(job["local_warnings"]) == VALUE_WARNINGS
    parameters = job["parameters"]["arbiter.0"][LR]
    assert parameters["optimizer"]["value"] == "nesterov_momentum_sgd"
    assert parameters["batch_size"]["value"] == -1


def test_a_plan_shows_values_outside_the_description_as_warnings(node):
    plan = node.post("/api/v1/jobs/plan", published("unionpay_psi_lr.json")).json()

    assert plan["good"], plan
    warnings = []
    for planned_node in plan["nodes"]:
        for check in planned_node["checks"]:
            if check["standing"] == "warning":
                warnings.append(f"{check['about']}: {check['cause']}")
    assert value_warnings(warnings) == VALUE_WARNINGS


def test_the_same_job_of_a_partner_is_accepted_and_its_warnings_are_shown(node):
    body = published("unionpay_psi_lr.json") | {"job_id": "job-of-alice"}
    body["config"]["initiator"]["node_id"] = "alice"
    body["config"]["role"]["guest"][0] = "alice"

    response = send_as_alice(node, "/job/create", body)

    assert response["code"] == 200, response
    assert value_warnings(job_view(node, "job-of-alice")["local_warnings"]) == VALUE_WARNINGS


def strict_job(node: Node) -> dict[str, Any]:
    """Return UnionPay's job as a strict one."""
    body = published("unionpay_psi_lr.json")
    body["config"]["job_params"]["common"]["strict"] = True
    return dict(body)


def job_of_strict_provider(node: Node) -> dict[str, Any]:
    """Register a strict version of UnionPay's provider; return UnionPay's job with it."""
    version = "2.0.0-strict"
    registration = example("register_unionpay.json") | {"version": version}
    registration["metadata"]["values"] = "strict"
    assert node.post("/v2/provider/register", registration).json()["code"] == 0
    body = published("unionpay_psi_lr.json")
    for component in body["dag"]["components"]:
        component["version"] = version
    return dict(body)


@pytest.mark.parametrize("make_job", [strict_job, job_of_strict_provider])
def test_strict_refuses_all_values_outside_the_description_together(node, make_job):
    response = node.post(CREATE_ALL, make_job(node))

    problems = read_refusal(response, 409, "INVALID")["data"]["problems"]
    rules = set()
    for problem in problems:
        _, _, parameter = problem["path"].rpartition(".")
        rules.add((parameter, problem["rule"].removeprefix(f"{ME}: ")))
    assert rules >= {
        ("optimizer", "is none of rmsprop, sgd, adam, sqn, adagrad"),
        ("batch_size", "is none of all, 2048, 4096, 8192"),
    }


@pytest.mark.parametrize(
    "word",
    ["Strict", "yes", True, 1],
)
def test_a_registration_with_an_unknown_word_for_values_is_refused(node, word):
    registration = example("register_unionpay.json")
    registration["metadata"]["values"] = word
    response = node.post("/v2/provider/register", registration)
    assert response.json()["code"] != 0
    assert "metadata.values" in response.text


# ---------------------------------------------------------------- FATE


def test_fates_published_registration_is_accepted_with_true_warnings(node):
    warnings = node.get("/api/v1/providers/fate").json()["warnings"]
    rules = set()
    for warning in warnings:
        path = warning["path"]
        if ".inputParam" in path or path.endswith("dataFormat"):
            rules.add(warning["rule"])
    assert rules == {
        "is none of csv, pmml, json, yaml, zip",
        "is not a type of the standard; read here as the suggested one, perhaps not by others",
    }

    transformer = "/api/v1/providers/fate/components/dataframe_transformer"
    form = node.get(f"{transformer}/parameters").json()
    assert set(form["properties"]) == {"namespace", "name", "site_name"}


def test_fates_published_job_runs_with_true_warnings(node):
    """Its arbiter takes part only in the second task, and starts without an input."""
    job = wait_for_end(node, submit(node, published("fate_psi_lr.json")))

    assert job["outcome"] == "SUCCEEDED"
    assert roles_of_runs(job) == {"guest", "host", "arbiter"}
    rule = "is csv; input input_data reads dataset (got 'csv')"
    assert job["local_warnings"] == [
        f"config.task_params.guest.0.psi_0: {rule}",
        f"config.task_params.host.0.psi_0: {rule}",
    ]


@pytest.mark.parametrize("file", ["fate_psi_lr.yaml", "unionpay_psi_lr.yaml"])
def test_flows_published_for_fates_sites_run_to_their_end(node, file):
    """A FATE site describes these flows in its own protocol."""
    schema = DagSchema.model_validate(published(file))
    job_id = node.job_requests.new_id([])
    spec, _ = job_spec(
        schema,
        node.registry,
        job_id,
        ME,
        ME,
        "trace",
    )

    job = wait_for_end(node, node.job_requests.submit(spec))

    assert job["outcome"] == "SUCCEEDED"
    assert roles_of_runs(job) == {"guest", "host", "arbiter"}


def test_a_component_may_have_parameters_called_namespace_and_name(node):
    """FATE's transformer has both; elsewhere they are the address of a dataset."""
    component = {
        "name": "transformer_1",
        "componentName": "dataframe_transformer",
        "provider": "fate",
        "version": "2.0.0",
        "input": [],
        "output": [{"type": "dataset", "key": "dataframe_output"}],
    }
    table = {
        "namespace": "testspace",
        "name": "test_guest",
    }
    body = published("fate_psi_lr.json")
    body["dag"]["components"] = [component]
    body["config"]["role"] = {"guest": [ME]}
    body["config"]["task_params"] = {"guest": {"0": {"transformer_1": table}}}
    body["config"]["job_params"] = {"common": {}}

    [run] = wait_for_end(node, submit(node, body))["runs"]

    assert run["parameters"] == table


# ---------------------------------------------------------------- Kuscia


def test_kuscias_published_job_names_its_dataset_by_namespace_and_name(node):
    """The address is no parameter: it causes no warning, and the container gets only the input."""
    response = send_as_alice(node, "/job/create", published("kuscia_psi.json"))
    assert response["code"] == 200, response
    job_id = "job-ic-ecdh"
    assert node.store.local_jobs.get(job_id).warnings == ()

    task = {
        "job_id": job_id,
        "task_id": "job-ic-ecdh-psi",
        "task_name": "ic_psi_ecdh_1",
    }
    assert send_as_alice(node, "/job/start", {"job_id": job_id})["code"] == 200
    assert send_as_alice(node, "/task/start", task)["code"] == 200

    [run] = node.store.local_jobs.get(job_id).runs
    dataset = run.data.inputs["train_data"]
    assert dataset.namespace == "data"
    assert dataset.name == "breast_hetero_host.csv"
    assert {"namespace", "name", "dataset_id"}.isdisjoint(run.data.parameters)
    assert run.data.parameters["rank"] == 1


def test_an_address_of_a_dataset_is_no_unknown_parameter_in_own_jobs_too(node):
    body = published("kuscia_psi.json")
    del body["job_id"]
    body["config"]["role"]["guest"] = [ME]
    body["config"]["initiator"]["node_id"] = ME

    job = job_view(node, submit(node, body))

    assert [text for text in job["local_warnings"] if "is not a parameter" in text] == []


# ---------------------------------------------------------------- jobs in other forms

KUSCIA_JOB = {
    "apiVersion": "kuscia.secretflow/v1alpha1",
    "kind": "KusciaJob",
    "spec": {"initiator": "alice"},
}
KUSCIA_REQUEST = {
    "job_id": "job-a",
    "initiator": "alice",
    "tasks": [{"app_image": "secretflow-image"}],
}
FATE_1_SUBMISSION = {
    "job_dsl": {"components": {}},
    "job_runtime_conf": {"dsl_version": 2},
}

# A job of another platform, and parts of the refusal.
FOREIGN_JOBS = {
    "FATE 1.x configuration": (
        published("fate1_conf.json"),
        ["FATE 1.x", "/v1/job/submit", "config.task_params", "job draft"],
    ),
    "FATE 1.x submission": (
        FATE_1_SUBMISSION,
        ["FATE 1.x", "/v1/job/submit"],
    ),
    "FATE 2.x flow": (
        published("fate_psi_lr.yaml"),
        ["FATE 2.x", "/v2/job/submit", "dag.components"],
    ),
    "FATE 2.x submission": (
        {"dag_schema": published("fate_psi_lr.yaml")},
        ["FATE 2.x", "dag.components"],
    ),
    "Kuscia job": (
        KUSCIA_JOB,
        ["Kuscia", "dag.components"],
    ),
    "Kuscia request": (
        KUSCIA_REQUEST,
        ["Kuscia", "dag.components"],
    ),
}


@pytest.mark.parametrize("path", [CREATE_ALL, "/api/v1/jobs/plan"])
@pytest.mark.parametrize(
    ("body", "texts"),
    FOREIGN_JOBS.values(),
    ids=FOREIGN_JOBS,
)
def test_the_refusal_of_another_platforms_job_says_where_it_belongs(node, path, body, texts):
    jobs_before = set(queries.statuses(node.store))

    refusal = node.post(path, body).json()

    assert refusal["code"] == 400
    [problem] = refusal["data"]["problems"]
    assert problem["path"] == "(document)"
    for text in texts:
        assert text in problem["rule"]
    assert set(queries.statuses(node.store)) == jobs_before


def test_node_ids_that_are_numbers_are_refused_at_each_place(node):
    response = node.post(CREATE_ALL, published("numeric_ids.json"))
    problems = read_refusal(response, 400, "INVALID")["data"]["problems"]
    assert {(problem["path"], problem["rule"], problem["got"]) for problem in problems} == {
        ("config.initiator.node_id", "must be text", 9999),
        ("config.role.guest[0]", "must be text", 9999),
        ("config.role.host[0]", "must be text", 10000),
    }


# ---------------------------------------------------------------- descriptions in other forms


def in_component_info(component: Any) -> Any:
    """Return the standard's registration with a description of a component."""
    return {
        "imageUrl": "psi:1.0.0",
        "component_info": component,
    }


def in_registration(component: Any) -> Any:
    """Return a registration of UnionPay's provider with a description of a component."""
    registration = example("register_unionpay.json")
    return registration | {"components_description": {"psi": component}}


FATE_COMPONENT = published("fate_component.yaml")
SECRETFLOW = published("secretflow_comp_list.json")

# A description of another platform, the platform's name in the refusal, and by path the beginning
# of the suggestion; "" if there is none.
FOREIGN_DESCRIPTIONS = {
    "FATE": (
        FATE_COMPONENT,
        "component description of FATE 2.x",
        {
            "component.roles": "roleList",
            "component.parameters": "inputParam: ",
        },
    ),
    "SecretFlow": (
        SECRETFLOW,
        "component list of SecretFlow",
        {
            "comps[0].attrs": "inputParam: ",
            "comps[0].inputs": "inputData: ",
            "comps[0].domain": "",
        },
    ),
    "Kuscia": (
        published("kuscia_appimage.yaml"),
        "AppImage of Kuscia",
        {
            "spec.image": "metadata.image: registry.example/secretflow/interconn-impl:0.0.2-dev",
            "spec.deployTemplates[0].role": "roleList",
            "spec.deployTemplates[0].spec.containers[0].command": "the image's own ENTRYPOINT",
            "components_description": "",
        },
    ),
    "FATE in a registration": (
        in_registration(FATE_COMPONENT),
        "component description of FATE 2.x",
        {"components_description.psi.component.roles": "roleList"},
    ),
    "SecretFlow in a registration": (
        in_component_info(SECRETFLOW["comps"][0]),
        "component of SecretFlow",
        {
            "component_info.attrs": "inputParam: ",
            "component_info.roleList": '["guest", "host"]',
        },
    ),
}


@pytest.mark.parametrize(
    ("body", "platform", "mapping"),
    FOREIGN_DESCRIPTIONS.values(),
    ids=FOREIGN_DESCRIPTIONS,
)
def test_a_description_of_another_platform_is_named_and_mapped(
    node, tmp_path, body, platform, mapping
):
    """A node and the command `provider check`, which needs no node, report the same."""
    response = node.post("/api/v1/providers", body)
    assert response.status_code == 400
    assert_mapped(
        response.json()["data"]["problems"],
        platform,
        mapping,
    )

    file = tmp_path / "description.json"
    file.write_text(json.dumps(body))
    check = call("provider", "check", str(file), "--json")
    assert check.exit_code == 1
    assert_mapped(
        json.loads(check.stdout)["description"]["errors"],
        platform,
        mapping,
    )


def assert_mapped(
    problems: list[dict[str, Any]],
    platform: str,
    mapping: dict[str, str],
) -> None:
    """Fail unless problems name a platform and have these suggestions."""
    assert any(platform in problem["rule"] for problem in problems)
    suggestions = {problem["path"]: problem.get("suggestion", "") for problem in problems}
    for path, beginning in mapping.items():
        if beginning:
            assert suggestions[path].startswith(beginning)
        else:
            assert suggestions[path] == ""


def test_the_mapping_of_another_platforms_description_is_registered(node):
    """A registration that follows the suggestions is accepted."""
    component = {
        "componentName": "psi",
        "roleList": ["guest", "host"],
        "inputParam": [
            {
                "name": "protocol",
                "type": "str",
                "optional": True,
                "defaultValue": "ecdh_psi",
            }
        ],
        "inputData": [
            {
                "name": "input_data",
                "category": "dataset",
                "dataFormat": ["csv"],
            }
        ],
        "outputData": [
            {
                "name": "output_data",
                "category": "dataset",
                "dataFormat": ["csv"],
            }
        ],
    }
    registration = {
        "name": "fate-mapped",
        "version": "2.1.0",
        "device": "docker",
        "metadata": {"image": "psi:1.0.0"},
        "components_description": {"psi": component},
    }
    response = node.post("/v2/provider/register", registration)
    assert response.json()["code"] == 0
