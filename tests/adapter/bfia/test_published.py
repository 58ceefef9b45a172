"""Jobs and registrations that other platforms publish, sent as their users send them.

The inputs below ``published`` have the form of those files; names and numbers are made up.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from adapter.fate.dag.read import job_spec
from adapter.fate.dag.wire import DagSchema
from engines.base import LaunchSpec
from gateway.bootstrap.node import Gateway
from gateway.domain.run import Address
from gateway.store import queries
from tests.adapter.bfia.contract import envelope, refused
from tests.cli import call
from tests.e2e.nodes import example, wait_for
from tests.inprocess import ME, Node, ask, serving, settings
from tests.memory_engine import Inside, MemoryEngine, Script
from tests.plain import NO_TLS

FILES = Path(__file__).parent / "published"
CREATE_ALL = "/v1/platform/schedule/job/create_all"
TABLES = (
    Address("testspace", "test_guest"),
    Address("testspace", "test_host"),
    Address("data", "breast_hetero_guest.csv"),
    Address("data", "breast_hetero_host.csv"),
)
IMAGES = ("unionpay:2.0.0", "federatedai/fate:2.0.0", "ic-ecdh:1.0.0")


def published(name: str) -> Any:
    text = (FILES / name).read_text("utf-8")
    return json.loads(text) if name.endswith(".json") else yaml.safe_load(text)


def succeed(run: LaunchSpec, inside: Inside) -> int:
    """Write every output of a run, and report its success."""
    root = Path(run.environment["system.storage"].removeprefix("file://"))
    for name, value in run.environment.items():
        if name.startswith("runtime.component.output."):
            write_output(root, json.loads(value))
    report = {
        "task_id": run.environment["config.task_id"],
        "role": run.environment["config.self_role"],
        "status": "SUCCESS",
    }
    answer = httpx.post(
        run.environment["system.callback"],
        json=report,
        timeout=60,
        trust_env=False,
        verify=NO_TLS,
    )
    assert answer.json()["code"] == 0
    return 0


def write_output(root: Path, address: dict[str, str]) -> None:
    folder = root / address["namespace"] / address["name"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data_0").write_text("id\n1\n2\n")
    columns = [{"name": "id", "type": "string"}]
    metadata = {
        **address,
        "count": 2,
        "partitions": 1,
        "column_info": columns,
        "data_type": "dense",
    }
    (folder / "metadata").write_text(json.dumps(metadata))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A node with the published providers, whose containers all succeed, and a route to a Kuscia node."""
    home = tmp_path_factory.mktemp("node")
    made = settings(home, fate={"enabled": True})
    routes = {
        "alice": {
            "host": "127.0.0.1",
            "port": 1,
            "profile": "kuscia",
        }
    }
    Path(str(made.route_table.file)).write_text(yaml.safe_dump(routes))
    engine = MemoryEngine.making(dict.fromkeys(IMAGES, Script(body=succeed)))
    with serving(Node(made, engine=engine)) as gateway:
        for address in TABLES:
            table = gateway.storage.root / address.namespace / address.name
            table.mkdir(parents=True)
            (table / "data_0").write_text("id,x\na,1\nb,2\n")
            gateway.sharing.grant(address, "alice", "ann")
        for body in (
            example("register_unionpay.json"),
            published("fate_register.json"),
            published("kuscia_register.json"),
        ):
            registered = ask(gateway, "operator", "POST", "/v2/provider/register", json=body)
            assert registered.json()["code"] == 0
        yield gateway


def shown(node: Gateway, job_id: str) -> dict[str, Any]:
    return dict(ask(node, "operator", "GET", f"/api/v1/jobs/{job_id}").json())


def ended(node: Gateway, job_id: str) -> dict[str, Any]:
    wait_for(lambda: node.store.jobs.get(job_id).ended_at, 120, 0.02, f"{job_id} has ended")
    return shown(node, job_id)


def created(node: Gateway, body: dict[str, Any]) -> str:
    return str(envelope(ask(node, "operator", "POST", CREATE_ALL, json=body))["data"]["job_id"])


PSI, LR = "intersect_rsa_1", "hetero_logistic_regression_1"
OPTIMIZER = "optimizer: is none of rmsprop, sgd, adam, sqn, adagrad (got 'nesterov_momentum_sgd')"
BATCH_SIZE = "batch_size: is none of all, 2048, 4096, 8192 (got -1)"
BATCH_RANGE = "batch_size: lies outside (0,1000) (got -1)"


