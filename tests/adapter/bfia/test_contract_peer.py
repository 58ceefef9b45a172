"""The contract of every path between nodes, case by case: control layer 3, and the one path of a single peer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from adapter.bfia import translate
from adapter.bfia.peer import JOB_AUDIT, OPTIONAL
from adapter.bfia.profiles import PROFILES
from adapter.bfia.requests import IDS_BYTES, OF_IDS
from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.spec import Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from tests.adapter.bfia import contract
from tests.adapter.bfia.contract import DONE, AtLeast, Caller, Endpoint, envelope, refused
from tests.adapter.bfia.scripted import says
from tests.adapter.bfia.site import (
    CONTROL,
    FATE,
    KUSCIA,
    SPEC,
    Site,
    a_job_with,
    by_path,
    serving_site,
)
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, STRANGER

_numbers = count()
TASK = "task_taken_a"
Unknown = tuple[tuple[str, str, str], ...]


@dataclass
class Stage:
    """A job that `SPEC` schedules and in which this node takes part, and one that this node schedules for it."""

    site: Site
    taken: JobSpec
    own: JobSpec
    own_task: str

    @property
    def records(self) -> tuple[Job, LocalJob]:
        store = self.site.node.store
        return store.jobs.get(self.own.job_id), store.local_jobs.get(self.taken.job_id)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        node = site.node
        site.peer.will(by_path(task_poll=says(data={"status": "RUNNING"})))
        taken = a_job_with(SPEC, "a; b -> c; d", scheduler=SPEC)
        node.participant.create_job(taken, SPEC)
        node.participant.start_task(taken.job_id, TASK, "a", SPEC)
        own = a_job_with(SPEC, "a -> b")
        node.coordinator.submit_job(own, ME)
        site.run(taken.job_id, "guest.0")

        def up() -> bool:
            return (
                node.store.jobs.get(own.job_id).tasks["a"].nodes[SPEC].status is TaskStatus.RUNNING
            )

        wait_for(up, 20, 0.02, "the peer's part runs")
        yield Stage(site, taken, own, node.store.jobs.get(own.job_id).tasks["a"].task_id)


@pytest.fixture
def call(stage: Stage) -> Caller:
    return Caller(stage.site.node, "peer", CONTROL, {"x-source-node-id": SPEC})


def job_body(spec: JobSpec) -> dict[str, Any]:
    return translate.create_body(spec, PROFILES["spec"])


def new_job(_: Stage) -> dict[str, Any]:
    return job_body(
        replace(a_job_with(SPEC, scheduler=SPEC), job_id=f"job-contract-{next(_numbers)}")
    )


def own_state(stage: Stage, _: dict[str, Any]) -> dict[str, Any]:
    """Return the whole answer about the job that this node schedules."""
    job = stage.site.node.store.jobs.get(stage.own.job_id)
    a, b = job.tasks["a"], job.tasks["b"]
    assert a.nodes[SPEC].status is TaskStatus.RUNNING and b.status is TaskStatus.READY
    said = Caller(stage.site.node, "operator", "/v1/platform/schedule", {})(
        "/job/status_all", {"job_id": job.id}, "GET"
    )
    data = dict(envelope(said)["data"])
    for one in (data, *data["tasks"]):
        assert set(one.pop("waiting")) == {
            "reason",
            "message",
            "since",
            "next_check",
        }  # which go on meanwhile
    data["tasks"] = [AtLeast(task) for task in data["tasks"]]
    return {
        "code": 0,
        "msg": "success",
        "data": AtLeast(data),
    }


JOB_FIELDS = (
    "job_id",
    "dag",
    "dag.components",
    "dag.components[0].name",
    "dag.components[0].version",
    "config",
    "config.initiator",
    "config.initiator.role",
    "config.initiator.node_id",
    "config.role",
)

NO_JOB = ("job_id", "job-nowhere", "JOB_UNKNOWN")
NO_TASK = ("task_id", "task_nowhere", "TASK_UNKNOWN")
NO_NAME = ("task_name", "nothing", "TASK_UNKNOWN")


def of_job(
    path: str,
    *required: str,
    own: bool = False,
    unknown: Unknown = (NO_JOB,),
    **more: str,
) -> Endpoint:
    """Return a path about the job that this node schedules (``own``) or takes part in."""
    return Endpoint(
        path,
        lambda s: {"job_id": (s.own if own else s.taken).job_id, **more},
        required=("job_id", *required),
        unknown=unknown,
    )


ENDPOINTS = (
    *(
        Endpoint(
            path,
            new_job,
            lambda _, body: DONE | {"data": {"job_id": body["job_id"]}},
            JOB_FIELDS,
            ("flow_id",),
        )
        for path in ("/job/create_all", "/job/create")
    ),
    of_job("/job/start"),
    of_job("/task/start", "task_id", "task_name", task_id=TASK, task_name="a"),
    of_job(
        "/job/stop_all",
        own=True,
        unknown=(NO_JOB, NO_NAME),
        task_name="b",
    ),
    of_job("/job/stop", unknown=(NO_JOB, NO_NAME), task_name="d"),
    replace(
        of_job("/job/status_all", own=True),
        reply=own_state,
        methods=("POST", "GET"),
        in_query=True,
    ),
    of_job("/job/suspend", own=True),
    of_job("/job/resume", own=True),
    of_job("/job/audit_confirm", "status", own=True, status="READY"),
    Endpoint(
        "/task/poll",
        lambda _: {"task_id": TASK, "role": "guest"},
        lambda *_: DONE | {"data": {"status": "RUNNING"}},
        required=("task_id",),
        optional=("role",),
        unknown=(NO_TASK, ("role", "arbiter", "ROLE_UNKNOWN")),
    ),
    Endpoint(
        "/task/callback",
        lambda s: {
            "task_id": s.own_task,
            "status": "RUNNING",
            "role": "host",
        },
        required=("task_id", "status"),
        optional=("role",),
        unknown=(NO_TASK,),
    ),
    Endpoint(
        "/task/stop",
        lambda _: {"task_id": TASK},
        repeatable=False,
        required=("task_id",),
        unknown=(NO_TASK,),
    ),
)


@pytest.mark.parametrize("one", ENDPOINTS, ids=str)
def test_the_contract_of_a_path(
    stage: Stage,
    call: Caller,
    one: Endpoint,
):
    contract.check(call, one, stage, lambda: _visible(*stage.records))


def _visible(job: Job, local: LocalJob) -> Any:
    """Return what others can see of both records; the job goes on asking its peer all the while."""
    tasks = {
        n: (t.status, t.ending, {p: dict(part.roles) for p, part in t.nodes.items()})
        for n, t in job.tasks.items()
    }
    runs = [(r.task_id, r.party, r.status, r.stop_at) for r in local.runs]
    return job.status, job.ending, tasks, local.status, local.ending, runs


def test_only_a_party_may_query_this_nodes_part(call: Caller, stage: Stage):
    job = {"job_id": stage.taken.job_id}
    data = envelope(call("/job/status_all", job))["data"]
    assert TASK in data["status"] and data["scheduler"] == SPEC and not data["warnings"]
    refused(call("/job/status_all", job, headers={"x-source-node-id": FATE}), 404, "JOB_UNKNOWN")


def test_a_null_role_counts_as_absent_and_the_same_id_elsewhere_conflicts(
    call: Caller, stage: Stage
):
    body = contract.with_(new_job(stage), "config.role.arbiter", None)
    assert envelope(call("/job/create", body))["code"] == 0
    said = refused(
        call("/job/create", body, headers={"x-source-node-id": FATE}), 409, "JOB_ID_CONFLICT"
    )
    assert said["msg"].endswith("is here already, from another node")


def test_every_path_for_peers_is_in_the_table(stage: Stage):
    """Extensions have their contracts where they are tested, and so has the confirmation of an approval."""
    call = Caller(stage.site.node, "peer", "", {"x-source-node-id": SPEC})
    contract.check_size(call, f"{CONTROL}/job/create")
    described = call("/openapi.json", None, "GET").json()["paths"]
    mine = {p.removeprefix(CONTROL) for p in described if p.startswith(CONTROL)}
    assert mine - (set(OPTIONAL) - {"/job/suspend", "/job/resume"}) == {e.path for e in ENDPOINTS}
    assert {p.removeprefix(JOB_AUDIT) for p in described if p.startswith(JOB_AUDIT)} == {
        e.path for e in AUDITS
    }


@pytest.mark.parametrize("path", sorted(OF_IDS | {f"{CONTROL}/job/status_all"}))
def test_a_path_that_takes_ids_takes_no_large_body(stage: Stage, path: str):
    call = Caller(stage.site.node, "peer", "", {"x-source-node-id": SPEC})
    body = json.dumps({"job_id": [1] * IDS_BYTES}).encode()
    refused(call(path, content=body), 413, "TOO_LARGE", 413)
    with_most_ids = {
        "job_id": "j",
        "task_id": "t",
        "task_name": "a",
        "amendments": ["i" * 100] * 1000,
    }
    answer = call(path, content=json.dumps(with_most_ids).encode())
    assert answer.status_code != 413


# ---------------------------------------------------------------- the job audit: management layer 8


@pytest.fixture
def audits(stage: Stage) -> Caller:
    return Caller(stage.site.node, "peer", JOB_AUDIT, {"x-source-node-id": SPEC})


def question(_: Stage) -> dict[str, Any]:
    """Return a question about a new job, with ``config`` where the standard prints ``conf``."""
    spec = replace(a_job_with(SPEC, scheduler=SPEC), job_id=f"job-audit-{next(_numbers)}")
    body = translate.audit_body(spec, PROFILES["spec"])
    return {"config" if k == "conf" else k: v for k, v in body.items()} | {
        "audit_id": f"q-{spec.job_id}"
    }


def asked(stage: Stage) -> dict[str, Any]:
    """Ask about a new job; return what names the question."""
    body = question(stage)
    said = Caller(stage.site.node, "peer", JOB_AUDIT, {"x-source-node-id": SPEC})("/apply", body)
    assert envelope(said) == DONE
    return {"audit_id": body["audit_id"]}


NOBODY = (("audit_id", "audit-nowhere", "AUDIT_UNKNOWN"),)
AUDITS = (
    Endpoint(
        "/apply",
        question,
        required=(
            "audit_id",
            "job_id",
            "dag",
            "dag.components",
            "config",
            "config.initiator",
            "config.role",
        ),
        optional=("flow_id", "name", "project_id"),
    ),
    Endpoint(
        "/confirm",
        lambda s: {"audit_id": f"audit_{s.own.job_id}", "status": "APPROVED"},
        required=("audit_id", "status"),
        unknown=NOBODY,
    ),
    Endpoint("/terminate", asked, required=("audit_id",), unknown=NOBODY),
    Endpoint(
        "/query",
        asked,
        lambda *_: DONE | {"data": {"status": "APPROVED"}},
        unknown=NOBODY,
        methods=("GET",),
        in_query=True,
    ),
)


@pytest.mark.parametrize("one", AUDITS, ids=str)
def test_the_contract_of_a_path_of_the_job_audit(
    stage: Stage,
    audits: Caller,
    one: Endpoint,
):
    contract.check(audits, one, stage)
    method, body = one.methods[0], one.body(stage)
    for headers in ({}, {"x-source-node-id": STRANGER}):
        refused(audits(one.path, body, method, headers=headers), 403, "NOT_AUTHORISED")
    if one.path in ("/terminate", "/query"):  # what another node asked is not known to this one
        refused(
            audits(one.path, body, method, headers={"x-source-node-id": FATE}), 404, "AUDIT_UNKNOWN"
        )


def test_a_question_that_cannot_be_taken(audits: Caller, stage: Stage):
    first = question(stage)
    assert envelope(audits("/apply", first)) == DONE
    other = question(stage) | {"audit_id": first["audit_id"]}
    refused(audits("/apply", other), 409, "AUDIT_ID_CONFLICT")
    refused(audits("/apply", first | {"audit_id": "another"}), 409, "JOB_ID_CONFLICT")
    refused(audits("/apply", contract.with_(first, "dag.version", "9")), 409, "JOB_ID_CONFLICT")
    missing = contract.with_(question(stage), "dag.components[0].componentName", "Nothing")
    said = refused(audits("/apply", missing), 400, "INVALID")
    assert said["data"]["problems"][0]["path"].startswith("dag.components[0]")
    assert envelope(audits("/terminate", {"audit_id": first["audit_id"]})) == DONE
    assert envelope(audits("/query", {"audit_id": first["audit_id"]}, "GET"))["data"] == {
        "status": "TERMINATED"
    }
    create = {k: v for k, v in first.items() if k not in ("audit_id", "name", "project_id")}
    said = Caller(stage.site.node, "peer", CONTROL, audits.headers)("/job/create", create)
    refused(said, 409, "AUDIT_WITHDRAWN")


def test_who_takes_a_question_back_may_say_why(audits: Caller, stage: Stage):
    asked = question(stage)
    assert envelope(audits("/apply", asked)) == DONE
    why = {
        "reason": "NO_ROOM",
        "message": "there is no room",
        "node": KUSCIA,
    }
    body = {
        "audit_id": asked["audit_id"],
        "outcome": "REJECTED",
        "failed_by": why,
    }
    assert envelope(audits("/terminate", body)) == DONE
    ending = stage.site.node.store.local_jobs.get(asked["job_id"]).ending
    assert (ending.outcome, ending.failure) == (
        Outcome.REJECTED,
        Failure("NO_ROOM", "there is no room", KUSCIA),
    )


def test_answers_that_cannot_be_taken(audits: Caller, stage: Stage):
    mine = {"audit_id": f"audit_{stage.own.job_id}"}
    for word in ("APPLIED", "TERMINATED", "yes", ""):
        said = refused(audits("/confirm", mine | {"status": word}), 400, "STATUS_UNKNOWN")
        assert [p["path"] for p in said["data"]["problems"]] == ["status"]
    refused(audits("/confirm", mine | {"status": "REJECTED"}), 409, "ALREADY_DECIDED")  # it runs
    outsider = {"x-source-node-id": KUSCIA}
    refused(audits("/confirm", mine | {"status": "APPROVED"}, headers=outsider), 404, "JOB_UNKNOWN")
    refused(audits("/terminate", mine, headers=outsider), 404, "JOB_UNKNOWN")
    assert stage.site.node.store.jobs.get(stage.own.job_id).status is JobStatus.RUNNING


def test_a_job_that_was_created_first_is_answered_all_the_same(audits: Caller, stage: Stage):
    body = question(stage)
    create = {k: v for k, v in body.items() if k not in ("audit_id", "name", "project_id")}
    control = Caller(stage.site.node, "peer", CONTROL, audits.headers)
    assert envelope(control("/job/create", create))["code"] == 0
    assert envelope(audits("/apply", body)) == DONE
    told = wait_for(
        lambda: next(
            (a for a in stage.site.peer.asked if a.body.get("audit_id") == body["audit_id"]), None
        ),
        20,
        0.02,
    )
    assert (told.target, told.body["status"]) == (f"{JOB_AUDIT}/confirm", "APPROVED")
    assert envelope(control("/job/start", {"job_id": body["job_id"]})) == DONE
    refused(audits("/terminate", {"audit_id": body["audit_id"]}), 409, "JOB_STARTED")
    refused(audits("/apply", question(stage) | {"job_id": body["job_id"]}), 409, "JOB_ID_CONFLICT")
    assert envelope(control("/job/stop", {"job_id": body["job_id"]})) == DONE


def test_an_approval_may_be_withdrawn_and_the_job_is_stopped(audits: Caller, stage: Stage):
    own = a_job_with(SPEC)
    stage.site.node.coordinator.submit_job(own, ME)
    for _ in range(2):
        assert envelope(audits("/terminate", {"audit_id": f"audit_{own.job_id}"})) == DONE
    jobs = stage.site.node.store.jobs
    wait_for(lambda: jobs.get(own.job_id).ended_at is not None, 20, 0.02, "it is stopped")
    assert envelope(audits("/terminate", {"audit_id": f"audit_{own.job_id}"})) == DONE
