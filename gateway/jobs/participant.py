"""Use cases of a participating node: accept a job, run its tasks, answer for them, end it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from gateway.data.models import Models
from gateway.data.sharing import NotShared
from gateway.domain import approval, validation
from gateway.domain import dag as flow
from gateway.domain.approval import Policy, Verdict
from gateway.domain.dry_run import Item
from gateway.domain.execution.messages import Decided, Reported, StopAsked
from gateway.domain.execution.transitions import merge_runs
from gateway.domain.job import Acceptance
from gateway.domain.problems import LARGEST_NAME, Problem, index_of, name_rule
from gateway.domain.run import LocalJob
from gateway.domain.spec import Ending, JobSpec, NodeId
from gateway.domain.states import JOB, JobStatus, RunStatus, ended, move
from gateway.errors import Conflict, Invalid, NotAllowed, NotFound, Refused
from gateway.jobs.executor import Executor
from gateway.jobs.inheritance import Inheritance, Offer
from gateway.jobs.planner import TaskPlanner
from gateway.jobs.readiness import Lack, Looked
from gateway.jobs.resources import Resources
from gateway.jobs.submission import digest
from gateway.ports import Callback, Clock, TaskNews
from gateway.runtime.batching import while_away
from gateway.store.store import Store
from provider_registry.registry import Registry, Unknown


class Participant:
    """Implements `gateway.ports.ParticipantApi`."""

    def __init__(
        self,
        node: NodeId,
        store: Store,
        executor: Executor,
        planner: TaskPlanner,
        registry: Registry,
        knows: Callable[[NodeId], bool],
        clock: Clock,
        resources: Resources,
        models: Models | None = None,
        home_of: Callable[[LocalJob], str] = lambda local: local.home,
        policy: Policy = Policy(),
        takes_word: Callable[[NodeId], bool] = lambda node: True,
        inheritance: Inheritance | None = None,
    ) -> None:
        """``takes_word``: whether a scheduling node waits where somebody here has to agree first."""
        self._node = node
        self._store = store
        self._executor = executor
        self._planner = planner
        self._registry = registry
        self._knows = knows
        self._clock = clock
        self._home_of = home_of
        self._resources = resources
        self._models = models
        self._inheritance = inheritance
        self.admit: Callable[[], None] = lambda: None
        """raises `Refused` while no job of another node is taken"""
        self.admit_from: Callable[[NodeId], None] = lambda node: None
        """raises `Busy` for a node that has as many jobs under way here as it may"""
        self.deleting: Callable[[str, NodeId, bool], None]
        """set once, beside the other use cases: job id, sender, whether only to try"""
        self.oddities: Callable[[JobSpec], Sequence[str]] = lambda spec: ()
        """tells what is to be mended before tasks of a job can start here"""
        self.looked: Callable[[JobSpec], Looked] = lambda spec: Looked()
        """says what is not here yet, or not at all, of what a job needs"""
        self.lacks: Callable[[], Sequence[Lack]] = lambda: ()
        """says what keeps this node from taking any job just now"""
        self.patience: Callable[[int], float] = lambda images: 600.0
        """how many seconds so many images may take"""
        self.refuse_missing = False
        """a job whose images are not here, and cannot be fetched, is refused instead of warned of"""
        self.foretelling: Callable[[JobSpec, NodeId], Sequence[Item]]
        """set once, beside the other use cases"""
        self.not_shared: Callable[[JobSpec], NotShared | None] = lambda spec: None
        """says why a job may not use the datasets here that it names"""
        self.audit: Callable[[NodeId, str, Mapping[str, Any]], None] = lambda who, action, detail: None
        """writes down, beside the job's timeline, that a start was not allowed: who asked, for what, why"""
        self.barred: Callable[[NodeId, str], str] = lambda node, component: ""
        """says why a node may not have a component run here; empty where it may"""
        self._policy = policy
        self._takes_word = takes_word

    def create_job(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        """Check and store a job, with one view of the registry throughout."""
        with self._registry.one_view():
            return self._create_job(spec, sender)

    def _create_job(self, spec: JobSpec, sender: NodeId) -> Acceptance:
        local = self.checked(spec, sender)
        now = self._clock()
        looked = self._looked(local)
        local = replace(self._approved(local, sender, now, looked), checks=looked.checks)
        local = approval.with_preparation(local, looked.to_fetch, self.patience(len(looked.to_fetch)), now)
        if not self._store.local_jobs.add(local, spec.flow_id):
            known = self._store.local_jobs.get(spec.job_id)
            same = approval.is_same(known, spec) if approval.unused(known) else known.digest == local.digest
            if not same:
                raise Conflict(f"job {spec.job_id} is here already, with another body", reason="JOB_ID_CONFLICT")
            local = known
            if approval.unused(known):
                local = self._executor.change(
                    known.id, lambda local: replace(approval.created(local, now, sender), checks=looked.checks)
                )
        self._executor.watch_job(local)
        return self._acceptance(local)

    def checked(self, spec: JobSpec, sender: NodeId) -> LocalJob:
        """Return the record of a job that could run here; nothing is stored yet but what it takes over.

        Raises `Invalid` with every problem, `NotAllowed`, `Refused`.
        """
        if sender and not self._knows(sender):
            raise NotAllowed(f"node {sender} has no enabled route here: ask the admin of {self._node} for one")
        if not spec.parties_at(self._node):
            raise Refused(f"the job names no role of node {self._node}", reason="NOT_A_PARTY")
        if sender not in ("", self._node) and self._store.local_jobs.find(spec.job_id) is None:
            self.admit()
            self.admit_from(sender)
        problems, _ = validation.check(spec)
        if problems:
            raise Invalid(problems)
        problems, warnings = self._planner.check(spec)
        closed = self.not_shared(spec)
        if closed is not None:  # what else is wrong comes with it
            told = {problem.path for problem in closed.problems}
            more = [p for p in problems if p.path not in told]
            raise NotShared(closed.reason, [*closed.problems, *more], closed.why)
        refused = self._models.refusal(spec) if self._models else None
        if refused is not None:
            raise Invalid([refused.problem, *problems], reason=refused.reason)
        if problems:
            raise Invalid(problems)
        known = self._store.local_jobs.find(spec.job_id)
        offer = None
        if spec.old_job_id and self._inheritance is not None and known is None:
            offer = self._inheritance.offer(spec)
            self._inheritance.keep(spec, offer)
        pool = self._resources.pool_for(spec)
        local = LocalJob(
            spec,
            self._node,
            JobStatus.READY,
            self._clock(),
            digest(spec),
            warnings=(*(str(w) for w in warnings), *self.oddities(spec), *_not_taken_over(offer)),
            pool=pool,
            inherited=tuple(offer.runs) if offer else (),
            can_inherit=tuple(offer.tasks) if offer else None,
        )
        return replace(local, home=self._home_of(local))

    def foretell(self, spec: JobSpec, sender: NodeId) -> Sequence[Item]:
        """Tell what would happen.

        Raises `NotAllowed` for a node without a route, `Refused` where it has no role here.
        """
        if sender and not self._knows(sender):
            raise NotAllowed(f"node {sender} has no enabled route here: ask the admin of {self._node} for one")
        if not spec.parties_at(self._node):
            raise Refused(f"the job names no role of node {self._node}", reason="NOT_A_PARTY")
        return self.foretelling(spec, sender)

    def _approved(self, local: LocalJob, sender: NodeId, now: datetime, looked: Looked) -> LocalJob:
        """Return a new job as the node's policy has it: READY, or PENDING for a person. Raises `NotAllowed`."""
        verdict, words = self.judged(local.spec, sender)
        if verdict is Verdict.REJECT:
            raise NotAllowed(f"node {self._node} does not take part: {words}")
        if verdict is Verdict.APPROVE or self._store.local_jobs.find(local.id) is not None:
            detail = {"checks": dict(looked.checks)} if looked.checks else {}
            return local.noted(now, f"job {'PENDING' if looked.to_fetch else 'READY'} here", sender, **detail)
        if not self._takes_word(local.spec.scheduler):
            text = (
                f"a person at {self._node} has to agree ({words}), which {local.spec.scheduler} does not wait for"
            )
            raise Refused(f"{text}; a rule under approval.rules can agree", reason="APPROVAL_UNSUPPORTED")
        return approval.opened(local.noted(now, "job PENDING here", sender), self._policy, words, now)

    def _looked(self, local: LocalJob) -> Looked:
        """Look what is not here of what a new job needs. Raises `Invalid`, `Refused` where that is a refusal."""
        known = self._store.local_jobs.find(local.id)
        if known is not None and not approval.unused(known):
            return Looked()
        looked = self.looked(local.spec)
        if looked.lacks:
            words = "; ".join((*(lack.text for lack in looked.lacks), *map(str, looked.missing)))
            raise Refused(f"node {self._node} cannot take jobs now: {words}", reason=looked.lacks[0].reason)
        if looked.missing and self.refuse_missing:
            raise Invalid(looked.missing, reason="IMAGE_NOT_FOUND")
        waits = known is None and self._takes_word(
            local.spec.scheduler
        )  # else images are fetched before the launch
        return looked if waits else replace(looked, to_fetch={})

    def judged(self, spec: JobSpec, sender: NodeId, command: str = approval.CREATE) -> tuple[Verdict, str]:
        """Ask the policy. Who wants the job is the node that asks, or where that is this one, the initiator."""
        source = spec.initiator if sender in ("", self._node) else sender
        roles_of = flow.once_per_component(self.roles)
        wanted = list(approval.pieces(spec, self._node, source, roles_of, command))
        for piece in wanted if source != self._node else ():
            if words := self.barred(piece.source, piece.component):
                return Verdict.REJECT, words
        return approval.judge(self._policy, wanted, own=source == self._node)

    def roles(self, task: flow.DagNode) -> tuple[str, ...] | None:
        """Return the roles that take part in a task; None where its component is not registered here."""
        ref = task.component
        try:
            return self._registry.find(ref.provider, ref.version, ref.name)[1].roles
        except Unknown:
            return None

    def _acceptance(self, local: LocalJob) -> Acceptance:
        refused = local.approval.failure if local.approval else None
        if refused is None and approval.unused(local) and local.ending is not None:
            refused = local.ending.failure
        if refused is not None:  # and the creation was repeated, or follows a question that was answered so
            raise Refused(refused.message, reason=refused.reason)
        until = approval.expires_at(local)
        within = None if until is None else max((until - self._clock()).total_seconds(), 0.0)
        most = local.pool.tasks_at_once if local.pool else None
        fetched = local.preparation if approval.prepares(local) and not approval.asks_person(local) else None
        return Acceptance(
            local.pool is not None,
            most,
            until is not None,
            within,
            local.can_inherit,
            waits_for=f"fetches {', '.join(fetched.images)}" if fetched else "",
            checks=local.checks,
        )

    def decide(self, job_id: str, approve: bool, by: str, words: str) -> tuple[LocalJob, bool]:
        """Take a person's decision on a job that waits for one; once. Raises `NotFound`, `Conflict`.

        Returns the job, and whether this decision is the one that counts: False where the same was decided
        before, whose words stay.
        """
        local = self._store.local_jobs.get(job_id)
        if local.approval is None or approval.alone(local):
            raise Conflict(f"job {job_id} does not wait for approval at {self._node}", reason="NOT_WAITING")
        event = Decided(approve, by, words, self._clock())
        known = self._executor.record(job_id, event).approval
        wanted = JobStatus.READY if approve else JobStatus.REJECTED
        pending = self._store.local_jobs.get(job_id)
        if approve and known is not None and approval.prepares(pending) and not approval.asks_person(pending):
            return pending, (known.decided_at, known.by) == (event.at, by)
        if known is None or known.decision is not wanted:
            said = known.decision if known and known.decision is not JobStatus.PENDING else "ended"
            said = JobStatus.READY if approval.prepares(pending) else said
            raise Conflict(f"job {job_id} is {said} here already", reason="ALREADY_DECIDED")
        return self._store.local_jobs.get(job_id), (known.decided_at, known.by) == (event.at, by)

    def waiting(self) -> list[LocalJob]:
        """Return the jobs here that wait for a person, the oldest first."""
        found = self._store.local_jobs.list(status=JobStatus.PENDING)
        jobs = [self._store.local_jobs.get(one.job_id) for one in reversed(found)]
        return [local for local in jobs if approval.asks_person(local)]

    def _still_allowed(self, local: LocalJob, sender: NodeId) -> None:
        """Ask the policy again before anything starts; it may have changed. Raises `NotAllowed`, `Conflict`."""
        if approval.prepares(local) and not approval.asks_person(local):
            raise Conflict(f"images of job {local.id} are still fetched at {self._node}", reason="NOT_READY")
        if local.status is JobStatus.PENDING:
            raise Conflict(f"nobody at {self._node} has agreed to job {local.id} yet", reason="NOT_APPROVED")
        with self._registry.one_view():
            verdict, words = self.judged(local.spec, sender, approval.START)
            closed = self.not_shared(local.spec)
        if verdict is Verdict.REJECT:
            self._not_allowed(local, sender, words)
            raise NotAllowed(f"node {self._node} does not take part any more: {words}")
        if closed is not None:
            self._not_allowed(local, sender, closed.why)
            raise closed

    def _not_allowed(self, local: LocalJob, sender: NodeId, words: str) -> None:
        now = self._clock()
        self._store.local_jobs.update(
            local.id, lambda local: local.noted(now, "start not allowed", sender, message=words)
        )
        self.audit(sender or self._node, f"start of job {local.id} not allowed", {"message": words})

    def ask_first(self, spec: JobSpec, sender: NodeId) -> Acceptance | None:
        """Return None: this node is not asked before, it answers when the job is created."""
        return None

    def withdraw(self, job_id: str, ending: Ending | None, sender: NodeId) -> None:
        """End the job here: a question that was answered is a job."""
        self.stop_job(job_id, "", ending, sender)

    def hold(self, job_id: str, sender: NodeId) -> None:
        """Hold what the job needs. Raises `NotAllowed` where it may no longer use its data, too."""
        local = self._mine(job_id, sender)
        self._still_allowed(local, sender)
        self._resources.hold(local)

    def give_back(self, job_id: str, sender: NodeId) -> None:
        """Give back what a READY job holds. Raises `Conflict` for any other."""
        local = self._mine(job_id, sender)
        if local.status is not JobStatus.READY:
            raise Conflict(f"job {job_id} is {local.status} here; it returns what it holds at its end")
        self._resources.give_back(job_id)

    def start_job(self, job_id: str, sender: NodeId, without: Sequence[str] = ()) -> None:
        """Hold what is not held yet, and begin; a job that runs stays as it is, but for who is left out."""
        local = self._mine(job_id, sender)
        self._still_allowed(local, sender)
        if local.status is JobStatus.READY:
            self._resources.hold(local)

        def start(local: LocalJob) -> LocalJob:
            if left_out := tuple(x for x in without if x not in local.excluded):
                local = replace(local, excluded=(*local.excluded, *left_out))
                local = local.noted(self._clock(), "goes on without", sender, parties=left_out)
            if local.status is JobStatus.RUNNING:
                return local
            if ended(JOB, local.status):
                raise Conflict(f"job {job_id} has ended here", reason="JOB_ENDED")
            return replace(local, status=move(JOB, local.status, JobStatus.RUNNING)).noted(
                self._clock(), "job RUNNING here", sender
            )

        self._store.local_jobs.update(job_id, start)

    def start_task(self, job_id: str, task_id: str, task_name: str, sender: NodeId) -> None:
        """Store the runs, with one view of the registry; the executor starts them afterwards."""
        with self._registry.one_view():
            self._start_task(job_id, task_id, task_name, sender)

    def _start_task(self, job_id: str, task_id: str, task_name: str, sender: NodeId) -> None:
        local = self._mine(job_id, sender)
        if local.runs_of(task_id):
            return
        self._still_allowed(local, sender)
        if rule := name_rule(task_id, LARGEST_NAME // 3):
            raise Invalid([Problem("task_id", rule, task_id)])
        node = local.spec.dag.get(task_name)
        if node is None:
            raise NotFound(f"job {job_id} has no task {task_name}", reason="TASK_UNKNOWN")
        if self._store.local_job_of_task(task_id) not in (None, job_id):  # the same start may come twice at once
            raise Conflict(f"task id {task_id} belongs to another job here", reason="TASK_ID_CONFLICT")
        runs = self._planner.runs(local, node, task_id)
        if local.status is JobStatus.READY:
            self._resources.hold(local)
        now = self._clock()

        def add(local: LocalJob) -> LocalJob:
            if local.runs_of(task_id):
                return local
            if ended(JOB, local.status):
                raise Conflict(f"job {job_id} has ended here", reason="JOB_ENDED")
            if not all(run.over for run in local.newest_runs(task_name)):
                raise Conflict(f"task {task_name} runs here under another task id", reason="TASK_ID_CONFLICT")
            status = local.status
            if status is JobStatus.READY:  # the start of the job itself may be on its way yet
                status = move(JOB, status, JobStatus.RUNNING)
            home = self._home_of(local)  # which another gateway may just have become
            begun = tuple(run if run.owner == home else replace(run, owner=home) for run in runs)
            local = replace(local, status=status, home=home, runs=(*local.runs, *begun))
            return local.noted(now, "task accepted", sender, task=task_name, task_id=task_id)

        self._executor.change(job_id, add)

    def poll_task(self, task_id: str, role: str, sender: NodeId) -> TaskNews:
        """Tell how a task stands.

        ``role`` may be ``host``, ``host.1`` or empty. Raises `NotFound` (ROLE_UNKNOWN), too.
        """
        local = self._of_task(task_id)
        self._allow(local, sender)
        name, _, index = role.partition(".")
        runs = local.runs_of(task_id, name, _index(index))
        if not runs:
            raise NotFound(f"task {task_id} has no role {role} here", reason="ROLE_UNKNOWN")
        failed = next((run.failure for run in runs if run.failure), None)
        return TaskNews(merge_runs(runs), failed)

    def stop_job(self, job_id: str, task_name: str, ending: Ending | None, sender: NodeId) -> None:
        """Record that it was asked for; the executor ends the runs afterwards."""
        local = self._mine(job_id, sender)
        if task_name:
            self._stop_task(local, task_name, sender)
        else:
            self._executor.record(job_id, StopAsked(self._clock(), None, ending, sender))

    def stop_task(self, job_id: str, task_id: str, task_name: str, sender: NodeId) -> None:
        """End a task; a late stop of an attempt that another has followed changes nothing."""
        if job_id:
            local = self._mine(job_id, sender)
        else:
            local = self._of_task(task_id)
            self._allow(local, sender)
        name = task_name or local.runs_of(task_id)[0].task_name
        newest = local.newest_runs(name)
        if task_id and newest and newest[0].task_id != task_id:
            return  # a late stop of an attempt that another has followed
        self._stop_task(local, name, sender)

    def _stop_task(self, local: LocalJob, task_name: str, sender: NodeId) -> None:
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
        self._executor.record(local.id, StopAsked(self._clock(), tasks, None, sender))

    def delete_job(self, job_id: str, dry_run: bool, sender: NodeId) -> None:
        """Delete the job here."""
        self.deleting(job_id, sender, dry_run)

    def callback(self, said: Callback) -> None:
        """Take in what a container reports. Raises `NotFound` for a run that is not known here.

        Containers say it once, and many fail when they are not heard: an outage of the database is waited out.
        """
        while_away(lambda: self._take_in(said))

    def _take_in(self, said: Callback) -> None:
        job_id, run_id = self._find_run(said)
        reported = Reported(
            run_id, said.status, self._clock(), said.result_code, self._message(job_id, run_id, said)
        )
        self._executor.record(job_id, reported)

    def _message(self, job_id: str, run_id: str, said: Callback) -> str:
        if said.result_message or not said.result_code:
            return said.result_message
        local = self._store.local_jobs.get(job_id)
        run = next(r for r in local.runs if r.run_id == run_id)
        try:
            ref = run.component
            _, component = self._registry.find(ref.provider, ref.version, ref.name, at=local.created_at)
        except Unknown:
            return ""
        return component.result_message(said.result_code) or ""

    def _find_run(self, said: Callback) -> tuple[str, str]:
        if said.run_id:
            job_id = self._store.job_of_run(said.run_id)
            if job_id is None:
                raise NotFound("no run of this node has that token", reason="RUN_UNKNOWN")
            return job_id, said.run_id
        local = self._of_task(said.task_id)
        name, _, index = said.role.partition(".")
        named = local.runs_of(said.task_id, name, _index(index))
        runs = [run for run in named if said.address and self._executor.address_of(run) == said.address]
        if len(runs) != 1:
            raise NotAllowed(
                f"{said.address or 'an unknown address'} is not the address of one run of "
                f"{said.role or 'any role'} in task {said.task_id}: report to system.callback as it is, with ?run="
            )
        return local.id, runs[0].run_id

    def _of_task(self, task_id: str) -> LocalJob:
        job_id = self._store.local_job_of_task(task_id)
        if job_id is None:
            raise NotFound(f"no task {task_id} runs here", reason="TASK_UNKNOWN")
        return self._store.local_jobs.get(job_id)

    def _mine(self, job_id: str, sender: NodeId) -> LocalJob:
        local = self._store.local_jobs.get(job_id)
        self._allow(local, sender)
        return local

    def _allow(self, local: LocalJob, sender: NodeId) -> None:
        if sender and sender != local.spec.scheduler:
            raise NotAllowed(f"only {local.spec.scheduler}, which schedules job {local.id}, may do that")
        if sender:
            self._executor.heard(local)


def _not_taken_over(offer: Offer | None) -> list[str]:
    """Tell which tasks are not taken over from the earlier job, and why."""
    return [f"task {name} is not inherited: {why}" for name, why in offer.lacking.items()] if offer else []


def _index(text: str) -> int | None:
    """Return the index that a role such as ``guest.0`` names: None for none, -1 for one that no party has."""
    if not text:
        return None
    index = index_of(text)
    return -1 if index is None else index
