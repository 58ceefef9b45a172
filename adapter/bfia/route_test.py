"""Tests a route both ways: name, connection, TLS, next hop, the peer's responses and clock, the way back to us."""

import contextlib
import socket
import ssl
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from adapter.bfia.connections import context
from adapter.bfia.extensions import EXTENSIONS
from adapter.bfia.peer import INTERCONN, Peer
from adapter.bfia.relay_protocol import CODES, LOOP, NOT_ALLOWED, TARGET_UNREACHABLE, told_by_relay
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError, NotServed, PeerUnreachable
from gateway.ports import as_mapping
from gateway.runtime.checks import Result, Step, Stopped, Trial
from route_table.certificates import expiries
from route_table.model import DEFAULT_ENTRY, Identity, Route, RouteTable, UnknownNode

HELLO = EXTENSIONS["/node/hello"]
STEPS = (
    *("route", "dns", "tcp", "tls", "relay", "answer"),
    *("identity", "profile", "clock", "body", "latency", "way back"),
)
BODY = 1024 * 1024
"""bytes of the large request that is tried; a job's description is rarely larger"""
EXPIRES_SOON = 14
"""days"""

_CONNECT_SECONDS = 3.0
_SKEW_SECONDS = 30.0
_TRIES = 5
_PORTS = {"http": 80, "https": 443}
_EVERYBODY_HAS = f"{INTERCONN}/task/poll"
"""a path between nodes that every product of the standard serves (control layer 3.9)"""
_NOBODY_HAS = f"{INTERCONN}/no/such/path"
_OTHER_PROTOCOL = "fate-partner"

_UNTRUSTED = {2, 18, 19, 20, 21, 27}
"""OpenSSL's codes for a missing authority, or a certificate that is its own"""
_OTHER_NAME = {62, 63, 64}
_EXPIRED, _NOT_YET = 10, 9
_WANTED = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE")
_REJECTED = ("UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED", "ACCESS_DENIED")
_PEERS_TLS = "look at the peer's TLS settings"


def try_route(
    peer: Peer, table: RouteTable, node: NodeId, me: NodeId, clock: Callable[[], float] = time.monotonic
) -> list[Step]:
    """Test the route to a node. Raises nothing on account of the peer: every failure is a step's."""
    trial = Trial(STEPS)
    with contextlib.suppress(Stopped):
        trial.take("route", lambda: _route(table, node))
        _Test(trial, peer, table.resolve(node), me, clock).run()
    return trial.finished()


def hello(peer: Peer, me: NodeId, padding: int = 0, *, call_back: bool = False) -> Mapping[str, Any]:
    """Say hello. Raises `NotServed`, `PeerUnreachable`, `Refused`."""
    return peer.ask(HELLO, {"node_id": me, "padding": "x" * padding, "call_back": call_back})


def called_back(peer_of: Callable[[NodeId], Peer], me: NodeId, node: NodeId) -> dict[str, Any]:
    """Say hello to the node that asked for it; return how that went."""
    began = time.monotonic()
    try:
        greeting = hello(peer_of(node), me)
    except GatewayError as error:
        return {"ok": False, "reason": error.reason, "message": error.message}
    if greeting.get("node_id") != node:
        text = f"at its address there responds {greeting.get('node_id')}"
        return {"ok": False, "reason": "OTHER_NODE", "message": text}
    return {"ok": True, "ms": round((time.monotonic() - began) * 1000, 1)}


def _failed(name: str, cause: str, remedy: str) -> Step:
    return Step(name, Result.FAILED, "", cause, remedy)


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
        text = f"{node} has no entry of its own: jobs can be sent there, and none of that node is accepted here"
        return Step("route", Result.WARNING, found, text, "add an entry with via if that node is a partner")
    return Step("route", Result.OK, found)


