"""Retries, time-outs and stops of tasks.

A failed attempt is stopped at every node. Once it is over at all nodes, and no start or stop of it
can still be on its way, the task begins again under a new id: a node ignores the start of an id
that it knows. Until the last attempt has failed the task keeps its state, as the standard has no
move back to an earlier state.

A stop is a decision, made once and recorded in `Task.ending`. From then on nothing of the task is
started any more, and any later failure counts as caused by the stop. Only a success that was under
way still counts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gateway.domain.dag import downstream
from gateway.domain.job import Attempt, Job, NodeTask, Task
from gateway.domain.job_settings import JobLimits, TaskLimits
from gateway.domain.spec import Call, CallState, Ending, Failure, NodeId
from gateway.domain.states import TASK, JobStatus, Outcome, TaskStatus, ended, may, merge, move
from gateway.domain.task_ids import next_task_id
from gateway.domain.timeouts import EARLIEST, Due, Timing, due_if_set, expiry, time_after

# ---------------------------------------------------------------- retries

# Reasons of failures after which no attempt follows: the next one would fail in the same way, or
# the failure was intended.
FINAL_REASONS = frozenset(
    {
        "ATTEMPTS_USED_UP",
        "COMMAND_NOT_FOUND",
        "COMPONENT_UNKNOWN",
        "DAEMON_NOT_ALLOWED",
        "DATASET_CHANGED",
        "DATASET_DISABLED",
        "DATASET_UNKNOWN",
        "DATA_MISSING",
        "DIGEST_CHANGED",
        "ENGINE_UNSUITABLE",
        "IMAGE_NOT_FOUND",
        "INPUT_MISSING",
        "INVALID",
        "JOB_ENDED",
        "JOB_UNKNOWN",
        "NOT_AUTHORISED",
        "NOT_STOPPED",
        "NOT_SUPPORTED",
        "NO_ROLE_HERE",
        "OUTPUT_MISSING",
        "PARAMETERS_CHANGED",
        "PROVIDER_RETIRED",
        "PROVIDER_UNKNOWN",
        "PULL_DENIED",
        "RESOURCES_NEVER",
        "SIGNATURE_ABSENT",
        "SIGNATURE_INVALID",
        "STOPPED",
        "STORAGE_ADDRESSING",
        "STORAGE_DENIED",
        "STORAGE_GONE",
        "STORAGE_KEY_NOT_SHARED",
        "STORAGE_MISMATCH",
        "STORAGE_UNKNOWN",
        "TASK_ID_CONFLICT",
        "TASK_UNKNOWN",
        "VERSION_UNKNOWN",
    }
)


@dataclass(frozen=True)
class TimeOut:
    """Decision: a task, or the whole job (``task`` empty), takes too long."""

    task: str = ""


@dataclass(frozen=True)
class TryAgain:
    """Decision: the next attempt of a task begins."""

    task: str


def decisions(
    job: Job,
    timing: Timing,
) -> Iterator[Due[TimeOut | TryAgain]]:
    """Yield the decisions that time alone brings: time-outs of job and tasks, and next attempts.

    Only a running job has such decisions, and only if it sets time limits or retries.
    """
    limits = job.spec.settings.time_limits
    if job.status is not JobStatus.RUNNING or limits == JobLimits():
        return
    job_deadline = time_after(job.started_at, limits.job_timeout)
    yield from due_if_set(job_deadline, TimeOut())
    # Only an attempt that has started or failed can bring a decision.
    for name in sorted(job.task_index.attempted):
        yield from _task_decisions(
            job.tasks[name],
            limits.of(name),
            timing,
        )


def _task_decisions(
    task: Task,
    limits: TaskLimits,
    timing: Timing,
) -> Iterator[Due[TimeOut | TryAgain]]:
    """Yield the next attempt of a task after a failed one, or the time-out of the present one.

    A task without a time limit that has not failed has neither.
    """
    if task.failed_at is not None:
        earliest = task.failed_at + timedelta(seconds=limits.retry_delay)
        yield from _after_failed_attempt(task, earliest, timing)
        return
    deadline = time_after(task.started_at, limits.timeout)
    yield from due_if_set(deadline, TimeOut(task.name))


def _after_failed_attempt(
    task: Task,
    earliest: datetime,
    timing: Timing,
) -> Iterator[Due[TimeOut | TryAgain]]:
    """Yield the next attempt once the failed one is over at all nodes.

    Until then, yield a time-out of the task for each node that goes on with the failed attempt for
    too long after its stop.
    """
    parts = task.nodes.values()
    if all(part.over for part in parts):
        yield Due(
            _next_attempt_at(parts, earliest, timing),
            TryAgain(task.name),
        )
        return
    for part in parts:
        given_up_at = _given_up_at(part, timing.stop_timeout)
        yield from due_if_set(given_up_at, TimeOut(task.name))


def _next_attempt_at(
    parts: Iterable[NodeTask],
    earliest: datetime,
    timing: Timing,
) -> datetime:
    """Return when the attempt after a failed one begins.

    It begins at ``earliest``, or later once no start or stop of the failed attempt can be on its
    way.
    """
    moments = [earliest]
    for part in parts:
        moments.append(_last_arrival(part.start, timing.call_deadline))
        moments.append(_last_arrival(part.stop, timing.call_deadline))
    return max(moments)


def _given_up_at(part: NodeTask, timeout: float) -> datetime | None:
    """Return when a node's time to end its part of a failed attempt was over.

    That time is ``timeout`` seconds from the sending of the stop. The result is None unless the
    node has acknowledged the stop, and a poll sent after that time has shown that the part still
    runs.
    """
    has_responses = part.stop.completed and part.poll.state is CallState.OK
    if part.over or not has_responses:
        return None
    deadline = expiry(part.stop, timeout)
    polled_at = part.poll.sent_at or EARLIEST
    if polled_at < deadline:
        return None
    return deadline


def _last_arrival(call: Call, call_deadline: float) -> datetime:
    """Return when no try of a call can arrive any more; `EARLIEST` if its only try has arrived.

    If there were several tries, an early one may still arrive after the response to a later one.
    """
    if call.completed and call.tries <= 1:
        return EARLIEST
    return expiry(call, call_deadline)


def is_ending(job: Job, task: Task) -> bool:
    """Return whether the whole job ends, or this task has an ending of its own.

    The failure of such a task neither ends the job nor leads to another attempt.
    """
    return job.ending is not None or task.ending is not None


def is_tried_again(job: Job, task: Task) -> bool:
    """Return whether a task that has just failed is retried.

    False if the job or the task ends, the same failure would follow, or no attempt remains.
    """
    if is_ending(job, task) or job.status is not JobStatus.RUNNING:
        return False
    if task.known_failure.reason in FINAL_REASONS:
        return False
    limits = job.spec.settings.time_limits.of(task.name)
    return task.attempt < limits.retries


def record_failed_attempt(
    job: Job,
    task: Task,
    at: datetime,
) -> Job:
    """Record that an attempt has failed and another one follows.

    From now on the failed attempt is stopped wherever it still runs.
    """
    failure = task.known_failure
    detail = {
        **failure.as_dict(),
        "task": task.name,
        "task_id": task.task_id,
        "attempt": task.attempt,
    }
    job = job.with_task(replace(task, failed_at=at, failure=failure))
    return job.with_note(at, "attempt failed, another follows", **detail)


def time_out(
    job: Job,
    name: str,
    at: datetime,
) -> Job:
    """Return the job after a task took too long: it is retried, or fails at all its nodes.

    A failed attempt whose stop took too long is not retried: it would run next to the following
    one.
    """
    task = job.tasks[name]
    if task.failed_at is not None:  # not the task, but the stop of its failed attempt took too long
        return _fail_everywhere(job, task, _not_stopped(task))
    task = replace(
        task,
        failure=_timeout_failure(job, task),
    )
    if is_tried_again(job, task):
        return record_failed_attempt(job, task, at)
    return _fail_everywhere(job, task, task.failure)


def _not_stopped(task: Task) -> Failure:
    """Return the failure of a task whose failed attempt could not be stopped.

    The message has the cause of the attempt's failure, and the nodes that still run it.
    """
    failure = task.known_failure
    text = f"failed ({failure.reason} {failure.message}) and continues at {_open_nodes(task)}"
    return replace(failure, reason="NOT_STOPPED", message=text)


def _timeout_failure(job: Job, task: Task) -> Failure:
    """Return the failure of a task that took longer than its time limit, with its open nodes."""
    # never None here: the decision is due only with a limit
    limit = job.spec.settings.time_limits.of(task.name).timeout or 0.0
    text = f"not over after {limit:g} s"
    nodes = _open_nodes(task)
    if nodes:
        text += f", at {nodes}"
    return Failure("TIMEOUT", text, task=task.name)


def _fail_everywhere(
    job: Job,
    task: Task,
    failure: Failure | None,
) -> Job:
    """Return the job with a task that has failed at each of its nodes, and is not retried."""
    parts = {node: part.failed() for node, part in task.nodes.items()}
    task = replace(
        task,
        failed_at=None,
        failure=failure,
        nodes=parts,
    )
    return job.with_task(task)


def _open_nodes(task: Task) -> str:
    """List the nodes at which a task is not over, each with its state there; empty for none.

    The state is that of the roles which are not over.
    """
    texts = []
    for node, part in task.nodes.items():
        open_roles = part.open_roles
        if open_roles:
            texts.append(f"{node} ({merge(open_roles.values())})")
    return ", ".join(texts)


def ending_by_timeout(job: Job, at: datetime) -> Ending:
    """Return the ending of a job that took longer than its time limit.

    The message names at most 20 of the tasks that have not succeeded.
    """
    tasks = job.tasks.values()
    open_tasks = [task.name for task in tasks if task.status is not TaskStatus.SUCCESS]
    limit = job.spec.settings.time_limits.job_timeout or 0.0  # never None, as in `_timeout_failure`
    text = f"not over after {limit:g} s; still to succeed: {', '.join(open_tasks[:20])}"
    return Ending(Outcome.FAILED, at, Failure("TIMEOUT", text))


def begin_again(
    job: Job,
    name: str,
    at: datetime,
) -> Job:
    """Begin the next attempt of a task.

    If its failed attempt has succeeded everywhere after all, the task is a success instead.
    """
    task = job.tasks[name]
    if task.reported is TaskStatus.SUCCESS:
        job = job.with_task(replace(task, failed_at=None, failure=None))
        return job.with_note(at, "success after all", task=name)
    task = _next_attempt(job, task)
    job = job.with_task(task)
    return job.with_note(
        at,
        "next attempt",
        task=name,
        task_id=task.task_id,
        attempt=task.attempt,
    )


def _next_attempt(job: Job, task: Task) -> Task:
    """Return a task with a new attempt that has not begun anywhere; the failed one becomes past."""
    failure = task.known_failure
    failed_attempt = Attempt(
        number=task.attempt,
        task_id=task.task_id,
        failure=failure,
        started_at=task.started_at,
        ended_at=task.failed_at,
    )
    number = task.attempt + 1
    parts = {}
    for node, part in task.nodes.items():
        parts[node] = NodeTask(
            node,
            dict.fromkeys(part.roles, TaskStatus.PENDING),
        )
    return replace(
        task,
        task_id=next_task_id(
            job.id,
            task.name,
            number,
            task.task_id,
        ),
        attempt=number,
        attempts=(*task.attempts, failed_attempt),
        failed_at=None,
        failure=None,
        started_at=None,
        nodes=parts,
    )


# ---------------------------------------------------------------- stops


def with_endings(
    job: Job,
    names: Iterable[str],
    ending: Ending,
) -> tuple[Job, list[str]]:
    """Return the job with this ending recorded for tasks, and the names of the tasks that got it.

    A task that has an ending already keeps its own.
    """
    requested = set(names)
    tasks = dict(job.tasks)
    changed = []
    for name, task in job.tasks.items():
        if name in requested and task.ending is None:
            tasks[name] = replace(task, ending=ending)
            changed.append(name)
    return replace(job, tasks=tasks), changed


def stop(
    job: Job,
    name: str,
    by: NodeId,
    at: datetime,
    message: str,
) -> Job:
    """Stop a task and all tasks that need its output, directly or not.

    Nothing changes if the task has ended or is being stopped, or if the whole job ends.
    """
    root = job.tasks[name]
    if is_ending(job, root) or ended(TASK, root.status):
        return job
    failure = Failure("STOPPED", message or f"stopped by {by}", task=name)
    ending = Ending(Outcome.STOPPED, at, failure, by)
    job, names = with_endings(
        job,
        downstream(job.spec.dag, [name]),
        ending,
    )
    return job.with_note(
        at,
        "task stop asked",
        by,
        task=name,
        tasks=names,
    )


def ending_by_tasks(job: Job, at: datetime) -> Ending | None:
    """Return how the job ends because no task is left to run; None while a task is left.

    No task is left once each has succeeded or has an ending. The ending of a task is STOPPED, or
    FAILED after a failure that the job tolerates. The job's outcome is STOPPED if a task was
    stopped and has not succeeded in spite of its stop; otherwise SUCCEEDED. None, too, for a job
    without tasks.
    """
    if not job.tasks or job.task_index.startable:
        return None
    endings = []
    for task in job.tasks.values():
        if task.status is TaskStatus.SUCCESS:
            continue
        if task.ending is None:
            return None
        endings.append(task.ending)
    stops = [ending for ending in endings if ending.outcome is Outcome.STOPPED]
    if stops:
        return replace(stops[0], at=at)
    return Ending(Outcome.SUCCEEDED, at)


def cause(
    job: Job,
    task: Task,
    failure: Failure,
) -> Failure:
    """Return why a task fails.

    An ending of the task comes first, then a stop of its job. Without them the cause is
    ``failure``, which the task's node has reported.
    """
    if task.ending is not None:
        return task.ending.failure or failure
    ending = job.ending
    if ending is None or ending.failure is None:
        return failure
    if ending.outcome is Outcome.STOPPED:
        return replace(ending.failure, task=task.name)
    return failure


def stopped(task: Task) -> Task:
    """Return a task after its stop: no attempt follows, and parts not started have failed.

    The same task is returned if it is not being stopped. A task that no node has accepted yet
    (first attempt only) stays as it is: it has not begun. If its start was sent but not answered,
    it may have begun after all; `closed` fails it at the end of the job.
    """
    if task.ending is None:
        return task
    if task.failed_at is not None:
        task = replace(
            task,
            failed_at=None,
            failure=task.ending.failure or task.failure,
        )
    parts = task.nodes.values()
    was_accepted = any(part.is_accepted for part in parts)
    if task.attempt == 0 and not was_accepted:
        return task
    return _with_failed(
        task,
        [part for part in parts if part.start.state is CallState.IDLE],
    )


def closed(
    job: Job,
    task: Task,
    at: datetime,
) -> Task:
    """Return the task as the end of its job leaves it.

    A task that has begun and not succeeded counts as failed at every node. Any other task stays as
    it is.
    """
    if task.status is TaskStatus.SUCCESS or not _may_have_begun(task):
        return task
    task = _with_failed(task, task.nodes.values())
    if not may(TASK, task.status, TaskStatus.FAILED):  # its status is FAILED already
        return task
    failure = task.failure
    if failure is None:
        failure = cause(
            job,
            task,
            Failure("STOPPED", "stopped with its job", task=task.name),
        )
    status = move(TASK, task.status, TaskStatus.FAILED)
    return replace(
        task,
        status=status,
        ended_at=at,
        failure=failure,
    )


def _may_have_begun(task: Task) -> bool:
    """Return whether a start of the task may have reached some node, in this attempt or before.

    A call without a response may have arrived.
    """
    parts = task.nodes.values()
    was_accepted = any(part.is_accepted for part in parts)
    was_requested = any(part.start.state is not CallState.IDLE for part in parts)
    return task.attempt > 0 or was_accepted or was_requested


def _with_failed(task: Task, parts: Iterable[NodeTask]) -> Task:
    """Return the task with these parts failed; the same one if they have ended already."""
    nodes = dict(task.nodes)
    for part in parts:
        nodes[part.node] = part.failed()
    if nodes == task.nodes:
        return task
    return replace(task, nodes=nodes)
