"""The user's training and its results: outputs, a model that is deployed and exported, failures."""

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli import call
from tests.e2e import jobs
from tests.e2e.jobs import events
from tests.e2e.nodes import Federation, Node, example, process_engine, wait_for

STRANGER = "JG0100003300000030"
FLOW = "JG0100001100000000"
ALIGN = "intersect_rsa_1"
TRAIN = "hetero_secureboost_1"
TASKS = (ALIGN, TRAIN)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two parties with the user's tables, and a node that is no party."""
    home = tmp_path_factory.mktemp("models")
    engine = process_engine("unionpay:2.0.0")
    node_ids = [jobs.GUEST, jobs.HOST, STRANGER]
    with Federation(home, node_ids, engine) as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        jobs.upload(federation[STRANGER], "guest")
        for node in federation.nodes.values():
            # An admin may have opened the folder; the files below stay closed.
            node.storage.chmod(0o755)
        yield federation


@pytest.fixture(scope="module")
def version(federation: Federation) -> str:
    """The model's version of a training whose scheduling node was killed near its end."""
    guest = federation[jobs.GUEST]
    body = jobs.quick_job(jobs.GUEST, jobs.HOST)
    job_id = guest.submit(body)
    kill_at_event(guest, job_id, "model saved", 1)
    return job_id


def kill_at_event(
    node: Node,
    job_id: str,
    event: str,
    times: int,
) -> dict[str, Any]:
    """Kill and restart a node once a job has had an event so often; return the ended job."""

    def has_happened() -> bool:
        return len(events(node, job_id, event)) == times

    wait_for(
        has_happened,
        90,
        0.01,
        f"{event} at {node.id}",
    )
    node.kill()
    node.start()
    return node.wait_job(job_id, 120)


def url(version: str, subpath: str = "") -> str:
    """Return the path of a model's version."""
    return f"/api/v1/models/{FLOW}/{version}{subpath}"


def models(node: Node) -> list[dict[str, Any]]:
    """Return the versions of all models at a node."""
    return list(node.get("/api/v1/models")["models"])


def checksums(
    node: Node,
    version: str,
) -> dict[str, str]:
    """Return the checksums of a model's files at a node, by name."""
    details = verified(node, version)
    (part,) = details["models"][0]["parts"]
    return {file["name"]: file["sha256"] for file in part["files"]}


def verified(node: Node, version: str) -> dict[str, Any]:
    """Return the details of a model's version after a comparison of its files' checksums."""
    return node.get(url(version), verify="1")


def act(node: Node, action: str, version: str) -> httpx.Response:
    """Deploy or undeploy a model's version at a node."""
    return node.ask("POST", url(version, f"/{action}"))


def export(node: Node, version: str) -> bytes:
    """Return the archive of a model's version."""
    response = node.ask("GET", url(version, "/export"))
    return response.content


def import_model(node: Node, archive: bytes) -> httpx.Response:
    return node.ask(
        "POST",
        "/api/v1/models/import",
        content=archive,
    )


@pytest.mark.parametrize(
    ("node_id", "party"),
    [
        (jobs.GUEST, "guest.0"),
        (jobs.HOST, "host.0"),
    ],
)
def test_a_training_leaves_one_version_at_each_party_with_checksums(
    federation, version, node_id, party
):
    node = federation[node_id]

    by_version = {model["version"]: model for model in models(node)}
    model = by_version[version]
    assert model["model_id"] == FLOW
    assert model["here"] == [party]
    assert model["deployed"] is False

    details = verified(node, version)
    assert details["damage"] == []
    (part,) = details["models"][0]["parts"]
    assert part["task"] == TRAIN
    assert part["component"] == "HeteroSecureBoost"
    assert part["output"] == "model"
    folder = node.storage / part["namespace"] / part["name"]
    expected = {}
    for file in folder.iterdir():
        content = file.read_bytes()
        expected[file.name] = hashlib.sha256(content).hexdigest()
    assert checksums(node, version) == expected

    timeline = node.timeline(version)
    names = [event["event"] for event in timeline]
    assert names.count("model saved") == 1
    assert names.count("job FINISHED here") == 1
    assert names.index("model saved") < names.index("job FINISHED here")
    assert node.job(version)["model"] == {
        "model_id": FLOW,
        "version": version,
        "url": url(version),
    }


