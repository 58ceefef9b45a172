"""SecretFlow's published regression at two nodes, compared with the same one in the open.

It trains in `cheetah`, the default protocol, which needs no trust. The guest's data is in S3, the
host's in HDFS.
"""

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import storages as real
from tests.cli import call
from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, example
from tests.e2e.test_secretflow import PYTHON, VENDOR, built_image, federation_of
from tests.e2e.test_storages import settings_of, top_folders
from tests.e2e.test_training import deploy, predict, write_rows_without_labels

pytestmark = [pytest.mark.scale, pytest.mark.secretflow, pytest.mark.docker]

REGISTRATION = "secretflow_vendor/register.json"
COMMAND = [*PYTHON, "-m", "sfvendor"]
ALIGN = "align"
TRAIN = "train"
EPOCHS = 5
BATCH_SIZE = 128
LEARNING_RATE = 0.1
# Largest error of a probability by fixed-point numbers.
PRECISION = 0.01


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    """The example's image, without the packages."""
    with built_image(tmp_path / "image", ["python3", "-m", "sfvendor"]) as name:
        yield name


@pytest.fixture
def places() -> Iterator[dict[str, real.Place]]:
    """The storage of each node: a bucket at the guest, a folder of HDFS at the host."""
    with real.bucket() as bucket, real.folder() as folder:
        yield {
            jobs.GUEST: bucket,
            jobs.HOST: folder,
        }


@pytest.fixture
def federation(
    image: str,
    places: dict[str, real.Place],
    tmp_path: Path,
) -> Iterator[Federation]:
    """Two nodes with the vendor; each has its party's table in its storage."""
    federation = federation_of(tmp_path / "nodes", "secretflow", image, COMMAND)
    guest = federation[jobs.GUEST]
    host = federation[jobs.HOST]
    role = os.environ["BFIA_TEST_S3_ROLE"]
    guest.settings["storages"] = settings_of(places[jobs.GUEST], role=role)
    host.settings["storages"] = settings_of(places[jobs.HOST])
    registration = example(REGISTRATION)
    registration["metadata"]["image"] = image
    with federation:
        for node in (guest, host):
            node.register(registration)
        jobs.upload(guest, "guest")
        jobs.upload(host, "host")
        yield federation


def regression_job() -> Any:
    """Return a job that aligns both tables and trains on the common rows."""
    body = jobs.align_job(jobs.GUEST, jobs.HOST)
    (template,) = body["dag"]["components"]
    software = {"provider": "secretflow", "version": "0.9.5"}
    align = template | software
    align |= {
        "name": ALIGN,
        "componentName": "PSI",
        "output": [{"type": "dataset", "key": "train_data"}],
    }
    train = template | software
    train |= {
        "name": TRAIN,
        "componentName": "LogisticRegression",
        "input": [{"type": "dataset", "key": f"{ALIGN}.train_data"}],
        "output": [
            {"type": "dataset", "key": "train_data"},
            {"type": "model", "key": "model"},
            {"type": "report", "key": "report"},
        ],
    }
    body["dag"]["components"] = [align, train]
    config = body["config"]
    config["task_params"] = {
        "common": {
            ALIGN: {"protocol": "rr22"},
            TRAIN: {
                "epochs": EPOCHS,
                "batch_size": BATCH_SIZE,
                "learning_rate": LEARNING_RATE,
            },
        },
        "guest": {"0": {ALIGN: {"dataset_id": "testspace#test_guest"}}},
        "host": {"0": {ALIGN: {"dataset_id": "testspace#test_host"}}},
    }
    return body


# ---------------------------------------------------------------- the regression without protection


def read_table(role: str) -> dict[str, dict[str, float]]:
    """Return the rows of a role's table by id."""
    text = (jobs.DATA / f"breast_hetero_{role}.csv").read_text(encoding="utf-8")
    rows = {}
    for row in csv.DictReader(io.StringIO(text)):
        key = row.pop("id")
        rows[key] = {name: float(value) for name, value in row.items()}
    return rows


def standardised(columns: list[list[float]]) -> list[list[float]]:
    """Return columns with mean 0 and deviation 1."""
    result = []
    for column in columns:
        mean = math.fsum(column) / len(column)
        variance = math.fsum((value - mean) ** 2 for value in column) / len(column)
        deviation = math.sqrt(variance)
        result.append([(value - mean) / deviation for value in column])
    return result


Sigmoid = Callable[[float], float]


def exact_sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-score))


def approximate_sigmoid(score: float) -> float:
    """Return SecretFlow's default approximation in secret shares."""
    return (1 + score / math.sqrt(1 + score * score)) / 2


