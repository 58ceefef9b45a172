"""Why things have not ended: every state says a reason, since when, and when it is looked at next."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.domain import approval, waiting
from gateway.domain.approval import Mode, Policy, Verdict
from gateway.domain.execution import machine
from gateway.domain.execution.messages import Decided
from gateway.domain.job import Acceptance, Job
from gateway.domain.run import Audit, LocalJob
from gateway.domain.scheduling.messages import (
    Accepted,
    CreateAt,
    Lost,
    PollTaskAt,
    Refused,
    ReserveAt,
    StartAt,
    StartTaskAt,
    StopAt,
    StopRequested,
    SuspendRequested,
    TaskReported,
)
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus, Outcome, RunStatus, TaskStatus
from tests.builders import a_job, a_local_job, a_run, a_spec, at
from tests.domain.scheduled import after, claimed
from tests.domain.test_resources import with_pool

READY, RUNNING = JobStatus.READY, JobStatus.RUNNING
BUSY = Failure("RESOURCES_BUSY", "needs cpu 12, free 8, held by job-7")


def creating() -> Job:
    return after(claimed(a_job(), 1), Accepted(CreateAt("n1"), at(2)))


def approving() -> Job:
    return after(creating(), Accepted(CreateAt("n2"), at(3), Acceptance(waits=True, within=60.0)))


def busy() -> Job:
    job = after(creating(), Accepted(CreateAt("n2"), at(3), Acceptance(holds=True)))
    return after(claimed(job, 4), Refused(ReserveAt("n2"), BUSY, at(5)))


def running() -> Job:
    job = claimed(a_job("a -> b", RUNNING), 1)
    return after(job, *(Accepted(StartTaskAt(n, "a"), at(2)) for n in ("n1", "n2")))


def away() -> Job:
    return after(claimed(running(), 10), Lost(PollTaskAt("n2", "a", ("host",)), at(13), True, "no answer"))


def ending() -> Job:
    return claimed(after(running(), StopRequested("n1", at(7))), 8)


def undelivered() -> Job:
    job = after(ending(), Accepted(StopAt("n1"), at(9)), Lost(StopAt("n2"), at(10), delivered=True))
    assert job.outcome is Outcome.STOPPED
    return job


JOBS: dict[str, tuple[Callable[[], Job], str, str, float]] = {
    "an answer to the creation is missing": (creating, "CREATING", "n2", 1),
    "the creation is lost": (
        lambda: after(creating(), Lost(CreateAt("n2"), at(3), False, "no")),
        "UNREACHABLE",
        "n2",
        3,
    ),
    "somebody has to agree": (approving, "APPROVAL", "n2 until", 3),
    "a node has too little free": (busy, "RESOURCES", "held by job-7", 5),
    "the start is not answered": (lambda: claimed(a_job(status=READY), 4), "STARTING", "n1, n2", 4),
    "tasks run": (running, "RUNNING", "a under way", 1),
    "a node does not answer": (away, "UNREACHABLE", "no answer of n2 since", 13),
    "it is suspended": (lambda: after(running(), SuspendRequested("n2", at(6))), "SUSPENDED", "n2", 6),
    "it is being stopped": (ending, "ENDING", "STOPPED", 7),
    "a stop is not acknowledged": (undelivered, "STOP_NOT_ACKNOWLEDGED", "n2", 8),
}


@pytest.mark.parametrize(("make", "reason", "words", "since"), JOBS.values(), ids=JOBS)
def test_what_a_job_waits_for(make: Callable[[], Job], reason: str, words: str, since: float):
    found = waiting.of_job(make())
    assert found is not None
    assert (found.reason, found.since) == (reason, at(since)), found
    assert words in found.message
    assert found.next_check is not None
    assert set(found.as_dict()) == {"reason", "message", "since", "next_check"}


def test_a_silent_node_is_told_with_the_tries_since_and_what_came_of_the_last():
    job = away()
    for second in (20, 40):
        job = after(claimed(job, second), Lost(PollTaskAt("n2", "a", ("host",)), at(second + 3), True, "refused"))
    found = waiting.of_job(job)
    assert found is not None and found.message.endswith("(n2: 3 tries, refused)"), found.message


def test_an_ended_job_waits_for_nothing():
    job = after(ending(), *(Accepted(StopAt(n), at(9)) for n in ("n1", "n2")))
    assert job.outcome is Outcome.STOPPED and waiting.of_job(job) is None
    assert set(waiting.of_tasks(job).values()) == {None}


def stopped_upstream() -> Job:
    common = {"common": {"tolerable_tasks": ["a"]}}
    job = claimed(a_job(status=RUNNING, spec=a_spec("a -> b; c", job_params=common)), 1)
    job = after(job, *(Accepted(StartTaskAt(n, t), at(2)) for n in ("n1", "n2") for t in "ac"))
    return after(
        job, TaskReported("task_a", "n1", "guest", TaskStatus.FAILED, at(3), Failure("EXIT_1", "no", "n1"))
    )


def one_at_a_time() -> Job:
    common = {"common": {"task_parallelism": 1}}
    return claimed(a_job("a; b", RUNNING, spec=a_spec("a; b", job_params=common)), 1)


TASKS: dict[str, tuple[Callable[[], Job], str, str, str]] = {
    "its job waits": (creating, "a", "JOB", "CREATING"),
    "it runs": (running, "a", "RUNNING", "n1"),
    "its start is not answered": (lambda: claimed(a_job("a -> b", RUNNING), 1), "a", "STARTING", "n1, n2"),
    "it is about to start": (lambda: a_job("a -> b", RUNNING), "a", "STARTING", "due"),
    "it needs another's output": (running, "b", "UPSTREAM", "output of a"),
    "a node of it is away": (away, "a", "UNREACHABLE", "n2 since"),
    "its upstream has failed": (stopped_upstream, "b", "UPSTREAM_FAILED", "never starts"),
    "its job is suspended": (
        lambda: after(a_job(status=RUNNING), SuspendRequested("n2", at(6))),
        "a",
        "SUSPENDED",
        "n2",
    ),
    "its job ends": (ending, "b", "JOB", "ENDING"),
    "its turn has not come": (
        one_at_a_time,
        "b",
        "PARALLELISM",
        "no more than 1 of the job's tasks run in parallel",
    ),
}


@pytest.mark.parametrize(("make", "task", "reason", "words"), TASKS.values(), ids=TASKS)
def test_what_a_task_waits_for(make: Callable[[], Job], task: str, reason: str, words: str):
    found = waiting.of_tasks(make())[task]
    assert found is not None
    assert found.reason == reason, found
    assert words in found.message and found.since >= at(0)
    assert found.next_check or reason == "SUSPENDED", "until somebody resumes it there is nothing to look at"


def asked() -> LocalJob:
    spec = a_spec("a", {"guest": ("n9",), "host": ("n1",)})
    return approval.opened(LocalJob(spec, "n1", READY, at(0), "d"), Policy(Mode.PERSON), "a person", at(1))


def refused() -> LocalJob:
    job = machine.apply(asked(), Decided(False, "li", "no", at(5)))
    return machine.step(job, at(6))[0]


def silent() -> LocalJob:
    job = replace(a_local_job(a_run(status=RunStatus.RUNNING)), spec=asked().spec)
    return machine.step(job, at(5000))[0]


def unused() -> LocalJob:
    new = LocalJob(asked().spec, "n1", READY, at(0), "d")
    return approval.asked(new, Audit("q"), Policy(Mode.RULES), Verdict.APPROVE, "a rule", at(1))


LOCALS: dict[str, tuple[Callable[[], LocalJob], str]] = {
    "somebody has to agree": (asked, "APPROVAL"),
    "the decision is being told": (refused, "CONFIRMING"),
    "the approved job is not created": (unused, "CREATION"),
    "it has not been started": (lambda: a_local_job(status=READY), "START"),
    "a container runs": (lambda: a_local_job(a_run(status=RunStatus.RUNNING)), "RUNNING"),
    "nothing to do here": (lambda: a_local_job(a_run(status=RunStatus.SUCCESS)), "NEXT_TASK"),
    "the scheduling node is silent": (silent, "UNREACHABLE"),
    "it is cleaned up": (
        lambda: a_local_job(a_run(status=RunStatus.SUCCESS), status=JobStatus.FINISHED),
        "CLEANING",
    ),
}


@pytest.mark.parametrize(("make", "reason"), LOCALS.values(), ids=LOCALS)
def test_what_a_job_here_waits_for(make: Callable[[], LocalJob], reason: str):
    local = make()
    found = waiting.of_local(local)
    assert found is not None and found.reason == reason, found
    assert found.message and found.since >= at(0)
    guards = local.spec.scheduler != local.node  # else its own scheduling side tells when
    assert found.next_check is not None or not guards


@pytest.mark.parametrize("status", list(RunStatus))
def test_what_a_run_waits_for(status: RunStatus):
    run = a_run(status=status)
    found = waiting.of_runs(a_local_job(run))[run.run_id]
    assert (found is None) is run.over
    assert found is None or (found.reason and found.message and found.since >= at(0) and found.next_check)


def test_a_run_that_waits_for_others_of_its_job_says_so():
    first, second = (a_run(name, limits={"cpu": 3.0}) for name in "ab")
    local, _ = machine.step(with_pool(first, second, cpu=4), at(1))
    found = waiting.of_runs(local)[second.run_id]
    assert found is not None and found.reason == "RESOURCES" and found.next_check is not None
    assert found.message == "needs cpu 3 of the job's pool, free cpu 1, borrowed by a"


def test_the_answer_to_a_start_is_named_by_node():
    job = after(claimed(a_job(status=READY), 4), Accepted(StartAt("n1"), at(5)))
    found = waiting.of_job(job)
    assert found is not None and found.message.endswith("n2")
