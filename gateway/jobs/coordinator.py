"""Use cases of the scheduling node: accept a job, report on it, record news of it, stop it."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from queue import Empty, Queue
from typing import Any
from uuid import uuid4

from gateway.domain import approval, rerun, run
from gateway.domain.approval import ApprovalReported
from gateway.domain.execution.contact import UNREACHABLE
from gateway.domain.job import Job, Origin
from gateway.domain.rerun import Order, RerunResult
from gateway.domain.run import LocalJob
from gateway.domain.scheduling import messages
from gateway.domain.spec import Amendment, CallState, Failure, JobSpec, NodeId, Note, is_outside
from gateway.domain.states import JOB, JobStatus, Outcome, ended
from gateway.errors import (
    Conflict,
    GatewayError,
    Invalid,
    NotAllowed,
    NotFound,
    PeerUnreachable,
    Refused,
)
from gateway.jobs.executor import Executor
from gateway.jobs.intake import Intake
from gateway.jobs.new_jobs import NewJobs
from gateway.jobs.refusals import submission_refused
from gateway.jobs.scheduler import Scheduler
from gateway.jobs.views import local_view, unanswered_view, view, with_local
from gateway.ports import JobView, SchedulerApi, TaskReport
from gateway.runtime.context import (
    NodeContext,
    Peers,
    by_user,
    current_trace,
    listening,
    new_trace_id,
    traced,
)
from gateway.runtime.lanes import Lanes
from gateway.runtime.shell import notes_of
from gateway.store import queries
from provider_registry.registry import Registry
from route_table.live import LiveRoutes

ANSWER_WITHIN = 30.0  # seconds that a submission waits until every node has accepted the job
LIST_WITHIN = 5.0  # seconds that a list of jobs waits for the status from other nodes

# Timeline events of a submission; earlier releases wrote the second one.
_SUBMIT = ("submission requested", "asked to submit")


class Coordinator:
    """Implements `gateway.ports.SchedulerApi`."""

    def __init__(
        self,
        context: NodeContext,
        scheduler: Scheduler,
        peers: Peers,
        registry: Registry,
        routes: LiveRoutes,
        intake: Intake,
        new_id: Callable[[Iterable[NodeId]], str],
        executor: Executor,
    ) -> None:
        """``new_id`` makes a job id that fits the rules of all the nodes that it is called with."""
        self._store = context.store
        self._clock = context.clock
        self._scheduler = scheduler
        self._peers = peers
        self._registry = registry
        self._new = NewJobs(context, peers, registry, routes)
        self._intake = intake
        self._executor = executor
        self.new_id = new_id

    # ---------------------------------------------------------------- submission

    def check(self, spec: JobSpec) -> list[str]:
        """Return warnings about a job, as far as this node can tell; empty for none.

        Raises `Invalid` with every problem.
        """
        return self._new.check(spec)

    def submit(self, spec: JobSpec) -> str:
        """Submit a job of this node's own platform to its scheduling node; return the job's id.

        If another node schedules the job, that node may choose a different id.
        """
        this_node = self._peers.node
        if spec.scheduler == this_node:
            with self._name_job_in_errors(spec.job_id), traced(spec.trace_id):
                return self.submit_job(spec, this_node)
        self._intake.check()
        self._new.check(spec)
        scheduler = self._peers.scheduler(spec.scheduler, spec.protocol)
        submission = self._submission(
            spec.job_id, spec.flow_id, spec.scheduler, timeline=spec.job_id
        )
        with submission, traced(spec.trace_id):
            job_id = scheduler.submit_job(spec, this_node)
        if job_id != spec.job_id:
            self._adopt_id(job_id, spec)
        return job_id

    def submit_job(self, spec: JobSpec, sender: NodeId) -> str:
        """Accept a job from its initiator; return its id once every node has accepted it.

        Beyond the port's errors: raises `NotAllowed` for a sender other than the initiator, and
        `PeerUnreachable` if a node has not responded in time (the job may begin all the same).
        """
        if sender not in ("", spec.initiator, self._peers.node):
            raise NotAllowed(
                f"only the initiator {spec.initiator} may submit this job, not {sender}"
            )
        self._take_in(spec, sender)
        return spec.job_id

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
        self._note_request(job_id, "submission", **detail)
        with self._name_job_in_errors(job_id):
            try:
                with self._calls_in_timeline(timeline):
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
        self._note_request(job_id, "submission")

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
                self._new.build_job(spec),
                origin=origin,
            )
        if not self._scheduler.begin(job):
            self._check_same_body(job)
        job = self._scheduler.wait(spec.job_id, _is_decided, ANSWER_WITHIN)
        if job.ending is not None and job.outcome in (Outcome.REJECTED, Outcome.STOPPED):
            raise submission_refused(job)
        if not _is_decided(job):
            raise PeerUnreachable(f"not every node has answered within {ANSWER_WITHIN:g} s")

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
            scheduler = self._store.scheduler_of(job_id) or ""
            nodes = ()
        order = Order(job_id, self.new_id((scheduler, *nodes)), start, parameters)
        if isinstance(record, Job):
            with self._name_job_in_errors(order.new_job_id):
                result = self.rerun_job(order, self._peers.node)
        else:
            result = self._rerun_elsewhere(order, record, scheduler)
        self._note_request(
            job_id,
            "rerun",
            new_job=result.job_id,
        )
        return result

    def _rerun_elsewhere(
        self, order: Order, record: LocalJob | None, scheduler: NodeId
    ) -> RerunResult:
        """Have the scheduling node of a job run it again, if that is another node.

        ``record`` is this node's record of the job, None without one. Some nodes choose the id of
        the new job themselves; their id is then recorded in place of ours.
        """
        api = self._scheduler_api(order.job_id, record)
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
            self._note_request(
                result.job_id,
                "submission",
                rerun_of=order.job_id,
            )
        return result

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
            plan.spec.job_id,
            plan.origin.start,
            plan.runs,
            plan.inherits,
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

    def status_here(self, job_id: str) -> JobView | None:
        """Return the status of a job scheduled here; None for any other. Calls no other node."""
        job = self._store.jobs.find(job_id)
        if job is None:
            return None
        return view(job, self._store.timing)

    def status(self, job_id: str) -> JobView:
        """Return the status of a job, whichever node schedules it. Raises `NotFound`.

        If the scheduling node does not respond, has no route any more or has deleted the job, the
        status comes from this node's own record.
        """
        record = self._store.record(job_id)
        if isinstance(record, Job):
            return view(record, self._store.timing)
        scheduler = self._scheduler_api(job_id, record)
        start = time.monotonic()
        try:
            with traced(_trace_of(record)):
                reported = scheduler.job_status(job_id, self._peers.node)
        except GatewayError as error:
            if record is None:
                raise
            return unanswered_view(record, error, self._store.run_timing)
        if record is None:
            return reported
        local = self._executor.learn_ending(record, reported)
        self._keep_progress(local, reported)
        return with_local(
            reported,
            local,
            asked_before=time.monotonic() - start,
        )

    def _keep_progress(self, local: LocalJob, reported: JobView) -> None:
        """Store the progress of a job under way, to show it while its scheduling node is silent.

        A failure to store is ignored: the caller has the status, which it can return anyway.
        """
        if ended(JOB, reported.status) or reported.progress <= local.progress:
            return

        def add_progress(local: LocalJob) -> LocalJob:
            return run.with_progress(local, reported.progress)

        with suppress(GatewayError):
            self._store.local_jobs.update(local.id, add_progress)

    def job_status(self, job_id: str, sender: NodeId) -> JobView:
        """Return the status of a job scheduled here, or of this node's part in another node's job.

        The part is for other nodes of the job, without texts that may quote this node's data.
        """
        record = self._store.record(job_id)
        is_elsewhere = isinstance(record, LocalJob) and record.spec.scheduler != self._peers.node
        if isinstance(record, LocalJob) and is_elsewhere and not is_outside(record.spec, sender):
            return _without_texts(local_view(record, self._store.run_timing))
        return view(self._scheduled(job_id, sender), self._store.timing)

    # ---------------------------------------------------------------- list of jobs

    def jobs(
        self,
        flow_id: str | None,
    ) -> Mapping[str, JobStatus]:
        """Return every job that this node submitted, schedules or takes part in, newest first."""
        statuses = queries.statuses(self._store, flow_id)
        submitted = queries.submitted(self._store, flow_id)
        return statuses | self._statuses_elsewhere(submitted)

    def _statuses_elsewhere(
        self,
        jobs: Sequence[tuple[str, NodeId]],
    ) -> dict[str, JobStatus]:
        """Ask the scheduling nodes of these jobs in parallel, for at most `LIST_WITHIN`.

        A job whose node refuses, or does not respond in time, is PENDING. A node that did not
        respond once is not asked for its further jobs.
        """
        statuses = {job_id: JobStatus.PENDING for job_id, _ in jobs}
        silent_nodes: set[NodeId] = set()
        responses: Queue[tuple[str, JobStatus]] = Queue()

        def ask(job_id: str, node: NodeId) -> None:
            status = JobStatus.PENDING
            try:
                if node not in silent_nodes:
                    status = self.status(job_id).status
            except PeerUnreachable:
                silent_nodes.add(node)
            except GatewayError:
                pass
            finally:
                responses.put((job_id, status))

        lanes = Lanes()
        for job_id, node in jobs:
            lanes.submit(node, partial(ask, job_id, node), job_id)
        deadline = time.monotonic() + LIST_WITHIN
        with suppress(Empty):  # raised at the deadline: the remaining jobs stay PENDING
            for _ in jobs:
                remaining = max(deadline - time.monotonic(), 0)
                job_id, status = responses.get(timeout=remaining)
                statuses[job_id] = status
        lanes.close(wait=False)  # late calls end in the background
        return statuses

    # ---------------------------------------------------------------- stop

    def stop(self, job_id: str, task_name: str = "") -> None:
        """Have the scheduling node stop a job, or one task of it.

        If that node is silent, this node's part of the job ends here, and the node is informed
        later. Raises `NotFound`, and `PeerUnreachable` for a task or for a job without a part here.
        """
        record = self._store.record(job_id)
        if record is not None and task_name:
            _check_task(record.spec, task_name)
        scheduler = self._scheduler_api(job_id, record)
        if isinstance(record, LocalJob) and not task_name:
            self._stop_local(scheduler, record)
            return
        if isinstance(record, LocalJob) and self._is_over(scheduler, record):
            return
        is_ending = isinstance(record, Job) and record.ending is not None
        if not is_ending:
            self._note_request(job_id, "stop", task=task_name)
        with traced(_trace_of(record)), self._calls_in_timeline(job_id):
            scheduler.stop_job(job_id, task_name, self._peers.node)

    def _stop_local(self, scheduler: SchedulerApi, local: LocalJob) -> None:
        """Have another node stop a job that this node takes part in; end it here if it is silent.

        The request is recorded before the call, so that it is known as the cause of the stop that
        the scheduling node then sends.
        """
        try:
            if self._is_over(scheduler, local):
                return
            self._note_request(
                local.id,
                "stop",
                task="",
            )
            self._executor.record_stop_request(local.id, self._requester())
            with traced(local.spec.trace_id), self._calls_in_timeline(local.id):
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

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        sender: NodeId,
        why: Failure | None = None,
    ) -> None:
        """Record the request to stop a job, or one task of it; the nodes are stopped afterwards.

        ``why`` is the failure of the node that requests the stop; None for a stop by people.
        """
        job = self._scheduled(job_id, sender)
        by = sender or self._peers.node
        now = self._clock()
        if task_name:
            _check_task(job.spec, task_name)
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
        return [job_id for job_id in waiting_jobs if self._cancel(job_id, by)]

    def _cancel(self, job_id: str, by: str) -> bool:
        """Stop a job without a started run; return whether that ended it.

        It does not end a job that runs, is over or was deleted in the meantime.
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
        if job.ending is None or job.ending.at != request.at:
            return False  # not ended, or ended by another request
        self._note_request(job_id, "cancellation")
        return True

    # ---------------------------------------------------------------- suspend, amend

    def suspend(self, job_id: str, on: bool) -> None:
        """Have the scheduling node of a job start no further task; with ``on`` False, resume it."""
        with self._scheduled_by(job_id) as scheduler:
            scheduler.suspend_job(job_id, on, self._peers.node)
        request = "resume"
        if on:
            request = "suspend"
        self._note_request(job_id, request)

    def suspend_job(
        self,
        job_id: str,
        on: bool,
        sender: NodeId,
    ) -> None:
        """Record the request to suspend or resume.

        Raises `Conflict` (JOB_ENDED) if the job has ended, or is about to.
        """
        self._scheduled(job_id, sender)
        request = messages.SuspendRequested(sender or self._peers.node, self._clock(), on)
        job = self._scheduler.record(job_id, request)
        is_suspended = job.suspended is not None
        if is_suspended is not on or ended(JOB, job.status):
            raise Conflict(f"job {job_id} has ended, or is about to", reason="JOB_ENDED")

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
        self._note_request(
            job_id,
            "parameter change",
            version=version,
            reason=reason,
        )
        return version

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
            bundles={},
        )
        self._offer_amendment(job, amendment, spec_after)
        earlier = len(job.amendments)
        job = self._scheduler.record(
            job_id,
            messages.ParametersAgreed(amendment, earlier),
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

        Each node gets only the parameters of its own parties.
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
    ) -> None:
        """Record a node's decision on a job: approval, or refusal with the ``failure``.

        Raises `Conflict` (ALREADY_DECIDED) for the opposite of the node's earlier decision.
        ``audit`` belongs to the port; this node needs no audit id to find the job.
        """
        job = self._scheduled(job_id, sender)
        if sender not in job.nodes:
            raise NotAllowed(f"node {sender or '(not named)'} has no part in job {job_id}")
        if failure is not None:
            failure = replace(failure, node=sender)
        event = ApprovalReported(sender, self._clock(), failure)
        problem = approval.contradicts(job, event)
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
        self._scheduler.record(
            job_id,
            event,
            allowed=check_sender,
        )

    def resources_free(self, job_id: str, sender: NodeId) -> None:
        """Record that a node has free resources; the scheduler then asks it again for the job."""
        self._scheduled(job_id, sender)
        self._scheduler.record(job_id, messages.Freed(sender or self._peers.node, self._clock()))

    # ---------------------------------------------------------------- helpers

    def _scheduled(self, job_id: str, sender: NodeId) -> Job:
        """Return a job scheduled here. Raises `NotFound`, also for a sender outside the job."""
        job = self._store.jobs.find(job_id)
        if job is None or is_outside(job.spec, sender):
            raise NotFound(f"no job {job_id} is scheduled here", reason="JOB_UNKNOWN")
        return job

    def _scheduler_api(
        self,
        job_id: str,
        record: Job | LocalJob | None,
    ) -> SchedulerApi:
        """Return the API of a job's scheduling node: this object, or a client of another node.

        Raises `NotFound` for a job that this node knows nothing of.
        """
        if isinstance(record, Job):
            return self
        if record is not None:
            return self._peers.scheduler(
                record.spec.scheduler,
                record.spec.protocol,
            )
        node = self._store.scheduler_of(job_id)
        if node is None:
            raise NotFound(
                f"no job {job_id} was submitted, is scheduled or runs here", reason="JOB_UNKNOWN"
            )
        return self._peers.scheduler(node, "bfia")

    @contextmanager
    def _scheduled_by(self, job_id: str) -> Iterator[SchedulerApi]:
        """Yield the API of a job's scheduling node, under the job's trace id. Raises `NotFound`."""
        record = self._store.record(job_id)
        with traced(_trace_of(record)):
            yield self._scheduler_api(job_id, record)

    def _note_request(
        self,
        job_id: str,
        what: str,
        **detail: Any,
    ) -> None:
        """Note in the job's timeline which person requested what here; nothing if unknown."""
        person = by_user().get("user")
        if not person:
            return
        note = Note(self._clock(), f"{what} requested", person, detail)
        self._store.note(job_id, "operator", [note])

    @contextmanager
    def _calls_in_timeline(self, job_id: str) -> Iterator[None]:
        """Note the calls made in this context in the job's timeline, whether they failed or not.

        The name of the user who caused them is noted, too, if it is known.
        """
        with listening() as calls:
            try:
                yield
            finally:
                notes = notes_of(calls, self._clock(), **by_user())
                self._store.note(job_id, "initiator", notes)


