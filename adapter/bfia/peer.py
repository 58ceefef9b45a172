"""One request to a peer over HTTP, and what its response means.

A call is made once. Who repeats it, and when, is the scheduler's to decide, by whether repeating is safe; here
a failure only becomes an exception that says whether the request can have arrived.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import wraps
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlencode
from uuid import uuid4

from adapter.bfia.channel.calls import GrpcMissing, by_grpc, call_once
from adapter.bfia.connections import Connections, NoResponse, NotConnected, Request, context
from adapter.bfia.profiles import SUCCESS_CODES, Profile, profile_given_away, profile_named
from adapter.page import Page, page_of
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.errors import (
    MOST_PROBLEMS,
    GatewayError,
    Invalid,
    NotAllowed,
    NotFound,
    NotServed,
    PeerUnreachable,
    Refused,
    shorten,
    shown,
)
from gateway.http.peers import QUOTA
from gateway.identity import signatures
from gateway.identity.keys import KeyPair
from gateway.identity.signatures import Answer, Signable, digest, sign
from gateway.ports import as_mapping
from gateway.runtime.context import Exchange, current_trace, exchanged, listening, new_trace_id
from route_table.model import Route, UnknownNode

UNSIGNED = "unsigned"
"""the word that says so in ``x-auth-sign``"""
INTERCONN = "/v1/interconn/schedule"
JOB_AUDIT = "/v1/interconn/job/audit"
NODE = "/v1/interconn/node"
PROFILE_QUESTION = {"task_id": "which-profile", "role": ""}
"""body of the request by whose answer a peer of another profile is recognised: no node has that task"""
PROFILE_MISMATCH = "PROFILE_MISMATCH"
NEVER_SIGNED = frozenset({f"{NODE}/query", f"{NODE}/contract/apply", f"{NODE}/contract/confirm"})
"""by the standard: keys are exchanged there"""
OPTIONAL = {
    "/job/resource/apply": "it is not asked: only a party that tells of `resources` at `/job/create` is",
    "/job/resource/return": "it is not asked: it reserves nothing",
    "/job/resource/free": "not needed: whoever schedules tries again by itself",
    "/node/hello": "identity, clock, body size, latency and the way back cannot be tried; all else is",
    "/job/rerun": "it cannot be asked for there, only at the node that schedules the job (`NOT_SERVED_THERE`)",
    "/job/delete": "the job stays there; the answer of the deletion says so (`NOT_SERVED_THERE`)",
    "/job/plan": "its side of the plan is `unknown` (`NOT_SERVED_THERE`); the route to it is tried all the same",
    "/job/suspend": "refused with NOT_SERVED_THERE; nothing changes",
    "/job/resume": "refused with NOT_SERVED_THERE; nothing changes",
    "/job/parameters": "refused with NOT_SERVED_THERE; nothing changes",
    "/job/parameters/offer": "the change is refused with NOT_SERVED_THERE at every node",
    "/output/metadata": "refused with NOT_SERVED_THERE; its own people see it there",
    f"{JOB_AUDIT}/terminate": "it is not informed; the question ends with that node's own deadline",
}
"""Paths that a peer may lack, our extensions and one of the standard -> what happens there.

``docs/between-nodes.md`` lists them among all that nodes ask of each other."""
LONGEST_CALL = 10.0
"""Seconds of one control request, whatever the route says: the scheduler counts on it before it tries again."""

WITHIN = "x-relay-within"
"""milliseconds that the sender waits for the response to a control request through a relay"""
RELAY_NOT_ALLOWED = "RELAY_NOT_ALLOWED"
RELAY_LOOP = "RELAY_LOOP"
TARGET_UNREACHABLE = "TARGET_UNREACHABLE"
"""reported by the last relay: no response from the node behind it"""
RELAY_CODES = {
    RELAY_NOT_ALLOWED: (403, "E0000000403"),
    RELAY_LOOP: (508, "E0000000503"),
    "RELAY_TOO_FAR": (508, "E0000000503"),
    "RELAY_NO_ROUTE": (404, "E0000000618"),
    TARGET_UNREACHABLE: (503, "E0000000607"),
}
"""reason of a relay -> code of a control response, code of a transport response"""
NEXT_HOP_UNREACHABLE = "NEXT_HOP_UNREACHABLE"
"""reported by the sender: no response from the first relay"""

_RELAY_NODE = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,128}")
_LONGEST_MESSAGE = 2000
"""characters of a peer's message that the timeline keeps"""
_LONGEST_REFUSAL = 4000
_LONGEST_REASON = 200


