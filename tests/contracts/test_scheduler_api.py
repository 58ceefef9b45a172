"""The common behaviour of every `SchedulerApi`: submitting jobs, their status, permissions.

The node under test schedules jobs that `PEER` submits. `PEER` is their guest, and the node under
test plays two hosts.
"""

from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import yaml

from gateway.domain.dag import ComponentRef, Dag
from gateway.domain.job import Job
from gateway.domain.rerun import Order
from gateway.domain.scheduling import machine
from gateway.domain.spec import JobSpec
from gateway.domain.states import JobStatus, Outcome
from gateway.errors import GatewayError
from gateway.ports import JobSelection, SchedulerApi, TaskReport
from gateway.store import queries
from tests.builders import T0, a_dag
from tests.contracts.apis import THIRD, Apis, World, catch_refusal
from tests.contracts.scheduler import FAILED, RUNNING, SUCCESS, a_job_of, report, submit
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER, STRANGER, ask

pytestmark = pytest.mark.xdist_group("scheduler_api")
STATUS_PATH = "/v1/platform/schedule/job/status_all"


@pytest.fixture
def api(apis: Apis) -> SchedulerApi:
    """The interface as the initiator sees it."""
    return apis.scheduler(PEER)


@pytest.fixture
def spec(scratch: list[str]) -> JobSpec:
    return a_job_of(scratch)


def task_ids(job: Job) -> dict[str, str]:
    """Return the id of each task of a job."""
    return {name: task.task_id for name, task in job.tasks.items()}


def wait_until_local(
    world: World,
    spec: JobSpec,
    status: JobStatus,
) -> None:
    """Wait until the job of `ME` as a participant has a status."""
    wait_for(lambda: world.local(spec.job_id).status is status, 10, 0.01)


# ---------------------------------------------------------------- submission


def test_submitting_again_changes_nothing(api, world, spec):
    first = submit(api, world, spec)

    for _ in range(2):
        api.submit_job(spec, PEER)
    another_flow = replace(spec, flow_id="other")
    refusal = catch_refusal(api.submit_job, another_flow, PEER)
    assert refusal == ("JOB_ID_CONFLICT", 409)

    job = world.job(spec.job_id)
    assert task_ids(job) == task_ids(first)
    assert len(world.local(spec.job_id).runs) == 2
    assert job.spec.flow_id == spec.flow_id


def with_a_stranger(spec: JobSpec) -> JobSpec:
    """Return a job with one more host, at a node without a route."""
    stranger = replace(
        spec.parties[1],
        index=2,
        node=STRANGER,
    )
    return replace(spec, parties=(*spec.parties, stranger))


def test_all_problems_are_reported_together(api, world, scratch):
    spec = with_a_stranger(a_job_of(scratch, "a -> b -> a", task_params={"guest": 5}))

    with pytest.raises(GatewayError) as caught:
        api.submit_job(spec, PEER)

    assert caught.value.reason == "INVALID"
    assert caught.value.code == 400
    problems = {problem.path: problem for problem in caught.value.problems}
    assert set(problems) == {"dag.components", "config.task_params.guest", "config.role.host[2]"}
    assert problems["config.task_params.guest"].got == 5
    assert STRANGER in problems["config.role.host[2]"].rule
    assert problems["config.role.host[2]"].got == STRANGER
    stored_job = world.me.store.jobs.find(spec.job_id)
    assert stored_job is None


def test_a_job_with_an_unknown_node_has_a_reason_of_its_own(api, world, spec):
    wrong = with_a_stranger(spec)

    refusal = catch_refusal(api.submit_job, wrong, PEER)
    assert refusal == ("NODE_UNKNOWN", 400)
    stored_job = world.me.store.jobs.find(spec.job_id)
    assert stored_job is None


def test_a_task_that_no_party_has_a_role_in_is_refused(api, world, spec):
    (node,) = a_dag().nodes
    judge = replace(
        node,
        component=ComponentRef("vendor", "1.0.0", "Judge"),
    )
    wrong = replace(
        spec,
        dag=Dag((judge,)),
    )

    refusal = catch_refusal(api.submit_job, wrong, PEER)
    assert refusal == ("INVALID", 400)
    stored_job = world.me.store.jobs.find(spec.job_id)
    assert stored_job is None


