"""Clauses about the node's interface for its own platform (control layer 5)."""

import time
from typing import Any

from gateway.conformance.platforms.answers import Answer
from gateway.conformance.platforms.findings import Broken, Finding, assume, demand, holds
from gateway.conformance.platforms.operators import (
    JOB_LIST,
    STATUS,
    STOP_SUBMITTED,
    SUBMIT,
    Operator,
)
from gateway.conformance.platforms.partner import Received, Reply, refusal, success
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.trial import (
    CREATE,
    NODE_ROLE,
    POLL,
    START,
    START_TASK,
    STOP,
    ComponentName,
    Trial,
    new_job_id,
    task_of,
)

_STATUS_PAUSE = 0.3  # seconds between two requests for a job's state
_UNKNOWN_COMPONENT = ComponentName("conformance", "Absent", "1.0.0")
_UNAUTHORISED = {401, 403}  # codes, and states of HTTP, that refuse a sender


def _play_party(trial: Trial, state: str = "SUCCESS") -> None:
    """Answer the node's requests as a party whose tasks have a state."""

    def poll(_: Received) -> Reply:
        return success(status=state)

    trial.partner.reset()
    trial.partner.answer(POLL, poll)


def _job(trial: Trial) -> dict[str, Any]:
    """Return a job of the node's own platform, with the check as the other party."""
    job = trial.sample_job()
    del job["job_id"]  # the node chooses it
    job["config"]["initiator"] = {"role": NODE_ROLE, "node_id": trial.node.node_id}
    return job


def _submit(trial: Trial, job: dict[str, Any]) -> Answer:
    """Submit a job as the node's own platform; an accepted one is stopped when the check ends."""
    response = trial.operator.post(SUBMIT, job, trial.options.timeout)
    job_id = response.value("job_id")
    if response.succeeded and isinstance(job_id, str):
        trial.submitted.append(job_id)
    return response


def _submitted_job(trial: Trial, state: str = "SUCCESS") -> str:
    """Submit a sample job; return its id. Raises `CannotTry` if the node refuses it."""
    _play_party(trial, state)
    response = _submit(trial, _job(trial))
    assume(response.succeeded, f"the node refuses a submission: {response.summary}")
    job_id = response.value("job_id")
    assume(isinstance(job_id, str), "the answer to a submission has no job_id")
    return str(job_id)


def _wait_for_end(trial: Trial, job_id: str) -> None:
    """Wait until a submitted job is FINISHED. Raises `Broken` if it does not get there."""
    deadline = time.monotonic() + trial.options.timeout
    state = None
    while time.monotonic() < deadline:
        state = trial.operator.get(STATUS, job_id=job_id).value("job_status")
        if state == "FINISHED":
            return
        time.sleep(_STATUS_PAUSE)
    raise Broken(f"the job is {state} after {trial.options.timeout:g} s")


@tries("C-5.1-submit")
def submits_jobs_to_every_party(trial: Trial) -> Finding:
    """A job of the node's own platform arrives at the check."""
    _play_party(trial)
    job = _job(trial)
    response = _submit(trial, job)
    demand(response.succeeded, f"a valid job is refused: {response.summary}")
    job_id = response.value("job_id")
    demand(isinstance(job_id, str), "the answer to a submission has no job_id")
    for path in (CREATE, START):
        requests = trial.partner.wait_for(
            path,
            trial.options.timeout,
            job_id=str(job_id),
        )
        demand(bool(requests), f"no {path} with the answered job_id came")
    created = trial.partner.matching(CREATE, job_id=str(job_id))[0].body
    roles = created.get("config", {}).get("role")
    demand(roles == job["config"]["role"], "job/create has other parties than the submitted job")
    return holds("the job is created and started at the other party, under the answered job_id")


@tries("C-5.1-refused")
def reports_refusals_of_parties(trial: Trial) -> Finding:
    """A submission that the other party refuses."""
    _play_party(trial)
    trial.partner.answer(CREATE, _refuse)
    response = _submit(trial, _job(trial))
    demand(not response.succeeded, "a job that the other party refuses is a success")
    demand(not response.crashed, response.crashed)
    return holds(f"refused: {response.summary}")


