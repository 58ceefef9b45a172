"""Why a job, task or run has not ended: each has a reason, a beginning and a next check."""

from dataclasses import dataclass, replace

import pytest

from gateway.domain import approval, local_waiting, waiting
from gateway.domain.approval_rules import Mode, Policy, Verdict
from gateway.domain.execution.messages import Decided
from gateway.domain.job import Acceptance, Job
from gateway.domain.run import Audit, LocalJob
from gateway.domain.scheduling.messages import ReserveAt, StopRequested, SuspendRequested
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.domain.timeouts import RunTiming, Timing
from tests.builders import a_job, a_local_job, a_run, a_spec, at
from tests.domain.calls import A1, A2, C1, C2, POLL_2, S1, X1, X2
from tests.domain.pools import job_with_pool
from tests.domain.script import (
    AcceptAll,
    accept,
    lose_request,
    lose_response,
    play,
    refuse,
    report_task,
)

READY = JobStatus.READY
RUNNING = JobStatus.RUNNING
BUSY = Failure("RESOURCES_BUSY", "needs cpu 12, free 8, held by job-7")
SUSPEND = SuspendRequested("n2", at(6))


def running_job_with(dag: str, **common) -> Job:
    """Return a running job with these common settings."""
    return a_job(
        status=RUNNING,
        spec=a_spec(
            dag,
            job_params={"common": common},
        ),
    )


def job_with_failed_task(**common) -> Job:
    """Return a job ``a -> b; c`` whose task a has just failed at n1."""
    job = running_job_with("a -> b; c", **common)
    failure = Failure("EXIT_1", "no", "n1")
    report = report_task(
        TaskStatus.FAILED,
        "n1",
        seconds=3,
        failure=failure,
    )
    return play(
        job,
        1,
        AcceptAll(2),
        accept(A1, 2),
        accept(A2, 2),
        report,
    )


# Jobs and acceptances of the tables below.
CREATING = play(a_job(), 1, accept(C1, 2))
RESERVING = play(
    CREATING,
    accept(C2, 3, Acceptance(holds=True)),
    4,
)
TASK_RUNS = play(
    a_job("a -> b", RUNNING),
    1,
    accept(A1, 2),
    accept(A2, 2),
)
NODE_AWAY = play(TASK_RUNS, 10, lose_response(POLL_2, 13, "no answer"))
ENDING = play(TASK_RUNS, StopRequested("n1", at(7)), 8)
WAITS_FOR_PERSON = Acceptance(waits=True, within=60.0)


@dataclass(frozen=True)
class JobCase:
    """A job, the reason why it has not ended, words of the message, and the second of its begin."""

    job: Job
    reason: str
    words: str
    since: float


JOBS: dict[str, JobCase] = {
    "the response to the creation is missing": JobCase(
        job=CREATING,
        reason="CREATING",
        words="n2",
        since=1,
    ),
    "the request of the creation is lost": JobCase(
        job=play(CREATING, lose_request(C2, 3)),
        reason="UNREACHABLE",
        words="n2",
        since=3,
    ),
    "a person decides": JobCase(
        job=play(CREATING, accept(C2, 3, WAITS_FOR_PERSON)),
        reason="APPROVAL",
        words="UTC (n2)",
        since=3,
    ),
    "images are pulled": JobCase(
        job=play(
            CREATING,
            accept(C2, 3, replace(WAITS_FOR_PERSON, waits_for="1 image")),
        ),
        reason="PREPARING",
        words="1 image",
        since=3,
    ),
    "a node has too few free resources": JobCase(
        job=play(RESERVING, refuse(ReserveAt("n2"), 5, BUSY)),
        reason="RESOURCES",
        words="held by job-7",
        since=5,
    ),
    "a reservation has no response": JobCase(
        job=RESERVING,
        reason="RESOURCES",
        words="asking for resources at n2",
        since=0,
    ),
    "the start has no response": JobCase(
        job=play(a_job(status=READY), 4),
        reason="STARTING",
        words="n1, n2",
        since=4,
    ),
    "the start has no response of one node": JobCase(
        job=play(
            a_job(status=READY),
            4,
            accept(S1, 5),
        ),
        reason="STARTING",
        words="of n2",
        since=4,
    ),
    "tasks run": JobCase(
        job=TASK_RUNS,
        reason="RUNNING",
        words="a under way",
        since=1,
    ),
    "a node does not answer": JobCase(
        job=NODE_AWAY,
        reason="UNREACHABLE",
        words="no answer of n2 since",
        since=13,
    ),
    "a node does not answer several times": JobCase(
        job=play(
            NODE_AWAY, *(s for t in (20, 40) for s in (t, lose_response(POLL_2, t + 3, "refused")))
        ),
        reason="UNREACHABLE",
        words="(n2: 3 tries, refused)",
        since=13,
    ),
    "the job is suspended": JobCase(
        job=play(TASK_RUNS, SUSPEND),
        reason="SUSPENDED",
        words="n2",
        since=6,
    ),
    "the job is being stopped": JobCase(
        job=ENDING,
        reason="ENDING",
        words="STOPPED",
        since=7,
    ),
    "a stop is not acknowledged": JobCase(
        job=play(
            ENDING,
            accept(X1, 9),
            lose_response(X2, 10),
        ),
        reason="STOP_NOT_ACKNOWLEDGED",
        words="n2",
        since=8,
    ),
}


