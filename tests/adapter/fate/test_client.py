"""What our clients make of the answers of a node that speaks FATE's protocol.

What they send for each use case is recorded in ``golden/partner-exchanges.json`` (`test_partner_exchanges`). Codes
and messages are those of FATE-Flow 2.2.0; resource limits, inheritance and signatures are read from its sources.
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
from gateway.domain.spec import Ending, Failure
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

ME, FATE = "n1", "9999"
SPEC = replace(
    a_spec(
        "a",
        {
            "guest": (ME,),
            "host": (FATE,),
            "arbiter": (FATE,),
        },
    ),
    job_id="20241",
    scheduler=ME,
)
BUSY = {"code": 1005, "message": "Job resource exception"}


class Fate:
    """A node that answers as scripted, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.beside: Any = Standard()
        self.answers: dict[str, Any] = {}
        """path -> the answer, or a function of the body that returns it"""

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
        self.asked.append((path, dict(body)))
        self.headers.append(dict(headers))
        answer = self.answers.get(path, OK)
        answer = answer(body) if callable(answer) else answer
        return answer if isinstance(answer, tuple) else (200, answer)

    def sent(self, path: str, field: str) -> list[Any]:
        return [body[field] for asked, body in self.asked if asked == path]


class Standard:
    """The standard's client of the same node."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.asked.append(name)


PLAIN: Any = SimpleNamespace(
    write=lambda spec, to="": {
        "dag": {"conf": {}},
        "schema_version": "2.2.0",
        "kind": "fate",
    }
)


def caller(there: Any) -> Caller:
    return Caller(FATE, there, lambda node, initiator: {"Signature": f"{node} {initiator}"})


def participant(
    there: Any,
    dag: str = "a",
    **tasks: TaskStatus,
) -> ParticipantClient:
    spec = replace(SPEC, dag=a_dag(dag))
    job = a_job(
        dag,
        spec=spec,
        status=JobStatus.RUNNING,
        **tasks or {"a": TaskStatus.RUNNING},
    )
    return ParticipantClient(caller(there), PLAIN, there.beside, {spec.job_id: job}.get)


def scheduling(there: Any, beside: Any = None) -> SchedulerClient:
    protocols: Any = {"native": "fate", "native-r2": "fate"}.get
    return SchedulerClient(ME, caller(there), PLAIN, beside or there.beside, protocols)


@pytest.fixture
def there() -> Fate:
    return Fate()


@pytest.fixture
def partner(there: Fate) -> ParticipantClient:
    return participant(there)


@pytest.fixture
def scheduler(there: Fate) -> SchedulerClient:
    return scheduling(there)


def test_a_request_names_both_ends_and_is_signed(partner, there):
    partner.create_job(SPEC, ME)
    ends = {
        "dest-party-id": FATE,
        "service": "fateflow",
        "initiator-party-id": ME,
    }
    assert there.headers[0] == ends | {"Signature": f"{FATE} {ME}"}


def test_roles_that_accepted_a_job_are_notified_when_another_refuses_it(partner, there):
    refusal = {"code": 1002, "message": "Create job failed: detail[no]"}
    there.answers["/partner/job/create"] = lambda body: OK if body["role"] == "host" else refusal
    with pytest.raises(
        Refused, match="9999 refuses /v2/partner/job/create with code 1002: Create job failed"
    ):
        partner.create_job(SPEC, ME)
    path, body = there.asked[-1]
    assert path == "/partner/job/status/update"
    assert body["role"] == "host"
    assert body["status"] == "failed"


class Pool:
    """What is held at a FATE node: what is held already is refused like what is too much."""

    def __init__(
        self,
        there: Fate,
        of: str = "job",
        held: tuple[str, ...] = (),
        full_for: str = "",
    ) -> None:
        self.held, self.full_for = set(held), full_for
        there.answers |= {
            f"/partner/{of}/resource/apply": self.apply,
            f"/partner/{of}/resource/return": self.give_back,
        }

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body["role"] in self.held or body["role"] == self.full_for:
            return BUSY
        self.held.add(body["role"])
        return OK

    def give_back(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body["role"] not in self.held:
            return BUSY
        self.held.remove(body["role"])
        return OK


@pytest.mark.parametrize("held", [("host", "arbiter"), ("host",), ("arbiter",)])
def test_a_repeated_request_reserves_only_once(partner, there, held):
    """The answer to the first request was lost, or only one role was asked by then."""
    pool = Pool(there, held=held)
    partner.hold("20241", ME)
    assert pool.held == {"host", "arbiter"}
    pool.held = set(held)
    partner.give_back("20241", ME)
    assert not pool.held


def test_all_roles_of_a_node_reserve_what_they_need_or_none_does(partner, there):
    pool = Pool(there, full_for="arbiter")
    for _ in range(2):
        with pytest.raises(Refused, match="Job resource") as caught:
            partner.hold("20241", ME)
        assert caught.value.reason == "RESOURCES_BUSY"
        assert pool.held == set()


@pytest.mark.parametrize(
    ("word", "started"),
    [
        ("running", ["arbiter"]),
        *((wrong, ["host", "arbiter"]) for wrong in ("fine", None, ["running"])),
    ],
)
def test_a_task_is_started_at_the_roles_where_it_has_not_begun(partner, there, word, started):
    """The answer to the first start was lost; a state that is none is not a begun one."""
    pool = Pool(there, "task", ("host", "arbiter"))
    there.answers["/partner/task/collect"] = lambda body: (
        OK | {"data": {"party_status": word if body["role"] == "host" else "waiting"}}
    )
    partner.start_task("20241", "20241_a_0", "a", ME)
    assert pool.held == {"host", "arbiter"}
    assert there.sent("/partner/task/start", "role") == started


@pytest.mark.parametrize(
    ("word", "status", "reason"),
    [
        ("running", TaskStatus.RUNNING, None),
        ("success", TaskStatus.SUCCESS, None),
        ("pass", TaskStatus.SUCCESS, None),
        ("failed", TaskStatus.FAILED, "FAILED"),
        ("timeout", TaskStatus.FAILED, "TIMEOUT"),
        ("canceled", TaskStatus.FAILED, "STOPPED"),
        (
            "waiting",
            NotFound,
            "TASK_UNKNOWN",
        ),  # from the job's creation on: a lost start is repeated
        ("fine", Invalid, "STATUS_UNKNOWN"),
    ],
)
def test_a_tasks_state(partner, there, word, status, reason):
    there.answers["/partner/task/collect"] = OK | {
        "data": {"status": "running", "party_status": word}
    }
    try:
        news = partner.poll_task("20241_a_1", "host", ME)
    except GatewayError as error:
        assert type(error) is status
        assert error.reason == reason
    else:
        assert news.status == status
        assert (news.failure.reason if news.failure else None) == reason


@pytest.mark.parametrize(
    ("outcome", "failure", "of_job", "of_task"),
    [
        (Outcome.STOPPED, None, "canceled", ["canceled", "canceled"]),
        (Outcome.FAILED, Failure("TIMEOUT", "too long"), "timeout", ["failed", "failed"]),
        (Outcome.SUCCEEDED, None, "success", []),  # what runs on then is an optional party's
    ],
)
def test_an_end_is_reported_of_the_tasks_and_the_job_before_the_stop(
    partner, there, outcome, failure, of_job, of_task
):
    partner.stop_job("20241", "", Ending(outcome, T0, failure, ME), ME)
    assert there.sent("/partner/task/status/update", "status") == of_task
    about_the_job = [path for path, _ in there.asked if path.startswith("/partner/job/")]
    assert about_the_job[-2:] == ["/partner/job/status/update", "/partner/job/stop"]
    assert there.sent("/partner/job/stop", "status") == [of_job, of_job]


def test_the_progress_of_a_job_is_sent_to_a_fate_site(there):
    """With each task that begins, and with an end that is not a success; its people see nothing else of it."""
    partner = participant(there, "a -> b", a=TaskStatus.SUCCESS)
    partner.start_task("20241", "20241_b_0", "b", ME)
    partner.stop_job("20241", "", Ending(Outcome.FAILED, T0), ME)
    assert there.sent("/partner/job/update", "progress") == [50.0] * 4
    there.answers["/partner/job/update"] = {"code": 1003, "message": "update job failed"}
    partner.stop_job("20241", "", Ending(Outcome.FAILED, T0), ME)
    assert there.asked[-1][0] == "/partner/job/stop"


def test_requests_that_fates_protocol_lacks_use_the_standards_client(partner, scheduler, there):
    partner.delete_job("20241", True, ME)
    scheduler.suspend_job("20241", True, ME)
    scheduler.confirm_job("20241", None, ME)
    scheduler.job_status("20241", ME)
    scheduler.resources_free("20241", ME)
    scheduler.stop_job("20241", "a", ME)
    scheduler.amend_job("20241", {}, "", ME)
    partner.dry_run(SPEC, ME)
    wanted = [
        "delete_job",
        "suspend_job",
        "confirm_job",
        "job_status",
        "resources_free",
        "stop_job",
    ]
    wanted += ["amend_job", "dry_run"]
    assert there.beside.asked == wanted
    assert there.asked == []


def test_a_job_of_fates_own_is_stopped_for_a_rejection_and_not_asked_after(scheduler, there):
    """Under FATE's id: what it begins again is another job here."""
    with pytest.raises(NotServed):
        scheduler.job_status("native", ME)
    scheduler.resources_free("native", ME)
    scheduler.confirm_job("native-r2", None, ME)
    assert there.asked == []  # FATE learns of an approval when it requests a task's resources
    scheduler.confirm_job("native-r2", Failure("APPROVAL_REJECTED", "no"), ME)
    scheduler.rerun_job(Order("native-r2", "20242", "", {}), ME)
    assert [(path, body["job_id"]) for path, body in there.asked] == [
        ("/scheduler/job/stop", "native"),
        ("/scheduler/job/rerun", "native"),
    ]
    assert there.beside.asked == []


