"""Why a job or a task has not ended, since when, and when it is checked next.

This is the view of the scheduling node; `gateway.domain.local_waiting` has that of a participating
node. Of several reasons only the one that has to be resolved first is returned. The symbols of
reasons, such as ``APPROVAL``, are part of the interface; messages are for people and may change.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gateway.domain import reservations
from gateway.domain.job import Consent, Job, NodeJob, NodeTask, Task
from gateway.domain.lists import listed
from gateway.domain.scheduling import machine
from gateway.domain.scheduling.agenda import agenda
from gateway.domain.spec import Call, CallState, Ending, Failure, NodeId, moment
from gateway.domain.states import JOB, TASK, JobStatus, TaskStatus, ended
from gateway.domain.timeouts import EARLIEST, Due, Timing

UNREACHABLE = "UNREACHABLE"  # reason: a node does not respond
_MAX_LISTED = 3  # tasks that a message lists


@dataclass(frozen=True)
class Waiting:
    """Why a job, a task or a run has not ended."""

    reason: str
    message: str
    since: datetime
    next_check: datetime | None = None  # None: only an event can end the waiting

    def as_dict(self) -> dict[str, str | None]:
        """Return the reason for JSON, times in ISO 8601; ``next_check`` may be null."""
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

    None for an ended job, unless its stop is still being delivered.
    """
    due = displayable_due(machine.next_due(job, timing), job.created_at)
    if due is None and ended(JOB, job.status):
        return None
    return with_next_check(_of_job(job), due)


def _of_job(job: Job) -> Waiting | None:
    """Return the reason by the job's state; None for an ended job whose stops are acknowledged.

    The ending of the job counts before a node that does not respond, and such a node before the
    job's status.
    """
    if job.ending is not None:
        return _of_ending(job, job.ending)
    unreachable = _unreachable(job, job.active)
    if unreachable is not None:
        return unreachable
    finder_by_status = {
        JobStatus.PENDING: _of_pending,
        JobStatus.READY: _of_ready,
    }
    find_reason = finder_by_status.get(job.status, _of_running)
    return find_reason(job)


def _of_ending(job: Job, ending: Ending) -> Waiting | None:
    """Return the reason for a job that ends, or whose stop some node has not acknowledged.

    None for an ended job whose stops are all acknowledged.
    """
    if not ended(JOB, job.status):
        return Waiting(
            reason="ENDING",
            message=f"it ends ({_cause(ending)}); nodes are being stopped",
            since=ending.at,
        )
    unstopped = [node for node in job.nodes.values() if _awaits_stop(node)]
    if not unstopped:
        return None
    stops = [node.stop for node in unstopped]
    return Waiting(
        reason="STOP_NOT_ACKNOWLEDGED",
        message=f"the stop is repeated to {_names(unstopped)}",
        since=_first_sent(stops, ending.at),
    )


def _cause(ending: Ending) -> str:
    """Return the symbol of the failure that ends a job, such as ``TIMEOUT``.

    The outcome, such as ``STOPPED``, for an ending without a failure.
    """
    if ending.failure is None:
        return ending.outcome
    return ending.failure.reason


def _awaits_stop(node: NodeJob) -> bool:
    """Return whether a stop was sent to the node and has had no response.

    A node that was never asked to create the job needs no stop.
    """
    was_sent = node.create.tries > 0 and node.stop.tries > 0
    return was_sent and not node.stop.completed


def _of_pending(job: Job) -> Waiting:
    """Return the reason for a job that some node has not accepted yet, or has not approved.

    A missing acceptance comes first.
    """
    uncreated = [node for node in job.active if not node.create.completed]
    if not uncreated:
        return _of_consents(_open_consents(job), job.created_at)
    creations = [node.create for node in uncreated]
    return Waiting(
        reason="CREATING",
        message=f"answers to the creation of {_names(uncreated)}",
        since=_first_sent(creations, job.created_at),
    )


def _open_consents(job: Job) -> dict[NodeId, Consent]:
    """Return the approvals that the job waits for, by node."""
    return {
        node.node: node.pending_consent for node in job.active if node.pending_consent is not None
    }


def _of_consents(
    consents: Mapping[NodeId, Consent],
    created_at: datetime,
) -> Waiting:
    """Return the reason for a job that waits for approval at nodes.

    If every such node waits for its own preparations, such as images, these are the reason, as no
    person has to decide. The time counts from the first request for approval. A job that waits for
    no node any more, as it is just about to be READY, has waited since its creation
    (``created_at``).
    """
    causes: list[str] = []
    deadlines: list[str] = []
    for node, consent in consents.items():
        deadlines.append(f"{moment(consent.decides_by)} ({node})")
        if consent.waits_for:
            causes.append(f"{node}: {consent.waits_for}")
    requests = [consent.asked_at for consent in consents.values()]
    since = min(requests, default=created_at)
    if causes and len(causes) == len(consents):
        return Waiting(
            reason="PREPARING",
            message="; ".join(causes),
            since=since,
        )
    until = ", ".join(deadlines)
    return Waiting(
        reason="APPROVAL",
        message=f"waits for approval until {until}",
        since=since,
    )


