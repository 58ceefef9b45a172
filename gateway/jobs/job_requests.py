"""Requests of this node's users: submit a job, run it again, stop it, suspend it, amend it.

Each request goes to the job's scheduling node, which is this node or another one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gateway.domain.execution.contact import UNREACHABLE
from gateway.domain.job import Job
from gateway.domain.rerun import Order, RerunResult
from gateway.domain.run import LocalJob
from gateway.domain.spec import JobSpec, NodeId
from gateway.domain.states import JOB, ended
from gateway.errors import GatewayError, PeerUnreachable, Refused
from gateway.jobs.coordinator import Coordinator
from gateway.jobs.executor import Executor
from gateway.jobs.ids import NewId
from gateway.jobs.intake import Intake
from gateway.jobs.job_defaults import JobDefaults
from gateway.jobs.new_jobs import NewJobs
from gateway.jobs.request_timeline import RequestTimeline
from gateway.jobs.scheduling_node import check_task, scheduler_api, trace_of
from gateway.ports import SchedulerApi
from gateway.runtime.context import NodeContext, Peers, by_user, current_trace, traced
from gateway.store import queries

# Names of a timeline's event of a submission; earlier releases wrote the second one.
_SUBMIT = ("submission requested", "asked to submit")


class JobRequests:
    """Passes the requests of this node's users to the jobs' scheduling nodes."""

    def __init__(
        self,
        context: NodeContext,
        coordinator: Coordinator,
        peers: Peers,
        new_jobs: NewJobs,
        intake: Intake,
        new_id: NewId,
        executor: Executor,
        defaults: JobDefaults,
    ) -> None:
        """``new_id`` makes a job id that fits the rules of all the nodes that it is called with."""
        self._store = context.store
        self._clock = context.clock
        self._coordinator = coordinator
        self._peers = peers
        self._new_jobs = new_jobs
        self._intake = intake
        self._executor = executor
        self._defaults = defaults
        self._timeline = RequestTimeline(context.store, context.clock)
        self.new_id = new_id

    # ---------------------------------------------------------------- submission

    def submit(self, spec: JobSpec) -> str:
        """Submit a job of this node's own platform to its scheduling node; return the job's id.

        Settings that the job leaves out get the node's defaults. If another node schedules the job,
        that node may choose a different id.
        """
        completed = self._defaults.complete(spec)
        job_id = self._submit(completed.spec)
        self._timeline.note_defaults(job_id, completed.filled_in)
        return job_id

    def _submit(self, spec: JobSpec) -> str:
        """Submit a complete job, as `submit` does."""
        this_node = self._peers.node
        if spec.scheduler == this_node:
            with self._name_job_in_errors(spec.job_id), traced(spec.trace_id):
                return self._coordinator.submit_job(spec, this_node)
        self._intake.check()
        self._new_jobs.check(spec)
        scheduler = self._peers.scheduler(spec.scheduler, spec.protocol)
        submission = self._submission(
            spec.job_id, spec.flow_id, spec.scheduler, timeline=spec.job_id
        )
        with submission, traced(spec.trace_id):
            job_id = scheduler.submit_job(spec, this_node)
        if job_id != spec.job_id:
            self._adopt_id(job_id, spec)
        return job_id

    def submitters(self, job_id: str) -> set[str]:
        """Return the users of this node who submitted a job; empty if none is known.

        A job that runs another one again was submitted by the user who requested the rerun.
        """
        people = set()
        for entry in self._store.timeline(job_id):
            if entry.event in _SUBMIT:
                people.add(entry.by)
        job = self._store.jobs.find(job_id)
        if job is not None:
            people.add(job.user)
        return people - {""}

    @contextmanager
    def _submission(
        self,
        job_id: str,
        flow_id: str,
        scheduler: NodeId,
        timeline: str,
        **detail: Any,
    ) -> Iterator[None]:
        """Record the submission of a job to another node; remove the record if it is refused.

        The call is made in the body of the ``with`` statement, after the submission is recorded:
        the scheduling node may request an approval here before it responds. The record also stays
        if no response comes, as the job may exist. ``timeline`` is the id of the job whose
        timeline gets the calls.
        """
        self._store.add_submission(job_id, flow_id, scheduler, self._clock())
        self._timeline.note_request(job_id, "submission", **detail)
        with self._name_job_in_errors(job_id):
            try:
                with self._timeline.recorded_calls(timeline):
                    yield
            except PeerUnreachable:
                raise
            except GatewayError:
                self._store.drop_submission(job_id)
                raise

    @contextmanager
    def _name_job_in_errors(self, job_id: str) -> Iterator[None]:
        """Add the job's id to an error if the job may exist despite the error.

        It may exist if this node has a record of it, or if another node did not respond.
        """
        try:
            yield
        except GatewayError as error:
            if isinstance(error, PeerUnreachable) or self._store.record(job_id):
                error.job_id = job_id
            raise

    def _adopt_id(self, job_id: str, spec: JobSpec) -> None:
        """Record the submitted job under the id that the scheduling node chose for it.

        Raises `Refused` if that is the id of another job here.
        """
        self._store.drop_submission(spec.job_id)
        record = self._store.record(job_id)
        if record is not None:
            has_other_scheduler = record.spec.scheduler != spec.scheduler
            if isinstance(record, Job) or has_other_scheduler:
                raise Refused(
                    f"{spec.scheduler} has taken the job under the id {job_id}, "
                    "which is another job's here",
                    reason="JOB_ID_CONFLICT",
                )
        self._store.add_submission(
            job_id,
            spec.flow_id,
            spec.scheduler,
            self._clock(),
        )
        self._timeline.note_request(job_id, "submission")

    # ---------------------------------------------------------------- rerun

    def rerun(
        self,
        job_id: str,
        start: str,
        parameters: Mapping[str, Any],
    ) -> RerunResult:
        """Have the scheduling node of a job run it again from a task on, as a new job.

        With an empty ``start`` it begins with the first task that has not succeeded. Raises
        `NotFound`, `Conflict`, `Invalid`, `Refused`, `PeerUnreachable`, or `NotServed` if the
        scheduling node has no such function.
        """
        self._intake.check()
        record = self._store.record(job_id)
        if record is not None:
            scheduler = record.spec.scheduler
            nodes = record.spec.nodes
        else:
            # "" for a job that is not known here: `_rerun_elsewhere` raises `NotFound` for it.
            scheduler = self._store.scheduler_of(job_id) or ""
            nodes = ()
        order = Order(job_id, self.new_id((scheduler, *nodes)), start, parameters)
        if isinstance(record, Job):
            with self._name_job_in_errors(order.new_job_id):
                result = self._coordinator.rerun_job(order, self._peers.node)
        else:
            result = self._rerun_elsewhere(order, record, scheduler)
        self._timeline.note_request(
            job_id,
            "rerun",
            new_job=result.job_id,
        )
        return result

    def _rerun_elsewhere(
        self, order: Order, record: LocalJob | None, scheduler: NodeId
    ) -> RerunResult:
        """Have the scheduling node of a job run it again, if that is another node.

        ``record`` is this node's record of the job, None without one. The new job may get another
        id than the one in ``order``: nodes of FATE use the id of the old job again. Then the record
        of the submission of the unused id is removed.
        """
        api = scheduler_api(self._store, self._peers, order.job_id, record)
        flow_id = ""
        if record is not None:
            flow_id = record.spec.flow_id
        submission = self._submission(
            order.new_job_id, flow_id, scheduler, timeline=order.job_id, rerun_of=order.job_id
        )
        with submission, traced(current_trace()):
            result = api.rerun_job(order, self._peers.node)
        if result.job_id != order.new_job_id:
            self._store.drop_submission(order.new_job_id)
            self._timeline.note_request(
                result.job_id,
                "submission",
                rerun_of=order.job_id,
            )
        return result

    # ---------------------------------------------------------------- stop

    def stop(self, job_id: str, task_name: str = "") -> None:
        """Have the scheduling node stop a job, or one task of it.

        If that node is silent, this node's part of the job ends here, and the node is informed
        later. Raises `NotFound`, and `PeerUnreachable` for a task or for a job without a part here.
        """
        record = self._store.record(job_id)
        if record is not None and task_name:
            check_task(record.spec, task_name)
        scheduler = scheduler_api(self._store, self._peers, job_id, record)
        if isinstance(record, LocalJob) and not task_name:
            self._stop_local(scheduler, record)
            return
        if isinstance(record, LocalJob) and self._is_over(scheduler, record):
            return
        is_ending = isinstance(record, Job) and record.ending is not None
        if not is_ending:  # the stop of a job that is ending already changes nothing: no note
            self._timeline.note_request(job_id, "stop", task=task_name)
        with traced(trace_of(record)), self._timeline.recorded_calls(job_id):
            scheduler.stop_job(job_id, task_name, self._peers.node)

    def _stop_local(self, scheduler: SchedulerApi, local: LocalJob) -> None:
        """Have another node stop a job that this node takes part in; end it here if it is silent.

        The request is recorded before the call, so that it is known as the cause of the stop that
        the scheduling node then sends.
        """
        try:
            if self._is_over(scheduler, local):
                return
            self._timeline.note_request(
                local.id,
                "stop",
                task="",
            )
            self._executor.record_stop_request(local.id, self._requester())
            with traced(local.spec.trace_id), self._timeline.recorded_calls(local.id):
                scheduler.stop_job(local.id, "", self._peers.node)
        except GatewayError as error:
            if not _is_silence(error):
                self._executor.record_stop_request(local.id, "")  # withdraws the request: refused
                raise
            self._executor.stop_here(local.id, error.message)

    def _requester(self) -> str:
        """Return the name under which the scheduling node sees a request from here.

        That is the person who made it, or this node if the person is not known.
        """
        person = by_user().get("user")
        if person:
            return f"{person} at {self._peers.node}"
        return self._peers.node

    def _is_over(self, scheduler: SchedulerApi, local: LocalJob) -> bool:
        """Return whether a job has ended both here and at its scheduling node.

        The job may go on at its scheduling node if this node was excluded, or has ended its own
        part. Without a response the job counts as ended there, with one exception: if this node
        ended its part because the scheduling node was silent, `PeerUnreachable` is raised.
        """
        if not ended(JOB, local.status):
            return False
        try:
            reported = scheduler.job_status(local.id, self._peers.node)
        except PeerUnreachable:
            if _ended_by_silence(local):
                raise
            return True
        except GatewayError:
            return True
        return ended(JOB, reported.status)

    def cancel_waiting(
        self,
        by: str,
        dry_run: bool,
    ) -> list[str]:
        """Stop all jobs scheduled here that wait and have no started run; return their ids.

        With ``dry_run`` return the ids and stop nothing.
        """
        waiting_jobs = self._store.jobs.in_state(*queries.WAITING)
        if dry_run:
            return waiting_jobs
        cancelled = []
        for job_id in waiting_jobs:
            if self._coordinator.cancel_waiting_job(job_id, by):
                self._timeline.note_request(job_id, "cancellation")
                cancelled.append(job_id)
        return cancelled

    # ---------------------------------------------------------------- suspend, amend

    def suspend(self, job_id: str, on: bool) -> None:
        """Have the scheduling node of a job start no further task; with ``on`` False, resume it."""
        with self._scheduled_by(job_id) as scheduler:
            scheduler.suspend_job(job_id, on, self._peers.node)
        request = "resume"
        if on:
            request = "suspend"
        self._timeline.note_request(job_id, request)

    def amend(
        self,
        job_id: str,
        parameters: Mapping[str, Any],
        reason: str,
    ) -> int:
        """Have the scheduling node give new parameters to tasks that have not begun.

        Returns the version of the job's parameters.
        """
        with self._scheduled_by(job_id) as scheduler:
            version = scheduler.amend_job(job_id, parameters, reason, self._peers.node)
        self._timeline.note_request(
            job_id,
            "parameter change",
            version=version,
            reason=reason,
        )
        return version

    @contextmanager
    def _scheduled_by(self, job_id: str) -> Iterator[SchedulerApi]:
        """Yield the API of a job's scheduling node, under the job's trace id. Raises `NotFound`."""
        record = self._store.record(job_id)
        with traced(trace_of(record)):
            yield scheduler_api(self._store, self._peers, job_id, record)


def _ended_by_silence(local: LocalJob) -> bool:
    """Return whether this node ended its part of a job because the scheduling node was silent."""
    if local.ending is None or local.ending.failure is None:
        return False
    return local.ending.failure.reason == UNREACHABLE


def _is_silence(error: GatewayError) -> bool:
    """Return whether a call about a job failed in a way that leaves its scheduling node silent.

    It does not respond, has no route any more, or has lost or deleted the job.
    """
    if isinstance(error, PeerUnreachable):
        return True
    return error.reason in ("NODE_UNKNOWN", "JOB_UNKNOWN")
