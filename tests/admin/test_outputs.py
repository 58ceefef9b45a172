"""The operators' paths to a job: its parameters, outputs, reports and logs, and orphaned runs."""

import hashlib
import io
import json
import sys
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from engines.base import EngineDown, EngineError, LaunchSpec, labels
from gateway.admin.outputs import MOST_BYTES, parse_range
from gateway.cli.client import EXIT_BAD_INPUT
from gateway.domain.dag import Dag, DagOutput
from gateway.domain.run import Address, LocalJob, Reporting, RunData
from gateway.domain.states import JobStatus, RunStatus, TaskStatus
from gateway.errors import DatabaseAway
from gateway.ports import JobView, TaskView
from provider_registry.registration import provider_from_request
from tests.builders import OK, T0, a_local_job, a_node, a_run, a_spec, raising
from tests.cleaning.ended import a_run_of, left_behind, logs_of
from tests.cli import call
from tests.inprocess import ME, PEER, Node
from tests.registry.builders import a_description, a_parameter, a_request
from tests.world import NodeSetup

SLEEPER = "sleeper:1"  # an image whose runs do not end by themselves
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
NODE = NodeSetup(commands={SLEEPER: SLEEP})

PARTY = "guest.0"
# The type of each output of task ``a``, by its key.
OUTPUT_TYPES = {
    "out": "dataset",
    "model": "model",
    "report": "report",
    "later": "dataset",
}
LOSS = [{"tree": number, "loss": 1 / (number + 1)} for number in range(30)]


def a_finished_job(job_id: str, **changes: Any) -> LocalJob:
    """Return a job whose task ``a`` has run and whose task ``b`` never started.

    ``changes`` are fields of its specification.
    """
    outputs = tuple(DagOutput(kind, key) for key, kind in OUTPUT_TYPES.items())
    dag = Dag((replace(a_node("a"), outputs=outputs), a_node("b", ["a"])))
    spec = a_spec(
        dag,
        {
            "guest": (ME,),
            "host": (PEER,),
        },
        job_id=job_id,
    )
    addresses = {}
    for key in OUTPUT_TYPES:
        addresses[f"{key}_name"] = Address(f"{job_id}-guest-0", f"task_a-{key}")
    data = RunData(
        outputs=addresses,
        output_keys={key: f"{key}_name" for key in OUTPUT_TYPES},
    )
    run = a_run(
        "a",
        RunStatus.SUCCESS,
        spec.parties[0],
        run_id=hashlib.sha256(job_id.encode()).hexdigest(),
        name=f"bfia-{job_id}",
        data=data,
        collect=OK,
        reporting=Reporting(TaskStatus.SUCCESS, OK),
    )
    local = a_local_job(
        run,
        status=JobStatus.FINISHED,
        closed=True,
        close=OK,
    )
    return replace(local, spec=replace(spec, **changes), node=ME)


def store_output(
    node: Node,
    job_id: str,
    key: str = "out",
    *parts: bytes,
) -> str:
    """Store the bytes of an output, and its finished job if it is new; return the output's path."""
    if node.store.local_jobs.find(job_id) is None:
        node.store.local_jobs.add(a_finished_job(job_id), "flow")
    folder = node.storage.root / f"{job_id}-guest-0" / f"task_a-{key}"
    folder.mkdir(parents=True)
    for number, content in enumerate(parts):
        (folder / f"data_{number}").write_bytes(content)
    return f"/api/v1/jobs/{job_id}/outputs/a/{PARTY}/{key}"


def get(
    node: Node,
    path: str,
    status: int = 200,
    **query: Any,
) -> Any:
    """Return the JSON body of a path."""
    response = node.get(path, params=query or None)
    assert response.status_code == status, response.text
    return response.json()


# ---------------------------------------------------------------- tables


