"""What this node sends to one that speaks FATE's protocol, request by request, and what it makes of the answers.

Paths, fields and most codes are as a FATE-Flow 2.2.0 was seen to take and answer them (see
`tests/e2e/test_fate_flow.py`); resource limits, inheritance and signatures are read from its sources. What FATE
does not know and leaves aside (``task_name``, ``failed_by``, ``conf.extra.standard``) is ours.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from adapter.fate.client import Caller, ParticipantClient, SchedulerClient
from gateway.domain.job import Acceptance, Job
from gateway.domain.rerun import Order
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import Busy, GatewayError, Invalid, NotAllowed, NotFound, NotServed, PeerUnreachable, Refused
from gateway.ports import TaskReport
from tests.builders import T0, a_dag, a_job, a_spec

ME, FATE = "n1", "9999"
SPEC = replace(a_spec("a", {"guest": (ME,), "host": (FATE,), "arbiter": (FATE,)}), job_id="20241", scheduler=ME)
OK: dict[str, Any] = {"code": 0, "message": "success"}
Answer = Callable[[str, Mapping[str, Any]], Any]


class Fate:
    """A node that answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.says: dict[str, Any] = {}
        self.decides: dict[str, Callable[[Mapping[str, Any]], Any]] = {}

    def __call__(
        self, node: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str], timeout_factor: float
    ) -> tuple[int, Any]:
        assert node == FATE
        self.asked.append((path.removeprefix("/v2"), dict(body)))
        self.headers.append(dict(headers))
        said = self.says.get(path.removeprefix("/v2"), OK)
        if (decide := self.decides.get(path.removeprefix("/v2/partner"))) is not None:
            said = decide(body)
        return said if isinstance(said, tuple) else (200, said)


class Plain:
    def written(self, spec: Any, to: str = "") -> dict[str, Any]:
        return {"dag": {"conf": {}}, "schema_version": "2.2.0", "kind": "fate"}


