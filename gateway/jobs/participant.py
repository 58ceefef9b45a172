"""Use cases of a participating node: accept a job, run its tasks, report on them, end it; answer job audits."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from gateway.domain import approval, rerun
from gateway.domain import dag as flow
from gateway.domain.approval import AuditStatus, Policy
from gateway.domain.dag import DagNode
from gateway.domain.dry_run import Item
from gateway.domain.execution import machine
from gateway.domain.execution.messages import Decided, Misreported, Reported, StopRequested
from gateway.domain.execution.runs import merge_runs
from gateway.domain.job import Acceptance, Job
from gateway.domain.problems import LARGEST_NAME, Problem, index_of, name_rule
from gateway.domain.quorum import can_spare
from gateway.domain.run import Audit, LocalJob, Run
from gateway.domain.spec import Amendment, Ending, Failure, JobSpec, NodeId, is_outside
from gateway.domain.states import JOB, JobStatus, RunStatus, TaskStatus, ended, move
from gateway.errors import Conflict, Invalid, NotAllowed, NotFound, Refused, TooLarge
from gateway.jobs.admission import Admission
from gateway.jobs.executor import Executor
from gateway.jobs.planner import TaskPlanner
from gateway.jobs.resources import Resources
from gateway.jobs.retention import Deleting
from gateway.jobs.submission import LARGEST
from gateway.ports import Callback, SchedulerApi, TaskNews
from gateway.runtime.context import NodeContext
from gateway.runtime.loop import while_away
from gateway.store.queries import is_known
from gateway.store.records import job_unknown
from gateway.store.repositories import SqlJobAudits
from gateway.store.serialization import dumps
from gateway.store.store import Store

_MOST_PENDING = 8
"""offers of new parameters that a job keeps until the scheduling node has recorded them; older ones go"""


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
        """``home_of`` returns the gateway that the runs of a job belong to."""
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

    def create_job(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        """Validate and store a job."""
        _check_id(self._store, spec.job_id, spec.job_id)
        with self._registry.one_view():
            local = self.admission.admitted(spec, sender)
        others = local.agreement and sender not in ("", self._node)
        if others and any(
            line.event == "job deleted" for line in self._store.timeline(spec.job_id)
        ):
            text = f"job {spec.job_id} ran here already and was deleted; what was signed is not run twice"
            raise Conflict(text, reason="JOB_ID_CONFLICT")
        if not self._store.local_jobs.add(local, spec.flow_id):
            local = self._created_again(local, sender)
        self._executor.watch(local)
        return self._acceptance(local)

    def _created_again(self, local: LocalJob, sender: NodeId) -> LocalJob:
        known = self._store.local_jobs.get(local.id)
        unused = approval.unused(known)
        if not (approval.is_same(known, local.spec) if unused else known.digest == local.digest):
            if known.spec.scheduler != local.spec.scheduler:
                raise Conflict(
                    f"job {local.id} is here already, from another node", reason="JOB_ID_CONFLICT"
                )
            raise Conflict(
                f"job {local.id} is here already, with another body", reason="JOB_ID_CONFLICT"
            )
        if not unused:
            return known
        now, checks, agreement = self._clock(), local.checks, local.agreement
        return self._executor.change(
            known.id,
            lambda local: replace(
                approval.created(local, now, sender), checks=checks, agreement=agreement
            ),
        )

    def dry_run(self, spec: JobSpec, sender: NodeId) -> Sequence[Item]:
        """Report what would happen to a job here, and create nothing."""
        return self.admission.dry_run(spec, sender)

    def _acceptance(self, local: LocalJob) -> Acceptance:
        refused = local.approval.failure if local.approval else None
        if refused is None and approval.unused(local) and local.ending is not None:
            refused = local.ending.failure
        if (
            refused is not None
        ):  # and the creation was repeated, or follows a question that was answered so
            raise Refused(refused.message, reason=refused.reason)
        until = approval.expires_at(local)
        within = None if until is None else max((until - self._clock()).total_seconds(), 0.0)
        most = local.pool.tasks_at_once if local.pool else None
        fetched = (
            local.preparation
            if approval.prepares(local) and not approval.asks_person(local)
            else None
        )
        return Acceptance(
            local.pool is not None,
            most,
            until is not None,
            within,
            local.can_inherit,
            waits_for=f"fetches {', '.join(fetched.images)}" if fetched else "",
            checks=local.checks,
        )

    def decide(
        self,
        job_id: str,
        approve: bool,
        by: str,
        words: str,
    ) -> tuple[LocalJob, bool]:
        """Take a person's decision on a job that waits for one; once. Raises `NotFound`, `Conflict`.

        Returns the job, and whether this decision is the one that counts: False where the same was decided
        before, whose words stay.
        """
        local = self._store.local_jobs.find(job_id)
        if local is None and not is_known(self._store, job_id):
            raise job_unknown(job_id)
        if local is None or local.approval is None or approval.alone(local):
            raise Conflict(
                f"job {job_id} does not wait for approval at {self._node}", reason="NOT_WAITING"
            )
        event = Decided(approve, by, words, self._clock())
        local = self._executor.record(job_id, event)
        known, prepares = local.approval, approval.prepares(local)
        wanted = JobStatus.READY if approve else JobStatus.REJECTED
        agreed = approve and prepares and not approval.asks_person(local)
        if known is None or not (agreed or known.decision is wanted):
            reported = (
                known.decision if known and known.decision is not JobStatus.PENDING else "ended"
            )
            reported = JobStatus.READY if prepares else reported
            raise Conflict(f"job {job_id} is {reported} here already", reason="ALREADY_DECIDED")
        return local, (known.decided_at, known.by) == (event.at, by)

    def waiting(self) -> list[LocalJob]:
        """Return the jobs here that wait for a person, the oldest first."""
        jobs = map(self._store.local_jobs.get, self._store.local_jobs.in_state(JobStatus.PENDING))
        return [local for local in jobs if approval.asks_person(local)]

    def ask_first(self, spec: JobSpec, sender: NodeId) -> Acceptance | None:
        """Return None: this node is not asked before, it answers when the job is created."""
        return None

    def withdraw(
        self,
        job_id: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """End the job here: a question that was answered is a job."""
        self.stop_job(job_id, "", ending, sender)

    def hold(self, job_id: str, sender: NodeId) -> None:
        """Hold what the job needs. Raises `NotAllowed` where it may no longer use its data, too."""
        local = self._mine(job_id, sender)
        self.admission.check_start(local, sender)
        self._resources.hold(local)

    def give_back(self, job_id: str, sender: NodeId) -> None:
        """Give back what a READY job holds. Raises `Conflict` for any other."""
        local = self._mine(job_id, sender)
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
        """Hold what is not held yet, and begin; a job that runs stays as it is, but for who is left out."""
        local = self._mine(job_id, sender)
        self.admission.check_start(local, sender)
        if local.status is JobStatus.READY:
            self._resources.hold(local)

        def start(local: LocalJob) -> LocalJob:
            left = set(without) - {*local.excluded}
            if left_out := tuple(
                party.label for party in local.spec.parties if party.label in left
            ):
                _check_spared(local, left_out)
                local = replace(local, excluded=(*local.excluded, *left_out))
                local = local.noted(self._clock(), "continues without", sender, parties=left_out)
            if local.status is JobStatus.RUNNING:
                return local
            if ended(JOB, local.status):
                raise Conflict(f"job {job_id} has ended here", reason="JOB_ENDED")
            return replace(local, status=move(JOB, local.status, JobStatus.RUNNING)).noted(
                self._clock(), "job RUNNING here", sender
            )

        self._store.local_jobs.update(job_id, start)

    def offer_parameters(
        self,
        job_id: str,
        offered: Amendment,
        holding: Sequence[str],
        sender: NodeId,
        amended: JobSpec | None = None,
    ) -> None:
        """Check the job with them as at its creation, and put them aside."""
        local = _with_amendments(self._mine(job_id, sender), holding)
        if ended(JOB, local.status):
            raise Conflict(f"job {job_id} has ended here", reason="JOB_ENDED")
        now = rerun.in_force(local)
        begun = {run.task_name for run in local.standing()}
        if problems := rerun.amendable(now, offered.parameters, begun, local.spec.scheduler):
            raise Invalid(problems)
        bundles = {self._node: offered.bundle} if offered.bundle else {}
        amended_job = replace(rerun.amended(now, [offered]), bundles=bundles)
        warnings = self.admission.check_amended(amended_job, sender)

        def add(local: LocalJob) -> LocalJob:
            if any(one.id == offered.id for one in local.offered):
                return local
            pending = [one for one in local.offered if one.id not in local.amendments]
            kept = (*(one for one in local.offered if one not in pending[:-_MOST_PENDING]), offered)
            if (size := len(dumps(kept))) > LARGEST:
                rule = f"must not have more than {LARGEST} characters with earlier ones"
                raise Invalid([Problem("parameters", rule, size)], reason=TooLarge.reason)
            new_warnings = [text for text in warnings if text not in local.warnings]
            local = replace(local, offered=kept, warnings=(*local.warnings, *new_warnings))
            return local.noted(
                self._clock(),
                "new parameters offered",
                offered.by,
                tasks=offered.tasks,
                reason=offered.reason,
            )

        self._store.local_jobs.update(job_id, add)

    def start_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
        holding: Sequence[str] = (),
    ) -> None:
        """Store the runs; the executor starts them afterwards."""
        local = _with_amendments(self._mine(job_id, sender), holding)
        if started := local.runs_of(task_id):
            if started[0].task_name != task_name:
                text = f"task id {task_id} is that of task {started[0].task_name} here"
                raise Conflict(text, reason="TASK_ID_CONFLICT")
            return
        if rule := name_rule(task_id, LARGEST_NAME // 3):
            raise Invalid([Problem("task_id", rule, task_id)])
        node = local.spec.dag.get(task_name)
        if node is None:
            raise NotFound(f"job {job_id} has no task {task_name}", reason="TASK_UNKNOWN")
        _check_id(self._store, task_id, job_id)
        with self._registry.one_view():
            self.admission.check_start(local, sender)
            runs = self._planner.runs(replace(local, spec=rerun.in_force(local)), node, task_id)
        if local.status is JobStatus.READY:
            self._resources.hold(local)
        now = self._clock()

        def add(local: LocalJob) -> LocalJob:
            if local.runs_of(task_id):
                return local
            if ended(JOB, local.status):
                raise Conflict(f"job {job_id} has ended here", reason="JOB_ENDED")
            _check_attempt(local, node, holding)
            status = local.status
            if status is JobStatus.READY:  # the start of the job itself may be on its way yet
                status = move(JOB, status, JobStatus.RUNNING)
            home = self._home_of(local)  # which another gateway may just have become
            begun = tuple(run if run.owner == home else replace(run, owner=home) for run in runs)
            local = replace(
                local,
                status=status,
                home=home,
                runs=(*local.runs, *begun),
            )
            # a slow start may come after a later one, whose parameters hold
            local = replace(local, amendments=tuple(dict.fromkeys((*local.amendments, *holding))))
            local = local.noted(now, "task accepted", sender, task=task_name, task_id=task_id)
            for message in (text for run in begun for text in run.warnings):
                local = local.noted(now, "input missing", task=task_name, message=message)
            return local

        self._executor.change(job_id, add)

    def poll_task(
        self,
        task_id: str,
        role: str,
        sender: NodeId,
    ) -> TaskNews:
        """Tell how a task stands.

        ``role`` may be ``host``, ``host.1`` or empty. Raises `NotFound` (ROLE_UNKNOWN), too.
        """
        local = self._of_task(task_id, sender)
        self._allow(local, sender)
        runs = _runs(local, task_id, role)
        if not runs:
            raise NotFound(f"task {task_id} has no role {role} here", reason="ROLE_UNKNOWN")
        failed = next((run.failure for run in runs if run.failure), None)
        return TaskNews(merge_runs(runs), failed)

    def stop_job(
        self,
        job_id: str,
        task_name: str,
        ending: Ending | None,
        sender: NodeId,
    ) -> None:
        """Record that it was asked for; the executor ends the runs afterwards."""
        local = self._mine(job_id, sender)
        if task_name:
            self._stop_task(local, task_name, sender)
        else:
            self._executor.record(job_id, StopRequested(self._clock(), None, ending, sender))

    def stop_task(
        self,
        job_id: str,
        task_id: str,
        task_name: str,
        sender: NodeId,
    ) -> None:
        """End a task; a late stop of an attempt that another has followed changes nothing."""
        if job_id:
            local = self._mine(job_id, sender)
        else:
            local = self._of_task(task_id, sender)
            self._allow(local, sender)
        name = task_name or local.runs_of(task_id)[0].task_name
        newest = local.newest_runs(name)
        if not (task_id and newest and newest[0].task_id != task_id):
            self._stop_task(local, name, sender)

    def _stop_task(
        self,
        local: LocalJob,
        task_name: str,
        sender: NodeId,
    ) -> None:
        """End a task's runs and those of what follows it.

        A task that succeeded keeps what followed it: some peers tidy up after a success in this way. The same
        where it never started: what follows it cannot run here then, unless it succeeded at other nodes.
        """
        if local.spec.dag.get(task_name) is None:
            raise NotFound(f"job {local.id} has no task {task_name}", reason="TASK_UNKNOWN")
        runs = local.newest_runs(task_name)
        if all(run.status is RunStatus.SUCCESS for run in runs):
            return
        tasks = flow.downstream(local.spec.dag, [task_name])
        self._executor.record(local.id, StopRequested(self._clock(), tasks, None, sender))

    def delete_job(
        self,
        job_id: str,
        dry_run: bool,
        sender: NodeId,
    ) -> None:
        """Delete the job here."""
        self._deleting.delete_for(job_id, sender, dry_run)

    def callback(self, report: Callback) -> None:
        """Take in what a container reports. Raises `NotFound` for a run that is not known here.

        Containers say it once, and many fail when they are not heard: an outage of the database is waited out.
        """

        def take() -> None:
            job_id, run_id = self._find_run(report)
            if report.status is None:
                self._executor.record(job_id, Misreported(run_id, report.word, self._clock()))
                return
            message, cause, failed = report.result_message, None, report.status is TaskStatus.FAILED
            if failed or (report.result_code and not message):
                run = next(
                    run for run in self._store.local_jobs.get(job_id).runs if run.run_id == run_id
                )
                message = message or run.results.get(report.result_code, "")
                cause = self._executor.cause(run, message) if failed else None
            news = Reported(
                run_id, report.status, self._clock(), report.result_code, message, cause
            )
            self._executor.record(job_id, news)

        while_away(take)

    def _find_run(self, report: Callback) -> tuple[str, str]:
        if report.run_id:
            if job_id := self._store.job_of_run(report.run_id):
                return job_id, report.run_id
            raise NotFound("no run of this node has that token", reason="RUN_UNKNOWN")
        local = self._of_task(report.task_id)
        named = _runs(local, report.task_id, report.role)
        runs = [
            run
            for run in named
            if report.address and self._executor.address_of(run) == report.address
        ]
        if len(runs) != 1:
            raise NotAllowed(
                f"{report.address or 'an unknown address'} is not the address of one run of "
                f"{report.role or 'any role'} in task {report.task_id}: use system.callback unchanged, with ?run="
            )
        return local.id, runs[0].run_id

    def _of_task(self, task_id: str, sender: NodeId = "") -> LocalJob:
        job_id = self._store.local_job_of_task(task_id)
        local = self._store.local_jobs.get(job_id) if job_id else None
        if local is None or is_outside(local.spec, sender):
            raise NotFound(f"no task {task_id} runs here", reason="TASK_UNKNOWN")
        return local

    def _mine(self, job_id: str, sender: NodeId) -> LocalJob:
        local = self._store.local_jobs.get(job_id)
        if is_outside(local.spec, sender):
            raise job_unknown(job_id)
        self._allow(local, sender)
        return local

    def _allow(self, local: LocalJob, sender: NodeId) -> None:
        if sender and sender != local.spec.scheduler:
            raise NotAllowed(
                f"only {local.spec.scheduler}, which schedules job {local.id}, may do that"
            )
        if sender:
            self._executor.scheduler_alive(local)


class JobAudits:
    """The job audit of the management layer, as the node is asked by others."""

    def __init__(
        self,
        context: NodeContext,
        admission: Admission,
        scheduler: SchedulerApi,
        executor: Executor,
        policy: Policy,
    ) -> None:
        self._store = context.store
        self._clock = context.clock
        self._audits = SqlJobAudits(context.store)
        self._admission = admission
        self._scheduler = scheduler
        self._executor = executor
        self._policy = policy

    def apply(
        self,
        spec: JobSpec,
        audit: Audit,
        sender: NodeId,
    ) -> None:
        """Judge the job as for its creation, and keep the question; the answer is sent afterwards."""
        _check_id(self._store, spec.job_id, spec.job_id)
        local = self._admission.validated(spec, sender)
        if self._audits.add(sender, audit.id, spec.job_id) != spec.job_id:
            raise Conflict(
                f"audit {audit.id} of {sender} is about another job", reason="AUDIT_ID_CONFLICT"
            )
        verdict, words = self._admission.judged(spec, sender)
        now = self._clock()
        new = approval.asked(local, audit, self._policy, verdict, words, now)
        if not self._store.local_jobs.add(new, spec.flow_id):
            new = self._executor.change(spec.job_id, lambda known: self._again(known, local, audit))
        self._executor.watch(new)

    def _again(
        self,
        known: LocalJob,
        asked: LocalJob,
        audit: Audit,
    ) -> LocalJob:
        same = approval.is_same(known, asked.spec)
        if not same or (known.audit is not None and known.audit.id != audit.id):
            text = f"job {known.id} is here already, with another body or another audit"
            raise Conflict(text, reason="JOB_ID_CONFLICT")
        if known.audit is not None:
            return known
        if ended(JOB, known.status):
            raise Conflict(f"job {known.id} has ended here", reason="JOB_ENDED")
        return approval.asked_late(known, audit, self._clock())

    def confirm(
        self,
        audit_id: str,
        failure: Failure | None,
        sender: NodeId,
    ) -> None:
        """Hand the answer to the job that it is about."""
        self._scheduler.confirm_job(self._scheduled(audit_id, sender).id, failure, sender)

    def terminate(
        self,
        audit_id: str,
        sender: NodeId,
        ending: Ending | None = None,
    ) -> None:
        """Take back what the sender asked, or stop the job that the sender had agreed to."""
        if self._audits.job_of(sender, audit_id) is None:
            job = self._scheduled(audit_id, sender)
            if sender not in job.nodes or not ended(JOB, job.status):
                self._scheduler.stop_job(job.id, "", sender)
            return

        def change(local: LocalJob) -> LocalJob:
            if local.status is JobStatus.RUNNING:
                text = f"job {local.id} runs here already; job/stop ends it"
                raise Conflict(text, reason="JOB_STARTED")
            now = self._clock()
            return machine.apply(
                local, StopRequested(now, None, approval.withdrawal(sender, now, ending), sender)
            )

        self._executor.change(self._asked(audit_id, sender).id, change)

    def status(self, audit_id: str, sender: NodeId) -> AuditStatus:
        """Tell how a question of the sender's stands. Raises `NotFound` for those of others, too."""
        return approval.status(self._asked(audit_id, sender))

    def _asked(self, audit_id: str, sender: NodeId) -> LocalJob:
        """Return the job here that a question of the sender's is about."""
        job_id = self._audits.job_of(sender, audit_id)
        local = self._store.local_jobs.find(job_id) if job_id else None
        if local is None or local.audit is None or local.audit.id != audit_id:
            raise _unknown(audit_id, sender)
        return local

    def _scheduled(self, audit_id: str, sender: NodeId) -> Job:
        """Return the job of this node that a question of its own is about."""
        if (job := self._store.jobs.find(approval.job_of(audit_id))) is None:
            raise _unknown(audit_id, sender)
        return job


