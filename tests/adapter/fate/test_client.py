"""How our clients read the responses of a node that speaks FATE's protocol.

Their requests for each use case are recorded in ``golden/partner-exchanges.json``
(`test_partner_exchanges`). Codes and messages are from FATE-Flow 2.2.0; resource limits,
inheritance and signatures are read from its sources.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from adapter.fate import endpoints
from adapter.fate.calls import Caller
from adapter.fate.client import FateProtocol
from adapter.fate.participant import ParticipantClient
from adapter.fate.scheduler import SchedulerClient
from gateway.domain.rerun import Order
from gateway.domain.spec import Ending, Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import (
    Busy,
    GatewayError,
    Invalid,
    NotAllowed,
    NotFound,
    NotServed,
    PeerUnreachable,
    Refused,
)
from gateway.ports import TaskReport
from tests.adapter.fate.flowing import OK
from tests.builders import T0, a_dag, a_job, a_spec

ME = "n1"
FATE = "9999"
ROLES = {
    "guest": (ME,),
    "host": (FATE,),
    "arbiter": (FATE,),
}
SPEC = replace(
    a_spec("a", ROLES),
    job_id="20241",
    scheduler=ME,
)
BUSY = {"code": 1005, "message": "Job resource exception"}
FIRST_TASK = "20241_a_0"


class Fate:
    """A FATE node with scripted responses that records the requests."""

    def __init__(self) -> None:
        # (path, body) of each request
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.standard_client: Any = StandardClient()
        # path -> the response, or a function of the request's body that returns it;
        # a response is a body with status 200, or (status, body)
        self.responses: dict[str, Any] = {}

    def __call__(
        self,
        node: str,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        timeout_factor: float,
    ) -> tuple[int, Any]:
        assert node == FATE
        path = path.removeprefix("/v2")
        self.requests.append((path, dict(body)))
        self.headers.append(dict(headers))
        response = self.responses.get(path, OK)
        if callable(response):
            response = response(body)
        if isinstance(response, tuple):
            return response
        return 200, response

    def values_sent(
        self,
        path: str,
        field: str,
    ) -> list[Any]:
        """Return the value of a field in each request to a path."""
        return [body[field] for sent_path, body in self.requests if sent_path == path]


class StandardClient:
    """The standard's client of the same node, which records the names of its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> None:
            self.calls.append(name)

        return call


class EmptyDescriptions:
    """Describes every job as one without settings."""

    def write(
        self,
        spec: JobSpec,
        to: str = "",
    ) -> dict[str, Any]:
        return {
            "dag": {"conf": {}},
            "schema_version": "2.2.0",
            "kind": "fate",
        }


DESCRIPTIONS: Any = EmptyDescriptions()


def caller(fate: Any) -> Caller:
    """Return a caller of the FATE node that signs with the names of both nodes."""

    def sign(
        node: str,
        initiator: str,
    ) -> dict[str, str]:
        return {"Signature": f"{node} {initiator}"}

    return Caller(FATE, fate, sign)


def participant_client(
    fate: Fate,
    dag: str = "a",
    **tasks: TaskStatus,
) -> ParticipantClient:
    """Return a client for a running job; ``tasks`` are the states of its tasks."""
    spec = replace(
        SPEC,
        dag=a_dag(dag),
    )
    states = tasks or {"a": TaskStatus.RUNNING}
    job = a_job(dag, spec=spec, status=JobStatus.RUNNING, **states)
    jobs = {spec.job_id: job}
    return ParticipantClient(
        caller(fate),
        DESCRIPTIONS,
        fate.standard_client,
        jobs.get,
    )


def scheduler_client(fate: Any, standard: Any = None) -> SchedulerClient:
    """Return a client for a scheduling FATE node; only ``native…`` are jobs of its own protocol."""
    protocols: Any = {
        "native": "fate",
        "native-r2": "fate",
    }
    standard = standard or fate.standard_client
    return SchedulerClient(
        ME,
        caller(fate),
        DESCRIPTIONS,
        standard,
        protocols.get,
    )


def a_report(status: TaskStatus, tries: int = 1) -> TaskReport:
    """Return a report of the host's part of the first task."""
    return TaskReport(FIRST_TASK, "host", status, None, "20241", tries)


