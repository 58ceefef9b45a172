"""The contract of the job audit, case by case: management layer 8, and the question after it, which is ours."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from adapter.bfia import translate
from adapter.bfia.extensions import JOB_AUDIT
from adapter.bfia.profiles import PROFILES
from gateway.domain.spec import Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from tests.adapter.bfia import contract
from tests.adapter.bfia.contract import DONE, Caller, Endpoint, envelope, refused
from tests.adapter.bfia.scripted import says
from tests.adapter.bfia.site import FATE, KUSCIA, SPEC, Site, a_job_with, by_path, serving_site
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, STRANGER

_numbers = count()


@dataclass
class Stage:
    """A node that `SPEC` asks about jobs, and that schedules one in which `SPEC` takes part."""

    site: Site
    own: JobSpec


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        site.peer.will(by_path(task_poll=says(data={"status": "RUNNING"})))
        own = a_job_with(SPEC)
        site.node.coordinator.submit_job(own, ME)
        jobs = site.node.store.jobs
        wait_for(lambda: jobs.get(own.job_id).tasks["a"].status is TaskStatus.RUNNING, 20, 0.02, "the job runs")
        yield Stage(site, own)


@pytest.fixture
def call(stage: Stage) -> Caller:
    return Caller(stage.site.node, "peer", JOB_AUDIT, {"x-source-node-id": SPEC})


def question(_: Stage) -> dict[str, Any]:
    """Return a question about a new job, with ``config`` where the standard prints ``conf``."""
    spec = replace(a_job_with(SPEC, scheduler=SPEC), job_id=f"job-audit-{next(_numbers)}")
    body = translate.audit_body(spec, PROFILES["spec"])
    return {"config" if k == "conf" else k: v for k, v in body.items()} | {"audit_id": f"q-{spec.job_id}"}


def asked(stage: Stage) -> dict[str, Any]:
    """Ask about a new job; return what names the question."""
    body = question(stage)
    said = Caller(stage.site.node, "peer", JOB_AUDIT, {"x-source-node-id": SPEC})("/apply", body)
    assert envelope(said) == DONE
    return {"audit_id": body["audit_id"]}


NOBODY = (("audit_id", "audit-nowhere", "AUDIT_UNKNOWN"),)
ENDPOINTS = (
    Endpoint(
        "/apply",
        question,
        required=("audit_id", "job_id", "dag", "dag.components", "config", "config.initiator", "config.role"),
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

every = pytest.mark.parametrize("one", ENDPOINTS, ids=str)


@every
def test_the_contract_of_a_path(stage: Stage, call: Caller, one: Endpoint):
    contract.check(call, one, stage)


@every
def test_who_may_ask(call: Caller, stage: Stage, one: Endpoint):
    method, body = one.methods[0], one.body(stage)
    for headers in ({}, {"x-source-node-id": STRANGER}):
        refused(call(one.path, body, method, headers=headers), 403, "NOT_AUTHORISED")
    if one.path in ("/terminate", "/query"):  # what another node asked is not known to this one
        refused(call(one.path, body, method, headers={"x-source-node-id": FATE}), 404, "AUDIT_UNKNOWN")


def test_every_path_of_the_job_audit_is_here(stage: Stage):
    described = Caller(stage.site.node, "peer", "", {})("/openapi.json", None, "GET").json()["paths"]
    assert {p.removeprefix(JOB_AUDIT) for p in described if p.startswith(JOB_AUDIT)} == {e.path for e in ENDPOINTS}


def test_a_question_that_cannot_be_taken(call: Caller, stage: Stage):
    first = question(stage)
    assert envelope(call("/apply", first)) == DONE
    other = question(stage) | {"audit_id": first["audit_id"]}
    refused(call("/apply", other), 409, "AUDIT_ID_CONFLICT")
    refused(call("/apply", first | {"audit_id": "another"}), 409, "JOB_ID_CONFLICT")
    refused(call("/apply", contract.with_(first, "dag.version", "9")), 409, "JOB_ID_CONFLICT")
    missing = contract.with_(question(stage), "dag.components[0].componentName", "Nothing")
    said = refused(call("/apply", missing), 400, "INVALID")
    assert said["data"]["problems"][0]["path"].startswith("dag.components[0]")
    assert envelope(call("/terminate", {"audit_id": first["audit_id"]})) == DONE
    assert envelope(call("/query", {"audit_id": first["audit_id"]}, "GET"))["data"] == {"status": "TERMINATED"}
    create = {k: v for k, v in first.items() if k not in ("audit_id", "name", "project_id")}
    said = Caller(stage.site.node, "peer", "/v1/interconn/schedule", call.headers)("/job/create", create)
    refused(said, 409, "AUDIT_WITHDRAWN")


def test_who_takes_a_question_back_may_say_why(call: Caller, stage: Stage):
    asked = question(stage)
    assert envelope(call("/apply", asked)) == DONE
    why = {"reason": "NO_ROOM", "message": "there is no room", "node": KUSCIA}
    body = {"audit_id": asked["audit_id"], "outcome": "REJECTED", "failed_by": why}
    assert envelope(call("/terminate", body)) == DONE
    ending = stage.site.node.store.local_jobs.get(asked["job_id"]).ending
    assert (ending.outcome, ending.failure) == (Outcome.REJECTED, Failure("NO_ROOM", "there is no room", KUSCIA))


def test_answers_that_cannot_be_taken(call: Caller, stage: Stage):
    mine = {"audit_id": f"audit_{stage.own.job_id}"}
    for word in ("APPLIED", "TERMINATED", "yes", ""):
        said = refused(call("/confirm", mine | {"status": word}), 400, "STATUS_UNKNOWN")
        assert [p["path"] for p in said["data"]["problems"]] == ["status"]
    refused(call("/confirm", mine | {"status": "REJECTED"}), 409, "ALREADY_DECIDED")  # it runs
    stranger = {"x-source-node-id": KUSCIA}
    refused(call("/confirm", mine | {"status": "APPROVED"}, headers=stranger), 403, "NOT_AUTHORISED")
    refused(call("/terminate", mine, headers=stranger), 403, "NOT_AUTHORISED")
    assert stage.site.node.store.jobs.get(stage.own.job_id).status is JobStatus.RUNNING


def test_a_job_that_was_created_first_is_answered_all_the_same(call: Caller, stage: Stage):
    body = question(stage)
    create = {k: v for k, v in body.items() if k not in ("audit_id", "name", "project_id")}
    control = Caller(stage.site.node, "peer", "/v1/interconn/schedule", call.headers)
    assert envelope(control("/job/create", create))["code"] == 0
    assert envelope(call("/apply", body)) == DONE
    told = wait_for(
        lambda: next((a for a in stage.site.peer.asked if a.body.get("audit_id") == body["audit_id"]), None),
        20,
        0.02,
    )
    assert (told.target, told.body["status"]) == (f"{JOB_AUDIT}/confirm", "APPROVED")
    assert envelope(control("/job/start", {"job_id": body["job_id"]})) == DONE
    refused(call("/terminate", {"audit_id": body["audit_id"]}), 409, "JOB_STARTED")
    refused(call("/apply", question(stage) | {"job_id": body["job_id"]}), 409, "JOB_ID_CONFLICT")
    assert envelope(control("/job/stop", {"job_id": body["job_id"]})) == DONE


def test_who_agreed_may_think_better_of_it_and_the_job_is_stopped(call: Caller, stage: Stage):
    own = a_job_with(SPEC)
    stage.site.node.coordinator.submit_job(own, ME)
    for _ in range(2):
        assert envelope(call("/terminate", {"audit_id": f"audit_{own.job_id}"})) == DONE
    jobs = stage.site.node.store.jobs
    wait_for(lambda: jobs.get(own.job_id).ended_at is not None, 20, 0.02, "it is stopped")
    assert envelope(call("/terminate", {"audit_id": f"audit_{own.job_id}"})) == DONE
