"""FATE's client API on a node in this process: every path once, answers compared with those kept in a file.

``client-exchanges.json``: ``by`` says whether a request is one that FATE's own client was recorded to send
(``tests/e2e/test_fate_client.py`` holds that it still does) or was made up after FATE-Flow's documents. With
REGENERATE_GOLDEN set the answers are written anew, and what has changed fails all the same.
"""

import gzip
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml

from adapter.fate.tools import deps, jobs
from adapter.fate.tools.rows import JobRecords, job_rows, records_of, task_rows
from adapter.fate.tools.schemas import DAG_SCHEMA
from gateway.bootstrap.node import Gateway
from gateway.domain.job import Attempt
from gateway.domain.spec import Failure, Party
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.errors import NotFound
from gateway.ports import JobView, TaskView
from tests.builders import OK, a_job, a_local_job, a_run, a_spec
from tests.cleaning.ended import ago, left_behind
from tests.e2e.nodes import ROOT, example
from tests.inprocess import ME, PEER, ask, running
from tests.plain import NO_TLS

GOLDEN = Path(__file__).parent / "golden" / "client-exchanges.json"
EXCHANGES: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))
JOB = "job-00000000000000000000000000000001"
LOST = "job-00000000000000000000000000000404"
TABLE = {"namespace": "experiment", "name": "breast_hetero_guest"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home = tmp_path_factory.mktemp("node")
    (home / "routes.yml").write_text(yaml.safe_dump({PEER: {"host": "127.0.0.1", "port": 9}}))
    with running(home, fate={"enabled": True}, data={"roots": [str(ROOT)]}) as gateway:
        over(gateway, JOB, 60.0)
        yield gateway


def over(node: Gateway, job_id: str, seconds: float) -> None:
    """Store a job that this node scheduled and took part in, and that has succeeded."""
    local = left_behind(node, job_id, seconds)
    done = dict.fromkeys(("a", "b"), TaskStatus.SUCCESS)
    job = a_job(spec=local.spec, status=JobStatus.FINISHED, **done)
    nodes = {name: replace(part, stop=OK) for name, part in job.nodes.items()}
    tasks = {
        name: replace(task, task_id=f"task_{job_id}" if name == "a" else f"{name}_{job_id}")
        for name, task in job.tasks.items()
    }
    ended = {"outcome": Outcome.SUCCEEDED, "started_at": ago(seconds + 1), "ended_at": ago(seconds)}
    job = replace(job, created_at=ago(seconds + 1), nodes=nodes, tasks=tasks, **ended)
    assert node.store.jobs.add(job, "flow")


def asked(node: Gateway, method: str, path: str, given: dict[str, Any] | None = None) -> httpx.Response:
    values = {"params": given} if method == "GET" else {"json": given}
    answer = ask(node, "operator", method, path, **values)
    assert answer.status_code == 200, answer.text
    return answer


def plain(answer: httpx.Response) -> Any:
    """Return an answer without what differs from run to run; of an archive the names of its members."""
    kind = answer.headers["content-type"]
    if kind in ("application/gzip", "application/x-tar"):
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
            return {kind: sorted(archive.getnames())}
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", answer.text)
    return _steady(json.loads(text))


def _steady(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {k: _steady(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_steady(v, key) for v in value]
    if key.endswith(("_time", "elapsed", "timestamp", "http_port", "port")) and isinstance(value, int):
        return 0
    if key.endswith("_date") or (isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32}(/\w+)?", value)):
        return "…"
    if isinstance(value, str):
        return re.sub(r"\d{4}-\d\d-\d\d[T ][0-9:.+]+", "…", re.sub(r"/tmp/\S+", "/…", value))
    return value


def test_the_exchanges_are_as_they_were(node: Gateway):
    """In their order: some depend on earlier ones."""
    changed = []
    for one in EXCHANGES:
        answer = asked(node, one["method"], one["path"], one["asks"])
        assert str(node.settings.state_dir.parent) not in answer.text, "no answer names a path of this machine"
        found, known = plain(answer), one["answers"]
        one["answers"] = found
        changed += [] if found == known else [(one["path"], found, known)]
    if os.environ.get("REGENERATE_GOLDEN"):
        lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in EXCHANGES)
        GOLDEN.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    assert changed == []


def test_every_path_has_an_exchange(node: Gateway):
    described = ask(node, "operator", "GET", "/openapi.json").json()["paths"]
    served = {
        (method.upper(), path)
        for path, methods in described.items()
        for method, operation in methods.items()
        if "fate client" in operation.get("tags", ())
    }
    assert served - {(e["method"], e["path"]) for e in EXCHANGES} == {("POST", "/v2/data/component/upload/file")}
    assert len(served) > 30


def test_the_answers_links_lead_somewhere(node: Gateway):
    task = asked(node, "GET", "/v2/job/task/query", {"job_id": JOB}).json()["data"][0]
    job = asked(node, "GET", "/v2/job/query", {"job_id": JOB}).json()["data"][0]
    for link in (task["log_url"], task["ui_url"], job["log_url"], job["ui_url"]):
        assert httpx.get(link, timeout=120, trust_env=False, verify=NO_TLS).status_code == 200, link


def test_a_refused_job_lists_all_problems_by_their_place_in_the_description(node: Gateway):
    asked(node, "POST", "/v2/provider/register", example("register_unionpay.json"))

    def refused(schema: Any) -> tuple[dict[str, Any], set[str]]:
        answer = asked(node, "POST", "/v2/job/submit", {"dag_schema": schema}).json()
        found = {p["path"].removeprefix("dag_schema.dag.") for p in answer["data"].get("problems", ())}
        assert answer["code"] in (1000, 1002, 5001)
        return answer, found

    faulty = json.loads(json.dumps(DAG_SCHEMA))
    faulty["dag"]["tasks"]["intersect_rsa_1"] |= {"component_ref": None, "dependent_tasks": "x"}
    faulty["dag"]["parties"][0] = {"party_id": []}
    task = "tasks.intersect_rsa_1"
    assert refused(faulty)[1] == {f"{task}.component_ref", f"{task}.dependent_tasks", "parties[0].role"}

    faulty = json.loads(json.dumps(DAG_SCHEMA))
    faulty["dag"]["conf"]["extra"]["initiator"]["party_id"] = "J1"
    faulty["dag"]["conf"]["priority"] = "high"
    faulty["dag"]["parties"][1]["party_id"] = ["JG0000000000000404"]
    del faulty["dag"]["tasks"]["intersect_rsa_1"]["inputs"]["data"]["train_data"]["data_warehouse"][1]
    at = {"conf.extra.initiator", "conf.priority", "parties.host[0]", f"{task}.inputs.data"}
    assert refused(faulty)[1] == at

    here = json.loads(json.dumps(DAG_SCHEMA).replace(PEER, ME))
    message = refused(here)[0]["message"]  # no such table
    assert f"dag_schema.dag.{task}.inputs.data: " in message and "config." not in message
    here["dag"]["stage"] = "predict"
    here["dag"]["conf"]["model_warehouse"] = {"model_id": "nobody-trained-it", "model_version": "7"}
    answer, _ = refused(here)
    assert (answer["code"], answer["data"]["reason"]) == (1002, "MODEL_UNKNOWN")


def test_lists_are_narrowed_ordered_and_cut_into_pages(node: Gateway):
    other = "job-00000000000000000000000000000002"
    over(node, other, 30.0)

    def ids(**given: Any) -> list[str]:
        of_these = {"job_id": "job-00000000", **given}  # other tests hand jobs in
        data = asked(node, "GET", "/v2/job/list/query", of_these).json()["data"]
        return [row["job_id"] for row in data["data"]]

    assert ids() == [other, JOB] and ids(order="asc") == [JOB, other]
    assert ids(limit=1) == [other] and ids(limit=1, page=2) == [JOB] and ids(limit=1, page=3) == []
    assert ids(status="running") == [] and ids(role=["guest", "host"], job_id="0000000001") == [JOB]
    assert ids(partner=PEER, party_id=ME) == [other, JOB] and ids(partner="nobody") == []


def test_notes_are_kept_and_found(node: Gateway):
    body = {"job_id": JOB, "role": "guest", "party_id": ME, "notes": "worth keeping"}
    assert asked(node, "POST", "/v2/job/notes/add", body).json()["code"] == 0
    assert asked(node, "GET", "/v2/job/query", {"job_id": JOB}).json()["data"][0]["description"] == "worth keeping"
    found = asked(node, "GET", "/v2/job/list/query", {"description": "worth"}).json()["data"]
    assert found["count"] == 1


def test_outputs_of_one_task_are_deleted_after_a_look(node: Gateway):
    job = "job-00000000000000000000000000000003"
    over(node, job, 30.0)
    of_task = {"job_id": job, "role": "guest", "party_id": ME, "task_name": "a"}
    look = asked(node, "POST", "/v2/output/metric/delete", {**of_task, "dry_run": True}).json()["data"]
    assert [i["removed"] for i in look["items"]] == [False]
    assert asked(node, "GET", "/v2/output/metric/query", of_task).json()["data"][0]["data"] == {"auc": 0.5}
    assert asked(node, "POST", "/v2/output/model/delete", of_task).json()["code"] == 0
    assert asked(node, "GET", "/v2/output/model/download", of_task).json()["code"] == 2005
    assert asked(node, "GET", "/v2/output/data/table", of_task).json()["out"]  # tables stay
    assert asked(node, "POST", "/v2/output/metric/delete", of_task).json()["data"]["items"][0]["removed"]
    assert asked(node, "GET", "/v2/output/metric/query", of_task).json()["data"] == []
    assert asked(node, "POST", "/v2/job/clean", {"job_id": job}).json()["code"] == 0
    assert asked(node, "GET", "/v2/job/query", {"job_id": job}).json()["code"] == 1001
    audit = ask(node, "operator", "GET", "/api/v1/audit").json()["audit"]
    done = {entry["action"] for entry in audit}
    assert {"POST /v2/output/metric/delete", "POST /v2/output/model/delete", "POST /v2/job/clean"} <= done


def test_a_table_in_parts_is_one_file_with_one_header(node: Gateway):
    asked(node, "POST", "/v2/component/upload", {**example("upload_breast_hetero_guest.json"), "overwrite": True})
    archives = {
        header: asked(node, "GET", "/v2/data/download", {**TABLE, "header": header})
        for header in ("true", "false")
    }
    lines = {}
    for header, answer in archives.items():
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(answer.content))) as archive:
            file = archive.extractfile("data/0.csv")
            assert file is not None
            lines[header] = file.read().decode().splitlines()
    assert len(lines["true"]) == 541 and lines["true"][0].startswith("sid,id,y")
    assert lines["false"] == lines["true"][1:]


