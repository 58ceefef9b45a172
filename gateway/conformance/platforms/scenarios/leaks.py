"""Clauses about what a node's responses must not show."""

import re
from collections.abc import Iterable
from uuid import uuid4

from adapter.bfia.paths import NODE
from gateway.conformance.platforms.answers import Answer
from gateway.conformance.platforms.findings import Finding, demand, holds
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.scheduled import (
    FIRST,
    SECOND,
    Party,
    job_of_two_tasks,
    refuse,
    submit,
)
from gateway.conformance.platforms.trial import (
    CREATE,
    START,
    TASK,
    Trial,
    new_task_id,
)

# Private keys, fields named like a secret with a value, and addresses with a password.
_SECRET = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY"
    r'|"[a-z_]*(?:password|passwd|secret|private_key|access_key|token)"\s*:\s*"[^"]+"'
    r"|[a-z0-9+]+://[^/\s\"@]*:[^/\s\"@]*@",
    re.IGNORECASE,
)
_LONGEST_SIGN = 20  # characters of a secret's beginning that a finding repeats


@tries("C-2-leak")
def shows_no_parameters(trial: Trial) -> Finding:
    """A job with a secret among another party's parameters, its life and its refusal."""
    secret = f"conformance-{uuid4().hex}"
    body = trial.sample_job()
    body["config"]["task_params"]["host"] = {"0": {TASK: {"password": secret}}}
    responses = [trial.create(body), trial.node.ask(START, {"job_id": body["job_id"]})]
    task_id = new_task_id()
    responses += [
        trial.start_task(body, task_id),
        trial.poll(task_id),
        trial.job_status(str(body["job_id"])),
    ]
    different_job = trial.sample_job(TASK, "probe_2", job_id=body["job_id"])
    different_job["config"]["task_params"]["host"] = {"0": {TASK: {"password": secret}}}
    responses.append(trial.node.ask(CREATE, different_job))
    _demand_absence(secret, responses)
    return holds(f"{len(responses)} responses show no parameter")


@tries("C-3.1-leak")
def shows_no_parameters_of_a_refused_job(trial: Trial) -> Finding:
    """A party refuses a job with a secret among another party's parameters."""
    secret = f"conformance-{uuid4().hex}"
    Party(trial.partner).play()
    trial.partner.answer(CREATE, refuse)
    body = job_of_two_tasks(trial, roles=2)
    body["config"]["task_params"]["host"] = {"0": {FIRST: {"password": secret}, SECOND: {}}}
    _demand_absence(secret, [submit(trial, body).response])
    return holds("the refusal shows no parameter")


def _demand_absence(secret: str, responses: Iterable[Answer]) -> None:
    """Raise `Broken` if a response shows a secret."""
    for response in responses:
        is_shown = secret.encode() in response.exchange.received
        demand(not is_shown, f"the response to {response.exchange.target} shows a parameter")


@tries("M-3-leak")
def describes_itself_without_secrets(trial: Trial) -> Finding:
    """The description of the node: keys, passwords and addresses with passwords."""
    response = trial.node.ask(
        f"{NODE}/query",
        method="GET",
        query={"node_id": trial.node.node_id},
    )
    demand(response.succeeded, f"refused: {response.summary}")
    text = response.exchange.received.decode("utf-8", "replace")
    match = _SECRET.search(text)
    demand(match is None, f"the description shows {match and match[0][:_LONGEST_SIGN]}")
    return holds("no key and no password")
