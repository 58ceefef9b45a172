"""Use cases of the scheduling node: accept a job, report on it, record news, stop it."""

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
from gateway.domain.problems import of_job
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
from gateway.jobs.scheduler import Scheduler
from gateway.jobs.submission import Intake, NewJobs
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
from gateway.runtime.loop import notes_of
from gateway.store import queries
from provider_registry.registry import Registry
from route_table.live import LiveRoutes

_ANSWER_WITHIN = 30.0
"""seconds in which every node has to accept a job"""
_LIST_WITHIN = 5.0
"""seconds that a list of jobs waits for the nodes that schedule them"""
_SUBMIT = ("submission requested", "asked to submit")
"""event of a timeline; the actor is the person"""


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
        """``new_id`` makes an id that all of a job's nodes can keep."""
        self._store = context.store
        self._clock = context.clock
        self._scheduler = scheduler
        self._peers = peers
        self._registry = registry
        self._new = NewJobs(context, peers, registry, routes)
        self._intake = intake
        self._executor = executor
        self.new_id = new_id

    def submit(self, spec: JobSpec) -> str:
        """Submit a job of this node's own platform to the node that schedules it; return its id."""
        here = self._peers.node
        if spec.scheduler == here:
            with self._naming(spec.job_id), traced(spec.trace_id):
                return self.submit_job(spec, here)
        self._intake.check()
        self._new.check(spec)
        with (
            self._submitting(spec.job_id, spec.flow_id, spec.scheduler, spec.job_id),
            traced(spec.trace_id),
        ):
            there = self._peers.scheduler(spec.scheduler, spec.protocol).submit_job(spec, here)
        if there != spec.job_id:
            self._renamed(there, spec)
        return there

    @contextmanager
    def _submitting(
        self,
        job_id: str,
        flow_id: str,
        scheduler: NodeId,
        timeline: str,
        **detail: Any,
    ) -> Iterator[None]:
        """Have another node make a job. It is recorded before: where no answer comes it may have been made."""
        self._store.add_submission(job_id, flow_id, scheduler, self._clock())
        self._asked(
            job_id, "submission", **detail
        )  # before a peer can have it wait for approval here
        with self._naming(job_id):
            try:
                with self._in_timeline(timeline):
                    yield
            except PeerUnreachable:
                raise
            except GatewayError:
                self._store.drop_submission(job_id)
                raise

    @contextmanager
    def _naming(self, job_id: str) -> Iterator[None]:
        """Name the job in its refusal, if this node keeps a record of it, or may."""
        try:
            yield
        except GatewayError as error:
            unreachable = isinstance(error, PeerUnreachable)
            if unreachable or self._store.record(job_id):
                error.job_id = job_id
            raise

    def _asked(
        self,
        job_id: str,
        what: str,
        **detail: Any,
    ) -> None:
        """Write into the job's timeline which person asked for it here, where people say who they are."""
        if person := by_user().get("user"):
            self._store.note(
                job_id, "operator", [Note(self._clock(), f"{what} requested", person, detail)]
            )

    def submitters(self, job_id: str) -> set[str]:
        """Return the people here who submitted a job, or had it run again, where people say who they are."""
        job = self._store.jobs.find(job_id)
        noted = {e.by for e in self._store.timeline(job_id) if e.event in _SUBMIT}
        return (noted | ({job.user} if job else set())) - {""}

    def _renamed(self, job_id: str, spec: JobSpec) -> None:
        """Keep the id that the scheduling node gave a job. Raises `Refused` where it is another job's."""
        self._store.drop_submission(spec.job_id)
        known = self._store.record(job_id)
        if isinstance(known, Job) or (known is not None and known.spec.scheduler != spec.scheduler):
            text = f"{spec.scheduler} has taken the job under the id {job_id}, which is another job's here"
            raise Refused(text, reason="JOB_ID_CONFLICT")
        self._store.add_submission(job_id, spec.flow_id, spec.scheduler, self._clock())
        self._asked(job_id, "submission")

    def submit_job(self, spec: JobSpec, sender: NodeId) -> str:
        """Take a job in from its initiator; return once every node has accepted it.

        Beyond what the port says: raises `NotAllowed` for another sender than the initiator, and
        `PeerUnreachable` where some node has not answered in time; the job may come about then.
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
        try:
            self._intake.check("" if sender == self._peers.node else sender)
        except GatewayError:
            if self._store.jobs.find(spec.job_id) is None:  # else it is asked for once more
                raise
        with self._registry.one_view():
            job = replace(self._new.made(spec), origin=origin)
        if not self._scheduler.begin(job):
            known = self._store.jobs.get(spec.job_id)
            if known.digest != job.digest:
                raise Conflict(
                    f"job {spec.job_id} is here already, with another body",
                    reason="JOB_ID_CONFLICT",
                )
        job = self._scheduler.wait(spec.job_id, _decided, _ANSWER_WITHIN)
        if job.ending is not None and job.outcome in (Outcome.REJECTED, Outcome.STOPPED):
            failure = job.ending.failure
            found = (p for one in job.refusals for p in of_job(one.message, one.node))
            refused = Refused(
                _refusal(job), reason=failure.reason if failure else "REFUSED", problems=found
            )
            refused.node = failure.node if failure else ""
            raise refused
        if not _decided(job):
            raise PeerUnreachable(f"not every node has answered within {_ANSWER_WITHIN:g} s")

    def rerun(
        self,
        job_id: str,
        start: str,
        parameters: Mapping[str, Any],
    ) -> RerunResult:
        """Have the node that schedules a job run it again from a task on, as a new job.

        ``start`` empty: from the first task that has not succeeded. Raises `NotFound`, `Conflict`, `Invalid`,
        `Refused`, `PeerUnreachable`, `NotServed` where the scheduling node does not know of such a thing.
        """
        self._intake.check()
        record = self._store.record(job_id)
        node = record.spec.scheduler if record else self._store.scheduler_of(job_id) or ""
        wanted = Order(
            job_id, self.new_id((node, *(record.spec.nodes if record else ()))), start, parameters
        )
        if isinstance(record, Job):
            with self._naming(wanted.new_job_id):
                made = self.rerun_job(wanted, self._peers.node)
        else:
            scheduler = self._scheduling(job_id, record)
            flow = record.spec.flow_id if record else ""
            with (
                self._submitting(wanted.new_job_id, flow, node, job_id, rerun_of=job_id),
                traced(current_trace()),
            ):
                made = scheduler.rerun_job(wanted, self._peers.node)
            if made.job_id != wanted.new_job_id:  # some run it again under an id of their own
                self._store.drop_submission(wanted.new_job_id)
                self._asked(made.job_id, "submission", rerun_of=job_id)
        self._asked(job_id, "rerun", new_job=made.job_id)
        return made

    def rerun_job(self, wanted: Order, sender: NodeId) -> RerunResult:
        """Plan the new job from the old one's record, and take it in like any other."""
        old = self._scheduled(wanted.job_id, sender)
        if not ended(JOB, old.status):
            text = f"job {old.id} is still {old.status}: stop it, or wait for its end"
            raise Conflict(text, reason="JOB_NOT_ENDED")
        made, problems = rerun.plan(
            old, wanted, sender or self._peers.node, current_trace() or new_trace_id()
        )
        if made is None:
            raise Invalid(problems)
        known = self._store.jobs.find(wanted.new_job_id)
        self._take_in(made.spec, sender, made.origin)
        origin = made.origin
        if known is None:
            detail = {
                "new_job": made.spec.job_id,
                "from": origin.start,
                "parameters": dict(origin.parameters),
            }
            note = Note(self._clock(), "run again as another job", origin.by, detail)
            self._store.jobs.update(old.id, lambda job: replace(job, notes=(*job.notes, note)))
        return RerunResult(made.spec.job_id, origin.start, made.runs, made.inherits)

    def status_here(self, job_id: str) -> JobView | None:
        """Tell of a job that this node schedules; None for others. Waits for nobody."""
        job = self._store.jobs.find(job_id)
        return None if job is None else view(job, self._store.timing)

    def status(self, job_id: str) -> JobView:
        """Tell of a job, whichever node schedules it. Raises `NotFound`."""
        local = self._store.record(job_id)
        if isinstance(local, Job):
            return view(local, self._store.timing)
        scheduler = self._scheduling(job_id, local)
        began = time.monotonic()
        try:
            with traced(local.spec.trace_id if local else current_trace()):
                found = scheduler.job_status(job_id, self._peers.node)
        except (
            GatewayError
        ) as error:  # silent, without a route by now, or without the job, which may be old
            if local is None:
                raise
            return unanswered_view(local, error, self._store.run_timing)
        if local is None:
            return found
        local = self._executor.learned(local, found)
        if found.progress > local.progress and not ended(JOB, found.status):
            with suppress(GatewayError):  # it is only for when that node does not answer
                self._store.local_jobs.update(
                    job_id, lambda local: run.with_progress(local, found.progress)
                )
        return with_local(found, local, asked_before=time.monotonic() - began)

    def _scheduling(self, job_id: str, record: Job | LocalJob | None) -> SchedulerApi:
        """Return who schedules a job: this, or the client of another node. Raises `NotFound`."""
        if isinstance(record, Job):
            return self
        scheduler = record.spec.scheduler if record else self._store.scheduler_of(job_id)
        if scheduler is None:
            raise NotFound(
                f"no job {job_id} was submitted, is scheduled or runs here", reason="JOB_UNKNOWN"
            )
        return self._peers.scheduler(scheduler, record.spec.protocol if record else "bfia")

    @contextmanager
    def _scheduled_by(self, job_id: str) -> Iterator[SchedulerApi]:
        """Have something asked of who schedules a job, under the job's trace id. Raises `NotFound`."""
        record = self._store.record(job_id)
        with traced(record.spec.trace_id if record else current_trace()):
            yield self._scheduling(job_id, record)

    def jobs(self, flow_id: str | None) -> Mapping[str, JobStatus]:
        """Return every job this node submitted, schedules or takes part in, newest first."""
        found = queries.statuses(self._store, flow_id)
        return found | self._asked_elsewhere(queries.submitted(self._store, flow_id))

    def _asked_elsewhere(self, jobs: Sequence[tuple[str, NodeId]]) -> dict[str, JobStatus]:
        """Ask the nodes that schedule these jobs, at the same time, and only for a while.

        A job that was refused there, or cannot be asked after now, is PENDING as far as this node knows.
        """
        found = {job_id: JobStatus.PENDING for job_id, _ in jobs}
        silent: set[NodeId] = set()
        answers: Queue[tuple[str, JobStatus]] = Queue()
        lanes = Lanes()

        def ask(job_id: str, node: NodeId) -> None:
            status = JobStatus.PENDING
            try:
                if node not in silent:
                    status = self.status(job_id).status
            except PeerUnreachable:
                silent.add(node)
            except GatewayError:
                pass
            finally:
                answers.put((job_id, status))

        for job_id, node in jobs:
            lanes.submit(node, partial(ask, job_id, node), job_id)
        end = time.monotonic() + _LIST_WITHIN
        with suppress(Empty):
            for _ in jobs:
                job_id, status = answers.get(timeout=max(end - time.monotonic(), 0))
                found[job_id] = status
        lanes.close(wait=False)
        return found

    def stop(self, job_id: str, task_name: str = "") -> None:
        """Have the node that schedules a job stop it; while that is silent, end its part here and tell it later.

        Raises `NotFound`, and `PeerUnreachable` for a task, and for a job without a part here.
        """
        record = self._store.record(job_id)
        if record is not None and task_name:
            _known_task(record.spec, task_name)
        scheduler = self._scheduling(job_id, record)
        try:
            if (
                isinstance(record, LocalJob)
                and ended(JOB, record.status)
                and self._over_there(scheduler, record)
            ):
                return
            if not (isinstance(record, Job) and record.ending):
                self._asked(job_id, "stop", task=task_name)
            if isinstance(record, LocalJob) and not task_name:
                person = by_user().get("user")
                by = f"{person} at {self._peers.node}" if person else self._peers.node
                self._executor.stop_requested(job_id, by)
            with (
                traced(record.spec.trace_id if record else current_trace()),
                self._in_timeline(job_id),
            ):
                scheduler.stop_job(job_id, task_name, self._peers.node)
        except GatewayError as error:
            silent = isinstance(error, PeerUnreachable) or error.reason in (
                "NODE_UNKNOWN",
                "JOB_UNKNOWN",
            )
            if isinstance(record, LocalJob) and not task_name and not silent:
                self._executor.stop_requested(job_id, "")
            if task_name or not silent or not isinstance(record, LocalJob):
                raise
            self._executor.stop_here(job_id, error.message)

    def _over_there(self, scheduler: SchedulerApi, local: LocalJob) -> bool:
        """Say whether a job that has ended here has at the node that schedules it, as far as that can be asked.

        It goes on there where this node was left out of it, or has ended its own part by itself. Raises
        `PeerUnreachable` where it has for that node's silence, and that goes on.
        """
        try:
            return ended(JOB, scheduler.job_status(local.id, self._peers.node).status)
        except PeerUnreachable:
            if local.ending and local.ending.failure and local.ending.failure.reason == UNREACHABLE:
                raise
            return True
        except GatewayError:
            return True

    @contextmanager
    def _in_timeline(self, job_id: str) -> Iterator[None]:
        """Write the requests that this node's platform caused into the job's timeline, whatever they come to."""
        with listening() as calls:
            try:
                yield
            finally:
                self._store.note(job_id, "initiator", notes_of(calls, self._clock(), **by_user()))

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        sender: NodeId,
        why: Failure | None = None,
    ) -> None:
        """Record that it was asked for; the scheduler tells the nodes afterwards."""
        job = self._scheduled(job_id, sender)
        by, now = sender or self._peers.node, self._clock()
        if task_name:
            _known_task(job.spec, task_name)
            self._scheduler.record(job_id, messages.TaskStopRequested(task_name, by, now))
            return
        why = why or Failure("STOPPED")
        self._scheduler.record(
            job_id, messages.StopRequested(by, now, why.message, reason=why.reason)
        )

    def cancel_waiting(self, by: str, dry_run: bool) -> list[str]:
        """Stop all jobs scheduled here of which nothing runs yet; return them. ``dry_run``: only say which."""
        waiting = self._store.jobs.in_state(*queries.WAITING)
        return waiting if dry_run else [job_id for job_id in waiting if self._cancelled(job_id, by)]

    def _cancelled(self, job_id: str, by: str) -> bool:
        """Stop a job of which nothing runs yet; False where it runs, or is over or deleted, by now."""
        asked = messages.StopRequested(
            by, self._clock(), f"cancelled by {by} while it waited", if_waiting=True
        )
        try:
            job = self._scheduler.record(job_id, asked)
        except NotFound:
            return False
        cancelled = job.ending is not None and job.ending.at == asked.at
        if cancelled:
            self._asked(job_id, "cancellation")
        return cancelled

    def suspend(self, job_id: str, on: bool) -> None:
        """Have the node that schedules a job start no further task of it, or go on."""
        with self._scheduled_by(job_id) as scheduler:
            scheduler.suspend_job(job_id, on, self._peers.node)
        self._asked(job_id, "suspend" if on else "resume")

    def suspend_job(
        self,
        job_id: str,
        on: bool,
        sender: NodeId,
    ) -> None:
        """Record that it was asked for. Raises `Conflict` (JOB_ENDED) where that came too late."""
        self._scheduled(job_id, sender)
        asked = messages.SuspendRequested(sender or self._peers.node, self._clock(), on)
        job = self._scheduler.record(job_id, asked)
        if (job.suspended is not None) is not on or ended(JOB, job.status):
            raise Conflict(f"job {job_id} has ended, or is about to", reason="JOB_ENDED")

    def amend(
        self,
        job_id: str,
        parameters: Mapping[str, Any],
        reason: str,
    ) -> int:
        """Have the node that schedules a job give tasks that have not begun new parameters; return the version."""
        with self._scheduled_by(job_id) as scheduler:
            version = scheduler.amend_job(job_id, parameters, reason, self._peers.node)
        self._asked(job_id, "parameter change", version=version, reason=reason)
        return version

    def amend_job(
        self,
        job_id: str,
        parameters: Mapping[str, Any],
        reason: str,
        sender: NodeId,
    ) -> int:
        """Offer them to every node, then record them, if none of the tasks has begun by then."""
        job = self._scheduled(job_id, sender)
        if job.status is not JobStatus.RUNNING or job.ending is not None:
            raise Conflict(f"job {job_id} is {job.status}, not running", reason="JOB_NOT_RUNNING")
        by = sender or self._peers.node
        before = rerun.amended(job.spec, job.amendments)
        begun = [name for name, task in job.tasks.items() if not task.amendable]
        if problems := rerun.amendable(before, parameters, begun, by):
            raise Invalid(problems)
        one = Amendment(uuid4().hex, parameters, by, reason, self._clock())
        after = replace(rerun.amended(before, [one]), bundles={})
        holding = [known.id for known in job.amendments]
        for node in job.active:
            own = replace(job.spec, task_params=parameters).for_node(node.node).task_params
            peer = self._peers.participant(node.node, job.spec.protocol)
            peer.offer_parameters(
                job_id, replace(one, parameters=own), holding, self._peers.node, after
            )
        job = self._scheduler.record(job_id, messages.ParametersAgreed(one, len(holding)))
        if one not in job.amendments:
            text = f"a task of job {job_id} has begun, or other parameters hold meanwhile: nothing changes"
            raise Conflict(text, reason="TASK_BEGUN")
        return job.amendments.index(one) + 1

    def confirm_job(
        self,
        job_id: str,
        failure: Failure | None,
        sender: NodeId,
        audit: str = "",
    ) -> None:
        """Record what a node decided. Raises `Conflict` (ALREADY_DECIDED) for the opposite of before."""
        job = self._scheduled(job_id, sender)
        if sender not in job.nodes:
            raise NotAllowed(f"node {sender or '(not named)'} has no part in job {job_id}")
        if failure is not None:
            failure = replace(failure, node=sender)
        event = ApprovalReported(sender, self._clock(), failure)
        if problem := approval.contradicts(job, event):
            raise Conflict(f"job {job_id}: {problem}", reason="ALREADY_DECIDED")
        self._scheduler.record(job_id, event)

    def job_status(self, job_id: str, sender: NodeId) -> JobView:
        """Tell of a job that this node schedules, or else a node of the job how this one's part of it is."""
        local = self._store.record(job_id)
        here = self._peers.node
        if (
            isinstance(local, LocalJob)
            and local.spec.scheduler != here
            and not is_outside(local.spec, sender)
        ):
            part = local_view(local, self._store.run_timing)
            tasks = [replace(task, failure=None) for task in part.tasks]
            return replace(
                part,
                failure=None,
                warnings=(),
                waiting=None,
                tasks=tasks,
            )  # they may quote own data
        return view(self._scheduled(job_id, sender), self._store.timing)

    def _scheduled(self, job_id: str, sender: NodeId) -> Job:
        """Return a job that this node schedules. Raises `NotFound`, also for a node without a part in it."""
        job = self._store.jobs.find(job_id)
        if job is None or is_outside(job.spec, sender):
            raise NotFound(f"no job {job_id} is scheduled here", reason="JOB_UNKNOWN")
        return job

    def report_task(self, report: TaskReport, sender: NodeId) -> None:
        """Record news of a task. Raises `NotAllowed` for a node without a part in it."""
        unknown = NotFound(f"no task {report.task_id} is scheduled here", reason="TASK_UNKNOWN")
        job_id = self._store.job_of_task(report.task_id)
        if job_id is None:
            raise unknown
        now, failure = self._clock(), report.failure
        news = messages.TaskReported(
            report.task_id, sender, report.role, report.status, now, failure, pushed=True
        )

        def allowed(job: Job) -> None:
            if is_outside(job.spec, sender):
                raise unknown
            task = next(t for t in job.tasks.values() if t.has(report.task_id))
            if sender not in task.nodes:
                raise NotAllowed(
                    f"node {sender or '(not named)'} has no part in task {report.task_id}"
                )

        self._scheduler.record(job_id, news, allowed=allowed)

    def resources_free(self, job_id: str, sender: NodeId) -> None:
        """Record that a node has something free; the job is then asked for again there."""
        self._scheduled(job_id, sender)
        self._scheduler.record(job_id, messages.Freed(sender or self._peers.node, self._clock()))

    def check(self, spec: JobSpec) -> list[str]:
        """Return warnings about a job as far as this node can tell. Raises `Invalid` with every problem."""
        return self._new.check(spec)


def _known_task(spec: JobSpec, name: str) -> None:
    if spec.dag.get(name) is None:
        raise NotFound(f"job {spec.job_id} has no task {name}", reason="TASK_UNKNOWN")


def _decided(job: Job) -> bool:
    """Say whether every node has accepted the job or waits for somebody to, or the job has come to its end."""
    return job.status is not JobStatus.PENDING or (
        job.ending is None and all(n.create.state is CallState.OK for n in job.active)
    )


def _refusal(job: Job) -> str:
    failure = job.ending.failure if job.ending else None
    refusals = []
    for one in job.refusals:
        known = (
            failure and failure.reason == one.reason
        ) or f" {one.reason}: " in one.message  # it stands before
        named = known and one.message.startswith(f"{one.node} ")
        text = one.message if known else f"{one.reason} {one.message}".strip()
        refusals.append(text if named else f"{one.node}: {text}")
    if refusals:
        return "; ".join(refusals)
    return (
        failure.message
        if failure and failure.message
        else "the job was stopped before every node accepted it"
    )