def about_values(texts: list[str]) -> list[str]:
    """Return what is said about the values of UnionPay's published job, without their place."""
    ends = [text.rpartition(f"{LR}.")[2] for text in texts if f".{LR}." in text]
    return [text for text in ends if text.startswith(("optimizer", "batch_size"))]


def test_unionpays_published_job_runs_with_warnings_about_its_values(node: Gateway):
    job = ended(node, created(node, published("unionpay_psi_lr.json")))
    assert (job["status"], job["outcome"]) == ("FINISHED", "SUCCEEDED")
    assert {run["party"]["role"] for run in job["runs"]} == {"guest", "host", "arbiter"}
    assert about_values(job["local_warnings"]) == [OPTIMIZER, BATCH_SIZE, BATCH_RANGE]
    parameters = job["parameters"]["arbiter.0"][LR]
    assert parameters["optimizer"]["value"] == "nesterov_momentum_sgd"
    assert parameters["batch_size"]["value"] == -1


def test_fates_published_registration_is_taken_with_warnings_that_are_true(node: Gateway):
    answer = ask(node, "operator", "GET", "/api/v1/providers/fate").json()
    rules = {warning["rule"] for warning in answer["warnings"] if ".inputParam" in warning["path"]}
    rules |= {
        warning["rule"] for warning in answer["warnings"] if warning["path"].endswith("dataFormat")
    }
    assert rules == {
        "is none of csv, pmml, json, yaml, zip",
        "is not a type of the standard; read here as its own is, perhaps not by others",
    }
    form = ask(
        node,
        "operator",
        "GET",
        "/api/v1/providers/fate/components/dataframe_transformer/parameters",
    ).json()
    assert set(form["properties"]) == {"namespace", "name", "site_name"}


def test_fates_published_job_runs_with_warnings_that_are_true(node: Gateway):
    """Its arbiter takes part in the second task alone, and starts without an input."""
    job = ended(node, created(node, published("fate_psi_lr.json")))
    assert job["outcome"] == "SUCCEEDED"
    assert {run["party"]["role"] for run in job["runs"]} == {"guest", "host", "arbiter"}
    rule = "is csv; input input_data reads dataset (got 'csv')"
    assert job["local_warnings"] == [
        f"config.task_params.{party}.psi_0: {rule}" for party in ("guest.0", "host.0")
    ]


def test_a_plan_shows_values_outside_the_description_as_warnings(node: Gateway):
    answer = ask(
        node, "operator", "POST", "/api/v1/jobs/plan", json=published("unionpay_psi_lr.json")
    ).json()
    checks = [check for at in answer["nodes"] for check in at["checks"]]
    warned = [
        f"{check['about']}: {check['cause']}" for check in checks if check["standing"] == "warning"
    ]
    assert answer["good"], answer
    assert about_values(warned) == [OPTIMIZER, BATCH_SIZE, BATCH_RANGE]


def test_the_same_job_of_another_node_is_taken_and_its_warnings_are_shown(node: Gateway):
    body = published("unionpay_psi_lr.json") | {"job_id": "job-of-alice"}
    body["config"]["initiator"]["node_id"] = body["config"]["role"]["guest"][0] = "alice"
    taken = from_alice(node, "/job/create", body)
    assert taken["code"] == 200, taken
    assert about_values(shown(node, "job-of-alice")["local_warnings"]) == [
        OPTIMIZER,
        BATCH_SIZE,
        BATCH_RANGE,
    ]


def from_alice(
    node: Gateway,
    path: str,
    body: dict[str, Any],
) -> dict[str, Any]:
    headers = {"x-node-id": "alice"}
    answer = ask(node, "peer", "POST", f"/v1/interconn/schedule{path}", json=body, headers=headers)
    return dict(answer.json())


def strict_job(node: Gateway) -> dict[str, Any]:
    body = published("unionpay_psi_lr.json")
    body["config"]["job_params"]["common"]["strict"] = True
    return dict(body)


def job_of_strict_provider(node: Gateway) -> dict[str, Any]:
    registration = example("register_unionpay.json") | {"version": "2.0.0-strict"}
    registration["metadata"]["values"] = "strict"
    assert (
        ask(node, "operator", "POST", "/v2/provider/register", json=registration).json()["code"]
        == 0
    )
    body = published("unionpay_psi_lr.json")
    for component in body["dag"]["components"]:
        component["version"] = "2.0.0-strict"
    return dict(body)