@pytest.mark.parametrize("case", JOBS.values(), ids=JOBS)
def test_an_open_job_says_what_it_waits_for(case: JobCase):
    wait = waiting.of_job(case.job, Timing())

    assert (wait.reason, wait.since) == (case.reason, at(case.since)), wait
    assert case.words in wait.message
    assert wait.next_check is not None
    assert set(wait.as_dict()) == {"reason", "message", "since", "next_check"}


def test_a_node_that_acknowledged_the_stop_is_not_named():
    case = JOBS["a stop is not acknowledged"]

    assert "n1" not in waiting.of_job(case.job, Timing()).message


def test_an_ended_job_waits_for_nothing():
    job = play(
        ENDING,
        accept(X1, 9),
        accept(X2, 9),
    )

    assert job.outcome is Outcome.STOPPED
    assert waiting.of_job(job, Timing()) is None
    assert set(waiting.of_tasks(job, Timing()).values()) == {None}


@dataclass(frozen=True)
class TaskCase:
    """A task of a job, the reason why it has not ended, and words of the message."""

    job: Job
    task: str
    reason: str
    words: str


TASKS: dict[str, TaskCase] = {
    "its job waits": TaskCase(
        job=CREATING,
        task="a",
        reason="JOB",
        words="CREATING",
    ),
    "the task runs": TaskCase(
        job=TASK_RUNS,
        task="a",
        reason="RUNNING",
        words="n1",
    ),
    "a node refuses to report its state": TaskCase(
        job=play(
            TASK_RUNS, 10, refuse(POLL_2, 13, Failure("STATUS_UNKNOWN", "must be one of READY"))
        ),
        task="a",
        reason="POLL_REFUSED",
        words="n2 refuses to tell the task's state and is asked again: must be one of READY",
    ),
    "its start has no response": TaskCase(
        job=play(a_job("a -> b", RUNNING), 1),
        task="a",
        reason="STARTING",
        words="n1, n2",
    ),
    "the start is due": TaskCase(
        job=a_job("a -> b", RUNNING),
        task="a",
        reason="STARTING",
        words="due",
    ),
    "it needs another task's output": TaskCase(
        job=TASK_RUNS,
        task="b",
        reason="UPSTREAM",
        words="output of a",
    ),
    "one of its nodes is away": TaskCase(
        job=NODE_AWAY,
        task="a",
        reason="UNREACHABLE",
        words="n2 since",
    ),
    "its upstream task has failed": TaskCase(
        job=job_with_failed_task(tolerable_tasks=["a"]),
        task="b",
        reason="UPSTREAM_FAILED",
        words="never starts",
    ),
    "a retry follows": TaskCase(
        job=job_with_failed_task(auto_retries=1),
        task="a",
        reason="RETRY",
        words="attempt 1 failed (EXIT_1)",
    ),
    "its job is suspended": TaskCase(
        job=play(a_job(status=RUNNING), SUSPEND),
        task="a",
        reason="SUSPENDED",
        words="n2",
    ),
    "its job ends": TaskCase(
        job=ENDING,
        task="b",
        reason="JOB",
        words="ENDING",
    ),
    "too many tasks run": TaskCase(
        job=play(running_job_with("a; b", task_parallelism=1), 1),
        task="b",
        reason="PARALLELISM",
        words="no more than 1 of the job's tasks run in parallel; under way: a",
    ),
}


