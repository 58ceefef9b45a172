"""Clauses about a node that schedules a job for the check (control layer 3)."""

from collections.abc import Mapping
from typing import Any

from gateway.conformance.platforms.answers import Answer
from gateway.conformance.platforms.findings import (
    Broken,
    Finding,
    demand,
    demand_except,
    holds,
)
from gateway.conformance.platforms.partner import Received, Reply
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.scenarios.refusals import judge_stop_of_unknown_job
from gateway.conformance.platforms.scheduled import (
    FIRST,
    QUIET,
    SECOND,
    Party,
    assume_scheduled,
    job_of_two_tasks,
    refuse,
    report_state,
    report_until_taken,
    schedule_job,
    submit,
    task_states,
    wait_for_end,
    wait_for_start_after_report,
    wait_for_task_start,
)
from gateway.conformance.platforms.trial import (
    CREATE,
    POLL,
    START,
    START_TASK,
    STOP,
    STOP_ALL,
    Trial,
    new_job_id,
)

# Milliseconds since 1970 of a time in this century; in seconds it would be below.
_LEAST_MILLISECONDS = 10**12
_TASK_COUNT = 2  # of the sample jobs

# ---------------------------------------------------------------- creation


@tries("C-3.1-create")
def passes_the_job_on(trial: Trial) -> Finding:
    """The creation at the party has the job that was submitted."""
    _, job = schedule_job(trial)
    creations = trial.partner.wait_for(
        CREATE,
        trial.options.timeout,
        job_id=job.job_id,
    )
    demand(bool(creations), "no job/create came")
    body = creations[0].body
    for name in ("dag", "config"):
        is_complete = not _lacks_parts(body.get(name), job.body[name])
        demand(is_complete, f"job/create lacks parts of the submitted {name}")
    return holds("job/create has the submitted job")


def _lacks_parts(value: Any, submitted: Any) -> bool:
    """Return whether a value lacks something of the submitted one; it may have further fields."""
    if isinstance(submitted, Mapping):
        return not isinstance(value, Mapping) or any(
            _lacks_parts(value.get(name), part) for name, part in submitted.items() if part
        )
    if isinstance(submitted, list):
        same_length = isinstance(value, list) and len(value) == len(submitted)
        return not same_length or any(map(_lacks_parts, value, submitted))
    return bool(value != submitted)


@tries("C-3.1-once")
def creates_once_at_each_node(trial: Trial) -> Finding:
    """A node with two roles gets one creation."""
    _, job = schedule_job(trial, roles=2)
    wait_for_task_start(trial, job, FIRST)
    count = len(
        trial.partner.matching(
            CREATE,
            job_id=job.job_id,
        )
    )
    demand(count == 1, f"a node with two roles gets {count} job/create")
    return holds("a node with two roles gets one job/create")


@tries("C-3.1-refused")
def refuses_if_a_party_refuses(trial: Trial) -> Finding:
    """A party refuses the creation."""
    partner = trial.partner
    Party(partner).play()
    partner.answer(CREATE, refuse)
    job = submit(trial, job_of_two_tasks(trial))
    demand(not job.response.succeeded, "create_all is a success although the only party refuses")
    demand_except("fate", not job.response.crashed, job.response.crashed)
    starts = partner.wait_for(START, QUIET, job_id=job.job_id)
    demand_except("fate", not starts, "job/start comes after the party has refused")
    state = trial.job_status(job.job_id).value("job_status")
    demand_except("fate", state != "RUNNING", "the refused job is RUNNING")
    return holds(f"refused: {job.response.summary}")


@tries("C-2.2-headers")
def sends_the_common_headers(trial: Trial) -> Finding:
    """The headers of the node's requests."""
    _, job = schedule_job(trial)
    headers = wait_for_task_start(trial, job, FIRST).headers
    names = ("x-source-node-id", "x-nonce", "x-timestamp", "x-trace-id")
    missing = [name for name in names if not headers.get(name)]
    absent = f"absent: {', '.join(missing)}"
    has_underscores = "x_node_id" in headers or "x_nonce" in headers
    text = f"{absent}; header names have underscores"
    demand_except("fate", not (missing and has_underscores), text)
    text = f"{absent}; the sender is in x-node-id"
    demand_except("kuscia", not (missing and "x-node-id" in headers), text)
    demand(not missing, absent)
    timestamp = headers["x-timestamp"]
    in_milliseconds = timestamp.isdigit() and int(timestamp) >= _LEAST_MILLISECONDS
    demand_except("kuscia", in_milliseconds, f"x-timestamp {timestamp} is not in milliseconds")
    return holds("source, nonce, time in milliseconds and trace id are sent")


