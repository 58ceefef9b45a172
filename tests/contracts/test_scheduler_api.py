"""What every `SchedulerApi` has to do alike: the use cases themselves, and each protocol's client and router.

The node under test schedules jobs that `PEER` submits; `PEER` is their guest, the node under test plays two hosts.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import yaml

from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.job import Job
from gateway.domain.scheduling import machine
from gateway.domain.spec import Failure, JobSpec
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.errors import GatewayError
from gateway.ports import JobView, SchedulerApi, TaskReport
from gateway.store import queries
from tests.builders import T0, a_dag, a_spec
from tests.contracts.apis import IMPLEMENTATIONS, THIRD, Apis, World, at_once, two_nodes
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, ask

READY, RUNNING, SUCCESS, FAILED = TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED
ROLES = {"guest": (PEER,), "host": (ME, ME)}

_numbers = count()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as world:
        yield world


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def apis(request: pytest.FixtureRequest, world: World) -> Iterator[Apis]:
    with IMPLEMENTATIONS[request.param](world.me, world.home) as apis:
        yield apis


@pytest.fixture
def api(apis: Apis) -> SchedulerApi:
    """The interface as the initiator sees it."""
    return apis.scheduler(PEER)


@pytest.fixture
def scratch(world: World) -> Iterator[list[str]]:
    """Jobs of this test; they are ended with it."""
    jobs: list[str] = []
    yield jobs
    for job_id in jobs:
        if world.me.store.jobs.find(job_id) is not None:
            world.me.coordinator.stop_job(job_id, "", "")
            wait_for(lambda job_id=job_id: world.job(job_id).ended_at is not None, 20, 0.01, f"{job_id} has ended")


@pytest.fixture
def spec(scratch: list[str]) -> JobSpec:
    return a_job_of(scratch)


def a_job_of(scratch: list[str], dag: str | Dag = "a", **changes: Any) -> JobSpec:
    values = {"job_id": f"job-scheduler-{next(_numbers)}", "scheduler": ME} | changes
    spec = a_spec(dag, ROLES, **values)
    scratch.append(spec.job_id)
    return spec


def submitted(api: SchedulerApi, world: World, spec: JobSpec) -> Job:
    """Submit the job and wait until every party has told that its containers are up."""
    api.submit_job(spec, PEER)

    def up() -> bool:
        parts = [part for task in world.job(spec.job_id).tasks.values() for part in task.nodes.values()]
        return all(status is RUNNING for part in parts for status in part.roles.values())

    wait_for(up, 20, 0.01, f"{spec.job_id} is up")
    return world.job(spec.job_id)


def task_id(world: World, spec: JobSpec, task: str = "a") -> str:
    return world.job(spec.job_id).tasks[task].task_id


def refusal(call: Any, *args: Any) -> tuple[str, int]:
    """Return the reason and the code with which a call is refused."""
    with pytest.raises(GatewayError) as caught:
        call(*args)
    return caught.value.reason, caught.value.code


# ---------------------------------------------------------------- submit


def test_submitting_returns_when_every_node_has_accepted(api: SchedulerApi, world: World, spec: JobSpec):
    api.submit_job(spec, PEER)
    job = world.job(spec.job_id)
    assert job.status in (JobStatus.READY, JobStatus.RUNNING)
    assert replace(job.spec, trace_id="") == replace(spec, trace_id="")
    for node in (world.me, world.peer):
        assert node.store.local_jobs.get(spec.job_id).spec.scheduler == ME


def test_submitting_again_changes_nothing(api: SchedulerApi, world: World, spec: JobSpec):
    first = submitted(api, world, spec)
    for _ in range(2):
        api.submit_job(spec, PEER)
    again = world.job(spec.job_id)
    assert {n: t.task_id for n, t in again.tasks.items()} == {n: t.task_id for n, t in first.tasks.items()}
    assert len(world.local(spec.job_id).runs) == 2


def test_many_that_submit_at_once_make_one_job(api: SchedulerApi, world: World, spec: JobSpec):
    assert at_once(4, lambda: api.submit_job(spec, PEER)) == []
    events = [e.event for e in world.me.store.timeline(spec.job_id) if e.side == "scheduler"]
    assert events.count("job PENDING") == 1 and events.count("create accepted") == 2


def test_another_job_of_the_same_id_is_a_conflict(api: SchedulerApi, world: World, spec: JobSpec):
    api.submit_job(spec, PEER)
    assert refusal(api.submit_job, replace(spec, flow_id="other"), PEER) == ("JOB_ID_CONFLICT", 409)
    assert world.job(spec.job_id).spec.flow_id == spec.flow_id


def test_only_the_initiator_may_submit(apis: Apis, world: World, spec: JobSpec):
    for sender in (THIRD, STRANGER):
        assert refusal(apis.scheduler(sender).submit_job, spec, sender) == ("NOT_AUTHORISED", 403)
    assert world.me.store.jobs.find(spec.job_id) is None


def test_every_problem_is_told_at_once(api: SchedulerApi, world: World, scratch: list[str]):
    spec = a_job_of(scratch, "a -> b -> a", task_params={"guest": 5})
    spec = replace(spec, parties=(*spec.parties, replace(spec.parties[1], index=2, node=STRANGER)))
    with pytest.raises(GatewayError) as caught:
        api.submit_job(spec, PEER)
    assert (caught.value.reason, caught.value.code) == ("INVALID", 400)
    found = {p.path: p for p in caught.value.problems}
    assert set(found) == {"dag.components", "config.task_params.guest", "config.role.host[2]"}
    assert found["config.task_params.guest"].got == 5
    assert STRANGER in found["config.role.host[2]"].rule and found["config.role.host[2]"].got == STRANGER
    assert world.me.store.jobs.find(spec.job_id) is None


def test_a_node_without_a_route_is_named_at_once(api: SchedulerApi, world: World, scratch: list[str]):
    spec = a_job_of(scratch)
    spec = replace(spec, parties=(*spec.parties, replace(spec.parties[1], index=2, node=STRANGER)))
    assert refusal(api.submit_job, spec, PEER) == ("NODE_UNKNOWN", 400)
    assert world.me.store.jobs.find(spec.job_id) is None


def test_a_component_in_which_nobody_has_a_role(api: SchedulerApi, scratch: list[str]):
    judge = replace(a_dag().nodes[0], component=ComponentRef("vendor", "1.0.0", "Judge"))
    assert refusal(api.submit_job, a_job_of(scratch, Dag((judge,))), PEER) == ("INVALID", 400)


def test_a_job_that_one_node_refuses_is_rejected_at_every_node(
    api: SchedulerApi, world: World, scratch: list[str]
):
    """The guest has no such table; the hosts had accepted."""
    spec = a_job_of(scratch, task_params={"guest": {"0": {"a": {"dataset_id": "no#such"}}}})
    with pytest.raises(GatewayError) as caught:
        api.submit_job(spec, PEER)
    assert (caught.value.reason, caught.value.code) == ("NOT_AUTHORISED", 409)
    assert PEER in caught.value.message and "no#such" in caught.value.message
    job = world.wait_status(spec.job_id, JobStatus.REJECTED)
    assert job.outcome is Outcome.REJECTED
    assert world.peer.store.local_jobs.find(spec.job_id) is None
    wait_for(lambda: world.local(spec.job_id).status is JobStatus.FINISHED, 10, 0.01)
    assert refusal(api.submit_job, spec, PEER) == ("NOT_AUTHORISED", 409)  # and it stays so


# ---------------------------------------------------------------- status


def test_the_state_of_a_job_is_told_alike(api: SchedulerApi, world: World, scratch: list[str]):
    spec = a_job_of(scratch, "a; b")
    submitted(api, world, spec)
    view = api.job_status(spec.job_id, PEER)
    job = world.job(spec.job_id)
    assert _essence(view) == {
        "job_id": spec.job_id,
        "status": JobStatus.RUNNING,
        "tasks": {(t.task_id, t.name): RUNNING for t in job.tasks.values()},
        "outcome": None,
        "failure": None,
        "progress": 0,
        "scheduler": ME,
    }


def test_the_end_of_a_job_is_told_alike(api: SchedulerApi, world: World, spec: JobSpec):
    submitted(api, world, spec)
    for label, node in (("host.0", world.me), ("host.1", world.me), ("guest.0", world.peer)):
        world.end(spec.job_id, "a", label, node=node)
    world.wait_status(spec.job_id, JobStatus.FINISHED)
    assert _essence(api.job_status(spec.job_id, PEER)) == {
        "job_id": spec.job_id,
        "status": JobStatus.FINISHED,
        "tasks": {(task_id(world, spec), "a"): SUCCESS},
        "outcome": Outcome.SUCCEEDED,
        "failure": None,
        "progress": 100,
        "scheduler": ME,
    }


def test_why_a_job_failed_is_told_alike(api: SchedulerApi, world: World, spec: JobSpec):
    submitted(api, world, spec)
    world.end(spec.job_id, "a", "guest.0", code=7, node=world.peer)
    world.wait_status(spec.job_id, JobStatus.FINISHED)
    view = api.job_status(spec.job_id, PEER)
    assert (view.status, view.outcome) == (JobStatus.FINISHED, Outcome.FAILED)
    assert view.failure == Failure("EXIT_7", "exit code 7", PEER, "guest", "a", 7)
    assert [t.status for t in view.tasks] == [FAILED]


def _essence(view: JobView) -> dict[str, Any]:
    return {
        "job_id": view.job_id,
        "status": view.status,
        "tasks": {(t.task_id, t.name): t.status for t in view.tasks},
        "outcome": view.outcome,
        "failure": view.failure,
        "progress": view.progress,
        "scheduler": view.scheduler,
    }


def test_who_may_not_know(apis: Apis, api: SchedulerApi, world: World, spec: JobSpec):
    submitted(api, world, spec)
    for sender in (THIRD, STRANGER):
        assert refusal(apis.scheduler(sender).job_status, spec.job_id, sender) == ("NOT_AUTHORISED", 403)
    assert refusal(api.job_status, "job-nowhere", PEER) == ("JOB_UNKNOWN", 404)


def test_a_node_tells_what_it_knows_while_the_scheduling_one_cannot_be_asked(world: World, scratch: list[str]):
    """How far the job was stays, and that nobody answers is said; afterwards also of a job forgotten there."""
    spec = a_job_of(scratch, "a; b")
    submitted(world.me.coordinator, world, spec)
    for label, node in (("host.0", world.me), ("host.1", world.me), ("guest.0", world.peer)):
        world.end(spec.job_id, "a", label, node=node)
    wait_for(lambda: world.job(spec.job_id).progress == 50, 20, 0.01)
    path = "/v1/platform/schedule/job/status_all"
    asked = world.peer.coordinator.status(spec.job_id)
    assert (asked.progress, list(asked.warnings)) == (50, [])
    assert world.peer.store.local_jobs.get(spec.job_id).progress == 50
    file = world.home / PEER / "routes.yml"
    routes = file.read_text()
    file.write_text(yaml.safe_dump({ME: {"host": "127.0.0.1", "port": 9}}))
    world.peer.routes.reload()
    try:
        data = ask(world.peer, "operator", "GET", path, params={"job_id": spec.job_id}).json()["data"]
    finally:
        file.write_text(routes)
        world.peer.routes.reload()
    assert (data["job_status"], data["progress"], data["waiting"]["reason"]) == ("RUNNING", 50, "UNREACHABLE")
    assert ME in data["waiting"]["message"] and data["waiting"]["message"] in data["warnings"]
    world.me.coordinator.stop_job(spec.job_id, "", "")
    wait_for(lambda: world.peer.store.local_jobs.get(spec.job_id).closed, 20, 0.01)
    wait_for(lambda: machine.next_due(world.job(spec.job_id)) is None, 20, 0.01)
    queries.drop_job(world.me.store, spec.job_id, T0, "operator", {})
    answer = ask(world.peer, "operator", "GET", path, params={"job_id": spec.job_id}).json()
    assert (answer["code"], answer["data"]["job_status"], answer["data"]["outcome"]) == (0, "FINISHED", "STOPPED")
    assert any("JOB_UNKNOWN" in text for text in answer["data"]["warnings"]), answer


# ---------------------------------------------------------------- reports


def report(
    world: World, spec: JobSpec, role: str, status: TaskStatus, failure: Failure | None = None
) -> TaskReport:
    return TaskReport(task_id(world, spec), role, status, failure, spec.job_id)


@pytest.mark.parametrize("role", ["guest", "guest.0"])
def test_a_reported_failure_ends_the_job(api: SchedulerApi, world: World, spec: JobSpec, role: str):
    submitted(api, world, spec)
    why = Failure("OOM_KILLED", "too much 内存", PEER, "guest", "a", 137)
    api.report_task(report(world, spec, role, FAILED, why), PEER)
    job = world.wait_status(spec.job_id, JobStatus.FINISHED)
    assert job.ending is not None
    assert (job.outcome, job.ending.failure) == (Outcome.FAILED, why)
    assert job.tasks["a"].failure == why


def test_a_success_needs_every_party(api: SchedulerApi, world: World, spec: JobSpec):
    submitted(api, world, spec)
    api.report_task(report(world, spec, "guest", SUCCESS), PEER)
    job = world.job(spec.job_id)
    assert job.tasks["a"].nodes[PEER].status is SUCCESS
    assert (job.status, job.tasks["a"].status) == (JobStatus.RUNNING, RUNNING)


def test_repeated_and_older_news_is_no_error_and_changes_nothing(api: SchedulerApi, world: World, spec: JobSpec):
    submitted(api, world, spec)
    api.report_task(report(world, spec, "guest", SUCCESS), PEER)
    for status in (SUCCESS, RUNNING, READY, FAILED, SUCCESS):
        api.report_task(report(world, spec, "guest", status), PEER)
    job = world.job(spec.job_id)
    assert job.tasks["a"].nodes[PEER].roles == {"guest": SUCCESS}
    assert job.status is JobStatus.RUNNING


def test_news_after_the_end_is_no_error_and_changes_nothing(api: SchedulerApi, world: World, spec: JobSpec):
    submitted(api, world, spec)
    api.stop_job(spec.job_id, "", PEER)
    wait_for(lambda: world.job(spec.job_id).ended_at, 20, 0.01)
    before = world.job(spec.job_id)
    for status in (RUNNING, SUCCESS, FAILED):
        api.report_task(report(world, spec, "guest", status), PEER)
    after = world.job(spec.job_id)
    assert (after.status, after.outcome, after.tasks) == (before.status, before.outcome, before.tasks)


def test_news_of_a_role_that_the_node_does_not_play_changes_nothing(
    api: SchedulerApi, world: World, spec: JobSpec
):
    submitted(api, world, spec)
    api.report_task(report(world, spec, "host", FAILED), PEER)
    api.report_task(report(world, spec, "arbiter", FAILED), PEER)
    job = world.job(spec.job_id)
    assert job.status is JobStatus.RUNNING
    assert FAILED not in job.tasks["a"].nodes[ME].roles.values()


def test_whose_news_is_not_taken(apis: Apis, api: SchedulerApi, world: World, spec: JobSpec):
    submitted(api, world, spec)
    for sender in (THIRD, STRANGER):
        said = report(world, spec, "guest", FAILED)
        assert refusal(apis.scheduler(sender).report_task, said, sender) == ("NOT_AUTHORISED", 403)
    unknown = TaskReport("task-nowhere", "guest", SUCCESS)
    assert refusal(api.report_task, unknown, PEER) == ("TASK_UNKNOWN", 404)
    assert world.job(spec.job_id).status is JobStatus.RUNNING


# ---------------------------------------------------------------- audit_confirm, suspend, resume


def test_who_takes_part_anyway_may_say_so_again(api: SchedulerApi, world: World, spec: JobSpec):
    submitted(api, world, spec)
    for _ in range(2):
        api.confirm_job(spec.job_id, None, PEER)
    assert refusal(api.confirm_job, spec.job_id, Failure("NO", "too late"), PEER) == ("ALREADY_DECIDED", 409)
    assert world.job(spec.job_id).status is JobStatus.RUNNING


def test_whose_word_is_not_taken(apis: Apis, api: SchedulerApi, world: World, spec: JobSpec):
    submitted(api, world, spec)
    for sender in (THIRD, STRANGER):
        other = apis.scheduler(sender)
        assert refusal(other.confirm_job, spec.job_id, None, sender) == ("NOT_AUTHORISED", 403)
        assert refusal(other.suspend_job, spec.job_id, True, sender) == ("NOT_AUTHORISED", 403)
    assert refusal(api.confirm_job, "job-nowhere", None, PEER) == ("JOB_UNKNOWN", 404)
    assert refusal(api.suspend_job, "job-nowhere", True, PEER) == ("JOB_UNKNOWN", 404)


def test_a_suspended_job_starts_no_further_task(api: SchedulerApi, world: World, scratch: list[str]):
    spec = a_job_of(scratch, "a -> b")
    api.submit_job(spec, PEER)
    world.run(spec.job_id, "a", "host.0")
    for on in (True, True, False, False, True):
        api.suspend_job(spec.job_id, on, PEER)
    for label, node in (("host.0", world.me), ("host.1", world.me), ("guest.0", world.peer)):
        world.end(spec.job_id, "a", label, node=node)
    wait_for(lambda: world.job(spec.job_id).tasks["a"].status is SUCCESS, 20, 0.01)
    view = api.job_status(spec.job_id, PEER)
    assert (view.status, view.waiting.reason) == (JobStatus.RUNNING, "SUSPENDED")
    assert PEER in view.waiting.message
    (b,) = [t for t in view.tasks if t.name == "b"]
    assert (b.status, b.waiting.reason) == (READY, "SUSPENDED")
    assert not world.me.store.local_jobs.get(spec.job_id).runs_of(b.task_id)
    api.suspend_job(spec.job_id, False, PEER)
    # these containers leave no output, so b is asked for and refused
    ended = world.wait_status(spec.job_id, JobStatus.FINISHED)
    assert ended.ending is not None and ended.ending.failure is not None
    assert (ended.ending.failure.reason, ended.ending.failure.task) == ("INPUT_MISSING", "b")
    assert refusal(api.suspend_job, spec.job_id, True, PEER) == ("JOB_ENDED", 409)


# ---------------------------------------------------------------- stop


def test_stopping_ends_the_job_at_every_node(api: SchedulerApi, world: World, spec: JobSpec):
    submitted(api, world, spec)
    for _ in range(2):
        api.stop_job(spec.job_id, "", PEER)
    job = world.wait_status(spec.job_id, JobStatus.FINISHED)
    assert job.outcome is Outcome.STOPPED
    assert job.ending is not None and job.ending.failure is not None and job.ending.by == PEER
    for node in (world.me, world.peer):

        def over(node: Any = node) -> bool:
            return all(run.over for run in node.store.local_jobs.get(spec.job_id).runs)

        wait_for(over, 20, 0.01, "no container is left")
        assert node.store.local_jobs.get(spec.job_id).status is JobStatus.FINISHED
    api.stop_job(spec.job_id, "", PEER)
    assert world.job(spec.job_id).outcome is Outcome.STOPPED


def test_stopping_a_task_that_succeeded_only_tidies_up(api: SchedulerApi, world: World, scratch: list[str]):
    spec = a_job_of(scratch, "a; b")
    submitted(api, world, spec)
    for label, node in (("host.0", world.me), ("host.1", world.me), ("guest.0", world.peer)):
        world.end(spec.job_id, "a", label, node=node)
    wait_for(lambda: world.job(spec.job_id).tasks["a"].status is SUCCESS, 20, 0.01)
    api.stop_job(spec.job_id, "a", PEER)
    job = world.job(spec.job_id)
    assert job.ending is None and job.status is JobStatus.RUNNING


def test_stopping_a_task_that_runs_leaves_the_others_alone(api: SchedulerApi, world: World, scratch: list[str]):
    spec = a_job_of(scratch, "a; b")
    submitted(api, world, spec)
    for _ in range(2):
        api.stop_job(spec.job_id, "a", PEER)
    wait_for(lambda: world.job(spec.job_id).tasks["a"].status is FAILED, 20, 0.01)
    job = world.job(spec.job_id)
    assert (job.status, job.tasks["b"].status, job.ending) == (JobStatus.RUNNING, RUNNING, None)


def test_stopping_the_only_task_ends_the_job(api: SchedulerApi, world: World, spec: JobSpec):
    submitted(api, world, spec)
    api.stop_job(spec.job_id, "a", PEER)
    assert world.wait_status(spec.job_id, JobStatus.FINISHED).outcome is Outcome.STOPPED


def test_who_may_not_stop_and_what_is_not_there(apis: Apis, api: SchedulerApi, world: World, spec: JobSpec):
    submitted(api, world, spec)
    for sender in (THIRD, STRANGER):
        assert refusal(apis.scheduler(sender).stop_job, spec.job_id, "", sender) == ("NOT_AUTHORISED", 403)
    assert refusal(api.stop_job, "job-nowhere", "", PEER) == ("JOB_UNKNOWN", 404)
    assert refusal(api.stop_job, spec.job_id, "nothing", PEER) == ("TASK_UNKNOWN", 404)
    assert world.job(spec.job_id).ending is None
