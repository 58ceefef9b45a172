"""Tests a route both ways, step by step.

The steps are: the entry, the peer's name, connection, TLS, the next hop, the peer's responses and
clock, the proof of requests in both directions, and the way back to this node.
"""

import contextlib
import socket
import ssl
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import structlog

from adapter.bfia.channel.codec import (
    SUCCESS,
    Ptp,
    decode_answer,
    encode_envelope,
    invoke_headers,
)
from adapter.bfia.channel.grpc_client import is_grpc
from adapter.bfia.channel.message_forms import Form
from adapter.bfia.channel.sending import message_path
from adapter.bfia.outbound import open_socket, proxy_of
from adapter.bfia.paths import SCHEDULE
from adapter.bfia.peer import Peer
from adapter.bfia.peer_response import PROFILE_MISMATCH
from adapter.bfia.profiles import OTHER_PROTOCOL, Profile, profile_named
from adapter.bfia.relay_wire import (
    RELAY_CODES,
    RELAY_LOOP,
    RELAY_NOT_ALLOWED,
    TARGET_UNREACHABLE,
    relay_response,
)
from adapter.bfia.route_links import dialled_step, link_step
from adapter.bfia.route_proof import proof_step
from adapter.bfia.route_sealing import SealingTest
from adapter.bfia.route_tls import CONNECT_SECONDS, speaks_tls, try_tls
from adapter.page import BODY_LIMIT, FILTER, LOGIN, first_words
from gateway.domain.entries import as_mapping
from gateway.domain.spec import NodeId
from gateway.errors import GatewayError, Invalid, NotServed, PeerUnreachable
from gateway.http.peers import QUOTA, UNPROVEN
from gateway.identity.seals import Seals
from gateway.links.links import Connector, WithoutLinks
from gateway.runtime import trials
from gateway.runtime.trials import Observe, Result, Step, Stopped, Trial
from route_table import proxies
from route_table.model import DEFAULT_ENTRY, Route, RouteTable, UnknownNode, link_url
from route_table.proof import ListenerProof, Proof

log = structlog.get_logger(__name__)

HELLO = "/node/hello"  # path at which gateways, but no other products, tell about themselves
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
    "signature",
    "body",
    "channel",
    "sealing",
    "latency",
    "way back",
)
LARGE_BODY = 1024 * 1024  # bytes of the large request; a job's description is rarely larger

_SKEW_SECONDS = 30.0  # the largest difference of the two clocks that is not a fault
_TRIES = 5  # requests for the latency
_PORTS = {"http": 80, "https": 443, "link": 0}

# A path that every product of the standard serves to other nodes (control layer 3.8), and a path
# that no product serves.
_SERVED_PATH = f"{SCHEDULE}/task/poll"
_UNSERVED_PATH = f"{SCHEDULE}/no/such/path"
# The same for FATE's partner protocol.
_PARTNER_SERVED_PATH = "/v2/partner/task/collect"
_PARTNER_UNSERVED_PATH = "/v2/partner/no/such/path"

_FATE_UNKNOWN = (200, "6000")  # FATE-Flow's HTTP status and code for an unknown path
_PARTNER_PROTOCOL_REMEDY = (
    "set profile: fate-partner; FATE-Flow as published serves only its own protocol there"
)

_RAW_TYPE = "application/octet-stream"  # content type of a raw payload
_PEEK = "/v1/interconn/chan/peek"
_TOPIC = "route-test"
# Form -> body of a peek in that form; a raw one has its topic in a header.
_PROBES = {
    Form.JSON: b'{"topic": "route-test"}',
    Form.PROTOBUF: b"\x0a\x0aroute-test",  # a PopInbound: field 1, of ten bytes
    Form.RAW: b"",
}
# Codes with which a transport that understood the peek may answer: success, no message (404), not
# permitted (614), not joined (618).
_UNDERSTOOD = (SUCCESS, "0", "E0000000404", "E0000000614", "E0000000618")

