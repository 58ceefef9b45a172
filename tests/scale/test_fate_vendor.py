"""FATE's published algorithms, unchanged, as the components of a job at two or three nodes.

They have an environment of their own (``make .venv-fate/.done``).
"""

import csv
import io
import json
import os
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import jobs
from tests.e2e.conftest import small_image
from tests.e2e.nodes import ROOT, Federation, Node, example, wait_for
from tests.services import own_docker

pytestmark = [pytest.mark.scale, pytest.mark.fate, pytest.mark.docker]

VENV = ROOT / ".venv-fate"
VENDOR = ROOT / "examples" / "fate_vendor"
PYTHON = str(VENV / "bin" / "python")
STANDALONE = Path(__file__).with_name("fate_standalone.py")
RECEIVED = "bfia_channel_session_received_messages_total"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
PROVIDER = {
    "provider": "fate",
    "version": "2.2.0",
}
PSI = "intersect_rsa_1"
TRAINING = "training_1"
EVALUATION = "evaluation_1"
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
NODES = {
    "guest": jobs.GUEST,
    "host": jobs.HOST,
    "arbiter": jobs.ARBITER,
}


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    """An image without FATE, whose gigabyte is mounted into the containers with the wrapper."""
    lines = [
        f"FROM {own_docker.BASE}",
        "ENV PYTHONPATH=/site:/vendor PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1",
        'ENTRYPOINT ["python3", "-m", "fatevendor"]',
    ]
    with small_image(tmp_path / "image", f"bfia-fate:{os.getpid()}", lines) as name:
        yield name


@pytest.fixture
def federation(tmp_path: Path, image: str) -> Iterator[Federation]:
    """Three nodes with the vendor; the guest's and the host's have a party's scaled table each."""
    (packages,) = (VENV / "lib").glob("python3*/site-packages")
    mounts = [
        {"source": str(packages), "target": "/site"},
        {"source": str(VENDOR), "target": "/vendor"},
    ]
    docker_engine = {
        "kind": "docker",
        "docker": {"allow": {"fate": {"mounts": mounts}}},
    }
    with Federation(tmp_path / "nodes", NODES.values(), docker_engine) as federation:
        for node in federation.nodes.values():
            register_vendor(node, image)
        for role in ("guest", "host"):
            upload_scaled(federation[NODES[role]], role, tmp_path)
        yield federation


def register_vendor(node: Node, image: str) -> None:
    """Register FATE's components at a node."""
    node.storage.chmod(0o755)  # containers of Docker read it as another user
    provider = example("fate_vendor/register.json")
    provider["metadata"]["image"] = image
    node.register(provider)


def upload_scaled(node: Node, role: str, folder: Path) -> None:
    """Upload a party's table with scaled features: a regression on others diverges."""
    rows = rows_of(table_of(role))
    for column in rows[0].keys() - {"id", "y"}:
        values = [float(row[column]) for row in rows]
        mean = statistics.fmean(values)
        deviation = statistics.pstdev(values)
        for row, value in zip(rows, values, strict=True):
            row[column] = str((value - mean) / deviation)
    file = folder / f"{role}.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    meta = {"label_name": "y"} if role == "guest" else {}
    node.upload(file, "testspace", f"test_{role}", meta=meta)


def table_of(role: str) -> str:
    """Return a party's table of the user's example."""
    return (jobs.DATA / f"breast_hetero_{role}.csv").read_text(encoding="utf-8")


def fate_job(training: str, parameters: dict[str, Any]) -> Any:
    """Return the user's request with FATE's components.

    ``training``: the component between the PSI and the evaluation
    """
    body = jobs.align_job(jobs.GUEST, jobs.HOST)
    (intersection,) = body["dag"]["components"]
    intersection |= {"componentName": "PSI", **PROVIDER}
    trained = {
        "name": TRAINING,
        "componentName": training,
        **PROVIDER,
        "input": [{"type": "dataset", "key": f"{PSI}.train_data"}],
        "output": [jobs.TABLE, jobs.MODEL, jobs.REPORT],
    }
    evaluation = {
        "name": EVALUATION,
        "componentName": "Evaluation",
        **PROVIDER,
        "input": [{"type": "dataset", "key": f"{TRAINING}.data0"}],
        "output": [jobs.REPORT],
    }
    body["dag"]["components"] += [trained, evaluation]
    body["config"]["task_params"]["common"] = {
        PSI: {},
        TRAINING: parameters,
        EVALUATION: {"metrics": ["auc"]},
    }
    return body


def regression_job() -> Any:
    """Return a job with FATE's logistic regression: guest, host and arbiter at a node each."""
    body = fate_job("HeteroLR", REGRESSION_PARAMETERS)
    body["config"]["role"]["arbiter"] = [jobs.ARBITER]
    body["config"]["job_params"]["arbiter"] = {"0": {"resources": jobs.ALL_RESOURCES}}
    return body


def received_messages(node: Node) -> float:
    """Return how many messages the node's channel has received since it was started."""
    lines = node.ask("GET", "/metrics").text.splitlines()
    values = [line.rpartition(" ")[2] for line in lines if line.startswith(RECEIVED)]
    return sum(map(float, values))


def kill_during_the_training(node: Node, job_id: str) -> None:
    """Kill a node's gateway once parties of the training have exchanged messages; restart it."""

    def trains() -> bool:
        job = node.job(job_id)
        assert not job.get("outcome"), f"{job['failure']}\n{node.run_logs()}"
        return any(run["status"] == "RUNNING" for run in node.runs_of(job_id, TRAINING))

    wait_for(trains, 900, about="the training runs")
    before = received_messages(node)
    wait_for(lambda: received_messages(node) > before, 900, about="the training exchanges messages")
    node.kill()
    node.start()


