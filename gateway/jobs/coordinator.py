"""Use cases of the scheduling node: accept a job, record news of it, change it, stop it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from gateway.domain import approval, rerun
from gateway.domain.approval import ApprovalReported
from gateway.domain.job import Job, Origin
from gateway.domain.rerun import Order, RerunResult
from gateway.domain.run import LocalJob
from gateway.domain.scheduling import messages
from gateway.domain.spec import Amendment, CallState, Failure, JobSpec, NodeId, Note, is_outside
from gateway.domain.states import JOB, JobStatus, Outcome, ended
from gateway.errors import Conflict, GatewayError, Invalid, NotAllowed, NotFound, PeerUnreachable
from gateway.jobs.intake import Intake
from gateway.jobs.new_jobs import NewJobs
from gateway.jobs.refusals import submission_refused
from gateway.jobs.scheduler import Scheduler
from gateway.jobs.scheduling_node import check_task
from gateway.jobs.views import local_view, view
from gateway.ports import JobView, TaskReport
from gateway.runtime.context import NodeContext, Peers, current_trace, new_trace_id
from provider_registry.registry import Registry

ACCEPT_WITHIN = 30.0  # seconds that a submission waits until every node has accepted the job


class Coordinator:
    """The jobs that this node schedules; implements `gateway.ports.SchedulerApi`.

    Every method takes the ``sender`` of the request: a node, or "" for this node.
    """

    def __init__(
        self,
        context: NodeContext,
        scheduler: Scheduler,
        peers: Peers,
        registry: Registry,
        new_jobs: NewJobs,
        intake: Intake,
    ) -> None:
        self._store = context.store
        self._clock = context.clock
        self._scheduler = scheduler
        self._peers = peers
        self._registry = registry
        self._new_jobs = new_jobs
        self._intake = intake

    # ---------------------------------------------------------------- submission

    def submit_job(self, spec: JobSpec, sender: NodeId) -> str:
        """Accept a job from its initiator; return its id once every node has accepted it.

        A node that waits for a person's approval counts as one that has accepted.

        Beyond the port's errors: raises `NotAllowed` for a sender other than the initiator, and
        `PeerUnreachable` if a node has not responded in time (the job may begin all the same).
        """
        if sender not in ("", spec.initiator, self._peers.node):
            raise NotAllowed(
                f"only the initiator {spec.initiator} may submit this job, not {sender}"
            )
        self._take_in(spec, sender)
        return spec.job_id

    def _take_in(
        self,
        spec: JobSpec,
        sender: NodeId,
        origin: Origin | None = None,
    ) -> None:
        """Begin a job and wait until its nodes have decided; raise if it does not begin.

        ``origin`` is the job that this one runs again. A repeated submission waits for the same
        decision as the first one.
        """
        self._check_intake(spec.job_id, sender)
        with self._registry.one_view():
            job = replace(
                self._new_jobs.build_job(spec),
                origin=origin,
            )
        if not self._scheduler.begin(job):  # a job with this id is stored already
            self._check_same_body(job)
        job = self._scheduler.wait(spec.job_id, _is_decided, ACCEPT_WITHIN)
        if job.outcome in (Outcome.REJECTED, Outcome.STOPPED):
            raise submission_refused(job)
        if not _is_decided(job):
            raise _not_answered(job, self._peers.node)

    def _check_same_body(self, job: Job) -> None:
        """Raise `Conflict` if the job with this id was submitted with another body."""
        existing = self._store.jobs.get(job.id)
        if existing.digest != job.digest:
            raise Conflict(
                f"job {job.id} is here already, with another body",
                reason="JOB_ID_CONFLICT",
            )

    def _check_intake(self, job_id: str, sender: NodeId) -> None:
        """Raise if no new jobs are accepted from the sender.

        A repeated submission always passes.
        """
        requester = sender
        if sender == self._peers.node:
            requester = ""  # this node needs no route and has no quota
        try:
            self._intake.check(requester)
        except GatewayError:
            if self._store.jobs.find(job_id) is None:
                raise

    # ---------------------------------------------------------------- rerun

    def rerun_job(self, order: Order, sender: NodeId) -> RerunResult:
        """Plan the new job from the old one's record, and accept it like any other job.

        Raises `Conflict` for a job that has not ended, and `Invalid` for a request with problems.
        """
        old = self._scheduled(order.job_id, sender)
        if not ended(JOB, old.status):
            text = f"job {old.id} is still {old.status}: stop it, or wait for its end"
            raise Conflict(text, reason="JOB_NOT_ENDED")
        trace_id = current_trace() or new_trace_id()
        plan, problems = rerun.plan(old, order, sender or self._peers.node, trace_id)
        if plan is None:
            raise Invalid(problems)
        is_new = self._store.jobs.find(order.new_job_id) is None
        self._take_in(plan.spec, sender, plan.origin)
        if is_new:
            self._note_rerun(old.id, plan.spec.job_id, plan.origin)
        return RerunResult(
            job_id=plan.spec.job_id,
            start=plan.origin.start,
            runs=plan.runs,
            inherits=plan.inherits,
        )

    def _note_rerun(
        self,
        old_id: str,
        new_id: str,
        origin: Origin,
    ) -> None:
        """Note in the timeline of a job that another one runs it again."""
        detail = {
            "new_job": new_id,
            "from": origin.start,
            "parameters": dict(origin.parameters),
        }
        note = Note(self._clock(), "run again as another job", origin.by, detail)

        def add_note(job: Job) -> Job:
            return replace(job, notes=(*job.notes, note))

        self._store.jobs.update(old_id, add_note)

    # ---------------------------------------------------------------- status

    def job_status(self, job_id: str, sender: NodeId) -> JobView:
        """Return the status of a job scheduled here, or of this node's part in another node's job.

        The status of the part goes to the job's other nodes only, without texts that may quote this
        node's data.
        """
        record = self._store.record(job_id)
        is_elsewhere = isinstance(record, LocalJob) and record.spec.scheduler != self._peers.node
        # `isinstance` is repeated for the type checker only.
        if isinstance(record, LocalJob) and is_elsewhere and not is_outside(record.spec, sender):
            return _without_texts(local_view(record, self._store.run_timing))
        return view(self._scheduled(job_id, sender), self._store.timing)

    # ---------------------------------------------------------------- stop

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        sender: NodeId,
        why: Failure | None = None,
    ) -> None:
        """Record the request to stop a job, or one task of it; the nodes are stopped afterwards.

        ``why`` is the failure of the node that requests the stop; None for a stop by people. It is
        not recorded for the stop of a task.
        """
        job = self._scheduled(job_id, sender)
        by = sender or self._peers.node
        now = self._clock()
        if task_name:
            check_task(job.spec, task_name)
            self._scheduler.record(
                job_id,
                messages.TaskStopRequested(task_name, by, now),
            )
            return
        failure = why or Failure("STOPPED")
        self._scheduler.record(
            job_id,
            messages.StopRequested(
                by,
                now,
                failure.message,
                reason=failure.reason,
            ),
        )

    def cancel_waiting_job(self, job_id: str, by: str) -> bool:
        """Stop a job that waits and has no started run; return whether this ended the job.

        Returns False for a job that runs, has ended or was deleted in the meantime.
        """
        text = f"cancelled by {by} while it waited"
        request = messages.StopRequested(
            by,
            self._clock(),
            text,
            if_waiting=True,
        )
        try:
            job = self._scheduler.record(job_id, request)
        except NotFound:
            return False
        # An ending of another time was caused by another request.
        return job.ending is not None and job.ending.at == request.at

    # ---------------------------------------------------------------- suspend, amend

    def suspend_job(
        self,
        job_id: str,
        should_be_suspended: bool,
        sender: NodeId,
    ) -> None:
        """Record the request to suspend a job, or to resume it.

        Raises `Conflict` (JOB_ENDED) if the job has ended, or is about to.
        """
        self._scheduled(job_id, sender)
        request = messages.SuspendRequested(
            by=sender or self._peers.node,
            at=self._clock(),
            on=should_be_suspended,
        )
        job = self._scheduler.record(job_id, request)
        is_suspended = job.suspended is not None
        if is_suspended != should_be_suspended or ended(JOB, job.status):
            raise Conflict(f"job {job_id} has ended, or is about to", reason="JOB_ENDED")

    def amend_job(
        self,
        job_id: str,
        parameters: Mapping[str, Any],
        reason: str,
        sender: NodeId,
    ) -> int:
        """Offer the parameters to every node, then record them if the tasks have not begun.

        Returns the version of the job's parameters, from 1. Raises `Conflict` (JOB_NOT_RUNNING,
        TASK_BEGUN), and `Invalid` for a change that the sender may not make.
        """
        job = self._scheduled(job_id, sender)
        if job.status is not JobStatus.RUNNING or job.ending is not None:
            raise Conflict(f"job {job_id} is {job.status}, not running", reason="JOB_NOT_RUNNING")
        by = sender or self._peers.node
        spec_before = rerun.with_amendments(job.spec, job.amendments)
        begun_tasks = [name for name, task in job.tasks.items() if not task.amendable]
        problems = rerun.amendment_problems(spec_before, parameters, begun_tasks, by)
        if problems:
            raise Invalid(problems)
        amendment = Amendment(
            uuid4().hex,
            parameters,
            by,
            reason,
            self._clock(),
        )
        spec_after = replace(
            rerun.with_amendments(spec_before, [amendment]),
            bundles={},  # the present ones are signed for other parameters
        )
        self._offer_amendment(job, amendment, spec_after)
        job = self._scheduler.record(
            job_id,
            messages.ParametersAgreed(amendment, after=len(job.amendments)),
        )
        if amendment not in job.amendments:
            raise Conflict(
                f"a task of job {job_id} has begun, or other parameters hold meanwhile: "
                "nothing changes",
                reason="TASK_BEGUN",
            )
        return job.amendments.index(amendment) + 1

    def _offer_amendment(
        self,
        job: Job,
        amendment: Amendment,
        spec_after: JobSpec,
    ) -> None:
        """Offer new parameters to the job's nodes.

        Each node gets only the parameters of its own parties. ``spec_after`` is the job with the
        new parameters.
        """
        in_force = [earlier.id for earlier in job.amendments]
        offered_spec = replace(
            job.spec,
            task_params=amendment.parameters,
        )
        for node_job in job.active:
            node = node_job.node
            offered = replace(
                amendment,
                parameters=offered_spec.for_node(node).task_params,
            )
            peer = self._peers.participant(node, job.spec.protocol)
            peer.offer_parameters(
                job.id,
                offered,
                in_force,
                self._peers.node,
                spec_after,
            )

    # ---------------------------------------------------------------- news from other nodes

    def confirm_job(
        self,
        job_id: str,
        failure: Failure | None,
        sender: NodeId,
        audit: str = "",
        permit: str = "",
    ) -> None:
        """Record a node's decision on a job: approval, or refusal with the ``failure``.

        Raises `Conflict` (ALREADY_DECIDED) for the opposite of the node's earlier decision.
        ``audit``, which `SchedulerApi.confirm_job` explains, is not used: the job's id is enough to
        find the job.
        """
        job = self._scheduled(job_id, sender)
        if sender not in job.nodes:
            raise NotAllowed(f"node {sender or '(not named)'} has no part in job {job_id}")
        if failure is not None:
            failure = replace(failure, node=sender)
        event = ApprovalReported(sender, self._clock(), failure, permit)
        problem = approval.why_too_late(job, event)
        if problem:
            raise Conflict(f"job {job_id}: {problem}", reason="ALREADY_DECIDED")
        self._scheduler.record(job_id, event)

    def report_task(self, report: TaskReport, sender: NodeId) -> None:
        """Record news of a task.

        Raises `NotFound` for a task that is not scheduled here and for a sender outside the job,
        and `NotAllowed` for a node of the job without a part in the task.
        """
        unknown = NotFound(f"no task {report.task_id} is scheduled here", reason="TASK_UNKNOWN")
        job_id = self._store.job_of_task(report.task_id)
        if job_id is None:
            raise unknown

        def check_sender(job: Job) -> None:
            if is_outside(job.spec, sender):
                raise unknown
            task = next(task for task in job.tasks.values() if task.has(report.task_id))
            if sender not in task.nodes:
                name = sender or "(not named)"
                raise NotAllowed(f"node {name} has no part in task {report.task_id}")

        event = messages.TaskReported(
            task_id=report.task_id,
            node=sender,
            role=report.role,
            status=report.status,
            at=self._clock(),
            failure=report.failure,
            pushed=True,
        )
        self._scheduler.record_report(job_id, event, check_sender)

    def resources_free(self, job_id: str, sender: NodeId) -> None:
        """Record that a node has free resources; the scheduler then asks it again for the job."""
        self._scheduled(job_id, sender)
        self._scheduler.record(job_id, messages.Freed(sender or self._peers.node, self._clock()))

    # ---------------------------------------------------------------- access

    def _scheduled(self, job_id: str, sender: NodeId) -> Job:
        """Return a job scheduled here. Raises `NotFound`, also for a sender outside the job."""
        job = self._store.jobs.find(job_id)
        if job is None or is_outside(job.spec, sender):
            raise NotFound(f"no job {job_id} is scheduled here", reason="JOB_UNKNOWN")
        return job


def _without_texts(part: JobView) -> JobView:
    """Return a view of a job without messages, which may quote this node's data."""
    tasks = [replace(task, failure=None) for task in part.tasks]
    return replace(
        part,
        failure=None,
        warnings=(),
        waiting=None,
        tasks=tasks,
    )


def _is_decided(job: Job) -> bool:
    """Return whether the result of a submission is known.

    That is the case once the job has left PENDING, or once every node has accepted the job or
    waits for a person's approval.
    """
    if job.status is not JobStatus.PENDING:
        return True
    if job.ending is not None:
        return False  # its outcome follows
    return all(node_job.create.state is CallState.OK for node_job in job.active)


def _not_answered(job: Job, this_node: NodeId) -> PeerUnreachable:
    """Return the error of a submission to which some nodes have not answered; it names them.

    A partner is named before this node: the next step is about the first one.
    """
    nodes = [node_job.node for node_job in job.active if node_job.create.state is not CallState.OK]
    nodes.sort(key=this_node.__eq__)
    names = ", ".join(nodes)
    error = PeerUnreachable(f"not every node has answered within {ACCEPT_WITHIN:g} s: {names}")
    if nodes:
        error.node = nodes[0]
    return error