class Standard:
    """The standard's way to the same node, asked for what FATE has no words for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.asked.append(name)


@pytest.fixture
def there() -> Fate:
    return Fate()


@pytest.fixture
def beside() -> Standard:
    return Standard()


def signed(node: str, initiator: str) -> dict[str, str]:
    return {"Signature": f"{node} {initiator}"}


@pytest.fixture
def partner(there: Fate, beside: Any) -> ParticipantClient:
    job = a_job(spec=SPEC, status=JobStatus.RUNNING, a=TaskStatus.RUNNING)
    jobs: dict[str, Job] = {SPEC.job_id: job}
    return ParticipantClient(Caller(FATE, there, signed), Plain(), beside, jobs.get)  # type: ignore[arg-type]


@pytest.fixture
def scheduler(there: Fate, beside: Any) -> SchedulerClient:
    caller = Caller(FATE, there, signed)
    return SchedulerClient(ME, caller, Plain(), beside, {"native": "fate", "native-r2": "fate"}.get)  # type: ignore[arg-type]


def at(role: str, **more: Any) -> dict[str, Any]:
    return {"job_id": "20241", "role": role, "party_id": FATE, **more}


def of(role: str, version: int = 0, **more: Any) -> dict[str, Any]:
    return {**at(role), "task_id": "20241_a", "task_version": version, **more}


def test_a_job_is_created_for_each_role_and_then_waits(partner: ParticipantClient, there: Fate):
    assert partner.create_job(SPEC, ME) == Acceptance(holds=True)
    described = Plain().written(SPEC)
    assert there.asked == [
        ("/partner/job/create", described | at("host")),
        ("/partner/job/create", described | at("arbiter")),
        ("/partner/job/status/update", at("host", status="waiting")),
        ("/partner/job/status/update", at("arbiter", status="waiting")),
    ]
    assert there.headers[0] == {
        "dest-party-id": FATE,
        "service": "fateflow",
        "initiator-party-id": ME,
        "Signature": f"{FATE} {ME}",
    }


def test_roles_that_had_taken_a_job_are_told_when_another_refuses(partner: ParticipantClient, there: Fate):
    answers = iter([OK, {"code": 1002, "message": "Create job failed: detail[no]"}, OK])
    there.says = {}
    send = there.__call__

    def next_answer(*args: Any) -> tuple[int, Any]:
        send(*args)
        return 200, next(answers)

    partner = replace(partner, caller=Caller(FATE, next_answer, signed))
    with pytest.raises(Refused, match="9999: Create job failed"):
        partner.create_job(SPEC, ME)
    assert there.asked[-1] == ("/partner/job/status/update", at("host", status="failed"))


def test_what_a_job_holds(partner: ParticipantClient, there: Fate):
    partner.hold("20241", ME)
    partner.give_back("20241", ME)
    partner.start_job("20241", ME, ("host.1",))
    assert there.asked == [
        (f"/partner/job/{command}", at(role, **more))
        for command, more in (
            ("resource/apply", {}),
            ("resource/return", {}),
            ("start", {"extra_info": {"without": ["host.1"]}}),
        )
        for role in ("host", "arbiter")
    ]


@pytest.mark.parametrize(("code", "reason"), [(1005, "RESOURCES_BUSY"), (1006, "RESOURCES_NEVER")])
def test_a_node_that_has_too_little(partner: ParticipantClient, there: Fate, code: int, reason: str):
    there.says = {"/partner/job/resource/apply": {"code": code, "message": "Job resource exception"}}
    with pytest.raises(Refused) as caught:
        partner.hold("20241", ME)
    assert caught.value.reason == reason


class Pool:
    """What jobs hold at a FATE node: what is held already is refused as what is too much."""

    def __init__(self, there: Fate, of: str = "/job/", full_for: str = "") -> None:
        self.held: set[str] = set()
        self.full_for = full_for
        there.decides = {f"{of}resource/apply": self.apply, f"{of}resource/return": self.give_back}

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body["role"] in self.held or body["role"] == self.full_for:
            return {"code": 1005, "message": "Job resource exception"}
        self.held.add(body["role"])
        return OK

    def give_back(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body["role"] not in self.held:
            return {"code": 1005, "message": "Job resource exception"}
        self.held.remove(body["role"])
        return OK


def test_asked_twice_a_job_holds_it_once(partner: ParticipantClient, there: Fate):
    """The answer to the first request was lost, or only one role was asked by then."""
    pool = Pool(there)
    for held in ({"host", "arbiter"}, {"host"}, {"arbiter"}):
        pool.held = set(held)
        partner.hold("20241", ME)
        assert pool.held == {"host", "arbiter"}
    pool.held = {"arbiter"}
    partner.give_back("20241", ME)
    assert not pool.held


def test_all_roles_of_a_node_hold_what_they_need_or_none(partner: ParticipantClient, there: Fate):
    pool = Pool(there, full_for="arbiter")
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            partner.hold("20241", ME)
        assert (caught.value.reason, pool.held) == ("RESOURCES_BUSY", set())
    pool.full_for = ""
    partner.hold("20241", ME)
    assert pool.held == {"host", "arbiter"}


def test_a_task_starts_when_every_role_has_its_resources(partner: ParticipantClient, there: Fate):
    partner.start_task("20241", "20241_a_2", "a", ME)
    named = {"task_name": "a"}
    assert there.asked == [
        ("/partner/task/rerun", of("host", 1, **named, new_version=2)),
        ("/partner/task/rerun", of("arbiter", 1, **named, new_version=2)),
        ("/partner/task/resource/apply", of("host", 2, **named)),
        ("/partner/task/resource/apply", of("arbiter", 2, **named)),
        ("/partner/task/status/update", of("host", 2, **named, status="running")),
        ("/partner/task/start", of("host", 2, **named)),
        ("/partner/task/status/update", of("arbiter", 2, **named, status="running")),
        ("/partner/task/start", of("arbiter", 2, **named)),
    ]


def test_a_task_without_resources_is_asked_for_again(partner: ParticipantClient, there: Fate):
    there.says = {"/partner/task/resource/apply": {"code": 2004, "message": "Task resource exception"}}
    with pytest.raises(Busy):
        partner.start_task("20241", "20241_a_0", "a", ME)
    assert not [path for path, _ in there.asked if path.endswith(("/task/start", "/task/status/update"))]


def test_a_task_is_started_at_the_roles_where_it_has_not_begun(partner: ParticipantClient, there: Fate):
    """The answer to the first start was lost after the host had begun and the arbiter had its resources."""
    pool = Pool(there, "/task/")
    pool.held = {"host", "arbiter"}
    there.decides["/task/collect"] = lambda body: (
        OK | {"data": {"party_status": "running" if body["role"] == "host" else "waiting"}}
    )
    partner.start_task("20241", "20241_a_0", "a", ME)
    assert pool.held == {"host", "arbiter"}
    assert [body["role"] for path, body in there.asked if path == "/partner/task/start"] == ["arbiter"]


@pytest.mark.parametrize("word", ["fine", None, ["running"], {"running": 1}])
def test_a_task_in_a_state_that_is_none_is_no_begun_one(partner: ParticipantClient, there: Fate, word: Any):
    Pool(there, "/task/").held = {"host", "arbiter"}
    there.decides["/task/collect"] = lambda body: OK | {"data": {"party_status": word}}
    partner.start_task("20241", "20241_a_0", "a", ME)
    assert [body["role"] for path, body in there.asked if path == "/partner/task/start"] == ["host", "arbiter"]


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
def test_a_tasks_state(partner: ParticipantClient, there: Fate, word: str, status: TaskStatus, reason: str | None):
    there.says = {"/partner/task/collect": OK | {"data": {"status": "running", "party_status": word}}}
    news = partner.poll_task("20241_a_1", "host", ME)
    assert (news.status, news.failure.reason if news.failure else None) == (status, reason)
    assert there.asked == [("/partner/task/collect", of("host", 1))]


def test_a_task_that_waits_was_never_started(partner: ParticipantClient, there: Fate):
    """FATE has a task from the job's creation on: a start that was lost is made again."""
    there.says = {"/partner/task/collect": OK | {"data": {"party_status": "waiting"}}}
    with pytest.raises(NotFound) as caught:
        partner.poll_task("20241_a_0", "host", ME)
    assert caught.value.reason == "TASK_UNKNOWN"


