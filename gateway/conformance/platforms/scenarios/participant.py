"""Clauses about a node that takes part in a job which the check schedules (control layer 3)."""

import time
from dataclasses import replace
from typing import Any

from gateway.conformance.platforms.findings import (
    CannotTry,
    Deviation,
    Finding,
    assume,
    demand,
    demand_except,
    holds,
)
from gateway.conformance.platforms.flows import impossible_flows
from gateway.conformance.platforms.node import REQUEST_SECONDS
from gateway.conformance.platforms.partner import Received
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.scenarios.refusals import judge_stop_of_unknown_job
from gateway.conformance.platforms.trial import (
    CREATE,
    ENDED,
    NODE_ROLE,
    REPORT,
    START,
    START_TASK,
    STATUS_ALL,
    STOP,
    TASK,
    TASK_STATES,
    Trial,
    new_job_id,
    new_task_id,
)

_REPORT_WAIT = 1.0  # seconds of one wait for a report

# ---------------------------------------------------------------- creation


@tries("C-3.2-create")
def creates_a_job(trial: Trial) -> Finding:
    """A valid job."""
    response = trial.create(trial.sample_job())
    demand(response.succeeded, f"a valid job is refused: {response.summary}")
    return holds("a valid job is accepted")


@tries("C-3.2-optional")
def needs_no_optional_fields(trial: Trial) -> Finding:
    """A job without the optional fields, and with nulls in their place."""
    body = trial.sample_job()
    del body["flow_id"], body["old_job_id"]
    without = trial.create(body)
    demand(without.succeeded, f"a job without flow_id is refused: {without.summary}")
    body_with_nulls = trial.sample_job(
        flow_id=None,
        old_job_id=None,
    )
    nulls = trial.create(body_with_nulls)
    text = f"a job with flow_id null is refused: {nulls.summary}"
    demand_except("fate", nulls.succeeded, text)
    return holds("a job without optional fields, and one with nulls, are accepted")


@tries("C-3.2-unknown-fields")
def ignores_unknown_fields(trial: Trial) -> Finding:
    """A job with fields that the standard does not have."""
    body = trial.sample_job(x_extension={"a": 1})
    body["config"]["x_extension"] = True
    response = trial.create(body)
    demand(response.succeeded, f"a job with unknown fields is refused: {response.summary}")
    return holds("unknown fields are ignored")


@tries("C-3.2-repeat")
def creates_a_job_once(trial: Trial) -> Finding:
    """The same creation twice, as after a lost response."""
    body = trial.created_job()
    response = trial.create(body)
    text = f"a repeated creation is refused: {response.summary}"
    demand_except("kuscia", response.succeeded or "exist" not in response.text, text)
    demand(response.succeeded, text)
    return holds("a repeated creation is a success")


@tries("C-3.2-conflict")
def refuses_a_different_job_of_the_same_id(trial: Trial) -> Finding:
    """A different job with the id of one that the node has."""
    body = trial.created_job()
    different_job = trial.sample_job(TASK, "probe_2", job_id=body["job_id"])
    response = trial.node.ask(CREATE, different_job)
    text = "a different job with the id of a stored one is a success"
    demand_except("fate", not response.succeeded, text)
    demand(response.refused, response.summary)
    return holds(f"refused: {response.summary}")


@tries("C-3.2-component")
def refuses_an_unknown_component(trial: Trial) -> Finding:
    """Jobs with a component, a version of it and a provider that no node has."""
    component = trial.component
    unknown = {
        "component": replace(component, name="NoSuchComponent"),
        "version": replace(component, version="0.0.0.0"),
        "provider": replace(component, provider="nobody"),
    }
    accepted = []
    for part, unknown_component in unknown.items():
        response = trial.create(trial.sample_job(component=unknown_component))
        demand(not response.crashed, f"an unknown {part}: {response.crashed}")
        if response.succeeded:
            accepted.append(f"an unknown {part}")
    demand_except("fate", not accepted, f"accepted: {', '.join(accepted)}")
    return holds("an unknown component, version and provider are refused")


@tries("C-3.2-third")
def takes_part_in_jobs_of_third_nodes(trial: Trial) -> Finding:
    """A job whose scheduling node has no role in it."""
    body = trial.sample_job()
    body["config"]["role"] = {NODE_ROLE: [trial.node.node_id]}
    body["config"]["initiator"] = {"role": NODE_ROLE, "node_id": trial.node.node_id}
    response = trial.create(body)
    text = f"a job of a scheduling node without a role is refused: {response.summary}"
    demand(response.succeeded, text)
    return holds("a job of a scheduling node without a role is accepted")


