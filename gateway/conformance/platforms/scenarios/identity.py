"""Clauses about who may send requests, and how often the same one."""

import httpx

from gateway.conformance.platforms.answers import read_answer
from gateway.conformance.platforms.findings import CannotTry, Finding, deviates, fails, holds
from gateway.conformance.platforms.scenarios import tries
from gateway.conformance.platforms.trial import POLL, Trial, new_task_id

_STRANGER = "JG9999999999999999"


@tries("S-stranger")
def refuses_strangers(trial: Trial) -> Finding:
    """A job in the name of a node that the checked node does not know."""
    body = trial.sample_job()
    body["config"]["initiator"]["node_id"] = _STRANGER
    body["config"]["role"]["host"] = [_STRANGER]
    answer = trial.node.ask(
        "/v1/interconn/schedule/job/create",
        body,
        x_source_node_id=_STRANGER,
        x_node_id=_STRANGER,
    )
    if answer.crashed:
        return fails(answer.crashed)
    if answer.succeeded:
        trial.created.append(str(body["job_id"]))
        return deviates("fate", "a job in the name of an unknown node is accepted")
    return holds(f"refused: {answer.summary}")


@tries("S-replay")
def refuses_replays(trial: Trial) -> Finding:
    """A signed request, sent twice byte by byte."""
    if trial.node.identity.key is None:
        raise CannotTry("requests to this node are not signed")
    first = trial.node.ask(POLL, {"task_id": new_task_id(), "role": "guest"})
    sent = first.exchange
    request = httpx.Request(
        sent.method,
        trial.node.url + sent.target,
        headers=dict(sent.sent_headers),
        content=sent.sent,
    )
    second = read_answer(trial.node.repeat(request))
    if second.exchange.status in (401, 403) or second.code in (401, 403):
        return holds(f"refused: {second.summary}")
    return fails(f"a replayed request is processed: {second.summary}")


@tries("S-altered")
def refuses_altered_requests(trial: Trial) -> Finding:
    """A signed request whose body was changed on the way."""
    if trial.node.identity.key is None:
        raise CannotTry("requests to this node are not signed")
    answer = trial.node.ask_altered(POLL, {"task_id": new_task_id(), "role": "guest"})
    if answer.exchange.status in (401, 403) or answer.code in (401, 403):
        return holds(f"refused: {answer.summary}")
    return fails(f"an altered request is processed: {answer.summary}")