def test_a_table_shows_its_first_rows_across_its_parts(node):
    parts = [b"id,x\n1,a\n2,b\n", 'id,x\n3,值\n4,"d\ne"\n'.encode()]
    path = store_output(node, "job-table", "out", *parts)

    preview = get(
        node,
        path,
        rows=3,
    )
    assert preview["kind"] == "table"
    assert preview["type"] == "dataset"
    assert preview["partitions"] == 2
    assert preview["columns"] == ["id", "x"]
    assert preview["rows"] == [
        ["1", "a"],
        ["2", "b"],
        ["3", "值"],
    ]
    assert preview["left_out"] == "the rows after the first 3"

    all_rows = get(
        node,
        path,
        rows=4,
    )
    assert all_rows["rows"][3] == ["4", "d\ne"]
    assert all_rows["left_out"] == ""
    by_task_id = get(
        node,
        path.replace("/a/", "/task_a/"),
        rows=4,
    )
    assert by_task_id == all_rows

    for rows in ("101", "-1", "x"):
        refused = get(
            node,
            path,
            400,
            rows=rows,
        )
        assert refused["data"]["problems"][0]["path"] == "rows"


def test_a_table_is_read_up_to_a_bound(node):
    cell = "9" * 100_000
    row = f"1,{cell}\n".encode()
    path = store_output(node, "job-wide", "out", b"id,x\n" + row * 50)
    preview = get(
        node,
        path,
        rows=100,
    )
    assert 0 < len(preview["rows"]) < 50
    for shown_row in preview["rows"]:
        assert shown_row == ["1", cell]
    assert str(MOST_BYTES) in preview["left_out"]
    assert preview["bytes"] == 5 + 50 * len(row)


def test_parquet_written_by_a_run_is_not_read(node, monkeypatch):
    """Attack: a small file that expands to far more memory."""
    file = io.BytesIO()
    pq.write_table(pa.table({"x": ["A" * 2**24]}), file, compression="zstd", use_dictionary=False)
    content = file.getvalue()
    monkeypatch.setattr(pq, "ParquetFile", None)
    preview = get(
        node,
        store_output(node, "job-expands", "out", content),
        rows=1,
    )
    assert preview["kind"] == "bytes"
    assert preview["left_out"].startswith(f"all {len(content)} bytes")


# ---------------------------------------------------------------- reports and other outputs


def test_a_report_with_impossible_numbers_is_shown_with_texts(node):
    report = b'{"auc": NaN, "ks": 1e999, "n": [1, true]}'
    path = store_output(node, "job-report", "report", report)
    assert get(node, path)["value"] == {
        "auc": "nan",
        "ks": "inf",
        "n": [1, True],
    }
    outputs = get(node, "/api/v1/jobs/job-report/outputs")["outputs"]
    (listed,) = [output for output in outputs if output["key"] == "report"]
    assert listed["value"]["ks"] == "inf"


def test_an_output_that_was_never_written_is_missing(node):
    missing = get(
        node,
        store_output(node, "job-none", "out"),
        404,
    )
    assert missing["data"]["reason"] == "OUTPUT_MISSING"
    assert missing["msg"] == (
        "OUTPUT_MISSING: output out of task a at guest.0 is not there; its run is SUCCESS"
    )


@pytest.mark.parametrize(
    "content",
    [
        bytes(range(256)),
        b"[" * 500 + b"]" * 500,
        b"\0" * (MOST_BYTES + 1),
    ],
    ids=["binary", "nested", "big"],
)
def test_a_model_that_cannot_be_shown_is_only_measured(node, request, content):
    job_id = f"job-{request.node.callspec.id}"
    preview = get(
        node,
        store_output(node, job_id, "model", content),
    )
    assert preview["kind"] == "bytes"
    assert f"{len(content)} bytes" in preview["left_out"]
    assert "value" not in preview


def test_a_report_above_the_bound_is_left_out(node):
    report = b'{"x": "' + b"1" * MOST_BYTES + b'"}'
    preview = get(
        node,
        store_output(node, "job-large", "report", report),
    )
    assert preview["kind"] == "json"
    assert preview["value"] is None
    assert "more than" in preview["left_out"]


