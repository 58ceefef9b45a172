"""The contract of every path between nodes: control layer 3, and the job audit between peers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from unittest.mock import ANY

import pytest

from adapter.bfia import translate
from adapter.bfia.commands import OPTIONAL
from adapter.bfia.paths import JOB_AUDIT
from adapter.bfia.profiles import PROFILES
from adapter.bfia.requests import IDS_BYTES, OF_IDS
from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.spec import Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from tests.adapter.bfia import contract
from tests.adapter.bfia.contract import (
    DONE,
    JOB_FIELDS,
    NO_JOB,
    NO_NAME,
    NO_TASK,
    AtLeast,
    Caller,
    Endpoint,
    MakeBody,
    always,
    job_body,
    read_envelope,
    read_refusal,
    success,
)
from tests.adapter.bfia.scripted import Received, says
from tests.adapter.bfia.site import (
    CONTROL,
    FATE,
    KUSCIA,
    PLATFORM,
    SPEC,
    Site,
    a_job_with,
    by_path,
    serving_site,
)
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, STRANGER

# The id of the running task of the joined job.
TASK = "task_taken_a"

# Numbers for ids; all tests share one node.
_numbers = count()


@dataclass
class Stage:
    """A job that this node has joined, and a job that this node schedules, both with `SPEC`."""

    site: Site
    joined: JobSpec
    scheduled: JobSpec
    # the id of the scheduled job's running task
    scheduled_task: str

    def scheduled_job(self) -> Job:
        """Return the scheduled job as it is stored."""
        return self.site.job(self.scheduled.job_id)

    def caller(self, prefix: str) -> Caller:
        """Return a caller that sends requests as the peer `SPEC`."""
        return Caller(
            self.site.node,
            "peer",
            prefix,
            {"x-source-node-id": SPEC},
        )


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with serving_site(tmp_path_factory.mktemp("node")) as site:
        site.peer.will(by_path(task_poll=says(data={"status": "RUNNING"})))
        joined = a_job_with(
            SPEC,
            "a; b -> c; d",
            scheduler=SPEC,
        )
        site.node.participant.create_job(joined, SPEC)
        site.node.participant.start_task(
            joined.job_id,
            TASK,
            "a",
            SPEC,
        )
        scheduled = a_job_with(SPEC, "a -> b")
        site.submit(scheduled)
        site.run(joined.job_id, "guest.0")

        def peer_runs() -> bool:
            task = site.job(scheduled.job_id).tasks["a"]
            return task.nodes[SPEC].status is TaskStatus.RUNNING

        wait_for(peer_runs, 20, 0.02, "the peer's part runs")
        task_id = site.job(scheduled.job_id).tasks["a"].task_id
        yield Stage(site, joined, scheduled, task_id)


@pytest.fixture
def call(stage: Stage) -> Caller:
    return stage.caller(CONTROL)


def new_job(_: Stage) -> dict[str, Any]:
    """Return the request that creates a new job."""
    spec = a_job_with(SPEC, scheduler=SPEC)
    return job_body(replace(spec, job_id=f"job-contract-{next(_numbers)}"))


def job_id_of_request(
    _: Stage,
    body: dict[str, Any],
) -> dict[str, Any]:
    """Return the response to a request that creates a job."""
    return DONE | {"data": {"job_id": body["job_id"]}}


def about_joined(**fields: str) -> MakeBody:
    """Return a function that makes a request about the joined job."""

    def make_body(stage: Stage) -> dict[str, Any]:
        return {"job_id": stage.joined.job_id, **fields}

    return make_body


def about_scheduled(**fields: str) -> MakeBody:
    """Return a function that makes a request about the scheduled job."""

    def make_body(stage: Stage) -> dict[str, Any]:
        return {"job_id": stage.scheduled.job_id, **fields}

    return make_body


def report_of_scheduled(stage: Stage) -> dict[str, Any]:
    """Return the peer's report about its task of the scheduled job."""
    return {
        "task_id": stage.scheduled_task,
        "status": "RUNNING",
        "role": "host",
    }