@pytest.mark.parametrize("job_of", [strict_job, job_of_strict_provider])
def test_strict_refuses_every_value_outside_the_description_at_once(node: Gateway, job_of: Any):
    answer = ask(node, "operator", "POST", CREATE_ALL, json=job_of(node))
    problems = refused(answer, 409, "INVALID")["data"]["problems"]
    found = {
        (one["path"].rpartition(".")[2], one["rule"].removeprefix(f"{ME}: ")) for one in problems
    }
    assert found >= {
        ("optimizer", "is none of rmsprop, sgd, adam, sqn, adagrad"),
        ("batch_size", "is none of all, 2048, 4096, 8192"),
    }


@pytest.mark.parametrize("wrong", ["Strict", "yes", True, 1])
def test_a_registration_whose_values_word_is_unknown_is_refused(node: Gateway, wrong: Any):
    registration = example("register_unionpay.json")
    registration["metadata"]["values"] = wrong
    answer = ask(node, "operator", "POST", "/v2/provider/register", json=registration)
    assert answer.json()["code"] != 0 and "metadata.values" in answer.text


@pytest.mark.parametrize("flow", ["fate_psi_lr.yaml", "unionpay_psi_lr.yaml"])
def test_flows_published_for_fates_sites_run_to_their_end(node: Gateway, flow: str):
    """As a FATE site describes them in its own protocol."""
    schema = DagSchema.model_validate(published(flow))
    job_id = node.coordinator.new_id([])
    spec, _ = job_spec(schema, node.registry, job_id, ME, ME, "trace")
    job = ended(node, node.coordinator.submit(spec))
    assert job["outcome"] == "SUCCEEDED"
    assert {run["party"]["role"] for run in job["runs"]} == {"guest", "host", "arbiter"}


def test_kuscias_published_job_names_its_dataset_by_namespace_and_name(node: Gateway):
    """Its address is no parameter: nothing is warned of, and no container gets it beside its input."""
    answer = from_alice(node, "/job/create", published("kuscia_psi.json"))
    assert answer["code"] == 200, answer
    local = node.store.local_jobs.get("job-ic-ecdh")
    assert local.warnings == ()
    start = {
        "job_id": local.id,
        "task_id": "job-ic-ecdh-psi",
        "task_name": "ic_psi_ecdh_1",
    }
    assert from_alice(node, "/job/start", {"job_id": local.id})["code"] == 200
    assert from_alice(node, "/task/start", start)["code"] == 200
    [run] = node.store.local_jobs.get(local.id).runs
    assert (run.inputs["train_data"].namespace, run.inputs["train_data"].name) == (
        "data",
        "breast_hetero_host.csv",
    )
    assert {"namespace", "name", "dataset_id"}.isdisjoint(run.parameters)
    assert run.parameters["rank"] == 1


def test_an_address_of_a_dataset_is_no_unknown_parameter_whoever_writes_it(node: Gateway):
    body = published("kuscia_psi.json")
    del body["job_id"]
    body["config"]["role"]["guest"] = [ME]
    body["config"]["initiator"]["node_id"] = ME
    job = shown(node, created(node, body))
    assert [text for text in job["local_warnings"] if "is not a parameter" in text] == []


def test_a_component_may_have_parameters_called_namespace_and_name(node: Gateway):
    """FATE's transformer has both, and gets them."""
    component = {
        "name": "transformer_1",
        "componentName": "dataframe_transformer",
        "provider": "fate",
    }
    flow = component | {
        "version": "2.0.0",
        "input": [],
        "output": [{"type": "dataset", "key": "dataframe_output"}],
    }
    body = published("fate_psi_lr.json")
    body["dag"]["components"] = [flow]
    body["config"]["role"] = {"guest": [ME]}
    table = {"namespace": "testspace", "name": "test_guest"}
    body["config"]["task_params"] = {"guest": {"0": {"transformer_1": table}}}
    body["config"]["job_params"] = {"common": {}}
    [run] = ended(node, created(node, body))["runs"]
    assert run["parameters"] == table


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
FATE_1_SUBMISSION = {"job_dsl": {"components": {}}, "job_runtime_conf": {"dsl_version": 2}}


