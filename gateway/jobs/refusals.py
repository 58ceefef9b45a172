"""The error of a submission that the job's nodes have refused."""

from gateway.domain.job import Job
from gateway.domain.problems import Problem, job_problems_in
from gateway.domain.spec import Failure
from gateway.errors import Refused


def submission_refused(job: Job) -> Refused:
    """Return the error of the submission of a job that ended before it began.

    It has the problems that nodes have named, and the failure's reason and node.
    """
    problems: list[Problem] = []
    for refusal in job.refusals:
        problems += job_problems_in(refusal.message, refusal.node)
    failure = ending_failure(job) or Failure("REFUSED")
    error = Refused(
        _refusals_text(job),
        reason=failure.reason,
        problems=problems,
    )
    error.node = failure.node
    return error


def ending_failure(job: Job) -> Failure | None:
    """Return the failure that ends the job; None if it is not ending, or not by a failure."""
    if job.ending is None:
        return None
    return job.ending.failure


def _refusals_text(job: Job) -> str:
    """Return the refusals of a job's nodes in one line, each with its node and reason.

    Without any, the message of the failure that ended the job.
    """
    failure = ending_failure(job) or Failure("")
    refusals = [_refusal_text(refusal, failure.reason) for refusal in job.refusals]
    if refusals:
        return "; ".join(refusals)
    return failure.message or "the job was stopped before every node accepted it"


def _refusal_text(refusal: Failure, shown_reason: str) -> str:
    """Return a refusal with its node and reason, as far as the reader does not see them anyway.

    The reason is left out if the whole error shows it (``shown_reason``) or the message has it. The
    node is left out if the message begins with it.
    """
    message = refusal.message
    has_reason = refusal.reason == shown_reason or f" {refusal.reason}: " in message
    if not has_reason:
        return f"{refusal.node}: {refusal.reason} {message}".strip()
    if message.startswith(f"{refusal.node} "):
        return message
    return f"{refusal.node}: {message}"
