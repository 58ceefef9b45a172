"""Clauses about a node that schedules a job for the check (control layer 3)."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.conformance.platforms.answers import Answer
from gateway.conformance.platforms.findings import (
    Broken,
    CannotTry,
    Finding,
    deviates,
    fails,
    holds,
)
from gateway.conformance.platforms.partner import (
    Partner,
    Received,
    Reply,
    refusal,
    success,
)
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.trial import (
    CREATE,
    CREATE_ALL,
    POLL,
    REPORT,
    START,
    START_TASK,
    STATUS_ALL,
    STOP,
    STOP_ALL,
    ComponentName,
    Trial,
    new_job_id,
    task_of,
)

_QUIET = 3.0  # seconds in which a request that must not come would have come
# A component for jobs that the node only schedules: it need not have it.
_ANY_COMPONENT = ComponentName("conformance", "Probe", "1.0.0")
_FIRST, _SECOND = "probe_1", "probe_2"
# Milliseconds since 1970 of a time in this century; in seconds it would be below.
_LEAST_MILLISECONDS = 10**12


@dataclass
class Party:
    """The check as the only party of a job: the states it gives its tasks."""

    partner: Partner
    # By name of a task: the state that polls get; other tasks succeed at once.
    states: dict[str, str] = field(default_factory=dict)

    def play(self) -> None:
        """Answer the node's polls by the states; accept everything else."""
        self.partner.reset()
        self.partner.answer(POLL, self._poll)

    def _poll(self, request: Received) -> Reply:
        """Answer a poll."""
        task_id = str(request.body.get("task_id"))
        starts = self.partner.matching(START_TASK, task_id=task_id)
        if not starts:
            return refusal("no such task", 404)
        name = str(starts[0].body.get("task_name"))
        return success(status=self.states.get(name, "SUCCESS"))


@dataclass(frozen=True)
class Submitted:
    """A job that the node was asked to schedule."""

    body: Mapping[str, Any]
    answer: Answer

    @property
    def job_id(self) -> str:
        """The job's id."""
        return str(self.body["job_id"])


def _chain(trial: Trial, sync_type: str = "poll", roles: int = 1) -> dict[str, Any]:
    """Return a job of two tasks, one after the other, in which only the check takes part."""
    component = trial.given.component or _ANY_COMPONENT
    first = task_of(component, _FIRST)
    first["output"] = [{"type": "dataset", "key": "data0"}]
    second = task_of(component, _SECOND)
    second["input"] = [{"type": "dataset", "key": f"{_FIRST}.data0"}]
    parties = {"guest": [trial.me]}
    if roles > 1:
        parties["host"] = [trial.me]
    parameters = {_FIRST: {}, _SECOND: {}}
    return {
        "job_id": new_job_id(),
        "flow_id": "",
        "old_job_id": "",
        "dag": {"version": "2.0", "components": [first, second]},
        "config": {
            "version": "2.0.0",
            "initiator": {"role": "guest", "node_id": trial.me},
            "role": parties,
            "job_params": {"common": {"sync_type": sync_type}},
            "task_params": {
                "common": parameters,
                **{role: {"0": parameters} for role in parties},
            },
        },
    }


def _submit(trial: Trial, body: Mapping[str, Any]) -> Submitted:
    """Ask the node to schedule a job."""
    answer = trial.node.ask(CREATE_ALL, body, seconds=trial.given.patience)
    if answer.succeeded:
        trial.scheduled.append(str(body["job_id"]))
    return Submitted(body, answer)


def _scheduled(
    trial: Trial,
    states: dict[str, str] | None = None,
    **job: Any,
) -> tuple[Party, Submitted]:
    """Have the node schedule a job; return the played party and the job.

    Raises `CannotTry` if the node refuses.
    """
    party = Party(trial.partner, states or {})
    party.play()
    submitted = _submit(trial, _chain(trial, **job))
    if not submitted.answer.succeeded:
        raise CannotTry(f"the node schedules no job: {submitted.answer.summary}")
    return party, submitted


def _task_start(trial: Trial, job: Submitted, name: str) -> Received:
    """Wait for the first start of a task. Raises `Broken` if none comes."""
    starts = trial.partner.wait_for(
        START_TASK,
        trial.given.patience,
        job_id=job.job_id,
        task_name=name,
    )
    if not starts:
        raise Broken(f"no task/start of {name} within {trial.given.patience:g} s")
    return starts[0]


