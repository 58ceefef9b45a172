"""Use cases of a participating node: accept a job, run its tasks, report on them, end it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gateway.domain import approval, rerun
from gateway.domain import dag as flow
from gateway.domain.dag import DagNode
from gateway.domain.dry_run import Item
from gateway.domain.execution.messages import Decided, Misreported, Reported, StopRequested
from gateway.domain.execution.runs import merge_runs
from gateway.domain.job import Acceptance
from gateway.domain.problems import LARGEST_NAME, Problem, index_of, name_rule
from gateway.domain.quorum import can_spare
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Amendment, Ending, Failure, JobSpec, NodeId, is_outside
from gateway.domain.states import JOB, JobStatus, RunStatus, TaskStatus, ended, move
from gateway.errors import Conflict, Invalid, NotAllowed, NotFound, Refused, TooLarge
from gateway.jobs.admission import Admission
from gateway.jobs.deletion import Deleting
from gateway.jobs.executor import Executor
from gateway.jobs.fingerprint import MAX_JOB_SIZE
from gateway.jobs.ids import check_id_unused
from gateway.jobs.planner import TaskPlanner
from gateway.jobs.resources import Resources
from gateway.ports import Callback, TaskNews
from gateway.runtime.context import NodeContext
from gateway.runtime.loop import wait_for_database
from gateway.store.queries import is_known
from gateway.store.records import job_unknown
from gateway.store.serialization import dumps

# Pending offers of new parameters that are kept per job; of more, the oldest are dropped.
_MAX_PENDING_OFFERS = 8


class Participant:
    """Implements `gateway.ports.ParticipantApi`."""

    def __init__(
        self,
        context: NodeContext,
        admission: Admission,
        executor: Executor,
        planner: TaskPlanner,
        resources: Resources,
        deleting: Deleting,
        home_of: Callable[[LocalJob], str],
    ) -> None:
        """``home_of`` returns which of this node's gateways runs the containers of a job."""
        self.admission = admission
        self._node = context.node
        self._store = context.store
        self._clock = context.clock
        self._executor = executor
        self._planner = planner
        self._registry = planner.registry
        self._resources = resources
        self._deleting = deleting
        self._home_of = home_of

    # ---------------------------------------------------------------- creation

    def dry_run(
        self,
        spec: JobSpec,
        sender: NodeId,
    ) -> Sequence[Item]:
        """Report what would happen to a job here, and create nothing."""
        return self.admission.dry_run(spec, sender)

    def ask_first(self, spec: JobSpec, sender: NodeId) -> Acceptance | None:
        """Return None: this node needs no audit before the creation of a job."""
        return None

    def create_job(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        """Validate and store a job; return the conditions under which it is accepted.

        A repeated creation returns the same. Raises `Conflict` for the id of another job.
        """
        check_id_unused(self._store, spec.job_id, spec.job_id)
        with self._registry.one_view():
            local = self.admission.admit(spec, sender)
        if local.agreement and sender not in ("", self._node):
            self._check_not_deleted(spec.job_id)
        if not self._store.local_jobs.add(local, spec.flow_id):
            local = self._repeat_creation(local, sender)
        self._executor.watch(local)
        return self._acceptance(local)

    def _check_not_deleted(self, job_id: str) -> None:
        """Raise `Conflict` for a job that ran here and was deleted.

        A signed agreement holds for one execution.
        """
        for entry in self._store.timeline(job_id):
            if entry.event == "job deleted":
                raise Conflict(
                    f"job {job_id} ran here already and was deleted; "
                    "what was signed is not run twice",
                    reason="JOB_ID_CONFLICT",
                )

    def _repeat_creation(self, new: LocalJob, sender: NodeId) -> LocalJob:
        """Return the record of a job that is here already. Raises `Conflict` if it is another job.

        A job that was only audited before becomes a created one.
        """
        existing = self._store.local_jobs.get(new.id)
        was_only_audited = approval.is_unused(existing)
        if was_only_audited:
            is_same = approval.is_same(existing, new.spec)
        else:
            is_same = existing.digest == new.digest
        if not is_same:
            text = f"job {new.id} is here already, with another body"
            if existing.spec.scheduler != new.spec.scheduler:
                text = f"job {new.id} is here already, from another node"
            raise Conflict(text, reason="JOB_ID_CONFLICT")
        if not was_only_audited:
            return existing
        now = self._clock()

        def create(local: LocalJob) -> LocalJob:
            created = approval.record_creation(local, now, sender)
            return replace(
                created,
                checks=new.checks,
                agreement=new.agreement,
            )

        return self._executor.change(existing.id, create)

    def _acceptance(self, local: LocalJob) -> Acceptance:
        """Return the answer to a creation. Raises `Refused` if the job was refused before.

        That happens for a repeated creation, or for one that follows a refused audit.
        """
        refusal = _earlier_refusal(local)
        if refusal is not None:
            raise Refused(refusal.message, reason=refusal.reason)
        expires_at = approval.expires_at(local)
        expires_in = None  # seconds
        if expires_at is not None:
            remaining = expires_at - self._clock()
            expires_in = max(remaining.total_seconds(), 0.0)
        waits_for = ""
        if local.preparation is not None and _only_awaits_images(local):
            waits_for = f"fetches {', '.join(local.preparation.images)}"
        tasks_at_once = None
        if local.pool is not None:
            tasks_at_once = local.pool.tasks_at_once
        return Acceptance(
            holds=local.pool is not None,
            tasks_at_once=tasks_at_once,
            waits=expires_at is not None,
            within=expires_in,
            inherited=local.can_inherit,
            waits_for=waits_for,
            checks=local.checks,
        )

    # ---------------------------------------------------------------- approval

    def waiting(self) -> list[LocalJob]:
        """Return the jobs here that wait for a person's approval, oldest first."""
        pending = self._store.local_jobs.in_state(JobStatus.PENDING)
        jobs = [self._store.local_jobs.get(job_id) for job_id in pending]
        return [local for local in jobs if approval.awaits_person(local)]

    def decide(
        self,
        job_id: str,
        approve: bool,
        by: str,
        words: str,
    ) -> tuple[LocalJob, bool]:
        """Record a person's decision on a job that waits for one.

        Returns the job, and whether this decision was recorded: False if it repeats an earlier
        decision, which is kept with its ``words``. Raises `NotFound`, and `Conflict` for a job that
        does not wait (NOT_WAITING) or has the opposite decision (ALREADY_DECIDED).
        """
        local = self._store.local_jobs.find(job_id)
        if local is None and not is_known(self._store, job_id):
            raise job_unknown(job_id)
        if local is None or local.approval is None or approval.awaited_only_images(local):
            raise Conflict(
                f"job {job_id} does not wait for approval at {self._node}", reason="NOT_WAITING"
            )
        event = Decided(approve, by, words, self._clock())
        local = self._executor.record(job_id, event)
        if not _has_decision(local, approve):
            raise Conflict(
                f"job {job_id} is {_decision_word(local)} here already", reason="ALREADY_DECIDED"
            )
        recorded = local.approval
        counts = recorded is not None and (recorded.decided_at, recorded.by) == (event.at, by)
        return local, counts

    # ---------------------------------------------------------------- resources and start

    def hold(self, job_id: str, sender: NodeId) -> None:
        """Reserve the resources of a job.

        Raises `NotAllowed` also if the job may not use its data any more.
        """
        local = self._job_for(job_id, sender)
        self.admission.check_start(local, sender)
        self._resources.hold(local)

    def give_back(self, job_id: str, sender: NodeId) -> None:
        """Release the resources of a READY job; raise `Conflict` for a job in another state."""
        local = self._job_for(job_id, sender)
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

        ``without`` are the labels of excluded parties. For a running job nothing but these is
        recorded.
        """
        local = self._job_for(job_id, sender)
        self.admission.check_start(local, sender)
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

        self._store.local_jobs.update(job_id, start)

    def _exclude(
        self,
        local: LocalJob,
        labels: Sequence[str],
        sender: NodeId,
    ) -> LocalJob:
        """Return the job without the parties of these labels; unchanged if all are excluded."""
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

    # ---------------------------------------------------------------- new parameters

    def offer_parameters(
        self,
        job_id: str,
        offered: Amendment,
        holding: Sequence[str],
        sender: NodeId,
        amended: JobSpec | None = None,
    ) -> None:
        """Check the job with new parameters as at its creation, and store them.

        They come into force when the start of a task names them. ``holding`` are the ids of earlier
        offers that are in force. ``amended`` belongs to the port; this node computes the amended
        job itself. Raises `Conflict` for a job that has ended, and `Invalid`.
        """
        local = _with_amendments(self._job_for(job_id, sender), holding)
        if ended(JOB, local.status):
            raise Conflict(f"job {job_id} has ended here", reason="JOB_ENDED")
        spec_before = rerun.in_force(local)
        begun_tasks = {run.task_name for run in local.runs_that_count()}
        problems = rerun.amendment_problems(
            spec_before, offered.parameters, begun_tasks, local.spec.scheduler
        )
        if problems:
            raise Invalid(problems)
        bundles = {}
        if offered.bundle:
            bundles[self._node] = offered.bundle
        spec_after = replace(
            rerun.with_amendments(spec_before, [offered]),
            bundles=bundles,
        )
        warnings = self.admission.check_amended(spec_after, sender)

        def add_offer(local: LocalJob) -> LocalJob:
            return self._add_offer(local, offered, warnings)

        self._store.local_jobs.update(job_id, add_offer)

    def _add_offer(
        self,
        local: LocalJob,
        offer: Amendment,
        warnings: Sequence[str],
    ) -> LocalJob:
        """Return the job with one more offer; unchanged if it has the offer already.

        Raises `Invalid` if all offers together are too large to be stored with the job.
        """
        if any(earlier.id == offer.id for earlier in local.offered):
            return local
        offers = [*_lasting_offers(local), offer]
        size = len(dumps(tuple(offers)))
        if size > MAX_JOB_SIZE:
            rule = f"must not have more than {MAX_JOB_SIZE} characters with earlier ones"
            raise Invalid(
                [Problem("parameters", rule, size)],
                reason=TooLarge.reason,
            )
        new_warnings = [text for text in warnings if text not in local.warnings]
        local = replace(local, offered=tuple(offers), warnings=(*local.warnings, *new_warnings))
        return local.with_note(
            self._clock(),
            "new parameters offered",
            offer.by,
            tasks=offer.tasks,
            reason=offer.reason,
        )

    # ---------------------------------------------------------------- tasks

    def start_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
        holding: Sequence[str] = (),
    ) -> None:
        """Store the runs of a task; the executor starts them afterwards.

        ``holding`` are the ids of the offered parameters that are in force. A repeated start
        changes nothing.
        """
        local = _with_amendments(self._job_for(job_id, sender), holding)
        if _is_started(local, task_id, task_name):
            return
        rule = name_rule(task_id, LARGEST_NAME // 3)
        if rule:
            raise Invalid([Problem("task_id", rule, task_id)])
        node = local.spec.dag.get(task_name)
        if node is None:
            raise NotFound(f"job {job_id} has no task {task_name}", reason="TASK_UNKNOWN")
        check_id_unused(self._store, task_id, job_id)
        with self._registry.one_view():  # the check and the plan see the same registrations
            self.admission.check_start(local, sender)
            amended = replace(
                local,
                spec=rerun.in_force(local),
            )
            runs = self._planner.runs(amended, node, task_id)
        if local.status is JobStatus.READY:
            self._resources.hold(local)

        def start(local: LocalJob) -> LocalJob:
            # Checked again, as the job may have changed since.
            if local.runs_of(task_id):
                return local
            if ended(JOB, local.status):
                raise Conflict(f"job {job_id} has ended here", reason="JOB_ENDED")
            _check_attempt(local, node, holding)
            return self._add_runs(local, runs, holding, sender)

        self._executor.change(job_id, start)

    def _add_runs(
        self,
        local: LocalJob,
        runs: Sequence[Run],
        holding: Sequence[str],
        sender: NodeId,
    ) -> LocalJob:
        """Return the job with the runs of a task that begins."""
        now = self._clock()
        status = local.status
        if status is JobStatus.READY:  # the start of the job may arrive later
            status = move(JOB, status, JobStatus.RUNNING)
        # Another gateway may have become the job's home since the runs were planned.
        home = self._home_of(local)
        owned = tuple(replace(run, owner=home) for run in runs)
        # A slow start may arrive after a later one, whose parameters stay in force.
        amendments = tuple(dict.fromkeys((*local.amendments, *holding)))
        local = replace(
            local,
            status=status,
            home=home,
            runs=(*local.runs, *owned),
            amendments=amendments,
        )
        task_name = runs[0].task_name
        local = local.with_note(
            now, "task accepted", sender, task=task_name, task_id=runs[0].task_id
        )
        for run in owned:
            for message in run.warnings:
                local = local.with_note(
                    now,
                    "input missing",
                    task=task_name,
                    message=message,
                )
        return local

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
        local = self._job_of_task(task_id, sender)
        self._check_sender(local, sender)
        runs = _runs_of_role(local, task_id, role)
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
        local = self._job_for(job_id, sender)
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
        """End a task, which is named by its id, or by its job and name.

        A late stop of an attempt that was followed by another one changes nothing.
        """
        if job_id:
            local = self._job_for(job_id, sender)
        else:
            local = self._job_of_task(task_id, sender)
            self._check_sender(local, sender)
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

    # ---------------------------------------------------------------- callbacks of containers

    def callback(self, report: Callback) -> None:
        """Record a container's report. Raises `NotFound` for an unknown run.

        A container reports once, and may fail if it gets no response. Therefore the report waits
        while the database does not respond.
        """

        def record() -> None:
            self._record_callback(report)

        wait_for_database(record)

    def _record_callback(self, report: Callback) -> None:
        """Record a container's report as an event of its run."""
        job_id, run_id = self._find_run(report)
        if report.status is None:
            self._executor.record(
                job_id,
                Misreported(run_id, report.word, self._clock()),
            )
            return
        message = report.result_message
        cause = None
        has_failed = report.status is TaskStatus.FAILED
        if has_failed or (report.result_code and not message):
            run = _run_with_id(self._store.local_jobs.get(job_id), run_id)
            message = message or run.results.get(report.result_code, "")
            if has_failed:
                cause = self._executor.probes.storage_failure(run, message)
        event = Reported(
            run=run_id,
            status=report.status,
            at=self._clock(),
            result_code=report.result_code,
            result_message=message,
            cause=cause,
        )
        self._executor.record(job_id, event)

    def _find_run(self, report: Callback) -> tuple[str, str]:
        """Return the ids of a report's job and run.

        The run is known by the token in the callback's address. A container that reports to another
        address is recognised by its own network address; raises `NotAllowed` if that is ambiguous.
        """
        if report.run_id:
            job_id = self._store.job_of_run(report.run_id)
            if not job_id:
                raise NotFound("no run of this node has that token", reason="RUN_UNKNOWN")
            return job_id, report.run_id
        local = self._job_of_task(report.task_id)
        runs = self._runs_at(local, report)
        if len(runs) != 1:
            raise NotAllowed(
                f"{report.address or 'an unknown address'} is not the address of one run of "
                f"{report.role or 'any role'} in task {report.task_id}: "
                "use system.callback unchanged, with ?run="
            )
        return local.id, runs[0].run_id

    def _runs_at(
        self,
        local: LocalJob,
        report: Callback,
    ) -> list[Run]:
        """Return the runs of a report's task and role that have the sender's address."""
        if not report.address:
            return []
        matching = []
        for run in _runs_of_role(local, report.task_id, report.role):
            if self._executor.address_of(run) == report.address:
                matching.append(run)
        return matching

    # ---------------------------------------------------------------- access

    def _job_of_task(self, task_id: str, sender: NodeId = "") -> LocalJob:
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

    def _job_for(self, job_id: str, sender: NodeId) -> LocalJob:
        """Return a job here if the sender is its scheduling node, or empty (this node).

        Raises `NotFound` for a sender outside the job, and `NotAllowed` for the job's other nodes.
        """
        local = self._store.local_jobs.get(job_id)
        if is_outside(local.spec, sender):
            raise job_unknown(job_id)
        self._check_sender(local, sender)
        return local

    def _check_sender(self, local: LocalJob, sender: NodeId) -> None:
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


# -------------------------------------------------------------------- decisions


def _has_decision(local: LocalJob, approve: bool) -> bool:
    """Return whether a job's approval is decided in this way.

    An approved job whose images are still fetched is not READY yet, but counts as approved.
    """
    if local.approval is None:
        return False
    if approve:
        return local.approval.decision is JobStatus.READY or _only_awaits_images(local)
    return local.approval.decision is JobStatus.REJECTED


def _only_awaits_images(local: LocalJob) -> bool:
    """Return whether a job waits for its images and for no person."""
    awaits_images = approval.pending_preparation(local) is not None
    return awaits_images and not approval.awaits_person(local)


def _earlier_refusal(local: LocalJob) -> Failure | None:
    """Return why a job was refused here before; None if it was not.

    A job that was audited but not created also counts as refused if the request was withdrawn.
    """
    if local.approval is not None and local.approval.failure is not None:
        return local.approval.failure
    if approval.is_unused(local) and local.ending is not None:
        return local.ending.failure
    return None


def _decision_word(local: LocalJob) -> str:
    """Return the decision on a job for a message: READY, REJECTED, or "ended" for none."""
    if approval.pending_preparation(local):
        return JobStatus.READY
    if local.approval is None or local.approval.decision is JobStatus.PENDING:
        return "ended"
    return local.approval.decision


# -------------------------------------------------------------------- task starts


def _with_amendments(local: LocalJob, ids: Sequence[str]) -> LocalJob:
    """Return the job with these offered parameters in force.

    Raises `Refused` if one of them was never offered.
    """
    unknown = set(ids) - {offer.id for offer in local.offered}
    if unknown:
        raise Refused(
            f"job {local.id}: no parameters {', '.join(sorted(unknown))} were offered here"
        )
    return replace(local, amendments=tuple(ids))


def _lasting_offers(local: LocalJob) -> list[Amendment]:
    """Return the offers that stay when a further one comes.

    These are all offers in force, and the newest `_MAX_PENDING_OFFERS` of the others.
    """
    pending = [offer for offer in local.offered if offer.id not in local.amendments]
    outdated = pending[:-_MAX_PENDING_OFFERS]
    return [offer for offer in local.offered if offer not in outdated]


def _is_started(local: LocalJob, task_id: str, task_name: str) -> bool:
    """Return whether this attempt has started here already.

    Raises `Conflict` if the id is that of another task.
    """
    runs = local.runs_of(task_id)
    if not runs:
        return False
    if runs[0].task_name != task_name:
        text = f"task id {task_id} is that of task {runs[0].task_name} here"
        raise Conflict(text, reason="TASK_ID_CONFLICT")
    return True


def _check_attempt(
    local: LocalJob,
    task: DagNode,
    holding: Sequence[str],
) -> None:
    """Raise `Conflict` unless a task may begin now, with the offers ``holding`` in force.

    A task whose part here succeeded may run again if it failed at another node, until a task that
    takes its output has begun here.
    """
    _check_parameters(local, task, holding)
    newest = local.newest_runs(task.name)
    if not all(run.over for run in newest):
        raise Conflict(
            f"task {task.name} runs here under another task id", reason="TASK_ID_CONFLICT"
        )
    has_succeeded = newest and all(run.status is RunStatus.SUCCESS for run in newest)
    if has_succeeded and _is_final(local, task, newest[0].roles):
        text = f"task {task.name} of job {local.id} has succeeded, and does not run again"
        raise Conflict(text, reason="ATTEMPTS_USED_UP")
    _check_attempts(local, task)


def _check_attempts(local: LocalJob, task: DagNode) -> None:
    """Raise `Conflict` if a task has run as often as its retries allow."""
    attempts = {run.task_id for run in local.runs if run.task_name == task.name}
    allowed = 1 + local.spec.settings.time_limits.of(task.name).retries
    if len(attempts) >= allowed:
        text = (
            f"task {task.name} of job {local.id} has run {len(attempts)} times, "
            f"and may {allowed} (auto_retries)"
        )
        raise Conflict(text, reason="ATTEMPTS_USED_UP")


def _check_parameters(
    local: LocalJob,
    task: DagNode,
    holding: Sequence[str],
) -> None:
    """Raise `Conflict` if the parameters in force would differ between tasks that have begun."""
    begun_tasks = {run.task_name for run in local.runs}
    changed = _changed_tasks(local, holding)
    if task.name in changed.dropped or changed.added & begun_tasks:
        text = (
            f"task {task.name} would begin with other parameters "
            "than were agreed for the tasks that have begun"
        )
        raise Conflict(f"job {local.id}: {text}", reason="PARAMETERS_CHANGED")


def _is_final(
    local: LocalJob,
    task: DagNode,
    roles: Sequence[str],
) -> bool:
    """Return whether a task's success here is final.

    It is final if all parties with one of the task's ``roles`` are at this node, or if a task that
    takes its output has begun here.
    """
    parties = [party for party in local.spec.parties if party.role in roles]
    if all(party.node == local.node for party in parties):
        return True
    begun_tasks = {run.task_name for run in local.runs}
    return any(task.name in local.spec.dag[name].upstream for name in begun_tasks)


@dataclass(frozen=True)
class _ChangedTasks:
    """The tasks whose parameters a task start changes, compared with the starts before it."""

    added: set[str]  # tasks of offers that the start is the first to name
    dropped: set[str]  # tasks of offers in force that the start does not name


def _changed_tasks(local: LocalJob, holding: Sequence[str]) -> _ChangedTasks:
    """Return the tasks whose parameters change if a start names these offers as in force.

    ``holding`` are the ids of these offers.
    """
    added: set[str] = set()
    dropped: set[str] = set()
    for offer in local.offered:
        was_in_force = offer.id in local.amendments
        is_in_force = offer.id in holding
        if is_in_force and not was_in_force:
            added.update(offer.tasks)
        elif was_in_force and not is_in_force:
            dropped.update(offer.tasks)
    return _ChangedTasks(added, dropped)


def _check_can_exclude(local: LocalJob, left_out: Sequence[str]) -> None:
    """Raise `NotAllowed` unless the job may go on without these parties.

    The job may go on before any task has begun, if its settings allow it and all excluded parties
    are at other nodes.
    """
    excluded = (*local.excluded, *left_out)
    nodes = {party.node for party in local.spec.parties if party.label in excluded}
    if local.runs or local.node in nodes or not can_spare(local.spec, nodes):
        names = ", ".join(left_out)
        raise NotAllowed(
            f"job {local.id} was agreed to with {names}, and does not run without (min_parties)"
        )


def _run_with_id(local: LocalJob, run_id: str) -> Run:
    """Return the job's run with this id, which must exist."""
    return next(run for run in local.runs if run.run_id == run_id)


def _runs_of_role(
    local: LocalJob,
    task_id: str,
    role: str,
) -> Sequence[Run]:
    """Return the runs of a task's attempt at a role such as ``guest`` or ``guest.0``.

    Empty for a role without runs, or with an invalid index. An empty role is all roles.
    """
    name, _, index = role.partition(".")
    if not index:
        return local.runs_of(task_id, name, None)
    number = index_of(index)
    if number is None:
        return ()
    return local.runs_of(task_id, name, number)