class _Test:
    """The steps behind a route's entry."""

    def __init__(self, trial: Trial, peer: Peer, route: Route, me: NodeId, clock: Callable[[], float]) -> None:
        self._trial = trial
        self._peer = peer
        self._route = route
        self._me = me
        self._clock = clock
        self._url = urlsplit(route.url)
        self._port = self._url.port or _PORTS[self._url.scheme]
        self._said: dict[str, Any] = {}
        """what the peer responds to hello, and when"""

    def run(self) -> None:
        take = self._trial.take
        take("dns", self._dns)
        take("tcp", self._tcp)
        take("tls", self._tls)
        take("relay", self._relay)
        if take("answer", self._answer).result is not Result.OK:
            take("profile", self._other_profile, needed=False)
            return
        take("identity", self._identity, needed=False)
        if self._said.get("node_id") != self._route.node and "time_ms" not in self._said:
            return  # what responds there serves its own requests only
        take("profile", self._profile, needed=False)
        take("clock", self._skew, needed=False)
        take("body", self._body, needed=False)
        take("latency", self._latency, needed=False)
        take("way back", self._way_back, needed=False)

    def _dns(self) -> Step:
        name = self._url.hostname
        try:
            found = socket.getaddrinfo(name, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            return _failed("dns", f"the name {name} leads nowhere: {error}", "correct host or url of the entry")
        return Step("dns", Result.OK, ", ".join(sorted({str(address[4][0]) for address in found})))

    def _tcp(self) -> Step:
        where = f"{self._url.hostname}:{self._port}"
        try:
            with socket.create_connection((self._url.hostname, self._port), _CONNECT_SECONDS):
                return Step("tcp", Result.OK, where)
        except ConnectionRefusedError:
            return _failed("tcp", f"nothing listens at {where}", "start the peer's gateway, or correct the port")
        except TimeoutError:
            text = f"{where} does not answer within {_CONNECT_SECONDS:g} s"
            return _failed("tcp", text, "open the port in the firewalls between, or correct host and port")
        except OSError as error:
            text = f"{where} cannot be reached: {error}"
            return _failed("tcp", text, "check the network and the entry's address")

    def _tls(self) -> Step:
        if self._url.scheme != "https":
            return Step("tls", Result.SKIPPED, "the route is plain http")
        return _tls(self._url.hostname or "", self._port, self._route.identity)

    def _relay(self) -> Step:
        """Test whether the next hop passes on; what the node behind it responds is the next step's."""
        route, me = self._route, self._me
        if not route.via:
            return Step("relay", Result.SKIPPED, "the node is reached directly")
        hop = "the next hop" if route.via == DEFAULT_ENTRY else route.via
        try:
            greeting = hello(self._peer, me)
        except GatewayError as error:
            if isinstance(error, PeerUnreachable) and error.reason != TARGET_UNREACHABLE:
                text = f"look at the gateway of {hop} and at what stands before it"
                return _failed("relay", error.message, text)
            if error.reason in CODES and error.reason != TARGET_UNREACHABLE:
                remedy = f"have its admin set relay: true in the entries of {me} and {route.node}, and route both"
                return _failed("relay", error.message, remedy)
            return Step("relay", Result.OK, f"{hop} passes on")
        if route.via != route.node and greeting.get("node_id") == route.via:
            text = f"{hop} responds itself: its gateway passes on nothing"
            remedy = "have its admin bring its gateway up to date and allow it, or go another way"
            return _failed("relay", text, remedy)
        return Step("relay", Result.OK, f"{hop} passes on")

    def _answer(self) -> Step:
        greeting, route = self._said, self._route
        asked = time.time()
        try:
            greeting |= hello(self._peer, self._me)
        except NotServed:
            return self._judged()
        except PeerUnreachable as error:
            remedy = "look at the peer's gateway and at what stands before it (proxy, load balancer)"
            return _failed("answer", error.message, remedy)
        except GatewayError as error:
            if error.reason == NOT_ALLOWED:  # it is another node, and says so
                greeting["node_id"] = self._relay_there() or "another one"
                return Step("answer", Result.OK, error.message)
            if error.reason == LOOP and self._relay_there() == self._me:
                text = f"this address is this node itself ({self._me}): what is sent there comes back"
                remedy = f"put the address of {route.node} into its entry, not this node's own"
                return _failed("answer", text, remedy)
            if self._for_operators():  # it may have wanted a token
                return self._judged()
            prefix = "" if error.message.startswith(f"{error.reason}:") else f"{error.reason}: "
            return _failed("answer", prefix + error.message, "check that the address is a gateway's peer port")
        greeting["asked"], greeting["heard"] = asked, time.time()
        found = f"gateway {greeting.get('gateway', '?')}, protocol {greeting.get('protocol', '?')}"
        return Step("answer", Result.OK, found)

    def _judged(self) -> Step:
        """Judge what responds, and does not know our own greeting."""
        url = self._route.url
        if self._for_operators():
            text = f"at {url} the operators' listener of a gateway responds; it serves nothing to other nodes"
            remedy = "let the entry lead to that gateway's peer port (listen.peer of its configuration)"
            return _failed("answer", text, remedy)
        try:
            known, unknown = self._status_and_code(_EVERYBODY_HAS), self._status_and_code(_NOBODY_HAS)
        except PeerUnreachable as error:
            return _failed("answer", error.message, "try again, then look at the peer")
        if known == unknown and self._route.profile != _OTHER_PROTOCOL:
            text = f"nothing between nodes is served at {url}: HTTP {known[0]} to {_EVERYBODY_HAS}"
            remedy = "correct host, port and path of the entry: they must lead to the node's peer port"
            return _failed("answer", text, remedy)
        text = "the peer responds, and lacks the path that tells more of it: another product, or an older version"
        return Step("answer", Result.WARNING, text)

    def _for_operators(self) -> bool:
        """Whether a gateway's operators' listener is there: it reports its health to everybody."""
        if self._route.via:
            return False  # it is the next hop that responds
        try:
            status, body = self._peer.raw("GET", "/health/live", {})
        except PeerUnreachable:
            return False
        return status == 200 and as_mapping(body).get("status") == "ok"

    def _status_and_code(self, path: str) -> tuple[int, str]:
        status, body = self._peer.raw("POST", path, {})
        return status, str(as_mapping(body).get("code"))

    def _relay_there(self) -> str:
        """Return which node responds in the place of the one that is asked; empty where it does not say."""
        beyond = told_by_relay(as_mapping(self._peer.raw("POST", HELLO.path, {})[1]))
        return beyond.relay if beyond else ""

    def _identity(self) -> Step:
        node, found = self._route.node, self._said.get("node_id")
        if found != node:
            remedy = f"correct the address of {node}, or the id of the entry"
            return _failed("identity", f"the node there says that it is {found}", remedy)
        return Step("identity", Result.OK, f"{node} of {self._said.get('institution') or '?'}")

    def _profile(self) -> Step:
        profile = self._route.profile
        if profile != "spec":
            text = f"the entry says profile {profile}, and the peer is a gateway such as this"
            return _failed("profile", text, "set profile: spec, or leave it out")
        return Step("profile", Result.OK, profile)

    def _other_profile(self) -> Step:
        """Compare the profile with how the peer responds to a path that nobody has."""
        profile = self._route.profile
        try:
            status, body = self._peer.raw("GET", "/no/such/path", {})
        except PeerUnreachable as error:
            return _failed("profile", error.message, "try again, then look at the peer")
        code = as_mapping(body).get("code")
        looks = "fate" if status == 200 and code == 6000 else "spec"
        if looks != profile and "fate" in (looks, profile):
            text = f"an unknown path gets HTTP {status}, code {code}: that looks like profile {looks}"
            return Step("profile", Result.WARNING, f"the entry says {profile}", text, f"set profile: {looks}")
        return Step("profile", Result.OK, profile)

    def _skew(self) -> Step:
        greeting = self._said
        try:
            there = float(greeting["time_ms"]) / 1000
        except (KeyError, TypeError, ValueError):
            return Step("clock", Result.SKIPPED, "the peer does not say its time")
        skew = there - (greeting["asked"] + greeting["heard"]) / 2
        if abs(skew) > _SKEW_SECONDS:
            text = f"the peer's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this node's"
            return Step("clock", Result.FAILED, f"{skew:+.1f} s", text, "let both nodes follow a time server")
        return Step("clock", Result.OK, f"{skew:+.1f} s")

    def _body(self) -> Step:
        try:
            hello(self._peer, self._me, BODY)
        except GatewayError as error:
            text = f"a request of {BODY} bytes does not pass: {error.message}"
            return _failed("body", text, "raise the largest body of the peer's gateway or of the proxy before it")
        return Step("body", Result.OK, f"{BODY} bytes")

    def _latency(self) -> Step:
        taken = []
        for _ in range(_TRIES):
            began = self._clock()
            try:
                hello(self._peer, self._me)
            except GatewayError as error:
                remedy = "the link or the peer is unsteady: try again, then look there"
                return _failed("latency", error.message, remedy)
            taken.append(self._clock() - began)
        median = statistics.median(taken)
        found = f"{median * 1000:.1f} ms (median of {_TRIES})"
        if median > self._route.deadline / 2:
            text = f"half of the route's deadline of {self._route.deadline:g} s is used up by a small request"
            return Step("latency", Result.FAILED, found, text, "raise deadline in the entry, or mend the link")
        return Step("latency", Result.OK, found)

    def _way_back(self) -> Step:
        me = self._me
        if not self._said.get("knows_you"):
            remedy = f"have its admin add {me} with this node's advertised address, or enable it"
            return _failed("way back", f"the peer has no enabled route to {me}", remedy)
        try:
            back = as_mapping(hello(self._peer, me, call_back=True).get("back"))
        except GatewayError as error:
            return _failed("way back", error.message, "try again, then look at the peer's log")
        if back.get("ok"):
            return Step("way back", Result.OK, f"{back.get('ms', '?')} ms")
        reason = back.get("reason", "?")
        if reason == NotServed.reason:
            text = f"the peer's entry of {me} leads to something else than this node's peer port"
            return _failed("way back", text, f"have its admin correct the address of {me} in its route table")
        text = f"the peer does not reach this node: {reason} {back.get('message', '')}".strip()
        return _failed("way back", text, "correct this node's address in the peer's route table, or the firewalls")


def _tls(host: str, port: int, identity: Identity) -> Step:
    """Shake hands and request a page, as a peer that wants a certificate may say so only then."""
    name = identity.server_name or host
    version = ""
    try:
        with (
            socket.create_connection((host, port), _CONNECT_SECONDS) as plain,
            context(identity).wrap_socket(plain, server_hostname=name) as conn,
        ):
            certificate = conn.getpeercert() or {}
            version = conn.version() or "TLS"
            conn.sendall(
                f"GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode("latin-1", "replace")
            )
            conn.recv(1)
    except PeerUnreachable as error:
        return _failed("tls", error.message, "correct ca, certificate and key of the entry")
    except ssl.SSLCertVerificationError as error:
        return _not_trusted(error, name, identity)
    except TimeoutError:
        return _failed("tls", f"no TLS within {_CONNECT_SECONDS:g} s", f"use scheme http, or {_PEERS_TLS}")
    except OSError as error:
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            return _refused(error.reason or str(error), identity)
        if version and isinstance(error, ssl.SSLEOFError | ConnectionError):
            # TLS 1.3 checks certificates only when its client is done with the handshake
            return _refused(f"ALERT {_WANTED[0]}, or so it seems, as it hangs up", identity)
        return _failed("tls", f"the connection ended in the handshake: {error}", _PEERS_TLS)
    return _trusted(certificate, version, identity)


def _trusted(certificate: Mapping[str, object], version: str, identity: Identity) -> Step:
    now = datetime.now(UTC)
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC)
    if (left := (ends - now).days) < EXPIRES_SOON:
        text = f"the peer's certificate expires in {left} days"
        return Step("tls", Result.WARNING, version, text, "have the peer renew it")
    for found in expiries(identity, "entry"):
        if (left := (found.ends - now).days) < EXPIRES_SOON:
            text = f"{found.path.partition('.')[2]} in {found.file} expires in {left} days"
            return Step("tls", Result.WARNING, version, text, "renew it; the file is read again by itself")
    return Step("tls", Result.OK, f"{version}, certificate valid until {ends.date()}")