def _job_status(trial: Trial, job: Submitted) -> Answer:
    """Request the state of a scheduled job, by the method that the node serves."""
    query = {"job_id": job.job_id}
    answer = trial.node.ask(STATUS_ALL, query, query=query)
    if answer.succeeded:
        return answer
    return trial.node.ask(
        STATUS_ALL,
        query,
        method="GET",
        query=query,
    )


def _wait_for_end(trial: Trial, job: Submitted) -> Answer:
    """Wait until a scheduled job is FINISHED. Raises `Broken` if it does not get there."""
    deadline = time.monotonic() + trial.given.patience
    while time.monotonic() < deadline:
        answer = _job_status(trial, job)
        if answer.value("job_status") == "FINISHED":
            return answer
        time.sleep(0.3)
    state = answer.value("job_status")
    raise Broken(f"the job is {state or answer.summary} after {trial.given.patience:g} s")


# ---------------------------------------------------------------- creation


@tries("C-3.1-create")
def passes_the_job_on(trial: Trial) -> Finding:
    """The creation at the party has the job that was submitted."""
    _, job = _scheduled(trial)
    creations = trial.partner.wait_for(CREATE, trial.given.patience, job_id=job.job_id)
    if not creations:
        return fails("no job/create came")
    body = creations[0].body
    changed = [name for name in ("dag", "config") if body.get(name) != job.body[name]]
    if _lacks_parts(body, job.body):
        return fails(f"job/create lacks parts of the submitted {' and '.join(changed)}")
    return holds("job/create has the submitted job")


def _lacks_parts(value: Any, submitted: Any) -> bool:
    """Return whether a value lacks something of the submitted one; it may have more."""
    if isinstance(submitted, Mapping):
        if not isinstance(value, Mapping):
            return True
        return any(_lacks_parts(value.get(name), part) for name, part in submitted.items() if part)
    if isinstance(submitted, list):
        if not isinstance(value, list) or len(value) != len(submitted):
            return True
        return any(map(_lacks_parts, value, submitted))
    return bool(value != submitted)


@tries("C-3.1-once")
def creates_once_at_each_node(trial: Trial) -> Finding:
    """A node with two roles gets one creation."""
    _, job = _scheduled(trial, roles=2)
    _task_start(trial, job, _FIRST)
    count = len(trial.partner.matching(CREATE, job_id=job.job_id))
    if count == 1:
        return holds("a node with two roles gets one job/create")
    return fails(f"a node with two roles gets {count} job/create")


@tries("C-3.1-refused")
def refuses_if_a_party_refuses(trial: Trial) -> Finding:
    """A party refuses the creation."""
    partner = trial.partner
    Party(partner).play()
    partner.answer(CREATE, _refuse_creation)
    job = _submit(trial, _chain(trial))
    if job.answer.succeeded and not _rejected_later(trial, job):
        return fails("create_all is a success although the only party refuses")
    if partner.wait_for(START, _QUIET, job_id=job.job_id):
        return fails("job/start comes after the party has refused")
    return holds(f"refused: {job.answer.summary}")


def _refuse_creation(_: Received) -> Reply:
    """Refuse a job."""
    return refusal("the check refuses this job", 403)


def _rejected_later(trial: Trial, job: Submitted) -> bool:
    """Return whether a job whose creation was answered at once becomes REJECTED afterwards."""
    deadline = time.monotonic() + trial.given.patience
    while time.monotonic() < deadline:
        if _job_status(trial, job).value("job_status") in ("REJECTED", "FINISHED"):
            return True
        time.sleep(0.3)
    return False


@tries("C-2.2-headers")
def sends_the_common_headers(trial: Trial) -> Finding:
    """The headers of the node's requests."""
    _, job = _scheduled(trial)
    request = _task_start(trial, job, _FIRST)
    names = ("x-source-node-id", "x-nonce", "x-timestamp", "x-trace-id")
    missing = [name for name in names if not request.headers.get(name)]
    if missing:
        text = f"absent: {', '.join(missing)}"
        if "x_node_id" in request.headers or "x_nonce" in request.headers:
            return deviates("fate", f"{text}; header names have underscores")
        if "x-node-id" in request.headers:
            return deviates("kuscia", f"{text}; the sender is in x-node-id")
        return fails(text)
    timestamp = request.headers["x-timestamp"]
    if not timestamp.isdigit() or int(timestamp) < _LEAST_MILLISECONDS:
        return deviates("kuscia", f"x-timestamp {timestamp} is not in milliseconds")
    return holds("source, nonce, time in milliseconds and trace id are sent")