def _of_ready(job: Job) -> Waiting:
    """Return the reason for a job that waits for resources, or for its start at some nodes."""
    shortage = reservations.shortage_of(job)
    if shortage is not None:
        return Waiting(
            reason="RESOURCES",
            message=shortage.message,
            since=shortage.since,
            next_check=shortage.next_try,
        )
    unstarted = [node for node in job.active if not node.start.completed]
    starts = [node.start for node in unstarted]
    return Waiting(
        reason="STARTING",
        message=f"answers to the start of {_names(unstarted)}",
        since=_first_sent(starts, job.created_at),
    )


def _of_running(job: Job) -> Waiting:
    """Return the reason for a running job: its suspension, or the tasks under way.

    The time counts from the start of the task that has run longest.
    """
    if job.suspended is not None:
        return Waiting(
            reason="SUSPENDED",
            message=f"no task starts: suspended by {job.suspended.by}",
            since=job.suspended.at,
        )
    open_tasks = [task for task in job.tasks.values() if not ended(TASK, task.status)]
    starts = {task.name: task.started_at for task in open_tasks if task.started_at is not None}
    names = ", ".join(starts) or "tasks"
    return Waiting(
        reason="RUNNING",
        message=f"{names} under way",
        since=min(starts.values(), default=job.created_at),
    )


def _unreachable(
    job: Job,
    nodes: Iterable[NodeJob],
) -> Waiting | None:
    """Return the reason if some of the nodes do not respond; None if all do.

    The time counts from the silence that has lasted longest.
    """
    silent = []
    times = []
    tries = []
    for node in nodes:
        if node.unreachable_since is not None:
            silent.append(node)
            times.append(node.unreachable_since)
            tries.append(f"{node.node}: {_tries(job, node)}")
    if not silent:
        return None
    since = min(times)
    details = "; ".join(tries)
    return Waiting(
        reason=UNREACHABLE,
        message=f"no answer of {_names(silent)} since {moment(since)} ({details})",
        since=since,
    )


def _tries(job: Job, node: NodeJob) -> str:
    """Return how often the node's newest failing call was tried, with its error if it has one.

    If no call to the node has failed so far, the text is about the call under way that is listed
    first.
    """
    calls = _calls_under_way(job, node)
    failing = [call for call in calls if call.message]
    described = failing or calls[:1]

    def sent_at(call: Call) -> datetime:
        return call.sent_at or job.created_at

    newest = max(described, key=sent_at)
    text = f"{newest.tries} tries"
    if newest.tries == 1:
        text = "1 try"
    if newest.message:
        text += f", {newest.message}"
    return text


def _calls_under_way(job: Job, node: NodeJob) -> list[Call]:
    """Return the calls to a node that the job needs a response to in its present state.

    There is always at least one: the creation of a PENDING job, later its start. A running job
    also has the starts and polls of the tasks that have not ended at the node.
    """
    if job.status is JobStatus.PENDING:
        return [node.create]
    calls = [node.start]
    if job.status is not JobStatus.RUNNING:
        return calls
    for task in job.tasks.values():
        part = task.nodes.get(node.node)
        if part is not None and not ended(TASK, part.status):
            calls.append(part.start)
            calls.append(part.poll)
    return calls


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
    job_waiting = None
    if job.status is not JobStatus.RUNNING or job.ending is not None:
        job_waiting = of_job(job, timing)  # a reason for all of its tasks
    dues = earliest_dues(agenda(job, timing), "task")
    first_due = min(
        dues.values(),
        default=None,
    )
    tasks_ahead = _tasks_ahead(job, timing)
    reasons: dict[str, Waiting | None] = {}
    for name, task in job.tasks.items():
        waiting = _of_task(
            job,
            task,
            job_waiting,
            is_due=name in dues,
            tasks_ahead=tasks_ahead,
        )
        if waiting is not None:
            # If nothing is due for the task, the earliest due time of the job counts.
            due = displayable_due(dues.get(name, first_due), waiting.since)
            waiting = with_next_check(waiting, due)
        reasons[name] = waiting
    return reasons


def _of_task(
    job: Job,
    task: Task,
    job_waiting: Waiting | None,
    *,
    is_due: bool,
    tasks_ahead: str,
) -> Waiting | None:
    """Return the reason for one task; None if it has ended.

    The stop of the task comes first, then the reason why the job as a whole waits.

    - ``job_waiting``: that reason; None if the tasks have reasons of their own
    - ``is_due``: whether a request for the task is planned, so that the task need not wait its turn
    - ``tasks_ahead``: the message for a task that waits its turn
    """
    if ended(TASK, task.status):
        return None
    if task.ending is not None:
        return _of_task_ending(task, task.ending)
    if job_waiting is not None:
        return Waiting(
            reason="JOB",
            message=f"the job waits: {job_waiting.reason}",
            since=job_waiting.since,
            next_check=job_waiting.next_check,
        )
    if task.failed_at is not None:
        return _of_retry(task, task.failed_at)
    if task.started_at is None:
        return _of_unstarted_task(
            job,
            task,
            is_due=is_due,
            tasks_ahead=tasks_ahead,
        )
    return _of_started_task(job, task, task.started_at)


