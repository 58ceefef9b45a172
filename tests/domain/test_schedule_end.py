"""What the scheduling node decides of a job's end."""

from dataclasses import replace
from itertools import combinations_with_replacement

import pytest

from gateway.domain.dag import Dag
from gateway.domain.scheduling.machine import apply, next_due, step
from gateway.domain.scheduling.messages import (
    Accepted,
    Lost,
    PollTaskAt,
    Refused,
    StartTaskAt,
    StopAt,
    StopRequested,
    TaskStopRequested,
)
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.timeouts import Timing
from tests.builders import a_job, at
from tests.domain.scheduled import FAILED, NO, READY, RUNNING, SUCCESS, THREE, after, answered, claimed, due, heard


def test_a_failure_at_one_party_ends_the_job_at_all_with_the_same_words():
    job = a_job("a -> b", JobStatus.RUNNING, roles=THREE, a=RUNNING)
    failure = Failure("EXIT_1", "exit code 1", role="host", exit_code=1)
    job, requests = step(after(job, heard(FAILED, "n3", failure=failure)), at(1))
    assert requests == [StopAt("n1"), StopAt("n2"), StopAt("n3")]
    assert job.ending.failure == replace(failure, node="n3", task="a")
    assert job.tasks["a"].failure == job.ending.failure
    job = after(job, *(Accepted(r, at(2)) for r in requests))
    assert (job.status, job.outcome) == (JobStatus.FINISHED, Outcome.FAILED)
    assert (job.tasks["a"].status, job.tasks["b"].status) == (FAILED, READY)


def test_a_failure_of_another_task_stops_what_runs_beside_it():
    job = a_job("a; b", JobStatus.RUNNING, a=RUNNING, b=RUNNING)
    job = answered(after(job, heard(FAILED, "n1", "a")), 1)
    assert job.outcome is Outcome.FAILED
    assert (job.tasks["b"].status, job.tasks["b"].failure.reason) == (FAILED, "STOPPED")


def test_the_last_success_ends_the_job_and_closes_it_everywhere():
    job = a_job("a -> b", JobStatus.RUNNING, a=SUCCESS, b={"n1": SUCCESS, "n2": RUNNING})
    job, requests = step(after(job, heard(SUCCESS, "n2", "b")), at(1))
    assert requests == [StopAt("n1"), StopAt("n2")]
    job = after(job, Accepted(StopAt("n1"), at(2)))
    assert (job.status, job.progress) == (JobStatus.RUNNING, 99)
    job = after(job, Accepted(StopAt("n2"), at(2)))
    assert (job.status, job.outcome, job.progress) == (JobStatus.FINISHED, Outcome.SUCCEEDED, 100)


@pytest.mark.parametrize(
    ("status", "final"),
    [
        (JobStatus.PENDING, JobStatus.REJECTED),
        (JobStatus.READY, JobStatus.FINISHED),
        (JobStatus.RUNNING, JobStatus.FINISHED),
    ],
)
def test_a_stop_ends_a_job_wherever_it_is(status, final):
    job = answered(after(claimed(a_job(status=status), 0), StopRequested("n1", at(1), "enough")), 13)
    assert (job.status, job.outcome) == (final, Outcome.STOPPED)
    assert (job.ending.by, job.ending.failure.reason, job.ending.failure.message) == ("n1", "STOPPED", "enough")


def test_a_stop_before_anything_was_sent_needs_nobody():
    job = after(a_job(), StopRequested("n1", at(1)))
    assert (job.status, job.outcome, next_due(job)) == (JobStatus.REJECTED, Outcome.STOPPED, None)


MULTISETS = [m for n in range(5) for m in combinations_with_replacement(TaskStatus, n)]


@pytest.mark.parametrize("statuses", MULTISETS, ids=lambda m: "+".join(m) or "no task")
def test_how_a_job_ends_follows_from_its_tasks(statuses):
    names = [f"t{i}" for i in range(len(statuses))]
    parts = {name: {"n1": status, "n2": status} for name, status in zip(names, statuses, strict=True)}
    job = a_job("; ".join(names) if names else Dag(()), JobStatus.RUNNING, **parts)
    tasks = {name: replace(job.tasks[name], status=READY) for name in names}
    job = claimed(replace(job, tasks=tasks))
    if FAILED in statuses:
        expected = Outcome.FAILED
    else:
        expected = Outcome.SUCCEEDED if statuses and set(statuses) == {SUCCESS} else None
    assert (job.ending.outcome if job.ending else None) is expected
    assert job.status is JobStatus.RUNNING


def test_how_a_job_ends_is_decided_once():
    job = after(a_job(status=JobStatus.RUNNING, a=RUNNING), heard(FAILED, "n1"))
    first = job.ending
    assert after(job, StopRequested("n1", at(2)), heard(FAILED, "n2", seconds=3)).ending == first
    stopped = after(a_job(status=JobStatus.RUNNING, a=RUNNING), StopRequested("n1", at(2)))
    assert after(stopped, heard(FAILED, "n1", seconds=3)).ending == stopped.ending


def test_after_the_decision_to_end_only_stops_are_sent():
    job = a_job("a; b", JobStatus.RUNNING, roles=THREE, a={"n1": FAILED})
    job = after(job, StopRequested("n1", at(1)))
    for second in (1, 12, 24, 600, 10_000):
        assert {type(c) for c in due(job, second)} == {StopAt}