# ---------------------------------------------------------------- tasks


@tries("C-3.4-fields")
def starts_tasks_by_three_fields(trial: Trial) -> Finding:
    """The start of a task at the party, after that of the job."""
    _, job = schedule_job(trial)
    start = wait_for_task_start(trial, job, FIRST)
    missing = [name for name in ("task_id", "job_id", "task_name") if not start.body.get(name)]
    demand(not missing, f"task/start lacks {', '.join(missing)}")
    job_starts = trial.partner.matching(
        START,
        job_id=job.job_id,
    )
    in_order = bool(job_starts) and job_starts[0].at <= start.at
    demand(in_order, "task/start comes before job/start")
    return holds("job/start, then task/start with task_id, job_id and task_name")


@tries("C-3.4-order")
def starts_tasks_after_their_inputs(trial: Trial) -> Finding:
    """The second task of a chain, while the first one runs and after it."""
    party, job = schedule_job(trial, {FIRST: "RUNNING"})
    wait_for_task_start(trial, job, FIRST)
    early = trial.partner.wait_for(
        START_TASK,
        QUIET,
        job_id=job.job_id,
        task_name=SECOND,
    )
    demand(not early, "a task starts while its input is still being made")
    party.states[FIRST] = "SUCCESS"
    wait_for_task_start(trial, job, SECOND)
    return holds("a task starts after the task that makes its input is SUCCESS")


@tries("C-3.8-polls")
def polls_running_tasks(trial: Trial) -> Finding:
    """The polls of a running task."""
    _, job = schedule_job(trial, {FIRST: "RUNNING"})
    task_id = str(wait_for_task_start(trial, job, FIRST).body.get("task_id"))
    timeout = trial.options.timeout
    polls = trial.partner.wait_for(
        POLL,
        timeout,
        task_id=task_id,
    )
    demand(bool(polls), f"no task/poll within {timeout:g} s")
    role = polls[0].body.get("role")
    demand_except("fate", bool(role), "task/poll has no role")
    return holds(f"task/poll with the role {role}")


@tries("C-3.8-end-of-job")
def ends_a_job_that_succeeds(trial: Trial) -> Finding:
    """The end of a job whose tasks succeed."""
    _, job = schedule_job(trial)
    states = task_states(wait_for_end(trial, job))
    text = f"status_all of a job with two tasks has {len(states)} states"
    demand(len(states) == _TASK_COUNT, text)
    text = f"the job is FINISHED with the states {', '.join(states)}"
    demand(set(states) == {"SUCCESS"}, text)
    return holds("FINISHED, both tasks SUCCESS")


@tries("C-3.6-failure")
def stops_a_job_that_fails(trial: Trial) -> Finding:
    """A task fails at the party."""
    _, job = schedule_job(trial, {FIRST: "FAILED"})
    wait_for_task_start(trial, job, FIRST)
    timeout = trial.options.timeout
    stops = trial.partner.wait_for(
        STOP,
        timeout,
        job_id=job.job_id,
    )
    demand(bool(stops), f"no job/stop within {timeout:g} s after a task FAILED")
    starts = trial.partner.matching(
        START_TASK,
        job_id=job.job_id,
        task_name=SECOND,
    )
    demand(not starts, "a task starts although the task that makes its input FAILED")
    wait_for_end(trial, job)
    return holds("job/stop comes, no further task starts, the job is FINISHED")


@tries("C-3.4-refused")
def ends_a_job_with_a_refused_task(trial: Trial) -> Finding:
    """The party refuses to start a task."""
    Party(trial.partner).play()
    trial.partner.answer(START_TASK, refuse)
    job = submit(trial, job_of_two_tasks(trial))
    assume_scheduled(job)
    states = task_states(wait_for_end(trial, job))
    text = f"FINISHED with the states {', '.join(states)}"
    demand_except("fate", "FAILED" in states, text)
    return holds("the job is FINISHED with a FAILED task")


