"""Pauses of the scheduling node: retries, polls, and starts that wait for their turn."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.bootstrap.parts import call_timing, run_timing
from gateway.domain.job import Job
from gateway.domain.scheduling.agenda import is_claimed, with_call
from gateway.domain.scheduling.machine import apply, next_due, step
from gateway.domain.scheduling.messages import (
    CreateAt,
    Delayed,
    PollTaskAt,
    ReleaseAt,
    Request,
    ReserveAt,
    StartAt,
    StartTaskAt,
)
from gateway.domain.states import JobStatus, TaskStatus
from gateway.domain.timeouts import Timing
from tests.builders import Roles, a_job, a_spec, at, sent
from tests.domain.calls import A2, C1, POLL_1, POLL_2, X1, X2
from tests.domain.scheduled_jobs import BEGUN, BOTH_RUN, ONLY_N1, STOP_JOB, running_job
from tests.domain.script import (
    GUEST_AND_TWO_HOSTS,
    ONE_GUEST,
    AcceptAll,
    accept,
    due_commands,
    lose_request,
    lose_response,
    play,
    report_task,
)
from tests.inprocess import settings

RUNNING = TaskStatus.RUNNING
STARTS_SENT = play(BEGUN, 0)


def pause_until_due(job: Job, seconds: float) -> float:
    """Return the seconds from a moment to the next due command."""
    due_at = next_due(job)
    assert due_at is not None
    return (due_at - at(seconds)).total_seconds()


# ---------------------------------------------------------------- retries


def test_a_lost_create_is_repeated_after_growing_pauses():
    job = play(a_job(roles=ONE_GUEST), 0)
    pauses = []
    now = 0.0
    for _ in range(4):
        job = play(job, lose_response(C1, now))
        pauses.append(pause_until_due(job, now))
        now += pauses[-1]
        job, requests = step(job, at(now))
        assert requests == [C1]

    assert pauses == [0.2, 0.4, 0.8, 1.6]


JITTER = Timing(jitter=0.25)
JOB_IDS = [f"job-{number}" for number in range(40)]


@pytest.mark.parametrize(
    ("tries", "longest"),
    [(1, 0.4), (10, 10.0)],
)
def test_the_pause_of_each_job_differs_within_the_jitter(tries: int, longest: float):
    pauses = [JITTER.retry(tries, job_id, C1).total_seconds() for job_id in JOB_IDS]
    repeated = [JITTER.retry(tries, job_id, C1).total_seconds() for job_id in JOB_IDS]

    assert len(set(pauses)) == len(JOB_IDS)
    assert all(0.75 * longest <= pause <= longest for pause in pauses)
    assert repeated == pauses, "the pause is the same at each computation"


def test_joint_failures_are_not_retried_together():
    due_moments = set()
    for job_id in JOB_IDS:
        job = play(
            a_job(spec=a_spec(roles=ONE_GUEST, job_id=job_id)),
            0,
        )
        job = apply(job, lose_response(C1, 1), JITTER)
        due_moments.add(next_due(job, JITTER))

    assert len(due_moments) == len(JOB_IDS)


def test_the_jitter_holds_for_calls_and_runs_by_default(tmp_path: Path):
    default_settings = settings(tmp_path)

    assert call_timing(default_settings).jitter == JITTER.jitter
    assert run_timing(default_settings).jitter == JITTER.jitter


def test_a_lost_stop_is_repeated_for_a_limited_time():
    timing = Timing(redeliver_for=100)
    job = play(
        BOTH_RUN,
        STOP_JOB,
        1,
        accept(X1, 2),
        lose_request(X2, 2),
    )
    repeats = 0
    now = 2.0

    while (due_at := next_due(job, timing)) is not None:
        now = max((due_at - at(0)).total_seconds(), now)
        job, _ = step(job, at(now), timing)
        job = apply(job, lose_request(X2, now))
        repeats += 1

    assert 10 < repeats < 30
    assert 100 < now < 120


# ---------------------------------------------------------------- polls


def job_by_sync_type(sync_type: str) -> Job:
    return play(
        running_job(job_params={"common": {"sync_type": sync_type}}),
        AcceptAll(0),
    )


def test_a_node_without_callbacks_is_polled_like_any_other():
    polled = job_by_sync_type("poll")
    called_back = job_by_sync_type("callback")

    assert next_due(called_back) == next_due(polled)
    for seconds in (0.1, 1, 2):
        assert due_commands(called_back, seconds) == due_commands(polled, seconds)


@dataclass(frozen=True)
class PollCase:
    """A node of a long task, and how its polls become rarer.

    ``share`` is the pause before a poll as a share of the running time, ``longest`` in seconds.
    """

    poll: PollTaskAt
    pushes: bool
    share: float
    longest: float


# The scheduling node n1 hears of its own pushes for certain, so it polls itself least of all.
POLLS: dict[str, PollCase] = {
    "another node that pushes": PollCase(
        POLL_2,
        pushes=True,
        share=1.0,
        longest=60,
    ),
    "another node": PollCase(
        POLL_2,
        pushes=False,
        share=0.05,
        longest=60,
    ),
    "the scheduling node that pushes": PollCase(
        POLL_1,
        pushes=True,
        share=1.0,
        longest=600,
    ),
    "the scheduling node": PollCase(
        POLL_1,
        pushes=False,
        share=0.05,
        longest=60,
    ),
}


@pytest.mark.parametrize("case", POLLS.values(), ids=POLLS)
def test_a_task_that_runs_for_hours_is_polled_ever_more_rarely(case: PollCase):
    """A lost push is noticed once the task was silent for twice as long, a polled end 5 % late."""
    node = case.poll.node
    job = play(
        BEGUN,
        AcceptAll(0),
        report_task(RUNNING, node, pushed=case.pushes),
    )
    polls = [1.0]

    while polls[-1] < 4 * 3600:
        due_at = job.tasks["a"].nodes[node].poll.due_at
        assert due_at is not None
        now = (due_at - at(0)).total_seconds()
        job = play(job, now, accept(case.poll, now))
        polls.append(now)

    for before, after in pairwise(polls):
        running_time = before - 1
        assert after - before <= max(2.0, case.share * running_time) + 0.001
    assert polls[-1] - polls[-2] == case.longest
    assert len(polls) - 1 < 400


def test_polls_follow_at_growing_pauses():
    spec = a_spec(
        "a",
        {"guest": ("n2",)},
        scheduler="n1",
    )
    job = play(
        a_job(status=JobStatus.RUNNING, spec=spec),
        AcceptAll(0),
    )
    pauses = []
    now = 0.0
    for _ in range(8):
        pause = pause_until_due(job, now)
        pauses.append(round(pause, 3))
        now += pause
        job, [request] = step(job, at(now))
        job = play(job, accept(request, now))

    assert pauses == [0.05, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]


def test_the_scheduling_nodes_own_part_is_polled_seldom():
    assert next_due(play(ONLY_N1, AcceptAll(0))) == at(2)


def job_with_rare_polls(roles: Roles) -> Job:
    """Return a job that was polled every 3 s for half a minute."""
    polls = [AcceptAll(3 * number) for number in range(12)]
    return play(running_job(roles=roles), *polls)


def test_news_of_a_node_makes_its_polls_frequent_again():
    job = play(job_with_rare_polls(GUEST_AND_TWO_HOSTS), report_task(RUNNING, seconds=40))

    assert POLL_2 in due_commands(job, 40.1)
    polled_job = play(job, AcceptAll(40))
    assert PollTaskAt("n3", "a", ("host",)) not in due_commands(polled_job, 40.1)


def test_a_lost_poll_is_repeated_soon():
    job = play(job_with_rare_polls({"guest": ("n9",)}), 60)

    job = play(
        job,
        lose_request(PollTaskAt("n9", "a", ("guest",)), 60),
    )

    assert next_due(job) <= at(60.5)


# ---------------------------------------------------------------- starts that wait for their turn


def test_a_start_that_waited_for_its_turn_counts_from_when_it_is_sent():
    call_deadline = Timing().call_deadline

    job = play(
        STARTS_SENT,
        Delayed(A2, at(0), at(10)),
    )

    assert is_claimed(job, A2, at(10))
    assert "n2" not in {request.node for request in due_commands(job, 10 + call_deadline - 0.1)}
    assert POLL_2 in due_commands(job, 10 + call_deadline)
    assert not is_claimed(job, replace(A2, attempt=1), at(10))


def test_a_start_claimed_by_another_process_is_not_sent():
    job = play(
        STARTS_SENT,
        Delayed(A2, at(-20), at(1.5)),
    )

    assert not is_claimed(job, A2, at(1.5))


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (CreateAt("n2"), JobStatus.PENDING),
        (StartAt("n2"), JobStatus.READY),
        (ReserveAt("n2"), JobStatus.READY),
        (ReleaseAt("n2"), JobStatus.READY),
        (StartTaskAt("n2", "a"), JobStatus.RUNNING),
    ],
)
def test_a_request_that_waited_until_the_job_was_stopped_is_not_sent(
    command: Request, status: JobStatus
):
    job = with_call(a_job("a", status), command, sent(0))
    assert is_claimed(job, command, at(0))

    job = play(
        job,
        STOP_JOB,
        Delayed(command, at(0), at(2)),
    )

    assert not is_claimed(job, command, at(2))
    assert command not in due_commands(job, 1000)
