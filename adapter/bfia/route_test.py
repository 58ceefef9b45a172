"""Tests a route both ways: name, connection, TLS, next hop, the peer's responses and clock, the way back to us."""

import contextlib
import socket
import ssl
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import structlog

from adapter.bfia.channel.calls import by_grpc
from adapter.bfia.channel.codec import (
    INVOKE,
    SUCCESS,
    Ptp,
    decode_answer,
    encode_envelope,
    invoke_headers,
)
from adapter.bfia.channel.forms import Form
from adapter.bfia.channel.ptp_pb2 import PopInbound  # type: ignore[attr-defined]
from adapter.bfia.connections import context
from adapter.bfia.peer import (
    INTERCONN,
    PROFILE_MISMATCH,
    RELAY_CODES,
    RELAY_LOOP,
    RELAY_NOT_ALLOWED,
    TARGET_UNREACHABLE,
    Peer,
    relayed,
)
from adapter.bfia.profiles import OTHER_PROTOCOL, profile_named
from adapter.page import BODY_LIMIT, FILTER, LOGIN, first_words
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError, Invalid, NotServed, PeerUnreachable
from gateway.http.peers import QUOTA
from gateway.ports import as_mapping
from gateway.runtime import trials
from gateway.runtime.trials import Result, Step, Stopped, Trial
from route_table.certificates import expiries
from route_table.model import DEFAULT_ENTRY, Identity, Route, RouteTable, UnknownNode

log = structlog.get_logger(__name__)