def _refuse(_: Received) -> Reply:
    """Refuse a request."""
    return refusal("the check refuses this", 403)


@tries("C-5.1-wrong")
def refuses_wrong_submissions(trial: Trial) -> Finding:
    """A job without tasks, and one with a component that the node lacks."""
    _play_party(trial)
    without_tasks = _job(trial)
    without_tasks["dag"]["components"] = []
    with_unknown_component = _job(trial)
    with_unknown_component["dag"]["components"] = [task_of(_UNKNOWN_COMPONENT, "probe_1")]
    wrong_jobs = {
        "a job without tasks": without_tasks,
        "a job with an unknown component": with_unknown_component,
    }
    for what, job in wrong_jobs.items():
        response = _submit(trial, job)
        demand(not response.crashed, f"{what}: {response.crashed}")
        demand(not response.succeeded, f"{what} is accepted")
    return holds("jobs that cannot run are refused")


@tries("C-5.2-stop")
def stops_submitted_jobs(trial: Trial) -> Finding:
    """The stop of a job whose task runs at the check."""
    job_id = _submitted_job(trial, "RUNNING")
    starts = trial.partner.wait_for(
        START_TASK,
        trial.options.timeout,
        job_id=job_id,
    )
    assume(bool(starts), "no task/start came")
    response = trial.operator.post(STOP_SUBMITTED, {"job_id": job_id}, trial.options.timeout)
    demand(response.succeeded, f"the stop is refused: {response.summary}")
    stops = trial.partner.wait_for(
        STOP,
        trial.options.timeout,
        job_id=job_id,
    )
    demand(bool(stops), "the other party gets no job/stop")
    _wait_for_end(trial, job_id)
    return holds("the job is stopped at the other party, and FINISHED")


@tries("C-5.2-unknown")
def refuses_stops_of_unknown_jobs(trial: Trial) -> Finding:
    """The stop of a job that nobody submitted."""
    body = {"job_id": new_job_id()}
    response = trial.operator.post(STOP_SUBMITTED, body, trial.options.timeout)
    return _judge_unknown_job(response)


@tries("C-5.3-status")
def shows_the_end_of_submitted_jobs(trial: Trial) -> Finding:
    """The state of a job whose tasks succeed."""
    job_id = _submitted_job(trial)
    _wait_for_end(trial, job_id)
    return holds("the job gets to FINISHED")


@tries("C-5.3-unknown")
def refuses_states_of_unknown_jobs(trial: Trial) -> Finding:
    """The state of a job that nobody submitted."""
    return _judge_unknown_job(trial.operator.get(STATUS, job_id=new_job_id()))


def _judge_unknown_job(response: Answer) -> Finding:
    """Judge the response to a request about an unknown job."""
    demand(not response.crashed, response.crashed)
    demand(not response.succeeded, "a request about an unknown job is a success")
    return holds(f"refused: {response.summary}")


@tries("C-5.6-list")
def lists_submitted_jobs(trial: Trial) -> Finding:
    """The list of jobs, after a submission."""
    job_id = _submitted_job(trial)
    response = trial.operator.get(JOB_LIST)
    demand(response.succeeded, f"refused: {response.summary}")
    jobs = response.value("job_list")
    demand(isinstance(jobs, dict), "job_list is not an object")
    demand(job_id in jobs, "the submitted job is not in job_list")
    return holds("the submitted job is in job_list, with its state")


@tries("S-operator")
def refuses_submissions_without_a_token(trial: Trial) -> Finding:
    """A submission without the token that the node demands."""
    _play_party(trial)
    operator: Operator = trial.operator
    assume(bool(operator.token), "the operators' interface is used without a token")
    response = operator.post_without_token(SUBMIT, _job(trial))
    if response.succeeded:
        trial.submitted.append(str(response.value("job_id")))
    demand(not response.succeeded, "a job is taken without a token")
    states = {response.exchange.status, response.code}
    demand(bool(states & _UNAUTHORISED), f"not refused as unauthorised: {response.summary}")
    return holds(f"refused: {response.summary}")
