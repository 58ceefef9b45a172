"""FATE's published algorithms, unchanged, as the components of a job at two nodes.

They have an environment of their own (``make .venv-fate/.done``).
"""

import csv
import io
import json
import os
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
TRAINING = {
    "num_trees": 1,
    "max_depth": 3,
    "learning_rate": 0.5,
}
PSI = "intersect_rsa_1"
BOOSTING = "hetero_secureboost_1"
EVALUATION = "evaluation_1"


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
    """Two nodes with the vendor and a party's table each."""
    (packages,) = (VENV / "lib").glob("python3*/site-packages")
    mounts = [
        {"source": str(packages), "target": "/site"},
        {"source": str(VENDOR), "target": "/vendor"},
    ]
    docker_engine = {
        "kind": "docker",
        "docker": {"allow": {"fate": {"mounts": mounts}}},
    }
    with Federation(tmp_path / "nodes", [jobs.GUEST, jobs.HOST], docker_engine) as federation:
        for role, node_id in (("guest", jobs.GUEST), ("host", jobs.HOST)):
            prepare(federation[node_id], role, image)
        yield federation


def prepare(node: Node, role: str, image: str) -> None:
    """Register FATE's components at a node and upload its party's table."""
    node.storage.chmod(0o755)  # containers of Docker read it as another user
    provider = example("fate_vendor/register.json")
    provider["metadata"]["image"] = image
    node.register(provider)
    jobs.upload(node, role)


def fate_job() -> Any:
    """Return the user's request with FATE's components, and an evaluation after the training."""
    body = jobs.user_job(jobs.GUEST, jobs.HOST)
    provider = {"provider": "fate", "version": "2.2.0"}
    intersection, boosting = body["dag"]["components"]
    intersection |= {"componentName": "PSI", **provider}
    boosting |= {**provider, "output": [jobs.TABLE, jobs.MODEL, jobs.REPORT]}
    evaluation = {
        "name": EVALUATION,
        "componentName": "Evaluation",
        **provider,
        "input": [{"type": "dataset", "key": f"{BOOSTING}.data0"}],
        "output": [jobs.REPORT],
    }
    body["dag"]["components"].append(evaluation)
    body["config"]["task_params"]["common"] = {
        PSI: {},
        BOOSTING: TRAINING,
        EVALUATION: {"metrics": ["auc"]},
    }
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
        return any(run["status"] == "RUNNING" for run in node.runs_of(job_id, BOOSTING))

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


def train_standalone(home: Path, tables: dict[str, str]) -> str:
    """Let FATE train by itself on the parties' tables; return the guest's predictions."""
    parameters = {
        f"runtime.component.parameter.{name}": str(value) for name, value in TRAINING.items()
    }
    shared = home / "shared"
    shared.mkdir(parents=True)
    predictions = home / "predictions"
    parties = []
    for role, text in tables.items():
        folder = home / role
        folder.mkdir()
        (folder / "data_0").write_text(text, encoding="utf-8")
        (folder / "metadata").write_text("{}", encoding="utf-8")
        with (home / f"{role}.log").open("wb") as log:
            party = subprocess.Popen(
                [PYTHON, str(STANDALONE), role, str(folder), str(shared), str(predictions)],
                env=os.environ | ONE_THREAD | parameters | {"PYTHONPATH": str(VENDOR)},
                stdout=log,
                stderr=log,
            )
        parties.append(party)
    codes = [party.wait(600) for party in parties]
    assert codes == [0, 0], (home / "guest.log").read_text(errors="replace")[-3000:]
    return (predictions / "data_0").read_text(encoding="utf-8")


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


@pytest.mark.timeout(1800)
def test_fate_trains_over_a_killed_gateway_as_it_does_alone(federation, tmp_path):
    """PSI, training and evaluation by FATE: ids, scores and AUC are those of its own run."""
    guest = federation[jobs.GUEST]
    host = federation[jobs.HOST]
    job_id = guest.submit(fate_job())
    kill_during_the_training(host, job_id)
    guest.wait_job(job_id, 900)

    tables = {
        "guest": output_of(guest, job_id, f"{PSI}/guest.0/train_data"),
        "host": output_of(host, job_id, f"{PSI}/host.0/train_data"),
    }
    uploaded = [
        (jobs.DATA / f"breast_hetero_{role}.csv").read_text(encoding="utf-8") for role in tables
    ]
    common_ids = set.intersection(*map(ids_of, uploaded))
    assert [ids_of(table) for table in tables.values()] == [common_ids] * 2

    predictions = output_of(guest, job_id, f"{BOOSTING}/guest.0/data0")
    assert predictions == train_standalone(tmp_path / "standalone", tables)

    report = json.loads(output_of(guest, job_id, f"{EVALUATION}/guest.0/report0"))
    (evaluation,) = report
    (auc,) = evaluation["data"]["train_data"]["train_set"]
    assert auc == {"metric": "auc", "val": pytest.approx(auc_of(predictions))}
    assert auc["val"] > 0.97
