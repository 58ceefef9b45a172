"""FATE's published algorithms, unchanged, as the components of jobs at three nodes.

They have an environment of their own (``make .venv-fate/.done``). One job trains all models. FATE
alone, without any node, has to come to the same results.
"""

import csv
import io
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import jobs
from tests.e2e.conftest import small_image
from tests.e2e.nodes import ROOT, Federation, Node, example, wait_for
from tests.services import own_docker

pytestmark = [
    pytest.mark.scale,
    pytest.mark.fate,
    pytest.mark.docker,
    pytest.mark.timeout(3600),
]

VENV = ROOT / ".venv-fate"
VENDOR = ROOT / "examples" / "fate_vendor"
PYTHON = str(VENV / "bin" / "python")
STANDALONE = Path(__file__).with_name("fate_standalone.py")
RECEIVED = "bfia_channel_session_received_messages_total"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
NODES = {
    "guest": jobs.GUEST,
    "host": jobs.HOST,
    "arbiter": jobs.ARBITER,
}
MODEL_ID = "fate"
VERSION = "1"

# Tasks of the jobs.
PSI = "intersect_rsa_1"
SECOND_PSI = "intersect_rsa_2"  # with a third of the guest's rows, for validation
BOOSTING = "boosting_1"
SCALING = "scaling_1"
SECOND_SCALING = "scaling_2"  # of the rows for validation, with the model of the first
REGRESSION = "regression_1"
WARM_START = "regression_2"  # goes on with the model of the first
CROSS_VALIDATION = "regression_3"
EVALUATION = "evaluation_1"  # of the boosting
SECOND_EVALUATION = "evaluation_2"  # of the regression

COMPONENTS = {
    PSI: "PSI",
    SECOND_PSI: "PSI",
    BOOSTING: "HeteroSecureBoost",
    SCALING: "FeatureScale",
    SECOND_SCALING: "FeatureScale",
    REGRESSION: "HeteroLR",
    WARM_START: "HeteroLR",
    CROSS_VALIDATION: "HeteroLR",
    EVALUATION: "Evaluation",
    SECOND_EVALUATION: "Evaluation",
}
# Outputs that each task reads in a training: a table, a table for validation, a model.
INPUTS = {
    BOOSTING: [f"{PSI}.train_data"],
    SCALING: [f"{PSI}.train_data"],
    SECOND_SCALING: [f"{SECOND_PSI}.train_data", f"{SCALING}.model"],
    REGRESSION: [f"{SCALING}.train_data", f"{SECOND_SCALING}.train_data"],
    WARM_START: [f"{SECOND_SCALING}.train_data", f"{REGRESSION}.warm_start_model"],
    CROSS_VALIDATION: [f"{SECOND_SCALING}.train_data"],
    EVALUATION: [f"{BOOSTING}.train_data"],
    SECOND_EVALUATION: [f"{REGRESSION}.train_data"],
}
# Keys of their outputs.
OUTPUTS = {
    PSI: ["train_data"],
    SECOND_PSI: ["train_data"],
    BOOSTING: ["train_data", "model"],
    SCALING: ["train_data", "model"],
    SECOND_SCALING: ["train_data"],
    REGRESSION: ["train_data", "warm_start_model"],
    WARM_START: ["train_data", "model"],
    CROSS_VALIDATION: ["train_data"],
    EVALUATION: ["report"],
    SECOND_EVALUATION: ["report"],
}
PREDICTING = (PSI, BOOSTING, SCALING, REGRESSION)

BOOSTING_PARAMETERS = {
    "num_trees": 1,
    "max_depth": 3,
    "learning_rate": 0.5,
}
REGRESSION_PARAMETERS = {
    "epochs": 2,
    "init_param": {"method": "zeros", "fit_intercept": True},
    "optimizer": {
        "method": "sgd",
        "penalty": "l2",
        "alpha": 0.01,
        "optimizer_params": {"lr": 0.5},
    },
}
PARAMETERS = {
    BOOSTING: BOOSTING_PARAMETERS,
    SCALING: {"method": "standard"},
    SECOND_SCALING: {"method": "standard"},
    REGRESSION: REGRESSION_PARAMETERS,
    WARM_START: REGRESSION_PARAMETERS | {"epochs": 1},
    CROSS_VALIDATION: REGRESSION_PARAMETERS | {"epochs": 1, "cv_param": {"n_splits": 2}},
    EVALUATION: {"metrics": ["auc"]},
    SECOND_EVALUATION: {"metrics": ["auc"]},
}