def state_of_scheduled(
    stage: Stage,
    _: dict[str, Any],
) -> dict[str, Any]:
    """Return the response to a query of the scheduled job: the data that its platform gets.

    The platform alone gets the warnings about this node's own part.
    """
    job = stage.scheduled_job()
    tasks = job.tasks
    assert tasks["a"].nodes[SPEC].status is TaskStatus.RUNNING
    assert tasks["b"].status is TaskStatus.READY

    platform = Caller(
        stage.site.node,
        "operator",
        PLATFORM,
        {},
    )
    response = platform(
        "/job/status_all",
        {"job_id": stage.scheduled.job_id},
        "GET",
    )
    data = dict(read_envelope(response)["data"])
    for entry in (data, *data["tasks"]):
        # its times pass between both queries
        waiting = entry.pop("waiting")
        assert set(waiting) == {"reason", "message", "since", "next_check"}
    data["tasks"] = [AtLeast(task) for task in data["tasks"]]
    assert set(job.warnings) < set(data["warnings"])
    data["warnings"] = list(job.warnings)
    return DONE | {"data": AtLeast(data)}


ENDPOINTS = (
    Endpoint(
        "/job/create_all",
        new_job,
        job_id_of_request,
        required=JOB_FIELDS,
        optional=("flow_id",),
    ),
    Endpoint(
        "/job/create",
        new_job,
        job_id_of_request,
        required=JOB_FIELDS,
        optional=("flow_id",),
    ),
    Endpoint(
        "/job/start",
        about_joined(),
        required=("job_id",),
        unknown=(NO_JOB,),
    ),
    Endpoint(
        "/task/start",
        about_joined(task_id=TASK, task_name="a"),
        required=("job_id", "task_id", "task_name"),
        unknown=(NO_JOB,),
    ),
    Endpoint(
        "/job/stop_all",
        about_scheduled(task_name="b"),
        required=("job_id",),
        unknown=(NO_JOB, NO_NAME),
    ),
    Endpoint(
        "/job/stop",
        about_joined(task_name="d"),
        required=("job_id",),
        unknown=(NO_JOB, NO_NAME),
    ),
    Endpoint(
        "/job/status_all",
        about_scheduled(),
        state_of_scheduled,
        required=("job_id",),
        unknown=(NO_JOB,),
        methods=("POST", "GET"),
        in_query=True,
    ),
    Endpoint(
        "/job/suspend",
        about_scheduled(),
        required=("job_id",),
        unknown=(NO_JOB,),
    ),
    Endpoint(
        "/job/resume",
        about_scheduled(),
        required=("job_id",),
        unknown=(NO_JOB,),
    ),
    Endpoint(
        "/job/audit_confirm",
        about_scheduled(status="READY"),
        required=("job_id", "status"),
        unknown=(NO_JOB,),
    ),
    Endpoint(
        "/task/poll",
        always({"task_id": TASK, "role": "guest"}),
        success(status="RUNNING"),
        required=("task_id",),
        optional=("role",),
        unknown=(
            NO_TASK,
            ("role", "arbiter", "ROLE_UNKNOWN"),
        ),
    ),
    Endpoint(
        "/task/callback",
        report_of_scheduled,
        required=("task_id", "status"),
        optional=("role",),
        unknown=(NO_TASK,),
    ),
    Endpoint(
        "/task/stop",
        always({"task_id": TASK}),
        repeatable=False,
        required=("task_id",),
        unknown=(NO_TASK,),
    ),
)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=str)
def test_a_path_keeps_its_contract(stage, call, endpoint):
    def read_state() -> Any:
        local = stage.site.local_job(stage.joined.job_id)
        return visible_job(stage.scheduled_job()), visible_part(local)

    contract.check(call, endpoint, stage, read_state)