def test_a_state_that_is_none(partner: ParticipantClient, there: Fate):
    there.says = {"/partner/task/collect": OK | {"data": {"party_status": "fine"}}}
    with pytest.raises(Invalid):
        partner.poll_task("20241_a_0", "host", ME)


def test_a_job_ends_with_its_state_before_the_stop(partner: ParticipantClient, there: Fate):
    failure = Failure("TIMEOUT", "too long")
    partner.stop_job("20241", "", Ending(Outcome.FAILED, T0, failure, ME), ME)
    more = {"status": "timeout", "failed_by": failure.as_dict()}
    assert [asked for asked in there.asked if asked[0].startswith("/partner/job/")] == [
        (f"/partner/job/{command}", at(role, **more))
        for role in ("host", "arbiter")
        for command in ("status/update", "stop")
    ]


def test_a_task_that_a_stop_ends_is_told_to_be_canceled(partner: ParticipantClient, there: Fate):
    """FATE would show it as running for ever; one that runs on in a job that succeeded is none of its business."""
    for outcome, word in (
        (Outcome.STOPPED, {"canceled"}),
        (Outcome.FAILED, {"failed"}),
        (Outcome.SUCCEEDED, set()),
    ):
        there.asked.clear()
        partner.stop_job("20241", "", Ending(outcome, T0), ME)
        assert {body["status"] for path, body in there.asked if path == "/partner/task/status/update"} == word
        assert there.asked[-1][0] == "/partner/job/stop"


def test_a_job_that_succeeded_is_all_done(partner: ParticipantClient, there: Fate):
    partner.stop_job("20241", "", Ending(Outcome.SUCCEEDED, T0), ME)
    word = {"status": "success"}
    assert there.asked[:3] == [
        ("/partner/job/update", at("host", **word, progress=100.0)),
        ("/partner/job/status/update", at("host", **word)),
        ("/partner/job/stop", at("host", **word)),
    ]