@tries("C-3.2-flow")
def refusesimpossible_flows(trial: Trial) -> Finding:
    """Flows that no node can run."""
    accepted = []
    for name, components in impossible_flows(trial.component).items():
        body = trial.sample_job(dag={"version": "2.0", "components": components})
        response = trial.create(body)
        demand(not response.crashed, f"{name}: {response.crashed}")
        if response.succeeded:
            accepted.append(name)
    demand_except("fate", not accepted, f"accepted: {', '.join(accepted)}")
    return holds("a cycle, a repeated name, an unknown input and an empty flow are refused")


# ---------------------------------------------------------------- start


@tries("C-3.3-start")
def starts_a_job(trial: Trial) -> Finding:
    """The start of a created job, twice."""
    body = trial.created_job()
    for attempt in ("first", "repeated"):
        response = trial.node.ask(
            START,
            {"job_id": body["job_id"]},
        )
        demand(response.succeeded, f"the {attempt} start is refused: {response.summary}")
    return holds("a job is started, and a repeated start is a success")


@tries("C-3.3-unknown")
def refuses_to_start_an_unknown_job(trial: Trial) -> Finding:
    """The start of a job that the node does not have."""
    response = trial.node.ask(
        START,
        {"job_id": new_job_id()},
    )
    text = f"the start of an unknown job: {response.summary}"
    demand_except("fate", not response.succeeded, text)
    demand(response.refused, text)
    return holds(f"refused: {response.summary}")


@tries("C-3.4-start")
def starts_a_task(trial: Trial) -> Finding:
    """The start of a task."""
    body = trial.started_job()
    response = trial.start_task(body, new_task_id())
    demand(response.succeeded, f"the start of a task is refused: {response.summary}")
    seconds = response.exchange.seconds
    demand(seconds <= REQUEST_SECONDS, f"the response to task/start took {seconds:.1f} s")
    return holds("a task is started")


@tries("C-3.4-repeat")
def starts_a_task_once(trial: Trial) -> Finding:
    """The same start twice, as after a lost response."""
    body = trial.started_job()
    task_id = new_task_id()
    first = trial.start_task(body, task_id)
    assume(first.succeeded, f"the node does not start a task: {first.summary}")
    repeated = trial.start_task(body, task_id)
    state = trial.states_until_end(task_id)[-1]
    text = f"after a repeated task/start ({repeated.summary}) the task is {state}"
    demand_except("fate", state == "SUCCESS", text)
    text = f"a repeated start is refused: {repeated.summary}; the task runs on"
    demand_except("fate", repeated.succeeded, text)
    return holds("a repeated start is a success, and the task runs on")


@tries("C-3.4-unknown")
def refuses_unknown_tasks(trial: Trial) -> Finding:
    """The start of a task that the flow does not have, and of one in an unknown job."""
    body = trial.started_job()
    starts = (
        ("task", {"job_id": body["job_id"], "task_name": "nobody"}),
        ("job", {"job_id": new_job_id(), "task_name": TASK}),
    )
    for unknown, fields in starts:
        response = trial.node.ask(START_TASK, {"task_id": new_task_id(), **fields})
        text = f"the start of a task of an unknown {unknown}: {response.summary}"
        demand(response.refused, text)
    return holds("unknown task names and jobs are refused")


# ---------------------------------------------------------------- states


@tries("C-3.8-states")
def polls_have_the_states_of_the_standard(trial: Trial) -> Finding:
    """The states of a task, from its start to its end."""
    states = trial.finished_task.states
    unknown = [state for state in states if state not in TASK_STATES]
    demand(not unknown, f"states that the standard does not have: {', '.join(unknown)}")
    return holds(" → ".join(states))


@tries("C-3.8-end")
def a_task_succeeds(trial: Trial) -> Finding:
    """The end of a task."""
    body = trial.started_job()
    task_id = new_task_id()
    start = trial.start_task(body, task_id)
    assume(start.succeeded, f"the node does not start a task: {start.summary}")
    end = trial.states_until_end(task_id)[-1]
    demand(end == "SUCCESS", f"the task ends {end}")
    state = str(trial.poll(task_id).value("status"))
    demand(state == "SUCCESS", f"a task that was SUCCESS is {state} at the next poll")
    return holds("the task ends SUCCESS and stays so")


@tries("C-3.8-role")
def polls_take_every_form_of_the_role(trial: Trial) -> Finding:
    """Polls with the role alone, with its index, and without a role."""
    task_id = trial.finished_task.task_id
    roles = (NODE_ROLE, f"{NODE_ROLE}.0", "")
    refused = [repr(role) for role in roles if not trial.poll(task_id, role).succeeded]
    demand(repr(NODE_ROLE) not in refused, "a poll with the role alone is refused")
    text = f"polls are refused with the role {', '.join(refused)}"
    demand_except("kuscia", not refused, text)
    return holds("polls are answered with the role alone, with its index and without it")