@pytest.fixture
def fate() -> Fate:
    return Fate()


@pytest.fixture
def participant(fate: Fate) -> ParticipantClient:
    return participant_client(fate)


@pytest.fixture
def scheduler(fate: Fate) -> SchedulerClient:
    return scheduler_client(fate)


def test_a_request_names_both_ends_and_is_signed(participant, fate):
    participant.create_job(SPEC, ME)

    assert fate.headers[0] == {
        "dest-party-id": FATE,
        "service": "fateflow",
        "initiator-party-id": ME,
        "Signature": f"{FATE} {ME}",
    }


def test_roles_that_accepted_a_job_are_notified_when_another_refuses_it(participant, fate):
    refusal = {"code": 1002, "message": "Create job failed: detail[no]"}
    by_role = {"host": OK, "arbiter": refusal}
    fate.responses["/partner/job/create"] = lambda body: by_role[body["role"]]

    with pytest.raises(
        Refused,
        match="9999 refuses /v2/partner/job/create with code 1002: Create job failed",
    ):
        participant.create_job(SPEC, ME)

    path, body = fate.requests[-1]
    assert path == "/partner/job/status/update"
    assert body["role"] == "host"
    assert body["status"] == "failed"


class Pool:
    """The resources of a FATE node: it refuses a repeated reservation like one that is too large.

    ``kind`` is ``job`` or ``task``, ``held`` the roles with a reservation, ``full_for`` a role
    that gets none.
    """

    def __init__(
        self,
        fate: Fate,
        kind: str = "job",
        held: tuple[str, ...] = (),
        full_for: str = "",
    ) -> None:
        self.held = set(held)
        self.full_for = full_for
        fate.responses[f"/partner/{kind}/resource/apply"] = self.apply
        fate.responses[f"/partner/{kind}/resource/return"] = self.give_back

    def apply(
        self,
        body: Mapping[str, Any],
    ) -> dict[str, Any]:
        role = body["role"]
        if role in self.held or role == self.full_for:
            return BUSY
        self.held.add(role)
        return OK

    def give_back(
        self,
        body: Mapping[str, Any],
    ) -> dict[str, Any]:
        role = body["role"]
        if role not in self.held:
            return BUSY
        self.held.remove(role)
        return OK


@pytest.mark.parametrize(
    "held",
    [
        ("host", "arbiter"),
        ("host",),
        ("arbiter",),
    ],
)
def test_a_repeated_request_reserves_only_once(participant, fate, held):
    """The response to the first request was lost, or it reached one role only."""
    pool = Pool(fate, held=held)

    participant.hold("20241", ME)
    assert pool.held == {"host", "arbiter"}

    pool.held = set(held)
    participant.give_back("20241", ME)
    assert not pool.held


def test_all_roles_of_a_node_reserve_what_they_need_or_none_does(participant, fate):
    pool = Pool(fate, full_for="arbiter")

    for _ in range(2):
        with pytest.raises(Refused, match="Job resource") as caught:
            participant.hold("20241", ME)

        assert caught.value.reason == "RESOURCES_BUSY"
        assert pool.held == set()


@pytest.mark.parametrize(
    ("host_status", "started_roles"),
    [
        ("running", ["arbiter"]),
        # an unknown state does not count as begun
        ("fine", ["host", "arbiter"]),
        (None, ["host", "arbiter"]),
        (["running"], ["host", "arbiter"]),
    ],
)
def test_a_task_is_started_at_the_roles_where_it_has_not_begun(
    participant, fate, host_status, started_roles
):
    """The response to the first start was lost."""
    pool = Pool(fate, "task", ("host", "arbiter"))
    statuses = {"host": host_status, "arbiter": "waiting"}
    fate.responses["/partner/task/collect"] = lambda body: {
        **OK,
        "data": {"party_status": statuses[body["role"]]},
    }

    participant.start_task("20241", FIRST_TASK, "a", ME)

    assert pool.held == {"host", "arbiter"}
    assert fate.values_sent("/partner/task/start", "role") == started_roles


