"""Why a job, a task or a run has not ended, since when, and when it is checked next.

Of several reasons only the one that has to be resolved first is returned. The symbols of reasons,
such as ``APPROVAL``, are part of the interface; messages are for people and may change.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gateway.domain import approval, reservations
from gateway.domain import run as domain_run
from gateway.domain.execution import machine
from gateway.domain.execution.agenda import agenda as participant_agenda
from gateway.domain.execution.contact import watched
from gateway.domain.job import Consent, Job, NodeJob, NodeTask, Task
from gateway.domain.run import LocalJob, Preparation, Run
from gateway.domain.scheduling import machine as scheduling_machine
from gateway.domain.scheduling.agenda import agenda
from gateway.domain.spec import Call, CallState, Ending, Failure, NodeId, moment
from gateway.domain.states import JOB, TASK, JobStatus, RunStatus, TaskStatus, ended
from gateway.domain.timeouts import NOW, Due, RunTiming, Timing

UNREACHABLE = "UNREACHABLE"
# Reasons at a participating node that do not depend on a response of the scheduling node.
DECIDED_HERE = frozenset({"APPROVAL", "PREPARING", "CONFIRMING", "CLEANING"})
_MAX_LISTED = 3  # tasks that a message lists


@dataclass(frozen=True)
class Waiting:
    """Why a job, task or run has not ended."""

    reason: str
    message: str
    since: datetime
    next_check: datetime | None = None  # None: only an event can end the waiting

    def as_dict(self) -> dict[str, str | None]:
        """Return it for JSON, times in ISO 8601; ``next_check`` may be null."""
        next_check = None
        if self.next_check is not None:
            next_check = self.next_check.isoformat()
        return {
            "reason": self.reason,
            "message": self.message,
            "since": self.since.isoformat(),
            "next_check": next_check,
        }


# ---------------------------------------------------------------- a job at its scheduling node


def of_job(job: Job, timing: Timing) -> Waiting | None:
    """Return the reason why a job waits.

    An ended job waits only while its stop is still being delivered; otherwise this is None.
    """
    due = _displayable(scheduling_machine.next_due(job, timing), job.created_at)
    if due is None and ended(JOB, job.status):
        return None
    return _with_next_check(_of_job(job), due)


def _of_job(job: Job) -> Waiting | None:
    """Return the reason by the job's state; None for an ended job whose stops are acknowledged.

    The ending of the job counts before a node that does not respond, and that before the state.
    """
    if job.ending is not None:
        return _of_ending(job, job.ending)
    unreachable = _unreachable(job, job.active)
    if unreachable is not None:
        return unreachable
    if job.status is JobStatus.PENDING:
        return _of_pending(job)
    if job.status is JobStatus.READY:
        return _of_ready(job)
    return _of_running(job)


def _of_ending(job: Job, ending: Ending) -> Waiting | None:
    """Return the reason for a job that ends, or whose stop some node has not acknowledged.

    None for an ended job whose stops are all acknowledged.
    """
    if not ended(JOB, job.status):
        text = f"it ends ({_cause(ending)}); nodes are being stopped"
        return Waiting("ENDING", text, ending.at)
    unstopped = [node for node in job.nodes.values() if _awaits_stop(node)]
    if not unstopped:
        return None
    since = _first_sent(node.stop for node in unstopped) or ending.at
    text = f"the stop is repeated to {_names(unstopped)}"
    return Waiting("STOP_NOT_ACKNOWLEDGED", text, since)


def _cause(ending: Ending) -> str:
    """Return the reason of the failure that ends a job, else the outcome."""
    if ending.failure is None:
        return ending.outcome
    return ending.failure.reason


def _awaits_stop(node: NodeJob) -> bool:
    """Return whether a stop was sent to the node and not acknowledged."""
    was_sent = node.create.tries > 0 and node.stop.tries > 0
    return was_sent and not node.stop.completed


def _of_pending(job: Job) -> Waiting:
    """Return the reason for a job that some node has not accepted yet, or has not approved.

    A missing acceptance comes first.
    """
    uncreated = [node for node in job.active if not node.create.completed]
    if uncreated:
        since = _first_sent(node.create for node in uncreated) or job.created_at
        return Waiting("CREATING", f"answers to the creation of {_names(uncreated)}", since)
    return _of_consents(_open_consents(job), job.created_at)


def _open_consents(job: Job) -> dict[NodeId, Consent]:
    """Return the approvals that the job waits for, by node."""
    consents: dict[NodeId, Consent] = {}
    for node in job.active:
        if node.consent is not None and node.decides:
            consents[node.node] = node.consent
    return consents


def _of_consents(
    consents: Mapping[NodeId, Consent],
    created_at: datetime,
) -> Waiting:
    """Return the reason for a job that waits for approval at nodes.

    If every such node waits for its own preparations, such as images, these are the reason, as no
    person has to decide.
    """
    requests = [consent.asked_at for consent in consents.values()]
    since = min(requests, default=created_at)
    if consents and all(consent.waits_for for consent in consents.values()):
        causes = [f"{node}: {consent.waits_for}" for node, consent in consents.items()]
        return Waiting("PREPARING", "; ".join(causes), since)
    deadlines = [f"{moment(consent.decides_by)} ({node})" for node, consent in consents.items()]
    until = ", ".join(deadlines)
    return Waiting("APPROVAL", f"waits for approval until {until}", since)


def _of_ready(job: Job) -> Waiting:
    """Return the reason for a job that waits for resources, or for its start at some nodes."""
    shortage = reservations.waits_for(job)
    if shortage is not None:
        text, since, next_check = shortage
        return Waiting("RESOURCES", text, since, next_check)
    unstarted = [node for node in job.active if not node.start.completed]
    since = _first_sent(node.start for node in unstarted) or job.created_at
    return Waiting("STARTING", f"answers to the start of {_names(unstarted)}", since)


def _of_running(job: Job) -> Waiting:
    """Return the reason for a running job: its suspension, or the tasks under way."""
    if job.suspended is not None:
        text = f"no task starts: suspended by {job.suspended.by}"
        return Waiting("SUSPENDED", text, job.suspended.at)
    starts: dict[str, datetime] = {}
    for task in job.tasks.values():
        if task.started_at is not None and not ended(TASK, task.status):
            starts[task.name] = task.started_at
    names = ", ".join(starts) or "tasks"
    since = min(
        starts.values(),
        default=job.created_at,
    )
    return Waiting("RUNNING", f"{names} under way", since)


def _unreachable(
    job: Job,
    nodes: Iterable[NodeJob],
) -> Waiting | None:
    """Return the reason if some of the nodes do not respond; None if all do."""
    silent = []
    times = []
    for node in nodes:
        if node.unreachable_since is not None:
            silent.append(node)
            times.append(node.unreachable_since)
    if not silent:
        return None
    since = min(times)
    tries = "; ".join(f"{node.node}: {_tries(job, node)}" for node in silent)
    text = f"no answer of {_names(silent)} since {moment(since)} ({tries})"
    return Waiting(UNREACHABLE, text, since)


def _tries(job: Job, node: NodeJob) -> str:
    """Return how often the node's newest failing call was tried, with its error if it has one.

    If no call to the node has failed so far, the text is about the call under way.
    """
    calls = _calls_under_way(job, node)
    failing = [call for call in calls if call.message] or calls[:1]

    def sent_at(call: Call) -> datetime:
        return call.sent_at or job.created_at

    newest = max(failing, key=sent_at)
    text = f"{newest.tries} tries"
    if newest.tries == 1:
        text = "1 try"
    if newest.message:
        text += f", {newest.message}"
    return text


def _calls_under_way(job: Job, node: NodeJob) -> list[Call]:
    """Return the calls to a node that the job needs a response to in its present state.

    There is always at least one: the creation of a PENDING job, later its start.
    """
    if job.status is JobStatus.PENDING:
        return [node.create]
    calls = [node.start]
    if job.status is JobStatus.RUNNING:
        for part in _open_parts_at(job, node.node):
            calls += [part.start, part.poll]
    return calls


def _open_parts_at(job: Job, node: NodeId) -> list[NodeTask]:
    """Return the node's parts of tasks that have not ended there."""
    parts = [task.nodes.get(node) for task in job.tasks.values()]
    return [part for part in parts if part is not None and not ended(TASK, part.status)]