# ---------------------------------------------------------------- tasks


@tries("C-3.4-fields")
def starts_tasks_by_three_fields(trial: Trial) -> Finding:
    """The start of a task at the party, after that of the job."""
    _, job = _scheduled(trial)
    start = _task_start(trial, job, _FIRST)
    missing = [name for name in ("task_id", "job_id", "task_name") if not start.body.get(name)]
    if missing:
        return fails(f"task/start lacks {', '.join(missing)}")
    job_starts = trial.partner.matching(START, job_id=job.job_id)
    if not job_starts or job_starts[0].at > start.at:
        return fails("task/start comes before job/start")
    return holds("job/start, then task/start with task_id, job_id and task_name")


@tries("C-3.4-order")
def starts_tasks_after_their_inputs(trial: Trial) -> Finding:
    """The second task of a chain, while the first one runs and after it."""
    party, job = _scheduled(trial, {_FIRST: "RUNNING"})
    _task_start(trial, job, _FIRST)
    early = trial.partner.wait_for(
        START_TASK,
        _QUIET,
        job_id=job.job_id,
        task_name=_SECOND,
    )
    if early:
        return fails("a task starts while its input is still being made")
    party.states[_FIRST] = "SUCCESS"
    _task_start(trial, job, _SECOND)
    return holds("a task starts after the task that makes its input is SUCCESS")


@tries("C-3.8-polls")
def polls_running_tasks(trial: Trial) -> Finding:
    """The polls of a running task."""
    _, job = _scheduled(trial, {_FIRST: "RUNNING"})
    task_id = str(_task_start(trial, job, _FIRST).body.get("task_id"))
    polls = trial.partner.wait_for(
        POLL,
        trial.given.patience,
        task_id=task_id,
    )
    if not polls:
        return fails(f"no task/poll within {trial.given.patience:g} s")
    if not polls[0].body.get("role"):
        return deviates("fate", "task/poll has no role")
    return holds(f"task/poll with the role {polls[0].body['role']}")


@tries("C-3.8-end-of-job")
def ends_a_job_that_succeeds(trial: Trial) -> Finding:
    """The end of a job whose tasks succeed."""
    _, job = _scheduled(trial)
    answer = _wait_for_end(trial, job)
    states = answer.value("status")
    if not isinstance(states, Mapping) or len(states) != 2:
        return fails(f"status_all of a job with two tasks has the states {states!r}")
    if set(states.values()) != {"SUCCESS"}:
        return fails(f"the job is FINISHED with the states {sorted(states.values())}")
    return holds("FINISHED, both tasks SUCCESS")


@tries("C-3.6-failure")
def stops_a_job_that_fails(trial: Trial) -> Finding:
    """A task fails at the party."""
    _, job = _scheduled(trial, {_FIRST: "FAILED"})
    _task_start(trial, job, _FIRST)
    if not trial.partner.wait_for(STOP, trial.given.patience, job_id=job.job_id):
        return fails(f"no job/stop within {trial.given.patience:g} s after a task FAILED")
    if trial.partner.matching(START_TASK, job_id=job.job_id, task_name=_SECOND):
        return fails("a task starts although the task that makes its input FAILED")
    _wait_for_end(trial, job)
    return holds("job/stop comes, no further task starts, the job is FINISHED")


@tries("C-3.4-refused")
def ends_a_job_whose_task_is_refused(trial: Trial) -> Finding:
    """The party refuses to start a task."""
    party = Party(trial.partner)
    party.play()
    trial.partner.answer(START_TASK, _refuse_creation)
    job = _submit(trial, _chain(trial))
    if not job.answer.succeeded:
        raise CannotTry(f"the node schedules no job: {job.answer.summary}")
    answer = _wait_for_end(trial, job)
    states = answer.value("status")
    if isinstance(states, Mapping) and "FAILED" not in states.values():
        return deviates("fate", f"FINISHED with the states {sorted(states.values())}")
    return holds("the job is FINISHED with a FAILED task")