# The peer's answer has no valid signature: usually the partner's route has no key of this node yet.
_SIGN_REMEDY = (
    "have the partner accept this node's invitation (bfia-gateway partner accept --replace) and "
    "use a version that signs its answers; otherwise look at what stands before its gateway "
    "(proxy, load balancer)"
)
# The peer's answer must be signed, and the route here has no key to check a signature.
_NO_KEY_REMEDY = (
    "accept its invitation (bfia-gateway partner accept --replace), or: bfia-gateway route edit "
    "{node} --keys KEYS; --signing off where its requests and answers need no proof"
)
# The peer refuses this node's signature.
_REFUSED_REMEDY = (
    "the clock (see the step clock) or the key: compare identity export with the keys of the "
    "partner's route, and ask the partner for its audit line"
)
# The peer refuses every message, as nothing proves this node's.
_UNPROVEN_REMEDY = "first mend what the step signature names: the peer refuses every message"
# The peer is silent or refuses the request, at a step that has no remedy of its own for it.
_AGAIN_REMEDY = "try again, then look at the peer"
# The peer refuses a request because this node has sent too many.
_WAIT_REMEDY = "wait a minute, or have its admin raise limits.partner_requests_per_minute"
# Reason of a page from something in front of the peer -> remedy.
_PAGES = {
    LOGIN: (
        "ask the partner's admin for a way past the login: requests of this node's address need "
        "none"
    ),
    FILTER: "ask whoever runs the filter to let this node's requests to that address pass",
    BODY_LIMIT: (
        "ask the partner's admin to raise the body limit of its proxy (nginx: client_max_body_size)"
    ),
}
# Reason of a proxy that opens no tunnel -> remedy.
_PROXY_REMEDIES = {
    proxies.UNREACHABLE: "correct proxy in the entry, or ask whoever runs the proxy",
    proxies.LOGIN: "correct the user in proxy, and the password in the file proxy_password",
    proxies.REFUSED: (
        "ask whoever runs the proxy to allow CONNECT to that host and port; many allow port 443 "
        "only"
    ),
}
# Remedy for any other refusal of hello: a service other than a gateway may listen at the port.
_ANOTHER_PORT = "check that the address is a gateway's peer port"
# Reasons of a hello that fails because one of the two nodes does not take the other's proof.
_OF_PROOF = ("SIGNATURE_REFUSED", "ANSWER_NOT_SIGNED", UNPROVEN)
# Reason of the peer's refusal of hello -> remedy.
_REMEDIES = {
    "CERTIFICATE_MISMATCH": "have its admin set peer_certificate in the entry for this node, "
    "or show a certificate with this node's id",
    "CERTIFICATE_REVOKED": "have a new certificate issued for this node",
    **_PAGES,
}


def try_route(
    peer: Peer,
    table: RouteTable,
    node: NodeId,
    me: NodeId,
    listener: ListenerProof,
    seals: Seals | None = None,
    observe: Observe = trials.ignore,
    links: Connector | None = None,
) -> list[Step]:
    """Test the route to a node; every failure becomes the result of a step.

    - ``listener``: what this node's listener for peers demands of all nodes
    - ``seals`` seals a message for the test; None: this node seals none
    - ``observe`` is called with each step once it was taken
    - ``links``: the links of this node; None: it has none
    """
    trial = Trial(STEPS, observe=observe)
    with contextlib.suppress(Stopped):
        trial.take("route", partial(_route, table, node))
        entry = table.routes.get(node)
        test = _RouteTest(
            trial,
            peer,
            table.resolve(node),
            me,
            entry,
            listener,
            seals,
            links or WithoutLinks(),
        )
        test.run()
    return trial.all_steps()


def hello(
    peer: Peer,
    me: NodeId,
    padding: int = 0,
    *,
    call_back: bool = False,
) -> Mapping[str, Any]:
    """Say hello and return the peer's answer; ``padding``: bytes that are added to the request.

    Raises `NotServed`, `PeerUnreachable`, `Refused`.
    """
    body = {"node_id": me, "padding": "x" * padding, "call_back": call_back}
    return peer.ask(HELLO, body)


def call_back(
    peer_of: Callable[[NodeId], Peer],
    me: NodeId,
    node: NodeId,
) -> dict[str, Any]:
    """Say hello to a node on its request; return the outcome for its step "way back".

    The outcome has ``ok``, and either ``ms`` (milliseconds) or the failed ``step``. The node learns
    nothing else: its address could point at a service inside this network.
    """
    started = time.monotonic()
    try:
        greeting = hello(peer_of(node), me)
    except GatewayError as error:
        step = _step_of(error)
        text = error.message
    else:
        if greeting.get("node_id") == node:
            return {"ok": True, "ms": round((time.monotonic() - started) * 1000, 1)}
        step = "identity"
        text = f"at its address there responds {greeting.get('node_id')}"
    log.warning(
        "a node that wants to be called back is not reached",
        node=node,
        step=step,
        cause=text,
    )
    return {"ok": False, "step": step}