def test_a_node_that_is_no_party_has_no_model(federation, version):
    assert models(federation[STRANGER]) == []


def test_reports_are_listed_and_read_as_numbers_and_curves(federation, version):
    guest = federation[jobs.GUEST]
    listing = guest.get(f"/api/v1/jobs/{version}/reports")
    reports = {}
    for entry in listing["reports"]:
        output = (entry["task"], entry["output"])
        reports[output] = guest.get(entry["url"])

    assert listing["warnings"] == []
    assert reports[TRAIN, "train-auc"]["values"]["auc"] > 0.98
    (loss,) = reports[TRAIN, "train-loss"]["series"]
    assert loss["name"] == "loss"
    assert loss["columns"] == ["tree", "loss"]
    assert len(loss["points"]) == 2
    (curve,) = reports[TRAIN, "train-ks"]["series"]
    assert len(curve["points"]) > 5
    (counts,) = reports[ALIGN, "train-intersection"]["series"]
    assert ["intersection", 509.0] in counts["points"]

    table = f"/api/v1/jobs/{version}/reports/{TRAIN}/guest.0/data0"
    refused = guest.ask("GET", table).json()
    assert refused["data"]["reason"] == "NO_REPORT"


def test_a_model_travels_with_equal_checksums_and_nothing_else_is_taken(federation, version):
    guest = federation[jobs.GUEST]
    importer = federation[STRANGER]
    archive = export(guest, version)
    assert archive == export(guest, version)

    half_size = len(archive) // 2
    refused = import_model(importer, archive[:half_size])
    assert refused.status_code == 400
    assert refused.json()["data"]["reason"] == "ARCHIVE_INVALID"
    assert models(importer) == []
    assert not list(importer.storage.glob("model-*"))

    for _ in range(2):  # a repeated import is a success, too
        response = import_model(importer, archive)
        assert response.status_code == 200, response.text
        assert response.json()["imported"]
        assert response.json()["here"] == ["guest.0"]
    assert checksums(importer, version) == checksums(guest, version)
    details = verified(importer, version)
    assert details["damage"] == []
    assert export(importer, version) == archive

    deployed = act(importer, "deploy", version)
    assert deployed.status_code == 200
    refused = importer.ask("DELETE", url(version))
    assert refused.status_code == 409
    assert refused.json()["data"]["reason"] == "MODEL_DEPLOYED"
    undeployed = act(importer, "undeploy", version)
    assert undeployed.json()["deployed"] is False
    deleted = importer.ask("DELETE", url(version))
    assert deleted.status_code == 200
    missing = importer.ask("GET", url(version))
    assert missing.status_code == 404
    assert not list(importer.storage.glob("model-*"))


# ---------------------------------------------------------------- predicting


def deploy(
    federation: Federation,
    version: str,
    node_ids: Iterable[str] = (jobs.GUEST, jobs.HOST),
) -> None:
    """Deploy a model at these nodes, and undeploy it at the other party."""
    for node_id in (jobs.GUEST, jobs.HOST):
        action = "deploy" if node_id in node_ids else "undeploy"
        response = act(federation[node_id], action, version)
        assert response.status_code == 200


def refusal(node: Node, body: Any) -> str:
    """Return the reason for which a node refuses a job."""
    response = node.post(f"{jobs.SCHEDULE}/job/create_all", body)
    assert response["code"] != 0, response
    return str(response["data"]["reason"])


def scores(
    node: Node,
    job_id: str,
) -> dict[str, str]:
    """Return the scores that a job has written at the guest, by row id."""
    address = node.outputs(job_id)[TRAIN, "guest.0", "data0"]
    folder = node.storage / address["namespace"] / address["name"]
    lines = (folder / "data_0").read_text().splitlines()
    header, *rows = csv.reader(lines)
    column = header.index("score")
    return {row[0]: row[column] for row in rows}


def write_rows_without_labels(file: Path) -> None:
    """Write a third of the guest's rows in reverse order and without their labels."""
    text = (jobs.DATA / "breast_hetero_guest.csv").read_text()
    header, *rows = csv.reader(text.splitlines())
    label = header.index("y")
    with file.open("w", newline="") as stream:
        writer = csv.writer(
            stream,
            lineterminator="\n",
        )
        for row in (header, *reversed(rows[::3])):
            del row[label]
            writer.writerow(row)