@pytest.mark.parametrize(
    ("word", "status", "reason"),
    [
        ("running", TaskStatus.RUNNING, None),
        ("success", TaskStatus.SUCCESS, None),
        ("pass", TaskStatus.SUCCESS, None),
        ("failed", TaskStatus.FAILED, "FAILED"),
        ("timeout", TaskStatus.FAILED, "TIMEOUT"),
        ("canceled", TaskStatus.FAILED, "STOPPED"),
    ],
)
def test_the_state_of_a_task_is_read(participant, fate, word, status, reason):
    fate.responses["/partner/task/collect"] = {
        **OK,
        "data": {
            "status": "running",
            "party_status": word,
        },
    }

    news = participant.poll_task("20241_a_1", "host", ME)

    assert news.status == status
    assert getattr(news.failure, "reason", None) == reason


@pytest.mark.parametrize(
    ("word", "error", "reason"),
    [
        # "waiting" from the job's creation on: the lost start is repeated
        ("waiting", NotFound, "TASK_UNKNOWN"),
        ("fine", Invalid, "STATUS_UNKNOWN"),
    ],
)
def test_a_state_before_the_start_or_an_unknown_one_is_an_error(
    participant, fate, word, error, reason
):
    fate.responses["/partner/task/collect"] = {
        **OK,
        "data": {
            "status": "running",
            "party_status": word,
        },
    }

    with pytest.raises(GatewayError) as caught:
        participant.poll_task("20241_a_1", "host", ME)

    assert type(caught.value) is error
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("outcome", "failure", "job_word", "task_words"),
    [
        (Outcome.STOPPED, None, "canceled", ["canceled", "canceled"]),
        (
            Outcome.FAILED,
            Failure("TIMEOUT", "too long"),
            "timeout",
            ["failed", "failed"],
        ),
        # only optional parties still run after a success
        (Outcome.SUCCEEDED, None, "success", []),
    ],
)
def test_an_end_is_reported_of_the_tasks_and_the_job_before_the_stop(
    participant, fate, outcome, failure, job_word, task_words
):
    participant.stop_job(
        "20241",
        "",
        Ending(outcome, T0, failure, ME),
        ME,
    )

    assert fate.values_sent("/partner/task/status/update", "status") == task_words
    job_paths = [path for path, _ in fate.requests if path.startswith("/partner/job/")]
    assert job_paths[-2:] == ["/partner/job/status/update", "/partner/job/stop"]
    assert fate.values_sent("/partner/job/stop", "status") == [job_word, job_word]


def test_the_progress_of_a_job_is_sent_to_a_fate_site(fate):
    """It is sent with each task that begins and each end but a success.

    The people at the site see the progress of the job nowhere else.
    """
    participant = participant_client(
        fate,
        "a -> b",
        a=TaskStatus.SUCCESS,
    )

    participant.start_task("20241", "20241_b_0", "b", ME)
    participant.stop_job(
        "20241",
        "",
        Ending(Outcome.FAILED, T0),
        ME,
    )

    assert fate.values_sent("/partner/job/update", "progress") == [50.0] * 4


def test_a_refused_progress_does_not_prevent_the_stop(fate):
    participant = participant_client(
        fate,
        "a -> b",
        a=TaskStatus.SUCCESS,
    )
    fate.responses["/partner/job/update"] = {
        "code": 1003,
        "message": "update job failed",
    }

    participant.stop_job(
        "20241",
        "",
        Ending(Outcome.FAILED, T0),
        ME,
    )

    last_path, _ = fate.requests[-1]
    assert last_path == "/partner/job/stop"


def test_requests_that_fates_protocol_lacks_use_the_standards_client(participant, scheduler, fate):
    participant.delete_job("20241", True, ME)
    participant.clean_task("20241", "a", "outputs", True, ME)
    scheduler.suspend_job("20241", True, ME)
    scheduler.confirm_job("20241", None, ME)
    scheduler.job_status("20241", ME)
    scheduler.resources_free("20241", ME)
    scheduler.stop_job("20241", "a", ME)
    scheduler.amend_job("20241", {}, "", ME)
    participant.dry_run(SPEC, ME)

    assert fate.standard_client.calls == [
        "delete_job",
        "clean_task",
        "suspend_job",
        "confirm_job",
        "job_status",
        "resources_free",
        "stop_job",
        "amend_job",
        "dry_run",
    ]
    assert fate.requests == []