# ---------------------------------------------------------------- nodes and tables


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image without FATE, whose gigabyte is mounted into the containers with the wrapper."""
    lines = [
        f"FROM {own_docker.BASE}",
        "ENV PYTHONPATH=/site:/vendor PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1",
        'ENTRYPOINT ["python3", "-m", "fatevendor"]',
    ]
    folder = tmp_path_factory.mktemp("image") / "image"
    with small_image(folder, f"bfia-fate:{os.getpid()}", lines) as name:
        yield name


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, image: str) -> Iterator[Federation]:
    """Three nodes with the vendor; the guest's and the host's have the user's tables."""
    (packages,) = (VENV / "lib").glob("python3*/site-packages")
    mounts = [
        {"source": str(packages), "target": "/site"},
        {"source": str(VENDOR), "target": "/vendor"},
    ]
    docker_engine = {
        "kind": "docker",
        "docker": {"allow": {"fate": {"mounts": mounts}}},
    }
    home = tmp_path_factory.mktemp("nodes")
    with Federation(home, NODES.values(), docker_engine) as federation:
        for node in federation.nodes.values():
            register_vendor(node, image)
        jobs.upload(federation[jobs.GUEST], "guest")
        jobs.upload(federation[jobs.HOST], "host")
        yield federation


def register_vendor(node: Node, image: str) -> None:
    """Register FATE's components at a node."""
    node.storage.chmod(0o755)  # containers of Docker read it as another user
    provider = example("fate_vendor/register.json")
    provider["metadata"]["image"] = image
    node.register(provider)


def users_rows(role: str) -> list[dict[str, str]]:
    """Return the rows of a party's table of the user's example."""
    return rows_of((jobs.DATA / f"breast_hetero_{role}.csv").read_text(encoding="utf-8"))


def rows_of(text: str) -> list[dict[str, str]]:
    """Return the rows of a table."""
    return list(csv.DictReader(io.StringIO(text)))


def text_of(rows: list[dict[str, str]]) -> str:
    """Return rows as a table."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def ids_of(rows: list[dict[str, str]]) -> set[str]:
    """Return the ids in a table."""
    return {row["id"] for row in rows}


def upload_rows(
    node: Node,
    name: str,
    rows: list[dict[str, str]],
) -> None:
    """Upload a table of these rows."""
    file = node.home / f"{name}.csv"
    file.write_text(text_of(rows), encoding="utf-8")
    meta = {"label_name": "y"} if "y" in rows[0] else {}
    node.upload(file, "testspace", name, meta=meta)


def output_of(node: Node, job_id: str, path: str) -> str:
    """Return an output of a job as text."""
    return node.ask("GET", f"/api/v1/jobs/{job_id}/outputs/{path}/download").text


# ---------------------------------------------------------------- jobs


def fate_job(*tasks: str) -> Any:
    """Return a job with some of FATE's tasks, which read outputs of each other only."""
    body = jobs.align_job(jobs.GUEST, jobs.HOST)
    body["dag"]["components"] = [component_of(task, tasks) for task in tasks]
    config = body["config"]
    if "HeteroLR" in map(COMPONENTS.get, tasks):
        config["role"]["arbiter"] = [jobs.ARBITER]
        config["job_params"]["arbiter"] = {"0": {"resources": jobs.ALL_RESOURCES}}
    config["task_params"]["common"] = {task: PARAMETERS.get(task, {}) for task in tasks}
    return body


def component_of(task: str, tasks: tuple[str, ...]) -> dict[str, Any]:
    """Return a task of a job's flow, with its inputs from the tasks in the job."""
    sources = [key for key in INPUTS.get(task, []) if key.partition(".")[0] in tasks]
    return {
        "name": task,
        "componentName": COMPONENTS[task],
        "provider": "fate",
        "version": "2.2.0",
        "input": [{"type": type_of(source), "key": source} for source in sources],
        "output": [{"type": type_of(key), "key": key} for key in OUTPUTS[task]],
    }


def type_of(key: str) -> str:
    """Return the type of an input or output."""
    if key.endswith("model"):
        return "model"
    if key.endswith("report"):
        return "report"
    return "dataset"


def dataset(body: Any, role: str, task: str, name: str) -> None:
    """Set the table that a party's task reads."""
    parameters = body["config"]["task_params"].setdefault(role, {}).setdefault("0", {})
    parameters[task] = {"dataset_id": f"testspace#{name}"}