def _check_id(
    store: Store,
    id_: str,
    job_id: str,
) -> None:
    """Raise `Conflict` for an id of a job or task that another has: sessions are named after both."""
    owner = store.local_job_of(id_)
    if owner in (None, job_id):
        return
    if job_id == id_ or owner == id_:
        raise Conflict(f"{id_} is the id of another job or task here", reason="JOB_ID_CONFLICT")
    raise Conflict(f"task id {id_} belongs to another job here", reason="TASK_ID_CONFLICT")


def _unknown(audit_id: str, sender: NodeId) -> NotFound:
    return NotFound(
        f"no audit {audit_id} between this node and {sender} is known here", reason="AUDIT_UNKNOWN"
    )


def _with_amendments(local: LocalJob, ids: Sequence[str]) -> LocalJob:
    """Return the job with those of the offered parameters that hold. Raises `Refused` for one that is not here."""
    if missing := set(ids) - {one.id for one in local.offered}:
        raise Refused(
            f"job {local.id}: no parameters {', '.join(sorted(missing))} were offered here"
        )
    return replace(local, amendments=tuple(ids))


def _check_attempt(
    local: LocalJob,
    task: DagNode,
    holding: Sequence[str],
) -> None:
    """Raise `Conflict` unless a job here allows that a task begins now, with those of the offered parameters.

    A task that failed at another node may run again though its part here succeeded; not once a later task has
    begun here, or where all of its parties are here.
    """
    begun = {run.task_name for run in local.runs}
    changed = _changed_tasks(local, holding)
    if task.name in changed.dropped or changed.added & begun:
        text = f"task {task.name} would begin with other parameters than were agreed for the tasks that have begun"
        raise Conflict(f"job {local.id}: {text}", reason="PARAMETERS_CHANGED")
    newest = local.newest_runs(task.name)
    if not all(run.over for run in newest):
        raise Conflict(
            f"task {task.name} runs here under another task id", reason="TASK_ID_CONFLICT"
        )
    if newest and all(run.status is RunStatus.SUCCESS for run in newest):
        roles = newest[0].roles
        alone = all(party.node == local.node for party in local.spec.parties if party.role in roles)
        if alone or any(task.name in local.spec.dag[name].upstream for name in begun):
            text = f"task {task.name} of job {local.id} has succeeded, and does not run again"
            raise Conflict(text, reason="ATTEMPTS_USED_UP")
    attempts = {run.task_id for run in local.runs if run.task_name == task.name}
    allowed = 1 + local.spec.settings.time_limits.of(task.name).retries
    if len(attempts) >= allowed:
        text = f"task {task.name} of job {local.id} has run {len(attempts)} times, and may {allowed} (auto_retries)"
        raise Conflict(text, reason="ATTEMPTS_USED_UP")