@pytest.fixture(scope="module")
def job_with_report(node) -> str:
    """The id of a job with a report."""
    job_id = "job-00000000000000000000000000000050"
    left_behind(node, job_id, 60.0)
    report = {
        "auc": 0.987654321,
        "remark": "<b>",
        "loss": LOSS,
    }
    folder = node.storage.root / f"{job_id}-guest-0" / f"task_{job_id}-report"
    (folder / "data_0").write_text(json.dumps(report))
    return job_id


def cli(node: Node, *words: str) -> Result:
    """Run a command for jobs with room for wide tables."""
    return call("job", *words, "--url", node.addresses()["operator"], env={"COLUMNS": "200"})


def test_commands_list_and_show_reports(node, job_with_report):
    listed = cli(node, "reports", job_with_report)
    assert listed.exit_code == 0
    assert "auc 0.987654" in listed.stdout
    assert "loss of 30 rows" in listed.stdout

    report = ["report", job_with_report, "a", "report"]
    shown = cli(node, *report)
    assert shown.exit_code == 0, shown.stderr
    assert "0.987654" in shown.stdout
    assert "and 10 rows more: --json" in shown.stdout
    body = json.loads(cli(node, *report, "--json").stdout)
    assert body["values"]["auc"] == 0.987654321


def test_a_report_of_the_wrong_task_is_refused_with_the_choice(node, job_with_report):
    refused = cli(node, "report", job_with_report, "b", "report")
    assert refused.exit_code == EXIT_BAD_INPUT
    assert "a report --party guest.0" in refused.stderr


# ---------------------------------------------------------------- downloads


def test_a_download_is_the_bytes_with_their_checksum(node):
    parts = [b"id\n" + b"1\n" * 900_000, b"id\n2\n"]
    path = store_output(node, "job-down", "out", *parts) + "/download"

    # the checksum costs a second reading of the file
    assert "x-checksum-sha256" not in node.get(path).headers
    download = node.get(
        path,
        headers={"want-repr-digest": "sha-256=1"},
    )

    assert download.status_code == 200
    assert download.content == b"".join(parts)
    checksum = hashlib.sha256(download.content).hexdigest()
    assert download.headers["x-checksum-sha256"] == checksum
    disposition = download.headers["content-disposition"]
    assert disposition.startswith('attachment; filename="a-guest.0-out.csv"')


FIRST_PART = b"id,x\n1,a\n2,b\n"
SECOND_PART = b"id,x\n3,c\n"
TABLE = FIRST_PART + SECOND_PART


@pytest.fixture(scope="module")
def download_path(node) -> str:
    """The path to the download of a table in two parts."""
    return store_output(node, "job-range", "out", FIRST_PART, SECOND_PART) + "/download"


def test_a_download_offers_ranges(node, download_path):
    headers = node.get(download_path).headers
    assert headers["content-length"] == str(len(TABLE))
    assert headers["accept-ranges"] == "bytes"


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("bytes=0-3", 0, 4),
        ("bytes=4-", 4, len(TABLE)),
        (
            f"bytes={len(FIRST_PART) - 2}-{len(FIRST_PART) + 2}",
            len(FIRST_PART) - 2,
            len(FIRST_PART) + 3,
        ),
        (f"bytes={len(FIRST_PART)}-", len(FIRST_PART), len(TABLE)),
        ("bytes=-3", len(TABLE) - 3, len(TABLE)),
        ("bytes=5-999", 5, len(TABLE)),
    ],
    ids=["first-bytes", "from", "across-parts", "second-part", "last-bytes", "beyond-the-end"],
)
def test_a_range_of_a_download_is_sent(node, download_path, text, start, end):
    response = node.get(
        download_path,
        headers={"range": text},
    )
    assert response.status_code == 206
    assert response.content == TABLE[start:end]
    assert response.headers["content-range"] == f"bytes {start}-{end - 1}/{len(TABLE)}"


