"""A job as the scheduling rules take it on: what is due is claimed, answered, heard of."""

from gateway.domain.job import Job
from gateway.domain.scheduling.machine import apply, plan, step
from gateway.domain.scheduling.messages import Accepted, Event, PollTaskAt, TaskReported
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus, TaskStatus
from gateway.domain.timeouts import Timing
from tests.builders import a_job, at

READY, RUNNING, SUCCESS, FAILED = TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED

TIMING = Timing()

THREE = {"guest": ("n1",), "host": ("n2", "n3")}

NO = Failure("BECAUSE", "of something")


def after(job: Job, *events: Event) -> Job:
    for event in events:
        job = apply(job, event)
    return job


def claimed(job: Job, seconds: float = 0.0) -> Job:
    """Return the job after everything that is due was marked as sent."""
    return step(job, at(seconds))[0]


def due(job: Job, seconds: float = 0.0) -> list:
    return plan(job, at(seconds))


def answered(job: Job, seconds: float = 0.1) -> Job:
    """Claim everything that is due, and have every request answered well."""
    job, requests = step(job, at(seconds))
    return after(job, *(Accepted(request, at(seconds)) for request in requests))


def heard(status: TaskStatus, node: str = "n2", task: str = "a", seconds: float = 1.0, **more) -> TaskReported:
    return TaskReported(f"task_{task}", node, more.pop("role", ""), status, at(seconds), **more)


def same(job: Job, other: Job) -> bool:
    """Whether nothing but the timeline differs."""
    return job == other


def asked_after_a_lost_start(second: float = 0.0) -> Job:
    job = claimed(a_job(status=JobStatus.RUNNING, roles={"guest": ("n1",)}), second)
    return claimed(job, second + 12)


POLL = PollTaskAt("n1", "a", ("guest",))