def test_reports_to_a_node_that_schedules(scheduler, there):
    failure = Failure("EXIT_3", "exit code 3")
    scheduler.report_task(TaskReport("20241_a_1", "host", TaskStatus.FAILED, failure, "20241"), ME)
    assert there.sent("/scheduler/task/report", "status") == [
        "running",
        "failed",
    ]  # no failure without the first
    assert there.asked[1][1]["failed_by"] == failure.as_dict()


def test_a_report_without_effect_is_repeated_where_it_is_an_end(scheduler, there):
    """FATE drops an end that comes while it records that the task runs."""
    there.answers["/scheduler/task/report"] = {
        "code": 2002,
        "message": "Update task status does not take effect",
    }
    scheduler.report_task(TaskReport("20241_a_0", "host", TaskStatus.RUNNING, None, "20241"), ME)
    for tries in (1, 2):
        with pytest.raises(Busy):
            scheduler.report_task(
                TaskReport("20241_a_0", "host", TaskStatus.SUCCESS, None, "20241", tries), ME
            )
    scheduler.report_task(TaskReport("20241_a_0", "host", TaskStatus.SUCCESS, None, "20241", 3), ME)


def test_a_scheduler_that_gives_an_id_of_its_own(scheduler, there):
    assert scheduler.submit_job(SPEC, ME) == SPEC.job_id
    there.answers["/scheduler/job/create"] = OK | {
        "job_id": "202499",
        "data": {"model_id": "202499"},
    }
    assert scheduler.submit_job(SPEC, ME) == "202499"
    for wrong in (7, ["1"], "x" * 101, "a\nb"):
        there.answers["/scheduler/job/create"] = OK | {"job_id": wrong}
        with pytest.raises(Refused):
            scheduler.submit_job(SPEC, ME)


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
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
        ({"code": 1, "data": {"reason": "NOT_SERVED_HERE"}}, NotServed, "NOT_SERVED_THERE"),
        ((200, ["no"]), Refused, "NO_ENVELOPE"),
        ({"message": "?"}, Refused, "REFUSED"),
        ({"code": False}, Refused, "REFUSED"),
        ({"code": "0"}, Refused, "REFUSED"),
    ],
)
def test_answers_that_are_not_a_success(partner, there, answer, kind, reason):
    there.answers["/partner/job/start"] = answer
    with pytest.raises(GatewayError) as caught:
        partner.start_job("20241", ME)
    assert type(caught.value) is kind
    assert caught.value.reason == reason


