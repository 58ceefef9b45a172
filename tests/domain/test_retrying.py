"""Tasks that take too long, and tasks that are tried again."""

from dataclasses import replace

import pytest

from gateway.domain import retries
from gateway.domain.job import Job
from gateway.domain.scheduling import machine
from gateway.domain.scheduling.machine import exclude
from gateway.domain.scheduling.messages import (
    Accepted,
    Lost,
    PollTaskAt,
    Refused,
    StartTaskAt,
    StopRequested,
    StopTaskAt,
    TaskReported,
    TaskStopRequested,
)
from gateway.domain.spec import CallState, Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.timeouts import Timing
from tests.builders import a_job, a_spec, at

TIMING = Timing()
BROKE = Failure("EXIT_1", "it broke")


def a_running_job(dag: str = "a -> b", **common) -> Job:
    """Return a job whose first tasks were just started at both nodes."""
    job = a_job(dag, JobStatus.RUNNING, spec=a_spec(dag, job_params={"common": common}))
    job = replace(job, started_at=at(0))
    job, requests = machine.step(job, at(0))
    for request in requests:
        job = machine.apply(job, Accepted(request, at(0)))
    return job


def heard(job: Job, node: str, status: TaskStatus, seconds: float, failure: Failure | None = None) -> Job:
    news = TaskReported(job.tasks["a"].task_id, node, "", status, at(seconds), failure)
    return machine.apply(job, news)


def requests_at(job: Job, seconds: float, kind: type) -> tuple[Job, list]:
    job, requests = machine.step(job, at(seconds))
    return job, [r for r in requests if isinstance(r, kind)]


def failed(job: Job, failure: Failure = BROKE) -> Job:
    """Let the guest's part fail after a second, while the host's runs."""
    job = heard(job, "n2", TaskStatus.RUNNING, 1)
    return heard(job, "n1", TaskStatus.FAILED, 1, failure)


def test_a_failed_attempt_is_stopped_then_the_next_one_starts_under_another_id():
    job = failed(a_running_job(auto_retries=1, auto_retry_delay=10))
    first = job.tasks["a"].task_id
    assert job.ending is None and job.tasks["a"].status is TaskStatus.RUNNING

    job, stops = requests_at(job, 1, StopTaskAt)
    assert stops == [StopTaskAt("n2", "a", 0)], "the part that is over needs no stop"
    job = machine.apply(job, Accepted(stops[0], at(1)))
    job, starts = requests_at(job, 30, StartTaskAt)
    assert starts == [], "the other party's container still runs"

    job = heard(job, "n2", TaskStatus.FAILED, 31, Failure("STOPPED"))
    job, starts = requests_at(job, 31, StartTaskAt)
    assert starts == [StartTaskAt("n1", "a", 1), StartTaskAt("n2", "a", 1)]
    task = job.tasks["a"]
    assert task.attempt == 1 and task.task_id not in ("", first) and task.failure is None
    (past,) = task.attempts
    assert (past.number, past.task_id, past.failure.reason, past.failure.node) == (0, first, "EXIT_1", "n1")
    assert {note.event for note in job.notes} >= {"attempt failed, another follows", "next attempt"}

    for request in starts:
        job = machine.apply(job, Accepted(request, at(31)))
    for node in ("n1", "n2"):
        job = heard(job, node, TaskStatus.SUCCESS, 40)
    assert job.tasks["a"].status is TaskStatus.SUCCESS and job.ending is None
    assert requests_at(job, 41, StartTaskAt)[1] == [StartTaskAt("n1", "b", 0), StartTaskAt("n2", "b", 0)]


def test_a_node_of_two_roles_is_asked_until_the_second_is_over_too():
    spec = a_spec("a", {"guest": ("n1",), "host": ("n1",)}, job_params={"common": {"auto_retries": 1}})
    job = a_job("a", JobStatus.RUNNING, spec=spec)
    job, (start,) = requests_at(job, 0, StartTaskAt)
    job = machine.apply(job, Accepted(start, at(0)))
    job = machine.apply(job, TaskReported("task_a", "n1", "guest", TaskStatus.FAILED, at(1), BROKE))
    job, (stop,) = requests_at(job, 1, StopTaskAt)
    job = machine.apply(job, Accepted(stop, at(1)))
    assert requests_at(job, 5, PollTaskAt)[1] == [PollTaskAt("n1", "a", ("host",), 0)]
    job = machine.apply(job, TaskReported("task_a", "n1", "host", TaskStatus.FAILED, at(6)))
    assert requests_at(job, 6, StartTaskAt)[1] == [StartTaskAt("n1", "a", 1)]