def test_a_stop_waits_for_a_start_that_may_still_arrive():
    job = after(claimed(a_job(status=JobStatus.RUNNING)), StopRequested("n1", at(1)))
    for lost in (job, after(job, *(Lost(StartTaskAt(n, "a"), at(2), True) for n in ("n1", "n2")))):
        assert due(lost, 11.9) == []
        assert due(lost, 12) == [StopAt("n1"), StopAt("n2")]


def test_a_stop_that_is_lost_is_repeated_until_it_is_acknowledged_even_after_the_end():
    job = claimed(after(a_job(status=JobStatus.RUNNING, a=RUNNING), StopRequested("n1", at(1))), 1)
    job = after(job, Accepted(StopAt("n1"), at(2)), Lost(StopAt("n2"), at(2), delivered=False))
    assert job.status is JobStatus.FINISHED
    assert due(job, 3) == [StopAt("n2")]
    job = after(claimed(job, 3), Accepted(StopAt("n2"), at(4)))
    assert (next_due(job), due(job, 10_000)) == (None, [])


def test_a_stop_is_not_repeated_for_ever():
    job = claimed(after(a_job(status=JobStatus.RUNNING, a=RUNNING), StopRequested("n1", at(1))), 1)
    repeats, now = 0, 2.0
    job = after(job, Accepted(StopAt("n1"), at(2)), Lost(StopAt("n2"), at(2), delivered=False))
    timing = Timing(redeliver_for=100)
    while (when := next_due(job, timing)) is not None:
        now = max((when - at(0)).total_seconds(), now)
        job = apply(step(job, at(now), timing)[0], Lost(StopAt("n2"), at(now), delivered=False))
        repeats += 1
    assert 10 < repeats < 30
    assert 100 < now < 120


def test_a_node_that_refuses_the_stop_is_not_asked_again():
    job = claimed(after(a_job(status=JobStatus.RUNNING, a=RUNNING), StopRequested("n1", at(1))), 1)
    job = after(job, Accepted(StopAt("n1"), at(2)), Refused(StopAt("n2"), NO, at(2)))
    assert (job.status, next_due(job)) == (JobStatus.FINISHED, None)


def test_a_hung_node_delays_neither_the_stops_of_the_others_nor_the_conclusion():
    job = a_job(status=JobStatus.RUNNING, roles=THREE, a=RUNNING)
    job = claimed(job, 1)
    job = after(
        job, Lost(PollTaskAt("n3", "a", ("host",)), at(11), delivered=True), heard(FAILED, "n2", seconds=12)
    )
    assert {StopAt("n1"), StopAt("n2")} <= set(due(job, 12))
    job = claimed(job, 12)
    job = after(job, Accepted(StopAt("n1"), at(12)), Accepted(StopAt("n2"), at(12)))
    assert (job.status, job.outcome) == (JobStatus.FINISHED, Outcome.FAILED)
    assert due(job, 30) == [StopAt("n3")]


def test_a_node_that_is_silent_for_too_long_fails_the_job():
    job = claimed(a_job(status=JobStatus.RUNNING, roles=THREE, a=RUNNING), 1)
    job = after(job, Lost(PollTaskAt("n2", "a", ("host",)), at(2), delivered=False))
    assert step(job, at(601.9))[0].ending is None
    job, requests = step(job, at(602))
    assert (job.ending.outcome, job.ending.failure.reason) == (Outcome.FAILED, "UNREACHABLE")
    assert job.ending.failure.node == "n2"
    assert requests == [StopAt("n1"), StopAt("n2"), StopAt("n3")]


@pytest.mark.parametrize(
    "sign", [Accepted(PollTaskAt("n2", "a", ("host",)), at(500)), heard(SUCCESS, "n2", seconds=500, pushed=True)]
)
def test_any_sign_of_life_begins_the_silence_anew(sign):
    job = claimed(a_job(status=JobStatus.RUNNING, roles=THREE, a=RUNNING), 1)
    job = after(job, Lost(PollTaskAt("n2", "a", ("host",)), at(2), delivered=False))
    job = claimed(job, 400)
    assert step(after(job, sign), at(700))[0].ending is None


def test_a_node_of_which_nothing_is_asked_any_more_is_not_silent():
    """Its part was told just before a question to it was lost: the other party may go on for hours."""
    late = Lost(PollTaskAt("n2", "a", ("host",)), at(2), delivered=True)
    job = claimed(a_job("a -> b", status=JobStatus.RUNNING, a=RUNNING), 1)
    job = after(job, heard(SUCCESS, "n2", pushed=True), late)
    assert job.nodes["n2"].unreachable_since is None and not [n for n in job.notes if n.event == "unreachable"]
    assert step(job, at(5000))[0].ending is None

    job = claimed(after(job, heard(SUCCESS, "n1", seconds=5000)), 5000)  # and asked again, its silence begins anew
    job = after(job, Lost(StartTaskAt("n2", "b"), at(5001), delivered=False))
    assert step(job, at(5600))[0].ending is None
    assert step(job, at(5601))[0].ending.failure.reason == "UNREACHABLE"


def test_the_silence_of_a_node_ends_with_the_task_that_was_to_start_there():
    begun = {"a": {"n1": RUNNING, "n2": READY}, "b": RUNNING}
    job = claimed(a_job("a; b", status=JobStatus.RUNNING, task_roles={"b": ("guest",)}, **begun), 1)
    job = after(job, Lost(StartTaskAt("n2", "a"), at(2), delivered=False))
    assert job.nodes["n2"].unreachable_since == at(2)
    job = answered(after(job, TaskStopRequested("a", "n1", at(3))), 3)
    assert job.nodes["n2"].unreachable_since is None
    assert step(job, at(5000))[0].ending is None
