"""The step ``signature`` of a route's test: what proves the requests in both directions."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.domain.spec import NodeId
from gateway.identity.keys import KeyPair
from gateway.runtime import trials
from gateway.runtime.trials import Result, Step
from route_table.model import Route
from route_table.proof import ListenerProof, Proof, mending_command, proof_of

# By the proof of one direction; any other proof is `Result.OK`.
_RESULTS: Mapping[str, Result] = {
    Proof.OFF: Result.WARNING,
    Proof.MISSING: Result.FAILED,
}
_SENT_REMEDY = (
    "have its admin accept this node's invitation (bfia-gateway partner invite), or put the "
    "output of bfia-gateway identity export into keys of the route to this node"
)
_SHORT_ID = 19  # characters of a key's id that are shown: sha256: and twelve digits


@dataclass(frozen=True)
class _Direction:
    """What proves the requests of one direction; ``remedy`` is for a result that is not OK."""

    text: str
    result: Result
    remedy: str = ""


def proof_step(
    node: NodeId,
    entry: Route | None,
    listener: ListenerProof,
    reported: str,
    signing_key: KeyPair | None,
) -> Step:
    """Return the outcome of the step ``signature``.

    - ``entry``: the node's own entry here; None without one
    - ``reported``: what proves this node's requests, as the peer reports it; "" if it does not
    - ``signing_key``: signs these requests; None if they are not signed
    """
    sent = _of_sent(reported, signing_key)
    received = _of_received(entry, listener)
    text = f"to {node}: {sent.text}; from {node}: {received.text}"
    results = (received.result, sent.result)
    if Result.FAILED in results:
        return trials.failed(text, _remedy_of(Result.FAILED, received, sent))
    if Result.WARNING in results:
        return trials.warning(text, _remedy_of(Result.WARNING, received, sent))
    return trials.ok(text)


def _remedy_of(result: Result, *directions: _Direction) -> str:
    """Return the remedy of the first direction with a result."""
    return next(direction.remedy for direction in directions if direction.result is result)


def _of_sent(reported: str, signing_key: KeyPair | None) -> _Direction:
    """Return what proves this node's requests to the peer."""
    signature = "requests are not signed"
    if signing_key is not None:
        key_id = signing_key.id[:_SHORT_ID]
        signature = f"requests are signed with {signing_key.algorithm}, {key_id}…"
    return _Direction(
        _sent_text(reported, signature),
        _RESULTS.get(reported, Result.OK),
        _SENT_REMEDY,
    )


def _sent_text(reported: str, signature: str) -> str:
    """Return the text about this node's requests; ``signature`` says whether they are signed."""
    match reported:
        case Proof.SIGNATURE:
            return f"{signature}, as the peer requires"
        case Proof.CERTIFICATE:
            return f"{signature}, and proven by this node's certificate"
        case Proof.FATE:
            return f"{signature}, and proven by FATE's signature"
        case Proof.OFF:
            return f"{signature}, but the peer takes them from anyone who names this node"
        case Proof.LOCAL:
            return f"{signature}, and only the peer's own machine can send it any"
        case Proof.MISSING:
            return "the peer refuses every request, as its route has nothing that proves them"
    return signature


def _of_received(entry: Route | None, listener: ListenerProof) -> _Direction:
    """Return what proves the peer's requests to this node."""
    if entry is None:
        text = "every request is refused, as the node has no entry of its own"
        return _Direction(text, Result.OK)
    proof = proof_of(entry, listener)
    result = _RESULTS.get(proof, Result.OK)
    return _Direction(_received_text(proof, entry), result, mending_command(entry))


def _received_text(proof: Proof, entry: Route) -> str:
    """Return the text about the requests of an entry's node."""
    match proof:
        case Proof.SIGNATURE:
            return "every request must be signed with a key of the route"
        case Proof.CERTIFICATE:
            return "every request is proven by the node's certificate"
        case Proof.FATE:
            return "every request must have FATE's signature"
        case Proof.OFF:
            mode = entry.signing_mode
            return f"requests are taken from anyone who names the node (signing: {mode})"
        case Proof.LOCAL:
            return "requests need no proof, as only this machine reaches the listener"
        case Proof.MISSING:
            return "every request is refused, as the route has nothing that proves it"