def test_a_job_of_fates_own_is_stopped_for_a_rejection_and_not_polled(scheduler, fate):
    """FATE learns of an approval with its next request for resources of a task.

    A rerun by FATE is another job in this gateway; requests about it use FATE's id.
    """
    with pytest.raises(NotServed):
        scheduler.job_status("native", ME)
    scheduler.resources_free("native", ME)
    scheduler.confirm_job("native-r2", None, ME)
    assert fate.requests == []

    scheduler.confirm_job("native-r2", Failure("APPROVAL_REJECTED", "no"), ME)
    scheduler.rerun_job(
        Order("native-r2", "20242", "", {}),
        ME,
    )

    assert [(path, body["job_id"]) for path, body in fate.requests] == [
        ("/scheduler/job/stop", "native"),
        ("/scheduler/job/rerun", "native"),
    ]
    assert fate.standard_client.calls == []


def test_a_failure_is_reported_after_the_state_running(scheduler, fate):
    """FATE accepts no failure of a task that it does not know to run."""
    failure = Failure("EXIT_3", "exit code 3")

    scheduler.report_task(
        TaskReport("20241_a_1", "host", TaskStatus.FAILED, failure, "20241"),
        ME,
    )

    assert fate.values_sent("/scheduler/task/report", "status") == ["running", "failed"]
    _, second_body = fate.requests[1]
    assert second_body["failed_by"] == failure.as_dict()


def test_a_report_without_effect_is_repeated_if_it_is_an_end(scheduler, fate):
    """FATE drops an end that arrives while it records that the task runs."""
    fate.responses["/scheduler/task/report"] = {
        "code": 2002,
        "message": "Update task status does not take effect",
    }

    scheduler.report_task(a_report(TaskStatus.RUNNING), ME)
    for tries in (1, 2):
        with pytest.raises(Busy):
            scheduler.report_task(
                a_report(TaskStatus.SUCCESS, tries=tries),
                ME,
            )
    scheduler.report_task(
        a_report(TaskStatus.SUCCESS, tries=3),
        ME,
    )


def test_a_scheduler_may_assign_an_id_of_its_own(scheduler, fate):
    assert scheduler.submit_job(SPEC, ME) == SPEC.job_id

    fate.responses["/scheduler/job/create"] = {
        **OK,
        "job_id": "202499",
        "data": {"model_id": "202499"},
    }
    assert scheduler.submit_job(SPEC, ME) == "202499"


@pytest.mark.parametrize("job_id", [7, ["1"], "x" * 101, "a\nb"])
def test_an_invalid_id_of_the_scheduler_is_refused(scheduler, fate, job_id):
    fate.responses["/scheduler/job/create"] = {**OK, "job_id": job_id}

    with pytest.raises(Refused):
        scheduler.submit_job(SPEC, ME)


@pytest.mark.parametrize(
    ("response", "kind", "reason"),
    [
        ({"code": 1001, "message": "No found job"}, NotFound, "JOB_UNKNOWN"),
        ({"code": 2000, "message": "No found task"}, NotFound, "TASK_UNKNOWN"),
        ({"code": 5003, "message": "varify failed!"}, NotAllowed, "SIGNATURE_WRONG"),
        ({"code": 1006, "message": "Job resource exception"}, Refused, "RESOURCES_NEVER"),
        (
            {"code": 6000, "message": "Exception('can not found the Job record to update')"},
            Refused,
            "REFUSED",
        ),
        ({"code": 6000, "message": "<NotFound '404: Not Found'>"}, NotServed, "NOT_SERVED_THERE"),
        ((404, None), NotServed, "NOT_SERVED_THERE"),
        (
            {"code": 1, "data": {"reason": "NOT_SERVED_HERE"}},
            NotServed,
            "NOT_SERVED_THERE",
        ),
        ({"code": 1, "data": {"reason": "NO", "status": [403]}}, Refused, "NO"),
        ((200, ["no"]), Refused, "NO_ENVELOPE"),
        ({"message": "?"}, Refused, "REFUSED"),
        ({"code": False}, Refused, "REFUSED"),
        ({"code": "0"}, Refused, "REFUSED"),
    ],
)
def test_a_response_that_is_no_success_has_its_reason(participant, fate, response, kind, reason):
    fate.responses["/partner/job/start"] = response

    with pytest.raises(GatewayError) as caught:
        participant.start_job("20241", ME)

    assert type(caught.value) is kind
    assert caught.value.reason == reason


