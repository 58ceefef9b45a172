"""Clauses about a node that is asked to schedule a job, until its answer (control layer 3.1)."""

from collections.abc import Mapping
from typing import Any

from gateway.conformance.platforms.findings import Finding, assume, demand, demand_except, holds
from gateway.conformance.platforms.flows import impossible_flows
from gateway.conformance.platforms.partner import Received, Reply
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.scheduled import (
    FIRST,
    QUIET,
    SECOND,
    Party,
    Submitted,
    job_of_two_tasks,
    schedule_job,
    submit,
    wait_for_task_start,
)
from gateway.conformance.platforms.trial import (
    CREATE,
    START,
    START_TASK,
    TASK,
    UNKNOWN_NODE,
    Trial,
    new_job_id,
)

_DATA = {"namespace": "conformance_space", "name": "conformance_table"}  # a dataset's address
_CREATION_DELAY = 2.0  # seconds that a party takes to answer its creation


@tries("C-3.1-repeat")
def schedules_a_job_once(trial: Trial) -> Finding:
    """The same submission twice, as after a lost response."""
    _, job = schedule_job(trial, {FIRST: "RUNNING"})
    wait_for_task_start(trial, job, FIRST)
    repeated = submit(trial, job.body).response
    text = f"a repeated create_all is refused: {repeated.summary}"
    demand_except("fate", repeated.succeeded, text)
    starts = trial.partner.wait_for(
        START_TASK,
        QUIET,
        count=2,
        job_id=job.job_id,
    )
    demand(len(starts) == 1, "a repeated create_all starts a task twice")
    return holds("a repeated create_all is a success, and starts nothing twice")


@tries("C-3.1-conflict")
def refuses_to_schedule_a_different_job_of_the_same_id(trial: Trial) -> Finding:
    """A different job under the id of one that the node schedules."""
    _, job = schedule_job(trial, {FIRST: "RUNNING"})
    different_job = job_of_two_tasks(trial, roles=2) | {"job_id": job.job_id}
    response = submit(trial, different_job).response
    demand_except("fate", not response.crashed, response.crashed)
    text = "a different job under the id of a scheduled one is a success"
    demand_except("fate", not response.succeeded, text)
    return holds(f"refused: {response.summary}")


@tries("C-3.1-flow")
def refuses_to_schedule_impossible_flows(trial: Trial) -> Finding:
    """Flows that no node can run."""
    Party(trial.partner).play()
    jobs = {}
    for name, components in impossible_flows(trial.component).items():
        body = job_of_two_tasks(trial)
        body["dag"]["components"] = components
        jobs[name] = submit(trial, body)
    faults = _faults_of_refusals(trial, jobs)
    demand_except("fate", not faults, "; ".join(faults))
    return holds("a cycle, a repeated name, an unknown input and an empty flow are refused")


@tries("C-3.1-node")
def refuses_jobs_with_unknown_nodes(trial: Trial) -> Finding:
    """A job with a party to which no route leads, beside the check."""
    Party(trial.partner).play()
    body = job_of_two_tasks(trial)
    body["config"]["role"]["host"] = [UNKNOWN_NODE]
    body["config"]["task_params"]["host"] = {"0": {FIRST: {}, SECOND: {}}}
    faults = _faults_of_refusals(trial, {"a party without a route": submit(trial, body)})
    demand_except("fate", not faults, "; ".join(faults))
    return holds("a job with an unknown party is refused, and starts nowhere")


def _faults_of_refusals(trial: Trial, jobs: Mapping[str, Submitted]) -> list[str]:
    """Return the faults of the responses to jobs that cannot run, and of what follows.

    ``jobs``: by what is wrong with them.
    """
    faults = []
    for name, job in jobs.items():
        if job.response.succeeded:
            faults.append(f"{name}: accepted")
        elif job.response.crashed:
            faults.append(f"{name}: {job.response.crashed}")
    # Starts of all these jobs come within this time, if any do.
    trial.partner.wait_for(
        START,
        QUIET,
        job_id=new_job_id(),
    )
    for name, job in jobs.items():
        if trial.partner.matching(START, job_id=job.job_id):
            faults.append(f"{name}: job/start comes")
    return faults


@tries("C-3.1-optional")
def schedules_jobs_without_optional_fields(trial: Trial) -> Finding:
    """A job without ``flow_id`` and ``old_job_id``, in which the node takes part itself."""
    Party(trial.partner).play()
    body = trial.sample_job(TASK)
    del body["flow_id"], body["old_job_id"]
    response = submit(trial, body).response
    demand_except("fate", not response.crashed, response.crashed)
    text = f"a job without flow_id is refused: {response.summary}"
    demand_except("fate", response.succeeded, text)
    return holds("a job without optional fields is scheduled")


@tries("C-3.1-wait")
def answers_after_its_parties(trial: Trial) -> Finding:
    """A party takes some seconds to answer its creation."""
    Party(trial.partner).play()
    trial.partner.answer(CREATE, _after_some_seconds)
    response = submit(trial, job_of_two_tasks(trial)).response
    assume(response.succeeded, f"the node schedules no job: {response.summary}")
    seconds = response.exchange.seconds
    text = f"create_all is a success after {seconds:.1f} s, before the party has accepted"
    demand(seconds >= _CREATION_DELAY, text)
    return holds("create_all is a success once the party has accepted")


def _after_some_seconds(_: Received) -> Reply:
    """Accept a creation late."""
    return Reply(delay=_CREATION_DELAY)


@tries("C-3.1-data")
def passes_addresses_of_data_on(trial: Trial) -> Finding:
    """The namespace and the name of a dataset."""
    body = job_of_two_tasks(trial)
    body["config"]["task_params"]["guest"]["0"] = {FIRST: dict(_DATA), SECOND: {}}
    config = _created_config(trial, body)
    parameters = _at(config, "task_params", "guest", "0", FIRST)
    text = f"the address of a dataset arrives as {parameters}, sent as {_DATA}"
    demand(isinstance(parameters, Mapping), text)
    demand({name: parameters.get(name) for name in _DATA} == _DATA, text)
    return holds("namespace and name of a dataset arrive as they were submitted")


def _created_config(trial: Trial, body: dict[str, Any]) -> dict[str, Any]:
    """Submit a job; return the config with which it is created at the check.

    Raises `CannotTry` if the node refuses it, and `Broken` if no creation comes.
    """
    Party(trial.partner).play()
    job = submit(trial, body)
    assume(job.response.succeeded, f"the node schedules no job: {job.response.summary}")
    creations = trial.partner.wait_for(
        CREATE,
        trial.options.timeout,
        job_id=job.job_id,
    )
    demand(bool(creations), "no job/create came")
    config = creations[0].body.get("config")
    demand(isinstance(config, dict), "job/create has no config")
    return dict(config or {})


def _at(value: Any, *path: str) -> Any:
    """Return the value at a path of nested objects; None if there is none."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
