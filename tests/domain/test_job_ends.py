"""The end of a job: its cause, and the words that say it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from gateway.domain.job import Job
from gateway.domain.scheduling.machine import next_due, step
from gateway.domain.scheduling.messages import TaskStopRequested
from gateway.domain.spec import CallState, Failure
from gateway.domain.states import JOB, JobStatus, Outcome, TaskStatus, ended
from tests.builders import at
from tests.domain.calls import A1, A2, A3, B2, C1, C2, POLL_1, POLL_2, S1, S2, S3, X1, X2
from tests.domain.scheduled_jobs import (
    A_RUNS_BEFORE_B,
    BEGUN,
    NEW_JOB,
    ONLY_N1,
    STOP_JOB,
    TASK_UNKNOWN,
    THREE_RUN,
    ready_job,
    running_job,
)
from tests.domain.script import (
    GUEST_AND_TWO_HOSTS,
    AcceptAll,
    Step,
    accept,
    lose_request,
    lose_response,
    play,
    refuse,
    report_task,
)

READY = TaskStatus.READY
RUNNING = TaskStatus.RUNNING
SUCCESS = TaskStatus.SUCCESS
FAILED = TaskStatus.FAILED

# n2 does not answer a poll.
N2_SILENT: list[Step] = [
    1,
    lose_request(POLL_2, 2),
]

# n2 pushes the end of its part, then does not answer a poll.
N2_SUCCEEDS_UNPOLLED: list[Step] = [
    1,
    report_task(SUCCESS, pushed=True),
    lose_response(POLL_2, 2),
]


def lose_start_at_node(seconds: float, message: str = "") -> list[Step]:
    """n1 accepts the start of task a and does not know the task 50 s later."""
    unknown = replace(
        TASK_UNKNOWN,
        at=at(seconds + 50),
        message=message,
    )
    return [
        seconds,
        accept(A1, seconds),
        seconds + 50,
        unknown,
    ]


def repeat_lost_starts(message: str = "") -> list[Step]:
    """Five starts in a row are lost at their node."""
    steps: list[Step] = []
    for seconds in range(0, 500, 100):
        steps += lose_start_at_node(seconds, message)
    return steps


FIVE_UNKNOWN_STARTS = repeat_lost_starts()

TEN_REFUSED_POLLS: list[Step] = [AcceptAll(0)]
for seconds in range(20, 201, 20):
    TEN_REFUSED_POLLS += [seconds, refuse(POLL_1, seconds)]

POLLS_REFUSED_NOW_AND_THEN: list[Step] = [AcceptAll(0)]
for number in range(1, 40):
    seconds = 20 * number
    respond = refuse if number % 9 else accept
    POLLS_REFUSED_NOW_AND_THEN += [seconds, respond(POLL_1, seconds)]


@dataclass(frozen=True)
class EndCase:
    """Steps of a job, and its end (status, outcome, reason, node); empty for a job that goes on."""

    job: Job
    steps: Sequence[Step]
    end: str


ENDINGS: dict[str, EndCase] = {
    "the first of two refusals counts": EndCase(
        job=NEW_JOB,
        steps=[
            0,
            refuse(C2, 1),
            refuse(C1, 2, Failure("TOO")),
        ],
        end="REJECTED REJECTED BECAUSE n2",
    ),
    "a node is unreachable for a short time": EndCase(
        job=NEW_JOB,
        steps=[
            0,
            accept(C1, 0),
            lose_request(C2, 0),
            9.9,
        ],
        end="",
    ),
    "a node is unreachable for long": EndCase(
        job=NEW_JOB,
        steps=[
            0,
            accept(C1, 0),
            lose_request(C2, 0),
            9.9,
            lose_request(C2, 9.95),
            10,
        ],
        end="REJECTED REJECTED PEER_UNREACHABLE n2",
    ),
    "an answer is not signed": EndCase(
        job=NEW_JOB,
        steps=[
            0,
            accept(C1, 0),
            replace(lose_request(C2, 0), reason="ANSWER_NOT_SIGNED"),
            10,
        ],
        end="REJECTED REJECTED ANSWER_NOT_SIGNED n2",
    ),
    "the start of a task is refused": EndCase(
        job=running_job("a -> b", roles=GUEST_AND_TWO_HOSTS),
        steps=[
            0,
            accept(A1, 9),
            accept(A3, 9),
            refuse(A2, 9),
        ],
        end="FINISHED FAILED BECAUSE n2",
    ),
    "a task stays unknown to its node": EndCase(
        job=ONLY_N1,
        steps=FIVE_UNKNOWN_STARTS,
        end="FINISHED FAILED TASK_UNKNOWN n1",
    ),
    "every poll is refused": EndCase(
        job=ONLY_N1,
        steps=TEN_REFUSED_POLLS,
        end="FINISHED FAILED POLL_REFUSED n1",
    ),
    "a poll is accepted now and then": EndCase(
        job=ONLY_N1,
        steps=POLLS_REFUSED_NOW_AND_THEN,
        end="",
    ),
    "a node is silent for a short time": EndCase(
        job=THREE_RUN,
        steps=[*N2_SILENT, 601.9],
        end="",
    ),
    "a node is silent for long": EndCase(
        job=THREE_RUN,
        steps=[*N2_SILENT, 602],
        end="FINISHED FAILED UNREACHABLE n2",
    ),
    "a silent node answers a poll again": EndCase(
        job=THREE_RUN,
        steps=[*N2_SILENT, 400, accept(POLL_2, 500), 700],
        end="",
    ),
    "a node is silent after its last report": EndCase(
        job=A_RUNS_BEFORE_B,
        steps=[*N2_SUCCEEDS_UNPOLLED, 5000],
        end="",
    ),
    "a node with a next task is silent for long": EndCase(
        job=A_RUNS_BEFORE_B,
        steps=[
            *N2_SUCCEEDS_UNPOLLED,
            report_task(SUCCESS, "n1", seconds=5000),
            5000,
            lose_request(B2, 5001),
            5601,
        ],
        end="FINISHED FAILED UNREACHABLE n2",
    ),
    "stopped while it is created": EndCase(
        job=NEW_JOB,
        steps=[0, STOP_JOB],
        end="REJECTED STOPPED STOPPED",
    ),
    "stopped before it starts": EndCase(
        job=ready_job(),
        steps=[0, STOP_JOB],
        end="FINISHED STOPPED STOPPED",
    ),
    "stopped": EndCase(
        job=BEGUN,
        steps=[0, STOP_JOB],
        end="FINISHED STOPPED STOPPED",
    ),
}


def accept_until_end(job: Job) -> Job:
    """Return the job after every due request was accepted, until it has ended."""
    while not ended(JOB, job.status):
        due_at = next_due(job)
        assert due_at is not None
        seconds = max((due_at - at(0)).total_seconds(), 0.0)
        job = play(job, AcceptAll(seconds))
    return job


GOING_ON = {name: case for name, case in ENDINGS.items() if not case.end}
ENDED = {name: case for name, case in ENDINGS.items() if case.end}


@pytest.mark.parametrize("case", GOING_ON.values(), ids=GOING_ON)
def test_a_job_goes_on_after_harmless_steps(case: EndCase):
    assert play(case.job, *case.steps).ending is None


@pytest.mark.parametrize("case", ENDED.values(), ids=ENDED)
def test_a_job_ends_with_its_outcome_reason_and_node(case: EndCase):
    job = play(case.job, *case.steps)
    assert job.ending is not None

    job = accept_until_end(job)

    failure = job.ending.failure
    end = f"{job.status} {job.outcome} {failure.reason} {failure.node}"
    assert end.strip() == case.end


def test_the_message_of_a_node_that_does_not_know_its_task_is_kept():
    message = "n1 refuses /task/poll with code 1: no"

    job = play(ONLY_N1, *repeat_lost_starts(message))

    assert job.ending is not None
    assert job.ending.failure is not None
    assert job.ending.failure.message.endswith(f"does not know the task: {message}")


def test_a_failure_at_one_party_ends_the_job_at_all_with_the_same_cause():
    failure = Failure(
        "EXIT_1",
        "exit code 1",
        role="host",
        exit_code=1,
    )
    job = running_job("a -> b", roles=GUEST_AND_TWO_HOSTS, a=RUNNING)

    job = play(job, report_task(FAILED, "n3", failure=failure))

    cause = replace(failure, node="n3", task="a")
    assert job.ending.failure == cause
    assert job.tasks["a"].failure == cause
    job = play(job, AcceptAll(1))
    assert (job.status, job.outcome) == (JobStatus.FINISHED, Outcome.FAILED)
    assert (job.tasks["a"].status, job.tasks["b"].status) == (FAILED, READY)


def test_a_refused_start_names_what_each_party_answered_and_runs_nothing():
    new_job = ready_job(roles=GUEST_AND_TWO_HOSTS)

    job = play(
        new_job,
        0,
        accept(S1, 1),
        refuse(S2, 1),
        accept(S3, 1),
    )

    assert job.ending.failure.message == (
        "not every node started the job: n1 ok; n2 error: BECAUSE of something; n3 unknown"
    )
    assert job.tasks["a"].status is READY


def test_each_node_keeps_the_reason_of_its_own_refusal():
    job = play(
        ready_job(),
        0,
        refuse(S2, 1),
        refuse(S1, 2, Failure("TOO", "late")),
    )

    assert [node.start.reason for node in job.nodes.values()] == ["TOO", "BECAUSE"]


def test_an_unreachable_node_is_named_with_the_last_message():
    job = play(
        NEW_JOB,
        0,
        accept(C1, 0),
        lose_request(C2, 0),
        9.9,
        lose_request(C2, 9.95, "connection refused"),
        10,
    )

    assert job.ending.failure.message == "connection refused"


def test_the_silence_of_a_node_ends_with_the_task_that_was_to_start_there():
    new_job = running_job(
        "a; b",
        task_roles={"b": ("guest",)},
        a={"n1": RUNNING, "n2": READY},
        b=RUNNING,
    )
    job = play(new_job, 1, lose_request(A2, 2))
    assert job.nodes["n2"].unreachable_since == at(2)

    job = play(
        job,
        TaskStopRequested("a", "n1", at(3)),
        AcceptAll(3),
    )

    assert job.nodes["n2"].unreachable_since is None
    job, _ = step(job, at(5000))
    assert job.ending is None


def test_a_success_is_visible_before_the_partner_has_answered_its_stop():
    job = play(
        running_job(),
        AcceptAll(0),
        1,
        report_task(SUCCESS, "n1"),
        report_task(SUCCESS, "n2"),
        2,
    )
    assert not ended(JOB, job.status)

    job = play(job, accept(X1, 2))

    assert job.status is JobStatus.FINISHED
    assert job.outcome is Outcome.SUCCEEDED
    partner = job.nodes["n2"]
    assert partner.stop.state is CallState.SENT
    job = play(job, lose_response(X2, 3))
    _, requests = step(job, at(60))
    assert requests == [X2]


def test_a_failure_is_visible_only_once_every_node_has_stopped():
    job = play(
        running_job(),
        AcceptAll(0),
        1,
        report_task(FAILED, "n2"),
        report_task(SUCCESS, "n1"),
        2,
        accept(X1, 2),
    )
    assert not ended(JOB, job.status)

    job = play(job, accept(X2, 3))

    assert job.status is JobStatus.FINISHED
    assert job.outcome is Outcome.FAILED
