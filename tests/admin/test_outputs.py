"""The operators' own paths: a job in full, its outputs, reports, logs; what engine and store see differently."""

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
from gateway.admin.outputs import MOST_BYTES, one_range
from gateway.bootstrap.node import Gateway
from gateway.cli.client import EXIT_BAD_INPUT
from gateway.domain.dag import Dag, DagOutput
from gateway.domain.run import Address, LocalJob, Reporting
from gateway.domain.states import JobStatus, RunStatus, TaskStatus
from gateway.errors import DatabaseAway
from gateway.ports import JobView, TaskView
from provider_registry.registration import provider_from_request
from tests.builders import OK, T0, a_local_job, a_node, a_run, a_spec, raising
from tests.cleaning.ended import a_run_of, left_behind, logs_of
from tests.cli import call
from tests.inprocess import ME, PEER, ask, running
from tests.registry.builders import a_description, a_parameter, a_request

PARTY = "guest.0"
KEYS = ("out", "model", "report", "later")
SLEEPER = "sleeper:1"
LOSS = [{"tree": n, "loss": 1 / (n + 1)} for n in range(30)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory):
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    engine = {"kind": "process", "process": {"images": {SLEEPER: {"command": command}}}}
    with running(tmp_path_factory.mktemp("node"), engine=engine) as gateway:
        yield gateway