def plain_probabilities(
    ids: list[str],
    sigmoid: Sigmoid,
) -> tuple[list[float], list[float]]:
    """Train on both tables in the open; return the rows' probabilities and labels."""
    guest = read_table("guest")
    host = read_table("host")
    labels = [guest[key].pop("y") for key in ids]
    merged = [guest[key] | host[key] for key in ids]
    columns = [[row[name] for row in merged] for name in merged[0]]
    rows = [[*values, 1.0] for values in zip(*standardised(columns), strict=True)]
    weights = [0.0] * len(rows[0])
    for _ in range(EPOCHS):
        for start in range(0, len(rows), BATCH_SIZE):
            end = start + BATCH_SIZE
            step(weights, rows[start:end], labels[start:end], sigmoid)
    return [sigmoid(score_of(weights, row)) for row in rows], labels


def step(
    weights: list[float],
    rows: list[list[float]],
    labels: list[float],
    sigmoid: Sigmoid,
) -> None:
    """Move the weights against the gradient of a batch, whose L2 penalty spares the intercept."""
    gradient = [*weights[:-1], 0.0]
    for row, label in zip(rows, labels, strict=True):
        error = sigmoid(score_of(weights, row)) - label
        for place, value in enumerate(row):
            gradient[place] += error * value
    for place, slope in enumerate(gradient):
        weights[place] -= LEARNING_RATE * slope / len(rows)


def score_of(weights: list[float], row: list[float]) -> float:
    return math.fsum(weight * value for weight, value in zip(weights, row, strict=True))


def area_under_curve(scores: list[float], labels: list[float]) -> float:
    """Return the share of pairs of rows whose scores are in the order of their labels."""
    positives = [score for score, label in zip(scores, labels, strict=True) if label]
    negatives = [score for score, label in zip(scores, labels, strict=True) if not label]
    ordered = sum(high > low for high in positives for low in negatives)
    return ordered / (len(positives) * len(negatives))


# ---------------------------------------------------------------- the job


def download(node: Node, job_id: str, party: str, output: str) -> str:
    path = f"/api/v1/jobs/{job_id}/outputs/{TRAIN}/{party}/{output}/download"
    return node.ask("GET", path).text


def probabilities(node: Node, job_id: str) -> dict[str, float]:
    """Return the rows' probabilities that the guest has learned, by id."""
    table = download(node, job_id, "guest.0", "train_data")
    return {row["id"]: float(row["probability"]) for row in csv.DictReader(io.StringIO(table))}


@pytest.mark.s3
@pytest.mark.hdfs
def test_a_regression_in_secret_shares_is_as_good_as_in_the_open(federation, places, tmp_path):
    """It trains on the common rows, and predicts others with the model of both parties."""
    guest = federation[jobs.GUEST]
    host = federation[jobs.HOST]
    write_rows_without_labels(tmp_path / "new.csv")
    guest.upload(tmp_path / "new.csv", "testspace", "new_guest")

    job_id = guest.submit(regression_job())
    guest.wait_job(job_id, 600)
    deploy(federation, job_id)
    prediction_id = predict(guest, job_id, guest="new_guest", host="test_host")["job_id"]
    guest.wait_job(prediction_id, 600)

    for node, role in ((guest, "guest"), (host, "host")):
        assert f"{prediction_id}-{role}-0" in top_folders(places[node.id])
        assert os.listdir(node.storage) in ([], [".staging"])
    trained = probabilities(guest, job_id)
    predicted = probabilities(guest, prediction_id)
    report = json.loads(download(guest, job_id, "guest.0", "report"))
    guest_model = json.loads(download(guest, job_id, "guest.0", "model"))
    host_model = json.loads(download(host, job_id, "host.0", "model"))
    ids = list(trained)
    scores = list(trained.values())
    approximate, labels = plain_probabilities(ids, approximate_sigmoid)
    exact, _ = plain_probabilities(ids, exact_sigmoid)

    assert len(ids) == 509
    assert scores == pytest.approx(approximate, abs=PRECISION)
    auc = area_under_curve(scores, labels)
    assert auc == pytest.approx(report["auc"], abs=0.0001)
    assert auc >= area_under_curve(exact, labels) - 0.002
    assert auc > 0.99
    assert len(guest_model["weights"]) == 10
    assert len(host_model["weights"]) == 20
    assert "intercept" not in host_model
    assert 100 < len(predicted) < 200
    expected = {key: trained[key] for key in predicted}
    assert predicted == pytest.approx(expected, abs=PRECISION)


def test_provider_check_accepts_secretflow():
    result = call(
        "provider",
        "check",
        str(VENDOR / "register.json"),
        "--command",
        " ".join(COMMAND),
        "--parameter",
        "epochs=1",
        "--parameter",
        "mpc_protocol=semi2k",
    )
    assert result.exit_code == 0, result.stdout