def test_the_delay_counts_from_the_failure():
    job = failed(a_running_job(auto_retries=1, auto_retry_delay=10))
    job = heard(job, "n2", TaskStatus.FAILED, 2, Failure("STOPPED"))
    assert requests_at(job, 10.9, StartTaskAt)[1] == []
    assert len(requests_at(job, 11, StartTaskAt)[1]) == 2
    assert machine.next_due(job) == at(11)


def test_the_last_failed_attempt_fails_the_task_and_the_job():
    job = failed(a_running_job(auto_retries=1))
    job = heard(job, "n2", TaskStatus.FAILED, 2)
    job, starts = requests_at(job, 2, StartTaskAt)
    for request in starts:
        job = machine.apply(job, Accepted(request, at(2)))
    job = heard(job, "n1", TaskStatus.FAILED, 3, Failure("EXIT_2"))
    assert job.tasks["a"].status is TaskStatus.FAILED
    assert job.ending.failure.reason == "EXIT_2"
    assert [past.failure.reason for past in job.tasks["a"].attempts] == ["EXIT_1"]


def test_a_stop_that_may_still_be_on_its_way_holds_the_next_attempt_back():
    job = failed(a_running_job(auto_retries=1))
    job, (stop,) = requests_at(job, 1, StopTaskAt)
    job = heard(job, "n2", TaskStatus.FAILED, 2)
    assert requests_at(job, 1 + TIMING.call_deadline - 0.1, StartTaskAt)[1] == []
    assert len(requests_at(job, 1 + TIMING.call_deadline, StartTaskAt)[1]) == 2
    answered = machine.apply(job, Accepted(stop, at(2)))
    assert len(requests_at(answered, 2, StartTaskAt)[1]) == 2


def test_a_stop_that_was_made_twice_may_still_arrive_once_more():
    job = failed(a_running_job(auto_retries=1))
    job, (stop,) = requests_at(job, 1, StopTaskAt)
    job = machine.apply(job, Lost(stop, at(2), delivered=True))
    job, _ = requests_at(job, 3, StopTaskAt)
    job = machine.apply(job, Accepted(stop, at(3)))
    job = heard(job, "n2", TaskStatus.FAILED, 3)
    assert requests_at(job, 3 + TIMING.call_deadline - 0.1, StartTaskAt)[1] == []
    assert len(requests_at(job, 3 + TIMING.call_deadline, StartTaskAt)[1]) == 2


@pytest.mark.parametrize("reason", sorted(retries.NOT_WORTH_IT))
def test_what_would_only_happen_again_is_not_tried_again(reason):
    job = failed(a_running_job(auto_retries=5), Failure(reason))
    outcome = Outcome.STOPPED if reason == "STOPPED" else Outcome.FAILED
    assert (job.ending.outcome, job.ending.failure.reason) == (outcome, reason)


def test_a_refused_start_that_is_worth_it_is_tried_again():
    job = a_job("a", JobStatus.RUNNING, spec=a_spec("a", job_params={"common": {"auto_retries": 1}}))
    job, (one, two) = requests_at(job, 0, StartTaskAt)
    job = machine.apply(job, Accepted(one, at(0)))
    job = machine.apply(job, Refused(two, Failure("RESOURCES_BUSY"), at(0)))
    job, stops = requests_at(job, 0, StopTaskAt)
    assert stops == [StopTaskAt("n1", "a", 0)]
    job = machine.apply(job, Accepted(stops[0], at(0)))
    job = heard(job, "n1", TaskStatus.FAILED, 1)
    assert len(requests_at(job, 1, StartTaskAt)[1]) == 2


def test_news_and_answers_of_an_earlier_attempt_change_nothing():
    job = failed(a_running_job(auto_retries=1))
    first = job.tasks["a"].task_id
    job = heard(job, "n2", TaskStatus.FAILED, 2)
    job, _ = requests_at(job, 2, StartTaskAt)
    late = [
        TaskReported(first, "n2", "host", TaskStatus.SUCCESS, at(3)),
        Accepted(StartTaskAt("n1", "a", 0), at(3)),
        Accepted(PollTaskAt("n1", "a", ("guest",), 0), at(3)),
        Refused(StopTaskAt("n2", "a", 0), Failure("JOB_ENDED"), at(3)),
    ]
    for news in late:
        after = machine.apply(job, news)
        assert after.tasks == job.tasks and after.nodes == job.nodes
        assert "ignored" in after.notes[-1].event
    excluded = exclude(job, StartTaskAt("n2", "a", 0), at(3))
    assert excluded.tasks == job.tasks