def visible_job(job: Job) -> Any:
    """Return the part of a job that partners can see, without the times of the polls."""
    tasks = {}
    for name, task in job.tasks.items():
        roles = {node: dict(part.roles) for node, part in task.nodes.items()}
        tasks[name] = (task.status, task.ending, roles)
    return job.status, job.ending, tasks


def visible_part(local: LocalJob) -> Any:
    """Return this node's part of a job as partners can see it."""
    runs = [(run.task_id, run.party, run.status, run.stop_at) for run in local.runs]
    return local.status, local.ending, runs


def test_only_a_party_may_query_this_nodes_part(call, stage):
    body = {"job_id": stage.joined.job_id}

    data = read_envelope(call("/job/status_all", body))["data"]
    assert TASK in data["status"]
    assert data["scheduler"] == SPEC
    assert not data["warnings"]

    by_outsider = call(
        "/job/status_all",
        body,
        headers={"x-source-node-id": FATE},
    )
    read_refusal(by_outsider, 404, "JOB_UNKNOWN")


def test_a_null_role_is_absent_and_another_nodes_job_id_conflicts(call, stage):
    body = contract.with_field(new_job(stage), "config.role.arbiter", None)
    assert read_envelope(call("/job/create", body))["code"] == 0

    again = call(
        "/job/create",
        body,
        headers={"x-source-node-id": FATE},
    )
    refusal = read_refusal(again, 409, "JOB_ID_CONFLICT")
    assert refusal["msg"].endswith("is here already, from another node")


def test_every_path_for_peers_is_in_the_table(stage):
    """Extensions have their contracts in their own tests, as has the confirmation of an audit."""
    described = stage.caller("")("/openapi.json", None, "GET").json()["paths"]

    control = {path.removeprefix(CONTROL) for path in described if path.startswith(CONTROL)}
    extensions = set(OPTIONAL) - {"/job/suspend", "/job/resume"}
    assert control - extensions == {endpoint.path for endpoint in ENDPOINTS}

    audit = {path.removeprefix(JOB_AUDIT) for path in described if path.startswith(JOB_AUDIT)}
    assert audit == {endpoint.path for endpoint in AUDIT_ENDPOINTS}


def test_an_endless_job_is_refused(call):
    contract.check_size(call, "/job/create")


@pytest.mark.parametrize(
    "path",
    sorted(OF_IDS | {f"{CONTROL}/job/status_all"}),
)
def test_a_path_that_takes_ids_takes_no_large_body(stage, path):
    call = stage.caller("")
    too_large = json.dumps({"job_id": [1] * IDS_BYTES}).encode()
    read_refusal(
        call(path, content=too_large),
        413,
        "TOO_LARGE",
        413,
    )

    # as large as ids may be
    largest = {
        "job_id": "j",
        "task_id": "t",
        "task_name": "a",
        "amendments": ["i" * 100] * 1000,
    }
    response = call(
        path,
        content=json.dumps(largest).encode(),
    )
    assert response.status_code != 413


# ---------------------------------------------------------------- the job audit: management layer 8

# The fields of an audit that a request for the job itself does not have.
AUDIT_FIELDS = ("audit_id", "name", "project_id")


@pytest.fixture
def audits(stage: Stage) -> Caller:
    return stage.caller(JOB_AUDIT)


def new_audit(_: Any) -> dict[str, Any]:
    """Return an application for a new job, with ``config`` in place of the standard's ``conf``."""
    spec = replace(
        a_job_with(SPEC, scheduler=SPEC),
        job_id=f"job-audit-{next(_numbers)}",
    )
    body = translate.audit_body(spec, PROFILES["spec"])
    if "conf" in body:
        body["config"] = body.pop("conf")
    body["audit_id"] = f"q-{spec.job_id}"
    return body


def job_of(audit: dict[str, Any]) -> dict[str, Any]:
    """Return the request that creates the job of an application."""
    return {name: value for name, value in audit.items() if name not in AUDIT_FIELDS}


