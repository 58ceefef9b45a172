"""The user's training and what it leaves: outputs, a model that is deployed and travels, or a reason at both."""

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import call
from tests.e2e import jobs
from tests.e2e.jobs import events
from tests.e2e.nodes import Federation, Node, example, process_engine, wait_for

STRANGER = "JG0100003300000030"
FLOW = "JG0100001100000000"
ALIGN, TRAIN = TASKS = ("intersect_rsa_1", "hetero_secureboost_1")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two parties, and a node that is none; one training has succeeded between the parties."""
    home = tmp_path_factory.mktemp("models")
    with Federation(
        home, [jobs.GUEST, jobs.HOST, STRANGER], process_engine("unionpay:2.0.0")
    ) as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        jobs.upload(federation[STRANGER], "guest")
        for node in federation.nodes.values():
            node.storage.chmod(
                0o755
            )  # the admin may have made it so; what is below is closed all the same
        yield federation


@pytest.fixture(scope="module")
def version(three: Federation) -> str:
    """Return the version that a training of the user's job left, whose scheduling node was killed near its end."""
    guest = three[jobs.GUEST]
    job_id = guest.submit(jobs.quick_job(jobs.GUEST, jobs.HOST))
    killed_and_back(guest, job_id, "model saved", 1)
    return job_id


def killed_and_back(
    node: Node,
    job_id: str,
    event: str,
    times: int,
) -> dict[str, Any]:
    """Kill a node once something happened to a job so often; return the job as it is at its end."""
    wait_for(lambda: len(events(node, job_id, event)) == times, 90, 0.01, f"{event} at {node.id}")
    node.kill()
    node.start()
    return node.wait_job(job_id, 120)


def url(
    version: str,
    what: str = "",
    model_id: str = FLOW,
) -> str:
    return f"/api/v1/models/{model_id}/{version}{what}"


def test_a_training_leaves_one_version_at_each_party_with_checksums(three, version):
    for node, party in ((three[jobs.GUEST], "guest.0"), (three[jobs.HOST], "host.0")):
        listed = [m for m in node.get("/api/v1/models")["models"] if m["version"] == version]
        assert [(m["model_id"], m["here"], m["deployed"]) for m in listed] == [
            (FLOW, [party], False)
        ]
        shown = node.get(url(version), verify="1")
        assert shown["damage"] == []
        (part,) = shown["models"][0]["parts"]
        assert part["task"] == TRAIN
        assert part["component"] == "HeteroSecureBoost"
        assert part["output"] == "model"
        folder = node.storage / part["namespace"] / part["name"]
        assert {f["name"]: f["sha256"] for f in part["files"]} == {
            p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()
        }
        saved = [
            e["event"]
            for e in node.timeline(version)
            if e["event"] in ("model saved", "job FINISHED here")
        ]
        assert saved == ["model saved", "job FINISHED here"]
        assert node.job(version)["model"] == {
            "model_id": FLOW,
            "version": version,
            "url": url(version),
        }
    assert three[STRANGER].get("/api/v1/models")["models"] == []


def test_reports_are_listed_and_read_as_numbers_and_curves(three, version):
    guest = three[jobs.GUEST]
    listed = guest.get(f"/api/v1/jobs/{version}/reports")
    found = {(r["task"], r["output"]): guest.get(r["url"]) for r in listed["reports"]}
    assert listed["warnings"] == []
    assert found[TRAIN, "train-auc"]["values"]["auc"] > 0.98
    (loss,) = found[TRAIN, "train-loss"]["series"]
    assert loss["name"] == "loss"
    assert loss["columns"] == ["tree", "loss"]
    assert len(loss["points"]) == 2
    (curve,) = found[TRAIN, "train-ks"]["series"]
    assert len(curve["points"]) > 5
    (counts,) = found[ALIGN, "train-intersection"]["series"]
    assert ["intersection", 509.0] in counts["points"]
    url = f"/api/v1/jobs/{version}/reports/hetero_secureboost_1/guest.0/data0"
    assert guest.ask("GET", url).json()["data"]["reason"] == "NO_REPORT"