def predict(
    node: Node,
    version: str,
    *options: str,
    **tables: str,
) -> Any:
    """Predict by the command line with a table for each role; return its JSON, also of errors."""
    data = []
    for role, table in tables.items():
        data += ["--data", f"{role}.0=testspace#{table}"]
    result = call(
        "model",
        "predict",
        FLOW,
        version,
        *data,
        *options,
        "--json",
        "--url",
        node.operator,
    )
    if result.exit_code == 0:
        return json.loads(result.stdout)
    return json.loads(result.stderr)


def test_a_prediction_needs_the_models_id_and_tables_only(federation, version, tmp_path):
    """It predicts for other rows than the training's, without labels and in another order."""
    guest = federation[jobs.GUEST]
    host = federation[jobs.HOST]
    deploy(federation, version)
    write_rows_without_labels(tmp_path / "new.csv")
    guest.upload(tmp_path / "new.csv", "testspace", "new_guest")
    tables = {
        "guest": "new_guest",
        "host": "test_host",
    }

    refused = predict(
        guest,
        version,
        guest="new_guest",
        arbiter="none",
    )
    problems = refused["data"]["problems"]
    paths = {problem["path"] for problem in problems}
    assert paths == {"datasets.host.0", "datasets.arbiter.0"}
    assert predict(host, version, **tables)["reason"] == "TRAINING_UNKNOWN"
    check_dry_run(guest, version, tables)

    job_id = predict(guest, version, **tables)["job_id"]
    job = guest.wait_job(job_id)
    training_scores = scores(guest, version)
    new_scores = scores(guest, job_id)
    assert 100 < len(new_scores) < 200
    for row_id, score in new_scores.items():
        assert score == training_scores[row_id]  # digit for digit
    # The user's own description of the component lacks the input.
    warnings = " ".join(job["local_warnings"])
    assert "has no input of category model" in warnings
    for node in (guest, host):
        check_model_of_prediction(node, version, job_id)


def check_dry_run(
    guest: Node,
    version: str,
    tables: dict[str, str],
) -> None:
    """Check that a dry run creates nothing and shows the differences to the training."""
    jobs_before = guest.get("/api/v1/jobs")
    dry_run = predict(guest, version, "--dry-run", **tables)
    assert dry_run["job_id"] == ""
    assert guest.get("/api/v1/jobs") == jobs_before
    differences = {}
    for entry in dry_run["differences"]:
        differences[entry["path"]] = entry["after"]
    assert differences == {
        "config.job_params.common.job_type": "predict",
        "config.job_params.common.model_id": FLOW,
        "config.job_params.common.model_version": version,
        "dag.components[1].output": ["data0", "report0", "report1", "report2"],
        f"config.task_params.guest.0.{ALIGN}": {"dataset_id": "testspace#new_guest"},
        f"config.task_params.host.0.{ALIGN}": {"dataset_id": "testspace#test_host"},
    }


def check_model_of_prediction(
    node: Node,
    version: str,
    job_id: str,
) -> None:
    """Check that a prediction read the model and left none itself."""
    details = node.get(url(version))
    (part,) = details["models"][0]["parts"]
    (run,) = node.runs_of(job_id, TRAIN)
    model_input = run["inputs"]["model"]
    assert model_input["namespace"] == part["namespace"]
    assert model_input["name"] == part["name"]
    assert node.job(job_id)["model"]["version"] == version
    versions = {model["version"] for model in models(node)}
    assert job_id not in versions


def test_missing_foreign_and_undeployed_models_have_different_reasons(federation, version):
    guest = federation[jobs.GUEST]
    body = jobs.predict_job(
        jobs.GUEST,
        jobs.HOST,
        version,
    )
    deploy(federation, version)
    missing = jobs.predict_job(
        jobs.GUEST,
        jobs.HOST,
        "v-not-there",
    )
    assert refusal(guest, missing) == "MODEL_UNKNOWN"

    for node_id in (jobs.GUEST, jobs.HOST):  # each party decides for itself
        deploy(federation, version, [node_id])
        assert refusal(guest, body) == "MODEL_NOT_DEPLOYED"

    deploy(federation, version)
    try:
        check_model_of_a_stranger(federation, version)
    finally:
        stranger = federation[STRANGER]
        federation[jobs.HOST].ask(
            "POST",
            url(version, "/deploy"),
            json={"nodes": []},
        )
        act(stranger, "undeploy", version)
        stranger.ask("DELETE", url(version))