def over(job_id: str, **changes) -> LocalJob:
    """Return a job that is over: task ``a`` has run, task ``b`` never began."""
    first = replace(a_node("a"), outputs=tuple(DagOutput(_type(key), key) for key in KEYS))
    spec = a_spec(
        Dag((first, a_node("b", ["a"]))), {"guest": (ME,), "host": (PEER,)}, job_id=job_id
    )
    run = a_run(
        "a",
        RunStatus.SUCCESS,
        spec.parties[0],
        run_id=hashlib.sha256(job_id.encode()).hexdigest(),
        name=f"bfia-{job_id}",
        outputs={f"{key}_name": Address(f"{job_id}-guest-0", f"task_a-{key}") for key in KEYS},
        output_keys={key: f"{key}_name" for key in KEYS},
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


def _type(key: str) -> str:
    return {"out": "dataset", "later": "dataset"}.get(key, key)


def have(
    node: Gateway,
    job_id: str,
    key: str = "out",
    *parts: bytes,
) -> str:
    """Store a job that is over with the bytes of one of its outputs; return the output's path."""
    if node.store.local_jobs.find(job_id) is None:
        node.store.local_jobs.add(over(job_id), "flow")
    folder = node.storage.root / f"{job_id}-guest-0" / f"task_a-{key}"
    folder.mkdir(parents=True)
    for number, data in enumerate(parts):
        (folder / f"data_{number}").write_bytes(data)
    return f"/api/v1/jobs/{job_id}/outputs/a/{PARTY}/{key}"


def get(
    node: Gateway,
    path: str,
    status: int = 200,
    **params: Any,
) -> Any:
    answer = ask(node, "operator", "GET", path, params=params or None)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_table_shows_its_first_rows_across_its_parts(node):
    path = have(node, "job-table", "out", b"id,x\n1,a\n2,b\n", 'id,x\n3,值\n4,"d\ne"\n'.encode())
    seen = get(node, path, rows=3)
    assert seen["kind"] == "table"
    assert seen["type"] == "dataset"
    assert seen["partitions"] == 2
    assert seen["columns"] == ["id", "x"]
    assert seen["rows"] == [["1", "a"], ["2", "b"], ["3", "值"]]
    assert seen["left_out"] == "the rows after the first 3"
    whole = get(node, path, rows=4)
    assert whole["rows"][3] == ["4", "d\ne"]
    assert whole["left_out"] == ""
    assert get(node, path.replace("/a/", "/task_a/"), rows=4) == whole
    for rows in ("101", "-1", "x"):
        assert get(node, path, 400, rows=rows)["data"]["problems"][0]["path"] == "rows"


def test_no_more_than_a_bound_is_read_of_a_table(node):
    wide = b"1," + b"9" * 100_000 + b"\n"
    seen = get(node, have(node, "job-wide", "out", b"id,x\n" + wide * 50), rows=100)
    assert 0 < len(seen["rows"]) < 50
    assert all(row == ["1", "9" * 100_000] for row in seen["rows"])
    assert str(MOST_BYTES) in seen["left_out"]
    assert seen["bytes"] == 5 + 50 * len(wide)


def test_parquet_left_by_a_run_is_not_read(node, monkeypatch):
    file = io.BytesIO()
    pq.write_table(pa.table({"x": ["A" * 2**24]}), file, compression="zstd", use_dictionary=False)
    monkeypatch.setattr(pq, "ParquetFile", None)
    seen = get(node, have(node, "job-expands", "out", file.getvalue()), rows=1)
    assert seen["kind"] == "bytes"
    assert seen["left_out"].startswith(f"all {len(file.getvalue())} bytes")


def test_a_report_is_shown_as_its_value_whatever_its_numbers(node):
    path = have(node, "job-report", "report", b'{"auc": NaN, "ks": 1e999, "n": [1, true]}')
    assert get(node, path)["value"] == {
        "auc": "nan",
        "ks": "inf",
        "n": [1, True],
    }
    listed = get(node, "/api/v1/jobs/job-report/outputs")["outputs"]
    assert [o["value"]["ks"] for o in listed if o["key"] == "report"] == ["inf"]


def test_an_output_that_was_never_written_says_so(node):
    missing = get(node, have(node, "job-none", "out"), 404)
    assert missing["data"]["reason"] == "OUTPUT_MISSING"
    assert (
        missing["msg"]
        == "OUTPUT_MISSING: output out of task a at guest.0 is not there; its run is SUCCESS"
    )


def test_what_cannot_be_shown_says_why(node):
    odd = {
        "bin": bytes(range(256)),
        "nested": b"[" * 500 + b"]" * 500,
        "big": b"\0" * (MOST_BYTES + 1),
    }
    for name, data in odd.items():
        seen = get(node, have(node, f"job-{name}", "model", data))
        assert seen["kind"] == "bytes"
        assert f"{len(data)} bytes" in seen["left_out"]
        assert "value" not in seen
    large = get(node, have(node, "job-large", "report", b'{"x": "' + b"1" * MOST_BYTES + b'"}'))
    assert large["kind"] == "json"
    assert large["value"] is None
    assert "more than" in large["left_out"]


def test_a_download_is_the_bytes_with_their_checksum(node):
    parts = [b"id\n" + b"1\n" * 900_000, b"id\n2\n"]
    path = have(node, "job-down", "out", *parts)
    assert "x-checksum-sha256" not in ask(node, "operator", "GET", path + "/download").headers
    answer = ask(
        node, "operator", "GET", path + "/download", headers={"want-repr-digest": "sha-256=1"}
    )
    assert answer.status_code == 200
    assert answer.content == b"".join(parts)
    assert answer.headers["x-checksum-sha256"] == hashlib.sha256(answer.content).hexdigest()
    assert answer.headers["content-disposition"].startswith(
        'attachment; filename="a-guest.0-out.csv"'
    )


def test_a_download_goes_on_where_it_stopped_unless_it_has_changed(node):
    rows, more = b"id,x\n1,a\n2,b\n", b"id,x\n3,c\n"
    path, whole = have(node, "job-range", "out", rows, more) + "/download", rows + more

    def part(**headers: str) -> Any:
        return ask(node, "operator", "GET", path, headers=headers)

    all_commands = part()
    assert all_commands.headers["content-length"] == str(len(whole))
    assert all_commands.headers["accept-ranges"] == "bytes"
    for text, start, end in (
        ("bytes=0-3", 0, 4),
        ("bytes=4-", 4, len(whole)),
        (f"bytes={len(rows) - 2}-{len(rows) + 2}", len(rows) - 2, len(rows) + 3),
        (f"bytes={len(rows)}-", len(rows), len(whole)),
        ("bytes=-3", len(whole) - 3, len(whole)),
        ("bytes=5-999", 5, len(whole)),
    ):
        answer = part(range=text)
        assert answer.status_code == 206, text
        assert answer.content == whole[start:end], text
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(whole)}"
    beyond = part(range=f"bytes={len(whole)}-")
    assert beyond.status_code == 416
    assert beyond.headers["content-range"] == f"bytes */{len(whole)}"
    assert beyond.json()["data"]["reason"] == "RANGE_NOT_THERE"
    assert (
        part(**{"range": "bytes=2-", "if-range": all_commands.headers["etag"]}).status_code == 206
    )
    assert part(**{"range": "bytes=2-", "if-range": '"another"'}).content == whole
    for text in ("", "bytes=", "bytes=-", "bytes=3-1", "bytes=0-1,3-4", "lines=0-1", "bytes=x-y"):
        assert one_range(text, 10) is None, text


