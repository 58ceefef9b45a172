"""What a participating node does to stop a run, some tasks, or a job."""

from dataclasses import replace

import pytest

from gateway.domain.execution.machine import step
from gateway.domain.execution.messages import (
    Done,
    Gone,
    Inspected,
    Launched,
    LaunchFailed,
    Probe,
    StopRequested,
    StopRun,
    Tell,
)
from gateway.domain.run import Approval, Reporting
from gateway.domain.spec import Ending, Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from tests.builders import T0, a_local_job, a_run, a_spec, at
from tests.domain.executed import (
    ENDING,
    FAILED,
    ID,
    LAUNCHING,
    RUNNING,
    STOPPING,
    SUCCESS,
    TIMING,
    after,
    due,
    exited,
    only,
    said,
    stopped,
)


def test_a_run_that_waits_is_stopped_without_the_engine():
    local = after(a_local_job(a_run()), stopped(1, "a"))
    run = only(local)
    assert (run.status, run.failure.reason) == (FAILED, "STOPPED")
    assert due(local, 1) == [Tell(ID, TaskStatus.FAILED)]


def test_a_run_that_launches_is_stopped_when_it_is_up():
    local = after(a_local_job(a_run(status=LAUNCHING)), stopped(1, "a"))
    assert (only(local).status, due(local, 1)) == (LAUNCHING, [])
    local = after(local, Launched(ID, at(2)))
    assert only(local).status is STOPPING
    assert StopRun(ID, TIMING.stop_grace) in due(local, 2)


def test_a_run_that_launches_in_vain_is_not_stopped_besides():
    local = after(a_local_job(a_run(status=LAUNCHING)), stopped(1, "a"))
    run = only(after(local, LaunchFailed(ID, Failure("IMAGE_NOT_FOUND"), at(2))))
    assert (run.status, run.failure.reason) == (FAILED, "IMAGE_NOT_FOUND")


def test_a_run_that_was_over_before_it_was_known_to_be_up_needs_no_stop():
    local = after(a_local_job(a_run(status=LAUNCHING)), exited(0, 0.5), stopped(1, "a"), Launched(ID, at(2)))
    assert (only(local).status, only(local).failure.reason) == (FAILED, "STOPPED")


@pytest.mark.parametrize("end", [exited(0, 3), exited(143, 3), Gone(ID, at(3))])
def test_a_running_run_is_stopped_through_the_engine(end):
    local, actions = step(
        after(a_local_job(a_run(status=RUNNING, reporting=Reporting(TaskStatus.RUNNING))), stopped(1)), at(1)
    )
    assert actions == [StopRun(ID, TIMING.stop_grace)]
    assert only(local).status is STOPPING
    run = only(after(local, end))
    assert (run.status, run.failure.reason, run.ended_at) == (FAILED, "STOPPED", at(3))


def test_a_run_whose_exit_is_weighed_still_is_stopped_at_once():
    run = only(after(a_local_job(a_run(status=RUNNING)), exited(0, 1), stopped(1.5)))
    assert (run.status, run.failure.reason, run.failure.exit_code) == (FAILED, "STOPPED", 0)


def test_what_a_stopped_container_reports_does_not_save_it():
    local = after(a_local_job(a_run(status=RUNNING)), stopped(1), said(TaskStatus.SUCCESS, 2), exited(0, 3))
    assert only(local).failure.reason == "STOPPED"


def test_a_stop_that_failed_is_repeated_and_one_without_an_end_after_its_deadline():
    local, [stop, _] = step(after(a_local_job(a_run(status=RUNNING)), stopped(1)), at(1))
    assert stop not in due(local, 17.9)
    assert stop in due(local, 18)
    assert stop in due(after(local, Done(stop, at(2), final=False)), 2.2)


