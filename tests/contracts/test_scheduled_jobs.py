"""The common behaviour of every `SchedulerApi` while jobs run: reports, stops, reruns.

The node under test schedules jobs that `PEER` submits. `PEER` is their guest, and the node under
test plays two hosts.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.domain import rerun
from gateway.domain.job import Job
from gateway.domain.rerun import Order
from gateway.domain.scheduling.agenda import call_of, with_call
from gateway.domain.scheduling.messages import PollTaskAt, StartTaskAt
from gateway.domain.spec import CallState, Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.ports import SchedulerApi, TaskNews
from provider_registry.model import Provider
from provider_registry.registration import provider_from_request
from tests.builders import T0, a_spec
from tests.contracts.apis import Apis, World, catch_refusal, registration
from tests.contracts.scheduler import FAILED, RUNNING, SUCCESS, a_job_of, report, submit
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER

pytestmark = pytest.mark.xdist_group("scheduled_jobs")
READY = TaskStatus.READY


@pytest.fixture
def api(apis: Apis) -> SchedulerApi:
    """The interface as the initiator sees it."""
    return apis.scheduler(PEER)


@pytest.fixture
def spec(scratch: list[str]) -> JobSpec:
    return a_job_of(scratch)


def wait_for_task(
    world: World,
    spec: JobSpec,
    task: str,
    status: TaskStatus,
) -> None:
    """Wait until a task has a status."""
    wait_for(lambda: world.job(spec.job_id).tasks[task].status is status, 20, 0.01)


# ---------------------------------------------------------------- steps of the scheduler


@dataclass
class AgreeingPeer:
    """A participant that accepts every offer, and whose task runs or whose poll fails."""

    # raised by a poll of the arbiter; None: the task runs
    error: Exception | None = None
    offers: list[Any] = field(default_factory=list)

    def offer_parameters(
        self,
        job_id: str,
        amendment: Any,
        *_: Any,
    ) -> None:
        self.offers.append(amendment)

    def poll_task(
        self,
        task_id: str,
        role: str,
        sender: str,
    ) -> TaskNews:
        if self.error is not None and role == "arbiter":
            raise self.error
        return TaskNews(RUNNING)


def replace_participants(
    monkeypatch,
    world: World,
    peer: AgreeingPeer,
) -> None:
    """Let `ME` reach this peer in place of every participant."""
    monkeypatch.setattr(world.me.peers, "participant", lambda node, protocol: peer)


def test_amending_parameters_of_a_task_that_has_begun_is_refused(world, scratch, monkeypatch):
    spec = a_job_of(scratch, "a -> b")
    world.me.coordinator.submit_job(spec, PEER)

    def started_everywhere() -> bool:
        parties = world.job(spec.job_id).tasks["a"].nodes.values()
        return all(party.start.state is CallState.OK for party in parties)

    wait_for(started_everywhere, 20, 0.01)
    peer = AgreeingPeer()
    replace_participants(monkeypatch, world, peer)
    monkeypatch.setattr(rerun, "amendment_problems", lambda *_: [])
    amend_job = world.me.coordinator.amend_job

    assert amend_job(spec.job_id, {"common": {"b": {"x": 2}}}, "sooner", PEER) == 1
    assert len(peer.offers) == 2  # one for each node

    late = (
        spec.job_id,
        {"common": {"a": {"x": 2}}},
        "late",
        PEER,
    )
    refusal = catch_refusal(amend_job, *late)
    assert refusal == ("TASK_BEGUN", 409)
    (amendment,) = world.job(spec.job_id).amendments
    assert amendment.reason == "sooner"


@pytest.mark.parametrize(
    ("error", "roles", "event", "detail"),
    [
        (
            ZeroDivisionError("a bug"),
            ("arbiter",),
            "task poll refused",
            {"reason": "INTERNAL"},
        ),
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
def test_a_failed_poll_is_noted_on_the_job(
    world,
    spec,
    monkeypatch,
    error,
    roles,
    event,
    detail,
):
    job = submit(world.me.coordinator, world, spec)
    now = datetime.now(UTC)
    poll = PollTaskAt(PEER, "a", roles)
    part = job.tasks["a"].nodes[PEER]
    part = replace(
        part,
        roles={
            "guest": RUNNING,
            "arbiter": RUNNING,
        },
    )
    job = job.with_part("a", part)
    job = with_call(
        job,
        poll,
        call_of(job, poll).sent(now),
    )
    changed_jobs: list[Job] = []

    def record_response(
        _job_id: Any,
        change: Callable[[Job], Job],
        max_deferred: Any,
    ) -> None:
        changed_jobs.append(change(job))

    replace_participants(monkeypatch, world, AgreeingPeer(error))
    monkeypatch.setattr(world.me.scheduler, "record_response", record_response)

    world.me.scheduler._perform(job, poll, now)

    (note,) = changed_jobs[0].notes
    assert note.event == event
    assert detail.items() <= note.detail.items()


def test_a_claimed_start_is_renewed_unless_its_attempt_is_over(world, spec, monkeypatch):
    job = submit(world.me.coordinator, world, spec)
    start = StartTaskAt(PEER, "a")
    claimed = with_call(
        job,
        start,
        call_of(job, start).sent(T0),
    )
    monkeypatch.setattr(world.me.scheduler, "change", lambda _, change: change(claimed))

    assert world.me.scheduler._renew_claim(claimed, start, T0)
    assert not world.me.scheduler._renew_claim(claimed, replace(start, attempt=7), T0)


def test_a_node_without_a_role_in_a_task_is_left_out_of_it(world, spec):
    job = submit(world.me.coordinator, world, spec)
    refusal = GatewayError("no role", reason="NO_ROLE_HERE")

    leave_out = world.me.scheduler._refused(
        StartTaskAt(PEER, "a"),
        T0,
        refusal,
    )

    assert PEER not in leave_out(job).tasks["a"].nodes


def test_reaching_a_node_without_a_party_changes_nothing(world, spec):
    job = submit(world.me.coordinator, world, spec)

    assert world.me.scheduler._mark_reached(job, "JG404") is job


# ---------------------------------------------------------------- reports


def test_a_reported_failure_ends_the_job(api, world, spec):
    submit(api, world, spec)
    failure = Failure(
        "OOM_KILLED",
        "too much 内存",
        PEER,
        "guest",
        "a",
        137,
    )

    api.report_task(
        report(world, spec, "guest.0", FAILED, failure),
        PEER,
    )

    job = world.wait_status(spec.job_id, JobStatus.FINISHED)
    assert job.ending is not None
    assert job.outcome == Outcome.FAILED
    assert job.ending.failure == failure
    assert job.tasks["a"].failure == failure


def test_repeated_older_and_foreign_reports_change_nothing(api, world, spec):
    submit(api, world, spec)

    for role in ("host", "arbiter"):  # roles that the sender does not play
        api.report_task(
            report(world, spec, role, FAILED),
            PEER,
        )
    for status in (SUCCESS, SUCCESS, RUNNING, READY, FAILED, SUCCESS):
        api.report_task(
            report(world, spec, "guest", status),
            PEER,
        )

    task = world.job(spec.job_id).tasks["a"]
    assert task.nodes[PEER].roles == {"guest": SUCCESS}
    assert task.status == RUNNING
    job = world.job(spec.job_id)
    assert job.status == JobStatus.RUNNING
    assert FAILED not in task.nodes[ME].roles.values()


def test_a_node_that_takes_part_may_confirm_again_and_not_refuse(api, world, spec):
    submit(api, world, spec)

    for _ in range(2):
        api.confirm_job(spec.job_id, None, PEER)

    rejection = (
        spec.job_id,
        Failure("NO", "too late"),
        PEER,
    )
    refusal = catch_refusal(api.confirm_job, *rejection)
    assert refusal == ("ALREADY_DECIDED", 409)
    job = world.job(spec.job_id)
    assert job.status is JobStatus.RUNNING


# ---------------------------------------------------------------- suspension, rerun, stop


def test_a_suspended_job_starts_no_further_task(api, world, scratch):
    spec = a_job_of(scratch, "a -> b")
    api.submit_job(spec, PEER)
    world.run(spec.job_id, "a", "host.0")
    for on in (True, True, False, False, True):
        api.suspend_job(spec.job_id, on, PEER)
    world.end_all(spec)
    wait_for_task(world, spec, "a", SUCCESS)

    view = api.job_status(spec.job_id, PEER)

    assert view.status == JobStatus.RUNNING
    assert view.waiting.reason == "SUSPENDED"
    assert PEER in view.waiting.message
    (task_b,) = [task for task in view.tasks if task.name == "b"]
    assert task_b.status == READY
    assert task_b.waiting.reason == "SUSPENDED"
    assert not world.local(spec.job_id).runs_of(task_b.task_id)


def test_a_resumed_job_goes_on_to_its_end(api, world, scratch):
    spec = a_job_of(scratch, "a -> b")
    api.submit_job(spec, PEER)
    world.run(spec.job_id, "a", "host.0")
    api.suspend_job(spec.job_id, True, PEER)
    world.end_all(spec)
    wait_for_task(world, spec, "a", SUCCESS)

    begun_task = (
        spec.job_id,
        {"common": {"a": {"x": 1}}},
        "",
        PEER,
    )
    _, code = catch_refusal(api.amend_job, *begun_task)
    assert code == 400
    assert api.amend_job(spec.job_id, {"common": {"b": {"x": 2}}}, "sooner", PEER) == 1
    api.suspend_job(spec.job_id, False, PEER)
    world.end_all(spec, "b")

    assert world.wait_status(spec.job_id, JobStatus.FINISHED).outcome is Outcome.SUCCEEDED
    refusal = catch_refusal(
        api.suspend_job,
        spec.job_id,
        True,
        PEER,
    )
    assert refusal == ("JOB_ENDED", 409)


def test_a_job_is_rerun_only_after_its_end(api, world, scratch):
    spec = a_job_of(scratch, "a -> b")
    api.submit_job(spec, PEER)
    order = Order(spec.job_id, f"{spec.job_id}-again", "a", {})
    reason, _ = catch_refusal(api.rerun_job, order, PEER)
    assert reason == "JOB_NOT_ENDED"
    world.end_all(spec, "a")
    world.end_all(spec, "b")
    world.wait_status(spec.job_id, JobStatus.FINISHED)

    job = api.rerun_job(order, PEER)

    scratch.append(job.job_id)
    assert job.start == "a"
    assert set(job.runs) == {"a", "b"}
    assert list(job.inherits) == []
    api.stop_job(job.job_id, "", PEER)


def test_stopping_ends_the_job_at_every_node(api, world, spec):
    submit(api, world, spec)

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
    job = world.job(spec.job_id)
    assert job.outcome is Outcome.STOPPED


def test_stopping_a_task_does_not_affect_successful_and_parallel_tasks(api, world, scratch):
    spec = a_job_of(scratch, "a; b; c")
    submit(api, world, spec)
    world.end_all(spec)
    wait_for_task(world, spec, "a", SUCCESS)

    api.stop_job(spec.job_id, "a", PEER)
    for _ in range(2):
        api.stop_job(spec.job_id, "b", PEER)

    wait_for_task(world, spec, "b", FAILED)
    job = world.job(spec.job_id)
    assert job.tasks["a"].status == SUCCESS
    assert job.tasks["b"].status == FAILED
    assert job.tasks["c"].status == RUNNING
    assert job.status == JobStatus.RUNNING
    assert job.ending is None


# ---------------------------------------------------------------- providers of single parties


PROVIDER_PATH = "config.job_params.host.1.providers.a"


def a_job_with_provider(
    scratch: list[str],
    provider: str,
) -> JobSpec:
    """Return a job in which the host at `PEER` uses a provider of its own."""
    job_params = {
        "common": {},
        "host": {"1": {"providers": {"a": provider}}},
    }
    spec = a_job_of(
        scratch,
        job_params=job_params,
        initiator=ME,
    )
    parties = a_spec("a", {"guest": (ME,), "host": (ME, PEER)}).parties
    return replace(spec, parties=parties)


def a_provider(name: str, **fields: Any) -> Provider:
    """Return a provider like ``vendor``; ``fields`` are changes of its components."""
    body = copy.deepcopy(registration())
    body["name"] = name
    for component in body["components_description"].values():
        component |= {"provider": name, **fields}
    return provider_from_request(body)


def provider_warnings(job: Job) -> list[str]:
    """Return the job's warnings about the party's own provider."""
    return [text for text in job.warnings if PROVIDER_PATH in text]


def test_a_party_runs_its_own_provider_of_a_component(world, scratch):
    world.peer.registry.register(a_provider("theirs"))
    spec = a_job_with_provider(scratch, "theirs:1.0.0")

    world.me.coordinator.submit_job(spec, ME)

    guest_run = world.run(spec.job_id, "a", "guest.0")
    first_host_run = world.run(spec.job_id, "a", "host.0")
    second_host_run = world.run(
        spec.job_id,
        "a",
        "host.1",
        world.peer,
    )
    assert guest_run.software.component.provider == "vendor"
    assert first_host_run.software.component.provider == "vendor"
    assert second_host_run.software.component.provider == "theirs"
    (warning,) = provider_warnings(world.job(spec.job_id))
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
    world.me.registry.register(a_provider("unlike", outputData=[table]))

    with pytest.raises(Invalid) as refused:
        world.me.coordinator.submit_job(
            a_job_with_provider(scratch, "unlike:1.0.0"),
            ME,
        )

    (problem,) = refused.value.problems
    assert problem.path == PROVIDER_PATH
    assert "differs from vendor:1.0.0/Thing in outputs" in problem.rule


def test_an_equal_provider_at_both_nodes_is_accepted_without_warning(world, scratch):
    world.me.registry.register(a_provider("alike"))
    world.peer.registry.register(a_provider("alike"))
    spec = a_job_with_provider(scratch, "alike:1.0.0")

    world.me.coordinator.submit_job(spec, ME)

    assert provider_warnings(world.job(spec.job_id)) == []
    world.stop(spec)


def test_a_node_learns_only_its_own_providers():
    providers = {
        "0|1": {"providers": {"b": "x:2"}},
        "1": {"providers": {"a": "y:1"}},
    }
    spec = a_spec(
        "a -> b",
        {
            "guest": ("n1",),
            "host": ("n2", "n3"),
        },
    )
    spec = replace(
        spec,
        job_params={"host": providers},
    )

    def components(node: str) -> list[str]:
        return [str(task.component) for task in spec.for_node(node).dag.nodes]

    default = "vendor:1.0.0/Thing"
    assert components("n1") == [default, default]
    assert components("n2") == [default, "x:2/Thing"]
    assert components("n3") == ["y:1/Thing", "x:2/Thing"]
    assert spec.for_node("n3").for_node("n3") == spec.for_node("n3")
    assert "y:1" not in str(spec.for_node("n2"))