def test_an_upload_without_a_name_gets_one_and_a_second_of_one_name_is_refused(node: Gateway):
    file = {"file": ("t.csv", b"id,x\n1,2\n", "text/csv")}
    form = {"head": "True", "partitions": "1", "meta": "{}", "role": "guest", "party_id": ME}
    answer = ask(node, "operator", "POST", "/v2/data/component/upload/file", data=form, files=file).json()
    assert answer["code"] == 0 and answer["job_id"] == f"upload-{answer['data']['dataset_id']}"
    again = ask(node, "operator", "POST", "/v2/data/component/upload/file", data=form | answer["data"], files=file)
    assert again.json()["code"] == 5001  # count and dataset_id are no fields of an upload
    named = form | {k: answer["data"][k] for k in ("namespace", "name")}
    again = ask(node, "operator", "POST", "/v2/data/component/upload/file", data=named, files=file)
    assert (again.json()["code"], again.json()["data"]["reason"]) == (7002, "DATASET_EXISTS")


def test_a_job_that_was_only_submitted_here_is_shown():
    tasks = [TaskView("t", "a", TaskStatus.RUNNING, nodes={PEER: {"guest": TaskStatus.RUNNING}})]
    view = JobView("job-9", JobStatus.RUNNING, tasks, scheduler=PEER)
    nothing = SimpleNamespace(find=lambda _: None)
    store = SimpleNamespace(jobs=nothing, local_jobs=nothing)
    settings = SimpleNamespace(node=SimpleNamespace(id=ME))
    coordinator = SimpleNamespace(status=lambda _: view)
    parts: Any = SimpleNamespace(settings=settings, coordinator=coordinator, store=store, clock=lambda: ago(0))
    seen = records_of(parts, "job-9")
    (row,) = job_rows(seen, "http://here")
    assert (row["status"], row["role"], row["party_id"]) == ("running", "guest", PEER)
    (task,) = task_rows(seen)
    assert (task["task_name"], task["party_status"], task["worker_id"]) == ("a", "running", None)


