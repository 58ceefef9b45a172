"""Clauses about a node that takes part in a job which the check schedules (control layer 3)."""

import time
from typing import Any

from gateway.conformance.platforms.findings import (
    CannotTry,
    Finding,
    deviates,
    fails,
    holds,
)
from gateway.conformance.platforms.node import REQUEST_SECONDS
from gateway.conformance.platforms.partner import Received
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.trial import (
    ENDED,
    NODE_ROLE,
    REPORT,
    START,
    START_TASK,
    STATUS_ALL,
    STOP,
    TASK,
    TASK_STATES,
    ComponentName,
    Trial,
    new_job_id,
    new_task_id,
    task_of,
)

_MISSING_STATES = (404, 405, 501)  # HTTP states of a path that a node does not serve

# ---------------------------------------------------------------- creation


@tries("C-3.2-create")
def creates_a_job(trial: Trial) -> Finding:
    """A valid job."""
    answer = trial.create(trial.sample_job())
    if answer.succeeded:
        return holds("a valid job is accepted")
    return fails(f"a valid job is refused: {answer.summary}")


@tries("C-3.2-optional")
def needs_no_optional_fields(trial: Trial) -> Finding:
    """A job without the optional fields, and with nulls in their place."""
    body = trial.sample_job()
    del body["flow_id"], body["old_job_id"]
    without = trial.create(body)
    nulls = trial.create(
        trial.sample_job(
            flow_id=None,
            old_job_id=None,
        )
    )
    if without.succeeded and nulls.succeeded:
        return holds("a job without optional fields, and one with nulls, are accepted")
    if not without.succeeded:
        return fails(f"a job without flow_id is refused: {without.summary}")
    return deviates("fate", f"a job with flow_id null is refused: {nulls.summary}")


@tries("C-3.2-unknown-fields")
def ignores_unknown_fields(trial: Trial) -> Finding:
    """A job with fields that the standard does not have."""
    body = trial.sample_job(x_extension={"a": 1})
    body["config"]["x_extension"] = True
    answer = trial.create(body)
    if answer.succeeded:
        return holds("unknown fields are ignored")
    return fails(f"a job with unknown fields is refused: {answer.summary}")


@tries("C-3.2-repeat")
def creates_a_job_once(trial: Trial) -> Finding:
    """The same creation twice, as after a lost response."""
    body = trial.created_job()
    answer = trial.create(body)
    if answer.succeeded:
        return holds("a repeated creation is a success")
    if "exist" in answer.text:
        return deviates("kuscia", f"a repeated creation is refused: {answer.summary}")
    return fails(f"a repeated creation is refused: {answer.summary}")


@tries("C-3.2-conflict")
def refuses_another_job_of_the_same_id(trial: Trial) -> Finding:
    """Another job with the id of one that the node has."""
    body = trial.created_job()
    other = trial.sample_job(TASK, "probe_2", job_id=body["job_id"])
    answer = trial.node.ask("/v1/interconn/schedule/job/create", other)
    if answer.refused:
        return holds(f"refused: {answer.summary}")
    if answer.succeeded:
        return deviates("fate", "another job with a known id is a success; the first one stays")
    return fails(answer.summary)


@tries("C-3.2-component")
def refuses_an_unknown_component(trial: Trial) -> Finding:
    """A job with a component that nobody has."""
    unknown = ComponentName("nobody", "NoSuchComponent", "0.0.0")
    answer = trial.create(trial.sample_job(component=unknown))
    if answer.refused:
        return holds(f"refused: {answer.summary}")
    if answer.succeeded:
        return deviates("fate", "a job with an unknown component is accepted")
    return fails(answer.summary)


@tries("C-3.2-flow")
def refuses_impossible_flows(trial: Trial) -> Finding:
    """Flows that no node can run: a cycle, two tasks of one name, an unknown input, no task."""
    accepted = []
    for name, components in _impossible_flows(trial.component).items():
        body = trial.sample_job(dag={"version": "2.0", "components": components})
        answer = trial.create(body)
        if answer.crashed:
            return fails(f"{name}: {answer.crashed}")
        if answer.succeeded:
            accepted.append(name)
    if accepted:
        return deviates("fate", f"accepted: {', '.join(accepted)}")
    return holds("a cycle, a repeated name, an unknown input and an empty flow are refused")


