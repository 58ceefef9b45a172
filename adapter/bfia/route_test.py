"""Tries a route both ways: name, connection, TLS, next hop, the peer's answers and clock, the way back to us."""

import contextlib
import socket
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from adapter.bfia import trial_port, trial_tls
from adapter.bfia.extensions import EXTENSIONS
from adapter.bfia.peer import Peer
from adapter.bfia.relay_protocol import CODES, LOOP, NOT_ALLOWED, TARGET_UNREACHABLE, told_by_relay
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError, NotServed, PeerUnreachable
from gateway.ports import as_mapping
from gateway.runtime.checks import Result, Step, Stopped, Trial
from route_table.model import DEFAULT_ENTRY, Route, RouteTable, UnknownNode

HELLO = EXTENSIONS["/node/hello"]
STEPS = (
    "route",
    "dns",
    "tcp",
    "tls",
    "relay",
    "answer",
    "identity",
    "profile",
    "clock",
    "body",
    "latency",
    "way back",
)
BODY = 1024 * 1024
"""bytes of the large request that is tried; a job's description is rarely larger"""

_CONNECT_SECONDS = 3.0
_SKEW_SECONDS = 30.0
_TRIES = 5


def try_route(
    peer: Peer, table: RouteTable, node: NodeId, me: NodeId, clock: Callable[[], float] = time.monotonic
) -> list[Step]:
    """Try the route to a node. Raises nothing on account of the peer: every failure is a step's.

    ``clock`` tells seconds, for the time that an answer takes.
    """
    trial = Trial(STEPS)
    with contextlib.suppress(Stopped):
        _try(trial, peer, table, node, me, clock)
    return trial.finished()


def _try(
    trial: Trial, peer: Peer, table: RouteTable, node: NodeId, me: NodeId, clock: Callable[[], float]
) -> None:
    trial.take("route", lambda: _route(table, node))
    route = table.resolve(node)
    parts = urlsplit(route.url)
    trial.take("dns", lambda: _dns(parts))
    trial.take("tcp", lambda: _tcp(parts))
    if parts.scheme == "https":
        trial.take("tls", lambda: trial_tls.tried(parts, route.identity, _CONNECT_SECONDS))
    else:
        trial.take("tls", lambda: Step("tls", Result.SKIPPED, "the route is plain http"))
    if route.via:
        trial.take("relay", lambda: _relay(peer, me, route))
    else:
        trial.take("relay", lambda: Step("relay", Result.SKIPPED, "the node is reached directly"))
    said: dict[str, Any] = {}
    served = trial.take("answer", lambda: _answer(peer, me, said, node, route)).result is Result.OK
    if not served:
        trial.take("profile", lambda: _other_profile(peer, route), needed=False)
        return
    trial.take("identity", lambda: _identity(node, said), needed=False)
    if said.get("node_id") != node and "time_ms" not in said:
        return  # what answers there serves its own requests only
    trial.take("profile", lambda: _profile(route), needed=False)
    trial.take("clock", lambda: _clock(said), needed=False)
    trial.take("body", lambda: _body(peer, me), needed=False)
    trial.take("latency", lambda: _latency(peer, me, route, clock), needed=False)
    trial.take("way back", lambda: _way_back(peer, me, said), needed=False)


def hello(peer: Peer, me: NodeId, padding: int = 0, *, call_back: bool = False) -> Mapping[str, Any]:
    """Say hello. Raises `NotServed`, `PeerUnreachable`, `Refused`."""
    return peer.ask(HELLO, {"node_id": me, "padding": "x" * padding, "call_back": call_back})


def _route(table: RouteTable, node: NodeId) -> Step:
    try:
        route = table.resolve(node)
    except UnknownNode as error:
        if not error.disabled:
            text = f"version {table.version} of the route table has no entry for {node}, and no default route"
            return _failed("route", text, "add one")
        if table.knows(node):
            return _failed("route", str(error), "enable the next hop, or give the node another way")
        return _failed("route", f"the entry of {node} is disabled", "set enabled: true in it")
    found = f"{route.url}, profile {route.profile}" + (f", passed on by {route.via}" if route.via else "")
    if not table.knows(node):
        text = f"{node} has no entry of its own: jobs can be sent there, and none of that node is taken here"
        return Step("route", Result.WARNING, found, text, "add an entry with via if that node is a partner")
    return Step("route", Result.OK, found)