def test_a_refusal_that_is_no_repetition_is_raised(partner, scheduler, there):
    no = {
        "code": 1,
        "message": "no",
        "data": {"reason": "NO"},
    }
    there.answers |= dict.fromkeys(
        ("/partner/job/status/update", "/partner/job/resource/return", "/scheduler/task/report"), no
    )
    for call in (
        lambda: partner.create_job(SPEC, ME),
        lambda: partner.give_back("20241", ME),
        lambda: scheduler.report_task(
            TaskReport("20241_a_0", "host", TaskStatus.SUCCESS, None, "20241"), ME
        ),
    ):
        with pytest.raises(Refused) as caught:
            call()
        assert caught.value.reason == "NO"


@pytest.mark.parametrize(
    "answer", [{"code": 5004}, {"code": 6000, "message": "dictionary changed size during"}]
)
def test_what_fate_flow_refuses_by_a_race_of_its_own_is_requested_again(partner, there, answer):
    answers = [OK, answer, answer]
    there.answers["/partner/job/stop"] = lambda _: answers.pop()
    partner.caller.post("/v2/partner/job/stop", {})
    assert answers == []


def test_an_id_that_would_be_split_is_refused_here(partner, there):
    with pytest.raises(Invalid, match="underscore"):
        partner.create_job(replace(SPEC, job_id="a_b"), ME)
    assert there.asked == []


