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
from gateway.conformance.platforms.trial import CREATE, POLL, Trial, new_task_id

_UNKNOWN_NODE = "JG9999999999999999"  # a node without a route at the checked node
_UNAUTHORISED = {401, 403}  # codes, and states of HTTP, that refuse a sender


@tries("S-stranger")
def refuses_unknown_senders(trial: Trial) -> Finding:
    """A job in the name of a node that the checked node does not know."""
    body = trial.sample_job()
    body["config"]["initiator"]["node_id"] = _UNKNOWN_NODE
    body["config"]["role"]["host"] = [_UNKNOWN_NODE]
    response = trial.node.ask(
        CREATE,
        body,
        x_source_node_id=_UNKNOWN_NODE,
        x_node_id=_UNKNOWN_NODE,
    )
    demand(not response.crashed, response.crashed)
    if response.succeeded:
        trial.created.append(str(body["job_id"]))
    text = "a job in the name of an unknown node is accepted"
    demand_except("fate", not response.succeeded, text)
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