# ---------------------------------------------------------------- tasks at the scheduling node


def of_tasks(
    job: Job,
    timing: Timing,
) -> dict[str, Waiting | None]:
    """Return the reason why each task waits, by the task's name.

    None for an ended task, and for all tasks of an ended job.
    """
    if ended(JOB, job.status):
        return dict.fromkeys(job.tasks)
    job_waits = None
    if job.status is not JobStatus.RUNNING or job.ending is not None:
        job_waits = of_job(job, timing)  # a reason for all of its tasks
    dues = _earliest(agenda(job, timing), "task")
    first_due = min(
        dues.values(),
        default=None,
    )
    parallelism = reservations.tasks_at_once(job, timing.abreast)
    reasons: dict[str, Waiting | None] = {}
    for name, task in job.tasks.items():
        waiting = _of_task(job, task, job_waits, name in dues, parallelism)
        if waiting is not None:
            due = _displayable(dues.get(name, first_due), waiting.since)
            waiting = _with_next_check(waiting, due)
        reasons[name] = waiting
    return reasons


def _of_task(
    job: Job,
    task: Task,
    job_waits: Waiting | None,
    is_due: bool,
    parallelism: int,
) -> Waiting | None:
    """Return the reason for one task; None if it has ended.

    The stop of the task comes first, then the reason why the job as a whole waits (``job_waits``).
    ``is_due``: a request for the task is planned, so that it does not have to wait its turn.
    """
    if ended(TASK, task.status):
        return None
    if task.ending is not None:
        return _of_task_ending(task, task.ending)
    if job_waits is not None:
        text = f"the job waits: {job_waits.reason}"
        return Waiting("JOB", text, job_waits.since, job_waits.next_check)
    if task.failed_at is not None:
        return _of_retry(task, task.failed_at)
    if task.started_at is None:
        return _of_unstarted_task(job, task, is_due, parallelism)
    return _of_started_task(job, task, task.started_at)