HELLO = "/node/hello"
STEPS = (
    *("route", "dns", "tcp", "tls", "relay", "answer"),
    *("identity", "profile", "clock", "body", "channel", "latency", "way back"),
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
_PARTNER_HAS, _PARTNER_LACKS = "/v2/partner/task/collect", "/v2/partner/no/such/path"

_FATE_UNKNOWN = (200, "6000")
"""HTTP status and code of FATE-Flow's answer to a path that it does not have"""
_PARTNER_PROTOCOL = (
    "set profile: fate-partner; FATE-Flow as published serves only its own protocol there"
)

_BARE = "application/octet-stream"
_PEEK = "/v1/interconn/chan/peek"
_TOPIC = "route-test"
_PROBES = {
    Form.JSON: b'{"topic": "route-test"}',
    Form.PROTOBUF: PopInbound(topic=_TOPIC).SerializeToString(),
    Form.RAW: b"",
}
_UNDERSTOOD = (SUCCESS, "0", "E0000000404", "E0000000614", "E0000000618")
"""codes of a transport layer that understood a request: no message is there, or none for another node"""

_OTHER_NAME = (
    "is for another name than {name}",
    "set server_name in the entry to a name of that certificate, or correct the address",
)
_VERIFY_CODES = {
    9: ("is not valid yet", "look at both clocks"),
    10: ("has expired, or an authority of it has", "have the peer renew it"),
    **dict.fromkeys((62, 63, 64), _OTHER_NAME),
}
"""OpenSSL's code -> what is wrong with a certificate, and the remedy; all others: its authority is not known"""
_ALERTS = tuple(
    f"ALERT_{name}"
    for name in (
        "CERTIFICATE",
        "BAD_CERTIFICATE",
        "UNKNOWN_CA",
        "HANDSHAKE_FAILURE",
        "ACCESS_DENIED",
    )
)
"""beginnings of OpenSSL's names for what a peer reports about this node's certificate"""
_RENEW = "renew it; the file is read again by itself"
_PEERS_TLS = "look at the peer's TLS settings"
_SIGN = (
    "have the partner accept this node's invitation (bfia-gateway partner accept) and use a version that signs its"
    " answers; otherwise look at what stands before its gateway (proxy, load balancer)"
)
"""The usual cause: the partner's route has no key of this node yet."""
_NO_KEY = (
    "accept its invitation (bfia-gateway partner accept), or: bfia-gateway route edit {node} --keys KEYS;"
    " --signing off where its requests and answers need no proof"
)
"""the route here requires signatures and has no key to check them"""
_REFUSED = (
    "the clock (see the step clock) or the key: compare identity export with the keys of the partner's route, and"
    " ask the partner for its audit line"
)
_AGAIN = "try again, then look at the peer"
_WAIT = "wait a minute, or have its admin raise limits.partner_requests_per_minute"
_PAGES = {
    LOGIN: "ask the partner's admin for a way past the login: requests of this node's address need none",
    FILTER: "ask whoever runs the filter to let this node's requests to that address pass",
    BODY_LIMIT: "ask the partner's admin to raise the body limit of its proxy (nginx: client_max_body_size)",
}
_ANOTHER_PORT = "check that the address is a gateway's peer port"
_REMEDIES = {
    "CERTIFICATE_MISMATCH": "have its admin set peer_certificate in the entry for this node, "
    "or show a certificate with this node's id",
    "CERTIFICATE_REVOKED": "have a new certificate issued for this node",
    **_PAGES,
}
"""by the reason for which the peer refuses this node"""


def try_route(
    peer: Peer,
    table: RouteTable,
    node: NodeId,
    me: NodeId,
) -> list[Step]:
    """Test the route to a node. Raises nothing on account of the peer: every failure is a step's."""
    trial = Trial(STEPS)
    with contextlib.suppress(Stopped):
        trial.take("route", lambda: replace(_route(table, node), name="route"))
        _Test(trial, peer, table.resolve(node), me).run()
    return trial.finished()


def hello(
    peer: Peer,
    me: NodeId,
    padding: int = 0,
    *,
    call_back: bool = False,
) -> Mapping[str, Any]:
    """Say hello. Raises `NotServed`, `PeerUnreachable`, `Refused`."""
    return peer.ask(
        HELLO,
        {
            "node_id": me,
            "padding": "x" * padding,
            "call_back": call_back,
        },
    )


def called_back(
    peer_of: Callable[[NodeId], Peer],
    me: NodeId,
    node: NodeId,
) -> dict[str, Any]:
    """Say hello to the node that asked for it; return how that went.

    It learns which step failed and nothing else: it could point its own address at a service inside this network.
    """
    began = time.monotonic()
    try:
        greeting = hello(peer_of(node), me)
    except GatewayError as error:
        step, text = _step_of(error), error.message
    else:
        if greeting.get("node_id") == node:
            return {"ok": True, "ms": round((time.monotonic() - began) * 1000, 1)}
        step, text = "identity", f"at its address there responds {greeting.get('node_id')}"
    log.warning(
        "a node that wants to be called back is not reached",
        node=node,
        step=step,
        cause=text,
    )
    return {"ok": False, "step": step}


def _step_of(error: GatewayError) -> str:
    cause = getattr(error.__cause__, "__cause__", None)
    for kind, step in ((socket.gaierror, "dns"), (ssl.SSLError, "tls")):
        if isinstance(cause, kind):
            return step
    return "tcp" if isinstance(error, PeerUnreachable) and not error.delivered else "answer"


def _route(table: RouteTable, node: NodeId) -> Step:
    try:
        route = table.resolve(node)
    except UnknownNode as error:
        remedy = f"accept its invitation (bfia-gateway partner accept), or: bfia-gateway route add {node} --to URL"
        return trials.failed(
            str(error), "enable it, or give it another way" if error.disabled else remedy
        )
    found = f"{route.url}, profile {route.profile}" + (
        f", passed on by {route.via}" if route.via else ""
    )
    if table.knows(node):
        return trials.ok(found)
    text = f"{node} has no entry of its own: jobs can be sent there, and none of that node is accepted here"
    return trials.warning(text, "add an entry with via if that node is a partner", found)


class _Test:
    """The steps behind a route's entry."""

    def __init__(
        self,
        trial: Trial,
        peer: Peer,
        route: Route,
        me: NodeId,
    ) -> None:
        self._trial = trial
        self._peer = peer
        self._route = route
        self._me = me
        self._url = urlsplit(route.url)
        self._port = self._url.port or _PORTS[self._url.scheme]
        self._greeting: dict[str, Any] = {}
        """what the peer responds to hello, and when"""
        self._off: float | None = None
        """how far its clock is ahead, as it dates its refusal of a signature"""

    def run(self) -> None:
        for name, work in (
            ("dns", self._dns),
            ("tcp", self._tcp),
            ("tls", self._tls),
            ("relay", self._relay),
        ):
            self._take(name, work, needed=True)
        answer = self._take("answer", self._answer).result
        if answer is Result.FAILED:
            if self._off is not None:
                self._take("clock", self._skew)
            return
        paths = self._partner_paths if self._route.profile == OTHER_PROTOCOL else None
        if answer is not Result.OK:
            self._take("profile", paths or self._other_profile)
            self._take("channel", self._channel)
            return
        self._take("identity", self._identity)
        if self._greeting.get("node_id") != self._route.node and "time_ms" not in self._greeting:
            return  # what responds there serves its own requests only
        for name, work in (
            *(("profile", paths or self._profile), ("clock", self._skew), ("body", self._body)),
            *(("channel", self._channel), ("latency", self._latency), ("way back", self._way_back)),
        ):
            self._take(name, work)

    def _take(
        self,
        name: str,
        work: Callable[[], Step],
        *,
        needed: bool = False,
    ) -> Step:
        """Do a step; it fails where the peer falls silent within it, or refuses what it did not expect."""

        def step() -> Step:
            try:
                found = work()
            except GatewayError as error:
                found = trials.failed(error.message, _AGAIN)
            return replace(
                found, name=name, remedy=_WAIT if f"{QUOTA}: " in found.cause else found.remedy
            )

        return self._trial.take(name, step, needed=needed)

    def _dns(self) -> Step:
        name = self._url.hostname
        try:
            found = socket.getaddrinfo(name, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            return trials.failed(
                f"the name {name} leads nowhere: {error}", "correct host or url of the entry"
            )
        return trials.ok(", ".join(sorted({str(address[4][0]) for address in found})))

    def _tcp(self) -> Step:
        where = f"{self._url.hostname}:{self._port}"
        try:
            with socket.create_connection((self._url.hostname, self._port), _CONNECT_SECONDS):
                return trials.ok(where)
        except ConnectionRefusedError:
            return trials.failed(
                f"nothing listens at {where}", "start the peer's gateway, or correct the port"
            )
        except OSError as error:
            remedy = "open the port in the firewalls between, or correct the entry's address"
            return trials.failed(f"{where} cannot be reached: {error}", remedy)

    def _tls(self) -> Step:
        if self._url.scheme != "https":
            return trials.skipped("the route is plain http")
        return _tls(self._url.hostname or "", self._port, self._route.identity)

    def _relay(self) -> Step:
        """Test whether the next hop passes on; what the node behind it responds is the next step's."""
        route, me = self._route, self._me
        if not route.via:
            return trials.skipped("the node is reached directly")
        hop = "the next hop" if route.via == DEFAULT_ENTRY else route.via
        try:
            greeting = hello(self._peer, me)
        except GatewayError as error:
            if error.reason in RELAY_CODES and error.reason != TARGET_UNREACHABLE:
                remedy = f"have its admin set relay: true in the entries of {me} and {route.node}, and route both"
                return trials.failed(error.message, remedy)
            if isinstance(error, PeerUnreachable) and error.reason != TARGET_UNREACHABLE:
                remedy = f"look at the gateway of {hop} and at what stands before it"
                return trials.failed(error.message, self._unproven(error) or remedy)
            return trials.ok(f"{hop} passes on")
        if route.via != route.node and greeting.get("node_id") == route.via:
            remedy = "have its admin bring its gateway up to date and allow it, or go another way"
            return trials.failed(f"{hop} responds itself: its gateway passes on nothing", remedy)
        return trials.ok(f"{hop} passes on")

    def _answer(self) -> Step:
        greeting, route = self._greeting, self._route
        sent = time.time()
        try:
            greeting |= hello(self._peer, self._me)
        except NotServed:
            return self._other_product()
        except PeerUnreachable as error:
            remedy = (
                "look at the peer's gateway and at what stands before it (proxy, load balancer)"
            )
            if self._url.scheme == "http" and speaks_tls(self._url.hostname or "", self._port):
                return trials.failed(
                    "https is spoken there, and the entry says http",
                    "begin the entry's url with https",
                )
            return trials.failed(error.message, self._unproven(error) or remedy)
        except GatewayError as error:
            if error.reason == RELAY_NOT_ALLOWED:  # it is another node, and says so
                greeting["node_id"] = self._relay_there() or "another one"
                return trials.ok(error.message)
            if error.reason == RELAY_LOOP and self._relay_there() == self._me:
                text = (
                    f"this address is this node itself ({self._me}): what is sent there comes back"
                )
                return trials.failed(
                    text, f"put the address of {route.node} into its entry, not this node's own"
                )
            if error.reason == PROFILE_MISMATCH:
                return trials.warning(
                    "", "", "the peer responds as another product does; see the step profile"
                )
            text = error.message.removeprefix(f"{route.node}: ").removeprefix(f"{error.reason}: ")
            return trials.failed(
                f"{error.reason}: {text}", _REMEDIES.get(error.reason, _ANOTHER_PORT)
            )
        greeting["sent"], greeting["received"] = sent, time.time()
        return trials.ok(
            f"gateway {greeting.get('gateway', '?')}, protocol {greeting.get('protocol', '?')}"
        )

    def _unproven(self, error: PeerUnreachable) -> str:
        """Return what to do about an answer that is not signed; empty where it is another failure."""
        self._off = error.skew
        if error.skew is not None:
            return _REFUSED
        if error.reason != "ANSWER_NOT_SIGNED":
            return ""
        return _SIGN if self._route.keys else _NO_KEY.format(node=self._route.node)

    def _other_product(self) -> Step:
        known, unknown = map(self._status_and_code, (_EVERYBODY_HAS, _NOBODY_HAS))
        if known == unknown and self._route.profile != OTHER_PROTOCOL:
            text = f"nothing between nodes is served at {self._route.url}: HTTP {known[0]} to {_EVERYBODY_HAS}"
            remedy = (
                "correct host, port and path of the entry: they must lead to the node's peer port"
            )
            if known == _FATE_UNKNOWN:
                remedy = _PARTNER_PROTOCOL
            return trials.failed(text, remedy)
        text = "the peer responds, and lacks the path that tells more of it: another product, or an older version"
        return trials.warning("", "", text)

    def _status_and_code(self, path: str, method: str = "POST") -> tuple[int, str]:
        status, body = self._peer.raw(method, path, {})
        return status, str(as_mapping(body).get("code"))

    def _relay_there(self) -> str:
        """Return which node responds in the place of the one that is called; empty where it does not say."""
        beyond = relayed(as_mapping(self._peer.raw("POST", HELLO, {})[1]))
        return beyond.relay if beyond else ""

    def _identity(self) -> Step:
        node, found = self._route.node, self._greeting.get("node_id")
        if found != node:
            remedy = f"correct the address of {node}, or the id of the entry"
            text = (
                f"the node there says that it is {found}"
                if found
                else "the node there does not say which it is"
            )
            return trials.failed(text, remedy)
        return trials.ok(f"{node}, institution {self._greeting.get('institution') or '?'}")

    def _profile(self) -> Step:
        profile = self._route.profile
        if profile != "spec":
            text = f"the entry says profile {profile}, and the peer is a gateway such as this"
            return trials.failed(text, "set profile: spec, or leave it out")
        return trials.ok(profile)

    def _other_profile(self) -> Step:
        """Compare the profile with how the peer responds to a path that nobody has."""
        profile = self._route.profile
        status, code = self._status_and_code(_NOBODY_HAS, "GET")
        looks = "fate" if (status, code) == _FATE_UNKNOWN else "spec"
        if looks == "fate" and profile == "spec":
            return self._fate_unnamed()
        if looks != profile and "fate" in (looks, profile):
            text = (
                f"an unknown path gets HTTP {status}, code {code}: that looks like profile {looks}"
            )
            return trials.warning(text, f"set profile: {looks}", f"the entry says {profile}")
        return trials.ok(profile)

    def _fate_unnamed(self) -> Step:
        """Tell which of its two protocols a FATE node serves whose entry names neither."""
        served, unknown = map(self._status_and_code, (_EVERYBODY_HAS, _NOBODY_HAS))
        text = "the peer answers as FATE-Flow does (HTTP 200, code 6000), and the entry does not say so"
        if served == unknown:
            return trials.failed(text, _PARTNER_PROTOCOL)
        return trials.failed(text, "set profile: fate")

    def _partner_paths(self) -> Step:
        """Test whether FATE's paths between sites are served; an empty body changes nothing."""
        known, unknown = map(self._status_and_code, (_PARTNER_HAS, _PARTNER_LACKS))
        if known == unknown or known[0] != 200:
            text = f"FATE's partner protocol is not served at {self._route.url}: HTTP {known[0]} to {_PARTNER_HAS}"
            return trials.failed(text, "correct the address; a gateway serves it with fate.enabled")
        return trials.ok(OTHER_PROTOCOL)

    def _skew(self) -> Step:
        greeting, skew = self._greeting, self._off
        try:
            if skew is None:
                skew = (
                    float(greeting["time_ms"]) / 1000
                    - (greeting["sent"] + greeting["received"]) / 2
                )
        except (KeyError, TypeError, ValueError):
            return trials.skipped("the peer does not say its time")
        if abs(skew) > _SKEW_SECONDS:
            text = f"the peer's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this node's"
            return trials.failed(
                text, "let both nodes follow a time server", f"{round(skew, 1) + 0:+.1f} s"
            )
        return trials.ok(f"{round(skew, 1) + 0:+.1f} s")

    def _body(self) -> Step:
        try:
            hello(self._peer, self._me, BODY)
        except GatewayError as error:
            text = f"a request of {BODY} bytes does not pass: {error.message}"
            return trials.failed(
                text, "raise the largest body of the peer's gateway or of the proxy before it"
            )
        return trials.ok(f"{BODY} bytes")

    def _channel(self) -> Step:
        """Look for a message at the peer's transport, in each form in which messages are sent there."""
        profile = profile_named(self._route.profile)
        forms = (Form.RAW,) if profile.bare_payloads else (Form.JSON, Form.PROTOBUF)
        if grpc := by_grpc(self._route.channel.url):
            forms = (Form.PROTOBUF,)
        results = {form: self._peek(form, encapsulated=profile.encapsulates) for form in forms}
        names = {form: "grpc" if grpc else form.name.lower() for form in forms}
        if not any(results.values()):
            return trials.ok(", ".join(names.values()))
        found = "; ".join(f"{names[form]}: {result}" for form, result in results.items() if result)
        remedy = "set transport in the entry to the address of the peer's transport layer"
        if self._greeting and all(results.values()):
            return trials.failed(found, remedy)
        remedy = (
            remedy
            if all(results.values())
            else "containers that send this form do not reach that node's"
        )
        return trials.warning(found, remedy)

    def _peek(self, form: Form, *, encapsulated: bool) -> str:
        """Return what is wrong with the peer's answer to one form; empty for nothing."""
        ptp = Ptp(
            session="session_route-test",
            target=self._route.node,
            topic=_TOPIC,
        )
        headers = invoke_headers(
            ptp,
            node=self._me,
            institution="",
            message_id="",
            token="",
            encapsulated=encapsulated,
        )
        headers |= {
            "x-ptp-uri": _PEEK,
            "content-type": form.value if form is not Form.RAW else _BARE,
        }
        pieces = [_PROBES[form]]
        body = b"".join(encode_envelope(pieces, headers, form) if encapsulated else pieces)
        try:
            status, content = self._peer.invoke(INVOKE, body, headers)
            answer = decode_answer(content, "" if content[:1] == b"{" else Form.PROTOBUF.value)
        except PeerUnreachable as error:
            return error.message
        except Invalid:
            text = f"HTTP {status} without a transport's answer"
            words = first_words(content)
            return f"{text}; it says: {words}" if words else text
        return (
            ""
            if status == 200 and answer.code in _UNDERSTOOD
            else f"{answer.code} {answer.message}".strip()
        )

    def _latency(self) -> Step:
        taken = []
        for _ in range(_TRIES):
            began = time.monotonic()
            hello(self._peer, self._me)
            taken.append(time.monotonic() - began)
        median = statistics.median(taken)
        found = f"{median * 1000:.1f} ms (median of {_TRIES})"
        if median > self._route.deadline / 2:
            text = f"half of the route's deadline of {self._route.deadline:g} s is used up by a small request"
            return trials.failed(text, "raise deadline in the entry, or mend the link", found)
        return trials.ok(found)

    def _way_back(self) -> Step:
        me = self._me
        if not self._greeting.get("knows_you"):
            remedy = f"have its admin add {me} with this node's advertised address, or enable it"
            return trials.failed(f"the peer has no enabled route to {me}", remedy)
        back = as_mapping(hello(self._peer, me, call_back=True).get("back"))
        if back.get("ok"):
            return trials.ok(f"{back.get('ms', '?')} ms")
        step = back.get("step") or back.get(
            "reason", "?"
        )  # an older gateway says reason and message
        text = f"the peer does not reach this node; the step that fails there: {step}"
        if step == "tls":
            return trials.failed(
                text, f"have its admin set ca, certificate and key in the route to {me}"
            )
        remedy = f"correct the address of {me} in the peer's route table, or the firewalls; its log says more"
        return trials.failed(text, remedy)


def _tls(
    host: str,
    port: int,
    identity: Identity,
) -> Step:
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
            request = f"GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
            conn.sendall(request.encode("latin-1", "replace"))
            if not conn.recv(1):
                raise ConnectionError(
                    "it ends the connection"
                )  # as a gateway does, without an alert
    except PeerUnreachable as error:
        return trials.failed(error.message, "correct ca, certificate and key of the entry")
    except ssl.SSLCertVerificationError as error:
        cause, remedy = _VERIFY_CODES.get(error.verify_code, ("is not trusted", ""))
        file = (
            "the file that ca names does not have its authority"
            if identity.ca
            else "set ca in the entry"
        )
        remedy = remedy or f"{file}: ask the peer for the certificate of its authority"
        return trials.failed(
            f"the peer's certificate {cause.format(name=name)}: {error.verify_message}", remedy
        )
    except OSError as error:
        # TLS 1.3 checks certificates only when its client is done with the handshake
        hung_up = version and isinstance(error, ssl.SSLEOFError | ConnectionError)
        reason = getattr(error, "reason", None) or str(error)
        if hung_up or any(alert in reason for alert in _ALERTS):
            return _without_certificate(reason, identity)
        return trials.failed(
            f"no TLS there: {reason}", f"use scheme http, or another port, or {_PEERS_TLS}"
        )
    return _trusted(certificate, version, identity)


def speaks_tls(host: str, port: int) -> bool:
    """Tell whether a port that gave no answer to plain HTTP takes a TLS handshake, whatever its certificate."""
    any_ = ssl.create_default_context()
    any_.check_hostname, any_.verify_mode = False, ssl.CERT_NONE
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, port), _CONNECT_SECONDS) as plain,
        any_.wrap_socket(plain, server_hostname=host),
    ):
        return True
    return False