def output_of(node: Node, job_id: str, path: str) -> str:
    """Return an output of a job as text."""
    return node.ask("GET", f"/api/v1/jobs/{job_id}/outputs/{path}/download").text


def rows_of(text: str) -> list[dict[str, str]]:
    """Return the rows of a table."""
    return list(csv.DictReader(io.StringIO(text)))


def ids_of(text: str) -> set[str]:
    """Return the ids in a table."""
    return {row["id"] for row in rows_of(text)}


def common_rows(federation: Federation, job_id: str) -> dict[str, str]:
    """Return the output tables of a job's PSI, by role."""
    return {
        role: output_of(federation[NODES[role]], job_id, f"{PSI}/{role}.0/train_data")
        for role in ("guest", "host")
    }


def train_standalone(
    home: Path,
    training: str,
    parameters: dict[str, Any],
    tables: dict[str, str],
) -> Path:
    """Let FATE train by itself on the parties' tables, by role; an arbiter's is empty.

    Returns the folder with the outputs of each role.
    """
    variables = {"runtime.component.name": training}
    for name, value in parameters.items():
        variables[f"runtime.component.parameter.{name}"] = json.dumps(value)
    for role in tables:
        variables[f"config.node_id.{role}.0"] = NODES[role]
    shared = home / "shared"
    shared.mkdir(parents=True)
    outputs = home / "outputs"
    parties = []
    for role, text in tables.items():
        folder = home / role
        if text:
            folder.mkdir()
            (folder / "data_0").write_text(text, encoding="utf-8")
            (folder / "metadata").write_text("{}", encoding="utf-8")
        with (home / f"{role}.log").open("wb") as log:
            party = subprocess.Popen(
                [PYTHON, str(STANDALONE), role, str(folder), str(shared), str(outputs / role)],
                env=os.environ | ONE_THREAD | variables | {"PYTHONPATH": str(VENDOR)},
                stdout=log,
                stderr=log,
            )
        parties.append(party)
    codes = [party.wait(600) for party in parties]
    assert codes == [0] * len(tables), (home / "guest.log").read_text(errors="replace")[-3000:]
    return outputs


def text_of(outputs: Path, role: str, output: str) -> str:
    """Return an output of a party of FATE's own run."""
    return (outputs / role / output / "data_0").read_text(encoding="utf-8")


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


def auc_of(predictions: str) -> float:
    """Return the share of pairs of a positive and a negative row that are in the right order."""
    scores: dict[str, list[float]] = {"0": [], "1": []}
    for row in rows_of(predictions):
        scores[row["label"]].append(float(row["predict_score"]))
    in_order = 0.0
    for positive in scores["1"]:
        for negative in scores["0"]:
            in_order += (positive > negative) + (positive == negative) / 2
    return in_order / (len(scores["0"]) * len(scores["1"]))


def evaluated_auc(node: Node, job_id: str) -> Any:
    """Return the AUC in the report of FATE's evaluation."""
    (evaluation,) = json.loads(output_of(node, job_id, f"{EVALUATION}/guest.0/report0"))
    (auc,) = evaluation["data"]["train_data"]["train_set"]
    assert auc["metric"] == "auc"
    return auc["val"]


@pytest.mark.timeout(1800)
def test_fate_trains_over_a_killed_gateway_as_it_does_alone(federation, tmp_path):
    """PSI, training and evaluation by FATE: ids, scores and AUC are as in its own run."""
    guest = federation[jobs.GUEST]
    job_id = guest.submit(fate_job("HeteroSecureBoost", BOOSTING_PARAMETERS))
    kill_during_the_training(federation[jobs.HOST], job_id)
    guest.wait_job(job_id, 900)

    tables = common_rows(federation, job_id)
    common_ids = set.intersection(*(ids_of(table_of(role)) for role in tables))
    assert [ids_of(table) for table in tables.values()] == [common_ids] * 2

    predictions = output_of(guest, job_id, f"{TRAINING}/guest.0/data0")
    outputs = train_standalone(
        tmp_path / "standalone",
        "HeteroSecureBoost",
        BOOSTING_PARAMETERS,
        tables,
    )
    assert predictions == text_of(outputs, "guest", "train_data")

    auc = evaluated_auc(guest, job_id)
    assert auc == pytest.approx(auc_of(predictions))
    assert auc > 0.97


@pytest.mark.timeout(1800)
def test_fate_regresses_with_an_arbiter_as_it_does_alone(federation, tmp_path):
    """Guest, host and arbiter at three nodes: the weights are as in FATE's own run."""
    guest = federation[jobs.GUEST]
    job_id = guest.submit(regression_job())
    guest.wait_job(job_id, 900)

    outputs = train_standalone(
        tmp_path / "standalone",
        "HeteroLR",
        REGRESSION_PARAMETERS,
        common_rows(federation, job_id) | {"arbiter": ""},
    )
    for role in ("guest", "host"):
        model = output_of(federation[NODES[role]], job_id, f"{TRAINING}/{role}.0/model0")
        weights = weights_of(model)
        standalone = weights_of(text_of(outputs, role, "model"))
        assert weights == pytest.approx(standalone, abs=1e-6)

    predictions = output_of(guest, job_id, f"{TRAINING}/guest.0/data0")
    auc = evaluated_auc(guest, job_id)
    assert auc == pytest.approx(auc_of(predictions))
    assert auc > 0.97