@pytest.mark.parametrize("path", [CREATE_ALL, "/api/v1/jobs/plan"])
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            published("fate1_conf.json"),
            ["FATE 1.x", "/v1/job/submit", "config.task_params", "job draft"],
        ),
        (FATE_1_SUBMISSION, ["FATE 1.x", "/v1/job/submit"]),
        (published("fate_psi_lr.yaml"), ["FATE 2.x", "/v2/job/submit", "dag.components"]),
        ({"dag_schema": published("fate_psi_lr.yaml")}, ["FATE 2.x", "dag.components"]),
        (KUSCIA_JOB, ["Kuscia", "dag.components"]),
        (KUSCIA_REQUEST, ["Kuscia", "dag.components"]),
    ],
)
def test_a_job_of_another_platform_is_told_where_it_belongs(
    node: Gateway,
    path: str,
    body: Any,
    says: list[str],
):
    before = queries.statuses(node.store, None)
    answer = ask(node, "operator", "POST", path, json=body).json()
    [problem] = answer["data"]["problems"]
    assert (answer["code"], problem["path"]) == (400, "(document)")
    assert [words for words in says if words not in problem["rule"]] == []
    assert queries.statuses(node.store, None) == before


def test_node_ids_that_are_numbers_are_refused_at_each_place(node: Gateway):
    answer = ask(node, "operator", "POST", CREATE_ALL, json=published("numeric_ids.json"))
    problems = refused(answer, 400, "INVALID")["data"]["problems"]
    assert {(one["path"], one["rule"], one["got"]) for one in problems} == {
        ("config.initiator.node_id", "must be text", 9999),
        ("config.role.guest[0]", "must be text", 9999),
        ("config.role.host[0]", "must be text", 10000),
    }


def in_component_info(component: Any) -> Any:
    return {"imageUrl": "psi:1.0.0", "component_info": component}


def in_registration(component: Any) -> Any:
    registration = example("register_unionpay.json")
    return registration | {"components_description": {"psi": component}}


FATE_COMPONENT = published("fate_component.yaml")
SECRETFLOW = published("secretflow_comp_list.json")
OF_FATE = {"component.roles": "roleList", "component.parameters": "inputParam: "}
OF_SECRETFLOW = {
    "comps[0].attrs": "inputParam: ",
    "comps[0].inputs": "inputData: ",
    "comps[0].domain": "",
}
OF_APP_IMAGE = {
    "spec.image": "metadata.image: registry.example/secretflow/interconn-impl:0.0.2-dev",
    "spec.deployTemplates[0].role": "roleList",
    "spec.deployTemplates[0].spec.containers[0].command": "the image's own ENTRYPOINT",
    "components_description": "",
}


@pytest.mark.parametrize(
    ("body", "platform", "mapping"),
    [
        (FATE_COMPONENT, "component description of FATE 2.x", OF_FATE),
        (SECRETFLOW, "component list of SecretFlow", OF_SECRETFLOW),
        (published("kuscia_appimage.yaml"), "AppImage of Kuscia", OF_APP_IMAGE),
        (
            in_registration(FATE_COMPONENT),
            "component description of FATE 2.x",
            {"components_description.psi.component.roles": "roleList"},
        ),
        (
            in_component_info(SECRETFLOW["comps"][0]),
            "component of SecretFlow",
            {
                "component_info.attrs": "inputParam: ",
                "component_info.roleList": '["guest", "host"]',
            },
        ),
    ],
)
def test_a_description_of_another_platform_is_named_and_mapped(
    node: Gateway,
    tmp_path: Path,
    body: Any,
    platform: str,
    mapping: dict[str, str],
):
    """The same by `provider check`, without a node."""
    answer = ask(node, "operator", "POST", "/api/v1/providers", json=body)
    assert answer.status_code == 400
    problems = answer.json()["data"]["problems"]
    file = tmp_path / "description.json"
    file.write_text(json.dumps(body))
    checked = call("provider", "check", str(file), "--json")
    assert checked.exit_code == 1
    for found in (problems, json.loads(checked.stdout)["description"]["errors"]):
        assert any(platform in problem["rule"] for problem in found)
        by_path = {problem["path"]: problem.get("suggestion", "") for problem in found}
        assert {path: by_path[path][: len(text)] for path, text in mapping.items()} == mapping
        assert not [path for path, text in mapping.items() if not text and by_path[path]]


def test_the_mapping_of_another_platforms_description_is_registered(node: Gateway):
    """What is written after it is taken."""
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
    body = {
        "name": "fate-mapped",
        "version": "2.1.0",
        "device": "docker",
        "metadata": {"image": "psi:1.0.0"},
        "components_description": {"psi": component},
    }
    assert ask(node, "operator", "POST", "/v2/provider/register", json=body).json()["code"] == 0