def test_a_refusal_that_does_not_mean_a_repetition_is_raised(participant, scheduler, fate):
    refusal = {
        "code": 1,
        "message": "no",
        "data": {"reason": "NO"},
    }
    fate.responses["/partner/job/status/update"] = refusal
    fate.responses["/partner/job/resource/return"] = refusal
    fate.responses["/scheduler/task/report"] = refusal

    with pytest.raises(Refused) as created:
        participant.create_job(SPEC, ME)
    with pytest.raises(Refused) as given_back:
        participant.give_back("20241", ME)
    with pytest.raises(Refused) as reported:
        scheduler.report_task(a_report(TaskStatus.SUCCESS), ME)

    assert created.value.reason == "NO"
    assert given_back.value.reason == "NO"
    assert reported.value.reason == "NO"


@pytest.mark.parametrize(
    "race",
    [
        {"code": 5004},
        {"code": 6000, "message": "dictionary changed size during"},
    ],
)
def test_a_request_that_fate_flow_refuses_by_a_race_is_repeated(participant, fate, race):
    responses = [race, race, OK]
    fate.responses["/partner/job/stop"] = lambda _: responses.pop(0)

    participant.caller.post("/v2/partner/job/stop", {})

    assert responses == []


def test_a_job_id_that_fate_would_split_is_refused(participant, fate):
    with pytest.raises(Invalid, match="underscore"):
        participant.create_job(replace(SPEC, job_id="a_b"), ME)

    assert fate.requests == []


@pytest.mark.parametrize("delivered", [True, False])
def test_a_submission_without_response_warns_of_a_possible_job(delivered):
    """A request that was certainly not delivered has created no job."""

    def silent(*_: Any) -> Any:
        raise PeerUnreachable("no answer from 9999", delivered=delivered)

    with pytest.raises(PeerUnreachable) as caught:
        scheduler_client(silent, silent).submit_job(SPEC, ME)

    warns = "an id of its own" in caught.value.message
    assert warns is delivered


@pytest.mark.parametrize(
    ("refusal", "expected", "message"),
    [
        (Refused("9999: 404 Not Found"), NotServed, "an id of its own"),
        (Refused("not now", reason="BUSY_NOW"), Refused, "not now"),
    ],
)
def test_the_state_of_a_job_cannot_be_learned_from_fate(fate, refusal, expected, message):
    def job_status(*_: Any) -> Any:
        raise refusal

    client = scheduler_client(fate, SimpleNamespace(job_status=job_status))

    with pytest.raises(expected, match=message):
        client.job_status("submitted", ME)


def test_a_container_is_polled_as_in_the_standards_protocol():
    def container_status(run: Any, address: str) -> Any:
        return run, address

    standard: Any = SimpleNamespace(container_status=container_status)
    unused: Any = None
    protocol = FateProtocol(
        ME,
        unused,
        standard,
        unused,
        unused,
        unused,
        unused,
    )

    assert protocol.container_status(unused, "10.0.0.1") == (None, "10.0.0.1")


def test_the_request_for_a_job_is_fates_description():
    unused: Any = None
    protocol = FateProtocol(
        ME,
        DESCRIPTIONS,
        unused,
        unused,
        unused,
        unused,
        unused,
    )

    assert protocol.request(SPEC)["kind"] == "fate"


def test_a_bounded_number_of_running_tasks_is_remembered(monkeypatch):
    monkeypatch.setattr(endpoints, "MAX_REPORTED_RUNNING", 2)
    running: dict[tuple[str, str], None] = {}

    were_recorded = [endpoints._record_running(running, task, "guest") for task in "abbca"]

    assert were_recorded == [False, False, True, False, False]
