"""One request to a peer over HTTP, and the meaning of its response.

A call is made once. The scheduler decides on repetitions, as it knows which are safe; here a
failure becomes an exception, which states whether the request can have arrived.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlencode
from uuid import uuid4

from adapter.bfia import control_sealing, peer_response
from adapter.bfia.channel.grpc_client import GrpcMissing, call_once, is_grpc
from adapter.bfia.commands import OPTIONAL
from adapter.bfia.connections import (
    Client,
    Connections,
    NoResponse,
    NotConnected,
    Request,
    Response,
    context,
)
from adapter.bfia.paths import NEVER_SIGNED, SCHEDULE
from adapter.bfia.peer_response import code_of, message_of
from adapter.bfia.profiles import SUCCESS_CODES, Profile, profile_named, reveal_profile
from adapter.bfia.relay_wire import NEXT_HOP_UNREACHABLE, TARGET_UNREACHABLE, WITHIN, relay_response
from adapter.page import Page, page_of
from gateway.domain.entries import as_mapping
from gateway.domain.spec import NodeId
from gateway.domain.volumes import Volume
from gateway.errors import GatewayError, NotAllowed, NotServed, PeerUnreachable, Refused, shorten
from gateway.identity import signatures
from gateway.identity.keys import KeyPair
from gateway.identity.request_seals import RequestSeal
from gateway.identity.seals import Seals
from gateway.identity.signatures import Signable, SignableResponse, digest, sign
from gateway.runtime.context import (
    Exchange,
    collecting_exchanges,
    current_trace,
    new_trace_id,
    record_exchange,
)
from route_table.model import Route, UnknownNode

UNSIGNED = "unsigned"  # value of x-auth-sign in a request without a signature

# A poll of a task that no node has: the response shows which profile the peer speaks.
PROFILE_QUESTION = {"task_id": "which-profile", "role": ""}

# Seconds of one control request with timeout_factor 1. The scheduler waits longer than this before
# it repeats a call whose response it did not get.
LONGEST_CALL = 10.0

_UNAVAILABLE = (429, 502, 503, 504)  # HTTP statuses of a peer, or a proxy, that may recover
_NO_SUCH_PATH = (404, 405, 501)  # HTTP statuses of web frameworks for unknown paths and methods

T = TypeVar("T")
P = ParamSpec("P")

# A path that begins with one of these is complete; `SCHEDULE` is put before any other.
_LAYERS = ("/v1/", "/v2/", "/health/")
# Fields of a response around its data; all others are returned together with the data.
_ENVELOPE_FIELDS = ("code", "msg", "message", "data")


def _name_node(call: Callable[Concatenate["Peer", P], T]) -> Callable[Concatenate["Peer", P], T]:
    """Put the peer's node into each `GatewayError` that a method raises.

    The advice shown with the error needs it.
    """

    @wraps(call)
    def call_and_name(self: "Peer", /, *args: P.args, **options: P.kwargs) -> T:
        try:
            return call(self, *args, **options)
        except GatewayError as error:
            error.node = error.node or self.node
            raise

    return call_and_name


def _no_headers(node: NodeId) -> Mapping[str, str]:
    """Return no further headers."""
    return {}


def _no_key() -> KeyPair | None:
    """Return no key pair: requests are not signed."""
    return None


@dataclass(frozen=True)
class _Call:
    """One control request, and the values that its response is checked against."""

    route: Route
    request: Request
    signable: Signable
    timeout: float  # seconds
    started: float  # by the monotonic clock
    seal: RequestSeal | None  # of the request; None if it is not sealed

    @property
    def path(self) -> str:
        """The path of the request, without its query."""
        return self.signable.path

    @property
    def speaker(self) -> str:
        """The node that answers this call, as errors name it."""
        target = self.route.node
        if self.route.via:
            target = f"next hop {self.route.via} of {self.route.node}"
        return f"{target} at {self.route.url}"

    @property
    def unreachable_reason(self) -> str | None:
        """The reason of a failure to reach the called address; None for the usual one."""
        if self.route.via:
            return NEXT_HOP_UNREACHABLE
        return None

    @property
    def must_be_proven(self) -> bool:
        """True if only a response with the peer's valid signature is accepted."""
        return self.route.signing_mode == "required" and self.path not in NEVER_SIGNED