def _of_retry(task: Task, failed_at: datetime) -> Waiting:
    """Return the reason for a task whose attempt failed and is followed by another one."""
    cause = "it failed"
    if task.failure is not None:
        cause = task.failure.reason
    return Waiting("RETRY", f"attempt {task.attempt + 1} failed ({cause})", failed_at)


def _of_task_ending(task: Task, ending: Ending) -> Waiting:
    """Return the reason for a task that is being stopped, or never starts."""
    failure = ending.failure or Failure("STOPPED", "stopped")
    text = "it is stopped"
    if task.started_at is None:
        text = f"it never starts: {failure.message}"
    return Waiting(failure.reason, text, ending.at)


def _of_unstarted_task(
    job: Job,
    task: Task,
    is_due: bool,
    parallelism: int,
) -> Waiting:
    """Return the reason why a task has not started.

    In this order: missing inputs, the job's suspension, the limit of parallel tasks, its turn.
    """
    since = _since_ready(job, task)
    upstream = job.spec.dag[task.name].upstream
    missing = [name for name in upstream if job.tasks[name].status is not TaskStatus.SUCCESS]
    if missing:
        return Waiting("UPSTREAM", f"the output of {', '.join(missing)}", since)
    if job.suspended is not None:
        return Waiting("SUSPENDED", f"suspended by {job.suspended.by}", job.suspended.at)
    if not is_due:
        return Waiting("PARALLELISM", _tasks_ahead(job, parallelism), since)
    return Waiting("STARTING", "its start is due", since)


def _since_ready(job: Job, task: Task) -> datetime:
    """Return when the last task ended whose output this one needs.

    The creation of the job if the task needs none, or none has ended.
    """
    ends = [job.created_at]
    for name in job.spec.dag[task.name].upstream:
        ended_at = job.tasks[name].ended_at
        if ended_at is not None:
            ends.append(ended_at)
    return max(ends)


def _tasks_ahead(job: Job, parallelism: int) -> str:
    """Describe the tasks under way that a further one has to wait for; at most `_MAX_LISTED`."""
    tasks = job.tasks.values()
    under_way = [task.name for task in tasks if task.begun and not ended(TASK, task.status)]
    names = ", ".join(under_way[:_MAX_LISTED])
    hidden = len(under_way) - _MAX_LISTED
    if hidden > 0:
        names += f" and {hidden} more"
    return f"no more than {parallelism} of the job's tasks run in parallel; under way: {names}"


def _of_started_task(job: Job, task: Task, started_at: datetime) -> Waiting:
    """Return the reason for a task under way.

    In this order: a node that does not respond, has not answered the start, or refuses polls; else
    the task waits for the reports of its parties.
    """
    parts = task.nodes.values()
    open_parts = [part for part in parts if not ended(TASK, part.status)]
    unreachable = _unreachable(job, [job.nodes[part.node] for part in open_parts])
    if unreachable is not None:
        return unreachable
    unstarted = [part.node for part in parts if part.start.state is not CallState.OK]
    if unstarted:
        return Waiting("STARTING", f"answers to its start of {', '.join(unstarted)}", started_at)
    refusing = [part for part in open_parts if part.denials]
    if refusing:
        return Waiting(
            "POLL_REFUSED",
            "; ".join(map(_refused_poll, refusing)),
            started_at,
        )
    return _of_reports(parts, started_at)