def _step_of(error: GatewayError) -> str:
    """Return the step of a trial at which saying hello failed."""
    # `Peer` raises ``error`` from `NotConnected` or `NoResponse`, which in turn was raised from an
    # error of the socket or of TLS.
    cause = getattr(error.__cause__, "__cause__", None)
    match cause:
        case socket.gaierror():
            return "dns"
        case ssl.SSLError():
            return "tls"
    if isinstance(error, PeerUnreachable) and not error.delivered:
        return "tcp"
    if error.reason in _OF_PROOF:
        return "signature"
    return "answer"


def _route(table: RouteTable, node: NodeId) -> Step:
    """Return the outcome of the step route: whether the table leads to the node."""
    try:
        route = table.resolve(node)
    except UnknownNode as error:
        remedy = (
            "accept its invitation (bfia-gateway partner accept), or: bfia-gateway route add "
            f"{node} --to URL"
        )
        if error.disabled:
            remedy = "enable it, or give it another way"
        return trials.failed(str(error), remedy)
    entry = f"{route.url}, profile {route.profile}"
    if route.via:
        entry += f", passed on by {route.via}"
    if table.knows(node):
        return trials.ok(entry)
    text = (
        f"{node} has no entry of its own: jobs can be sent there, and none of that node is "
        "accepted here"
    )
    return trials.warning(text, "add an entry with via if that node is a partner", finding=entry)


