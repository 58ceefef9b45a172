"""The orphan rule of a participating node: the scheduling node falls silent, forgets the job, or comes back."""

from dataclasses import replace

import pytest

from gateway.domain.execution import machine
from gateway.domain.execution.machine import apply, next_due, plan, step
from gateway.domain.execution.messages import Done, QueryScheduler, Restarted, SchedulerAlive, StopRequested
from gateway.domain.run import LocalJob
from gateway.domain.spec import CallState
from gateway.domain.states import JobStatus, Outcome, RunStatus
from gateway.domain.timeouts import RunTiming
from tests.builders import a_local_job, a_run, a_spec, at

TIMING = RunTiming(orphan=100.0)
ASK_AT = 110.0
"""what is stored of the last news may be a tenth of the limit old"""


def local(status: JobStatus = JobStatus.RUNNING) -> LocalJob:
    """Return a job of n1 that n9 schedules, with one container running."""
    runs = (a_run("a", RunStatus.RUNNING, probe_at=at(10_000)),) if status is JobStatus.RUNNING else ()
    runs = tuple(
        replace(run, reporting=replace(run.reporting, status=run.reporting.status), reported=None) for run in runs
    )
    spec = a_spec("a", {"guest": ("n9",), "host": ("n1",)})
    return a_local_job(*runs, status=status, spec=spec)


def asks(job: LocalJob, seconds: float) -> bool:
    return QueryScheduler() in plan(job, at(seconds), TIMING)


def silence(job: LocalJob, seconds: float) -> LocalJob:
    """Have the question that is due asked, and nobody answer."""
    job, actions = step(job, at(seconds), TIMING)
    assert QueryScheduler() in actions
    return apply(job, Done(QueryScheduler(), at(seconds + 1), final=False, message="cannot connect"), TIMING)


def test_it_asks_only_after_a_long_silence():
    job = local()
    assert not asks(job, ASK_AT - 1) and asks(job, ASK_AT)
    job = apply(job, SchedulerAlive(at(60)), TIMING)
    assert not asks(job, ASK_AT) and asks(job, 60 + ASK_AT)


@pytest.mark.parametrize("status", [JobStatus.PENDING, JobStatus.READY, JobStatus.RUNNING])
def test_without_an_answer_the_job_ends_here_with_the_reason(status: JobStatus):
    job = silence(local(status), ASK_AT)
    assert job.status is status  # it asks once more
    job = silence(job, ASK_AT + 20)
    job, _ = step(job, at(ASK_AT + 21), TIMING)
    assert job.status is (JobStatus.REJECTED if status is JobStatus.PENDING else JobStatus.FINISHED)
    assert job.ending.outcome is Outcome.STOPPED
    assert (job.ending.failure.reason, job.ending.failure.node) == ("SCHEDULER_UNREACHABLE", "n1")
    assert "n9" in job.ending.failure.message and "cannot connect" in job.ending.failure.message
    assert all(run.status is RunStatus.STOPPING for run in job.runs)
    assert not asks(job, 10_000)


def test_it_asks_once_more_a_tenth_of_the_limit_later():
    """A node that had nothing to say for long may be started anew in the very moment when it is asked."""
    job = silence(local(), ASK_AT)
    assert not asks(job, ASK_AT + 10.9) and asks(job, ASK_AT + 11)
    assert "scheduling node does not answer" in [note.event for note in job.notes]
    healed = apply(job, SchedulerAlive(at(ASK_AT + 2)), TIMING)
    assert "scheduling node answers" in [note.event for note in healed.notes] and not asks(healed, ASK_AT + 11)


def test_an_answer_heals_without_a_rerun():
    job = silence(local(), ASK_AT)
    job, _ = step(job, at(ASK_AT + 20), TIMING)
    healed = apply(job, Done(QueryScheduler(), at(ASK_AT + 21)), TIMING)
    assert (healed.status, healed.runs, healed.last_contact) == (job.status, job.runs, at(ASK_AT + 21))
    assert not asks(healed, 2 * ASK_AT) and asks(healed, 2 * ASK_AT + 21)


def test_a_request_of_the_scheduling_node_heals_too():
    job = silence(local(), ASK_AT)
    assert machine.worth_noting(job, at(ASK_AT + 2), TIMING.orphan)
    healed = apply(job, SchedulerAlive(at(ASK_AT + 2)), TIMING)
    assert healed.ask.tries == 0 and not asks(healed, ASK_AT + 60)


def test_news_is_kept_coarsely():
    job = local()
    assert not machine.worth_noting(job, at(9), TIMING.orphan)
    assert machine.worth_noting(job, at(11), TIMING.orphan)


def test_a_restart_asks_again_at_once_what_was_under_way():
    job, _ = step(local(), at(ASK_AT), TIMING)
    assert not asks(job, ASK_AT + 1)
    assert asks(apply(job, Restarted(at(ASK_AT + 1)), TIMING), ASK_AT + 1)


def test_late_answers_after_the_end_change_nothing():
    job, _ = step(local(), at(ASK_AT), TIMING)
    job = apply(job, StopRequested(at(ASK_AT + 1), None, None, "n9"), TIMING)
    for final in (True, False):
        after = apply(job, Done(QueryScheduler(), at(ASK_AT + 2), final=final), TIMING)
        assert (after.status, after.runs, after.last_contact) == (job.status, job.runs, job.last_contact)


def test_a_node_does_not_guard_against_itself():
    job = replace(local(), spec=a_spec("a", {"guest": ("n1",)}))
    assert not asks(job, 10_000) and not machine.watched(job)
    due = next_due(job, TIMING)
    assert due is None or due < at(20_000)
    assert job.ask.state is CallState.IDLE