def test_a_job_that_was_only_handed_in_is_told_from_where_it_is_scheduled(node, monkeypatch):
    node.store.add_submission("job-elsewhere", "flow", PEER, T0)
    task = TaskView("task_1", "a", TaskStatus.RUNNING, nodes={PEER: {"guest": TaskStatus.RUNNING}})
    view = JobView("job-elsewhere", JobStatus.RUNNING, [task])
    monkeypatch.setattr(node.coordinator, "status", lambda job_id: view)
    job = get(node, "/api/v1/jobs/job-elsewhere")
    assert job["status"] == "RUNNING"
    assert job["scheduler"] == PEER
    assert job["initiator"] == ME
    assert job["parties"] == [
        {
            "role": "guest",
            "index": None,
            "node": PEER,
        }
    ]
    assert job["runs"] == []
    assert job["parameters"] == {}


def test_defaults_show_their_origin_and_runs_their_log_path(node, monkeypatch):
    optional = [
        a_parameter(name, defaultValue=value)
        for name, value in (("set", "1"), ("open", "2"), ("blank", ""))
    ]
    description = a_description(
        "Thing",
        provider="vendor",
        inputParam=optional,
        inputData=[],
        outputData=[],
    )
    provider = provider_from_request(
        a_request(description, name="vendor", metadata={"base_url": "", "image": "i:1"})
    )
    node.registry.register(provider)
    params = {"common": {"a": {"set": 7}}}
    node.store.local_jobs.add(over("job-params", task_params=params), "flow")
    monkeypatch.setattr(
        node.coordinator, "status", lambda job_id: JobView(job_id, JobStatus.FINISHED)
    )
    job = get(node, "/api/v1/jobs/job-params")
    assert job["parameters"] == {
        PARTY: {
            "a": {
                "set": {"value": 7, "origin": "common"},
                "open": {"value": "2", "origin": "component default"},
            },
            "b": {
                "set": {"value": "1", "origin": "component default"},
                "open": {"value": "2", "origin": "component default"},
            },
        }
    }
    (run,) = job["runs"]
    assert run["parameters"] == {}
    assert run["log"] == "/api/v1/jobs/job-params/runs/guest.0/a/log"
    assert get(node, run["log"].replace("/a/", "/none/"), 404)["data"]["reason"] != "PATH_UNKNOWN"
    assert str(node.storage.root.parent) not in json.dumps(job)