def test_a_stopped_container_is_looked_at_until_it_is_seen_gone():
    local, [stop, *_] = step(after(a_local_job(a_run(status=RUNNING)), stopped(1)), at(1))
    local = after(local, Inspected(ID, at(2)), Done(stop, at(2)))
    assert Probe(ID) not in due(local, 6.9)
    assert Probe(ID) in due(local, 7)
    assert stop not in due(local, 100)
    assert only(after(step(local, at(7))[0], exited(143, 7))).failure.reason == "STOPPED"


def test_a_stop_of_some_tasks_leaves_the_others_and_the_job():
    local = a_local_job(a_run("a", RUNNING), a_run("b", RUNNING), a_run("c"))
    local = after(local, stopped(1, "a", "c"))
    assert [run.status for run in local.runs] == [STOPPING, RUNNING, FAILED]
    assert (local.status, local.ending) == (JobStatus.RUNNING, None)


@pytest.mark.parametrize(
    ("status", "final"),
    [
        (JobStatus.PENDING, JobStatus.REJECTED),
        (JobStatus.READY, JobStatus.FINISHED),
        (JobStatus.RUNNING, JobStatus.FINISHED),
    ],
)
def test_a_stop_of_the_job_ends_it_here_with_how_it_ended(status, final):
    local = after(a_local_job(status=status), stopped(1))
    assert (local.status, local.ended_at, local.ending) == (final, at(1), ENDING)


@pytest.mark.parametrize(
    ("runs", "flow", "outcome"),
    [
        ((a_run("a", SUCCESS), a_run("b", SUCCESS)), "a -> b", Outcome.SUCCEEDED),
        ((a_run("a", SUCCESS),), "a -> b", None),
        ((a_run("a", SUCCESS), a_run("b", RUNNING)), "a -> b", None),
        ((a_run("a", FAILED, failure=Failure("EXIT_1")),), "a -> b", Outcome.FAILED),
        ((a_run("a", FAILED, failure=Failure("STOPPED")),), "a", Outcome.STOPPED),
        ((a_run("a", FAILED, failure=Failure("EXIT_1")), a_run("a", SUCCESS, attempt=1)), "a", Outcome.SUCCEEDED),
        ((), "a", None),
    ],
)
def test_a_stop_that_does_not_say_how_the_job_ended_leaves_it_to_the_runs(runs, flow, outcome):
    local = a_local_job(*runs, spec=a_spec(flow))
    local = after(local, StopRequested(at(1), None, None, "n2"))
    assert local.status is JobStatus.FINISHED
    assert (local.ending.outcome if local.ending else None) is outcome


def test_a_second_stop_changes_nothing():
    local = after(a_local_job(a_run(status=RUNNING)), stopped(1))
    again = StopRequested(at(9), None, Ending(Outcome.SUCCEEDED, at(9)), "n3")
    assert after(local, again) == local


@pytest.mark.parametrize(
    ("outcome", "refused", "told"),
    [
        (Outcome.STOPPED, None, (Outcome.STOPPED, "STOPPED")),
        (Outcome.FAILED, None, (Outcome.FAILED, "STOPPED")),
        (Outcome.STOPPED, Failure("APPROVAL_REJECTED"), (Outcome.REJECTED, "APPROVAL_REJECTED")),
        (Outcome.SUCCEEDED, None, None),
    ],
)
def test_how_a_job_ended_may_be_told_after_the_stop(outcome, refused, told):
    """Once, and never as a success: what had not succeeded by then was stopped."""
    approval = Approval(T0, at(9), JobStatus.REJECTED, failure=refused) if refused else None
    local = after(replace(a_local_job(), approval=approval), StopRequested(at(1), None, None, "n2"))
    assert local.ending is None
    local = after(local, StopRequested(at(2), None, Ending(outcome, at(2), Failure("STOPPED")), "n2"))
    ending = local.ending
    assert (None if ending is None else (ending.outcome, ending.failure.reason)) == told
    if told:
        assert after(local, StopRequested(at(3), None, Ending(Outcome.FAILED, at(3)), "n2")) == local