@tries("C-3.4-lost")
def survives_a_lost_response(trial: Trial) -> Finding:
    """The party closes the connection once instead of answering a task's start."""
    Party(trial.partner).play()
    body = job_of_two_tasks(trial)
    trial.partner.answer(START_TASK, _HangsUpOnce(body["job_id"]))
    job = submit(trial, body)
    assume_scheduled(job)
    wait_for_task_start(trial, job, FIRST)
    wait_for_end(trial, job)
    starts = trial.partner.matching(
        START_TASK,
        job_id=job.job_id,
        task_name=FIRST,
    )
    ids = {str(start.body.get("task_id")) for start in starts}
    text = f"after a lost response the task is started as {len(ids)} different tasks"
    demand(len(ids) == 1, text)
    next_starts = trial.partner.matching(
        START_TASK,
        job_id=job.job_id,
        task_name=SECOND,
    )
    demand(bool(next_starts), "one lost response ends the job")
    return holds(f"one task id in {len(starts)} task/start; the job goes on")


class _HangsUpOnce:
    """Closes the connection of a job's first request, and accepts all others."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._is_first = True

    def __call__(self, request: Received) -> Reply:
        """Answer a request."""
        hangs_up = self._is_first and request.names("job_id", self._job_id)
        if hangs_up:
            self._is_first = False
        return Reply(hangs_up=hangs_up)


@tries("C-3.9-takes-reports")
def takes_reports(trial: Trial) -> Finding:
    """A job with ``sync_type: callback``: the party reports, and the job ends."""
    _, job = schedule_job(trial, {FIRST: "RUNNING", SECOND: "RUNNING"}, sync_type="callback")
    first_response = _report_success(trial, wait_for_task_start(trial, job, FIRST))
    try:
        second_start = wait_for_start_after_report(trial, job, first_response)
    except Broken:
        trial.loses_reports = True
        raise
    _report_success(trial, second_start)
    try:
        wait_for_end(trial, job)
    except Broken as broken:
        demand_except("fate", False, f"the reports are accepted, but {broken}")
    return holds("reports are accepted, and the job ends by them")


def _report_success(trial: Trial, start: Received) -> Answer:
    """Report the success of a started task; return the response. Raises `Broken` if refused."""
    response = report_until_taken(trial, start)
    demand(response.succeeded, f"task/callback is refused: {response.summary}")
    return response


@tries("C-3.9-late")
def ignores_late_reports(trial: Trial) -> Finding:
    """A report that a task FAILED, after the job has ended well."""
    _, job = schedule_job(trial)
    start = wait_for_task_start(trial, job, FIRST)
    before = wait_for_end(trial, job).value("status")
    response = report_state(trial, start, "FAILED")
    demand(not response.crashed, f"a late report: {response.crashed}")
    after = trial.job_status(job.job_id).value("status")
    demand(after == before, f"a late report changes the states of an ended job to {after}")
    return holds(f"a late report changes nothing ({response.summary})")


# ---------------------------------------------------------------- stop


@tries("C-3.5-stop")
def stops_a_scheduled_job(trial: Trial) -> Finding:
    """A party asks for the stop of a running job."""
    _, job = schedule_job(trial, {FIRST: "RUNNING"})
    wait_for_task_start(trial, job, FIRST)
    response = trial.node.ask(
        STOP_ALL,
        {"job_id": job.job_id},
    )
    demand(response.succeeded, f"stop_all is refused: {response.summary}")
    stops = trial.partner.wait_for(
        STOP,
        trial.options.timeout,
        job_id=job.job_id,
    )
    demand(bool(stops), "no job/stop comes after stop_all")
    wait_for_end(trial, job)
    return holds("job/stop comes to the party, and the job is FINISHED")


@tries("C-3.5-unknown")
def refuses_to_stop_an_unknown_job(trial: Trial) -> Finding:
    """The stop of a job that the node does not schedule."""
    response = trial.node.ask(
        STOP_ALL,
        {"job_id": new_job_id()},
    )
    return judge_stop_of_unknown_job(response)


@tries("C-3.7-unknown")
def refuses_the_state_of_an_unknown_job(trial: Trial) -> Finding:
    """The state of a job that the node does not have."""
    response = trial.job_status(new_job_id())
    demand(not response.crashed, response.crashed)
    is_empty = response.succeeded and not response.data
    demand_except("fate", not is_empty, "a success without data")
    demand(response.refused, f"the state of an unknown job: {response.summary}")
    return holds(f"refused: {response.summary}")