def _impossible_flows(component: ComponentName) -> dict[str, list[dict[str, Any]]]:
    """Return the components of flows that cannot be run, by what is wrong."""
    first = task_of(component, "probe_1")
    second = task_of(component, "probe_2")
    for task in (first, second):
        task["output"] = [{"type": "dataset", "key": "data0"}]
    to_second = first | {"input": [{"type": "dataset", "key": "probe_2.data0"}]}
    to_first = second | {"input": [{"type": "dataset", "key": "probe_1.data0"}]}
    to_nobody = first | {"input": [{"type": "dataset", "key": "nobody.data0"}]}
    return {
        "a cycle": [to_second, to_first],
        "two tasks of one name": [first, first],
        "an input of an unknown task": [to_nobody],
        "no task": [],
    }


# ---------------------------------------------------------------- start


@tries("C-3.3-start")
def starts_a_job(trial: Trial) -> Finding:
    """The start of a created job, twice."""
    body = trial.created_job()
    for attempt in ("first", "repeated"):
        answer = trial.node.ask(START, {"job_id": body["job_id"]})
        if not answer.succeeded:
            return fails(f"the {attempt} start is refused: {answer.summary}")
    return holds("a job is started, and a repeated start is a success")


@tries("C-3.3-unknown")
def refuses_to_start_an_unknown_job(trial: Trial) -> Finding:
    """The start of a job that the node does not have."""
    answer = trial.node.ask(START, {"job_id": new_job_id()})
    if answer.refused:
        return holds(f"refused: {answer.summary}")
    return fails(f"the start of an unknown job: {answer.summary}")


@tries("C-3.4-start")
def starts_a_task(trial: Trial) -> Finding:
    """The start of a task."""
    finished = trial.finished_task
    seconds = finished.start.exchange.seconds
    if seconds > REQUEST_SECONDS:
        return fails(f"the response to task/start took {seconds:.1f} s")
    return holds("a task is started")


@tries("C-3.4-repeat")
def starts_a_task_once(trial: Trial) -> Finding:
    """The same start twice, as after a lost response."""
    body = trial.started_job()
    task_id = new_task_id()
    if not trial.start_task(body, task_id).succeeded:
        raise CannotTry("the node does not start a task")
    repeated = trial.start_task(body, task_id)
    states = trial.states_until_end(task_id)
    if states[-1] != "SUCCESS":
        text = f"after a repeated task/start ({repeated.summary}) the task is {states[-1]}"
        return deviates("fate", text)
    if repeated.succeeded:
        return holds("a repeated start is a success, and the task runs on")
    return deviates("fate", f"a repeated start is refused: {repeated.summary}; the task runs on")


@tries("C-3.4-unknown")
def refuses_unknown_tasks(trial: Trial) -> Finding:
    """The start of a task that the flow does not have, and of one in an unknown job."""
    body = trial.started_job()
    task = {"task_id": new_task_id(), "job_id": body["job_id"], "task_name": "nobody"}
    unknown_name = trial.node.ask(START_TASK, task)
    task = {"task_id": new_task_id(), "job_id": new_job_id(), "task_name": TASK}
    unknown_job = trial.node.ask(START_TASK, task)
    for name, answer in (("task", unknown_name), ("job", unknown_job)):
        if not answer.refused:
            return fails(f"the start of a task of an unknown {name}: {answer.summary}")
    return holds("unknown task names and jobs are refused")


# ---------------------------------------------------------------- states


@tries("C-3.8-states")
def polls_have_the_states_of_the_standard(trial: Trial) -> Finding:
    """The states of a task, from its start to its end."""
    states = trial.finished_task.states
    unknown = [state for state in states if state not in TASK_STATES]
    if unknown:
        return fails(f"states that the standard does not have: {', '.join(unknown)}")
    return holds(" → ".join(states))


@tries("C-3.8-end")
def a_task_succeeds(trial: Trial) -> Finding:
    """The end of a task."""
    finished = trial.finished_task
    if finished.states[-1] != "SUCCESS":
        return fails(f"the task ends {finished.states[-1]}")
    again = str(trial.poll(finished.task_id).value("status"))
    if again != "SUCCESS":
        return fails(f"a task that was SUCCESS is {again} at the next poll")
    return holds("the task ends SUCCESS and stays so")


@tries("C-3.8-role")
def polls_take_every_form_of_the_role(trial: Trial) -> Finding:
    """Polls with the role alone, with its index, and without a role."""
    task_id = trial.finished_task.task_id
    refused = []
    for role in (NODE_ROLE, f"{NODE_ROLE}.0", ""):
        if not trial.poll(task_id, role).succeeded:
            refused.append(repr(role))
    if NODE_ROLE in refused:
        return fails("a poll with the role alone is refused")
    if refused:
        return deviates("kuscia", f"polls are refused with the role {', '.join(refused)}")
    return holds("polls are answered with the role alone, with its index and without it")


