"""Access to the scheduling node of a job, from any node that knows the job."""

from gateway.domain.job import Job
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec
from gateway.errors import NotFound
from gateway.ports import SchedulerApi
from gateway.runtime.context import Peers, current_trace
from gateway.store.store import Store


def scheduler_api(
    store: Store,
    peers: Peers,
    job_id: str,
    record: Job | LocalJob | None,
) -> SchedulerApi:
    """Return the API of a job's scheduling node: this node's own, or a client of another node.

    ``record`` is this node's record of the job; None if the job was only submitted from here.
    Raises `NotFound` for a job that this node knows nothing of.
    """
    if record is not None:
        return peers.scheduler(record.spec.scheduler, record.spec.protocol)
    node = store.scheduler_of(job_id)  # only known for jobs submitted from here
    if node is None:
        raise NotFound(
            f"no job {job_id} was submitted, is scheduled or runs here", reason="JOB_UNKNOWN"
        )
    # The record of the submission has no protocol. The node's route decides whether it speaks
    # another protocol than this one, which is the usual one.
    return peers.scheduler(node, "bfia")


def trace_of(record: Job | LocalJob | None) -> str:
    """Return the trace id of a job; without a record of the job, the id of the current request."""
    if record is None:
        return current_trace()
    return record.spec.trace_id


def check_task(spec: JobSpec, name: str) -> None:
    """Raise `NotFound` if the job has no task of this name."""
    if spec.dag.get(name) is None:
        raise NotFound(f"job {spec.job_id} has no task {name}", reason="TASK_UNKNOWN")
