"""Translates states of jobs, reruns and plans between the wire and the domain, both ways.

Peers' responses are read leniently: a field that cannot be read counts as absent, as does an
unknown state of one party. Refused are only an unknown state of a task, and a response without any
state of the job.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from adapter.bfia.profiles import PROFILES, Profile
from adapter.body import failure_of, is_integer, texts_of
from gateway.domain.dry_run import Item, Standing
from gateway.domain.entries import as_mapping
from gateway.domain.job import Attempt, Lineage, Origin
from gateway.domain.problems import Problem
from gateway.domain.quorum import PartyDetail
from gateway.domain.redaction import for_others
from gateway.domain.rerun import Order, RerunResult
from gateway.domain.spec import Failure
from gateway.domain.states import JobStatus, Outcome, TaskStatus
from gateway.domain.waiting import Waiting
from gateway.errors import Invalid, NotFound, Refused
from gateway.ports import JobView, TaskView

# Bounds of a peer's plan, in characters and entries
_LONGEST_TEXT = 2000
_MOST_ITEMS = 500


# ---------------------------------------------------------------- states of jobs and tasks


def task_status(text: str) -> TaskStatus:
    """Read a task's state. Raises `Invalid` for another word."""
    try:
        return TaskStatus(text.upper())
    except ValueError:
        allowed = ", ".join(TaskStatus)
        problem = Problem("status", f"must be one of {allowed}", text)
        raise Invalid([problem], reason="STATUS_UNKNOWN") from None


def read_status(value: Any) -> TaskStatus:
    """Read a task's state in a peer's response.

    An empty text, which some peers send before a task has a state, means PENDING.
    Raises `Invalid` for null and for any other value that is not a state.
    """
    if value is None:
        raise Invalid([Problem("status", "is missing")], reason="STATUS_UNKNOWN")
    if value == "":
        return TaskStatus.PENDING
    return task_status(str(value))


def job_status(text: str) -> JobStatus | None:
    """Read a job's state as peers write it; None for any other word.

    SUCCESS and FAILED, which some peers write, mean FINISHED.
    """
    word = text.upper()
    if word in ("SUCCESS", "FAILED"):
        return JobStatus.FINISHED
    if word not in JobStatus.__members__:
        return None
    return JobStatus(word)


def wire_status(status: TaskStatus, profile: Profile) -> str:
    """Return the state in the peer's words."""
    if status is TaskStatus.READY and not profile.knows_ready:
        return str(TaskStatus.PENDING)
    return str(status)


def outcome_from_tasks(status: JobStatus, tasks: Sequence[TaskStatus]) -> Outcome | None:
    """Infer the outcome of a job from its tasks when its node does not report one.

    None for a job that has not ended. None, too, for an ended one whose tasks do not show how: none
    of them has failed, and some have not succeeded (or the node names no tasks).
    """
    if status is JobStatus.REJECTED:
        return Outcome.REJECTED
    if status is not JobStatus.FINISHED:
        return None
    if TaskStatus.FAILED in tasks:
        return Outcome.FAILED
    if set(tasks) == {TaskStatus.SUCCESS}:
        return Outcome.SUCCEEDED
    return None