@pytest.mark.parametrize(
    "ask", [StopRequested("n1", at(3)), TaskStopRequested("a", "n1", at(3))], ids=["job", "task"]
)
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "just begun"])
def test_a_stop_ends_the_wait_for_the_next_attempt(ask, waits):
    job = failed(a_running_job("a; c", auto_retries=1, auto_retry_delay=100 if waits else 0))
    job = heard(job, "n2", TaskStatus.FAILED, 2)
    if not waits:
        job = retries.begun_again(job, "a", at(2))
    job = machine.apply(job, ask)
    job, starts = requests_at(job, 200, StartTaskAt)
    assert [s for s in starts if s.task == "a"] == []
    if isinstance(ask, TaskStopRequested):
        task = job.tasks["a"]
        assert (task.status, task.failure.reason) == (TaskStatus.FAILED, "STOPPED")
    else:
        assert job.ending.outcome is Outcome.STOPPED


def test_a_task_that_takes_too_long_fails_the_job_and_names_where_it_hangs():
    job = a_running_job(task_timeout=5)
    job = heard(job, "n2", TaskStatus.RUNNING, 1)
    assert machine.step(job, at(4.9))[0].ending is None
    assert retries.TimeOut("a") in machine.plan(job, at(5))
    job, _ = machine.step(job, at(5))
    assert (job.ending.outcome, job.ending.failure.reason) == (Outcome.FAILED, "TIMEOUT")
    assert job.tasks["a"].failure == job.ending.failure and job.tasks["a"].status is TaskStatus.FAILED
    assert "n2 (RUNNING)" in job.ending.failure.message and "5 s" in job.ending.failure.message


def test_the_limit_of_a_task_counts_for_each_attempt():
    job = a_running_job(task_timeout=5, auto_retries=1)
    job, stops = requests_at(job, 5, StopTaskAt)
    assert len(stops) == 2 and job.ending is None
    for stop in stops:
        job = heard(machine.apply(job, Accepted(stop, at(6))), stop.node, TaskStatus.FAILED, 6)
    job, starts = requests_at(job, 8, StartTaskAt)
    assert len(starts) == 2
    assert machine.step(job, at(12.9))[0].ending is None
    job, _ = machine.step(job, at(13))
    assert job.ending.failure.reason == "TIMEOUT" and job.tasks["a"].attempts[0].failure.reason == "TIMEOUT"


def test_a_success_that_the_timeout_just_missed_counts():
    job = a_running_job("a", task_timeout=5, auto_retries=1)
    job, _ = requests_at(job, 5, StopTaskAt)
    for node in ("n1", "n2"):
        job = heard(job, node, TaskStatus.SUCCESS, 6)
    job, _ = machine.step(job, at(30))
    assert job.ending.outcome is Outcome.SUCCEEDED and job.tasks["a"].attempt == 0


def test_a_node_that_answers_the_stop_and_goes_on_all_the_same_fails_the_task():
    job = failed(a_running_job(auto_retries=1))
    job, (stop,) = requests_at(job, 1, StopTaskAt)
    job = machine.apply(job, Accepted(stop, at(1)))
    late = 1 + TIMING.stop_timeout
    for seconds in (late - 1, late + 1):
        assert machine.step(job, at(seconds))[0].ending is None, "nobody has asked since"
        job, (poll,) = requests_at(job, seconds, PollTaskAt)
        job = machine.apply(job, Accepted(poll, at(seconds)))
    job, _ = machine.step(job, at(late + 1))
    assert job.ending.failure.reason == "NOT_STOPPED"
    assert "EXIT_1" in job.ending.failure.message and "at n2 (RUNNING)" in job.ending.failure.message


def test_a_job_that_takes_too_long_ends_and_names_what_is_left():
    job = a_running_job(timeout=7)
    assert machine.step(job, at(6.9))[0].ending is None
    job, _ = machine.step(job, at(7))
    assert (job.ending.outcome, job.ending.failure.reason) == (Outcome.FAILED, "TIMEOUT")
    assert "a, b" in job.ending.failure.message
    assert machine.step(job, at(8))[0].ending == job.ending


def test_the_clock_of_a_job_begins_when_every_node_has_started_it():
    job = a_job("a", JobStatus.READY, spec=a_spec("a", job_params={"common": {"timeout": 7}}))
    job, requests = machine.step(job, at(100))
    for request in requests:
        job = machine.apply(job, Accepted(request, at(100)))
    assert job.status is JobStatus.RUNNING and job.started_at == at(100)
    assert machine.step(job, at(106))[0].ending is None


def test_two_planners_give_the_next_attempt_the_same_id():
    job = failed(a_running_job(auto_retries=1))
    one, two = retries.begun_again(job, "a", at(2)), retries.begun_again(job, "a", at(3))
    assert one.tasks["a"].task_id == two.tasks["a"].task_id != job.tasks["a"].task_id
    assert one.tasks["a"].nodes["n1"].start.state is CallState.IDLE
