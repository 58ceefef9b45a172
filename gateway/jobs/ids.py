"""Ids of jobs and tasks at a participating node."""

from gateway.errors import Conflict
from gateway.store.store import Store


def check_id_unused(store: Store, new_id: str, job_id: str) -> None:
    """Raise `Conflict` if another job uses ``new_id`` here, for itself or for one of its tasks.

    ``new_id`` is the id of the job ``job_id`` itself, or of one of its tasks. Jobs and tasks share
    one name space, as sessions of the channel are named after both.
    """
    using_job = store.local_job_of(new_id)
    if using_job is None or using_job == job_id:
        return
    if new_id in (job_id, using_job):
        raise Conflict(f"{new_id} is the id of another job or task here", reason="JOB_ID_CONFLICT")
    raise Conflict(f"task id {new_id} belongs to another job here", reason="TASK_ID_CONFLICT")