@pytest.fixture(scope="module")
def training(federation: Federation) -> str:
    """The job that trains, during whose boosting the host's gateway is killed; return its id."""
    guest = federation[jobs.GUEST]
    upload_rows(guest, "third_guest", users_rows("guest")[::3])
    body = jobs.limited(
        fate_job(*COMPONENTS),
        model_id=MODEL_ID,
        model_version=VERSION,
    )
    dataset(body, "guest", SECOND_PSI, "third_guest")
    dataset(body, "host", SECOND_PSI, "test_host")
    job_id = guest.submit(body)
    kill_during_the_boosting(federation[jobs.HOST], job_id)
    guest.wait_job(job_id, 1500)
    return job_id


def received_messages(node: Node) -> float:
    """Return how many messages the node's channel has received since it was started."""
    lines = node.ask("GET", "/metrics").text.splitlines()
    values = [line.rpartition(" ")[2] for line in lines if line.startswith(RECEIVED)]
    return sum(map(float, values))


def kill_during_the_boosting(node: Node, job_id: str) -> None:
    """Kill a node's gateway once parties have exchanged messages in the boosting; restart it."""

    def boosts() -> bool:
        job = node.job(job_id)
        assert not job.get("outcome"), f"{job['failure']}\n{node.run_logs()}"
        return any(run["status"] == "RUNNING" for run in node.runs_of(job_id, BOOSTING))

    wait_for(boosts, 900, about="the boosting runs")
    before = received_messages(node)
    wait_for(lambda: received_messages(node) > before, 900, about="the boosting sends messages")
    node.kill()
    node.start()


@pytest.fixture(scope="module")
def prediction(federation: Federation, training: str) -> str:
    """A job that predicts with the models of the training; return its id.

    The guest's table has a third of the rows, no label, and its columns in reverse order.
    """
    guest = federation[jobs.GUEST]
    new_rows = []
    for row in users_rows("guest")[::-3]:
        del row["y"]
        new_rows.append({name: row[name] for name in ("id", *reversed(list(row)))})
    upload_rows(guest, "new_guest", new_rows)
    for node in federation.nodes.values():
        node.post(f"/api/v1/models/{MODEL_ID}/{VERSION}/deploy", {})
    body = jobs.limited(
        fate_job(*PREDICTING),
        job_type="predict",
        model_id=MODEL_ID,
        model_version=VERSION,
    )
    for component in body["dag"]["components"]:
        component["output"] = [{"type": "dataset", "key": "train_data"}]
    dataset(body, "guest", PSI, "new_guest")
    job_id = guest.submit(body)
    guest.wait_job(job_id, 600)
    return job_id


# ---------------------------------------------------------------- FATE alone


def standalone_task(
    name: str,
    task: str,
    inputs: Mapping[str, str],
) -> dict[str, Any]:
    """Return a task for `fate_standalone.py`, with the component and parameters of a job's."""
    return {
        "name": name,
        "component": COMPONENTS[task],
        "parameters": PARAMETERS[task],
        "inputs": dict(inputs),
    }


ALL_ROWS = "in/all"
ROWS_FOR_VALIDATION = "in/validation"
NEW_ROWS = "in/new"
ALONE = [
    standalone_task(BOOSTING, BOOSTING, {"train_data": ALL_ROWS}),
    standalone_task(SCALING, SCALING, {"train_data": ALL_ROWS}),
    standalone_task(
        SECOND_SCALING,
        SCALING,
        {"train_data": ROWS_FOR_VALIDATION, "model": f"{SCALING}/model"},
    ),
    standalone_task(
        REGRESSION,
        REGRESSION,
        {
            "train_data": f"{SCALING}/train_data",
            "validate_data": f"{SECOND_SCALING}/train_data",
        },
    ),
    standalone_task(
        WARM_START,
        WARM_START,
        {"train_data": f"{SECOND_SCALING}/train_data", "warm_start_model": f"{REGRESSION}/model"},
    ),
    standalone_task(
        CROSS_VALIDATION,
        CROSS_VALIDATION,
        {"train_data": f"{SECOND_SCALING}/train_data"},
    ),
    standalone_task(
        "boosting_of_new",
        BOOSTING,
        {"train_data": NEW_ROWS, "model": f"{BOOSTING}/model"},
    ),
    standalone_task(
        "scaling_of_new",
        SCALING,
        {"train_data": NEW_ROWS, "model": f"{SCALING}/model"},
    ),
    standalone_task(
        "regression_of_new",
        REGRESSION,
        {"train_data": "scaling_of_new/train_data", "model": f"{REGRESSION}/model"},
    ),
]


