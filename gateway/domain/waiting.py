"""Why a job, a task or a run has not ended, since when, and when it is checked next.

One reason is given, the one that has to be resolved first. Reasons are stable; messages are for people.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from gateway.domain import approval, reservations
from gateway.domain import run as domain_run
from gateway.domain.execution import machine
from gateway.domain.execution.agenda import agenda as agenda_of_party
from gateway.domain.execution.contact import watched
from gateway.domain.job import Job, NodeJob, Task
from gateway.domain.run import LocalJob, Run
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.scheduling.agenda import agenda
from gateway.domain.spec import Call, CallState, Ending, moment
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


def of_job(job: Job, timing: Timing) -> Waiting | None:
    """Return what a job waits for; of one that has ended, a stop that is still being delivered, else None."""
    due = _moment(scheduling_machine.next_due(job, timing), job.created_at)
    if ended(JOB, job.status) and due is None:
        return None
    return _with_next_check(_of_job(job), due)


def _of_job(job: Job) -> Waiting | None:
    if job.ending is not None:
        return _of_ending(job, job.ending)
    if (away := _unreachable(job, job.active)) is not None:
        return away
    match job.status:
        case JobStatus.PENDING:
            return _of_pending(job)
        case JobStatus.READY:
            if (short := reservations.waits_for(job)) is not None:
                text, since, again = short
                return Waiting("RESOURCES", text, since, again)
            unsettled = [n for n in job.active if not n.start.completed]
            since = _first(n.start for n in unsettled) or job.created_at
            return Waiting("STARTING", f"answers to the start of {_names(unsettled)}", since)
    if job.suspended is not None:
        return Waiting(
            "SUSPENDED", f"no task starts: suspended by {job.suspended.by}", job.suspended.at
        )
    running = [
        t for t in job.tasks.values() if t.started_at is not None and not ended(TASK, t.status)
    ]
    since = min((t.started_at for t in running if t.started_at), default=job.created_at)
    return Waiting("RUNNING", f"{', '.join(t.name for t in running) or 'tasks'} under way", since)


def _of_ending(job: Job, ending: Ending) -> Waiting | None:
    open_ = [
        n for n in job.nodes.values() if n.create.tries and not n.stop.completed and n.stop.tries
    ]
    if not ended(JOB, job.status):
        why = ending.failure.reason if ending.failure else ending.outcome
        return Waiting("ENDING", f"it ends ({why}); nodes are being stopped", ending.at)
    if not open_:
        return None
    since = _first(n.stop for n in open_) or ending.at
    return Waiting("STOP_NOT_ACKNOWLEDGED", f"the stop is repeated to {_names(open_)}", since)


def _unreachable(job: Job, nodes: Iterable[NodeJob]) -> Waiting | None:
    away = [n for n in nodes if n.unreachable_since is not None]
    if not away:
        return None
    since = min(n.unreachable_since for n in away if n.unreachable_since is not None)
    tries = "; ".join(f"{n.node}: {_tries(job, n)}" for n in away)
    return Waiting(
        UNREACHABLE, f"no answer of {_names(away)} since {moment(since)} ({tries})", since
    )


def _tries(job: Job, node: NodeJob) -> str:
    calls = [node.create if job.status is JobStatus.PENDING else node.start]
    for task in job.tasks.values() if job.status is JobStatus.RUNNING else ():
        if (part := task.nodes.get(node.node)) is not None and not ended(TASK, part.status):
            calls += (part.start, part.poll)
    lost = [call for call in calls if call.message] or calls[:1]
    call = max(lost, key=lambda one: one.sent_at or job.created_at)
    return f"{call.tries} {'try' if call.tries == 1 else 'tries'}" + (
        f", {call.message}" if call.message else ""
    )


def _of_pending(job: Job) -> Waiting:
    unsettled = [n for n in job.active if not n.create.completed]
    if unsettled:
        since = _first(n.create for n in unsettled) or job.created_at
        return Waiting("CREATING", f"answers to the creation of {_names(unsettled)}", since)
    asked = {n.node: n.consent for n in job.active if n.consent and n.decides}
    first = min((consent.asked_at for consent in asked.values()), default=job.created_at)
    if asked and all(consent.waits_for for consent in asked.values()):
        what = "; ".join(f"{node}: {consent.waits_for}" for node, consent in asked.items())
        return Waiting("PREPARING", what, first)
    until = ", ".join(f"{moment(consent.decides_by)} ({node})" for node, consent in asked.items())
    return Waiting("APPROVAL", f"waits for approval until {until}", first)


def of_tasks(job: Job, timing: Timing) -> dict[str, Waiting | None]:
    """Return what each task waits for; None for one that has ended, or whose job has."""
    if ended(JOB, job.status):
        return dict.fromkeys(job.tasks)
    whole = None if job.status is JobStatus.RUNNING and job.ending is None else of_job(job, timing)
    dues: dict[str, datetime] = {}
    for due in agenda(job, timing):
        name = getattr(due.command, "task", "")
        dues[name] = min(due.at, dues.get(name, due.at))
    most = reservations.tasks_at_once(job, timing.abreast)
    first = min(dues.values(), default=None)
    found: dict[str, Waiting | None] = {}
    for name, task in job.tasks.items():
        why = _of_task(job, task, whole, name in dues, most)
        found[name] = _with_next_check(
            why, _moment(dues.get(name, first), why.since if why else job.created_at)
        )
    return found


def _with_next_check(found: Waiting | None, again: datetime | None) -> Waiting | None:
    """Give what has no time of its own the next check of its job."""
    return (
        found if found is None or found.next_check is not None else replace(found, next_check=again)
    )


def _of_task(
    job: Job,
    task: Task,
    whole: Waiting | None,
    due: bool,
    most: int,
) -> Waiting | None:
    if ended(TASK, task.status):
        return None
    if task.ending is not None:
        why = task.ending.failure
        words = (
            "it is stopped"
            if task.started_at
            else f"it never starts: {why.message if why else 'stopped'}"
        )
        return Waiting(why.reason if why else "STOPPED", words, task.ending.at)
    if whole is not None:
        return Waiting("JOB", f"the job waits: {whole.reason}", whole.since, whole.next_check)
    if task.again_from is not None:
        cause = task.failure.reason if task.failure else "it failed"
        return Waiting("RETRY", f"attempt {task.attempt + 1} failed ({cause})", task.again_from)
    since = _since_ready(job, task)
    if task.started_at is None:
        upstream = job.spec.dag[task.name].upstream
        missing = [up for up in upstream if job.tasks[up].status is not TaskStatus.SUCCESS]
        if missing:
            return Waiting("UPSTREAM", f"the output of {', '.join(missing)}", since)
        if job.suspended is not None:
            return Waiting("SUSPENDED", f"suspended by {job.suspended.by}", job.suspended.at)
        if not due:
            return Waiting("PARALLELISM", _others(job, most), since)
        return Waiting("STARTING", "its start is due", since)
    nodes = [job.nodes[n] for n, part in task.nodes.items() if not ended(TASK, part.status)]
    if (away := _unreachable(job, nodes)) is not None:
        return away
    unstarted = [n for n, part in task.nodes.items() if part.start.state is not CallState.OK]
    if unstarted:
        return Waiting(
            "STARTING", f"answers to its start of {', '.join(unstarted)}", task.started_at
        )
    refused = [
        f"{n} refuses to tell the task's state and is asked again: {part.poll.message}"
        for n, part in task.nodes.items()
        if part.denials and not ended(TASK, part.status)
    ]
    if refused:
        return Waiting("POLL_REFUSED", "; ".join(refused), task.started_at)
    reported = [part.reported_at for part in task.nodes.values() if part.reported_at]
    where = ", ".join(f"{n} {part.status}" for n, part in task.nodes.items())
    return Waiting(
        "RUNNING", f"reports of its parties ({where})", max(reported, default=task.started_at)
    )


def _others(job: Job, most: int) -> str:
    begun = [t.name for t in job.tasks.values() if t.begun and not ended(TASK, t.status)]
    shown = ", ".join(begun[:3]) + (f" and {len(begun) - 3} more" if len(begun) > 3 else "")
    return f"no more than {most} of the job's tasks run in parallel; under way: {shown}"


def _since_ready(job: Job, task: Task) -> datetime:
    ups = [job.tasks[up].ended_at for up in job.spec.dag[task.name].upstream]
    return max((at for at in ups if at is not None), default=job.created_at)


# ---------------------------------------------------------------- at a participating node


def of_local(local: LocalJob, timing: RunTiming) -> Waiting | None:
    """Return what a job waits for at a participating node; None once it has ended and everything is released."""
    due = _moment(machine.next_due(local, timing), local.created_at)
    return _with_next_check(_of_local(local, due is None), due)


def _of_local(local: LocalJob, released: bool) -> Waiting | None:
    known, by = local.approval, local.spec.scheduler
    if ended(JOB, local.status):
        if (confirm := approval.to_confirm(local)) is not None:
            since = confirm.sent_at or local.created_at
            return Waiting("CONFIRMING", f"reports to {by} what was decided here", since)
        if local.wish is not None and not local.wish.completed and not released:
            text = f"reports to {by} that the job was stopped here; it has not answered"
            return Waiting(
                "CONFIRMING", text, local.wish.sent_at or local.ended_at or local.created_at
            )
        if local.closed or released:
            return None
        return Waiting(
            "CLEANING", "its runs are being ended and removed", local.ended_at or local.created_at
        )
    if watched(local) and local.ask.state in (CallState.SENT, CallState.LOST) and local.ask.tries:
        since = local.last_contact or local.created_at
        return Waiting(UNREACHABLE, f"nothing received from {by} since {moment(since)}", since)
    if (pull := approval.prepares(local)) and pull.agreed:
        text = f"fetches {', '.join(pull.images)} until {moment(pull.until)}: {pull.progress or 'begins'}"
        return Waiting("PREPARING", text, pull.since)
    if known is not None and local.status is JobStatus.PENDING:
        return Waiting(
            "APPROVAL", f"waits for approval here until {moment(known.until)}", known.since
        )
    if local.status is JobStatus.READY:
        since = known.decided_at if known and known.decided_at else local.created_at
        if approval.unused(local):
            return Waiting("CREATION", f"approved; {by} has not created the job yet", since)
        return Waiting("START", f"the start by {by}", since)
    open_ = [run for run in local.runs if not run.over]
    if not open_:
        since = max((run.ended_at for run in local.runs if run.ended_at), default=local.created_at)
        return Waiting("NEXT_TASK", f"{by} has nothing for this node just now", since)
    names = ", ".join(dict.fromkeys(r.task_name for r in open_))
    return Waiting("RUNNING", f"{names} under way", min(run.created_at for run in open_))


def of_runs(
    local: LocalJob,
    timing: RunTiming,
    turns: Collection[str] = (),
) -> dict[str, Waiting | None]:
    """Return what each run here waits for, by its id; None for one that is over.

    ``turns``: those whose launch waits behind that of others.
    """
    dues: dict[str, datetime] = {}
    for due in agenda_of_party(local, timing):
        run_id = getattr(due.command, "run", "")
        dues[run_id] = min(due.at, dues.get(run_id, due.at))
    again = _moment(min(dues.values(), default=None), local.created_at)
    found = {run.run_id: _of_run(local, run, dues.get(run.run_id)) for run in local.runs}
    for run_id in turns:
        if (why := found.get(run_id)) is not None and why.reason == "LAUNCHING":
            found[run_id] = replace(
                why, reason="TURN", message="containers of other jobs are started first"
            )
    return {run_id: _with_next_check(why, again) for run_id, why in found.items()}


def _of_run(
    local: LocalJob,
    run: Run,
    due: datetime | None,
) -> Waiting | None:
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
            if run.away_at is not None:
                text = f"its engine has not answered since {moment(run.away_at)}"
            return Waiting("RUNNING", text, run.started_at or run.created_at, due)
        case RunStatus.STOPPING:
            return Waiting(
                "STOPPING", "its container is being stopped", run.stop_at or run.created_at, due
            )
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
