"""How requests prove that they come from the node that they name, by the node's route."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from route_table.model import FATE_PARTNER, Route


class Proof(StrEnum):
    """What proves the requests of a node. With `MISSING`, none of them is served."""

    SIGNATURE = "signature"  # every control request is signed by one of the route's keys
    CERTIFICATE = "certificate"  # the client certificate of the connection is the node's
    FATE = "fate"  # every control request is signed as FATE's sites sign
    OFF = "off"  # nothing, as a person has decided for this route
    LOCAL = "local"  # nothing, but only this machine reaches the listener
    MISSING = "missing"  # nothing, without a person's decision for this route


UNPROVEN = frozenset({Proof.OFF, Proof.MISSING})  # shown as faults of a route


@dataclass(frozen=True)
class ListenerProof:
    """What the listener for peers demands of all nodes alike."""

    asks_for_certificate: bool = False  # every client shows a certificate of a known authority
    is_local: bool = False  # only this machine reaches the listener
    fate_sites: frozenset[str] = frozenset()  # the nodes that sign as FATE's sites


def proof_of(route: Route, listener: ListenerProof) -> Proof:
    """Return the proof of the requests that name a route's node as their sender."""
    if route.signing_mode == "required":
        if route.keys:
            return Proof.SIGNATURE
        return Proof.MISSING
    if route.node in listener.fate_sites:
        return Proof.FATE
    # Behind a relay, the certificate is the relay's: it does not prove which node has sent a
    # request.
    if listener.asks_for_certificate and route.via is None:
        return Proof.CERTIFICATE
    if route.signing is not None:
        return Proof.OFF
    if listener.is_local:
        return Proof.LOCAL
    return Proof.MISSING


def takes_unsealed_messages(route: Route, listener: ListenerProof) -> bool:
    """Return whether messages of containers of a route's node need no seal.

    Without a seal, the node's signature does not protect a message. A node whose requests are
    refused can send no message either.
    """
    if route.sealing_mode == "required":
        return False
    return proof_of(route, listener) is not Proof.MISSING


def risks(routes: Iterable[Route], listener: ListenerProof) -> list[str]:
    """Return the risks of routes whose nodes' requests are unproven."""
    nodes: dict[Proof, list[str]] = {proof: [] for proof in Proof}
    for route in routes:
        nodes[proof_of(route, listener)].append(route.node)
    texts = []
    if nodes[Proof.MISSING]:
        names = ", ".join(nodes[Proof.MISSING])
        texts.append(f"nothing proves their requests, which are refused: {names}")
    if nodes[Proof.OFF]:
        names = ", ".join(nodes[Proof.OFF])
        texts.append(f"anyone can send requests in their name (signing: off or accepted): {names}")
    return texts


def mending_command(route: Route) -> str:
    """Return the next step for a route whose node's requests are unproven.

    It names ``--signing off`` only if the route has no decision on proof yet.
    """
    node = route.node
    step = (
        "accept its invitation (bfia-gateway partner accept --replace), or: bfia-gateway route "
        f"edit {node} --keys KEYS --signing required"
    )
    if route.profile == FATE_PARTNER:
        step = f"give {node} an entry with expects in fate.sites"
    if route.signing in ("off", "accepted"):
        return step
    if route.profile == FATE_PARTNER:
        return (
            f"{step}, or take its requests from anyone: bfia-gateway route edit {node} "
            "--signing off"
        )
    return f"{step}; --signing off takes its requests from anyone"