def test_a_range_behind_the_end_is_refused(node, download_path):
    refused = node.get(
        download_path,
        headers={"range": f"bytes={len(TABLE)}-"},
    )
    assert refused.status_code == 416
    assert refused.headers["content-range"] == f"bytes */{len(TABLE)}"
    assert refused.json()["data"]["reason"] == "RANGE_NOT_THERE"


def test_a_download_continues_only_if_the_file_has_not_changed(node, download_path):
    etag = node.get(download_path).headers["etag"]
    unchanged = node.get(
        download_path,
        headers={
            "range": "bytes=2-",
            "if-range": etag,
        },
    )
    assert unchanged.status_code == 206
    changed = node.get(
        download_path,
        headers={
            "range": "bytes=2-",
            "if-range": '"another"',
        },
    )
    assert changed.content == TABLE


@pytest.mark.parametrize(
    "text", ["", "bytes=", "bytes=-", "bytes=3-1", "bytes=0-1,3-4", "lines=0-1", "bytes=x-y"]
)
def test_a_range_that_is_not_supported_is_ignored(text):
    assert parse_range(text, 10) is None


# ---------------------------------------------------------------- the job itself


def test_a_job_scheduled_elsewhere_is_read_from_its_scheduler(node, monkeypatch):
    node.store.add_submission("job-elsewhere", "flow", PEER, T0)
    task = TaskView(
        "task_1",
        "a",
        TaskStatus.RUNNING,
        nodes={PEER: {"guest": TaskStatus.RUNNING}},
    )
    view = JobView("job-elsewhere", JobStatus.RUNNING, [task])
    monkeypatch.setattr(node.job_statuses, "status", lambda job_id: view)

    job = get(node, "/api/v1/jobs/job-elsewhere")

    assert job["status"] == "RUNNING"
    assert job["scheduler"] == PEER
    assert job["initiator"] == ME
    assert job["parties"] == [{"role": "guest", "index": None, "node": PEER}]
    assert job["runs"] == []
    assert job["parameters"] == {}


def test_parameters_show_their_origin_and_runs_their_log_path(node, monkeypatch):
    description = a_description(
        "Thing",
        provider="vendor",
        inputParam=[
            a_parameter("set", defaultValue="1"),
            a_parameter("open", defaultValue="2"),
            a_parameter("blank", defaultValue=""),
        ],
        inputData=[],
        outputData=[],
    )
    metadata = {
        "base_url": "",
        "image": "i:1",
    }
    provider = a_request(
        description,
        name="vendor",
        metadata=metadata,
    )
    node.registry.register(provider_from_request(provider))
    job = a_finished_job(
        "job-params",
        task_params={"common": {"a": {"set": 7}}},
    )
    node.store.local_jobs.add(job, "flow")
    view = JobView("job-params", JobStatus.FINISHED)
    monkeypatch.setattr(node.job_statuses, "status", lambda job_id: view)

    shown = get(node, "/api/v1/jobs/job-params")

    default = "component default"
    assert shown["parameters"][PARTY] == {
        "a": {
            "set": {
                "value": 7,
                "origin": "common",
            },
            "open": {
                "value": "2",
                "origin": default,
            },
        },
        "b": {
            "set": {
                "value": "1",
                "origin": default,
            },
            "open": {
                "value": "2",
                "origin": default,
            },
        },
    }
    assert shown["parameters"].keys() == {PARTY}
    (run,) = shown["runs"]
    assert run["parameters"] == {}
    assert run["log"] == "/api/v1/jobs/job-params/runs/guest.0/a/log"
    unknown_task = get(
        node,
        run["log"].replace("/a/", "/none/"),
        404,
    )
    assert unknown_task["data"]["reason"] != "PATH_UNKNOWN"
    assert str(node.storage.root.parent) not in json.dumps(shown)


