"""A job as the scheduling rules take it on: what is due is claimed, answered, reported."""

from dataclasses import dataclass

from gateway.domain.approval import ApprovalReported
from gateway.domain.job import Acceptance, Job
from gateway.domain.scheduling.machine import apply, plan, step
from gateway.domain.scheduling.messages import Accepted, Event, Lost, PollTaskAt, Refused, Request, TaskReported
from gateway.domain.spec import Failure
from gateway.domain.states import TaskStatus
from gateway.domain.timeouts import Timing
from tests.builders import at

READY, RUNNING, SUCCESS, FAILED = TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.SUCCESS, TaskStatus.FAILED
TIMING = Timing()
ONE = {"guest": ("n1",)}
THREE = {"guest": ("n1",), "host": ("n2", "n3")}
NO = Failure("BECAUSE", "of something")
POLL = PollTaskAt("n1", "a", ("guest",))
POLL_2 = PollTaskAt("n2", "a", ("host",))


@dataclass(frozen=True)
class AllAnswer:
    """Everything that is due is claimed, and every request answered well."""

    seconds: float


Step = Event | AllAnswer | float
"""an event, or the time at which what is due is claimed"""


def after(job: Job, *steps: Step) -> Job:
    for one in steps:
        if isinstance(one, AllAnswer):
            job = answered(job, one.seconds)
        else:
            job = claimed(job, one) if isinstance(one, float | int) else apply(job, one)
    return job


def claimed(job: Job, seconds: float = 0.0) -> Job:
    """Return the job after everything that is due was marked as sent."""
    return step(job, at(seconds))[0]


def due(job: Job, seconds: float = 0.0) -> list:
    return plan(job, at(seconds))


def answered(job: Job, seconds: float = 0.1) -> Job:
    job, requests = step(job, at(seconds))
    return after(job, *(Accepted(request, at(seconds)) for request in requests))


def ok(request: Request, seconds: float, added: Acceptance | None = None) -> Accepted:
    return Accepted(request, at(seconds), added)


def says(node: str, seconds: float, failure: Failure | None = None) -> ApprovalReported:
    return ApprovalReported(node, at(seconds), failure)


def no(request: Request, seconds: float, failure: Failure = NO) -> Refused:
    return Refused(request, failure, at(seconds))


def lost(request: Request, seconds: float, *, delivered: bool = True, message: str = "") -> Lost:
    return Lost(request, at(seconds), delivered, message)


def reported(status: TaskStatus, node: str = "n2", task: str = "a", seconds: float = 1.0, **more) -> TaskReported:
    return TaskReported(f"task_{task}", node, more.pop("role", ""), status, at(seconds), **more)
