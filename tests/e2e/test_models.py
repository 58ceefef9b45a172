"""A training leaves a model at each party; it is deployed, travels, and is deleted."""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e import jobs
from tests.e2e.nodes import Federation, Node, process_engine

STRANGER = "JG0100003300000030"
FLOW = "JG0100001100000000"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two parties, and a node that is none; one training has succeeded between the parties."""
    home = tmp_path_factory.mktemp("models")
    with Federation(home, [jobs.GUEST, jobs.HOST, STRANGER], process_engine("unionpay:2.0.0")) as federation:
        jobs.prepare(federation, jobs.GUEST, jobs.HOST)
        jobs.upload(federation[STRANGER], "guest")
        yield federation


@pytest.fixture(scope="module")
def version(three: Federation) -> str:
    """Return the version that a training of the user's job left."""
    job_id = three[jobs.GUEST].submit(jobs.with_key_length(jobs.user_job(jobs.GUEST, jobs.HOST), 1024))
    three[jobs.GUEST].wait_job(job_id)
    return job_id


def call(node: Node, method: str, path: str, **more: Any) -> httpx.Response:
    return httpx.request(method, node.operator + path, timeout=60, trust_env=False, **more)


def url(version: str, what: str = "", model_id: str = FLOW) -> str:
    return f"/api/v1/models/{model_id}/{version}{what}"


@pytest.mark.slow
def test_a_training_leaves_one_version_at_each_party_with_checksums(three: Federation, version: str):
    for node, party in ((three[jobs.GUEST], "guest.0"), (three[jobs.HOST], "host.0")):
        listed = [m for m in node.get("/api/v1/models")["models"] if m["version"] == version]
        assert [(m["model_id"], m["here"], m["deployed"]) for m in listed] == [(FLOW, [party], False)]
        shown = node.get(url(version), verify="1")
        assert shown["damage"] == []
        (part,) = shown["models"][0]["parts"]
        assert (part["task"], part["component"], part["output"]) == (
            "hetero_secureboost_1",
            "HeteroSecureBoost",
            "model",
        )
        folder = node.storage / part["namespace"] / part["name"]
        assert {f["name"]: f["sha256"] for f in part["files"]} == {
            p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()
        }
        saved = [e["event"] for e in node.timeline(version) if e["event"] in ("model saved", "job FINISHED here")]
        assert saved == ["model saved", "job FINISHED here"]
        assert node.job(version)["model"] == {"model_id": FLOW, "version": version, "url": url(version)}
    assert three[STRANGER].get("/api/v1/models")["models"] == []


@pytest.mark.slow
def test_a_job_that_fails_leaves_none(three: Federation):
    body = jobs.with_key_length(jobs.user_job(jobs.GUEST, jobs.HOST), 1024)
    body["config"]["task_params"]["common"]["hetero_secureboost_1"]["label"] = "no_such_column"
    job_id = three[jobs.GUEST].submit(body)
    three[jobs.GUEST].wait_job(job_id, outcome="FAILED")
    for node in three.nodes.values():
        assert job_id not in {m["version"] for m in node.get("/api/v1/models")["models"]}
        assert call(node, "GET", url(job_id)).status_code == 404


@pytest.mark.slow
def test_a_model_travels_with_equal_checksums_and_nothing_else_is_taken(three: Federation, version: str):
    guest, other = three[jobs.GUEST], three[STRANGER]
    archive = call(guest, "GET", url(version, "/export")).content
    assert archive == call(guest, "GET", url(version, "/export")).content
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        assert opened.testzip() is None
        names = opened.namelist()
        manifest = json.loads(opened.read("manifest.json"))
    assert names[0] == "manifest.json" and len(names) == 3

    for broken, reason in _broken(archive, manifest):
        answer = call(other, "POST", "/api/v1/models/import", content=broken)
        assert answer.status_code == 400, answer.text
        assert answer.json()["data"]["reason"] == reason, answer.text
    assert other.get("/api/v1/models")["models"] == []
    assert not list(other.storage.glob("model-*"))

    for _ in range(2):  # the second time it is there already
        answer = call(other, "POST", "/api/v1/models/import", content=archive)
        assert answer.status_code == 200, answer.text
        assert answer.json()["imported"] and answer.json()["here"] == ["guest.0"]
    sums = [
        [(f["name"], f["sha256"]) for f in node.get(url(version), verify="1")["models"][0]["parts"][0]["files"]]
        for node in (guest, other)
    ]
    assert sums[0] == sums[1] and other.get(url(version), verify="1")["damage"] == []
    assert call(other, "GET", url(version, "/export")).content == archive

    assert call(other, "POST", url(version, "/deploy")).status_code == 200
    refused = call(other, "DELETE", url(version))
    assert (refused.status_code, refused.json()["data"]["reason"]) == (409, "MODEL_DEPLOYED")
    assert call(other, "POST", url(version, "/undeploy")).json()["deployed"] is False
    assert call(other, "DELETE", url(version)).status_code == 200
    assert call(other, "GET", url(version)).status_code == 404
    assert not list(other.storage.glob("model-*"))


def _broken(archive: bytes, manifest: dict[str, Any]) -> Iterator[tuple[bytes, str]]:
    """Yield archives that must not be taken, each with the reason of the refusal."""
    yield b"no zip", "ARCHIVE_INVALID"
    yield archive[: len(archive) // 2], "ARCHIVE_INVALID"
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        files = {name: opened.read(name) for name in opened.namelist()}
    data = next(name for name in files if name.endswith("data_0"))
    yield _zipped({**files, data: files[data][:-2] + b"x\n"}), "CHECKSUM_MISMATCH"
    yield _zipped({**files, "../../outside": b"x"}), "ARCHIVE_INVALID"
    yield _zipped({name: files[name] for name in files if name != data}), "ARCHIVE_INVALID"
    yield _zipped({**files, "manifest.json": b"{"}), "ARCHIVE_INVALID"
    for change in ({"model_id": "../../x"}, {"format": "other"}, {"models": []}, {"parties": []}):
        yield _zipped({**files, "manifest.json": json.dumps({**manifest, **change}).encode()}), "ARCHIVE_INVALID"


def _zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()