def test_a_job_that_is_far_too_large_is_refused(api, world, spec):
    values = {str(number): "x" * 100_000 for number in range(81)}
    large = replace(
        spec,
        task_params={"common": {"a": values}},
    )

    refusal = catch_refusal(api.submit_job, large, PEER)
    assert refusal == ("TOO_LARGE", 400)
    stored_job = world.me.store.jobs.find(spec.job_id)
    assert stored_job is None


def test_a_job_that_one_node_refuses_is_rejected_at_every_node(api, world, scratch):
    """The guest lacks the dataset; the hosts have accepted the job."""
    task_params = {
        "guest": {"0": {"a": {"dataset_id": "no#such"}}},
        "host": {"0|1": {"a": {"dataset_id": ""}}},
    }
    spec = a_job_of(scratch, task_params=task_params)

    with pytest.raises(GatewayError) as caught:
        api.submit_job(spec, PEER)

    assert caught.value.reason == "NOT_AUTHORISED"
    assert caught.value.code == 409
    assert PEER in caught.value.message
    assert "no#such" in caught.value.message
    for problem in caught.value.problems:  # FATE's protocol passes none on
        assert problem.path == "config.task_params.guest.0.a.dataset_id"
        assert (problem.node, problem.reason) == (PEER, "NOT_AUTHORISED")
        assert problem.rule.startswith("dataset no#such ")
        assert problem.got == "no#such"
        assert "got" not in problem.rule
    job = world.wait_status(spec.job_id, JobStatus.REJECTED)
    assert job.outcome is Outcome.REJECTED
    stored_job = world.peer.store.local_jobs.find(spec.job_id)
    assert stored_job is None
    wait_until_local(world, spec, JobStatus.FINISHED)
    # A repeated submission gets the same refusal.
    refusal = catch_refusal(api.submit_job, spec, PEER)
    assert refusal == ("NOT_AUTHORISED", 409)


# ---------------------------------------------------------------- status


def test_the_state_of_a_job_is_the_same_by_every_way(api, world, scratch):
    spec = a_job_of(scratch, "a; b")
    ids = task_ids(submit(api, world, spec))

    def check_view(status, outcome, progress, task_status):
        view = api.job_status(spec.job_id, PEER)
        assert view.job_id == spec.job_id
        assert view.scheduler == ME
        assert view.failure is None
        assert view.status == status
        assert view.outcome == outcome
        assert view.progress == progress
        assert {task.name: task.task_id for task in view.tasks} == ids
        assert {task.status for task in view.tasks} == {task_status}

    check_view(JobStatus.RUNNING, None, 0, RUNNING)

    for task in ids:
        world.end_all(spec, task)
    world.wait_status(spec.job_id, JobStatus.FINISHED)

    check_view(JobStatus.FINISHED, Outcome.SUCCEEDED, 100, SUCCESS)


def test_a_job_that_the_scheduling_node_does_not_know_is_pending(world):
    world.me.store.add_submission(
        "job-refused",
        "flow-refused",
        PEER,
        T0,
    )

    assert world.me.job_statuses.jobs(JobSelection("flow-refused")) == {
        "job-refused": JobStatus.PENDING
    }


@contextmanager
def without_route_to_me(world: World):
    """`PEER` has a route to `ME` at which nothing listens."""
    file = world.peer.settings.route_table.file
    routes = file.read_text()
    file.write_text(yaml.safe_dump({ME: {"host": "127.0.0.1", "port": 9}}))
    world.peer.routes.reload()
    try:
        yield
    finally:
        file.write_text(routes)
        world.peer.routes.reload()


def view_at_peer(
    world: World,
    spec: JobSpec,
) -> dict[str, Any]:
    """Return a job as the operators of `PEER` see it."""
    response = ask(
        world.peer,
        "operator",
        "GET",
        STATUS_PATH,
        params={"job_id": spec.job_id},
    )
    body = response.json()
    assert body["code"] == 0
    return dict(body["data"])


def test_the_last_known_state_is_shown_while_the_scheduler_is_unreachable(world, scratch):
    spec = a_job_of(scratch, "a; b")
    submit(world.me.coordinator, world, spec)
    world.end_all(spec)
    wait_for(lambda: world.job(spec.job_id).progress == 50, 20, 0.01)
    status = world.peer.job_statuses.status(spec.job_id)
    assert status.progress == 50
    assert list(status.warnings) == []
    assert world.peer.store.local_jobs.get(spec.job_id).progress == 50

    with without_route_to_me(world):
        view = view_at_peer(world, spec)

    assert view["job_status"] == "RUNNING"
    assert view["progress"] == 50
    assert view["waiting"]["reason"] == "UNREACHABLE"
    assert ME in view["waiting"]["message"]
    assert view["waiting"]["message"] not in view.get("warnings", ())


