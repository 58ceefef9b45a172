"""Access of other nodes to the jobs in which this node takes part."""

from collections.abc import Sequence

from gateway.domain.problems import index_of
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import NodeId, is_outside
from gateway.errors import NotAllowed, NotFound
from gateway.jobs.executor import Executor
from gateway.store.records import job_unknown
from gateway.store.store import Store


class JobAccess:
    """Loads this node's records of jobs for the nodes that may see and change them."""

    def __init__(self, store: Store, executor: Executor) -> None:
        self._store = store
        self._executor = executor

    def job_for(self, job_id: str, sender: NodeId) -> LocalJob:
        """Return a job here for its scheduling node or for this node (an empty sender).

        Raises `NotFound` for a sender outside the job, and `NotAllowed` for the job's other nodes.
        The request counts as a contact of the scheduling node.
        """
        local = self._store.local_jobs.get(job_id)
        if is_outside(local.spec, sender):
            raise job_unknown(job_id)
        self.check_sender(local, sender)
        return local

    def job_of_task(self, task_id: str, sender: NodeId = "") -> LocalJob:
        """Return the job that a task id belongs to here.

        Raises `NotFound`, also for a sender outside the job.
        """
        local = None
        job_id = self._store.local_job_of_task(task_id)
        if job_id:
            local = self._store.local_jobs.get(job_id)
        if local is None or is_outside(local.spec, sender):
            raise NotFound(f"no task {task_id} runs here", reason="TASK_UNKNOWN")
        return local

    def check_sender(self, local: LocalJob, sender: NodeId) -> None:
        """Record a contact of the job's scheduling node; raise `NotAllowed` for another sender.

        An empty sender is this node itself.
        """
        if not sender:
            return
        if sender != local.spec.scheduler:
            raise NotAllowed(
                f"only {local.spec.scheduler}, which schedules job {local.id}, may do that"
            )
        self._executor.note_contact(local)


def runs_of_role(
    local: LocalJob,
    task_id: str,
    role: str,
) -> Sequence[Run]:
    """Return the runs of one attempt of a task for a role such as ``guest`` or ``guest.0``.

    ``task_id`` is the id of the attempt. Empty for a role without runs, or with an invalid index.
    An empty role means all roles.
    """
    name, _, index = role.partition(".")
    if not index:
        return local.runs_of(task_id, name, None)
    number = index_of(index)
    if number is None:
        return ()
    return local.runs_of(task_id, name, number)
