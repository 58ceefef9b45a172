"""The tasks that run in parallel, and the roles that nodes play in them."""

from dataclasses import replace

import pytest

from gateway.domain.scheduling.machine import step
from gateway.domain.scheduling.messages import RoleNotPlayed, StartTaskAt, TaskStopRequested
from gateway.domain.scheduling.responses import exclude_from_task
from gateway.domain.states import JobStatus, TaskStatus
from gateway.domain.timeouts import Timing
from tests.builders import a_job, a_spec, at
from tests.domain.calls import A1, A2, B1, B2, C1, C2, X1, X2
from tests.domain.scheduled_jobs import BEGUN, BOTH_RUN, running_job
from tests.domain.script import AcceptAll, accept, due_commands, play, report_task

SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED
STARTS_SENT = play(BEGUN, 0)


def test_tasks_of_a_job_are_limited_and_follow_in_the_flows_order():
    timing = replace(Timing(), abreast=2)

    job, requests = step(running_job("a; b; c; d"), at(0), timing)
    assert {request.task for request in requests} == {"a", "b"}

    b_succeeds = [
        report_task(SUCCESS, "n1", "b", role="guest"),
        report_task(SUCCESS, "n2", "b"),
    ]
    _, requests = step(play(job, *b_succeeds), at(1), timing)
    starts = [request for request in requests if isinstance(request, StartTaskAt)]
    assert {start.task for start in starts} == {"c"}


def test_a_stopped_task_takes_no_place():
    job = play(
        running_job("a; b"),
        TaskStopRequested("a", "n1", at(0)),
    )

    _, requests = step(
        job,
        at(1),
        replace(Timing(), abreast=1),
    )

    assert {request.task for request in requests} == {"b"}


def test_a_role_that_a_node_does_not_play_is_not_waited_for():
    spec = a_spec(
        "a",
        {
            "guest": ("n2",),
            "host": ("n2",),
        },
        scheduler="n1",
    )
    job = play(
        a_job(status=JobStatus.RUNNING, spec=spec),
        AcceptAll(0),
    )

    job = play(
        job,
        RoleNotPlayed("task_a", "n2", "host", at(1)),
        report_task(SUCCESS, role="guest", seconds=2),
    )

    assert job.tasks["a"].status is SUCCESS
    job = play(
        job,
        RoleNotPlayed("task_a", "n2", "guest", at(3)),
    )
    assert set(job.tasks["a"].nodes["n2"].roles) == {"guest"}, "the only role stays"


def test_a_node_without_a_role_in_the_task_is_taken_out_of_it():
    job = exclude_from_task(
        play(running_job("a -> b"), 0),
        A2,
        at(1),
    )
    assert set(job.tasks["a"].nodes) == {"n1"}
    assert exclude_from_task(job, A2, at(2)) == job

    job = play(
        job,
        accept(A1, 1),
        report_task(SUCCESS, "n1"),
    )

    assert job.tasks["a"].status is SUCCESS
    assert due_commands(job, 1) == [B1, B2]


def test_a_task_without_any_node_fails():
    job = exclude_from_task(STARTS_SENT, A1, at(1))
    job = exclude_from_task(job, A2, at(1))

    assert job.tasks["a"].status is FAILED
    assert job.ending.failure.reason == "NO_ROLE_HERE"
    assert due_commands(job, 1) == [X1, X2]


@pytest.mark.parametrize("role", ["host", "host.0", ""])
def test_a_report_may_name_the_role_with_its_index_or_not_at_all(role: str):
    job = play(BOTH_RUN, report_task(SUCCESS, role=role))

    assert job.tasks["a"].nodes["n2"].roles == {"host": SUCCESS}


@pytest.mark.parametrize("status", TaskStatus)
def test_a_report_before_the_creation_does_not_hinder_the_job(status: TaskStatus):
    job = play(
        a_job(),
        0,
        report_task(status, seconds=0),
        accept(C1, 1),
    )
    assert job.status is JobStatus.PENDING

    job = play(job, accept(C2, 1))

    assert (job.status, job.tasks["a"].status) == (JobStatus.READY, TaskStatus.READY)