def test_the_last_known_state_is_shown_of_a_job_that_its_scheduler_deleted(world, scratch):
    spec = a_job_of(scratch, "a; b")
    submit(world.me.coordinator, world, spec)
    world.me.coordinator.stop_job(
        spec.job_id,
        "",
        "",
    )
    wait_for(lambda: world.peer.store.local_jobs.get(spec.job_id).closed, 20, 0.01)
    wait_for(lambda: machine.next_due(world.job(spec.job_id)) is None, 20, 0.01)
    queries.drop_job(
        world.me.store,
        spec.job_id,
        T0,
        "operator",
        {},
    )

    view = view_at_peer(world, spec)

    assert view["job_status"] == "FINISHED"
    assert view["outcome"] == "STOPPED"
    assert [text for text in view["warnings"] if "JOB_UNKNOWN" in text], view


# ---------------------------------------------------------------- permissions


def requests_about(
    job_id: str,
    sender: str,
) -> list[tuple[Any, ...]]:
    """Return the requests about a job: a method's name and its arguments."""
    return [
        ("job_status", job_id, sender),
        ("confirm_job", job_id, None, sender),
        ("suspend_job", job_id, True, sender),
        (
            "amend_job",
            job_id,
            {"common": {"a": {"x": 1}}},
            "",
            sender,
        ),
        ("rerun_job", Order(job_id, f"{job_id}-again", "a", {}), sender),
        ("stop_job", job_id, "", sender),
    ]


@pytest.mark.parametrize("sender", [THIRD, STRANGER])
def test_a_node_that_is_no_party_cannot_submit_a_job(apis, world, spec, sender):
    submit_job = apis.scheduler(sender).submit_job

    refusal = catch_refusal(submit_job, spec, sender)
    assert refusal == ("NOT_AUTHORISED", 403)
    stored_job = world.me.store.jobs.find(spec.job_id)
    assert stored_job is None


def test_a_stranger_is_refused_as_for_an_unknown_job(apis, api, world, spec):
    """A node that is no party gets the same refusals as for an unknown job."""
    submit(api, world, spec)
    news = report(world, spec, "guest", FAILED)
    news_of_unknown_task = replace(news, task_id="task-nowhere")

    for sender in (STRANGER, THIRD):
        foreign_api = apis.scheduler(sender)
        refusal = catch_refusal(foreign_api.report_task, news, sender)
        assert refusal == catch_refusal(foreign_api.report_task, news_of_unknown_task, sender)
        requests = requests_about(spec.job_id, sender)
        requests_about_unknown_job = requests_about("job-nowhere", sender)
        for request, unknown in zip(requests, requests_about_unknown_job, strict=True):
            method, *args = request
            _, *unknown_args = unknown
            call = getattr(foreign_api, method)
            assert catch_refusal(call, *args) == catch_refusal(call, *unknown_args), method

    unsigned = catch_refusal(
        world.me.coordinator.confirm_job,
        spec.job_id,
        None,
        "",
    )
    assert unsigned == ("NOT_AUTHORISED", 403)
    job = world.job(spec.job_id)
    assert job.status == JobStatus.RUNNING
    assert job.ending is None


@pytest.mark.parametrize(
    "request_",
    requests_about("job-nowhere", PEER),
    ids=lambda request: request[0],
)
def test_a_request_about_an_unknown_job_is_refused(api, request_):
    method, *args = request_

    refusal = catch_refusal(getattr(api, method), *args)
    assert refusal == ("JOB_UNKNOWN", 404)


def test_a_request_about_an_unknown_task_is_refused(api, world, spec):
    submit(api, world, spec)
    news = TaskReport("task-nowhere", "guest", SUCCESS)

    refusal = catch_refusal(api.report_task, news, PEER)
    assert refusal == ("TASK_UNKNOWN", 404)
    refusal = catch_refusal(
        api.stop_job,
        spec.job_id,
        "nothing",
        PEER,
    )
    assert refusal == ("TASK_UNKNOWN", 404)