class _RouteTest:
    """The steps after the entry of a route."""

    def __init__(
        self,
        trial: Trial,
        peer: Peer,
        route: Route,
        me: NodeId,
        entry: Route | None,
        listener: ListenerProof,
        seals: Seals | None,
        links: Connector,
    ) -> None:
        """``entry``: the node's own one in the table; None without one."""
        self._seals = seals
        self._links = links
        self._trial = trial
        self._peer = peer
        self._route = route
        self._me = me
        self._entry = entry
        self._listener = listener
        self._url = urlsplit(route.url)
        self._port = self._url.port or _PORTS[self._url.scheme]
        self._proxy = proxy_of(route.identity)
        self._dials_in = route.url.startswith(link_url(""))
        # The peer's response to hello; ``sent`` and ``received`` are this node's times of the
        # request and of the response, in seconds since 1970.
        self._greeting: dict[str, Any] = {}
        # Seconds that the peer's clock is ahead, by the time in its refusal of our signature.
        self._refusal_skew: float | None = None

    def run(self) -> None:
        """Take the steps in their order.

        Raises `Stopped` after a failed step that the rest needs.
        """
        self._take("dns", self._dns, needed=True)
        self._take("tcp", self._tcp, needed=True)
        self._take("tls", self._tls, needed=True)
        self._take("relay", self._relay, needed=True)
        match self._take("answer", self._answer).result:
            case Result.OK:
                self._test_gateway()
            case Result.WARNING:  # another product, or a gateway too old to answer hello
                self._take("profile", self._profile_of_other_product)
                self._take("signature", self._signature)
                self._take("channel", self._channel)
            # A refused signature: a wrong clock may be the cause.
            case Result.FAILED if self._refusal_skew is not None:
                self._take("clock", self._clock)

    def _test_gateway(self) -> None:
        """Test a peer that answers hello: a gateway like this one."""
        self._take("identity", self._identity)
        is_other_node = self._greeting.get("node_id") != self._route.node
        # Every answer to hello has the peer's time. Without a time, the greeting is another node's
        # refusal to relay the request (see `_refusal`), so that no gateway answers the further
        # steps. If another node has answered hello, the further steps still show how its gateway
        # works.
        is_refusal = "time_ms" not in self._greeting
        if is_other_node and is_refusal:
            return
        self._take("profile", self._profile)
        self._take("clock", self._clock)
        self._take("signature", self._signature)
        self._take("body", self._body)
        self._take("channel", self._channel)
        self._take("sealing", self._sealing)
        self._take("latency", self._latency)
        self._take("way back", self._way_back)

    def _take(
        self,
        name: str,
        work: Callable[[], Step],
        *,
        needed: bool = False,
    ) -> Step:
        """Take a step; it fails if ``work`` raises a `GatewayError`: a refusal, or no response."""

        def step() -> Step:
            try:
                outcome = work()
            except GatewayError as error:
                outcome = trials.failed(error.message, _AGAIN_REMEDY)
            # Steps turn a refusal into a cause of their own, which quotes the refusal's reason and
            # message.
            is_over_quota = f"{QUOTA}: " in outcome.cause
            if is_over_quota:
                outcome = replace(outcome, remedy=_WAIT_REMEDY)
            return outcome

        return self._trial.take(name, step, needed=needed)

    def _dns(self) -> Step:
        """Resolve the host name in the entry's URL."""
        if self._dials_in:
            return trials.skipped("this partner dials in")
        if self._proxy is not None:
            return trials.skipped(f"proxy {self._proxy.address} resolves the name")
        name = self._url.hostname
        try:
            infos = socket.getaddrinfo(
                name,
                self._port,
                type=socket.SOCK_STREAM,
            )
        except (OSError, UnicodeError) as error:
            return trials.failed(
                f"the name {name} leads nowhere: {error}", "correct host or url of the entry"
            )
        addresses = {str(info[4][0]) for info in infos}
        return trials.ok(", ".join(sorted(addresses)))

    def _tcp(self) -> Step:
        """Open a connection to the host and port of the entry's URL, or look at its links."""
        hop = self._route.via or self._route.node
        if self._dials_in:
            return link_step(hop, self._links.of(hop))
        connected = self._connect()
        if connected.result is Result.OK and self._route.dial == "out":
            return dialled_step(self._me, connected.found, self._links.of(hop))
        return connected

    def _connect(self) -> Step:
        """Open a connection to the host and port of the entry's URL."""
        host = self._url.hostname or ""
        where = f"{host}:{self._port}"
        through = ""
        if self._proxy is not None:
            through = f", through proxy {self._proxy.address}"
        try:
            with open_socket(host, self._port, CONNECT_SECONDS, self._proxy):
                return trials.ok(where + through)
        except proxies.ProxyFailed as error:
            return trials.failed(str(error), _PROXY_REMEDIES[error.reason])
        except ConnectionRefusedError:
            return trials.failed(
                f"nothing listens at {where}", "start the peer's gateway, or correct the port"
            )
        except OSError as error:
            remedy = "open the port in the firewalls between, or correct the entry's address"
            return trials.failed(f"{where} cannot be reached: {error}", remedy)

    def _tls(self) -> Step:
        """Shake hands and check certificates, if the route is https."""
        if self._dials_in:
            return trials.skipped("this partner dials in, and checks this node's certificate")
        if self._url.scheme != "https":
            return trials.skipped("the route is plain http")
        return try_tls(self._url.hostname or "", self._port, self._route.identity)

    def _relay(self) -> Step:
        """Test whether the next hop forwards requests, also if the node behind it refuses them."""
        route = self._route
        if not route.via:
            return trials.skipped("the node is reached directly")
        hop = route.via
        if hop == DEFAULT_ENTRY:
            hop = "the next hop"
        try:
            greeting = hello(self._peer, self._me)
        except GatewayError as error:
            return self._relay_error(hop, error)
        if greeting.get("node_id") == route.via:
            remedy = "have its admin bring its gateway up to date and allow it, or go another way"
            return trials.failed(f"{hop} responds itself: its gateway passes on nothing", remedy)
        return trials.ok(f"{hop} passes on")

    def _relay_error(self, hop: str, error: GatewayError) -> Step:
        """Return the outcome of a refused or unanswered hello through the next hop.

        Silence or a refusal of the node behind the hop shows that the hop forwards requests.
        """
        target_is_silent = error.reason == TARGET_UNREACHABLE
        if error.reason in RELAY_CODES and not target_is_silent:
            me = self._me
            node = self._route.node
            remedy = (
                f"have its admin set relay: true in the entries of {me} and {node}, and route both"
            )
            return trials.failed(error.message, remedy)
        if isinstance(error, PeerUnreachable) and not target_is_silent:
            remedy = f"look at the gateway of {hop} and at what stands before it"
            return trials.failed(error.message, self._proof_remedy(error) or remedy)
        return trials.ok(f"{hop} passes on")

    def _answer(self) -> Step:
        """Say hello to the node, and keep its answer for the further steps."""
        sent = time.time()
        try:
            greeting = hello(self._peer, self._me)
        except NotServed:
            return self._other_product()
        except PeerUnreachable as error:
            return self._no_answer(error)
        except GatewayError as error:
            return self._refusal(error)
        self._greeting = {**greeting, "sent": sent, "received": time.time()}
        version = greeting.get("gateway", "?")
        protocol = greeting.get("protocol", "?")
        return trials.ok(f"gateway {version}, protocol {protocol}")

    def _no_answer(self, error: PeerUnreachable) -> Step:
        """Return the outcome of an unanswered hello, or of an answer without a valid signature."""
        is_plain = self._url.scheme == "http"
        if is_plain and speaks_tls(self._url.hostname or "", self._port, self._proxy):
            return trials.failed(
                "https is spoken there, and the entry says http",
                "begin the entry's url with https",
            )
        remedy = "look at the peer's gateway and at what stands before it (proxy, load balancer)"
        return trials.failed(error.message, self._proof_remedy(error) or remedy)

    def _refusal(self, error: GatewayError) -> Step:
        """Return the outcome of a refused hello.

        A node that refuses to relay has answered: it is not the route's node, as the step identity
        reports.
        """
        node = self._route.node
        if error.reason == RELAY_NOT_ALLOWED:  # another node answers: a relay
            self._greeting["node_id"] = self._answering_relay() or "another one"
            return trials.ok(error.message)
        if error.reason == RELAY_LOOP and self._answering_relay() == self._me:
            text = f"this address is this node itself ({self._me}): what is sent there comes back"
            remedy = f"put the address of {node} into its entry, not this node's own"
            return trials.failed(text, remedy)
        if error.reason == PROFILE_MISMATCH:
            text = "the peer responds as another product does; see the step profile"
            return trials.warning(
                cause="",
                remedy="",
                finding=text,
            )
        text = error.message.removeprefix(f"{node}: ").removeprefix(f"{error.reason}: ")
        remedy = _REMEDIES.get(error.reason, _ANOTHER_PORT)
        return trials.failed(f"{error.reason}: {text}", remedy)

    def _proof_remedy(self, error: PeerUnreachable) -> str:
        """Return the remedy if the peer's answer, or this node's signature, is not accepted.

        Empty otherwise. Keeps the skew of the peer's clock that a refused signature reveals.
        """
        self._refusal_skew = error.skew
        if error.skew is not None:
            return _REFUSED_REMEDY
        if error.reason != "ANSWER_NOT_SIGNED":
            return ""
        if self._route.keys:
            return _SIGN_REMEDY
        return _NO_KEY_REMEDY.format(node=self._route.node)

    def _other_product(self) -> Step:
        """Return the outcome for a peer without hello.

        A warning if it serves the standard's paths, else a failure.
        """
        served = self._status_and_code(_SERVED_PATH)
        unserved = self._status_and_code(_UNSERVED_PATH)
        if served == unserved and self._route.profile != OTHER_PROTOCOL:
            status, _ = served
            text = (
                f"nothing between nodes is served at {self._route.url}: HTTP {status} to "
                f"{_SERVED_PATH}"
            )
            remedy = (
                "correct host, port and path of the entry: they must lead to the node's peer port"
            )
            if served == _FATE_UNKNOWN:
                remedy = _PARTNER_PROTOCOL_REMEDY
            return trials.failed(text, remedy)
        text = (
            "the peer responds, and lacks the path that tells more of it: another product, or an "
            "older version"
        )
        return trials.warning(cause="", remedy="", finding=text)

    def _status_and_code(
        self,
        path: str,
        method: str = "POST",
    ) -> tuple[int, str]:
        """Send an empty request; return the HTTP status and the code of the response, as text."""
        status, body = self._peer.raw(method, path, {})
        return status, str(as_mapping(body).get("code"))

    def _answering_relay(self) -> str:
        """Return the relay that responds instead of the node; empty if none does."""
        _, body = self._peer.raw("POST", HELLO, {})
        of_relay = relay_response(as_mapping(body))
        if of_relay is None:
            return ""
        return of_relay.relay

    def _identity(self) -> Step:
        """Compare the peer's id with the route's node."""
        node = self._route.node
        node_there = self._greeting.get("node_id")
        if node_there == node:
            return trials.ok(f"{node}, institution {self._greeting.get('institution') or '?'}")
        text = "the node there does not say which it is"
        if node_there:
            text = f"the node there says that it is {node_there}"
        return trials.failed(text, f"correct the address of {node}, or the id of the entry")

    def _profile(self) -> Step:
        """Compare the route's profile with the one of a gateway like this: ``spec``."""
        profile = self._route.profile
        if profile == OTHER_PROTOCOL:
            return self._partner_paths()
        if profile != "spec":
            text = f"the entry says profile {profile}, and the peer is a gateway such as this"
            return trials.failed(text, "set profile: spec, or leave it out")
        return trials.ok(profile)

    def _profile_of_other_product(self) -> Step:
        """Compare the profile with the peer's response to an unknown path."""
        profile = self._route.profile
        if profile == OTHER_PROTOCOL:
            return self._partner_paths()
        status, code = self._status_and_code(_UNSERVED_PATH, "GET")
        apparent_profile = "spec"
        if (status, code) == _FATE_UNKNOWN:
            apparent_profile = "fate"
        if apparent_profile == "fate" and profile == "spec":
            return self._unnamed_fate()
        is_contradiction = apparent_profile != profile and "fate" in (apparent_profile, profile)
        if is_contradiction:
            text = (
                f"an unknown path gets HTTP {status}, code {code}: that looks like profile "
                f"{apparent_profile}"
            )
            return trials.warning(
                text, f"set profile: {apparent_profile}", finding=f"the entry says {profile}"
            )
        return trials.ok(profile)

    def _unnamed_fate(self) -> Step:
        """Find out whether a FATE node serves the standard, or only FATE's protocol.

        The step fails either way, as the profile ``spec`` of the node's entry fits neither.
        """
        served = self._status_and_code(_SERVED_PATH)
        unserved = self._status_and_code(_UNSERVED_PATH)
        text = (
            "the peer answers as FATE-Flow does (HTTP 200, code 6000), and the entry does not "
            "say so"
        )
        if served == unserved:
            return trials.failed(text, _PARTNER_PROTOCOL_REMEDY)
        return trials.failed(text, "set profile: fate")

    def _partner_paths(self) -> Step:
        """Test whether FATE's paths between sites are served; an empty body changes nothing."""
        served = self._status_and_code(_PARTNER_SERVED_PATH)
        unserved = self._status_and_code(_PARTNER_UNSERVED_PATH)
        status, _ = served
        if served == unserved or status != 200:
            text = (
                f"FATE's partner protocol is not served at {self._route.url}: HTTP {status} to "
                f"{_PARTNER_SERVED_PATH}"
            )
            return trials.failed(text, "correct the address; a gateway serves it with fate.enabled")
        return trials.ok(OTHER_PROTOCOL)

    def _clock(self) -> Step:
        """Compare the clocks of both nodes."""
        skew = self._skew()
        if skew is None:
            return trials.skipped("the peer does not say its time")
        shown_skew = f"{round(skew, 1) + 0:+.1f} s"  # + 0: without a minus before zero
        if abs(skew) <= _SKEW_SECONDS:
            return trials.ok(shown_skew)
        text = f"the peer's clock is {abs(skew):.0f} s behind this node's"
        if skew > 0:
            text = f"the peer's clock is {abs(skew):.0f} s ahead of this node's"
        return trials.failed(text, "let both nodes follow a time server", shown_skew)

    def _skew(self) -> float | None:
        """Return the seconds that the peer's clock is ahead; None if it reports no time."""
        if self._refusal_skew is not None:
            return self._refusal_skew
        greeting = self._greeting
        try:
            peer_time = float(greeting["time_ms"]) / 1000
            # The peer reads its clock about halfway between request and response.
            time_here: float = (greeting["sent"] + greeting["received"]) / 2
        except (KeyError, TypeError, ValueError):
            return None
        return peer_time - time_here

    def _signature(self) -> Step:
        """Report what proves the requests in both directions."""
        return proof_step(
            self._route.node,
            self._entry,
            self._listener,
            str(self._greeting.get("proof", "")),
            self._peer.signing_key,
        )

    def _body(self) -> Step:
        """Send a large request."""
        try:
            hello(self._peer, self._me, padding=LARGE_BODY)
        except GatewayError as error:
            text = f"a request of {LARGE_BODY} bytes does not pass: {error.message}"
            remedy = "raise the largest body of the peer's gateway or of the proxy before it"
            return trials.failed(text, remedy)
        return trials.ok(f"{LARGE_BODY} bytes")

    def _channel(self) -> Step:
        """Peek for a message at the peer's transport, in each form of messages sent there."""
        profile = profile_named(self._route.profile)
        forms = self._forms(profile)
        faults = {}
        for name, form in forms.items():
            fault = self._peek(form, encapsulated=profile.encapsulates)
            if fault:
                faults[name] = fault
        if not faults:
            return trials.ok(", ".join(forms))
        text = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
        if len(faults) < len(forms):
            remedy = "containers that send this form do not reach that node's"
            return trials.warning(text, remedy)
        if self._greeting.get("proof") == Proof.MISSING:
            return trials.failed(text, _UNPROVEN_REMEDY)
        remedy = "set transport in the entry to the address of the peer's transport layer"
        is_gateway = bool(self._greeting)  # only gateways answer hello
        if is_gateway:
            return trials.failed(text, remedy)
        return trials.warning(text, remedy)

    def _sealing(self) -> Step:
        """Test what is sealed between both nodes."""
        return SealingTest(self._peer, self._route, self._me, self._seals, self._greeting).step()

    def _forms(self, profile: Profile) -> dict[str, Form]:
        """Return the forms of messages that are sent to the peer, by their names in the outcome."""
        if is_grpc(self._route.channel.url):
            return {"grpc": Form.PROTOBUF}
        forms = [Form.JSON, Form.PROTOBUF]
        if profile.bare_payloads:
            forms = [Form.RAW]
        return {form.name.lower(): form for form in forms}

    def _peek(self, form: Form, *, encapsulated: bool) -> str:
        """Return the fault of the peer's answer to one form; empty for none."""
        body, headers = self._peek_request(form, encapsulated)
        try:
            status, content = self._peer.invoke(message_path(self._route.channel), body, headers)
        except PeerUnreachable as error:
            return error.message
        content_type = Form.PROTOBUF.value
        if content.startswith(b"{"):
            content_type = ""  # read as JSON
        try:
            response = decode_answer(content, content_type)
        except Invalid:
            text = f"HTTP {status} without a transport's answer"
            words = first_words(content)
            if words:
                text = f"{text}; it says: {words}"
            return text
        if status == 200 and response.code in _UNDERSTOOD:
            return ""
        return f"{response.code} {response.message}".strip()

    def _peek_request(
        self,
        form: Form,
        encapsulated: bool,
    ) -> tuple[bytes, dict[str, str]]:
        """Return body and headers of a peek in one form."""
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
        headers["x-ptp-uri"] = _PEEK
        headers["content-type"] = form.value
        if form is Form.RAW:
            headers["content-type"] = _RAW_TYPE
        body = _PROBES[form]
        if encapsulated:
            body = b"".join(encode_envelope([body], headers, form))
        return body, headers

    def _latency(self) -> Step:
        """Measure the time of a small request."""
        seconds = []
        for _ in range(_TRIES):
            started = time.monotonic()
            hello(self._peer, self._me)
            seconds.append(time.monotonic() - started)
        median = statistics.median(seconds)
        latency = f"{median * 1000:.1f} ms (median of {_TRIES})"
        if median > self._route.deadline / 2:
            text = (
                f"half of the route's deadline of {self._route.deadline:g} s is used up by a "
                "small request"
            )
            return trials.failed(text, "raise deadline in the entry, or mend the link", latency)
        return trials.ok(latency)

    def _way_back(self) -> Step:
        """Have the peer say hello to this node."""
        me = self._me
        if not self._greeting.get("knows_you"):
            remedy = f"have its admin add {me} with this node's advertised address, or enable it"
            return trials.failed(f"the peer has no enabled route to {me}", remedy)
        if self._greeting.get("proof") == Proof.MISSING:
            return trials.skipped("the peer refuses every request; see the step signature")
        back = as_mapping(hello(self._peer, me, call_back=True).get("back"))
        if back.get("ok"):
            return trials.ok(f"{back.get('ms', '?')} ms")
        step = back.get("step") or back.get("reason", "?")  # older gateways report a reason
        text = f"the peer does not reach this node; the step that fails there: {step}"
        remedy = (
            f"correct the address of {me} in the peer's route table, or the firewalls; its log "
            "says more"
        )
        if step == "tls":
            remedy = f"have its admin set ca, certificate and key in the route to {me}"
        if step == "signature":
            remedy = (
                "compare identity export with the keys of the route, here and there, and the clocks"
            )
        return trials.failed(text, remedy)