def _without_certificate(reason: str, identity: Identity) -> Step:
    if identity.certificate:
        for found in expiries(Identity(certificate=identity.certificate), "entry"):
            if found.ends < datetime.now(UTC):
                text = f"this node's certificate in {found.file} has expired on {found.ends.date()}"
                return trials.failed(text, _RENEW)
        text = f"the peer does not accept the certificate in {identity.certificate}: {reason}"
        return trials.failed(
            text, "have its admin add the authority of it to listen.peer.tls.client_ca"
        )
    remedy = "set certificate and key in the entry to one that the peer's authority has signed"
    return trials.failed(f"the peer wants a certificate of this node: {reason}", remedy)


def _trusted(
    certificate: Mapping[str, object],
    version: str,
    identity: Identity,
) -> Step:
    now = datetime.now(UTC)
    ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC)
    all_ends = [("the peer's certificate", ends, "have the peer renew it")]
    for found in expiries(identity, "entry"):
        what = f"{found.path.partition('.')[2]} in {found.file}"
        all_ends.append((what, found.ends, _RENEW))
    for what, at, remedy in all_ends:
        if (left := (at - now).days) < EXPIRES_SOON:
            return trials.warning(f"{what} expires in {left} days", remedy, version)
    return trials.ok(f"{version}, certificate valid until {ends.date()}")