def _of_reports(parts: Collection[NodeTask], started_at: datetime) -> Waiting:
    """Return the reason for a task that runs: reports to come, counted from the latest one."""
    states = ", ".join(f"{part.node} {part.status}" for part in parts)
    reports = [part.reported_at for part in parts if part.reported_at]
    since = max(reports, default=started_at)
    return Waiting("RUNNING", f"reports of its parties ({states})", since)


def _refused_poll(part: NodeTask) -> str:
    """Describe a node that refuses to report the state of its part."""
    return f"{part.node} refuses to tell the task's state and is asked again: {part.poll.message}"


# ---------------------------------------------------------------- a job at a participating node


def of_local(local: LocalJob, timing: RunTiming) -> Waiting | None:
    """Return the reason why a job waits at a participating node.

    None once it has ended and released everything.
    """
    due = _displayable(machine.next_due(local, timing), local.created_at)
    if ended(JOB, local.status):
        return _with_next_check(_of_ended_local(local, is_released=due is None), due)
    return _with_next_check(_of_open_local(local), due)


def _of_ended_local(local: LocalJob, *, is_released: bool) -> Waiting | None:
    """Return the reason for a job that has ended here: reports or cleanups that are still open.

    ``is_released``: no action is planned for the job any more. None if nothing is open.
    """
    scheduler = local.spec.scheduler
    confirm = approval.pending_confirmation(local)
    if confirm is not None:
        text = f"reports to {scheduler} what was decided here"
        return Waiting("CONFIRMING", text, confirm.sent_at or local.created_at)
    if is_released:
        return None
    since = local.ended_at or local.created_at
    if local.wish is not None and not local.wish.completed:
        text = f"reports to {scheduler} that the job was stopped here; it has not answered"
        return Waiting("CONFIRMING", text, local.wish.sent_at or since)
    if local.closed:
        return None
    return Waiting("CLEANING", "its runs are being ended and removed", since)


def _of_open_local(local: LocalJob) -> Waiting:
    """Return the reason for a job that goes on here.

    A silent scheduling node comes first, then images, then the decision of a person here.
    """
    if watched(local) and _scheduler_is_silent(local.ask):
        since = local.last_contact or local.created_at
        text = f"nothing received from {local.spec.scheduler} since {moment(since)}"
        return Waiting(UNREACHABLE, text, since)
    pull = approval.pending_preparation(local)
    if pull is not None and pull.agreed:
        return _of_pull(pull)
    decision = local.approval
    if decision is not None and local.status is JobStatus.PENDING:
        text = f"waits for approval here until {moment(decision.until)}"
        return Waiting("APPROVAL", text, decision.since)
    if local.status is JobStatus.READY:
        return _of_ready_local(local)
    return _of_running_local(local)


def _of_pull(pull: Preparation) -> Waiting:
    """Return the reason for a job whose images are being pulled."""
    images = ", ".join(pull.images)
    text = f"fetches {images} until {moment(pull.until)}: {pull.progress or 'begins'}"
    return Waiting("PREPARING", text, pull.since)


def _scheduler_is_silent(query: Call) -> bool:
    """Return whether a query of the scheduling node has had no response so far."""
    is_unanswered = query.state in (CallState.SENT, CallState.LOST)
    return is_unanswered and query.tries > 0


def _of_ready_local(local: LocalJob) -> Waiting:
    """Return the reason for an accepted job: its scheduling node has to create it, or to start it.

    A job is approved before its creation if the scheduling node asked for an audit first.
    """
    scheduler = local.spec.scheduler
    since = local.created_at
    if local.approval is not None and local.approval.decided_at is not None:
        since = local.approval.decided_at
    if approval.is_unused(local):
        return Waiting("CREATION", f"approved; {scheduler} has not created the job yet", since)
    return Waiting("START", f"the start by {scheduler}", since)


def _of_running_local(local: LocalJob) -> Waiting:
    """Return the reason for a running job: its runs here, or the next task of this node.

    The time counts from the creation of the oldest run that is not over.
    """
    runs = [run for run in local.runs if not run.over]
    if not runs:
        return _of_idle_local(local)
    names = ", ".join(dict.fromkeys(run.task_name for run in runs))
    since = min(run.created_at for run in runs)
    return Waiting("RUNNING", f"{names} under way", since)