def progress_from_tasks(outcome: Outcome | None, tasks: Sequence[TaskStatus]) -> int:
    """Infer a job's progress in percent, in the same way as `gateway.domain.job.Job`."""
    if outcome is Outcome.SUCCEEDED:
        return 100
    if not tasks:
        return 0
    return min(99, 100 * tasks.count(TaskStatus.SUCCESS) // len(tasks))


def status_from_tasks(tasks: set[TaskStatus]) -> JobStatus:
    """Infer the state of a job from the states of its tasks."""
    if tasks <= {TaskStatus.PENDING}:
        return JobStatus.PENDING
    if TaskStatus.FAILED in tasks or tasks == {TaskStatus.SUCCESS}:
        return JobStatus.FINISHED
    return JobStatus.RUNNING


# ---------------------------------------------------------------- status_all


def status_body(
    view: JobView,
    profile: Profile = PROFILES["spec"],
) -> dict[str, Any]:
    """Return the data of ``status_all``: the standard's fields, and ours if the peer accepts them.

    The caller redacts them for other nodes.
    """
    states = _states_body(view, profile)
    if not profile.reads_job_status:
        return {"status": states}
    body: dict[str, Any] = {
        "job_id": view.job_id,
        "job_status": str(view.status),
        "status": states,
        "outcome": _outcome_body(view.outcome),
        "progress": view.progress,
        "failed_by": _failure_body(view.failure),
        "scheduler": view.scheduler,
        "warnings": list(view.warnings),
        "old_job_id": view.old_job_id,
        "rerun_of": _rerun_body(view.origin),
        "tasks": [_task_body(task) for task in view.tasks],
    }
    if view.waiting:
        body["waiting"] = view.waiting.as_dict()
    if view.parties:
        body["parties"] = [_party_body(party) for party in view.parties]
    if view.tolerated:
        body["tolerated"] = list(view.tolerated)
    return body


def _states_body(view: JobView, profile: Profile) -> dict[str, str]:
    """Return the tasks' states by id, or by name if the peer expects names."""
    states = {}
    for task in view.tasks:
        key = task.task_id
        if profile.status_by_name:
            key = task.name
        states[key] = wire_status(task.status, profile)
    return states


def _outcome_body(outcome: Outcome | None) -> str | None:
    """Return an outcome as text; None if there is none."""
    if outcome is None:
        return None
    return str(outcome)


def _failure_body(failure: Failure | None) -> dict[str, Any] | None:
    """Return a failure as an object; None if there is none."""
    if failure is None:
        return None
    return failure.as_dict()


def _rerun_body(origin: Origin | None) -> dict[str, Any] | None:
    """Return which job was run again, and how; None if the job is not a rerun."""
    if origin is None:
        return None
    return {
        "job_id": origin.job_id,
        "from": origin.start,
        "by": origin.by,
        "changed": list(origin.changed),
    }


def _party_body(party: PartyDetail) -> dict[str, Any]:
    """Return the detail of a party as an object."""
    # The object has all fields of the detail; only the time needs another form.
    return {**vars(party), "next_try": _iso(party.next_try)}


def _task_body(task: TaskView) -> dict[str, Any]:
    """Return the detail of a task as an object."""
    parties = {}
    for node, roles in task.nodes.items():
        parties[node] = {role: str(status) for role, status in roles.items()}
    body: dict[str, Any] = {
        "task_id": task.task_id,
        "task_name": task.name,
        "status": str(task.status),
        "parties": parties,
        "failed_by": _failure_body(task.failure),
        "attempt": task.attempt,
        "attempts": [_attempt_body(attempt) for attempt in task.attempts],
    }
    if task.waiting:
        body["waiting"] = task.waiting.as_dict()
    body["inherited"] = None
    if task.inherited:
        body["inherited"] = {
            "job_id": task.inherited.job_id,
            "task_id": task.inherited.task_id,
        }
    return body


def _attempt_body(attempt: Attempt) -> dict[str, Any]:
    """Return an earlier attempt of a task, which failed, as an object."""
    return {
        "task_id": attempt.task_id,
        "attempt": attempt.number,
        "status": str(TaskStatus.FAILED),
        "failed_by": attempt.failure.as_dict(),
        "started_at": _iso(attempt.started_at),
        "ended_at": _iso(attempt.ended_at),
    }


def job_view(job_id: str, data: Mapping[str, Any]) -> JobView:
    """Read a peer's ``status_all`` of a job.

    Raises `NotFound` for an empty object under a success code (FATE's response for an unknown job),
    and `Refused` (NO_ENVELOPE) for data without the job's state.
    """
    if not data:
        raise NotFound(f"job {job_id} is not known there", reason="JOB_UNKNOWN")
    states = _read_states(job_id, data)
    statuses = list(states.values())
    status = job_status(_text(data, "job_status")) or status_from_tasks(set(statuses))
    outcome = _outcome(data.get("outcome")) or outcome_from_tasks(status, statuses)
    details = {str(entry.get("task_id")): entry for entry in _entries(data.get("tasks"))}
    return JobView(
        job_id=job_id,
        status=status,
        tasks=[_task_view(task, state, details.get(task, {})) for task, state in states.items()],
        outcome=outcome,
        failure=failure_of(data.get("failed_by")),
        progress=_progress(data, outcome, statuses),
        scheduler=_text(data, "scheduler"),
        waiting=_waiting(data.get("waiting")),
        parties=[_party(entry) for entry in _entries(data.get("parties"))],
        tolerated=texts_of(data.get("tolerated")),
        old_job_id=_text(data, "old_job_id"),
        origin=_origin(as_mapping(data.get("rerun_of"))),
    )


def _read_states(
    job_id: str,
    data: Mapping[str, Any],
) -> dict[str, TaskStatus]:
    """Return the tasks' states by task. Raises `Refused` if the data show no state at all."""
    by_task = data.get("status")
    has_no_tasks_yet = "status" in data and by_task is None  # a peer that sends null means this
    shows_states = has_no_tasks_yet or isinstance(by_task, Mapping)
    if not shows_states and not data.get("job_status"):
        raise Refused(
            f"a success without a state of job {job_id} was answered", reason="NO_ENVELOPE"
        )
    return {str(task): read_status(state) for task, state in as_mapping(by_task).items()}


def _progress(
    data: Mapping[str, Any],
    outcome: Outcome | None,
    tasks: Sequence[TaskStatus],
) -> int:
    """Return the reported progress in percent; a missing or invalid one is inferred."""
    progress = data.get("progress")
    if is_integer(progress) and 0 <= progress <= 100:
        return progress
    return progress_from_tasks(outcome, tasks)


def _outcome(word: Any) -> Outcome | None:
    """Read an outcome; None for any other value."""
    is_outcome = isinstance(word, str) and word in Outcome.__members__
    if not is_outcome:
        return None
    return Outcome(word)


def _task_view(
    task_id: str,
    status: TaskStatus,
    fields: Mapping[str, Any],
) -> TaskView:
    """Read the detail of a task; ``fields`` is empty if the peer sends no detail."""
    parties = {}
    for node, roles in as_mapping(fields.get("parties")).items():
        parties[str(node)] = _party_states(roles)
    attempts = []
    for number, entry in enumerate(_entries(fields.get("attempts"))):
        attempts.append(_attempt(number, entry))
    return TaskView(
        task_id,
        str(fields.get("task_name") or task_id),
        status,
        failure=failure_of(fields.get("failed_by")),
        nodes=parties,
        attempt=len(attempts),  # numbered from 0, and all earlier ones are listed
        attempts=tuple(attempts),
        waiting=_waiting(fields.get("waiting")),
        inherited=_lineage(as_mapping(fields.get("inherited"))),
    )


def _party_states(roles: Any) -> dict[str, TaskStatus]:
    """Read a task's states at one node, by role; a state that cannot be read is left out."""
    states = {}
    for role, state in as_mapping(roles).items():
        with suppress(Invalid):
            states[str(role)] = read_status(state)
    return states


def _attempt(number: int, fields: Mapping[str, Any]) -> Attempt:
    """Read a failed attempt of a task."""
    return Attempt(
        number,
        task_id=_text(fields, "task_id"),
        failure=failure_of(fields.get("failed_by")) or Failure("FAILED"),
        started_at=_moment(fields.get("started_at")),
        ended_at=_moment(fields.get("ended_at")),
    )


def _lineage(fields: Mapping[str, Any]) -> Lineage | None:
    """Read the task whose outputs are inherited; None without a job."""
    if not fields.get("job_id"):
        return None
    return Lineage(str(fields["job_id"]), _text(fields, "task_id"))


def _origin(fields: Mapping[str, Any]) -> Origin | None:
    """Read which job was run again; None without a job."""
    if not fields.get("job_id"):
        return None
    return Origin(
        job_id=str(fields["job_id"]),
        start=_text(fields, "from"),
        by=_text(fields, "by"),
        changed=texts_of(fields.get("changed")),
    )


def _party(fields: Mapping[str, Any]) -> PartyDetail:
    """Read the detail of a party; fields of a wrong type count as absent."""
    tries = fields.get("tries")
    if not isinstance(tries, int):
        tries = 0
    return PartyDetail(
        party=_text(fields, "party"),
        node=_text(fields, "node"),
        state=_text(fields, "state"),
        reason=_text(fields, "reason"),
        message=_text(fields, "message"),
        excluded=fields.get("excluded") is True,
        tries=tries,
        next_try=_moment(fields.get("next_try")),
    )


def _waiting(value: Any) -> Waiting | None:
    """Read what a job or task waits for; None without a time or a reason."""
    fields = as_mapping(value)
    reason = fields.get("reason")
    since = _moment(fields.get("since"))
    if since is None or not reason:
        return None
    return Waiting(
        reason=str(reason),
        message=_text(fields, "message"),
        since=since,
        next_check=_moment(fields.get("next_check")),
    )


# ---------------------------------------------------------------- rerun and plan


def read_rerun_result(order: Order, fields: Mapping[str, Any]) -> RerunResult:
    """Read a peer's response to the order to run a job again."""
    return RerunResult(
        job_id=str(fields.get("job_id") or order.new_job_id),
        start=str(fields.get("from") or order.start),
        runs=texts_of(fields.get("runs")),
        inherits=texts_of(fields.get("inherits")),
    )


def redact_plan(items: Sequence[Item]) -> list[Item]:
    """Return the items of a plan, with their texts redacted for other nodes."""
    redacted_items = []
    for item in items:
        redacted_items.append(
            replace(
                item,
                found=for_others(item.found),
                cause=for_others(item.cause),
            )
        )
    return redacted_items


def read_plan(data: Mapping[str, Any]) -> tuple[Item, ...]:
    """Read a peer's plan.

    Entries that are not objects are skipped; a standing that this node does not know is UNKNOWN.
    """
    return tuple(map(_plan_item, _entries(data.get("checks"))[:_MOST_ITEMS]))


def _plan_item(fields: Mapping[str, Any]) -> Item:
    """Read an item of a plan; fields that are not texts count as empty."""
    texts = {}
    for key in ("check", "standing", "found", "cause", "remedy", "about"):
        value = fields.get(key)
        if not isinstance(value, str):
            value = ""
        texts[key] = value[:_LONGEST_TEXT]
    standing = Standing.UNKNOWN
    if texts["standing"] in set(Standing):
        standing = Standing(texts["standing"])
    return Item(
        check=texts["check"] or "reported",
        standing=standing,
        found=texts["found"],
        cause=texts["cause"],
        remedy=texts["remedy"],
        about=texts["about"],
    )


# ---------------------------------------------------------------- lenient reading


def _text(fields: Mapping[str, Any], name: str) -> str:
    """Return a field as text; empty if the field is absent or null."""
    return str(fields.get(name) or "")


def _entries(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects in a list; empty for any other value."""
    if not isinstance(value, list):
        return []
    return [entry for entry in value if isinstance(entry, Mapping)]


def _moment(text: Any) -> datetime | None:
    """Read a time in ISO 8601; None for any other value, and for a time without a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        return None
    return moment


def _iso(moment: datetime | None) -> str | None:
    """Return a time in ISO 8601; None if there is none."""
    if moment is None:
        return None
    return moment.isoformat()