def id_of_new_audit(stage: Stage) -> dict[str, Any]:
    """Apply for a new job; return a request that names the audit."""
    body = new_audit(stage)
    assert read_envelope(stage.caller(JOB_AUDIT)("/apply", body)) == DONE
    return {"audit_id": body["audit_id"]}


def approved_with_permit(stage: Stage, body: dict[str, Any]) -> dict[str, Any]:
    """Return the response about an approved audit: its state, and the permit for its job."""
    applicant = stage.caller(JOB_AUDIT).headers["x-source-node-id"]
    permit = {
        "token": ANY,
        "resource_level": 2,
        "resource_type": "JOB",
        "resource_id": body["audit_id"].removeprefix("q-"),
        "resource_node_id": ME,
        "resource_inst_id": ME,
        "request_node_id": applicant,
        "request_inst_id": applicant,
        "time_limit": 0,
        "times_limit": 1,
    }
    return DONE | {"data": {"status": "APPROVED", "resource_permit": permit}}


def approval_of_scheduled(stage: Stage) -> dict[str, Any]:
    """Return the peer's approval of the scheduled job."""
    return {
        "audit_id": f"audit_{stage.scheduled.job_id}",
        "status": "APPROVED",
    }


NO_AUDIT = (("audit_id", "audit-nowhere", "AUDIT_UNKNOWN"),)
AUDIT_ENDPOINTS = (
    Endpoint(
        "/apply",
        new_audit,
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
        approval_of_scheduled,
        required=("audit_id", "status"),
        unknown=NO_AUDIT,
    ),
    Endpoint(
        "/terminate",
        id_of_new_audit,
        required=("audit_id",),
        unknown=NO_AUDIT,
    ),
    Endpoint(
        "/query",
        id_of_new_audit,
        approved_with_permit,
        unknown=NO_AUDIT,
        methods=("GET",),
        in_query=True,
    ),
)


@pytest.mark.parametrize("endpoint", AUDIT_ENDPOINTS, ids=str)
def test_a_path_of_the_job_audit_keeps_its_contract(stage, audits, endpoint):
    contract.check(audits, endpoint, stage)


@pytest.mark.parametrize(
    "headers",
    [{}, {"x-source-node-id": STRANGER}],
    ids=["none", "stranger"],
)
@pytest.mark.parametrize("endpoint", AUDIT_ENDPOINTS, ids=str)
def test_the_job_audit_is_for_known_nodes_only(stage, audits, endpoint, headers):
    body = endpoint.body(stage)
    response = audits(
        endpoint.path,
        body,
        endpoint.method,
        headers=headers,
    )
    read_refusal(response, 403, "NOT_AUTHORISED")


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/terminate", "POST"),
        ("/query", "GET"),
    ],
)
def test_an_audit_is_unknown_to_third_nodes(stage, audits, path, method):
    body = id_of_new_audit(stage)
    response = audits(
        path,
        body,
        method,
        headers={"x-source-node-id": FATE},
    )
    read_refusal(response, 404, "AUDIT_UNKNOWN")


def test_an_application_that_contradicts_another_is_refused(audits, stage):
    first = new_audit(stage)
    assert read_envelope(audits("/apply", first)) == DONE

    same_audit = new_audit(stage) | {"audit_id": first["audit_id"]}
    read_refusal(audits("/apply", same_audit), 409, "AUDIT_ID_CONFLICT")
    same_job = first | {"audit_id": "another"}
    read_refusal(audits("/apply", same_job), 409, "JOB_ID_CONFLICT")
    changed_job = contract.with_field(first, "dag.version", "9")
    read_refusal(audits("/apply", changed_job), 409, "JOB_ID_CONFLICT")


def test_an_application_with_an_unknown_component_is_refused(audits, stage):
    body = contract.with_field(new_audit(stage), "dag.components[0].componentName", "Nothing")
    refusal = read_refusal(audits("/apply", body), 400, "COMPONENT_UNKNOWN")
    problem = refusal["data"]["problems"][0]
    assert problem["reason"] == "COMPONENT_UNKNOWN"
    assert problem["path"].startswith("dag.components[0]")