def check_model_of_a_stranger(federation: Federation, version: str) -> None:
    """Check that a node with a copy of the model predicts only after the host's grant."""
    guest = federation[jobs.GUEST]
    host = federation[jobs.HOST]
    stranger = federation[STRANGER]
    imported = import_model(stranger, export(guest, version))
    assert imported.status_code == 200
    deployed = act(stranger, "deploy", version)
    assert deployed.status_code == 200
    body = jobs.predict_job(STRANGER, jobs.HOST, version)
    params_of_guest = body["config"]["task_params"]["guest"]["0"]
    params_of_guest[ALIGN]["dataset_id"] = "testspace#test_guest"
    assert refusal(stranger, body) == "MODEL_NOT_AUTHORISED"

    granted = host.ask(
        "POST",
        url(version, "/deploy"),
        json={"nodes": [STRANGER]},
    )
    assert granted.json()["granted"] == [STRANGER]
    job_id = stranger.submit(body)
    stranger.wait_job(job_id)
    assert scores(stranger, job_id) == scores(guest, version)


# ---------------------------------------------------------------- failing, and killed


def test_a_vendors_exit_code_is_the_reason_at_both_parties(federation):
    guest = federation[jobs.GUEST]
    host = federation[jobs.HOST]
    body = jobs.user_job(jobs.GUEST, jobs.HOST)
    common_params = body["config"]["task_params"]["common"]
    common_params[ALIGN]["id"] = "no_such_column"

    job_id = guest.submit(body)
    guest.wait_job(job_id, 60, outcome="FAILED")
    host.wait_status(job_id, "FINISHED", 10)

    for node in (guest, host):
        job = jobs.status(node, job_id)
        assert job["job_status"] == "FINISHED"
        assert job["outcome"] == "FAILED"
    failure = jobs.status(guest, job_id)["failed_by"]
    assert jobs.status(host, job_id)["failed_by"] == failure
    assert failure["task"] == ALIGN
    assert failure["role"] in ("guest", "host")
    assert failure["node"]
    assert re.match("EXIT_|REPORTED_FAILED$", failure["reason"])
    # The run of the other party was stopped; its logs are kept.
    for node in (guest, host):
        wait_for_failed_runs_and_logs(node, job_id)


def wait_for_failed_runs_and_logs(node: Node, job_id: str) -> None:
    """Wait until all runs of a job have failed at a node and a log is stored."""
    runs_folder = node.home / "state" / "runs"

    def all_runs_failed() -> bool:
        runs = node.job(job_id)["runs"]
        return {run["status"] for run in runs} == {"FAILED"}

    def logs() -> list[Path]:
        return list(runs_folder.glob("*/stdout.log"))

    wait_for(all_runs_failed, 20)
    wait_for(logs, 10)


def test_a_partner_that_refuses_is_named_and_the_others_hold_nothing(federation):
    guest = federation[jobs.GUEST]
    host = federation[jobs.HOST]
    body = jobs.user_job(jobs.GUEST, jobs.HOST)
    params_of_host = body["config"]["task_params"]["host"]["0"]
    params_of_host[ALIGN]["dataset_id"] = "testspace#missing"

    refused = guest.post(f"{jobs.SCHEDULE}/job/create_all", body)

    assert refused["code"] != 0
    assert jobs.HOST in refused["msg"]
    assert "testspace#missing" in refused["msg"]
    job_id = refused["data"]["job_id"]
    listing = host.get(f"{jobs.SCHEDULE}/job/query_job_list")
    assert job_id not in listing["data"]["job_list"]
    guest.wait_status(job_id, "REJECTED", 5)


def test_a_killed_node_takes_up_where_it_was(federation, version):
    """No task starts twice, and each party saves the model once, before the job is FINISHED."""
    guest = federation[jobs.GUEST]
    assert guest.job(version)["progress"] == 100
    (finished,) = events(guest, version, "job FINISHED")
    for node in (guest, federation[jobs.HOST]):
        starts = events(node, version, "run RUNNING")
        runs = node.job(version)["runs"]
        assert len(starts) == len(TASKS)
        assert len(runs) == len(TASKS)
        (saved,) = events(node, version, "model saved")
        assert saved["at"] <= finished["at"]