class Peer:
    """One peer, as its route describes it at the moment of the call.

    Its methods raise `PeerUnreachable`, and for a refusal by the peer `Refused`, or the
    `GatewayError` that belongs to the reason that the peer reports.
    """

    def __init__(
        self,
        me: NodeId,
        node: NodeId,
        resolve: Callable[[NodeId], Route],
        connections: Connections,
        proof_headers: Callable[[NodeId], Mapping[str, str]] = _no_headers,
        key: Callable[[], KeyPair | None] = _no_key,
        seals: Seals | None = None,
    ) -> None:
        """``resolve`` returns a node's route, or raises `UnknownNode`.

        ``proof_headers`` returns fresh headers that prove this node's identity to a node as another
        protocol (FATE) requires; ``key`` returns the key pair that signs requests as the standard
        has it, None to send them unsigned. ``seals`` seals requests where the route says so; None:
        this node has no seals.
        """
        self._me = me
        self._proof_headers = proof_headers
        self._key = key
        self._seals = seals
        self.node = node
        self._resolve = resolve
        self._connections = connections

    def signed_with(self, pair: KeyPair) -> "Peer":
        """Return a client for the same node that signs with another key pair."""

        def key() -> KeyPair:
            return pair

        return Peer(
            self._me,
            self.node,
            self._resolve,
            self._connections,
            self._proof_headers,
            key,
            self._seals,
        )

    @property
    def _route(self) -> Route:
        """The node's route now. Raises `Refused` (NODE_UNKNOWN) if there is none."""
        try:
            return self._resolve(self.node)
        except UnknownNode as error:
            raise Refused(str(error), reason="NODE_UNKNOWN") from error

    @property
    def signing_key(self) -> KeyPair | None:
        """The key pair that signs requests to the peer; None if they are not signed."""
        if self._route.signing_mode == "off":
            return None
        return self._key()

    @property
    def takes_bundles(self) -> bool:
        """Whether the peer gets the signed bundles of jobs.

        That is so if it has exchanged keys with this node, and signing is not off.
        """
        return bool(self._route.keys) and self._route.signing_mode != "off"

    @property
    def profile(self) -> Profile:
        """The peer's dialect, by its route."""
        return profile_named(self._route.profile)

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        **options: Any,
    ) -> Mapping[str, Any]:
        """Post and return ``data``; ``options`` are the keyword arguments of `raw`."""
        status, response = self.raw("POST", path, body, **options)
        return self._data(path, status, response)

    def job_status(
        self,
        method: str,
        job_id: str,
    ) -> Mapping[str, Any]:
        """Request ``job/status_all`` and return ``data`` with its sibling fields.

        An empty object is returned, too; `views.job_view` interprets it. Raises
        `PeerUnreachable`; for a response that is not a success, or has no ``data`` at all,
        `Refused`, `NotFound`, `NotAllowed` or `Invalid`.
        """
        parameters = {"job_id": job_id}
        path = "/job/status_all"
        # Some peers read the parameters from the query, other peers from the body: both have them.
        query = parameters
        if self._route.seals_control:  # such a peer reads the body, which alone is sealed
            query = {}
        status, response = self.raw(
            method,
            path,
            body=parameters,
            query=query,
        )
        data = self._data(path, status, response)
        if not data and not isinstance(response.get("data"), Mapping):
            raise Refused(
                f"{self.node} answers a success without a state of the job", reason="NO_ENVELOPE"
            )
        return data

    def ask(
        self, path: str, body: Mapping[str, Any], method: str = "POST", **options: Any
    ) -> Mapping[str, Any]:
        """Make a request at an `OPTIONAL` path, or at one of the management layer; return ``data``.

        ``options`` as in `post`. Raises `NotServed` if the peer lacks the path.
        """
        status, response = self.raw(method, path, body, **options)
        if self._lacks_path(status, response):
            consequence = OPTIONAL.get(path)
            cause = ": it does not have the management layer"
            if consequence:
                cause = f", an extension: {consequence}"
            raise NotServed(f"{self.node} does not serve {path}{cause}")
        return self._data(path, status, response)

    @_name_node
    def raw(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *,
        query: Mapping[str, str] | None = None,
        timeout_factor: float = 1.0,
        other_headers: Mapping[str, str] = MappingProxyType({}),
        permits: str = "",
    ) -> tuple[int, Any]:
        """Make a request; return HTTP status and JSON object, whatever they mean.

        A body without a JSON object is returned as a `Page`. Raises `PeerUnreachable`, and
        `NotAllowed` for a request that has to be sealed, if a key is missing.

        - ``timeout_factor`` multiplies the route's deadline
        - ``other_headers``: headers of another protocol, sent instead of those that
          ``proof_headers`` returns
        - ``permits``: the permits, issued by the peer, that the request uses
        """
        route = self._route
        timeout = min(route.deadline, LONGEST_CALL) * timeout_factor
        client = self._connections.to(route.url, route.identity)
        headers = self._headers(
            route, timeout, other_headers or self._proof_headers(self.node), permits
        )
        call = self._prepare(
            route,
            method,
            path,
            query=urlencode(query or {}),
            headers=headers,
            body=body,
            timeout=timeout,
        )
        response = self._send(client, call)
        return self._read(call, response)

    def _headers(
        self, route: Route, timeout: float, proof: Mapping[str, str], permits: str
    ) -> dict[str, str]:
        """Return the headers of a request, without this node's signature.

        ``proof``: headers that prove this node's identity; ``timeout``: seconds.
        """
        headers = {
            "content-type": "application/json",
            **request_headers(self._me, self.node),
        }
        if route.via:
            headers[WITHIN] = str(int(timeout * 1000))  # milliseconds
        for name, value in proof.items():
            headers[name.lower()] = value
        if permits:
            headers["x-mprac-token-set"] = permits
        return headers

    def _prepare(
        self,
        route: Route,
        method: str,
        path: str,
        query: str,
        headers: dict[str, str],
        body: Mapping[str, Any],
        timeout: float,
    ) -> _Call:
        """Return the request, sealed and signed as the route says.

        A path that does not begin with a layer (`_LAYERS`) belongs to the control layer.
        """
        if not path.startswith(_LAYERS):
            path = SCHEDULE + path
        content = json.dumps(body, ensure_ascii=False).encode()
        signable = Signable(
            method,
            path,
            query,
            digest=digest(content),
            source=self._me,
            target=self.node,
        )
        seal = control_sealing.seal_for(self._seals, route, signable, headers)
        if seal is not None:
            content = seal.seal(content)
            signable = replace(signable, digest=digest(content))
            headers = {**headers, **seal.headers()}
        if route.signing_mode != "off":
            headers = self._signed(headers, signable)
        target = path
        if query:
            target = f"{path}?{query}"
        request = Request(method, target, headers, content)
        return _Call(
            route,
            request,
            signable,
            timeout,
            started=time.monotonic(),
            seal=seal,
        )

    def _signed(
        self,
        headers: dict[str, str],
        signable: Signable,
    ) -> dict[str, str]:
        """Return the headers with this node's signature; unchanged if the node has no key."""
        pair = self._key()
        if pair is None:
            return headers
        seconds = int(headers["x-timestamp"]) // 1000
        value = sign(pair, signable, headers["x-nonce"], seconds)
        signature = signatures.headers(signable, value)
        if "signature" in headers:  # FATE's header of that name is kept: x-auth-sign is enough
            del signature["signature-input"], signature["signature"]
        return {**headers, **signature}

    def _send(self, client: Client, call: _Call) -> Response:
        """Send a request and return the response. Raises `PeerUnreachable`."""
        try:
            response = client.send(call.request, call.timeout)
        except NotConnected as error:
            self._record(call, status=None, code=None, message=f"cannot connect: {error}")
            text = f"cannot connect to {call.speaker}: {error}"
            reason = error.reason or call.unreachable_reason
            raise PeerUnreachable(text, delivered=False, reason=reason) from error
        except NoResponse as error:
            self._record(call, status=None, code=None, message=f"no answer: {error}")
            text = f"no answer from {call.speaker}: {error}"
            raise PeerUnreachable(text, reason=call.unreachable_reason) from error
        self._count(call.request.body, response.body)
        return response

    def _count(self, sent: bytes, received: bytes) -> None:
        """Count the bytes of an exchange with the peer."""
        volume = Volume(bytes_in=len(received), bytes_out=len(sent))
        self._connections.count_volume(self.node, volume)

    def _record(
        self,
        call: _Call,
        status: int | None,
        code: Any,
        message: str,
    ) -> None:
        """Put the call into the job's timeline and report it to the observer.

        ``status`` None: there is no response, and ``message`` says why.
        """
        exchange = Exchange(
            node=self.node,
            method=call.request.method,
            path=call.path,
            seconds=round(time.monotonic() - call.started, 4),
            trace_id=call.request.headers["x-trace-id"],
            http=status,
            code=code,
            message=shorten(message, peer_response.LONGEST_MESSAGE),
        )
        record_exchange(exchange)
        self._connections.observe(exchange)

    def _read(
        self,
        call: _Call,
        response: Response,
    ) -> tuple[int, Any]:
        """Return HTTP status and JSON object (or `Page`) of a response.

        Raises `PeerUnreachable` if a relay got no response, if the peer is not available now, and
        for an unproven response.
        """
        status = response.status
        body = self._plain_body(call, response)
        content = peer_response.read_json(body)
        envelope = as_mapping(content)
        page = None
        if not isinstance(content, Mapping):
            page = page_of(
                status,
                response.headers,
                body,
                len(call.request.body),
            )
        self._record(
            call,
            status,
            peer_response.shown_code(envelope),
            message_of(envelope),
        )
        _check_target(call, envelope)
        if status in _UNAVAILABLE:
            raise peer_response.unavailable(call.speaker, status, envelope, page)
        self._check_signature(call, response, envelope)
        if page is not None:
            return status, page
        control_sealing.check_response(
            call.seal,
            self.node,
            response,
            envelope,
            is_success=_is_success(status, envelope),
        )
        if call.seal is not None and not control_sealing.is_sealed_response(response):
            # A refusal in clear: the seal does not prove it, so that a signature has to.
            self._require_signature(call, response, envelope)
        return status, content

    def _plain_body(self, call: _Call, response: Response) -> bytes:
        """Return the body of a response, opened if it is sealed.

        Raises `PeerUnreachable` for a seal that does not fit the request: something on the way has
        answered.
        """
        try:
            return control_sealing.plain_body(call.seal, response)
        except NotAllowed as error:
            self._record(call, response.status, None, error.message)
            text = f"the answer of {self.node} is not proven to be its own: {error.message}"
            raise PeerUnreachable(text, reason=error.reason) from error

    def _check_signature(
        self, call: _Call, response: Response, envelope: Mapping[str, Any]
    ) -> None:
        """Check the signature of a response as the route demands.

        Raises `PeerUnreachable` if the response is not proven to be the peer's.
        """
        keys = call.route.keys
        signature = response.headers.get("x-auth-sign", "")
        can_be_checked = bool(keys) and bool(signature)
        # Signed although the route does not require it: then the signature must be right.
        is_signed_anyway = can_be_checked and call.route.signing_mode == "accepted"
        if call.must_be_proven or is_signed_anyway:
            self._require_signature(call, response, envelope)

    def _require_signature(
        self, call: _Call, response: Response, envelope: Mapping[str, Any]
    ) -> None:
        """Raise `PeerUnreachable` unless the peer has signed the response to this call."""
        keys = call.route.keys
        signature = response.headers.get("x-auth-sign", "")
        signed = SignableResponse(response.status, digest(response.body), call.signable)
        try:
            signatures.check_response(signed, signature, call.request.headers["x-nonce"], keys)
        except NotAllowed as error:
            date = response.headers.get("date", "")
            raise peer_response.unproven(call.speaker, envelope, error.message, date) from error

    @_name_node
    def invoke(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
    ) -> tuple[int, bytes]:
        """Post to the peer's transport layer; return HTTP status and body.

        Raises `PeerUnreachable`.
        """
        route = self._route.channel
        timeout = min(route.deadline, LONGEST_CALL)
        if is_grpc(route.url):
            tls = context(route.identity)
            try:
                return call_once(route.url, route.identity, tls, path, body, headers, timeout)
            except (OSError, GrpcMissing) as error:
                raise PeerUnreachable(f"no answer from {route.url}: {error}") from error
        client = self._connections.to(route.url, route.identity)
        try:
            response = client.send(Request("POST", path, headers, body), timeout)
        except (NotConnected, NoResponse) as error:
            raise PeerUnreachable(f"no answer from {route.url}: {error}") from error
        self._count(body, response.body)
        return response.status, response.body

    def other_profile(self, status: int, response: Any) -> str:
        """Return the profile that a response reveals although the peer's route says `spec`.

        Empty if it reveals none, or if the route names another profile.
        """
        if self.profile.name != "spec" or status != 200:
            return ""
        body = as_mapping(response)
        words = str(body.get("message") or body.get("msg") or "")
        return reveal_profile(code_of(body), words)

    @_name_node
    def check_profile(self) -> None:
        """Refuse a peer that speaks another dialect than its route says.

        Each peer is asked once at each URL. A peer with keys in its route signs as the standard has
        it and is not asked. Raises `Refused` (PROFILE_MISMATCH) and `PeerUnreachable`, both before
        anything of a job was sent.
        """
        route = self._route
        address = (self.node, route.url)
        needs_check = route.profile == "spec" and not route.keys
        if not needs_check or address in self._connections.profile_checked:
            return
        exchanges: list[Exchange] = []
        try:
            with collecting_exchanges() as exchanges:  # kept out of the job's timeline
                status, response = self.raw("POST", "/task/poll", PROFILE_QUESTION)
        except PeerUnreachable as error:
            if not error.delivered:  # the next request will fail too, and report it
                return
            for exchange in exchanges:  # the timeline has to show why the job's call fails
                record_exchange(exchange)
            # Nothing of a job was sent, so nothing of a job can have been delivered.
            failed = PeerUnreachable(
                error.message,
                delivered=False,
                reason=error.reason,
            )
            failed.skew = error.skew
            raise failed from error
        profile = self.other_profile(status, response)
        if profile:
            message = str(as_mapping(response).get("message") or "")
            raise peer_response.profile_mismatch(self.node, profile, message)
        if isinstance(response, Mapping):
            self._connections.profile_checked.add(address)

    def _lacks_path(self, status: int, response: Any) -> bool:
        """True if nothing is served at a path; False if it is served, even if it refused.

        Web frameworks respond with 404, or with 405 if a pattern of other paths fits. A refusal by
        a path of the protocol has a reason of its own, or HTTP 200.
        """
        body = as_mapping(response)
        reason = as_mapping(body.get("data")).get("reason")
        if reason:
            return reason in ("PATH_UNKNOWN", "METHOD_NOT_ALLOWED")
        if status in _NO_SUCH_PATH:
            return True
        code = self.profile.unknown_path_code
        return code is not None and code_of(body) == code

    def _data(
        self,
        path: str,
        status: int,
        body: Any,
    ) -> Mapping[str, Any]:
        """Return a response's data, with the fields next to it; missing data counts as empty.

        A success has HTTP 2xx and code 0 or 200. Any other response is raised as a refusal, with
        the text in its ``msg`` or ``message``.
        """
        if isinstance(body, Page):
            raise body.refusal(self.node)
        if not _is_success(status, body):
            raise self._refusal(path, status, body)
        fields = {name: value for name, value in body.items() if name not in _ENVELOPE_FIELDS}
        return {**fields, **as_mapping(body.get("data"))}

    def _refusal(
        self,
        path: str,
        status: int,
        body: Mapping[str, Any],
    ) -> GatewayError:
        """Return the error of a response without a success code."""
        speaker = self.node
        relayed = relay_response(body)
        if relayed is not None:
            speaker = f"{relayed.relay}, which answers in the place of {self.node}"
        hint = self.profile.missing_paths_hint
        is_unknown_path = code_of(body) == self.profile.unknown_path_code
        # As in `reveal_profile`: with a 404 in its text, the peer serves no path of the standard.
        if hint and is_unknown_path and "404" in message_of(body):
            return peer_response.path_not_served(speaker, body, hint)
        profile = self.other_profile(status, body)
        if profile:
            # The next `check_profile` has to ask the peer again.
            self._connections.profile_checked.discard((self.node, self._route.url))
            return peer_response.profile_mismatch(speaker, profile, message_of(body))
        return peer_response.refusal(speaker, path, body)