def test_orphans_are_shown_and_counted_and_left_alone(node, monkeypatch):
    assert get(node, "/api/v1/orphans") == {"unknown": [], "lost": []}
    own = labels(ME, node.store.installation(), "job-x", "task_x", "guest", 0, 0)
    node.engine.launch(LaunchSpec("bfia-orphan", SLEEPER, {}, own))
    mine = over("job-lost")
    lost = replace(
        mine.runs[0],
        status=RunStatus.RUNNING,
        owner=node.owner,
        probe_at=T0.replace(2999),
    )
    others = replace(
        lost,
        run_id="f" * 64,
        name="bfia-others",
        owner="other/process",
    )
    node.store.local_jobs.add(replace(mine, runs=(lost, others)), "flow")
    try:
        found = get(node, "/api/v1/orphans")
        assert [(o["name"], o["job"], o["state"]) for o in found["unknown"]] == [
            ("bfia-orphan", "job-x", "running")
        ]
        assert [(o["name"], o["job"], o["role"]) for o in found["lost"]] == [
            ("bfia-job-lost", "job-lost", "guest")
        ]
        ready = get(node, "/health/ready")
        assert ready["ready"]
        assert ready["checks"]["orphans"] == {
            "ok": True,
            "unknown": 1,
            "lost": 1,
        }
        assert [f.name for f in node.engine.list()] == ["bfia-orphan"]
        with monkeypatch.context() as patch:
            patch.setattr(node.engine, "probe", raising(EngineError("it answers nonsense")))
            assert get(node, "/api/v1/orphans")["lost"] == []  # the engine may have it
            patch.setattr(node.engine, "list", raising(EngineDown("no daemon answers")))
            cause = get(node, "/health/ready")["checks"]["orphans"]["cause"]
            assert cause == "ENGINE_DOWN: no daemon answers"
            patch.setattr(node.engine, "check", raising(EngineDown("no daemon answers")))
            patch.setattr(
                node.store.jobs, "find", raising(DatabaseAway("the database does not answer"))
            )
            checks = get(node, "/health/ready", 503)["checks"]
            assert checks["engine"]["cause"] == "ENGINE_DOWN: no daemon answers"
            assert checks["database"] == {"ok": False, "cause": "DatabaseAway"}
            assert "orphans" not in checks
    finally:
        node.engine.remove("bfia-orphan")


def test_the_log_of_every_attempt_is_there(node):
    local = left_behind(node, "job-again", 5)
    second = replace(a_run_of(local.spec, attempt=1), task_id="task_job-again-2")
    node.store.local_jobs.update(
        "job-again", lambda job: replace(job, runs=(local.runs[0], second))
    )
    logs_of(node, second).mkdir(parents=True)
    (logs_of(node, second) / "stdout.log").write_text("hello again\n")
    place = "/api/v1/jobs/job-again/runs/guest.0/a/log?stream=stdout"
    for attempt, begins in (
        ("", "hello again\n"),
        ("&attempt=1", "hello again\n"),
        ("&attempt=0", "hello\n"),
    ):
        assert ask(node, "operator", "GET", place + attempt).text.startswith(begins)
    assert "but 0, 1" in get(node, place + "&attempt=2", 404)["msg"]
    assert get(node, place + "&attempt=x", 400)["data"]["problems"][0]["path"] == "attempt"


@pytest.fixture(scope="module")
def reported(node: Gateway) -> str:
    """Return the id of a job with a report."""
    job_id = "job-00000000000000000000000000000050"
    left_behind(node, job_id, 60.0)
    written = node.storage.root / f"{job_id}-guest-0" / f"task_{job_id}-report" / "data_0"
    written.write_text(
        json.dumps(
            {
                "auc": 0.987654321,
                "remark": "<b>",
                "loss": LOSS,
            }
        )
    )
    return job_id


def cli(node: Gateway, *words: str) -> Result:
    return call("job", *words, "--url", node.addresses()["operator"], env={"COLUMNS": "200"})


def test_commands_list_and_show_reports_and_say_what_there_is_instead(node, reported):
    listed = cli(node, "reports", reported)
    assert listed.exit_code == 0
    assert "auc 0.987654" in listed.stdout
    assert "loss of 30 rows" in listed.stdout
    shown = cli(node, "report", reported, "a", "report")
    assert shown.exit_code == 0, shown.stderr
    assert "0.987654" in shown.stdout
    assert "and 10 rows more: --json" in shown.stdout
    as_json = json.loads(cli(node, "report", reported, "a", "report", "--json").stdout)
    assert as_json["values"]["auc"] == 0.987654321
    other = cli(node, "report", reported, "b", "report")
    assert other.exit_code == EXIT_BAD_INPUT
    assert "a report --party guest.0" in other.stderr