@pytest.fixture(scope="module")
def alone(
    federation: Federation,
    training: str,
    prediction: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Let FATE by itself do what the jobs did, with the rows of their PSI.

    Returns the folder with the outputs of each role and task.
    """
    home = tmp_path_factory.mktemp("alone")
    new_ids = ids_of(output_rows(federation, prediction, "guest", PSI))
    for role in ("guest", "host"):
        rows = output_rows(federation, training, role, PSI)
        write_table(home / role / ALL_ROWS, rows)
        # In the order of the training's columns, unlike the job's.
        write_table(home / role / NEW_ROWS, [row for row in rows if row["id"] in new_ids])
        write_table(
            home / role / ROWS_FOR_VALIDATION,
            output_rows(federation, training, role, SECOND_PSI),
        )
    run_alone(home)
    return home


def write_table(folder: Path, rows: list[dict[str, str]]) -> None:
    """Write a table as a node has it."""
    folder.mkdir(parents=True)
    (folder / "data_0").write_text(text_of(rows), encoding="utf-8")
    (folder / "metadata").write_text("{}", encoding="utf-8")


def run_alone(home: Path) -> None:
    """Run the tasks of `ALONE`, a process for each role."""
    shared = home / "shared"
    shared.mkdir()
    nodes = {f"config.node_id.{role}.0": node for role, node in NODES.items()}
    parties = []
    for role in NODES:
        tasks = [task for task in ALONE if role != "arbiter" or task["component"] == "HeteroLR"]
        (home / role).mkdir(exist_ok=True)
        with (home / f"{role}.log").open("wb") as log:
            party = subprocess.Popen(
                [PYTHON, str(STANDALONE), role, str(shared), str(home / role), json.dumps(tasks)],
                env=os.environ | ONE_THREAD | nodes | {"PYTHONPATH": str(VENDOR)},
                stdout=log,
                stderr=log,
            )
        parties.append(party)
    try:
        codes = [party.wait(1500) for party in parties]
    finally:
        for party in parties:
            party.kill()
            party.wait()
    assert codes == [0] * len(NODES), (home / "guest.log").read_text(errors="replace")[-3000:]


# ---------------------------------------------------------------- results


def output_rows(
    federation: Federation,
    job_id: str,
    role: str,
    task: str,
) -> list[dict[str, str]]:
    """Return the table that a party's task has written."""
    return rows_of(output_of(federation[NODES[role]], job_id, f"{task}/{role}.0/train_data"))


def rows_alone(alone: Path, task: str) -> list[dict[str, str]]:
    """Return the guest's table of a task that FATE has run by itself."""
    return rows_of((alone / "guest" / task / "train_data" / "data_0").read_text(encoding="utf-8"))


def scores_of(rows: list[dict[str, str]]) -> dict[tuple[str, ...], float]:
    """Return the scores in a table of predictions.

    A row is known by its id, the kind of its data set and the fold of a cross-validation.
    """
    scores = {}
    for row in rows:
        scores[row["id"], row["type"], row.get("fold", "")] = float(row["predict_score"])
    assert len(scores) == len(rows)
    return scores


def weights_of(model: str) -> dict[str, float]:
    """Return the weights in a party's part of FATE's logistic regression, by column.

    The guest's part also has an intercept.
    """
    estimator = json.loads(model)["data"]["estimator"]
    parameters = estimator["param"]
    values = [value for (value,) in parameters["coef_"]]
    weights = dict(zip(estimator["header"], values, strict=True))
    if parameters["intercept_"]:
        (weights["intercept"],) = parameters["intercept_"]
    return weights


def auc_of(rows: list[dict[str, str]]) -> float:
    """Return the share of pairs of a positive and a negative row that are in the right order."""
    scores: dict[str, list[float]] = {"0": [], "1": []}
    for row in rows:
        scores[row["label"]].append(float(row["predict_score"]))
    in_order = 0.0
    for positive in scores["1"]:
        for negative in scores["0"]:
            in_order += (positive > negative) + (positive == negative) / 2
    return in_order / (len(scores["0"]) * len(scores["1"]))


def evaluated_auc(node: Node, job_id: str, evaluation: str) -> dict[str, float]:
    """Return the AUC in the report of FATE's evaluation, by the kind of data set."""
    (report,) = json.loads(output_of(node, job_id, f"{evaluation}/guest.0/report"))
    values = {}
    for kind, (auc,) in report["data"]["train_data"].items():
        assert auc["metric"] == "auc"
        values[kind] = auc["val"]
    return values


def check_evaluation(
    node: Node,
    job_id: str,
    evaluation: str,
    rows: list[dict[str, str]],
) -> None:
    """Check that FATE's evaluation has the AUC of the predictions, and that this is high."""
    values = evaluated_auc(node, job_id, evaluation)
    assert values.keys() == {row["type"] for row in rows}
    for kind, auc in values.items():
        assert auc == pytest.approx(auc_of([row for row in rows if row["type"] == kind]))
        assert auc > 0.97


# ---------------------------------------------------------------- tests


def test_two_psi_of_a_job_run_at_the_same_time_and_keep_apart(federation, training):
    """Each has the common ids of its own tables, though both share the session and its parties."""
    for role in ("guest", "host"):
        for psi, rows in ((PSI, users_rows("guest")), (SECOND_PSI, users_rows("guest")[::3])):
            common_ids = ids_of(rows) & ids_of(users_rows("host"))
            assert ids_of(output_rows(federation, training, role, psi)) == common_ids

    (first,) = federation[jobs.GUEST].runs_of(training, PSI)
    (second,) = federation[jobs.GUEST].runs_of(training, SECOND_PSI)
    assert first["started_at"] < second["ended_at"]
    assert second["started_at"] < first["ended_at"]


def test_fate_trains_over_a_killed_gateway_as_it_does_alone(federation, training, alone):
    """The scores and the AUC of a boosting are as in FATE's own run."""
    rows = output_rows(federation, training, "guest", BOOSTING)
    assert scores_of(rows) == scores_of(rows_alone(alone, BOOSTING))
    check_evaluation(federation[jobs.GUEST], training, EVALUATION, rows)


@pytest.mark.parametrize("task", [REGRESSION, WARM_START])
def test_fate_regresses_on_the_users_tables_as_it_does_alone(federation, training, alone, task):
    """Scaled by FATE, with an arbiter at a third node: the weights are as in FATE's own run."""
    key = OUTPUTS[task][1]
    for role in ("guest", "host"):
        model = output_of(federation[NODES[role]], training, f"{task}/{role}.0/{key}")
        standalone = (alone / role / task / "model" / "data_0").read_text(encoding="utf-8")
        assert weights_of(model) == pytest.approx(weights_of(standalone), abs=1e-6)


def test_fate_evaluates_rows_for_validation_too(federation, training, alone):
    rows = output_rows(federation, training, "guest", REGRESSION)
    assert {row["type"] for row in rows} == {"train_set", "validate_set"}
    expected = scores_of(rows_alone(alone, REGRESSION))
    assert scores_of(rows) == pytest.approx(expected, abs=1e-6)
    check_evaluation(federation[jobs.GUEST], training, SECOND_EVALUATION, rows)


def test_a_cross_validation_has_the_scores_of_every_fold(federation, training, alone):
    rows = output_rows(federation, training, "guest", CROSS_VALIDATION)
    validated = [row["id"] for row in rows if row["type"] == "validate_set"]
    assert {row["fold"] for row in rows} == {"0", "1"}
    assert sorted(validated) == sorted(
        ids_of(output_rows(federation, training, "guest", SECOND_PSI))
    )
    expected = scores_of(rows_alone(alone, CROSS_VALIDATION))
    assert scores_of(rows) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("task", "task_alone"),
    [
        (BOOSTING, "boosting_of_new"),
        (REGRESSION, "regression_of_new"),
    ],
)
def test_fate_predicts_by_a_models_id_as_it_does_alone(
    federation, prediction, alone, task, task_alone
):
    """Other rows than the training's, without labels, and with their columns in another order."""
    rows = output_rows(federation, prediction, "guest", task)
    new_ids = ids_of(users_rows("guest")[::-3]) & ids_of(users_rows("host"))
    assert ids_of(rows) == new_ids
    assert {row["type"] for row in rows} == {"test_set"}
    assert scores_of(rows) == pytest.approx(scores_of(rows_alone(alone, task_alone)), abs=1e-6)