def _is_success(status: int, envelope: Mapping[str, Any]) -> bool:
    """True for HTTP 2xx with code 0 or 200."""
    is_http_success = 200 <= status < 300
    return is_http_success and code_of(envelope) in SUCCESS_CODES


def _check_target(call: _Call, envelope: Mapping[str, Any]) -> None:
    """Raise `PeerUnreachable` if a relay reports that the node behind it does not respond."""
    relayed = relay_response(envelope)
    if relayed is None or relayed.reason != TARGET_UNREACHABLE:
        return
    raise peer_response.target_unreachable(
        relayed.relay,
        relayed.message,
        # Nothing proves a response of a relay. So if responses must be proven, the request counts
        # as delivered, even if the relay reports that it was not.
        delivered=relayed.delivered or call.must_be_proven,
        reason=relayed.reason,
    )


def request_headers(
    source: NodeId,
    target: NodeId,
    trace_id: str = "",
) -> dict[str, str]:
    """Return all headers of one request; nonce and timestamp (ms) are fresh at every try."""
    return {
        "x-auth-sign": UNSIGNED,
        "x-csrf-protection": uuid4().hex,
        "x-source-node-id": source,
        "x-node-id": source,  # some peers read the source here instead
        "x-target-node-id": target,
        "x-nonce": str(uuid4()),
        "x-trace-id": trace_id or current_trace() or new_trace_id(),
        "x-timestamp": str(time.time_ns() // 1_000_000),
    }
