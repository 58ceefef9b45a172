"""Clauses about a scheduling node whose party refuses, or reports at unusual times."""

import re

from gateway.conformance.platforms.findings import (
    Broken,
    Deviation,
    Finding,
    assume,
    demand,
    demand_except,
    holds,
)
from gateway.conformance.platforms.partner import Received, Reply, refusal
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.scheduled import (
    FIRST,
    SECOND,
    Party,
    Submitted,
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
    POLL,
    REPORT,
    START,
    START_TASK,
    STATUS_ALL,
    STOP,
    Trial,
    new_task_id,
)

_TASK_ID = re.compile("task_[0-9A-Za-z]{32}")  # control layer 2.2
_START_DELAY = 2.0  # seconds that a party takes to answer a task's start


@tries("C-3.3-refused")
def ends_a_job_whose_start_is_refused(trial: Trial) -> Finding:
    """The party refuses the start of the job."""
    Party(trial.partner).play()
    trial.partner.answer(START, refuse)
    job = submit(trial, job_of_two_tasks(trial))
    assume_scheduled(job)
    wait_for_end(trial, job)
    starts = trial.partner.matching(START_TASK, job_id=job.job_id)
    demand_except("fate", not starts, "tasks start although the party has refused job/start")
    return holds("the job is FINISHED without a task")


@tries("C-3.8-refused")
def ends_a_job_whose_polls_are_refused(trial: Trial) -> Finding:
    """The party refuses every poll of a task that it has started."""
    Party(trial.partner).play()
    trial.partner.answer(POLL, _refuse_poll)
    job = submit(trial, job_of_two_tasks(trial))
    assume_scheduled(job)
    wait_for_task_start(trial, job, FIRST)
    _demand_end(trial, job, "every poll is refused, but ")
    return holds("the job is FINISHED after some refused polls")


def _refuse_poll(_: Received) -> Reply:
    """Refuse a poll for another reason than an unknown task."""
    return refusal("the check refuses polls", 500)


def _demand_end(trial: Trial, job: Submitted, cause: str) -> None:
    """Raise `Deviation` unless a job is FINISHED in time; ``cause`` begins its text."""
    try:
        wait_for_end(trial, job)
    except Broken as broken:
        raise Deviation("fate", f"{cause}{broken}") from None


@tries("C-3.4-once")
def starts_each_task_once(trial: Trial) -> Finding:
    """A job in which nothing goes wrong."""
    _, job = schedule_job(trial)
    wait_for_end(trial, job)
    for name in (FIRST, SECOND):
        starts = trial.partner.matching(
            START_TASK,
            job_id=job.job_id,
            task_name=name,
        )
        demand(len(starts) == 1, f"{name} gets {len(starts)} task/start")
    return holds("each task gets one task/start")


@tries("C-3.4-id")
def gives_tasks_ids_in_the_standards_form(trial: Trial) -> Finding:
    """The id of a task."""
    _, job = schedule_job(trial)
    task_id = str(wait_for_task_start(trial, job, FIRST).body.get("task_id"))
    text = f"the task id {task_id} is not task_ and 32 characters"
    demand_except("fate", bool(_TASK_ID.fullmatch(task_id)), text)
    return holds(f"a task id such as {task_id}")


@tries("C-3.6-success")
def stops_no_task_that_succeeds(trial: Trial) -> Finding:
    """A task succeeds while the next one runs."""
    _, job = schedule_job(trial, {SECOND: "RUNNING"})
    wait_for_task_start(trial, job, SECOND)
    stops = trial.partner.matching(STOP, job_id=job.job_id)
    demand_except("fate", not stops, "job/stop comes for a task that has succeeded")
    return holds("no job/stop comes for a task that has succeeded")


# ---------------------------------------------------------------- reports


@tries("C-3.9-early")
def takes_reports_before_the_starts_response(trial: Trial) -> Finding:
    """A party reports a task's success before it answers the task's start."""
    assume(not trial.loses_reports, "later reports are lost, too: mend C-3.9-takes-reports first")
    Party(trial.partner, {FIRST: "RUNNING", SECOND: "RUNNING"}).play()
    trial.partner.answer(START_TASK, _after_some_seconds)
    job = submit(trial, job_of_two_tasks(trial, sync_type="callback"))
    assume_scheduled(job)
    start = wait_for_task_start(trial, job, FIRST)
    response = report_state(trial, start, "SUCCESS")
    demand(response.succeeded, f"an early report is refused: {response.summary}")
    wait_for_start_after_report(trial, job, response)
    return holds("a report that overtakes the response to the start counts")


def _after_some_seconds(_: Received) -> Reply:
    """Accept a task's start late."""
    return Reply(delay=_START_DELAY)


@tries("C-3.9-repeat")
def takes_repeated_reports(trial: Trial) -> Finding:
    """The same report twice, as after a lost response."""
    _, job = schedule_job(trial, {FIRST: "RUNNING"}, sync_type="callback")
    start = wait_for_task_start(trial, job, FIRST)
    first = report_until_taken(trial, start)
    demand(first.succeeded, f"task/callback is refused: {first.summary}")
    repeated = report_state(trial, start, "SUCCESS")
    text = f"a repeated report is refused: {repeated.summary}"
    demand_except("fate", repeated.succeeded, text)
    return holds("a repeated report is a success")


@tries("C-3.9-unknown")
def refuses_reports_of_unknown_tasks(trial: Trial) -> Finding:
    """A report about a task that the node does not have."""
    report = {"task_id": new_task_id(), "status": "SUCCESS", "role": "guest"}
    response = trial.node.ask(REPORT, report)
    demand(not response.crashed, response.crashed)
    demand(response.refused, f"a report about an unknown task: {response.summary}")
    return holds(f"refused: {response.summary}")


@tries("C-3.9-state")
def refuses_reports_of_unknown_states(trial: Trial) -> Finding:
    """A report with a state that the standard does not have."""
    _, job = schedule_job(trial, {FIRST: "RUNNING"}, sync_type="callback")
    start = wait_for_task_start(trial, job, FIRST)
    response = report_state(trial, start, "EXPLODED")
    demand(not response.crashed, response.crashed)
    demand(not response.succeeded, "a report of the state EXPLODED is a success")
    states = task_states(trial.job_status(job.job_id))
    demand("EXPLODED" not in states, "the task's state is EXPLODED")
    return holds(f"refused: {response.summary}")


@tries("C-2.2-source")
def reads_the_sender_from_the_standards_header(trial: Trial) -> Finding:
    """A report whose sender is in x-source-node-id only."""
    _, job = schedule_job(trial, {FIRST: "RUNNING"}, sync_type="callback")
    start = wait_for_task_start(trial, job, FIRST)
    report = {"task_id": start.body.get("task_id"), "status": "RUNNING", "role": "guest"}
    response = trial.node.ask(REPORT, report, x_node_id="")
    text = f"without x-node-id the report is refused: {response.summary}"
    demand_except("fate", response.succeeded, text)
    return holds("x-source-node-id alone names the sender")


@tries("C-3.7-query")
def reads_the_query_of_a_get(trial: Trial) -> Finding:
    """``status_all`` by GET, without a body."""
    _, job = schedule_job(trial, {FIRST: "RUNNING"})
    response = trial.node.ask(
        STATUS_ALL,
        method="GET",
        query={"job_id": job.job_id},
    )
    text = f"a GET with its job_id in the query is refused: {response.summary}"
    demand_except("fate", response.succeeded, text)
    return holds("a GET with its job_id in the query is answered")
