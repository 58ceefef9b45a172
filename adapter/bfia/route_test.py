"""Tries a route both ways: name, connection, TLS, next hop, the peer's answers and clock, the way back to us."""

import contextlib
import socket
import ssl
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

from adapter.bfia import peer
from adapter.bfia.extensions import EXTENSIONS
from adapter.bfia.peer import INTERCONN, Peer
from adapter.bfia.relay_protocol import CODES, LOOP, NOT_ALLOWED, TARGET_UNREACHABLE, told_by_relay
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError, NotServed, PeerUnreachable
from gateway.ports import as_mapping
from gateway.runtime.checks import Result, Step, Stopped, Trial
from route_table.certificates import expiries
from route_table.model import DEFAULT_ENTRY, Identity, Route, RouteTable, UnknownNode

EXPIRES_SOON = 14
"""days"""

_UNTRUSTED = {2, 18, 19, 20, 21, 27}
"""what OpenSSL's checks answer where an authority is missing, or the certificate is its own"""
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME = {62, 63, 64}
_WANTED = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE")
_NOT_TAKEN = ("UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED", "ACCESS_DENIED")


def tried(parts: SplitResult, identity: Identity, seconds: float) -> Step:
    """Shake hands and ask for a page, as a peer that wants a certificate may say so only then."""
    name = identity.server_name or parts.hostname or ""
    version = ""
    try:
        with (
            socket.create_connection((parts.hostname, parts.port or 443), seconds) as plain,
            peer.context(identity).wrap_socket(plain, server_hostname=name) as conn,
        ):
            certificate = conn.getpeercert() or {}
            version = conn.version() or "TLS"
            request = f"GET / HTTP/1.1\r\nhost: {parts.hostname}\r\nconnection: close\r\n\r\n"
            conn.sendall(request.encode("latin-1", "replace"))
            conn.recv(1)
    except PeerUnreachable as error:
        return _failed_trial_tls(error.message, "correct ca, certificate and key of the entry")
    except ssl.SSLCertVerificationError as error:
        return _not_trusted(error, name, identity)
    except (ssl.SSLEOFError, ConnectionError) as error:
        if version:  # the newer TLS looks at certificates only when its client is done with the handshake
            return _refused(f"ALERT {_WANTED[0]}, or so it seems, as it hangs up", identity)
        return _failed_trial_tls(
            f"the connection ended in the handshake: {error}", "look at the peer's TLS settings"
        )
    except ssl.SSLError as error:
        return _refused(error.reason or str(error), identity)
    except TimeoutError:
        return _failed_trial_tls(
            f"no TLS within {seconds:g} s", "use scheme http, or look at the peer's TLS settings"
        )
    except OSError as error:
        return _failed_trial_tls(
            f"the connection ended in the handshake: {error}", "look at the peer's TLS settings"
        )
    return _good(certificate, version, identity)


def _good(certificate: Mapping[str, object], version: str, identity: Identity) -> Step:
    now = datetime.now(UTC)
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC)
    left = (ends - now).days
    if left < EXPIRES_SOON:
        text = f"the peer's certificate expires in {left} days"
        return Step("tls", Result.WARNING, version, text, "have the peer renew it")
    for found in expiries(identity, "entry"):
        own = (found.ends - now).days
        if own < EXPIRES_SOON:
            text = f"{found.path.partition('.')[2]} in {found.file} expires in {own} days"
            return Step("tls", Result.WARNING, version, text, "renew it; the file is read again by itself")
    return Step("tls", Result.OK, f"{version}, certificate valid until {ends.date()}")


def _not_trusted(error: ssl.SSLCertVerificationError, name: str, identity: Identity) -> Step:
    said = error.verify_message
    if error.verify_code in _OTHER_NAME:
        text = f"the peer's certificate is for another name than {name}: {said}"
        return _failed_trial_tls(
            text, "set server_name in the entry to a name of that certificate, or correct the address"
        )
    if error.verify_code == _EXPIRED:
        return _failed_trial_tls(
            f"the peer's certificate, or an authority of it, has expired: {said}", "have the peer renew it"
        )
    if error.verify_code == _NOT_YET:
        return _failed_trial_tls(f"the peer's certificate is not valid yet: {said}", "look at both clocks")
    text = f"the peer's certificate is not trusted: {said}"
    if error.verify_code in _UNTRUSTED:
        file = "the file that ca names does not have its authority" if identity.ca else "set ca in the entry"
        return _failed_trial_tls(text, f"{file}: ask the peer for the certificate of its authority")
    return _failed_trial_tls(text, "have the peer install a valid certificate for that name")


def _refused(reason: str, identity: Identity) -> Step:
    """Tell what an alert of the peer, or what is no TLS, means."""
    if any(word in reason for word in _NOT_TAKEN):
        if identity.certificate:
            text = f"the peer does not take the certificate in {identity.certificate}: {reason}"
            return _failed_trial_tls(
                text, "have its admin take the authority of it into listen.peer.tls.client_ca"
            )
        return _failed_trial_tls(
            f"the peer ends the handshake: {reason}", "ask its admin which certificates it takes"
        )
    if "ALERT" in reason and any(word in reason for word in _WANTED):
        if identity.certificate:
            text = f"the peer does not take the certificate in {identity.certificate}: {reason}"
            return _failed_trial_tls(text, "ask its admin which authorities it takes")
        text = f"the peer wants a certificate of this node: {reason}"
        return _failed_trial_tls(
            text, "set certificate and key in the entry to one that the peer's authority has signed"
        )
    return _failed_trial_tls(f"no TLS there: {reason}", "use scheme http, or another port")


def _failed_trial_tls(cause: str, remedy: str) -> Step:
    return Step("tls", Result.FAILED, "", cause, remedy)


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
        return _failed_trial_port(
            text, "let the entry lead to that gateway's peer port (listen.peer of its configuration)"
        )
    try:
        known, unknown = _said(peer, _EVERYBODY_HAS), _said(peer, _NOBODY_HAS)
    except PeerUnreachable as error:
        return _failed_trial_port(error.message, "try again, then look at the peer")
    if known == unknown and route.profile != _OF_ANOTHER_PROTOCOL:
        text = f"nothing between nodes is served at {route.url}: HTTP {known[0]} to {_EVERYBODY_HAS}"
        return _failed_trial_port(
            text, "correct host, port and path of the entry: they must lead to the node's peer port"
        )
    text = "the peer answers, and lacks the path that tells more of it: another product, or an older version"
    return Step("answer", Result.WARNING, text)


def _said(peer: Peer, path: str) -> tuple[int, str]:
    """Return the status of an answer and its code, by which unknown paths are told from known ones."""
    status, body = peer.raw("POST", path, {})
    return status, str(as_mapping(body).get("code"))


def _failed_trial_port(cause: str, remedy: str) -> Step:
    return Step("answer", Result.FAILED, "", cause, remedy)


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
        trial.take("tls", lambda: tried(parts, route.identity, _CONNECT_SECONDS))
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
        return judged(peer, route)
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
        if for_operators(peer, route):  # it may have wanted a token
            return judged(peer, route)
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
