"""Why things have not ended: every state says a reason, since when, and when it is looked at next."""

from dataclasses import replace

import pytest

from gateway.domain import approval, waiting
from gateway.domain.approval import Mode, Policy, Verdict
from gateway.domain.execution.messages import Decided
from gateway.domain.job import Acceptance, Job
from gateway.domain.run import Audit, LocalJob
from gateway.domain.scheduling.messages import ReserveAt, StopRequested, SuspendRequested
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from gateway.domain.timeouts import RunTiming, Timing
from tests.builders import a_job, a_local_job, a_run, a_spec, at
from tests.domain.calls import A1, A2, C1, C2, POLL_2, S1, X1, X2
from tests.domain.script import (
    AcceptAll,
    accept,
    lose_request,
    lose_response,
    play,
    refuse,
    report_task,
)
from tests.domain.test_resources import with_pool

READY, RUNNING = JobStatus.READY, JobStatus.RUNNING
BUSY = Failure("RESOURCES_BUSY", "needs cpu 12, free 8, held by job-7")
SUSPEND = SuspendRequested("n2", at(6))


def set_to(dag: str, **common) -> Job:
    return a_job(status=RUNNING, spec=a_spec(dag, job_params={"common": common}))


def failing(**common) -> Job:
    """Return a job ``a -> b; c`` whose a has just failed at n1."""
    broke = report_task(TaskStatus.FAILED, "n1", seconds=3, failure=Failure("EXIT_1", "no", "n1"))
    return play(set_to("a -> b; c", **common), 1, AcceptAll(2), accept(A1, 2), accept(A2, 2), broke)


CREATING = play(a_job(), 1, accept(C1, 2))
HOLDS = play(CREATING, accept(C2, 3, Acceptance(holds=True)), 4)
UNDER_WAY = play(a_job("a -> b", RUNNING), 1, accept(A1, 2), accept(A2, 2))
AWAY = play(UNDER_WAY, 10, lose_response(POLL_2, 13, "no answer"))
ENDING = play(UNDER_WAY, StopRequested("n1", at(7)), 8)
AGREES = Acceptance(waits=True, within=60.0)

JOBS: dict[str, tuple[Job, str, str, float]] = {
    "an answer to the creation is missing": (CREATING, "CREATING", "n2", 1),
    "the creation is lost": (play(CREATING, lose_request(C2, 3)), "UNREACHABLE", "n2", 3),
    "an approval": (play(CREATING, accept(C2, 3, AGREES)), "APPROVAL", "UTC (n2)", 3),
    "images": (
        play(CREATING, accept(C2, 3, replace(AGREES, waits_for="1 image"))),
        "PREPARING",
        "1 image",
        3,
    ),
    "a node has too little free": (
        play(HOLDS, refuse(ReserveAt("n2"), 5, BUSY)),
        "RESOURCES",
        "held by job-7",
        5,
    ),
    "nor has it answered": (HOLDS, "RESOURCES", "asking for resources at n2", 0),
    "the start is not answered": (play(a_job(status=READY), 4), "STARTING", "n1, n2", 4),
    "nor by one": (play(a_job(status=READY), 4, accept(S1, 5)), "STARTING", "of n2", 4),
    "tasks run": (UNDER_WAY, "RUNNING", "a under way", 1),
    "a node does not answer": (AWAY, "UNREACHABLE", "no answer of n2 since", 13),
    "again and again": (
        play(AWAY, *(s for t in (20, 40) for s in (t, lose_response(POLL_2, t + 3, "refused")))),
        "UNREACHABLE",
        "(n2: 3 tries, refused)",
        13,
    ),
    "it is suspended": (play(UNDER_WAY, SUSPEND), "SUSPENDED", "n2", 6),
    "it is being stopped": (ENDING, "ENDING", "STOPPED", 7),
    "a stop is not acknowledged": (
        play(ENDING, accept(X1, 9), lose_response(X2, 10)),
        "STOP_NOT_ACKNOWLEDGED",
        "n2",
        8,
    ),
}


@pytest.mark.parametrize(("job", "reason", "words", "since"), JOBS.values(), ids=JOBS)
def test_what_a_job_waits_for(
    job: Job,
    reason: str,
    words: str,
    since: float,
):
    found = waiting.of_job(job, Timing())
    assert (found.reason, found.since) == (reason, at(since)), found
    assert words in found.message and found.next_check is not None
    assert reason != "STOP_NOT_ACKNOWLEDGED" or "n1" not in found.message
    assert set(found.as_dict()) == {"reason", "message", "since", "next_check"}


def test_an_ended_job_waits_for_nothing():
    job = play(ENDING, accept(X1, 9), accept(X2, 9))
    assert job.outcome is Outcome.STOPPED and waiting.of_job(job, Timing()) is None
    assert set(waiting.of_tasks(job, Timing()).values()) == {None}


