"""Clauses about who may send requests, and how often the same one."""

import httpx

from gateway.conformance.platforms.answers import Answer, read_answer
from gateway.conformance.platforms.findings import (
    Finding,
    assume,
    demand,
    demand_except,
    holds,
)
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.trial import (
    CREATE,
    POLL,
    STATUS_ALL,
    STOP,
    UNKNOWN_NODE,
    Trial,
    new_task_id,
)

_DAY = 86_400  # seconds
_UNAUTHORISED = {401, 403}  # codes, and states of HTTP, that refuse a sender


@tries("S-stranger")
def refuses_unknown_senders(trial: Trial) -> Finding:
    """A job in the name of a node that the checked node does not know."""
    body = trial.sample_job()
    body["config"]["initiator"]["node_id"] = UNKNOWN_NODE
    body["config"]["role"]["host"] = [UNKNOWN_NODE]
    response = trial.node.ask(
        CREATE,
        body,
        x_source_node_id=UNKNOWN_NODE,
        x_node_id=UNKNOWN_NODE,
    )
    demand(not response.crashed, response.crashed)
    if response.succeeded:
        trial.created.append(str(body["job_id"]))
    text = "a job in the name of an unknown node is accepted"
    demand_except("fate", not response.succeeded, text)
    return holds(f"refused: {response.summary}")


@tries("S-status")
def tells_the_state_of_a_job_to_its_parties(trial: Trial) -> Finding:
    """The state of a job, asked in the name of a node that the checked node does not know."""
    job_id = trial.finished_task.job_id
    of_party = trial.job_status(job_id)
    assume(of_party.succeeded, f"the state of a job is refused to its party: {of_party.summary}")
    response = trial.node.ask(
        STATUS_ALL,
        {"job_id": job_id},
        method=of_party.exchange.method,
        query={"job_id": job_id},
        x_source_node_id=UNKNOWN_NODE,
        x_node_id=UNKNOWN_NODE,
    )
    text = "the state of a job is shown to an unknown node"
    demand_except("fate", not response.succeeded, text)
    return holds(f"refused: {response.summary}")


@tries("S-stop")
def lets_no_unknown_node_stop_a_job(trial: Trial) -> Finding:
    """The stop of a job, in the name of a node that the checked node does not know."""
    job_id = trial.created_job()["job_id"]
    response = trial.node.ask(
        STOP,
        {"job_id": job_id},
        x_source_node_id=UNKNOWN_NODE,
        x_node_id=UNKNOWN_NODE,
    )
    text = "an unknown node can stop a job"
    demand_except("fate", not response.succeeded, text)
    return holds(f"refused: {response.summary}")


@tries("S-role")
def refuses_jobs_without_a_role_for_itself(trial: Trial) -> Finding:
    """A job in which the checked node has no role."""
    body = trial.sample_job()
    body["config"]["role"] = {"guest": [trial.me]}
    body["config"]["initiator"]["role"] = "guest"
    response = trial.create(body)
    demand(not response.crashed, response.crashed)
    text = "a job without a role for the node is accepted"
    demand_except("fate", not response.succeeded, text)
    return holds(f"refused: {response.summary}")


@tries("S-target")
def refuses_requests_for_other_nodes(trial: Trial) -> Finding:
    """A request whose headers name another node as its target."""
    response = trial.node.ask(
        CREATE,
        trial.sample_job(),
        x_target_node_id=UNKNOWN_NODE,
    )
    text = "a request for another node is processed"
    demand_except("fate", not response.succeeded, text)
    return holds(f"refused: {response.summary}")


@tries("S-old")
def refuses_old_signatures(trial: Trial) -> Finding:
    """A request whose signature is a day old."""
    _assume_signed(trial)
    fresh = trial.ask_for_nothing()
    assume(not _is_unauthorised(fresh), f"a signed request is refused: {fresh.summary}")
    body = {"task_id": new_task_id(), "role": "guest"}
    response = trial.node.ask_late(POLL, body, _DAY)
    text = f"a request with a signature of yesterday is processed: {response.summary}"
    demand_except("fate", _is_unauthorised(response), text)
    return holds(f"refused: {response.summary}")


@tries("S-replay")
def refuses_replays(trial: Trial) -> Finding:
    """A signed request, sent twice byte by byte."""
    _assume_signed(trial)
    first = trial.node.ask(POLL, {"task_id": new_task_id(), "role": "guest"})
    assume(not _is_unauthorised(first), f"a signed request is refused: {first.summary}")
    sent = first.exchange
    request = httpx.Request(
        sent.method,
        trial.node.url + sent.target,
        headers=dict(sent.sent_headers),
        content=sent.sent,
    )
    second = read_answer(trial.node.repeat(request))
    text = f"a replayed request is processed: {second.summary}"
    demand_except("fate", _is_unauthorised(second), text)
    return holds(f"refused: {second.summary}")


@tries("S-altered")
def refuses_altered_requests(trial: Trial) -> Finding:
    """A signed request whose body was changed on the way."""
    _assume_signed(trial)
    unaltered = trial.ask_for_nothing()
    text = f"a signed request is refused: {unaltered.summary}"
    assume(not _is_unauthorised(unaltered), text)
    response = trial.node.ask_altered(POLL, {"task_id": new_task_id(), "role": "guest"})
    text = f"an altered request is processed: {response.summary}"
    demand_except("fate", _is_unauthorised(response), text)
    return holds(f"refused: {response.summary}")


def _assume_signed(trial: Trial) -> None:
    """Raise `CannotTry` if the check does not sign its requests."""
    is_signed = trial.node.identity.key is not None
    assume(is_signed, "requests to this node are not signed: give --key-folder")


def _is_unauthorised(response: Answer) -> bool:
    """Return whether a response refuses the sender."""
    return bool({response.exchange.status, response.code} & _UNAUTHORISED)