@tries("C-3.8-unknown")
def refuses_polls_of_unknown_tasks(trial: Trial) -> Finding:
    """A poll of a task that the node does not have."""
    response = trial.poll(new_task_id())
    demand(response.refused, f"a poll of an unknown task: {response.summary}")
    return holds(f"refused: {response.summary}")


@tries("C-3.9-reports")
def reports_states_on_request(trial: Trial) -> Finding:
    """A job with ``sync_type: callback``: the node reports the states of its task by itself."""
    trial.partner.reset()
    body = trial.sample_job()
    body["config"]["job_params"]["common"]["sync_type"] = "callback"
    task_id = _started_task(trial, body)
    report = _report_of_end(trial, task_id)
    missing = [name for name in ("task_id", "status", "role") if not report.body.get(name)]
    demand(not missing, f"task/callback lacks {', '.join(missing)}")
    return holds(f"task/callback with status {report.body['status']}")


def _report_of_end(trial: Trial, task_id: str) -> Received:
    """Return the node's report that a task has ended. Raises `Deviation` if none comes in time."""
    deadline = time.monotonic() + trial.options.timeout
    while time.monotonic() < deadline:
        reports = trial.partner.wait_for(
            REPORT,
            _REPORT_WAIT,
            task_id=task_id,
        )
        ends = [report for report in reports if report.body.get("status") in ENDED]
        if ends:
            return ends[-1]
    raise Deviation("fate", f"no task/callback within {trial.options.timeout:g} s")


def _started_task(trial: Trial, body: dict[str, Any]) -> str:
    """Create and start a job and its task; return the task's id. Raises `CannotTry`."""
    created = trial.create(body)
    assume(created.succeeded, f"the node does not accept a job: {created.summary}")
    started = trial.node.ask(
        START,
        {"job_id": body["job_id"]},
    )
    assume(started.succeeded, f"the node does not start a job: {started.summary}")
    task_id = new_task_id()
    response = trial.start_task(body, task_id)
    assume(response.succeeded, f"the node does not start a task: {response.summary}")
    return task_id


# ---------------------------------------------------------------- end


@tries("C-3.6-stop")
def stops_a_job(trial: Trial) -> Finding:
    """The stop of a job that was created and not started, twice."""
    body = trial.created_job()
    for attempt in ("first", "repeated"):
        response = trial.node.ask(
            STOP,
            {"job_id": body["job_id"]},
        )
        demand(response.succeeded, f"the {attempt} stop is refused: {response.summary}")
    response = trial.start_task(body, new_task_id())
    text = "a task of a stopped job is started"
    demand_except("fate", not response.succeeded, text)
    return holds("a job is stopped, a repeated stop is a success, and no task starts any more")


@tries("C-3.6-unknown")
def refuses_a_stop_of_an_unknown_job(trial: Trial) -> Finding:
    """The stop of a job that the node does not have."""
    response = trial.node.ask(
        STOP,
        {"job_id": new_job_id()},
    )
    return judge_stop_of_unknown_job(response)


@tries("C-3.6-finish")
def a_stop_keeps_a_success(trial: Trial) -> Finding:
    """``job/stop`` after every task has succeeded, which ends the job."""
    finished = trial.finished_task
    assume(finished.states[-1] == "SUCCESS", f"the task ends {finished.states[-1]}")
    of_task = {"job_id": finished.job_id, "task_name": TASK}
    for body in (of_task, {"job_id": finished.job_id}):
        response = trial.node.ask(STOP, body)
        text = f"job/stop of a finished job is refused: {response.summary}"
        demand(response.succeeded, text)
    poll = trial.poll(finished.task_id)
    state = poll.value("status")
    demand(
        not poll.succeeded or state == "SUCCESS",
        f"after job/stop the finished task is {state}",
    )
    return holds("job/stop of a finished job is a success, and its task stays SUCCESS")


@tries("C-3.7-status")
def serves_the_state_of_its_part(trial: Trial) -> Finding:
    """``status_all`` by both methods."""
    job_id = trial.finished_task.job_id
    served = [method for method in ("POST", "GET") if _is_state_served(trial, job_id, method)]
    demand(bool(served), "refused by POST and GET")
    is_complete = set(trial.standard.status_methods) <= set(served)
    demand_except("fate", is_complete, f"served by {served[0]} only")
    return holds(f"served by {' and '.join(served)}")


def _is_state_served(trial: Trial, job_id: str, method: str) -> bool:
    """Return whether the node answers ``status_all`` by a method."""
    query = {"job_id": job_id}
    try:
        response = trial.node.ask(
            STATUS_ALL,
            query,
            method=method,
            query=query,
        )
    except CannotTry:
        return False
    return response.succeeded