TASKS: dict[str, tuple[Job, str, str, str]] = {
    "its job waits": (CREATING, "a", "JOB", "CREATING"),
    "it runs": (UNDER_WAY, "a", "RUNNING", "n1"),
    "how it is, a node refuses to say": (
        play(UNDER_WAY, 10, refuse(POLL_2, 13, Failure("STATUS_UNKNOWN", "must be one of READY"))),
        "a",
        "POLL_REFUSED",
        "n2 refuses to tell the task's state and is asked again: must be one of READY",
    ),
    "its start is not answered": (play(a_job("a -> b", RUNNING), 1), "a", "STARTING", "n1, n2"),
    "it is about to start": (a_job("a -> b", RUNNING), "a", "STARTING", "due"),
    "it needs another's output": (UNDER_WAY, "b", "UPSTREAM", "output of a"),
    "a node of it is away": (AWAY, "a", "UNREACHABLE", "n2 since"),
    "its upstream has failed": (
        failing(tolerable_tasks=["a"]),
        "b",
        "UPSTREAM_FAILED",
        "never starts",
    ),
    "it is tried again": (failing(auto_retries=1), "a", "RETRY", "attempt 1 failed (EXIT_1)"),
    "its job is suspended": (play(a_job(status=RUNNING), SUSPEND), "a", "SUSPENDED", "n2"),
    "its job ends": (ENDING, "b", "JOB", "ENDING"),
    "its turn has not come": (
        play(set_to("a; b", task_parallelism=1), 1),
        "b",
        "PARALLELISM",
        "no more than 1 of the job's tasks run in parallel; under way: a",
    ),
}


@pytest.mark.parametrize(("job", "task", "reason", "words"), TASKS.values(), ids=TASKS)
def test_what_a_task_waits_for(
    job: Job,
    task: str,
    reason: str,
    words: str,
):
    found = waiting.of_tasks(job, Timing())[task]
    assert found.reason == reason, found
    assert words in found.message and found.since >= at(0)
    assert found.next_check or reason == "SUSPENDED", (
        "until somebody resumes it there is nothing to look at"
    )


SPEC = a_spec("a", {"guest": ("n9",), "host": ("n1",)})
NEW, HERE = LocalJob(SPEC, "n1", READY, at(0), "d"), a_local_job(a_run(status=RunStatus.RUNNING))
ASKED = approval.await_person(NEW, Policy(Mode.PERSON), "a person", at(1))
UNUSED = approval.open_audit(NEW, Audit("q"), Policy(Mode.RULES), Verdict.APPROVE, "a rule", at(1))
SUCCEEDED = a_local_job(a_run(status=RunStatus.SUCCESS))

LOCALS: dict[str, tuple[LocalJob, str]] = {
    "an approval": (ASKED, "APPROVAL"),
    "the decision is being told": (
        play(ASKED, Decided(False, "li", "no", at(5)), 6),
        "CONFIRMING",
    ),
    "the approved job is not created": (UNUSED, "CREATION"),
    "it has not been started": (a_local_job(status=READY), "START"),
    "a container runs": (HERE, "RUNNING"),
    "nothing to do here": (SUCCEEDED, "NEXT_TASK"),
    "the scheduling node is silent": (play(replace(HERE, spec=SPEC), 5000), "UNREACHABLE"),
    "it is cleaned up": (replace(SUCCEEDED, status=JobStatus.FINISHED), "CLEANING"),
}


@pytest.mark.parametrize(("local", "reason"), LOCALS.values(), ids=LOCALS)
def test_what_a_job_here_waits_for(local: LocalJob, reason: str):
    found = waiting.of_local(local, RunTiming())
    assert found.reason == reason, found
    assert found.message and found.since >= at(0)
    guards = local.spec.scheduler != local.node  # else its own scheduling side tells when
    assert found.next_check is not None or not guards


@pytest.mark.parametrize("status", list(RunStatus))
def test_what_a_run_waits_for(status: RunStatus):
    run = a_run(status=status)
    found = waiting.of_runs(a_local_job(run), RunTiming())[run.run_id]
    assert (found is None) is run.over
    assert found is None or (
        found.reason and found.message and found.since >= at(0) and found.next_check
    )


def test_a_run_whose_engine_is_silent_says_since_when():
    run = a_run(status=RunStatus.RUNNING, away_at=at(3))
    found = waiting.of_runs(a_local_job(run), RunTiming())[run.run_id]
    assert found.message.startswith("its engine has not answered since ")


def test_a_run_that_waits_for_others_of_its_job_says_so():
    first, second = (a_run(name, limits={"cpu": 3.0}) for name in "ab")
    found = waiting.of_runs(play(with_pool(first, second, cpu=4), 1), RunTiming())[second.run_id]
    assert found.reason == "RESOURCES" and found.next_check is not None
    assert found.message == "needs cpu 3 of the job's pool, free cpu 1, borrowed by a"