def _check_spared(local: LocalJob, left_out: Sequence[str]) -> None:
    """Raise `NotAllowed` unless a job may run without further parties: as it says, before any task has begun."""
    gone = {
        party.node for party in local.spec.parties if party.label in (*local.excluded, *left_out)
    }
    if local.runs or local.node in gone or not can_spare(local.spec, gone):
        names = ", ".join(left_out)
        raise NotAllowed(
            f"job {local.id} was agreed to with {names}, and does not run without (min_parties)"
        )


class _ChangedTasks(NamedTuple):
    """The tasks that get other parameters by a start than by the starts before it."""

    added: set[str]
    dropped: set[str]


def _changed_tasks(local: LocalJob, holding: Sequence[str]) -> _ChangedTasks:
    """Return which tasks the parameters concern that a start names first, or does not name any more."""
    added: set[str] = set()
    dropped: set[str] = set()
    for offered in local.offered:
        held = offered.id in local.amendments
        if offered.id in holding and not held:
            added.update(offered.tasks)
        elif held and offered.id not in holding:
            dropped.update(offered.tasks)
    return _ChangedTasks(added, dropped)


def _runs(
    local: LocalJob,
    task_id: str,
    role: str,
) -> Sequence[Run]:
    """Return the runs of a task at a role such as ``guest`` or ``guest.0``."""
    name, _, index = role.partition(".")
    number = index_of(index) if index else None
    return local.runs_of(task_id, name, -1 if index and number is None else number)