def test_a_party_that_was_only_stopped_is_shown_why_the_task_failed():
    stopped = Failure("STOPPED", "stopped on request", ME, "guest", "a")
    why = Failure("EXIT_1", "exit code 1", PEER, "host", "a", 1)
    spec = a_spec("a", {"guest": (ME,), "host": (PEER,)})
    run = a_run("a", RunStatus.FAILED, Party("guest", 0, ME), task_id="t", failure=stopped)
    local = replace(a_local_job(run, status=JobStatus.FINISHED), spec=spec, node=ME)
    for cause, more in (
        (why, f"; the task failed at host {PEER} of EXIT_1: exit code 1"),
        (stopped, ""),
        (None, ""),
    ):
        task = TaskView("t", "a", TaskStatus.FAILED, cause, {ME: {"guest": TaskStatus.FAILED}})
        view = JobView(spec.job_id, JobStatus.FINISHED, [task])
        (row,) = task_rows(JobRecords(view, spec, local, None, spec.parties_at(ME), ago(0)))
        assert (row["party_status"], row["error_report"]) == ("canceled", f"STOPPED: stopped on request{more}")


def test_each_attempt_of_a_task_has_a_row():
    failed = Failure("EXIT_3", "exit code 3", ME)
    spec = a_spec("a", {"guest": (ME,), "host": (PEER,)})
    tried = Attempt(0, "t0", failed, ago(9), ago(8))
    task = TaskView(
        "t1", "a", TaskStatus.RUNNING, attempt=1, attempts=[tried], nodes={ME: {"guest": TaskStatus.RUNNING}}
    )
    view = JobView(spec.job_id, JobStatus.RUNNING, [task])
    rows = task_rows(JobRecords(view, spec, None, None, spec.parties_at(ME), ago(9)), all_attempts=True)
    columns = ("task_id", "task_version", "status", "party_status", "error_report", "elapsed")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("t0", 0, "failed", "failed", "EXIT_3: exit code 3", rows[0]["end_time"] - rows[0]["start_time"]),
        ("t1", 1, "running", "running", "", None),
    ]