def test_a_model_travels_with_equal_checksums_and_nothing_else_is_taken(three, version):
    guest, other = three[jobs.GUEST], three[STRANGER]
    archive = guest.ask("GET", url(version, "/export")).content
    assert archive == guest.ask("GET", url(version, "/export")).content
    answer = other.ask("POST", "/api/v1/models/import", content=archive[: len(archive) // 2])
    assert answer.status_code == 400
    assert answer.json()["data"]["reason"] == "ARCHIVE_INVALID"
    assert other.get("/api/v1/models")["models"] == []
    assert not list(other.storage.glob("model-*"))

    for _ in range(2):  # the second time it is there already
        answer = other.ask("POST", "/api/v1/models/import", content=archive)
        assert answer.status_code == 200, answer.text
        assert answer.json()["imported"]
        assert answer.json()["here"] == ["guest.0"]
    sums = [
        [
            (f["name"], f["sha256"])
            for f in node.get(url(version), verify="1")["models"][0]["parts"][0]["files"]
        ]
        for node in (guest, other)
    ]
    assert sums[0] == sums[1]
    assert other.get(url(version), verify="1")["damage"] == []
    assert other.ask("GET", url(version, "/export")).content == archive

    assert other.ask("POST", url(version, "/deploy")).status_code == 200
    refused = other.ask("DELETE", url(version))
    assert refused.status_code == 409
    assert refused.json()["data"]["reason"] == "MODEL_DEPLOYED"
    assert other.ask("POST", url(version, "/undeploy")).json()["deployed"] is False
    assert other.ask("DELETE", url(version)).status_code == 200
    assert other.ask("GET", url(version)).status_code == 404
    assert not list(other.storage.glob("model-*"))


# ---------------------------------------------------------------- predicting


def deployed(
    three: Federation,
    version: str,
    at: Iterable[str] = (jobs.GUEST, jobs.HOST),
) -> None:
    for node in (jobs.GUEST, jobs.HOST):
        what = "/deploy" if node in at else "/undeploy"
        assert three[node].ask("POST", url(version, what)).status_code == 200


def refusal(
    three: Federation,
    body: Any,
    node: str = jobs.GUEST,
) -> str:
    answer = three[node].post("/v1/platform/schedule/job/create_all", body)
    assert answer["code"] != 0, answer
    return str(answer["data"]["reason"])


def scores(node: Node, job_id: str) -> dict[str, str]:
    address = node.outputs(job_id)[TRAIN, "guest.0", "data0"]
    text = (node.storage / address["namespace"] / address["name"] / "data_0").read_text()
    header, *rows = csv.reader(text.splitlines())
    return {row[0]: row[header.index("score")] for row in rows}


def test_a_prediction_needs_the_models_id_and_tables_only(three, version, tmp_path):
    """Of other rows than those of the training: a third of them, without labels, in another order."""
    guest, host = three[jobs.GUEST], three[jobs.HOST]
    deployed(three, version)
    lines = (jobs.DATA / "breast_hetero_guest.csv").read_text().splitlines()
    cells = [line.split(",") for line in [lines[0], *reversed(lines[1::3])]]
    label = cells[0].index("y")
    (tmp_path / "new.csv").write_text(
        "\n".join(",".join(c[:label] + c[label + 1 :]) for c in cells) + "\n"
    )
    guest.upload(tmp_path / "new.csv", "testspace", "new_guest")

    def predict(
        node: Node,
        *words: str,
        **tables: str,
    ) -> Any:
        data = [
            word
            for role, table in tables.items()
            for word in ("--data", f"{role}.0=testspace#{table}")
        ]
        done = call(
            "model", "predict", FLOW, version, *data, *words, "--json", "--url", node.operator
        )
        return json.loads(done.stdout if done.exit_code == 0 else done.stderr)

    refused = predict(guest, guest="new_guest", arbiter="none")
    assert {p["path"] for p in refused["data"]["problems"]} == {
        "datasets.host.0",
        "datasets.arbiter.0",
    }
    tables = {"guest": "new_guest", "host": "test_host"}
    assert predict(host, **tables)["reason"] == "TRAINING_UNKNOWN"
    before = guest.get("/api/v1/jobs")
    shown = predict(guest, "--dry-run", **tables)
    assert shown["job_id"] == ""
    assert guest.get("/api/v1/jobs") == before
    assert {one["path"]: one["after"] for one in shown["differences"]} == {
        "config.job_params.common.job_type": "predict",
        "config.job_params.common.model_id": FLOW,
        "config.job_params.common.model_version": version,
        "dag.components[1].output": ["data0", "report0", "report1", "report2"],
        f"config.task_params.guest.0.{ALIGN}": {"dataset_id": "testspace#new_guest"},
        f"config.task_params.host.0.{ALIGN}": {"dataset_id": "testspace#test_host"},
    }
    job_id = predict(guest, **tables)["job_id"]
    job = guest.wait_job(job_id)
    trained, predicted = scores(guest, version), scores(guest, job_id)
    assert 100 < len(predicted) < 200
    assert predicted == {key: trained[key] for key in predicted}  # digit for digit
    assert any(
        "has no input of category model" in w for w in job["local_warnings"]
    )  # the user's own description
    for node in (guest, host):
        (part,) = node.get(url(version))["models"][0]["parts"]
        (run,) = [r for r in node.job(job_id)["runs"] if r["task_name"] == TRAIN]
        assert [run["inputs"]["model"][key] for key in ("namespace", "name")] == [
            part["namespace"],
            part["name"],
        ]
        assert node.job(job_id)["model"]["version"] == version
        assert job_id not in {
            m["version"] for m in node.get("/api/v1/models")["models"]
        }  # it leaves none itself


def test_missing_foreign_and_undeployed_models_have_different_reasons(three, version):
    body = jobs.predict_job(jobs.GUEST, jobs.HOST, version)
    deployed(three, version)
    missing = jobs.predict_job(jobs.GUEST, jobs.HOST, "v-not-there")
    assert refusal(three, missing) == "MODEL_UNKNOWN"
    for at in (jobs.GUEST, jobs.HOST):  # each party decides for itself
        deployed(three, version, at=[at])
        assert refusal(three, body) == "MODEL_NOT_DEPLOYED"
    deployed(three, version)
    archive = three[jobs.GUEST].ask("GET", url(version, "/export")).content
    try:
        stranger = jobs.predict_job(STRANGER, jobs.HOST, version)
        stranger["config"]["task_params"]["guest"]["0"][ALIGN]["dataset_id"] = (
            "testspace#test_guest"
        )
        assert (
            three[STRANGER].ask("POST", "/api/v1/models/import", content=archive).status_code == 200
        )
        assert three[STRANGER].ask("POST", url(version, "/deploy")).status_code == 200
        assert refusal(three, stranger, STRANGER) == "MODEL_NOT_AUTHORISED"
        granted = three[jobs.HOST].ask("POST", url(version, "/deploy"), json={"nodes": [STRANGER]})
        assert granted.json()["granted"] == [STRANGER]
        job_id = three[STRANGER].submit(stranger)
        three[STRANGER].wait_job(job_id)
        assert scores(three[STRANGER], job_id) == scores(three[jobs.GUEST], version)
    finally:
        three[jobs.HOST].ask("POST", url(version, "/deploy"), json={"nodes": []})
        three[STRANGER].ask("POST", url(version, "/undeploy"))
        three[STRANGER].ask("DELETE", url(version))


# ---------------------------------------------------------------- failing, and killed


def failed_by(federation: Federation, job_id: str) -> list[dict[str, Any]]:
    guest, host = federation[jobs.GUEST], federation[jobs.HOST]
    guest.wait_job(job_id, 60, outcome="FAILED")
    wait_for(lambda: host.job(job_id)["status"] == "FINISHED", 10)
    shown = [
        n.get("/v1/platform/schedule/job/status_all", job_id=job_id)["data"] for n in (guest, host)
    ]
    assert [s["job_status"] for s in shown] == ["FINISHED", "FINISHED"]
    assert [s["outcome"] for s in shown] == ["FAILED", "FAILED"]
    return [s["failed_by"] for s in shown]


def test_a_vendors_exit_code_is_the_reason_at_both_parties(three):
    body = jobs.user_job(jobs.GUEST, jobs.HOST)
    body["config"]["task_params"]["common"][ALIGN]["id"] = "no_such_column"
    job_id = three[jobs.GUEST].submit(body)
    one, other = failed_by(three, job_id)
    assert one == other
    assert one["task"] == ALIGN
    assert one["role"] in ("guest", "host")
    assert one["node"]
    assert one["reason"].startswith("EXIT_") or one["reason"] == "REPORTED_FAILED"
    for node in (
        three[jobs.GUEST],
        three[jobs.HOST],
    ):  # the other party's run was stopped, its logs are there
        wait_for(
            lambda node=node: {r["status"] for r in node.job(job_id)["runs"]} == {"FAILED"}, 20
        )
        wait_for(lambda node=node: list((node.home / "state" / "runs").glob("*/stdout.log")), 10)


def test_a_partner_that_refuses_is_named_and_the_others_hold_nothing(three):
    body = jobs.user_job(jobs.GUEST, jobs.HOST)
    body["config"]["task_params"]["host"]["0"][ALIGN]["dataset_id"] = "testspace#missing"
    answer = three[jobs.GUEST].post("/v1/platform/schedule/job/create_all", body)
    assert answer["code"] != 0
    assert jobs.HOST in answer["msg"] and "testspace#missing" in answer["msg"]
    job_id = answer["data"]["job_id"]
    assert (
        job_id
        not in three[jobs.HOST].get("/v1/platform/schedule/job/query_job_list")["data"]["job_list"]
    )
    wait_for(lambda: three[jobs.GUEST].job(job_id)["status"] == "REJECTED", 5)


def test_a_killed_node_takes_up_where_it_was(three, version):
    """Nothing is started twice, and the model is saved once at every party before the job is FINISHED."""
    guest, host = three[jobs.GUEST], three[jobs.HOST]
    assert guest.job(version)["progress"] == 100
    (finished,) = events(guest, version, "job FINISHED")
    for node in (guest, host):
        assert (
            len(events(node, version, "run RUNNING"))
            == len(node.job(version)["runs"])
            == len(TASKS)
        )
        (saved,) = events(node, version, "model saved")
        assert saved["at"] <= finished["at"]


def open_to_others(node: Node) -> set[Path]:
    """Return what another user of this machine can read or change, who goes only where the folders let him."""
    written_by_test = {
        node.home / "node.yml",
        node.home / "routes.yml",
        *node.home.glob("gateway-*.log"),
    }
    found, folders = set[Path](), [node.home]
    while folders:
        for entry in folders.pop().iterdir():
            rights = entry.lstat().st_mode
            if entry.is_dir() and not entry.is_symlink() and rights & 0o011:
                folders.append(entry)
            if rights & 0o066 and not entry.is_symlink():
                found.add(entry)
    return found - written_by_test - {node.storage}


def test_nothing_of_a_node_that_ran_a_job_is_open_to_others(three, version):
    for node in three.nodes.values():
        assert open_to_others(node) == set()
        modes = [
            path.stat().st_mode & 0o777 for path in (node.home / "state", node.home / "gateway.db")
        ]
        assert modes == [0o700, 0o600]


# ---------------------------------------------------------------- in containers


@pytest.mark.docker
def test_one_node_plays_both_roles_in_containers(reference_image, tmp_path):
    """The user's own requests, unchanged, from upload to model and reports; the node is killed meanwhile."""
    with Federation(tmp_path, [jobs.GUEST], {"kind": "docker"}) as federation:
        node = federation[jobs.GUEST]
        node.storage.chmod(0o755)
        for message in ("create success", "update success"):
            answer = node.post("/v2/provider/register", example("register_unionpay.json"))
            assert answer == {"code": 0, "message": message}
        jobs.upload(node, "guest")
        jobs.upload(node, "host")
        job_id = node.submit(example("create_all_psi_sbt.json"), "/v2/schedule/job/create_all")
        listed = node.get(f"{jobs.SCHEDULE}/job/query_job_list")["data"]["job_list"]
        assert listed[job_id] in ("READY", "RUNNING")
        job = killed_and_back(node, job_id, "run RUNNING", 2)
        assert {t["name"]: t["status"] for t in job["tasks"]} == dict.fromkeys(TASKS, "SUCCESS")
        assert job["progress"] == 100
        assert (
            len(events(node, job_id, "run RUNNING")) == len(job["runs"]) == 4
        )  # none is started twice
        outputs = node.outputs(job_id)
        assert {(task, party) for task, party, _ in outputs} == {
            (t, p) for t in TASKS for p in ("guest.0", "host.0")
        }
        assert all(o["there"] for o in outputs.values()), outputs
        scores = outputs[TRAIN, "guest.0", "report1"]["value"]
        assert scores["auc"] > 0.99
        assert scores["ks"] > 0.9
        assert outputs[TRAIN, "guest.0", "model0"]["value"]
        aligned = outputs[ALIGN, "guest.0", "train_data"]
        meta = json.loads(
            (node.storage / aligned["namespace"] / aligned["name"] / "metadata").read_text()
        )
        assert meta["count"] == 509
        shown = jobs.status(node, job_id)
        assert shown["job_status"] == "FINISHED"
        assert set(shown["status"].values()) == {"SUCCESS"}
        assert any("rsa_params" in w for w in job["local_warnings"])
        assert node.get(url(job_id), verify="1")["damage"] == []
        node.post(url(job_id, "/deploy"), {})
        predicting = node.submit(jobs.predict_job(jobs.GUEST, jobs.GUEST, job_id))
        node.wait_job(predicting)  # its containers read the model through a mount of their own
        assert node.outputs(predicting)[TRAIN, "guest.0", "data0"]["there"]
        assert open_to_others(node) == set()