def test_a_fate_site_is_told_how_far_a_job_is(there: Fate, beside: Any):
    """With each task that begins, and with an end that is no success; its people see nothing else of it."""
    job = a_job("a -> b", spec=replace(SPEC, dag=a_dag("a -> b")), status=JobStatus.RUNNING, a=TaskStatus.SUCCESS)
    partner = ParticipantClient(Caller(FATE, there, signed), Plain(), beside, {"20241": job}.get)  # type: ignore[arg-type]
    partner.start_task("20241", "20241_b_0", "b", ME)
    half = [("/partner/job/update", at(role, progress=50.0)) for role in ("host", "arbiter")]
    assert there.asked[:3] == [*half, ("/partner/task/resource/apply", there.asked[2][1])]
    there.asked.clear()
    partner.stop_job("20241", "", Ending(Outcome.FAILED, T0), ME)
    told = [(body["role"], body["progress"]) for path, body in there.asked if path == "/partner/job/update"]
    assert told == [("host", 50.0), ("arbiter", 50.0)]
    there.says["/partner/job/update"] = {"code": 1003, "message": "update job failed"}
    partner.stop_job("20241", "", Ending(Outcome.FAILED, T0), ME)
    assert there.asked[-1][0] == "/partner/job/stop"


def test_what_fate_has_no_words_for_is_asked_in_the_standards(
    partner: ParticipantClient, scheduler: SchedulerClient, there: Fate, beside: Standard
):
    partner.delete_job("20241", True, ME)
    scheduler.suspend_job("20241", True, ME)
    scheduler.confirm_job("20241", None, ME)
    scheduler.job_status("20241", ME)
    scheduler.resources_free("20241", ME)
    scheduler.stop_job("20241", "a", ME)
    assert beside.asked == [
        "delete_job",
        "suspend_job",
        "confirm_job",
        "job_status",
        "resources_free",
        "stop_job",
    ]
    assert there.asked == []


def test_a_job_of_fates_own_is_not_asked_after(scheduler: SchedulerClient, beside: Standard):
    """FATE's node would say that it does not know it, for the path there is the standard's."""
    with pytest.raises(NotServed):
        scheduler.job_status("native", ME)
    scheduler.resources_free("native", ME)
    assert beside.asked == []


def test_who_refuses_a_job_of_fates_own_has_it_stopped_there(
    scheduler: SchedulerClient, there: Fate, beside: Standard
):
    """Under FATE's id: what it begins again is another job here."""
    scheduler.confirm_job("native-r2", None, ME)
    assert there.asked == []  # FATE learns a yes when it asks for a task's resources
    scheduler.confirm_job("native-r2", Failure("APPROVAL_REJECTED", "no"), ME)
    scheduler.rerun_job(Order("native-r2", "20242", "", {}), ME)
    assert [body["job_id"] for _, body in there.asked] == ["native", "native"]
    assert there.asked[0] == ("/scheduler/job/stop", {"job_id": "native", "stop_status": "canceled"})
    assert beside.asked == []


def test_reports_to_a_node_that_schedules(scheduler: SchedulerClient, there: Fate):
    failure = Failure("EXIT_3", "exit code 3")
    scheduler.report_task(TaskReport("20241_a_1", "host", TaskStatus.RUNNING, None, "20241"), ME)
    scheduler.report_task(TaskReport("20241_a_1", "host", TaskStatus.FAILED, failure, "20241"), ME)
    mine = of("host", 1) | {"party_id": ME}
    assert there.asked == [
        ("/scheduler/task/report", mine | {"status": "running"}),
        ("/scheduler/task/report", mine | {"status": "running"}),  # it takes no failure without
        ("/scheduler/task/report", mine | {"status": "failed", "failed_by": failure.as_dict()}),
    ]


def test_news_that_changes_nothing_there_is_no_error(scheduler: SchedulerClient, there: Fate):
    there.says = {"/scheduler/task/report": {"code": 2002, "message": "Update task status does not take effect"}}
    scheduler.report_task(TaskReport("20241_a_0", "host", TaskStatus.RUNNING, None, "20241"), ME)
    assert [body["status"] for _, body in there.asked] == ["running"]
    for tries in (1, 2):  # an end is told again: FATE drops one that comes while it notes that the task runs
        with pytest.raises(Busy):
            scheduler.report_task(TaskReport("20241_a_0", "host", TaskStatus.SUCCESS, None, "20241", tries), ME)
    scheduler.report_task(TaskReport("20241_a_0", "host", TaskStatus.SUCCESS, None, "20241", 3), ME)
    assert [body["status"] for _, body in there.asked] == ["running", *["success"] * 3]


def test_stopping_at_the_scheduler(scheduler: SchedulerClient, there: Fate):
    scheduler.stop_job("20241", "", ME)
    assert there.asked == [("/scheduler/job/stop", {"job_id": "20241", "stop_status": "canceled"})]