def test_a_log_that_is_longer_than_one_response_goes_on_where_it_ended():
    part = jobs._Part(5, lambda start, number: ([f"{n}" for n in range(start, start + 2)], False))
    assert jobs._lines([part, part], 2, 9) == ["1", "2"]


def test_a_log_that_another_gateway_has_is_named_in_the_archive():
    def elsewhere(*_: Any) -> Any:
        raise NotFound("another gateway has it", reason="LOG_ELSEWHERE")

    parts: Any = SimpleNamespace(run_logs=SimpleNamespace(read_run=elsewhere))
    members = jobs._member(parts, "job-1", a_run(), "stdout", "a/stdout.log")
    assert [b"".join(member.chunks) for member in members] == [b"[LOG_ELSEWHERE: another gateway has it]\n"]


def test_an_archive_of_a_file_that_changes_meanwhile_is_broken_off():
    with pytest.raises(ValueError, match="a has 3 bytes and not 5"):
        list(deps._plain_tar([deps.Member("a", 5, (b"abc",))]))


def test_a_job_that_has_not_ended_is_stopped_and_not_cleaned(node: Gateway):
    running = a_job(spec=a_spec("a", {"guest": (ME,)}, job_id="job-clean-1"), status=JobStatus.RUNNING)
    assert node.store.jobs.add(running, "flow")
    answer = asked(node, "POST", "/v2/job/clean", {"job_id": "job-clean-1"}).json()
    assert (answer["data"]["reason"], node.store.jobs.find("job-clean-1") is None) == ("JOB_NOT_ENDED", False)


def test_a_submission_that_steers_fates_own_engines_is_warned(node: Gateway, monkeypatch: pytest.MonkeyPatch):
    asked(node, "POST", "/v2/provider/register", example("register_unionpay.json"))
    monkeypatch.setattr(node.coordinator, "submit", lambda spec: spec.job_id)
    schema = json.loads(json.dumps(DAG_SCHEMA))
    schema["dag"]["conf"]["cores"] = 8
    answer = asked(node, "POST", "/v2/job/submit", {"dag_schema": schema}).json()
    [warning] = answer["data"]["warnings"]
    assert warning.startswith("dag_schema.dag.conf.cores: steers FATE's own engines")