def open_to_others(node: Node) -> set[Path]:
    """Return the files of a node that another user of this machine can read or change.

    The search enters the folders that the user can enter. Files of the test itself are left out.
    """
    written_by_test = {
        node.storage,
        node.home / "node.yml",
        node.home / "routes.yml",
        *node.home.glob("gateway-*.log"),
    }
    open_entries = set()
    folders = [node.home]
    while folders:
        for entry in folders.pop().iterdir():
            if entry.is_symlink():
                continue
            mode = entry.lstat().st_mode
            if entry.is_dir() and mode & 0o011:
                folders.append(entry)
            if mode & 0o066:
                open_entries.add(entry)
    return open_entries - written_by_test


def mode_of(path: Path) -> int:
    """Return the permissions of a file or folder."""
    return path.stat().st_mode & 0o777


def test_nothing_of_a_node_that_ran_a_job_is_open_to_others(federation, version):
    for node in federation.nodes.values():
        assert open_to_others(node) == set()
        assert mode_of(node.home / "state") == 0o700
        assert mode_of(node.home / "gateway.db") == 0o600


# ---------------------------------------------------------------- in containers


@pytest.mark.docker
def test_one_node_plays_both_roles_in_containers(reference_image, tmp_path):
    """The user's own requests run unchanged from upload to reports, while the node is killed."""
    engine = {"kind": "docker"}
    with Federation(tmp_path, [jobs.GUEST], engine) as federation:
        node = federation[jobs.GUEST]
        node.storage.chmod(0o755)
        for message in ("create success", "update success"):
            response = node.post("/v2/provider/register", example("register_unionpay.json"))
            assert response == {
                "code": 0,
                "message": message,
            }
        jobs.upload(node, "guest")
        jobs.upload(node, "host")

        body = example("create_all_psi_sbt.json")
        job_id = node.submit(body, "/v2/schedule/job/create_all")
        listing = node.get(f"{jobs.SCHEDULE}/job/query_job_list")
        statuses = listing["data"]["job_list"]
        assert statuses[job_id] in ("READY", "RUNNING")
        job = kill_at_event(node, job_id, "run RUNNING", 2)

        task_statuses = {task["name"]: task["status"] for task in job["tasks"]}
        assert task_statuses == {
            ALIGN: "SUCCESS",
            TRAIN: "SUCCESS",
        }
        assert job["progress"] == 100
        # No run is started twice.
        assert len(job["runs"]) == 4
        assert len(events(node, job_id, "run RUNNING")) == 4
        assert any("rsa_params" in warning for warning in job["local_warnings"])
        status = jobs.status(node, job_id)
        assert status["job_status"] == "FINISHED"
        assert set(status["status"].values()) == {"SUCCESS"}
        check_outputs_of_user_job(node, job_id)

        details = verified(node, job_id)
        assert details["damage"] == []
        node.post(url(job_id, "/deploy"), {})
        # The prediction's containers read the model through a mount of their own.
        body = jobs.predict_job(jobs.GUEST, jobs.GUEST, job_id)
        prediction = node.submit(body)
        node.wait_job(prediction)
        outputs = node.outputs(prediction)
        assert outputs[TRAIN, "guest.0", "data0"]["there"]
        assert open_to_others(node) == set()


def check_outputs_of_user_job(node: Node, job_id: str) -> None:
    """Check the outputs of both parties: existence, quality of the model, number of rows."""
    outputs = node.outputs(job_id)
    tasks_and_parties = {(task, party) for task, party, _ in outputs}
    assert tasks_and_parties == {
        (ALIGN, "guest.0"),
        (ALIGN, "host.0"),
        (TRAIN, "guest.0"),
        (TRAIN, "host.0"),
    }
    for output in outputs.values():
        assert output["there"], output
    report = outputs[TRAIN, "guest.0", "report1"]["value"]
    assert report["auc"] > 0.99
    assert report["ks"] > 0.9
    assert outputs[TRAIN, "guest.0", "model0"]["value"]
    table = outputs[ALIGN, "guest.0", "train_data"]
    folder = node.storage / table["namespace"] / table["name"]
    metadata = json.loads((folder / "metadata").read_text())
    assert metadata["count"] == 509
