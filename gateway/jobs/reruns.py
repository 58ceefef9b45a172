"""Use cases of running a job again: at the node that schedules it, and asked at another."""

from datetime import datetime
from uuid import uuid4

from gateway.domain import rerun
from gateway.domain.job import Job
from gateway.domain.rerun import Order, Rerun
from gateway.domain.spec import NodeId
from gateway.domain.states import JOB, ended
from gateway.errors import Conflict, Invalid
from gateway.runtime.context import current_trace, new_trace_id


def planned(old: Job, wanted: Order, by: NodeId) -> Rerun:
    """Return the job that a request makes. Raises `Conflict` for a job that has not ended, `Invalid`."""
    if not ended(JOB, old.status):
        raise Conflict(f"job {old.id} is still {old.status}: stop it, or wait for its end", reason="JOB_NOT_ENDED")
    found, problems = rerun.plan(old, wanted, by, current_trace() or new_trace_id())
    if found is None:
        raise Invalid(problems)
    return found


def new_id() -> str:
    """Return an id for a job; made where the request comes in, so that asking again makes no second job."""
    return f"job-{uuid4().hex}"


def noted(old: Job, made: Rerun, at: datetime) -> Job:
    """Write into the old job's timeline which job runs it again, from where, with which changes."""
    origin = made.origin
    detail = {"new_job": made.spec.job_id, "from": origin.start, "parameters": dict(origin.parameters)}
    return old.noted(at, "run again as another job", origin.by, **detail)