def _of_retry(task: Task, failed_at: datetime) -> Waiting:
    """Return the reason for a task whose attempt failed and is followed by another one."""
    cause = "it failed"
    if task.failure is not None:
        cause = task.failure.reason
    return Waiting(
        reason="RETRY",
        message=f"attempt {task.attempt + 1} failed ({cause})",  # for people, counted from 1
        since=failed_at,
    )


def _of_task_ending(task: Task, ending: Ending) -> Waiting:
    """Return the reason for a task that is being stopped, or never starts."""
    failure = ending.failure or Failure("STOPPED", "stopped")
    text = "it is stopped"
    if task.started_at is None:
        text = f"it never starts: {failure.message}"
    return Waiting(
        reason=failure.reason,
        message=text,
        since=ending.at,
    )


def _of_unstarted_task(
    job: Job,
    task: Task,
    *,
    is_due: bool,
    tasks_ahead: str,
) -> Waiting:
    """Return the reason why a task has not started.

    In this order: missing inputs, the job's suspension, the limit of parallel tasks, its turn.
    """
    since = _since_ready(job, task)
    upstream = job.spec.dag[task.name].upstream
    missing = [name for name in upstream if job.tasks[name].status is not TaskStatus.SUCCESS]
    if missing:
        names = ", ".join(missing)
        return Waiting(
            reason="UPSTREAM",
            message=f"the output of {names}",
            since=since,
        )
    if job.suspended is not None:
        return Waiting(
            reason="SUSPENDED",
            message=f"suspended by {job.suspended.by}",
            since=job.suspended.at,
        )
    if not is_due:
        return Waiting(
            reason="PARALLELISM",
            message=tasks_ahead,
            since=since,
        )
    return Waiting(
        reason="STARTING",
        message="its start is due",
        since=since,
    )


def _since_ready(job: Job, task: Task) -> datetime:
    """Return when the last task ended whose output this one needs.

    It is the creation of the job if the task needs no output, or no such task has ended.
    """
    upstream = job.spec.dag[task.name].upstream
    ends = [job.tasks[name].ended_at for name in upstream]
    return max([job.created_at, *filter(None, ends)])


def _tasks_ahead(job: Job, timing: Timing) -> str:
    """Describe the tasks under way that a further one has to wait for; at most `_MAX_LISTED`."""
    parallelism = reservations.tasks_at_once(job, timing.abreast)
    under_way = [task.name for task in job.tasks.values() if task.is_under_way]
    names = listed(under_way, _MAX_LISTED)
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
        names = ", ".join(unstarted)
        return Waiting(
            reason="STARTING",
            message=f"answers to its start of {names}",
            since=started_at,
        )
    refusals = [_refused_poll(part) for part in open_parts if part.denials]
    if refusals:
        return Waiting(
            reason="POLL_REFUSED",
            message="; ".join(refusals),
            since=started_at,
        )
    return _of_reports(parts, started_at)


def _of_reports(parts: Collection[NodeTask], started_at: datetime) -> Waiting:
    """Return the reason for a task that runs: reports to come, counted from the latest one.

    Without any report the time counts from ``started_at``.
    """
    states = ", ".join(f"{part.node} {part.status}" for part in parts)
    since = max(
        (part.reported_at for part in parts if part.reported_at),
        default=started_at,
    )
    return Waiting(
        reason="RUNNING",
        message=f"reports of its parties ({states})",
        since=since,
    )


def _refused_poll(part: NodeTask) -> str:
    """Describe a node that refuses to report the state of its part."""
    return f"{part.node} refuses to tell the task's state and is asked again: {part.poll.message}"


# ---------------------------------------------------------------- times and names


def earliest_dues(
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


def with_next_check(
    waiting: Waiting | None,
    due: datetime | None,
) -> Waiting | None:
    """Return a reason with its next check: its own if it has one, otherwise ``due``.

    None for None: the subject does not wait.
    """
    if waiting is None or waiting.next_check is not None:
        return waiting
    return replace(waiting, next_check=due)


def displayable_due(due: datetime | None, earliest: datetime) -> datetime | None:
    """Return a due time for people: ``earliest`` in place of `EARLIEST`, which is in year 1.

    None stays None: only an event can end the waiting.
    """
    # the year is compared, as an agenda may have added a pause to `EARLIEST`
    if due is not None and due.year == EARLIEST.year:
        return earliest
    return due


def _names(nodes: Iterable[NodeJob]) -> str:
    """List nodes for a message."""
    return ", ".join(node.node for node in nodes)


def _first_sent(calls: Iterable[Call], default: datetime) -> datetime:
    """Return when the first of these calls was made; ``default`` if none was made."""
    return min(
        (call.sent_at for call in calls if call.sent_at is not None),
        default=default,
    )