@pytest.mark.parametrize("case", TASKS.values(), ids=TASKS)
def test_an_open_task_says_what_it_waits_for(case: TaskCase):
    wait = waiting.of_tasks(case.job, Timing())[case.task]

    assert wait.reason == case.reason, wait
    assert case.words in wait.message
    assert wait.since >= at(0)
    # A suspended job has nothing to check until its resumption.
    assert wait.next_check or case.reason == "SUSPENDED"


SPEC = a_spec(
    "a",
    {
        "guest": ("n9",),
        "host": ("n1",),
    },
)
NEW_LOCAL_JOB = LocalJob(SPEC, "n1", READY, at(0), "d")
CONTAINER_RUNS = a_local_job(a_run(status=RunStatus.RUNNING))
PERSON_ASKED = approval.await_person(
    NEW_LOCAL_JOB,
    Policy(Mode.PERSON),
    "a person",
    at(1),
)
APPROVED_UNUSED = approval.open_audit(
    NEW_LOCAL_JOB, Audit("q"), Policy(Mode.RULES), Verdict.APPROVE, "a rule", at(1)
)
SUCCEEDED = a_local_job(a_run(status=RunStatus.SUCCESS))

LOCAL_JOBS: dict[str, tuple[LocalJob, str]] = {
    "a person decides": (PERSON_ASKED, "APPROVAL"),
    "the decision is being reported": (
        play(
            PERSON_ASKED,
            Decided(False, "li", "no", at(5)),
            6,
        ),
        "CONFIRMING",
    ),
    "the approved job is not created": (APPROVED_UNUSED, "CREATION"),
    "the job has not been started": (a_local_job(status=READY), "START"),
    "a container runs": (CONTAINER_RUNS, "RUNNING"),
    "the next task has not begun": (SUCCEEDED, "NEXT_TASK"),
    "the scheduling node is silent": (
        play(replace(CONTAINER_RUNS, spec=SPEC), 5000),
        "UNREACHABLE",
    ),
    "the job is cleaned up": (
        replace(SUCCEEDED, status=JobStatus.FINISHED),
        "CLEANING",
    ),
}


@pytest.mark.parametrize(
    ("local", "reason"),
    LOCAL_JOBS.values(),
    ids=LOCAL_JOBS,
)
def test_a_local_job_says_what_it_waits_for(local: LocalJob, reason: str):
    wait = local_waiting.of_local(local, RunTiming())

    assert wait.reason == reason, wait
    assert wait.message
    assert wait.since >= at(0)
    # A node that schedules the job itself shows the next check in the scheduler's record.
    is_scheduler = local.spec.scheduler == local.node
    assert wait.next_check is not None or is_scheduler


ENDED_STATUSES = [status for status in RunStatus if a_run(status=status).over]
OPEN_STATUSES = [status for status in RunStatus if status not in ENDED_STATUSES]


@pytest.mark.parametrize("status", OPEN_STATUSES)
def test_an_open_run_says_what_it_waits_for(status: RunStatus):
    run = a_run(status=status)

    wait = local_waiting.of_runs(a_local_job(run), RunTiming())[run.run_id]

    assert wait.reason
    assert wait.message
    assert wait.since >= at(0)
    assert wait.next_check


@pytest.mark.parametrize("status", ENDED_STATUSES)
def test_an_ended_run_waits_for_nothing(status: RunStatus):
    run = a_run(status=status)

    assert local_waiting.of_runs(a_local_job(run), RunTiming())[run.run_id] is None


def test_a_run_with_a_silent_engine_says_since_when():
    run = a_run(
        status=RunStatus.RUNNING,
        away_at=at(3),
    )

    wait = local_waiting.of_runs(a_local_job(run), RunTiming())[run.run_id]

    assert wait.message.startswith("its engine has not answered since ")


def test_a_run_names_the_runs_of_its_job_that_borrow_the_resources():
    first = a_run("a", limits={"cpu": 3.0})
    second = a_run("b", limits={"cpu": 3.0})
    local = play(job_with_pool(first, second, cpu=4), 1)

    wait = local_waiting.of_runs(local, RunTiming())[second.run_id]

    assert wait.reason == "RESOURCES"
    assert wait.next_check is not None
    assert wait.message == "needs cpu 3 of the job's pool, free cpu 1, borrowed by a"