def test_a_scheduler_that_gives_an_id_of_its_own(scheduler: SchedulerClient, there: Fate):
    there.says = {"/scheduler/job/create": OK | {"job_id": "202499", "data": {"model_id": "202499"}}}
    assert scheduler.submit_job(SPEC, ME) == "202499"
    there.says = {"/scheduler/job/create": OK}
    assert scheduler.submit_job(SPEC, ME) == SPEC.job_id


@pytest.mark.parametrize("wrong", [7, ["1"], "x" * 101, "a\nb"])
def test_an_id_that_no_job_can_have_is_refused(scheduler: SchedulerClient, there: Fate, wrong: Any):
    there.says = {"/scheduler/job/create": OK | {"job_id": wrong}}
    with pytest.raises(Refused):
        scheduler.submit_job(SPEC, ME)


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        ({"code": 1001, "message": "No found job"}, NotFound, "JOB_UNKNOWN"),
        ({"code": 2000, "message": "No found task"}, NotFound, "TASK_UNKNOWN"),
        ({"code": 5003, "message": "varify failed!"}, NotAllowed, "SIGNATURE_WRONG"),
        ({"code": 6000, "message": "Exception('can not found the Job record to update')"}, Refused, "REFUSED"),
        ({"code": 6000, "message": "<NotFound '404: Not Found'>"}, NotServed, "NOT_SERVED_THERE"),
        ((404, None), NotServed, "NOT_SERVED_THERE"),
        ((200, ["no"]), Refused, "NO_ENVELOPE"),
        ({"message": "?"}, Refused, "REFUSED"),
        ({"code": False}, Refused, "REFUSED"),
        ({"code": "0"}, Refused, "REFUSED"),
    ],
)
def test_answers_that_are_no_success(
    partner: ParticipantClient, there: Fate, answer: Any, kind: type[GatewayError], reason: str
):
    there.says = {"/partner/job/start": answer}
    with pytest.raises(GatewayError) as caught:
        partner.start_job("20241", ME)
    assert (type(caught.value), caught.value.reason) == (kind, reason)


def test_an_id_that_fates_database_does_not_keep_is_told_as_the_cause(partner: ParticipantClient, there: Fate):
    long = replace(SPEC, job_id="job-0123456789abcdef0123456789abcdef")
    partner.create_job(long, ME)  # FATE on SQLite, and a gateway like this one, take it
    there.says = {"/partner/job/create": {"code": 1002, "message": "Data too long for column 'f_job_id'"}}
    with pytest.raises(Refused, match=r"36 characters.*keep 25") as caught:
        partner.create_job(long, ME)
    assert caught.value.reason == "JOB_ID_TOO_LONG"
    with pytest.raises(Refused) as caught:
        partner.create_job(SPEC, ME)
    assert caught.value.reason == "REFUSED"  # the id is not the cause


@pytest.mark.parametrize("delivered", [True, False])
def test_a_hand_in_without_an_answer_says_that_the_job_may_be_there_under_another_id(delivered: bool):
    def silent(*_: Any) -> Any:
        raise PeerUnreachable("no answer from 9999", delivered=delivered)

    caller = Caller(FATE, silent, signed)
    client = SchedulerClient(ME, caller, Plain(), Standard(), {}.get)  # type: ignore[arg-type]
    with pytest.raises(PeerUnreachable) as caught:
        client.submit_job(SPEC, ME)
    assert ("an id of its own" in caught.value.message) is delivered  # else it certainly is not there


def test_how_a_job_stands_is_not_to_be_learned_of_fate(there: Fate):
    class Unknown:
        def job_status(self, *_: Any) -> Any:
            raise Refused("9999: 404 Not Found")

    client = SchedulerClient(ME, Caller(FATE, there, signed), Plain(), Unknown(), {}.get)  # type: ignore[arg-type]
    with pytest.raises(NotServed, match="an id of its own"):
        client.job_status("handed-in", ME)


def test_a_job_id_that_tasks_could_not_be_told_by(partner: ParticipantClient, there: Fate):
    with pytest.raises(Invalid, match="underscore"):
        partner.create_job(replace(SPEC, job_id="a_b"), ME)
    assert there.asked == []
