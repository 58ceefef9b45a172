"""What every `SchedulerApi` has to do alike: the use cases themselves, and each protocol's client and router.

The node under test schedules jobs that `PEER` submits; `PEER` is their guest, the node under test plays two hosts.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
import yaml

from gateway.domain import rerun
from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.job import Job
from gateway.domain.rerun import Order
from gateway.domain.scheduling import machine
from gateway.domain.scheduling.agenda import call_of, with_call
from gateway.domain.scheduling.messages import PollTaskAt, StartTaskAt
from gateway.domain.spec import Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.ports import SchedulerApi, TaskNews, TaskReport
from gateway.store import queries
from provider_registry.registration import provider_from_request
from tests.builders import T0, a_dag, a_spec
from tests.contracts.apis import THIRD, Apis, World, catch_refusal, registration
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, ask

pytestmark = pytest.mark.xdist_group("scheduler_api")
READY, RUNNING, SUCCESS, FAILED = (
    TaskStatus.READY,
    TaskStatus.RUNNING,
    TaskStatus.SUCCESS,
    TaskStatus.FAILED,
)
ROLES = {"guest": (PEER,), "host": (ME, ME)}
_numbers = count()


@pytest.fixture
def api(apis: Apis) -> SchedulerApi:
    """The interface as the initiator sees it."""
    return apis.scheduler(PEER)


@pytest.fixture
def spec(scratch: list[str]) -> JobSpec:
    return a_job_of(scratch)


def a_job_of(
    scratch: list[str],
    dag: str | Dag = "a",
    **changes: Any,
) -> JobSpec:
    values = {"job_id": f"job-scheduler-{next(_numbers)}", "scheduler": ME} | changes
    spec = a_spec(dag, ROLES, **values)
    scratch.append(spec.job_id)
    return spec


def submitted(
    api: SchedulerApi,
    world: World,
    spec: JobSpec,
) -> Job:
    """Submit the job and wait until every party has told that its containers are up."""
    api.submit_job(spec, PEER)

    def up() -> bool:
        parts = [
            part for task in world.job(spec.job_id).tasks.values() for part in task.nodes.values()
        ]
        return all(status is RUNNING for part in parts for status in part.roles.values())

    wait_for(up, 20, 0.01, f"{spec.job_id} is up")
    return world.job(spec.job_id)


def task_id(
    world: World,
    spec: JobSpec,
    task: str = "a",
) -> str:
    return world.job(spec.job_id).tasks[task].task_id


def test_submitting_again_changes_nothing(api, world, spec):
    first = submitted(api, world, spec)
    for _ in range(2):
        api.submit_job(spec, PEER)
    assert catch_refusal(api.submit_job, replace(spec, flow_id="other"), PEER) == (
        "JOB_ID_CONFLICT",
        409,
    )
    again = world.job(spec.job_id)
    assert {n: t.task_id for n, t in again.tasks.items()} == {
        n: t.task_id for n, t in first.tasks.items()
    }
    assert len(world.local(spec.job_id).runs) == 2
    assert again.spec.flow_id == spec.flow_id


def test_all_problems_are_reported_together(api, world, scratch):
    spec = a_job_of(scratch, "a -> b -> a", task_params={"guest": 5})
    spec = replace(spec, parties=(*spec.parties, replace(spec.parties[1], index=2, node=STRANGER)))
    with pytest.raises(GatewayError) as caught:
        api.submit_job(spec, PEER)
    assert caught.value.reason == "INVALID"
    assert caught.value.code == 400
    found = {p.path: p for p in caught.value.problems}
    assert set(found) == {"dag.components", "config.task_params.guest", "config.role.host[2]"}
    assert found["config.task_params.guest"].got == 5
    assert STRANGER in found["config.role.host[2]"].rule
    assert found["config.role.host[2]"].got == STRANGER
    alone = replace(spec, dag=a_dag(), task_params={})
    assert catch_refusal(api.submit_job, alone, PEER) == ("NODE_UNKNOWN", 400)
    judge = replace(a_dag().nodes[0], component=ComponentRef("vendor", "1.0.0", "Judge"))
    assert catch_refusal(
        api.submit_job, replace(alone, dag=Dag((judge,)), parties=spec.parties[:3]), PEER
    ) == (
        "INVALID",
        400,
    )
    assert world.me.store.jobs.find(spec.job_id) is None


def test_a_job_that_is_far_too_large_is_refused(api, world, spec):
    large = replace(spec, task_params={"common": {"a": {str(i): "x" * 100_000 for i in range(81)}}})
    assert catch_refusal(api.submit_job, large, PEER) == ("TOO_LARGE", 400)
    assert world.me.store.jobs.find(spec.job_id) is None


def test_a_job_that_one_node_refuses_is_rejected_at_every_node(api, world, scratch):
    """The guest has no such table; the hosts had accepted."""
    given, none = {"0": {"a": {"dataset_id": "no#such"}}}, {"0|1": {"a": {"dataset_id": ""}}}
    spec = a_job_of(scratch, task_params={"guest": given, "host": none})
    with pytest.raises(GatewayError) as caught:
        api.submit_job(spec, PEER)
    assert caught.value.reason == "NOT_AUTHORISED"
    assert caught.value.code == 409
    assert PEER in caught.value.message and "no#such" in caught.value.message
    for problem in caught.value.problems:  # none in the answers of FATE's protocol
        assert problem.path == "config.task_params.guest.0.a.dataset_id"
        assert problem.rule.startswith(f"{PEER}: NOT_AUTHORISED: dataset no#such ")
        assert problem.got == "no#such" and "got" not in problem.rule
    job = world.wait_status(spec.job_id, JobStatus.REJECTED)
    assert job.outcome is Outcome.REJECTED
    assert world.peer.store.local_jobs.find(spec.job_id) is None
    wait_for(lambda: world.local(spec.job_id).status is JobStatus.FINISHED, 10, 0.01)
    assert catch_refusal(api.submit_job, spec, PEER) == ("NOT_AUTHORISED", 409)  # and it stays so


def test_the_state_of_a_job_is_the_same_by_every_way(api, world, scratch):
    spec = a_job_of(scratch, "a; b")
    tasks = {name: task.task_id for name, task in submitted(api, world, spec).tasks.items()}

    def essence() -> dict[str, Any]:
        view = api.job_status(spec.job_id, PEER)
        return {
            "tasks": {t.name: (t.task_id, t.status) for t in view.tasks},
            **{
                n: getattr(view, n)
                for n in ("job_id", "status", "outcome", "failure", "progress", "scheduler")
            },
        }

    expected = {
        "job_id": spec.job_id,
        "failure": None,
        "scheduler": ME,
    }
    up = {name: (task, RUNNING) for name, task in tasks.items()}
    assert essence() == expected | {
        "status": JobStatus.RUNNING,
        "tasks": up,
        "outcome": None,
        "progress": 0,
    }
    for task in tasks:
        world.end_all(spec, task)
    world.wait_status(spec.job_id, JobStatus.FINISHED)
    over = {name: (task, SUCCESS) for name, task in tasks.items()}
    expected |= {
        "status": JobStatus.FINISHED,
        "tasks": over,
        "outcome": Outcome.SUCCEEDED,
        "progress": 100,
    }
    assert essence() == expected


def test_who_may_not_know_decide_report_or_stop(apis, api, world, spec):
    for sender in (THIRD, STRANGER):  # nor submit
        assert catch_refusal(apis.scheduler(sender).submit_job, spec, sender) == (
            "NOT_AUTHORISED",
            403,
        )
    assert world.me.store.jobs.find(spec.job_id) is None
    submitted(api, world, spec)
    news = report(world, spec, "guest", FAILED)

    def calls(
        api: SchedulerApi,
        job_id: str,
        sender: str,
    ) -> list[Callable[[], Any]]:
        return [
            lambda: api.job_status(job_id, sender),
            lambda: api.confirm_job(job_id, None, sender),
            lambda: api.suspend_job(job_id, True, sender),
            lambda: api.amend_job(job_id, {"common": {"a": {"x": 1}}}, "", sender),
            lambda: api.rerun_job(Order(job_id, f"{job_id}-again", "a", {}), sender),
            lambda: api.stop_job(job_id, "", sender),
        ]

    for sender in (STRANGER, THIRD):  # who has no part learns nothing
        other = apis.scheduler(sender)
        nowhere = replace(news, task_id="task-nowhere")
        assert catch_refusal(other.report_task, news, sender) == catch_refusal(
            other.report_task, nowhere, sender
        )
        unknown = list(map(catch_refusal, calls(other, "job-nowhere", sender)))
        assert [catch_refusal(call) for call in calls(other, spec.job_id, sender)] == unknown
    for call in calls(api, "job-nowhere", PEER):
        assert catch_refusal(call) == ("JOB_UNKNOWN", 404)
    assert catch_refusal(api.report_task, TaskReport("task-nowhere", "guest", SUCCESS), PEER) == (
        "TASK_UNKNOWN",
        404,
    )
    assert catch_refusal(api.stop_job, spec.job_id, "nothing", PEER) == ("TASK_UNKNOWN", 404)
    assert catch_refusal(world.me.coordinator.confirm_job, spec.job_id, None, "") == (
        "NOT_AUTHORISED",
        403,
    )
    job = world.job(spec.job_id)
    assert job.status == JobStatus.RUNNING
    assert job.ending is None


def test_a_job_of_which_the_scheduling_node_knows_nothing_is_pending(world):
    world.me.store.add_submission("job-refused", "flow-refused", PEER, T0)
    assert world.me.coordinator.jobs("flow-refused") == {"job-refused": JobStatus.PENDING}


@dataclass
class Agreeing:
    """Peers that take all that they are asked, or answer a poll with an error."""

    node: str = ME
    error: Exception | None = None
    offers: list[Any] = field(default_factory=list)

    def participant(self, node: str, protocol: str) -> "Agreeing":
        return self

    def offer_parameters(
        self,
        job_id: str,
        one: Any,
        *_: Any,
    ) -> None:
        self.offers.append(one)

    def poll_task(
        self,
        task_id: str,
        role: str,
        sender: str,
    ) -> TaskNews:
        if self.error is not None and role == "arbiter":
            raise self.error
        return TaskNews(RUNNING)


def test_agreeing_on_parameters_of_a_task_that_begins_changes_nothing(world, scratch, monkeypatch):
    spec = a_job_of(scratch, "a -> b")
    world.me.coordinator.submit_job(spec, PEER)
    wait_for(lambda: world.job(spec.job_id).tasks["a"].begun, 20, 0.01)
    peers = Agreeing()
    monkeypatch.setattr(world.me.coordinator, "_peers", peers)
    monkeypatch.setattr(rerun, "amendment_problems", lambda *_: [])
    amend = world.me.coordinator.amend_job
    assert amend(spec.job_id, {"common": {"b": {"x": 2}}}, "sooner", PEER) == 1
    assert len(peers.offers) == 2
    assert catch_refusal(amend, spec.job_id, {"common": {"a": {"x": 2}}}, "late", PEER) == (
        "TASK_BEGUN",
        409,
    )
    assert [one.reason for one in world.job(spec.job_id).amendments] == ["sooner"]


@pytest.mark.parametrize(
    ("error", "roles", "event", "detail"),
    [
        (ZeroDivisionError("a bug"), ("arbiter",), "task poll refused", {"reason": "INTERNAL"}),
        (
            NotFound("no such", reason="TASK_UNKNOWN"),
            ("arbiter",),
            "task unknown there, starting again",
            {"message": "no such"},
        ),
        (
            NotFound("no such", reason="ROLE_UNKNOWN"),
            ("guest", "arbiter"),
            "role not in this task",
            {"role": "arbiter"},
        ),
    ],
)
def test_what_a_poll_that_fails_means_for_the_task(
    world, spec, monkeypatch, error, roles, event, detail
):
    job = submitted(world.me.coordinator, world, spec)
    poll, now = PollTaskAt(PEER, "a", roles), world.me.scheduler._clock()
    part = job.tasks["a"].nodes[PEER]
    job = job.with_part("a", replace(part, roles=dict.fromkeys(("guest", "arbiter"), RUNNING)))
    job = with_call(job, poll, call_of(job, poll).sent(now))
    changed: list[Job] = []
    monkeypatch.setattr(world.me.scheduler, "_peers", Agreeing(error=error))
    monkeypatch.setattr(
        world.me.scheduler, "record_answer", lambda _, change, most: changed.append(change(job))
    )
    world.me.scheduler._perform(job, poll, now)
    (note,) = changed[0].notes
    assert note.event == event
    assert detail.items() <= note.detail.items()


def test_a_start_that_waited_is_claimed_anew_unless_its_attempt_is_over(world, spec, monkeypatch):
    job = submitted(world.me.coordinator, world, spec)
    start, long_ago = StartTaskAt(PEER, "a"), T0
    claimed = with_call(job, start, call_of(job, start).sent(long_ago))
    monkeypatch.setattr(world.me.scheduler, "change", lambda _, change: change(claimed))
    assert world.me.scheduler._renew_claim(claimed, start, long_ago)
    stale = replace(start, attempt=7)
    assert not world.me.scheduler._renew_claim(claimed, stale, long_ago)
    monkeypatch.setattr(world.me.scheduler, "_peers", Agreeing())
    left_out = world.me.scheduler._refused(start, GatewayError("no role", reason="NO_ROLE_HERE"))(
        world.job(job.id)
    )
    assert PEER not in left_out.tasks["a"].nodes
    assert world.me.scheduler._mark_reached(job, "JG404") is job


def test_a_node_shows_what_it_knows_while_its_scheduler_is_unreachable(world, scratch):
    """How far the job was stays, and that nobody answers is said; afterwards also of a job forgotten there."""
    spec = a_job_of(scratch, "a; b")
    submitted(world.me.coordinator, world, spec)
    world.end_all(spec)
    wait_for(lambda: world.job(spec.job_id).progress == 50, 20, 0.01)
    path = "/v1/platform/schedule/job/status_all"
    asked = world.peer.coordinator.status(spec.job_id)
    assert asked.progress == 50
    assert list(asked.warnings) == []
    assert world.peer.store.local_jobs.get(spec.job_id).progress == 50
    file = world.peer.settings.route_table.file
    routes = file.read_text()
    file.write_text(yaml.safe_dump({ME: {"host": "127.0.0.1", "port": 9}}))
    world.peer.routes.reload()
    try:
        data = ask(world.peer, "operator", "GET", path, params={"job_id": spec.job_id}).json()[
            "data"
        ]
    finally:
        file.write_text(routes)
        world.peer.routes.reload()
    assert data["job_status"] == "RUNNING"
    assert data["progress"] == 50
    assert data["waiting"]["reason"] == "UNREACHABLE"
    assert ME in data["waiting"]["message"]
    assert data["waiting"]["message"] not in data.get("warnings", ())
    world.me.coordinator.stop_job(spec.job_id, "", "")
    wait_for(lambda: world.peer.store.local_jobs.get(spec.job_id).closed, 20, 0.01)
    wait_for(lambda: machine.next_due(world.job(spec.job_id)) is None, 20, 0.01)
    queries.drop_job(world.me.store, spec.job_id, T0, "operator", {})
    answer = ask(world.peer, "operator", "GET", path, params={"job_id": spec.job_id}).json()
    assert answer["code"] == 0
    assert answer["data"]["job_status"] == "FINISHED"
    assert answer["data"]["outcome"] == "STOPPED"
    assert any("JOB_UNKNOWN" in text for text in answer["data"]["warnings"]), answer


def report(
    world: World,
    spec: JobSpec,
    role: str,
    status: TaskStatus,
    failure: Failure | None = None,
) -> TaskReport:
    return TaskReport(task_id(world, spec), role, status, failure, spec.job_id)


def test_a_reported_failure_ends_the_job(api, world, spec):
    submitted(api, world, spec)
    why = Failure("OOM_KILLED", "too much 内存", PEER, "guest", "a", 137)
    api.report_task(report(world, spec, "guest.0", FAILED, why), PEER)
    job = world.wait_status(spec.job_id, JobStatus.FINISHED)
    assert job.ending is not None
    assert job.outcome == Outcome.FAILED
    assert job.ending.failure == why
    assert job.tasks["a"].failure == why


def test_repeated_older_and_foreign_reports_change_nothing(api, world, spec):
    submitted(api, world, spec)
    for role in ("host", "arbiter"):  # which the sender does not play
        api.report_task(report(world, spec, role, FAILED), PEER)
    for status in (SUCCESS, SUCCESS, RUNNING, READY, FAILED, SUCCESS):
        api.report_task(report(world, spec, "guest", status), PEER)
    task = world.job(spec.job_id).tasks["a"]
    assert task.nodes[PEER].roles == {"guest": SUCCESS}
    assert task.status == RUNNING
    assert world.job(spec.job_id).status == JobStatus.RUNNING
    assert FAILED not in task.nodes[ME].roles.values()
    for _ in range(2):  # who takes part anyway may say so again
        api.confirm_job(spec.job_id, None, PEER)
    assert catch_refusal(api.confirm_job, spec.job_id, Failure("NO", "too late"), PEER) == (
        "ALREADY_DECIDED",
        409,
    )
    assert world.job(spec.job_id).status is JobStatus.RUNNING


def test_a_suspended_job_starts_no_further_task(api, world, scratch):
    spec = a_job_of(scratch, "a -> b")
    api.submit_job(spec, PEER)
    world.run(spec.job_id, "a", "host.0")
    for on in (True, True, False, False, True):
        api.suspend_job(spec.job_id, on, PEER)
    world.end_all(spec)
    wait_for(lambda: world.job(spec.job_id).tasks["a"].status is SUCCESS, 20, 0.01)
    view = api.job_status(spec.job_id, PEER)
    assert view.status == JobStatus.RUNNING
    assert view.waiting.reason == "SUSPENDED"
    assert PEER in view.waiting.message
    (b,) = [t for t in view.tasks if t.name == "b"]
    assert b.status == READY
    assert b.waiting.reason == "SUSPENDED"
    assert not world.me.store.local_jobs.get(spec.job_id).runs_of(b.task_id)
    begun = {"common": {"a": {"x": 1}}}
    assert catch_refusal(api.amend_job, spec.job_id, begun, "", PEER)[1] == 400
    assert api.amend_job(spec.job_id, {"common": {"b": {"x": 2}}}, "sooner", PEER) == 1
    again = Order(spec.job_id, f"{spec.job_id}-again", "a", {})
    assert catch_refusal(api.rerun_job, again, PEER)[0] == "JOB_NOT_ENDED"
    api.suspend_job(spec.job_id, False, PEER)
    world.end_all(spec, "b")
    assert world.wait_status(spec.job_id, JobStatus.FINISHED).outcome is Outcome.SUCCEEDED
    assert catch_refusal(api.suspend_job, spec.job_id, True, PEER) == ("JOB_ENDED", 409)
    made = api.rerun_job(again, PEER)
    scratch.append(made.job_id)
    assert made.start == "a"
    assert set(made.runs) == {"a", "b"}
    assert list(made.inherits) == []
    api.stop_job(made.job_id, "", PEER)


def test_stopping_ends_the_job_at_every_node(api, world, spec):
    submitted(api, world, spec)
    for _ in range(2):
        api.stop_job(spec.job_id, "", PEER)
    job = world.wait_status(spec.job_id, JobStatus.FINISHED)
    assert job.outcome is Outcome.STOPPED
    assert job.ending is not None
    assert job.ending.failure is not None
    assert job.ending.by == PEER
    for local in world.closed(spec.job_id, world.me, world.peer):
        assert local.status is JobStatus.FINISHED
        assert all(run.over for run in local.runs)
    api.stop_job(spec.job_id, "", PEER)
    assert world.job(spec.job_id).outcome is Outcome.STOPPED


def test_stopping_a_task_leaves_what_succeeded_and_the_others_alone(api, world, scratch):
    spec = a_job_of(scratch, "a; b; c")
    submitted(api, world, spec)
    world.end_all(spec)
    wait_for(lambda: world.job(spec.job_id).tasks["a"].status is SUCCESS, 20, 0.01)
    api.stop_job(spec.job_id, "a", PEER)
    for _ in range(2):
        api.stop_job(spec.job_id, "b", PEER)
    wait_for(lambda: world.job(spec.job_id).tasks["b"].status is FAILED, 20, 0.01)
    job = world.job(spec.job_id)
    assert [task.status for task in job.tasks.values()] == [SUCCESS, FAILED, RUNNING]
    assert job.status == JobStatus.RUNNING
    assert job.ending is None


# ---------------------------------------------------------------- parties of one role with providers of their own

AT = "config.job_params.host.1.providers.a"


def a_job_with(scratch: list[str], chosen: str) -> JobSpec:
    params = {"common": {}, "host": {"1": {"providers": {"a": chosen}}}}
    spec = a_job_of(scratch, job_params=params, initiator=ME)
    return replace(spec, parties=a_spec("a", {"guest": (ME,), "host": (ME, PEER)}).parties)


def other(name: str, **changes: Any) -> Any:
    body = copy.deepcopy(registration())
    body["name"] = name
    for described in body["components_description"].values():
        described |= {"provider": name, **changes}
    return provider_from_request(body)


def test_a_party_runs_its_own_provider_of_a_component(world, scratch):
    world.peer.registry.register(other("theirs"))
    spec = a_job_with(scratch, "theirs:1.0.0")
    world.me.coordinator.submit_job(spec, ME)
    runs = [world.run(spec.job_id, "a", label) for label in ("guest.0", "host.0")]
    runs.append(world.run(spec.job_id, "a", "host.1", world.peer))
    assert [run.component.provider for run in runs] == ["vendor", "vendor", "theirs"]
    (warning,) = (text for text in world.job(spec.job_id).warnings if AT in text)
    assert "theirs" in warning
    assert "is not compared" in warning
    world.end_all(spec)
    assert world.wait_status(spec.job_id, JobStatus.FINISHED).outcome is Outcome.SUCCEEDED


def test_one_that_differs_in_what_flows_use_is_refused(world, scratch):
    table = {
        "name": "found",
        "description": "a table",
        "category": "dataset",
        "dataFormat": ["csv"],
    }
    world.me.registry.register(other("unlike", outputData=[table]))
    world.me.registry.register(other("alike"))
    world.peer.registry.register(other("alike"))
    with pytest.raises(Invalid) as refused:
        world.me.coordinator.submit_job(a_job_with(scratch, "unlike:1.0.0"), ME)
    (problem,) = refused.value.problems
    assert problem.path == AT
    assert "differs from vendor:1.0.0/Thing in outputs" in problem.rule
    spec = a_job_with(scratch, "alike:1.0.0")
    world.me.coordinator.submit_job(spec, ME)
    assert not [text for text in world.job(spec.job_id).warnings if AT in text]
    world.stop(spec)


def test_a_node_learns_its_own_provider_alone():
    spec = a_spec("a -> b", {"guest": ("n1",), "host": ("n2", "n3")})
    spec = replace(
        spec,
        job_params={"host": {"0|1": {"providers": {"b": "x:2"}}, "1": {"providers": {"a": "y:1"}}}},
    )
    found = {
        node: [str(one.component) for one in spec.for_node(node).dag.nodes] for node in spec.nodes
    }
    usual = "vendor:1.0.0/Thing"
    assert found == {
        "n1": [usual, usual],
        "n2": [usual, "x:2/Thing"],
        "n3": ["y:1/Thing", "x:2/Thing"],
    }
    assert spec.for_node("n3").for_node("n3") == spec.for_node("n3")
    assert "y:1" not in str(spec.for_node("n2"))