def test_the_log_of_every_attempt_is_kept(node):
    local = left_behind(node, "job-again", 5)
    second = replace(
        a_run_of(
            local.spec,
            attempt=1,
        ),
        task_id="task_job-again-2",
    )

    def with_second_attempt(job: LocalJob) -> LocalJob:
        return replace(
            job,
            runs=(local.runs[0], second),
        )

    node.store.local_jobs.update("job-again", with_second_attempt)
    folder = logs_of(node, second)
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text("hello again\n")

    path = "/api/v1/jobs/job-again/runs/guest.0/a/log?stream=stdout"
    assert node.get(path).text.startswith("hello again\n")
    assert node.get(path + "&attempt=1").text.startswith("hello again\n")
    assert node.get(path + "&attempt=0").text.startswith("hello\n")
    assert "but 0, 1" in get(node, path + "&attempt=2", 404)["msg"]
    refused = get(node, path + "&attempt=x", 400)
    assert refused["data"]["problems"][0]["path"] == "attempt"


# ---------------------------------------------------------------- orphans


@pytest.fixture
def orphans(node):
    """A run of the engine that no job knows, and a run of a job that the engine does not have.

    The latter is being stopped, so that the probes of running containers do not end it.
    A further run, of another gateway of this node, is not the node's to judge.
    """
    assert get(node, "/api/v1/orphans") == {
        "unknown": [],
        "lost": [],
    }
    run_labels = labels(
        ME,
        node.store.installation(),
        "job-x",
        "task_x",
        "guest",
        0,
        0,
    )
    node.engine.launch(LaunchSpec("bfia-orphan", SLEEPER, {}, run_labels))
    job = a_finished_job("job-lost")
    lost = replace(
        job.runs[0],
        status=RunStatus.STOPPING,
        stop=OK,
        owner=node.owner,
        probe_at=T0.replace(2999),
    )
    of_another_gateway = replace(
        lost,
        run_id="f" * 64,
        name="bfia-others",
        owner="other/process",
    )
    node.store.local_jobs.add(
        replace(
            job,
            runs=(lost, of_another_gateway),
        ),
        "flow",
    )
    yield
    node.engine.remove("bfia-orphan")


def test_orphans_are_shown_and_counted_and_left_alone(node, monkeypatch, orphans):
    listed = get(node, "/api/v1/orphans")
    (unknown,) = listed["unknown"]
    assert unknown["name"] == "bfia-orphan"
    assert unknown["job"] == "job-x"
    assert unknown["state"] == "running"
    (lost,) = listed["lost"]
    assert lost["name"] == "bfia-job-lost"
    assert lost["job"] == "job-lost"
    assert lost["role"] == "guest"

    health = get(node, "/health/ready")
    assert health["ready"]
    assert health["checks"]["orphans"] == {
        "ok": True,
        "unknown": 1,
        "lost": 1,
    }
    assert [run.name for run in node.engine.list()] == ["bfia-orphan"]

    # the engine may have a run that it cannot report
    monkeypatch.setattr(
        node.engine,
        "probe",
        raising(EngineError("it answers nonsense")),
    )
    assert get(node, "/api/v1/orphans")["lost"] == []

    engine_down = raising(EngineDown("no daemon answers"))
    monkeypatch.setattr(node.engine, "list", engine_down)
    checks = get(node, "/health/ready")["checks"]
    assert checks["orphans"]["cause"] == "ENGINE_DOWN: no daemon answers"

    database_away = raising(DatabaseAway("the database does not answer"))
    monkeypatch.setattr(node.engine, "check", engine_down)
    monkeypatch.setattr(node.store.jobs, "find", database_away)
    checks = get(node, "/health/ready", 503)["checks"]
    assert checks["engine"]["cause"] == "ENGINE_DOWN: no daemon answers"
    assert checks["database"] == {
        "ok": False,
        "cause": "DatabaseAway",
    }
    assert "orphans" not in checks
    monkeypatch.undo()  # before the orphan is removed
