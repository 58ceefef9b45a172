"""Tells what listens where a peer was expected: another product's peer port, or a port that is for others."""

from adapter.bfia.peer import INTERCONN, Peer
from gateway.errors import PeerUnreachable
from gateway.ports import as_mapping
from gateway.runtime.checks import Result, Step
from route_table.model import Route

_EVERYBODY_HAS = f"{INTERCONN}/task/poll"
"""a path between nodes that every product of the standard serves (control layer 3.9)"""
_NOBODY_HAS = f"{INTERCONN}/no/such/path"
_OF_ANOTHER_PROTOCOL = "fate-partner"


def for_operators(peer: Peer, route: Route) -> bool:
    """Tell whether a gateway's operators' listener is there: it tells its health to everybody."""
    if route.via:
        return False  # it is the next hop that answers
    try:
        status, body = peer.raw("GET", "/health/live", {})
    except PeerUnreachable:
        return False
    return status == 200 and as_mapping(body).get("status") == "ok"


def judged(peer: Peer, route: Route) -> Step:
    """Judge what answers, and does not know our own greeting."""
    if for_operators(peer, route):
        text = f"at {route.url} the operators' listener of a gateway answers; it serves nothing to other nodes"
        return _failed(text, "let the entry lead to that gateway's peer port (listen.peer of its configuration)")
    try:
        known, unknown = _said(peer, _EVERYBODY_HAS), _said(peer, _NOBODY_HAS)
    except PeerUnreachable as error:
        return _failed(error.message, "try again, then look at the peer")
    if known == unknown and route.profile != _OF_ANOTHER_PROTOCOL:
        text = f"nothing between nodes is served at {route.url}: HTTP {known[0]} to {_EVERYBODY_HAS}"
        return _failed(text, "correct host, port and path of the entry: they must lead to the node's peer port")
    text = "the peer answers, and lacks the path that tells more of it: another product, or an older version"
    return Step("answer", Result.WARNING, text)


def _said(peer: Peer, path: str) -> tuple[int, str]:
    """Return the status of an answer and its code, by which unknown paths are told from known ones."""
    status, body = peer.raw("POST", path, {})
    return status, str(as_mapping(body).get("code"))


def _failed(cause: str, remedy: str) -> Step:
    return Step("answer", Result.FAILED, "", cause, remedy)