@tries("C-3.8-unknown")
def refuses_polls_of_unknown_tasks(trial: Trial) -> Finding:
    """A poll of a task that the node does not have."""
    answer = trial.poll(new_task_id())
    if answer.refused:
        return holds(f"refused: {answer.summary}")
    return fails(f"a poll of an unknown task: {answer.summary}")


@tries("C-3.9-reports")
def reports_states_if_asked(trial: Trial) -> Finding:
    """A job with ``sync_type: callback``: the node reports the states of its task by itself."""
    partner = trial.partner
    body = trial.sample_job()
    body["config"]["job_params"]["common"]["sync_type"] = "callback"
    task_id = _started_task(trial, body)
    deadline = time.monotonic() + trial.given.patience
    while time.monotonic() < deadline:
        reports = partner.wait_for(REPORT, seconds=1.0, task_id=task_id)
        ends = [report for report in reports if report.body.get("status") in ENDED]
        if ends:
            return _judge_report(ends[-1])
    return deviates("fate", f"no task/callback within {trial.given.patience:g} s")


def _judge_report(report: Received) -> Finding:
    """Judge the node's report of a task's end."""
    missing = [name for name in ("task_id", "status", "role") if not report.body.get(name)]
    if missing:
        return fails(f"task/callback lacks {', '.join(missing)}")
    return holds(f"task/callback with status {report.body['status']}")


def _started_task(trial: Trial, body: dict[str, Any]) -> str:
    """Create and start a job and its task; return the task's id. Raises `CannotTry`."""
    task_id = new_task_id()
    steps = (
        ("job", lambda: trial.create(body)),
        ("start", lambda: trial.node.ask(START, {"job_id": body["job_id"]})),
        ("task", lambda: trial.start_task(body, task_id)),
    )
    for name, step in steps:
        answer = step()
        if not answer.succeeded:
            raise CannotTry(f"the node refuses the {name}: {answer.summary}")
    return task_id


# ---------------------------------------------------------------- end


@tries("C-3.6-stop")
def stops_a_job(trial: Trial) -> Finding:
    """The stop of a job that was created and not started, twice."""
    body = trial.created_job()
    for attempt in ("first", "repeated"):
        answer = trial.node.ask(STOP, {"job_id": body["job_id"]})
        if not answer.succeeded:
            return fails(f"the {attempt} stop is refused: {answer.summary}")
    answer = trial.start_task(body, new_task_id())
    if answer.succeeded:
        return fails("a task of a stopped job is started")
    return holds("a job is stopped, a repeated stop is a success, and no task starts any more")


@tries("C-3.6-unknown")
def answers_a_stop_of_an_unknown_job(trial: Trial) -> Finding:
    """The stop of a job that the node does not have."""
    answer = trial.node.ask(STOP, {"job_id": new_job_id()})
    if answer.crashed:
        return fails(answer.crashed)
    if answer.refused:
        return holds(f"refused: {answer.summary}")
    return fails(f"the stop of an unknown job: {answer.summary}")


@tries("C-3.6-finish")
def a_stop_keeps_a_success(trial: Trial) -> Finding:
    """``job/stop`` after every task has succeeded, which ends the job."""
    finished = trial.finished_task
    if finished.states[-1] != "SUCCESS":
        raise CannotTry(f"the task ends {finished.states[-1]}")
    task = {"job_id": finished.job_id, "task_name": TASK}
    for body in (task, {"job_id": finished.job_id}):
        answer = trial.node.ask(STOP, body)
        if not answer.succeeded:
            return fails(f"job/stop of a finished job is refused: {answer.summary}")
    answer = trial.poll(finished.task_id)
    state = answer.value("status")
    if answer.succeeded and state != "SUCCESS":
        return fails(f"after job/stop the finished task is {state}")
    return holds("job/stop of a finished job is a success, and its task stays SUCCESS")


@tries("C-3.7-status")
def tells_the_state_of_its_part(trial: Trial) -> Finding:
    """``status_all`` by both methods."""
    job_id = trial.finished_task.job_id
    answers = {
        method: trial.node.ask(
            STATUS_ALL,
            {"job_id": job_id},
            method=method,
            query={"job_id": job_id},
        )
        for method in ("POST", "GET")
    }
    served = [method for method, answer in answers.items() if answer.succeeded]
    if len(served) == len(answers):
        return holds("served by POST and GET")
    if served:
        return deviates("fate", f"served by {served[0]} only")
    return fails(f"refused: {answers['POST'].summary}")