def test_the_job_of_a_withdrawn_application_cannot_be_created(audits, stage, call):
    audit = new_audit(stage)
    audit_id = {"audit_id": audit["audit_id"]}
    assert read_envelope(audits("/apply", audit)) == DONE

    assert read_envelope(audits("/terminate", audit_id)) == DONE

    query = audits("/query", audit_id, "GET")
    assert read_envelope(query)["data"] == {"status": "TERMINATED"}
    read_refusal(call("/job/create", job_of(audit)), 409, "AUDIT_WITHDRAWN")


def test_a_withdrawal_of_an_application_may_give_its_cause(audits, stage):
    audit = new_audit(stage)
    assert read_envelope(audits("/apply", audit)) == DONE
    withdrawal = {
        "audit_id": audit["audit_id"],
        "outcome": "REJECTED",
        "failed_by": {
            "reason": "NO_ROOM",
            "message": "there is no room",
            "node": KUSCIA,
        },
    }

    assert read_envelope(audits("/terminate", withdrawal)) == DONE

    ending = stage.site.local_job(audit["job_id"]).ending
    assert ending.outcome is Outcome.REJECTED
    assert ending.failure == Failure("NO_ROOM", "there is no room", KUSCIA)


@pytest.mark.parametrize(
    "word",
    ["APPLIED", "TERMINATED", "yes", ""],
)
def test_a_confirmation_with_another_word_is_refused(audits, stage, word):
    body = approval_of_scheduled(stage) | {"status": word}
    refusal = read_refusal(audits("/confirm", body), 400, "STATUS_UNKNOWN")
    assert [problem["path"] for problem in refusal["data"]["problems"]] == ["status"]


def test_a_confirmation_by_an_outsider_or_too_late_changes_nothing(audits, stage):
    approval = approval_of_scheduled(stage)
    outsider = {"x-source-node-id": KUSCIA}

    read_refusal(
        audits("/confirm", approval, headers=outsider),
        404,
        "JOB_UNKNOWN",
    )
    read_refusal(
        audits("/terminate", approval, headers=outsider),
        404,
        "JOB_UNKNOWN",
    )
    # the job runs already
    rejection = approval | {"status": "REJECTED"}
    read_refusal(audits("/confirm", rejection), 409, "ALREADY_DECIDED")
    assert stage.scheduled_job().status is JobStatus.RUNNING


def test_an_application_for_a_created_job_is_answered_too(audits, stage, call):
    audit = new_audit(stage)
    job_id = audit["job_id"]
    assert read_envelope(call("/job/create", job_of(audit)))["code"] == 0

    assert read_envelope(audits("/apply", audit)) == DONE

    def confirmation() -> Received | None:
        for request in stage.site.peer.requests:
            if request.body.get("audit_id") == audit["audit_id"]:
                return request
        return None

    request = wait_for(confirmation, 20, 0.02)
    assert request.target == f"{JOB_AUDIT}/confirm"
    assert request.body["status"] == "APPROVED"

    assert read_envelope(call("/job/start", {"job_id": job_id})) == DONE
    withdrawal = {"audit_id": audit["audit_id"]}
    read_refusal(audits("/terminate", withdrawal), 409, "JOB_STARTED")
    second_audit = new_audit(stage) | {"job_id": job_id}
    read_refusal(audits("/apply", second_audit), 409, "JOB_ID_CONFLICT")
    assert read_envelope(call("/job/stop", {"job_id": job_id})) == DONE


def test_an_approval_may_be_withdrawn_and_the_job_is_stopped(audits, stage):
    spec = a_job_with(SPEC)
    stage.site.submit(spec)
    withdrawal = {"audit_id": f"audit_{spec.job_id}"}

    for _ in range(2):
        assert read_envelope(audits("/terminate", withdrawal)) == DONE
    stage.site.wait_for_end(spec.job_id)

    assert read_envelope(audits("/terminate", withdrawal)) == DONE
