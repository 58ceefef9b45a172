"""FATE's published algorithms at two nodes whose runs are in a Kubernetes, with data in S3.

The packages in their image are those of FATE's environment (``make .venv-fate/.done``).
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import storages as real
from tests.e2e import jobs
from tests.e2e.conftest import BASE, run
from tests.e2e.nodes import ROOT, Federation, Node, example, wait_for
from tests.e2e.test_storages import settings_of, top_folders
from tests.services.clusters import kubectl, pushed

pytestmark = [
    pytest.mark.scale,
    pytest.mark.fate,
    pytest.mark.s3,
    pytest.mark.docker,
    pytest.mark.kubernetes,
]

IMAGE = "bfia-fate-vendor:test"
PSI = "intersect_rsa_1"
TRAINING = "training_1"
EVALUATION = "evaluation_1"
PARAMETERS = {
    "num_trees": 1,
    "max_depth": 3,
    "learning_rate": 0.5,
    "he_param": {"kind": "paillier", "key_length": 1024},
}
COMMON_ROWS = 509
# Of FATE's own run on one machine, with these parameters and the rows that both parties have.
AUC_ALONE = 0.9845776197731505


@pytest.fixture
def image() -> str:
    """The image as documented, in the cluster's registry."""
    script = ROOT / "examples" / "fate_vendor" / "build_image.sh"
    run(["bash", str(script), BASE, IMAGE, str(ROOT / ".venv-fate")])
    return pushed(IMAGE)


@pytest.fixture
def places() -> Iterator[dict[str, real.Place]]:
    """A bucket for each node."""
    with real.bucket() as of_guest, real.bucket() as of_host:
        yield {
            jobs.GUEST: of_guest,
            jobs.HOST: of_host,
        }


@pytest.fixture
def federation(
    image: str,
    places: dict[str, real.Place],
    tmp_path: Path,
) -> Iterator[Federation]:
    """Two nodes with the vendor; each has its party's table in its bucket."""
    engine = {
        "kind": "kubernetes",
        "kubernetes": {"kubeconfig": f"{os.environ['BFIA_TEST_KUBERNETES']}/gateway.conf"},
        "docker": {"registries": [os.environ["BFIA_TEST_KUBERNETES_REGISTRY"]]},
    }
    federation = Federation(tmp_path, places, engine)
    for node_id, place in places.items():
        node = federation[node_id]
        node.reached_at(os.environ["BFIA_TEST_KUBERNETES_HOST"])
        node.settings["storages"] = settings_of(place, role=os.environ["BFIA_TEST_S3_ROLE"])
    provider = example("fate_vendor/register.json")
    provider["metadata"]["image"] = image
    with federation:
        for node in federation.nodes.values():
            node.register(provider)
        jobs.upload(federation[jobs.GUEST], "guest")
        jobs.upload(federation[jobs.HOST], "host")
        yield federation


def boosting_job() -> Any:
    """Return the user's request with FATE's components."""
    body = jobs.align_job(jobs.GUEST, jobs.HOST)
    (intersection,) = body["dag"]["components"]
    training = {
        "name": TRAINING,
        "componentName": "HeteroSecureBoost",
        "input": [{"type": "dataset", "key": f"{PSI}.train_data"}],
        "output": [jobs.TABLE, jobs.MODEL, jobs.REPORT],
    }
    evaluation = {
        "name": EVALUATION,
        "componentName": "Evaluation",
        "input": [{"type": "dataset", "key": f"{TRAINING}.data0"}],
        "output": [jobs.REPORT],
    }
    components = [intersection | {"componentName": "PSI"}, training, evaluation]
    for component in components:
        component |= {"provider": "fate", "version": "2.2.0"}
    body["dag"]["components"] = components
    body["config"]["task_params"]["common"] = {
        PSI: {},
        TRAINING: PARAMETERS,
        EVALUATION: {"metrics": ["auc"]},
    }
    return body


def output_of(node: Node, job_id: str, path: str) -> str:
    """Return an output of a job as text."""
    return node.ask("GET", f"/api/v1/jobs/{job_id}/outputs/{path}/download").text


def kill_pod_of(node: Node, job_id: str) -> None:
    """Remove the pod of a node's run of the training, once it runs."""

    def running() -> list[str]:
        job = node.job(job_id)
        assert not job.get("outcome"), f"{job['failure']}\n{node.run_logs()}"
        runs = node.runs_of(job_id, TRAINING)
        return [run["name"] for run in runs if run["status"] == "RUNNING"]

    (name,) = wait_for(running, 900, about="the training runs")
    kubectl(
        "delete",
        "pods",
        "--namespace=bfia",
        f"--selector=bfia-run={name}",
        "--grace-period=0",
        "--force",
    )


@pytest.mark.timeout(1800)
def test_fate_trains_in_a_cluster_though_a_pod_is_killed(federation, places):
    """The task is repeated from its beginning; AUC is that of FATE alone."""
    guest = federation[jobs.GUEST]
    host = federation[jobs.HOST]
    job_id = guest.submit(jobs.limited(boosting_job(), auto_retries=1))
    kill_pod_of(host, job_id)
    guest.wait_job(job_id, 900)

    killed, repeated = host.runs_of(job_id, TRAINING)
    assert killed["failure"]["reason"] == "GONE"
    assert repeated["status"] == "SUCCESS"

    for node, role in ((guest, "guest"), (host, "host")):
        assert f"{job_id}-{role}-0" in top_folders(places[node.id])
        assert os.listdir(node.storage) in ([], [".staging"])

    predictions = output_of(guest, job_id, f"{TRAINING}/guest.0/data0")
    assert len(predictions.splitlines()) == 1 + COMMON_ROWS
    (evaluation,) = json.loads(output_of(guest, job_id, f"{EVALUATION}/guest.0/report0"))
    (auc,) = evaluation["data"]["train_data"]["train_set"]
    assert auc["val"] == pytest.approx(AUC_ALONE)