def _dns(parts: SplitResult) -> Step:
    try:
        found = socket.getaddrinfo(parts.hostname, _port(parts), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return _failed(
            "dns", f"the name {parts.hostname} leads nowhere: {error}", "correct host or url of the entry"
        )
    return Step("dns", Result.OK, ", ".join(sorted({str(address[4][0]) for address in found})))


def _tcp(parts: SplitResult) -> Step:
    where = f"{parts.hostname}:{_port(parts)}"
    try:
        with socket.create_connection((parts.hostname, _port(parts)), _CONNECT_SECONDS):
            return Step("tcp", Result.OK, where)
    except ConnectionRefusedError:
        return _failed("tcp", f"nothing listens at {where}", "start the peer's gateway, or correct the port")
    except TimeoutError:
        text = f"{where} does not answer within {_CONNECT_SECONDS:g} s"
        return _failed("tcp", text, "open the port in the firewalls between, or correct host and port")
    except OSError as error:
        return _failed("tcp", f"{where} cannot be reached: {error}", "check the network and the entry's address")


def _relay(peer: Peer, me: NodeId, route: Route) -> Step:
    """Tell whether the next hop passes on; what the node behind it answers is the next step's."""
    hop = "the next hop" if route.via == DEFAULT_ENTRY else route.via
    try:
        said = hello(peer, me)
    except PeerUnreachable as error:
        if error.reason == TARGET_UNREACHABLE:
            return Step("relay", Result.OK, f"{hop} passes on")
        return _failed("relay", error.message, f"look at the gateway of {hop} and at what stands before it")
    except GatewayError as error:
        if error.reason in CODES:
            remedy = f"have its admin set relay: true in the entries of {me} and {route.node}, and route both"
            return _failed("relay", error.message, remedy)
        return Step("relay", Result.OK, f"{hop} passes on")
    if route.via != route.node and said.get("node_id") == route.via:
        text = f"{hop} answers itself: its gateway passes on nothing"
        return _failed(
            "relay", text, "have its admin bring its gateway up to date and allow it, or go another way"
        )
    return Step("relay", Result.OK, f"{hop} passes on")


def _answer(peer: Peer, me: NodeId, said: dict[str, Any], node: NodeId, route: Route) -> Step:
    """Say hello once; what came back, and when, is left in ``said``."""
    asked = time.time()
    try:
        said |= hello(peer, me)
    except NotServed:
        return trial_port.judged(peer, route)
    except PeerUnreachable as error:
        remedy = "look at the peer's gateway and at what stands before it (proxy, load balancer)"
        return _failed("answer", error.message, remedy)
    except GatewayError as error:
        if error.reason == NOT_ALLOWED:  # it is another node, and says so
            said["node_id"] = _answers(peer) or "another one"
            return Step("answer", Result.OK, error.message)
        if error.reason == LOOP and _answers(peer) == me:
            text = f"this address is this node itself ({me}): what is sent there comes back"
            return _failed("answer", text, f"put the address of {node} into its entry, not this node's own")
        if trial_port.for_operators(peer, route):  # it may have wanted a token
            return trial_port.judged(peer, route)
        said_so = error.message.startswith(f"{error.reason}:")
        text = error.message if said_so else f"{error.reason}: {error.message}"
        return _failed("answer", text, "check that the address is a gateway's peer port")
    said["asked"], said["heard"] = asked, time.time()
    return Step("answer", Result.OK, f"gateway {said.get('gateway', '?')}, protocol {said.get('protocol', '?')}")


def _answers(peer: Peer) -> str:
    """Return which node answers in the place of the one that is asked; empty where it does not say."""
    beyond = told_by_relay(as_mapping(peer.raw("POST", HELLO.path, {})[1]))
    return beyond.relay if beyond else ""


def _identity(node: NodeId, said: Mapping[str, Any]) -> Step:
    if said.get("node_id") != node:
        text = f"the node there says that it is {said.get('node_id')}"
        return _failed("identity", text, f"correct the address of {node}, or the id of the entry")
    return Step("identity", Result.OK, f"{node} of {said.get('institution') or '?'}")


def _profile(route: Route) -> Step:
    if route.profile != "spec":
        text = f"the entry says profile {route.profile}, and the peer is a gateway such as this"
        return _failed("profile", text, "set profile: spec, or leave it out")
    return Step("profile", Result.OK, route.profile)


def _other_profile(peer: Peer, route: Route) -> Step:
    """Hold the profile against how the peer answers a path that nobody has."""
    try:
        status, body = peer.raw("GET", "/no/such/path", {})
    except PeerUnreachable as error:
        return _failed("profile", error.message, "try again, then look at the peer")
    code = body.get("code") if isinstance(body, Mapping) else None
    looks = "fate" if status == 200 and code == 6000 else "spec"
    if looks != route.profile and "fate" in (looks, route.profile):
        text = f"an unknown path is answered with HTTP {status}, code {code}: that looks like profile {looks}"
        return Step("profile", Result.WARNING, f"the entry says {route.profile}", text, f"set profile: {looks}")
    return Step("profile", Result.OK, route.profile)


def _clock(said: Mapping[str, Any]) -> Step:
    try:
        there = float(said["time_ms"]) / 1000
    except (KeyError, TypeError, ValueError):
        return Step("clock", Result.SKIPPED, "the peer does not say its time")
    skew = there - (said["asked"] + said["heard"]) / 2
    found = f"{skew:+.1f} s"
    if abs(skew) > _SKEW_SECONDS:
        text = f"the peer's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this node's"
        return Step("clock", Result.FAILED, found, text, "let both nodes follow a time server")
    return Step("clock", Result.OK, found)


def _body(peer: Peer, me: NodeId) -> Step:
    try:
        hello(peer, me, BODY)
    except GatewayError as error:
        text = f"a request of {BODY} bytes does not pass: {error.message}"
        return _failed("body", text, "raise the largest body of the peer's gateway or of the proxy before it")
    return Step("body", Result.OK, f"{BODY} bytes")


def _latency(peer: Peer, me: NodeId, route: Route, clock: Callable[[], float]) -> Step:
    taken = []
    for _ in range(_TRIES):
        began = clock()
        try:
            hello(peer, me)
        except GatewayError as error:
            return _failed(
                "latency", error.message, "the link or the peer is unsteady: try again, then look there"
            )
        taken.append(clock() - began)
    median = statistics.median(taken)
    found = f"{median * 1000:.1f} ms (median of {_TRIES})"
    if median > route.deadline / 2:
        text = f"half of the route's deadline of {route.deadline:g} s is used up by a small request"
        return Step("latency", Result.FAILED, found, text, "raise deadline in the entry, or mend the link")
    return Step("latency", Result.OK, found)


def _way_back(peer: Peer, me: NodeId, said: Mapping[str, Any]) -> Step:
    if not said.get("knows_you"):
        text = f"the peer has no enabled route to {me}"
        return _failed(
            "way back", text, f"have its admin add {me} with this node's advertised address, or enable it"
        )
    try:
        back = hello(peer, me, call_back=True).get("back")
    except GatewayError as error:
        return _failed("way back", error.message, "try again, then look at the peer's log")
    back = back if isinstance(back, Mapping) else {}
    if not back.get("ok") and back.get("reason") == NotServed.reason:
        text = f"the peer's entry of {me} leads to something else than this node's peer port"
        return _failed("way back", text, f"have its admin correct the address of {me} in its route table")
    if not back.get("ok"):
        text = f"the peer does not reach this node: {back.get('reason', '?')} {back.get('message', '')}".strip()
        return _failed("way back", text, "correct this node's address in the peer's route table, or the firewalls")
    return Step("way back", Result.OK, f"{back.get('ms', '?')} ms")


def called_back(peer_of: Callable[[NodeId], Peer], me: NodeId, node: NodeId) -> dict[str, Any]:
    """Say hello to the node that asked for it; return how that went."""
    began = time.monotonic()
    try:
        said = hello(peer_of(node), me)
    except GatewayError as error:
        return {"ok": False, "reason": error.reason, "message": error.message}
    if said.get("node_id") != node:
        text = f"at its address there answers {said.get('node_id')}"
        return {"ok": False, "reason": "OTHER_NODE", "message": text}
    return {"ok": True, "ms": round((time.monotonic() - began) * 1000, 1)}


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _failed(name: str, cause: str, remedy: str) -> Step:
    return Step(name, Result.FAILED, "", cause, remedy)
