"""Why a job, a task or a run has not ended, since when, and when it is checked next.

One reason is given, the one that has to be resolved first. Reasons are stable; messages are for people.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from gateway.domain import approval, reservations
from gateway.domain import run as domain_run
from gateway.domain.execution import machine
from gateway.domain.job import Job, NodeJob, Task
from gateway.domain.run import LocalJob, Run
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.scheduling.agenda import agenda
from gateway.domain.spec import Call, CallState
from gateway.domain.states import JOB, TASK, JobStatus, RunStatus, TaskStatus, ended
from gateway.domain.timeouts import RunTiming, Timing

UNREACHABLE = "UNREACHABLE"
DECIDED_HERE = frozenset({"APPROVAL", "PREPARING", "CONFIRMING", "CLEANING"})
"""reasons at a participating node that do not depend on whether the scheduling node responds"""


@dataclass(frozen=True)
class Waiting:
    """What is waited for; ``next_check`` None: only an event can change it."""

    reason: str
    message: str
    since: datetime
    next_check: datetime | None = None

    def as_dict(self) -> dict[str, str | None]:
        """Return it for JSON, times in ISO 8601."""
        return {
            "reason": self.reason,
            "message": self.message,
            "since": self.since.isoformat(),
            "next_check": self.next_check.isoformat() if self.next_check else None,
        }


# ---------------------------------------------------------------- at the scheduling node


def of_job(job: Job, timing: Timing = Timing()) -> Waiting | None:
    """Return what a job waits for; of one that has ended, a stop that is still being delivered, else None."""
    due = _moment(scheduling_machine.next_due(job, timing), job.created_at)
    if job.ending is not None:
        return _of_ending(job, due)
    if (away := _unreachable(job, job.active, due)) is not None:
        return away
    match job.status:
        case JobStatus.PENDING:
            return _of_pending(job, due)
        case JobStatus.READY:
            if (short := reservations.waits_for(job)) is not None:
                text, since, again = short
                return Waiting("RESOURCES", text, since, again or due)
            unsettled = [n for n in job.active if not n.start.completed]
            since = _first(n.start for n in unsettled) or job.created_at
            return Waiting("STARTING", f"answers to the start of {_names(unsettled)}", since, due)
        case _:
            return _of_running(job, due)


def _of_ending(job: Job, due: datetime | None) -> Waiting | None:
    assert job.ending is not None
    open_ = [n for n in job.nodes.values() if n.create.tries and not n.stop.completed and n.stop.tries]
    if ended(JOB, job.status):
        if not open_ or due is None:
            return None
        since = _first(n.stop for n in open_) or job.ending.at
        return Waiting("STOP_NOT_ACKNOWLEDGED", f"the stop is repeated to {_names(open_)}", since, due)
    why = job.ending.failure.reason if job.ending.failure else job.ending.outcome
    return Waiting("ENDING", f"it ends ({why}); nodes are being stopped", job.ending.at, due)


def _unreachable(job: Job, nodes: Iterable[NodeJob], due: datetime | None) -> Waiting | None:
    away = [n for n in nodes if n.unreachable_since is not None]
    if not away:
        return None
    since = min(n.unreachable_since for n in away if n.unreachable_since is not None)
    tries = "; ".join(f"{n.node}: {_tries(job, n)}" for n in away)
    return Waiting(UNREACHABLE, f"no answer of {_names(away)} since {since.isoformat()} ({tries})", since, due)


def _tries(job: Job, node: NodeJob) -> str:
    calls = [node.create if job.status is JobStatus.PENDING else node.start]
    for task in job.tasks.values() if job.status is JobStatus.RUNNING else ():
        if (part := task.nodes.get(node.node)) is not None and not ended(TASK, part.status):
            calls += (part.start, part.poll)
    lost = [call for call in calls if call.message] or calls[:1]
    call = max(lost, key=lambda one: one.sent_at or job.created_at)
    return f"{call.tries} {'try' if call.tries == 1 else 'tries'}" + (f", {call.message}" if call.message else "")


def _of_pending(job: Job, due: datetime | None) -> Waiting:
    unsettled = [n for n in job.active if not n.create.completed]
    if unsettled:
        since = _first(n.create for n in unsettled) or job.created_at
        return Waiting("CREATING", f"answers to the creation of {_names(unsettled)}", since, due)
    asked = [n for n in job.active if n.decides]
    first = min((n.consent.asked_at for n in asked if n.consent), default=job.created_at)
    if asked and all(n.consent and n.consent.waits_for for n in asked):
        what = "; ".join(f"{n.node}: {n.consent.waits_for}" for n in asked if n.consent)
        return Waiting("PREPARING", what, first, due)
    until = "; ".join(f"{n.node} until {n.consent.decides_by.isoformat()}" for n in asked if n.consent)
    return Waiting("APPROVAL", f"somebody has to agree: {until}", first, due)


def _of_running(job: Job, due: datetime | None) -> Waiting:
    if job.suspended is not None:
        return Waiting("SUSPENDED", f"no task starts: suspended by {job.suspended.by}", job.suspended.at, due)
    running = [t for t in job.tasks.values() if t.started_at is not None and not ended(TASK, t.status)]
    since = min((t.started_at for t in running if t.started_at), default=job.created_at)
    return Waiting("RUNNING", f"{', '.join(t.name for t in running) or 'tasks'} under way", since, due)


def of_tasks(job: Job, timing: Timing = Timing()) -> dict[str, Waiting | None]:
    """Return what each task waits for; None for one that has ended, or whose job has."""
    if ended(JOB, job.status):
        return dict.fromkeys(job.tasks)
    whole = None if job.status is JobStatus.RUNNING and job.ending is None else of_job(job, timing)
    dues: dict[str, datetime] = {}
    for due in agenda(job, timing):
        name = getattr(due.command, "task", "")
        dues[name] = min(due.at, dues.get(name, due.at))
    most = reservations.tasks_at_once(job, timing.abreast)
    found = {name: _of_task(job, task, whole, dues.get(name), most) for name, task in job.tasks.items()}
    again = _moment(min(dues.values(), default=None), job.created_at)
    return {name: _at_the_latest(why, again) for name, why in found.items()}


def _at_the_latest(found: Waiting | None, again: datetime | None) -> Waiting | None:
    """Give what has no time of its own the next check of its job."""
    return found if found is None or found.next_check is not None else replace(found, next_check=again)


def _of_task(job: Job, task: Task, whole: Waiting | None, due: datetime | None, most: int) -> Waiting | None:
    if ended(TASK, task.status):
        return None
    if task.ending is not None:
        why = task.ending.failure
        return Waiting(
            why.reason if why else "STOPPED",
            "it is stopped" if task.started_at else f"it never starts: {why.message if why else 'stopped'}",
            task.ending.at,
        )
    if whole is not None:
        return Waiting("JOB", f"the job waits: {whole.reason}", whole.since, whole.next_check)
    since = _since_ready(job, task)
    if task.again_from is not None:
        cause = task.failure.reason if task.failure else "it failed"
        return Waiting(
            "RETRY", f"attempt {task.attempt} failed ({cause})", task.again_from, _moment(due, task.again_from)
        )
    missing = [up for up in job.spec.dag[task.name].upstream if job.tasks[up].status is not TaskStatus.SUCCESS]
    if missing and task.started_at is None:
        return Waiting("UPSTREAM", f"the output of {', '.join(missing)}", since)
    if task.started_at is None:
        if job.suspended is not None:
            return Waiting("SUSPENDED", f"suspended by {job.suspended.by}", job.suspended.at)
        if due is None:
            return Waiting("PARALLELISM", _others(job, most), since)
        return Waiting("STARTING", "its start is due", since, _moment(due, since))
    nodes = [job.nodes[n] for n, part in task.nodes.items() if not ended(TASK, part.status)]
    if (away := _unreachable(job, nodes, _moment(due, since))) is not None:
        return away
    unstarted = [n for n, part in task.nodes.items() if part.start.state is not CallState.OK]
    if unstarted:
        return Waiting(
            "STARTING", f"answers to its start of {', '.join(unstarted)}", task.started_at, _moment(due, since)
        )
    reported = [part.reported_at for part in task.nodes.values() if part.reported_at]
    where = ", ".join(f"{n} {part.status}" for n, part in task.nodes.items())
    return Waiting(
        "RUNNING", f"reports of its parties ({where})", max(reported, default=task.started_at), _moment(due, since)
    )


def _others(job: Job, most: int) -> str:
    begun = [t.name for t in job.tasks.values() if t.begun and not ended(TASK, t.status)]
    shown = ", ".join(begun[:3]) + (f" and {len(begun) - 3} more" if len(begun) > 3 else "")
    return f"no more than {most} of the job's tasks run in parallel; under way: {shown}"


def _since_ready(job: Job, task: Task) -> datetime:
    ups = [job.tasks[up].ended_at for up in job.spec.dag[task.name].upstream]
    return max((at for at in ups if at is not None), default=job.created_at)


# ---------------------------------------------------------------- at a participating node


def of_local(local: LocalJob, timing: RunTiming = RunTiming()) -> Waiting | None:
    """Return what a job waits for at a participating node; None once it has ended and everything is released."""
    due = _moment(machine.next_due(local, timing), local.created_at)
    if ended(JOB, local.status):
        if (confirm := approval.to_confirm(local)) is not None:
            text = f"tells {local.spec.scheduler} what was decided here"
            return Waiting("CONFIRMING", text, confirm.sent_at or local.created_at, due)
        if local.closed or due is None:
            return None
        return Waiting("CLEANING", "its runs are being ended and removed", local.ended_at or local.created_at, due)
    if machine.watched(local) and local.ask.state in (CallState.SENT, CallState.LOST) and local.ask.tries:
        since = local.last_contact or local.created_at
        text = f"nothing received from {local.spec.scheduler} since {since.isoformat()}"
        return Waiting(UNREACHABLE, text, since, due)
    if (known := approval.prepares(local)) and known.agreed:
        text = f"fetches {', '.join(known.images)} until {known.until.isoformat()}: {known.progress or 'begins'}"
        return Waiting("PREPARING", text, known.since, due)
    if local.approval is not None and local.status is JobStatus.PENDING:
        text = f"somebody here has to agree until {local.approval.until.isoformat()}"
        return Waiting("APPROVAL", text, local.approval.since, due)
    if local.status is JobStatus.READY and approval.unused(local):
        text = f"approved; {local.spec.scheduler} has not created the job yet"
        since = local.approval.decided_at if local.approval and local.approval.decided_at else local.created_at
        return Waiting("CREATION", text, since, due)
    if local.status is JobStatus.READY:
        since = local.approval.decided_at if local.approval and local.approval.decided_at else local.created_at
        return Waiting("START", f"the start by {local.spec.scheduler}", since, due)
    open_ = [run for run in local.runs if not run.over]
    if not open_:
        since = max((run.ended_at for run in local.runs if run.ended_at), default=local.created_at)
        return Waiting("NEXT_TASK", f"{local.spec.scheduler} has nothing for this node just now", since, due)
    since = min(run.created_at for run in open_)
    return Waiting("RUNNING", f"{', '.join(dict.fromkeys(r.task_name for r in open_))} under way", since, due)


def of_runs(local: LocalJob, timing: RunTiming = RunTiming()) -> dict[str, Waiting | None]:
    """Return what each run here waits for, by its id; None for one that is over."""
    dues: dict[str, datetime] = {}
    for due in machine.agenda(local, timing):
        run_id = getattr(due.command, "run", "")
        dues[run_id] = min(due.at, dues.get(run_id, due.at))
    again = _moment(min(dues.values(), default=None), local.created_at)
    found = {run.run_id: _of_run(local, run, dues.get(run.run_id)) for run in local.runs}
    return {run_id: _at_the_latest(why, again) for run_id, why in found.items()}


def _of_run(local: LocalJob, run: Run, due: datetime | None) -> Waiting | None:
    due = _moment(due, run.created_at)
    match run.status:
        case RunStatus.WAITING:
            if due is None and (lacks := domain_run.waits_for(local, run)):
                return Waiting("RESOURCES", lacks, run.created_at)
            return Waiting("LAUNCH", "its container is to be started", run.created_at, due)
        case RunStatus.LAUNCHING:
            since = run.launch.sent_at or run.created_at
            return Waiting("LAUNCHING", "its container is being started", since, due)
        case RunStatus.RUNNING:
            text = f"it reported {run.reported}" if run.reported else "it has not reported yet"
            return Waiting("RUNNING", text, run.started_at or run.created_at, due)
        case RunStatus.STOPPING:
            return Waiting("STOPPING", "its container is being stopped", run.stop_at or run.created_at, due)
        case _:
            return None


# ---------------------------------------------------------------- words


def _names(nodes: Iterable[NodeJob]) -> str:
    return ", ".join(n.node for n in nodes)


def _first(calls: Iterable[Call]) -> datetime | None:
    return min((c.sent_at for c in calls if c.sent_at is not None), default=None)


def _moment(due: datetime | None, earliest: datetime) -> datetime | None:
    """Return a time that can be shown: what is due immediately is due since the latest known moment."""
    return earliest if due is not None and due.year == 1 else due
