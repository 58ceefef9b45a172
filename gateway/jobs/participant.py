"""Use cases of a participating node, as its scheduling nodes call them."""

from collections.abc import Sequence
from dataclasses import replace

from gateway.domain import dag as flow
from gateway.domain.dry_run import Item
from gateway.domain.execution.messages import StopRequested
from gateway.domain.execution.runs import merge_runs
from gateway.domain.job import Acceptance
from gateway.domain.quorum import can_spare
from gateway.domain.run import LocalJob
from gateway.domain.spec import Amendment, Ending, JobSpec, NodeId
from gateway.domain.states import JOB, JobStatus, RunStatus, ended, move
from gateway.errors import Conflict, NotAllowed, NotFound
from gateway.jobs.admission import Admission
from gateway.jobs.deletion import Deleting
from gateway.jobs.executor import Executor
from gateway.jobs.job_access import JobAccess, runs_of_role
from gateway.jobs.job_creation import JobCreation
from gateway.jobs.parameter_offers import ParameterOffers
from gateway.jobs.resources import Resources
from gateway.jobs.task_starts import TaskStarts
from gateway.ports import TaskNews
from gateway.runtime.context import NodeContext


class Participant:
    """The jobs in which this node takes part; implements `gateway.ports.ParticipantApi`.

    Every method takes the ``sender`` of the request: a node, or "" for this node.
    """

    def __init__(
        self,
        context: NodeContext,
        access: JobAccess,
        admission: Admission,
        creation: JobCreation,
        offers: ParameterOffers,
        task_starts: TaskStarts,
        executor: Executor,
        resources: Resources,
        deleting: Deleting,
    ) -> None:
        self._store = context.store
        self._clock = context.clock
        self._access = access
        self._admission = admission
        self._creation = creation
        self._offers = offers
        self._task_starts = task_starts
        self._executor = executor
        self._resources = resources
        self._deleting = deleting

    # ---------------------------------------------------------------- creation

    def dry_run(
        self,
        spec: JobSpec,
        sender: NodeId,
    ) -> Sequence[Item]:
        """Report what would happen to a job here, and create nothing."""
        return self._admission.dry_run(spec, sender)

    def ask_first(self, spec: JobSpec, sender: NodeId) -> Acceptance | None:
        """Return None: this node needs no audit before the creation of a job."""
        return None

    def create_job(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        """Validate and store a job; return the conditions under which it is accepted.

        A repeated creation returns the same. Raises `Conflict` for the id of another job.
        """
        return self._creation.create(spec, sender)

    # ---------------------------------------------------------------- resources and start

    def hold(self, job_id: str, sender: NodeId) -> None:
        """Reserve the resources of a job.

        Raises `NotAllowed` for another sender than the scheduling node, and if the job may not use
        its data any more.
        """
        local = self._access.job_for(job_id, sender)
        self._admission.check_start(local, sender)
        self._resources.hold(local)

    def give_back(self, job_id: str, sender: NodeId) -> None:
        """Release the resources of a READY job; raise `Conflict` for a job in another state."""
        local = self._access.job_for(job_id, sender)
        if local.status is not JobStatus.READY:
            raise Conflict(
                f"job {job_id} is {local.status} here; it returns what it holds at its end"
            )
        self._resources.give_back(job_id)

    def start_job(
        self,
        job_id: str,
        sender: NodeId,
        without: Sequence[str] = (),
    ) -> None:
        """Reserve the resources if they are not reserved yet, and begin.

        ``without`` are the labels of excluded parties. If the job runs already, only their
        exclusion is recorded.
        """
        local = self._access.job_for(job_id, sender)
        self._admission.check_start(local, sender)
        if local.status is JobStatus.READY:
            self._resources.hold(local)

        def start(local: LocalJob) -> LocalJob:
            local = self._exclude(local, without, sender)
            if local.status is JobStatus.RUNNING:
                return local
            if ended(JOB, local.status):
                raise Conflict(f"job {job_id} has ended here", reason="JOB_ENDED")
            local = replace(
                local,
                status=move(JOB, local.status, JobStatus.RUNNING),
            )
            return local.with_note(self._clock(), "job RUNNING here", sender)

        if _start_can_wait(local, without):
            start(local)  # raises the errors of the later write
            self._executor.record_response(job_id, start, max_deferred=1)
        else:
            self._store.local_jobs.update(job_id, start)

    def _exclude(
        self,
        local: LocalJob,
        labels: Sequence[str],
        sender: NodeId,
    ) -> LocalJob:
        """Return the job without the parties of these labels.

        Unchanged if each of them was excluded before. Raises `NotAllowed`.
        """
        new_labels = set(labels).difference(local.excluded)
        left_out = tuple(party.label for party in local.spec.parties if party.label in new_labels)
        if not left_out:
            return local
        _check_can_exclude(local, left_out)
        local = replace(local, excluded=(*local.excluded, *left_out))
        return local.with_note(
            self._clock(),
            "continues without",
            sender,
            parties=left_out,
        )

    def offer_parameters(
        self,
        job_id: str,
        offered: Amendment,
        offers_in_force: Sequence[str],
        sender: NodeId,
        amended: JobSpec | None = None,
    ) -> None:
        """Check the job with new parameters, and store them until a task start names them.

        ``offers_in_force`` are the ids of earlier offers. ``amended`` is ignored: this node
        computes the amended job itself. Raises `Conflict` for a job that has ended, `Refused` for
        an id that was never offered, and `Invalid`.
        """
        local = self._access.job_for(job_id, sender)
        self._offers.offer(local, offered, offers_in_force, sender)

    # ---------------------------------------------------------------- tasks

    def start_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
        offers_in_force: Sequence[str] = (),
    ) -> None:
        """Store the runs of a task; the executor starts them afterwards.

        ``offers_in_force`` are ids of offered parameters. A repeated start changes nothing.
        """
        local = self._access.job_for(job_id, sender)
        self._task_starts.start(local, task_id, task_name, sender, offers_in_force)

    def poll_task(
        self,
        task_id: str,
        role: str,
        sender: NodeId,
    ) -> TaskNews:
        """Return the status of a task, with its first failure.

        ``role`` is a role or a label, such as ``host`` or ``host.1``; empty for all roles of this
        node. Raises `NotFound` (TASK_UNKNOWN, ROLE_UNKNOWN).
        """
        local = self._access.job_of_task(task_id, sender)
        self._access.check_sender(local, sender)
        runs = runs_of_role(local, task_id, role)
        if not runs:
            raise NotFound(f"task {task_id} has no role {role} here", reason="ROLE_UNKNOWN")
        failures = [run.failure for run in runs if run.failure]
        return TaskNews(merge_runs(runs), next(iter(failures), None))

    # ---------------------------------------------------------------- end

    def withdraw(
        self,
        job_id: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """End a job here that was audited but not created, in the same way as a created one."""
        self.stop_job(job_id, "", ending, sender)

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """Record the request to stop a job, or one task of it; its runs end afterwards."""
        local = self._access.job_for(job_id, sender)
        if task_name:
            self._stop_task(local, task_name, sender)
        else:
            self._executor.record(
                job_id,
                StopRequested(self._clock(), None, ending, sender),
            )

    def stop_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
    ) -> None:
        """End a task.

        Either ``task_id`` or both ``job_id`` and ``task_name`` are needed. A late stop of an
        attempt that was followed by another one changes nothing.
        """
        if job_id:
            local = self._access.job_for(job_id, sender)  # checks the sender itself
        else:
            local = self._access.job_of_task(task_id, sender)
            self._access.check_sender(local, sender)
        name = task_name or local.runs_of(task_id)[0].task_name
        newest = local.newest_runs(name)
        is_outdated = task_id and newest and newest[0].task_id != task_id
        if not is_outdated:
            self._stop_task(local, name, sender)

    def _stop_task(
        self,
        local: LocalJob,
        task_name: str,
        sender: NodeId,
    ) -> None:
        """End the runs of a task and of its downstream tasks.

        Nothing happens if the task has succeeded: some peers send such a stop to tidy up, and the
        downstream tasks go on. Nothing happens either if the task never started here: its
        downstream tasks can run here only if it succeeded at other nodes.
        """
        if local.spec.dag.get(task_name) is None:
            raise NotFound(f"job {local.id} has no task {task_name}", reason="TASK_UNKNOWN")
        runs = local.newest_runs(task_name)
        if all(run.status is RunStatus.SUCCESS for run in runs):  # also true without runs
            return
        tasks = flow.downstream(local.spec.dag, [task_name])
        self._executor.record(
            local.id,
            StopRequested(self._clock(), tasks, None, sender),
        )

    def delete_job(
        self,
        job_id: str,
        dry_run: bool,
        sender: NodeId,
    ) -> None:
        """Delete the job here for another node; with ``dry_run`` only check whether it may."""
        self._deleting.delete_for(job_id, sender, dry_run)

    def clean_task(
        self,
        job_id: str,
        task_name: str,
        content: str,
        dry_run: bool,
        sender: NodeId,
    ) -> None:
        """Delete outputs of a task here for another node; with ``dry_run`` only check."""
        self._deleting.clean_task_for(job_id, task_name, content, sender, dry_run)


def _start_can_wait(local: LocalJob, without: Sequence[str]) -> bool:
    """Return whether the start of a job may be stored with the next event, mostly its first task.

    That is so at the scheduling node, which shows its own record of the job. If this process ends
    before the write, the start of a task starts the job, too.
    """
    is_own_call = local.spec.scheduler == local.node
    return is_own_call and local.pool is None and not without


def _check_can_exclude(local: LocalJob, left_out: Sequence[str]) -> None:
    """Raise `NotAllowed` unless the job may go on without these parties.

    It may if no task has begun, all excluded parties are at other nodes, and the job's settings
    allow it.
    """
    excluded = (*local.excluded, *left_out)
    nodes = {party.node for party in local.spec.parties if party.label in excluded}
    if local.runs or local.node in nodes or not can_spare(local.spec, nodes):
        names = ", ".join(left_out)
        raise NotAllowed(
            f"job {local.id} was agreed to with {names}, and does not run without (min_parties)"
        )