def _of_idle_local(local: LocalJob) -> Waiting:
    """Return the reason for a running job without a run here: this node waits for its next task."""
    ends = [run.ended_at for run in local.runs if run.ended_at]
    text = f"{local.spec.scheduler} has nothing for this node just now"
    return Waiting("NEXT_TASK", text, max(ends, default=local.created_at))


# ---------------------------------------------------------------- runs at a participating node


def of_runs(
    local: LocalJob,
    timing: RunTiming,
    turns: Collection[str] = (),
) -> dict[str, Waiting | None]:
    """Return the reason why each run waits, by run id; None for an ended run.

    ``turns`` are the ids of runs whose launch is queued behind launches of other jobs.
    """
    dues = _earliest(participant_agenda(local, timing), "run")
    first_due = _displayable(
        min(dues.values(), default=None),
        local.created_at,
    )
    reasons: dict[str, Waiting | None] = {}
    for run in local.runs:
        waiting = _of_run(local, run, dues.get(run.run_id))
        if run.run_id in turns and waiting is not None and waiting.reason == "LAUNCHING":
            text = "containers of other jobs are started first"
            waiting = replace(
                waiting,
                reason="TURN",
                message=text,
            )
        reasons[run.run_id] = _with_next_check(waiting, first_due)
    return reasons


def _of_run(
    local: LocalJob,
    run: Run,
    due: datetime | None,
) -> Waiting | None:
    """Return the reason for one run by its state; None if it has ended.

    ``due`` is the time of the next step planned for the run, if there is one.
    """
    due = _displayable(due, run.created_at)
    match run.status:
        case RunStatus.WAITING:
            return _of_waiting_run(local, run, due)
        case RunStatus.LAUNCHING:
            since = run.launch.sent_at or run.created_at
            return Waiting("LAUNCHING", "its container is being started", since, due)
        case RunStatus.RUNNING:
            since = run.started_at or run.created_at
            return Waiting("RUNNING", _running_text(run), since, due)
        case RunStatus.STOPPING:
            since = run.stop_at or run.created_at
            return Waiting("STOPPING", "its container is being stopped", since, due)
        case _:
            return None


def _of_waiting_run(
    local: LocalJob,
    run: Run,
    due: datetime | None,
) -> Waiting:
    """Return the reason why a run is not launched: a shortage in the job's pool, or its turn.

    A run with a due launch has no shortage.
    """
    if due is None:
        shortage = domain_run.waits_for(local, run)
        if shortage:
            return Waiting("RESOURCES", shortage, run.created_at)
    return Waiting("LAUNCH", "its container is to be started", run.created_at, due)


def _running_text(run: Run) -> str:
    """Describe the last news of a running container: its engine's silence, or its last report."""
    if run.away_at is not None:
        return f"its engine has not answered since {moment(run.away_at)}"
    if run.reported:
        return f"it reported {run.reported}"
    return "it has not reported yet"


# ---------------------------------------------------------------- times and names


def _earliest(
    dues: Iterable[Due[object]],
    subject: str,
) -> dict[str, datetime]:
    """Return the earliest due time for each value of the commands' attribute ``subject``.

    The key is "" for commands without the attribute, such as requests about the job as a whole.
    """
    earliest: dict[str, datetime] = {}
    for due in dues:
        name = getattr(due.command, subject, "")
        earliest[name] = min(
            due.at,
            earliest.get(name, due.at),
        )
    return earliest


def _with_next_check(
    waiting: Waiting | None,
    due: datetime | None,
) -> Waiting | None:
    """Return a reason with its next check: its own if it has one, otherwise ``due``.

    None for None: the subject does not wait.
    """
    if waiting is None or waiting.next_check is not None:
        return waiting
    return replace(waiting, next_check=due)


def _displayable(due: datetime | None, earliest: datetime) -> datetime | None:
    """Return a due time for people: ``earliest`` in place of `timeouts.NOW`, which is in year 1.

    None stays None: only an event can end the waiting.
    """
    if due is not None and due.year == NOW.year:
        return earliest
    return due


def _names(nodes: Iterable[NodeJob]) -> str:
    """List nodes for a message."""
    return ", ".join(node.node for node in nodes)


def _first_sent(calls: Iterable[Call]) -> datetime | None:
    """Return when the first of these calls was made; None if none was."""
    times = [call.sent_at for call in calls if call.sent_at is not None]
    return min(times, default=None)