def _check_task(spec: JobSpec, name: str) -> None:
    """Raise `NotFound` if the job has no task of this name."""
    if spec.dag.get(name) is None:
        raise NotFound(f"job {spec.job_id} has no task {name}", reason="TASK_UNKNOWN")


def _trace_of(record: Job | LocalJob | None) -> str:
    """Return the trace id of a job; without a record of the job, that of the current request."""
    if record is None:
        return current_trace()
    return record.spec.trace_id


def _ended_by_silence(local: LocalJob) -> bool:
    """Return whether this node ended its part of a job because the scheduling node was silent."""
    if local.ending is None or local.ending.failure is None:
        return False
    return local.ending.failure.reason == UNREACHABLE


def _is_silence(error: GatewayError) -> bool:
    """Return whether a call failed as the node is silent, has no route, or has no such job."""
    if isinstance(error, PeerUnreachable):
        return True
    return error.reason in ("NODE_UNKNOWN", "JOB_UNKNOWN")


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
    """Return whether a submission can be answered.

    That is the case once the job has left PENDING, or once every node has accepted the job or
    waits for a person's approval.
    """
    if job.status is not JobStatus.PENDING:
        return True
    if job.ending is not None:
        return False  # its outcome follows
    return all(node_job.create.state is CallState.OK for node_job in job.active)