@tries("C-3.4-lost")
def survives_a_lost_answer(trial: Trial) -> Finding:
    """The party closes the connection once instead of answering a task's start."""
    party = Party(trial.partner)
    party.play()
    trial.partner.answer(START_TASK, _HangsUpOnce())
    job = _submit(trial, _chain(trial))
    if not job.answer.succeeded:
        raise CannotTry(f"the node schedules no job: {job.answer.summary}")
    _task_start(trial, job, _FIRST)
    _wait_for_end(trial, job)
    starts = trial.partner.matching(START_TASK, job_id=job.job_id, task_name=_FIRST)
    ids = {str(start.body.get("task_id")) for start in starts}
    if len(ids) > 1:
        return fails(f"after a lost response the task is started as {len(ids)} different tasks")
    if not trial.partner.matching(START_TASK, job_id=job.job_id, task_name=_SECOND):
        return fails("one lost response ends the job")
    return holds(f"one task id in {len(starts)} task/start; the job goes on")


class _HangsUpOnce:
    """Closes the connection of the first request, and accepts the further ones."""

    def __init__(self) -> None:
        self._is_first = True

    def __call__(self, _: Received) -> Reply:
        """Answer a request."""
        is_first, self._is_first = self._is_first, False
        return Reply(hangs_up=is_first)


@tries("C-3.9-takes-reports")
def takes_reports(trial: Trial) -> Finding:
    """A job with ``sync_type: callback``: the party reports, and the job ends."""
    _, job = _scheduled(trial, {_FIRST: "RUNNING", _SECOND: "RUNNING"}, sync_type="callback")
    for name in (_FIRST, _SECOND):
        start = _task_start(trial, job, name)
        report = {"task_id": start.body.get("task_id"), "status": "SUCCESS", "role": "guest"}
        answer = trial.node.ask(REPORT, report)
        if not answer.succeeded:
            return fails(f"task/callback is refused: {answer.summary}")
    try:
        _wait_for_end(trial, job)
    except Broken as broken:
        return deviates("fate", f"the reports are accepted, but {broken}")
    return holds("reports are accepted, and the job ends by them")


@tries("C-3.9-late")
def ignores_late_reports(trial: Trial) -> Finding:
    """A report that a task FAILED, after the job has ended well."""
    _, job = _scheduled(trial)
    start = _task_start(trial, job, _FIRST)
    before = _wait_for_end(trial, job).value("status")
    report = {"task_id": start.body.get("task_id"), "status": "FAILED", "role": "guest"}
    answer = trial.node.ask(REPORT, report)
    if answer.crashed:
        return fails(f"a late report: {answer.crashed}")
    after = _job_status(trial, job).value("status")
    if after != before:
        return fails(f"a late report changes the states of an ended job to {after}")
    return holds(f"a late report changes nothing ({answer.summary})")


# ---------------------------------------------------------------- stop


@tries("C-3.5-stop")
def stops_a_scheduled_job(trial: Trial) -> Finding:
    """A party asks for the stop of a running job."""
    _, job = _scheduled(trial, {_FIRST: "RUNNING"})
    _task_start(trial, job, _FIRST)
    answer = trial.node.ask(STOP_ALL, {"job_id": job.job_id})
    if not answer.succeeded:
        return fails(f"stop_all is refused: {answer.summary}")
    if not trial.partner.wait_for(STOP, trial.given.patience, job_id=job.job_id):
        return fails("no job/stop comes after stop_all")
    _wait_for_end(trial, job)
    return holds("job/stop comes to the party, and the job is FINISHED")


@tries("C-3.5-unknown")
def refuses_to_stop_an_unknown_job(trial: Trial) -> Finding:
    """The stop of a job that the node does not schedule."""
    answer = trial.node.ask(STOP_ALL, {"job_id": new_job_id()})
    if answer.crashed:
        return fails(answer.crashed)
    if answer.refused:
        return holds(f"refused: {answer.summary}")
    return fails(f"the stop of an unknown job: {answer.summary}")


@tries("C-3.7-unknown")
def refuses_the_state_of_an_unknown_job(trial: Trial) -> Finding:
    """The state of a job that the node does not know."""
    job_id = new_job_id()
    answer = trial.node.ask(STATUS_ALL, {"job_id": job_id}, query={"job_id": job_id})
    if answer.crashed:
        return fails(answer.crashed)
    if answer.refused:
        return holds(f"refused: {answer.summary}")
    if answer.succeeded and not answer.data:
        return deviates("fate", "a success without data")
    return fails(f"the state of an unknown job: {answer.summary}")