def _not_trusted(error: ssl.SSLCertVerificationError, name: str, identity: Identity) -> Step:
    message, code = error.verify_message, error.verify_code
    if code in _OTHER_NAME:
        text = f"the peer's certificate is for another name than {name}: {message}"
        remedy = "set server_name in the entry to a name of that certificate, or correct the address"
        return _failed("tls", text, remedy)
    if code == _EXPIRED:
        text = f"the peer's certificate, or an authority of it, has expired: {message}"
        return _failed("tls", text, "have the peer renew it")
    if code == _NOT_YET:
        return _failed("tls", f"the peer's certificate is not valid yet: {message}", "look at both clocks")
    text = f"the peer's certificate is not trusted: {message}"
    if code in _UNTRUSTED:
        file = "the file that ca names does not have its authority" if identity.ca else "set ca in the entry"
        return _failed("tls", text, f"{file}: ask the peer for the certificate of its authority")
    return _failed("tls", text, "have the peer install a valid certificate for that name")


def _refused(reason: str, identity: Identity) -> Step:
    """Explain an alert of the peer, or what is not TLS."""
    rejected = any(word in reason for word in _REJECTED)
    if not rejected and not ("ALERT" in reason and any(word in reason for word in _WANTED)):
        return _failed("tls", f"no TLS there: {reason}", "use scheme http, or another port")
    if identity.certificate:
        text = f"the peer does not accept the certificate in {identity.certificate}: {reason}"
        remedy = "have its admin add the authority of it to listen.peer.tls.client_ca"
        return _failed("tls", text, remedy if rejected else "ask its admin which authorities it accepts")
    if rejected:
        text = f"the peer ends the handshake: {reason}"
        return _failed("tls", text, "ask its admin which certificates it accepts")
    text = f"the peer wants a certificate of this node: {reason}"
    return _failed("tls", text, "set certificate and key in the entry to one that the peer's authority has signed")
