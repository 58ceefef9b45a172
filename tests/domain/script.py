"""Scripts: the steps that a test plays on a record of a job, and builders for these steps.

The record is the scheduling node's (`Job`) or a participating node's (`LocalJob`).
"""

from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.domain.approval import ApprovalReported
from gateway.domain.execution import machine as execution
from gateway.domain.execution import messages as execution_messages
from gateway.domain.job import Acceptance, Job
from gateway.domain.run import LocalJob
from gateway.domain.scheduling import machine as scheduling
from gateway.domain.scheduling import messages as scheduling_messages
from gateway.domain.scheduling.messages import Accepted, Lost, Refused, Request, TaskReported
from gateway.domain.spec import Failure
from gateway.domain.states import TaskStatus
from tests.builders import at

Record = TypeVar("Record", Job, LocalJob)

ONE_GUEST = {"guest": ("n1",)}
GUEST_AND_TWO_HOSTS = {
    "guest": ("n1",),
    "host": ("n2", "n3"),
}
REFUSAL = Failure("BECAUSE", "of something")


@dataclass(frozen=True)
class AcceptAll:
    """Every due request of the scheduling node is claimed and accepted at this moment."""

    seconds: float


# An event, `AcceptAll`, or a number: the seconds at which the due commands are claimed.
Step = scheduling_messages.Event | execution_messages.Event | AcceptAll | float


def play(record: Record, *steps: Step) -> Record:
    """Return the record after the steps."""
    for step in steps:
        if isinstance(step, AcceptAll):
            record = _accept_all(record, step.seconds)
        elif isinstance(step, float | int):
            record, _ = machine_of(record).step(record, at(step))
        else:
            record = machine_of(record).apply(record, step)
    return record


def _accept_all(job: Job, seconds: float) -> Job:
    """Return the job after the claim and the acceptance of every due request."""
    job, requests = scheduling.step(job, at(seconds))
    responses = [accept(request, seconds) for request in requests]
    return play(job, *responses)


def due_commands(
    record: Job | LocalJob,
    seconds: float = 0.0,
) -> list[Any]:
    """Return the commands that are due at a moment."""
    return machine_of(record).plan(record, at(seconds))


def due_at_each(
    record: Job | LocalJob,
    moments: Any,
) -> dict[float, list[Any]]:
    """Return the due commands by moment (seconds)."""
    return {seconds: due_commands(record, seconds) for seconds in moments}


def machine_of(record: Job | LocalJob) -> Any:
    """Return the module with the rules for a record."""
    return scheduling if isinstance(record, Job) else execution


def end_reason(record: Job | LocalJob) -> str:
    """Return the reason of the failure that ends the job; empty without an end or a failure."""
    if record.ending is None or record.ending.failure is None:
        return ""
    return record.ending.failure.reason


# ---------------------------------------------------------------- responses and reports


def accept(
    request: Request,
    seconds: float,
    acceptance: Acceptance | None = None,
) -> Accepted:
    """The node accepts a request; ``acceptance`` has its conditions."""
    return Accepted(request, at(seconds), acceptance)


def refuse(
    request: Request,
    seconds: float,
    failure: Failure = REFUSAL,
) -> Refused:
    """The node refuses a request."""
    return Refused(request, failure, at(seconds))


def lose_response(
    request: Request,
    seconds: float,
    message: str = "",
) -> Lost:
    """No response came; the request may have arrived."""
    return Lost(
        request,
        at(seconds),
        delivered=True,
        message=message,
    )


def lose_request(
    request: Request,
    seconds: float,
    message: str = "",
) -> Lost:
    """No response came, and the request certainly never arrived."""
    return Lost(
        request,
        at(seconds),
        delivered=False,
        message=message,
    )


def report_approval(
    node: str,
    seconds: float,
    failure: Failure | None = None,
) -> ApprovalReported:
    """The node reports its approval, or with a failure its refusal."""
    return ApprovalReported(node, at(seconds), failure)


def report_task(
    status: TaskStatus,
    node: str = "n2",
    task: str = "a",
    seconds: float = 1.0,
    role: str = "",
    **fields: Any,
) -> TaskReported:
    """A node reports the state of a task; an empty role means all its roles."""
    return TaskReported(f"task_{task}", node, role, status, at(seconds), **fields)