T = TypeVar("T")
P = ParamSpec("P")


def _naming_its_node(
    call: Callable[Concatenate["Peer", P], T],
) -> Callable[Concatenate["Peer", P], T]:
    """Have the errors of a peer's method name its node, for what is advised to do next."""

    @wraps(call)
    def named(self: "Peer", /, *args: P.args, **options: P.kwargs) -> T:
        try:
            return call(self, *args, **options)
        except GatewayError as error:
            error.node = error.node or self.node
            raise

    return named


class Peer:
    """One peer, as its route describes it at the moment of the call. Raises `Refused` and `PeerUnreachable`."""

    def __init__(
        self,
        me: NodeId,
        node: NodeId,
        resolve: Callable[[NodeId], Route],
        connections: Connections,
        sign: Callable[[NodeId], Mapping[str, str]] = lambda node: {},
        key: Callable[[], KeyPair | None] = lambda: None,
    ) -> None:
        """``resolve`` returns a node's route, or raises `UnknownNode`; ``key`` signs requests.

        ``sign`` returns further headers for a request to a node, made anew for each.
        """
        self._me = me
        self._sign = sign
        self._key = key
        self.node = node
        self._resolve = resolve
        self._connections = connections

    @property
    def _route(self) -> Route:
        try:
            return self._resolve(self.node)
        except UnknownNode as error:
            raise Refused(str(error), reason="NODE_UNKNOWN") from error

    @property
    def takes_bundles(self) -> bool:
        """Whether the peer gets the signed bundles of jobs: it has exchanged keys with this node."""
        return bool(self._route.keys) and self._route.signed != "off"

    @property
    def profile(self) -> Profile:
        """The peer's dialect, by its route."""
        return profile_named(self._route.profile)

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        **more: Any,
    ) -> Mapping[str, Any]:
        """Post and return ``data``; ``more`` is what `raw` takes."""
        return self._data(path, *self.raw("POST", path, body, **more))

    def job_status(self, method: str, job_id: str) -> Mapping[str, Any]:
        """Request ``job/status_all`` and return ``data``, with what stands beside it; a success needs an object.

        Raises `PeerUnreachable`, and for every response but success `Refused`, `NotFound`, `NotAllowed` or
        `Invalid`.
        """
        wanted = {"job_id": job_id}
        path = "/job/status_all"
        status, answer = self.raw(method, path, wanted, query=wanted)
        data = self._data(path, status, answer)
        if not data and not isinstance(answer.get("data"), Mapping):
            raise Refused(
                f"{self.node} answers a success without a state of the job", reason="NO_ENVELOPE"
            )
        return data

    def ask(
        self,
        path: str,
        body: Mapping[str, Any],
        method: str = "POST",
        **more: Any,
    ) -> Mapping[str, Any]:
        """Make a request at an `OPTIONAL` path, or of the management layer; ``more`` is what `raw` takes.

        Raises `NotServed` where the peer has no such path.
        """
        status, answer = self.raw(method, path, body, **more)
        if self._knows_no_path(status, answer):
            known = OPTIONAL.get(path)
            why = f", an extension: {known}" if known else ": it does not have the management layer"
            raise NotServed(f"{self.node} does not serve {path}{why}")
        return self._data(path, status, answer)

    @_naming_its_node
    def raw(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *,
        query: Mapping[str, str] | None = None,
        timeout_factor: float = 1.0,
        more: Mapping[str, str] = MappingProxyType({}),
        permits: str = "",
    ) -> tuple[int, Any]:
        """Make a request; return HTTP status and JSON, whatever they say. Raises `PeerUnreachable`.

        In the place of what is not a JSON object stands a `Page`.

        ``timeout_factor`` multiplies the time that the route gives a call; ``more`` are the headers of another
        protocol, in the place of this node's signature; ``permits`` those of the peer that the request uses.
        """
        route = self._route
        full = path if path.startswith(("/v1/", "/v2/", "/health/")) else INTERCONN + path
        seconds = min(route.deadline, LONGEST_CALL) * timeout_factor
        client = self._connections.to(route.url, route.identity)
        within = {WITHIN: str(int(seconds * 1000))} if route.via else {}
        proof = more or self._sign(self.node)
        headers = {
            "content-type": "application/json",
            **request_headers(self._me, self.node),
            **within,
            **{name.lower(): value for name, value in proof.items()},
            **({"x-mprac-token-set": permits} if permits else {}),
        }
        content, asked = json.dumps(body, ensure_ascii=False).encode(), urlencode(query or {})
        signable = Signable(method, full, asked, digest(content), self._me, self.node)
        if route.signed != "off" and (pair := self._key()) is not None:
            value = sign(pair, signable, headers["x-nonce"], int(headers["x-timestamp"]) // 1000)
            made = signatures.headers(signable, value)
            if "signature" in headers:  # FATE has a header of that name
                del made["signature-input"], made["signature"]
            headers |= made
        request = Request(method, f"{full}?{asked}" if asked else full, headers, content)
        began = time.monotonic()

        def note(
            http: int | None,
            code: Any,
            message: str,
        ) -> None:
            lasted = round(time.monotonic() - began, 4)
            trace, short = headers["x-trace-id"], shorten(message, _LONGEST_MESSAGE)
            made = Exchange(self.node, method, full, lasted, trace, http, code, short)
            exchanged(made)
            self._connections.observe(made)

        called = f"next hop {route.via} of {route.node}" if route.via else route.node
        called += f" at {route.url}"
        silent = NEXT_HOP_UNREACHABLE if route.via else None
        try:
            response = client.send(request, seconds)
        except NotConnected as error:
            note(None, None, f"cannot connect: {error}")
            text = f"cannot connect to {called}: {error}"
            raise PeerUnreachable(text, delivered=False, reason=silent) from error
        except NoResponse as error:
            note(None, None, f"no answer: {error}")
            raise PeerUnreachable(f"no answer from {called}: {error}", reason=silent) from error
        status, signature = response.status, response.headers.get("x-auth-sign", "")
        answer = _json(response.body)
        envelope = as_mapping(answer)
        page = None
        if not isinstance(answer, Mapping):
            page = page_of(status, response.headers, response.body, len(content))
        note(
            status,
            _code(envelope.get("code")),
            str(envelope.get("msg") or envelope.get("message") or ""),
        )
        beyond = relayed(envelope)
        required = route.signed == "required" and full not in NEVER_SIGNED
        if beyond is not None and beyond.reason == TARGET_UNREACHABLE:
            text = f"next hop {beyond.relay}: {shorten(beyond.message, _LONGEST_REFUSAL)}"
            raise PeerUnreachable(
                text, delivered=beyond.delivered or required, reason=beyond.reason
            )
        if status in (429, 502, 503, 504):
            cause = shorten(envelope.get("msg") or envelope.get("message") or "", _LONGEST_REFUSAL)
            if page is not None:
                cause = page.seen
            reason = QUOTA if as_mapping(envelope.get("data")).get("reason") == QUOTA else None
            text = f"{called} answers HTTP {status}" + (f": {cause}" if cause else "")
            raise PeerUnreachable(text, reason=reason)
        if required or (route.signed == "accepted" and route.keys and signature):
            try:
                found = Answer(status, digest(response.body), signable)
                signatures.check_answer(found, signature, headers["x-nonce"], route.keys)
            except NotAllowed as error:
                text = shorten(
                    envelope.get("msg") or envelope.get("message") or "nothing", _LONGEST_MESSAGE
                )
                text = f"{called} says, unproven: {text}; this answer is not proven to be its own: {error.message}"
                unproven = PeerUnreachable(
                    text, reason=beyond.reason if beyond else "ANSWER_NOT_SIGNED"
                )
                if as_mapping(envelope.get("data")).get("reason") == "SIGNATURE_REFUSED":
                    unproven.skew = _skew(response.headers.get("date", ""))
                raise unproven from error
        return status, answer if page is None else page

    @_naming_its_node
    def invoke(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
    ) -> tuple[int, bytes]:
        """Post to the peer's transport layer; return HTTP status and body. Raises `PeerUnreachable`."""
        route = self._route.channel
        seconds = min(route.deadline, LONGEST_CALL)
        if by_grpc(route.url):
            try:
                verify = context(route.identity)
                return call_once(route.url, route.identity, verify, path, body, headers, seconds)
            except (OSError, GrpcMissing) as error:
                raise PeerUnreachable(f"no answer from {route.url}: {error}") from error
        client = self._connections.to(route.url, route.identity)
        try:
            response = client.send(Request("POST", path, headers, body), seconds)
        except (NotConnected, NoResponse) as error:
            raise PeerUnreachable(f"no answer from {route.url}: {error}") from error
        return response.status, response.body

    def other_profile(self, status: int, answer: Any) -> str:
        """Return the profile that an answer to a peer of the standard's own dialect gives away; empty for none."""
        body = as_mapping(answer)
        if self.profile.name != "spec" or status != 200:
            return ""
        words = str(body.get("message") or body.get("msg") or "")
        return profile_given_away(_number(body.get("code")), words)

    @_naming_its_node
    def check_profile(self) -> None:
        """Refuse a peer that speaks another dialect than its route says; each address is asked once.

        A peer with keys in its route signs as the standard has it, so that it is not asked. Raises `Refused`
        (PROFILE_MISMATCH), and `PeerUnreachable`: nothing of a job was sent yet.
        """
        route = self._route
        address = (self.node, route.url)
        if route.profile != "spec" or route.keys or address in self._connections.profile_checked:
            return
        calls: list[Exchange] = []
        try:
            with listening() as calls:  # the job's timeline need not have it
                status, answer = self.raw("POST", "/task/poll", PROFILE_QUESTION)
        except PeerUnreachable as error:
            if not error.delivered:  # what is asked next will say so
                return
            for call in calls:
                exchanged(call)
            failed = PeerUnreachable(error.message, delivered=False, reason=error.reason)
            failed.skew = error.skew
            raise failed from error
        if other := self.other_profile(status, answer):
            message = str(as_mapping(answer).get("message") or "")
            raise Refused(_other_profile(self.node, other, message), reason=PROFILE_MISMATCH)
        if isinstance(answer, Mapping):
            self._connections.profile_checked.add(address)

    def _knows_no_path(self, status: int, answer: Any) -> bool:
        """Whether a response means that nothing is served there, rather than that something was refused.

        Web frameworks respond with 404, or 405 where a pattern of other paths fits; what was refused by a path of
        the protocol has a reason of its own, or HTTP 200.
        """
        body = as_mapping(answer)
        reason = as_mapping(body.get("data")).get("reason")
        if reason:
            return reason in ("PATH_UNKNOWN", "METHOD_NOT_ALLOWED")
        code = self.profile.unknown_path_code
        return status in (404, 405, 501) or (code is not None and _number(body.get("code")) == code)

    def _data(
        self,
        path: str,
        status: int,
        body: Any,
    ) -> Mapping[str, Any]:
        """Read a response: success code 0 or 200, error text ``msg`` or ``message``, missing data as empty."""
        if isinstance(body, Page):
            raise body.refusal(self.node)
        code = body.get("code")
        number = _number(code)
        data = as_mapping(body.get("data"))
        if number in SUCCESS_CODES and 200 <= status < 300:
            return {
                **{k: v for k, v in body.items() if k not in ("code", "msg", "message", "data")},
                **data,
            }
        message = shorten(body.get("msg") or body.get("message") or "", _LONGEST_REFUSAL)
        beyond = relayed(body)
        speaker = (
            f"{beyond.relay}, which answers in the place of {self.node}" if beyond else self.node
        )
        hint = self.profile.without_paths
        if hint and number == self.profile.unknown_path_code and "404" in message:
            raise Refused(
                f"{speaker} does not serve this path ({message}): {hint}", reason="NOT_SERVED_THERE"
            )
        if other := self.other_profile(status, body):
            self._connections.profile_checked.discard((self.node, self._route.url))
            raise Refused(_other_profile(speaker, other, message), reason=PROFILE_MISMATCH)
        if isinstance(data.get("reason"), str) and data["reason"]:
            raise _refusal(f"{speaker}: {message or _code(code)}", number, data)
        if code is None:
            text = f"{speaker} refuses {path} without a code"
        else:
            text = f"{speaker} refuses {path} with code {_code(code)}"  # some write "success" beside it
        raise Refused(f"{text}: {message}" if message else text)


def _other_profile(
    speaker: str,
    profile: str,
    message: str,
) -> str:
    words = shorten(message, _LONGEST_MESSAGE)
    return f"{speaker} answers as nodes of profile {profile} do ({words}), and its route does not say so"


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
        "x-node-id": source,
        "x-target-node-id": target,
        "x-nonce": str(uuid4()),
        "x-trace-id": trace_id or current_trace() or new_trace_id(),
        "x-timestamp": str(time.time_ns() // 1_000_000),
    }


@dataclass(frozen=True)
class Relayed:
    """What a relay responded in the place of the node that was called."""

    relay: str
    reason: str
    message: str
    delivered: bool


def relayed(answer: Mapping[str, Any]) -> Relayed | None:
    """Return what a relay responded to a control request; None where the response is the node's own."""
    data = as_mapping(answer.get("data"))
    reason, relay = data.get("reason"), data.get("relay")
    if not isinstance(reason, str) or reason not in RELAY_CODES:
        return None
    if not isinstance(relay, str) or not _RELAY_NODE.fullmatch(relay):
        return None
    message = str(answer.get("msg") or answer.get("message") or "")
    return Relayed(relay, reason, message, data.get("delivered") is not False)


def _skew(date: str) -> float:
    """Return by how much a clock is ahead of this one that dates an answer so; 0 where it does not."""
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except ValueError:
        return 0.0


def _code(code: Any) -> Any:
    """Return a code as it was given; an endless one, and what is not a number or text, as a short text."""
    small = isinstance(code, int) and abs(code) < 2**53
    return code if code is None or small else shorten(str(code), 100)


def _json(content: bytes) -> Any:
    """Read JSON; None for anything else. Lone surrogates, which no database holds, become ``?``."""
    try:
        return json.loads(
            json.dumps(json.loads(content), ensure_ascii=False).encode("utf-8", "replace")
        )
    except (ValueError, RecursionError):
        return None


def _number(code: Any) -> int | None:
    if isinstance(code, int | float) and not isinstance(code, bool) and code == code // 1:
        return int(code)
    return int(code) if isinstance(code, str) and re.fullmatch(r"-?[0-9]{1,9}", code) else None


def _refusal(
    message: str,
    code: int | None,
    data: Mapping[str, Any],
) -> GatewayError:
    reason = shorten(data["reason"], _LONGEST_REASON)
    found = data.get("problems")
    problems = [
        Problem(
            shorten(one.get("path") or ""), shorten(one.get("rule") or ""), shown(one.get("got"))
        )
        for one in (found if isinstance(found, list) else [])[: MOST_PROBLEMS + 1]
        if isinstance(one, Mapping)
    ]
    if code == Invalid.code and problems:
        return Invalid(problems, reason=reason)
    if kind := {NotAllowed.code: NotAllowed, NotFound.code: NotFound}.get(code or 0):
        return kind(message, reason=reason)
    return Refused(message, reason=reason, problems=problems)