@pytest.mark.parametrize("delivered", [True, False])
def test_a_submission_without_response_warns_of_a_possible_job(delivered):
    def silent(*_: Any) -> Any:
        raise PeerUnreachable("no answer from 9999", delivered=delivered)

    with pytest.raises(PeerUnreachable) as caught:
        scheduling(silent, silent).submit_job(SPEC, ME)
    assert (
        "an id of its own" in caught.value.message
    ) is delivered  # else it certainly is not there


def test_the_state_of_a_job_cannot_be_learned_of_fate(there):
    def unknown(*_: Any) -> Any:
        raise Refused("9999: 404 Not Found")

    with pytest.raises(NotServed, match="an id of its own"):
        scheduling(there, SimpleNamespace(job_status=unknown)).job_status("submitted", ME)

    def denied(*_: Any) -> Any:
        raise Refused("not now", reason="BUSY_NOW")

    with pytest.raises(Refused, match="not now"):
        scheduling(there, SimpleNamespace(job_status=denied)).job_status("submitted", ME)


def test_a_container_is_asked_as_in_the_standards_protocol():
    standard: Any = SimpleNamespace(container_status=lambda run, address: (run, address))
    none: Any = None
    protocol = FateProtocol(ME, none, standard, none, none, none, none)
    assert protocol.container_status(none, "10.0.0.1") == (None, "10.0.0.1")
    assert FateProtocol(ME, PLAIN, standard, none, none, none, none).request(SPEC)["kind"] == "fate"


def test_tasks_are_remembered_to_a_bound(monkeypatch):
    monkeypatch.setattr(endpoints, "MAX_TASKS", 2)
    running: dict[tuple[str, str], None] = {}
    assert [endpoints._record_running(running, task, "guest") for task in "abbca"] == [
        False,
        False,
        True,
        False,
        False,
    ]
