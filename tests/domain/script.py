"""A job as the rules take it on, at the scheduling node (`Job`) or at a party (`LocalJob`): a script of steps.

A step is an event, a number (the moment at which what is due is claimed) or `AllAnswer`. The rest are short
names for what scripts are made of.
"""

from dataclasses import dataclass
from typing import TypeVar

from gateway.domain.approval import ApprovalReported
from gateway.domain.execution import machine as execution
from gateway.domain.execution import messages as at_party
from gateway.domain.job import Acceptance, Job
from gateway.domain.run import LocalJob
from gateway.domain.scheduling import machine as scheduling
from gateway.domain.scheduling import messages as at_scheduler
from gateway.domain.scheduling.messages import Accepted, Lost, Refused, Request, TaskReported
from gateway.domain.spec import Failure
from gateway.domain.states import TaskStatus
from tests.builders import at

Record = TypeVar("Record", Job, LocalJob)

ONE, THREE = {"guest": ("n1",)}, {"guest": ("n1",), "host": ("n2", "n3")}
NO = Failure("BECAUSE", "of something")


@dataclass(frozen=True)
class AllAnswer:
    """Everything that is due is claimed, and every request answered well."""

    seconds: float


Step = at_scheduler.Event | at_party.Event | AllAnswer | float


def after(record: Record, *steps: Step) -> Record:
    for one in steps:
        if isinstance(one, AllAnswer):
            record, requests = scheduling.step(record, at(one.seconds))
            record = after(record, *(ok(request, one.seconds) for request in requests))
        elif isinstance(one, float | int):
            record = rules(record).step(record, at(one))[0]
        else:
            record = rules(record).apply(record, one)
    return record


def due(record: Job | LocalJob, seconds: float = 0.0) -> list:
    return rules(record).plan(record, at(seconds))


def rules(record: Job | LocalJob):
    return scheduling if isinstance(record, Job) else execution


def reason(record: Job | LocalJob) -> str:
    """Why the job ends; empty where it does not, or succeeds."""
    return record.ending.failure.reason if record.ending and record.ending.failure else ""


def ok(
    request: Request,
    seconds: float,
    added: Acceptance | None = None,
) -> Accepted:
    return Accepted(request, at(seconds), added)


def no(
    request: Request,
    seconds: float,
    failure: Failure = NO,
) -> Refused:
    return Refused(request, failure, at(seconds))


def lost(
    request: Request,
    seconds: float,
    message: str = "",
) -> Lost:
    return Lost(request, at(seconds), delivered=True, message=message)


def unsent(
    request: Request,
    seconds: float,
    message: str = "",
) -> Lost:
    """No response came, and the request certainly never arrived."""
    return Lost(request, at(seconds), delivered=False, message=message)


def says(
    node: str,
    seconds: float,
    failure: Failure | None = None,
) -> ApprovalReported:
    return ApprovalReported(node, at(seconds), failure)


def reported(
    status: TaskStatus,
    node: str = "n2",
    task: str = "a",
    seconds: float = 1.0,
    **more,
) -> TaskReported:
    return TaskReported(f"task_{task}", node, more.pop("role", ""), status, at(seconds), **more)
