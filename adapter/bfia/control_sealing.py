"""Seals the bodies of control requests and of their responses, if the route says so.

A request is sealed before it is signed: so its signature is that of any other request, is checked
before anything is opened, and its nonce refuses repetitions. A response is sealed and signed in the
same order. A relay passes both on, as it reads only headers. See docs/sealing.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapter.bfia.channel.codec import CHANNEL
from adapter.bfia.connections import Response
from adapter.bfia.paths import NEVER_SIGNED, NODE, ROOT, SCHEDULE
from adapter.bfia.peer_response import message_of, reason_of
from adapter.body import JsonRequest
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.errors import Invalid, NotAllowed, Refused
from gateway.identity.request_seals import (
    CONTENT_TYPE,
    SEAL,
    SEAL_KEY,
    SESSION,
    CoveredHeaders,
    RequestSeal,
    read_number,
)
from gateway.identity.sealing import SEAL_WRONG, SEALING_KEY_MISSING
from gateway.identity.seals import Seals
from gateway.identity.signatures import Signable, nonce_of
from route_table.model import Route

CONTROL_SEALING_REQUIRED = "CONTROL_SEALING_REQUIRED"
ANSWER_NOT_SEALED = "ANSWER_NOT_SEALED"

# Paths that are never sealed: nodes exchange keys at them, or test a route to find out whether the
# keys fit.
_NEVER_SEALED = NEVER_SIGNED | {f"{NODE}/update", f"{SCHEDULE}/node/hello"}
_JSON = "application/json"
_STATE = "request_seal"  # name in a request's state of the `RequestSeal` that has opened it
# Reasons with which a peer that cannot open a request refuses it: its body is not JSON.
_NOT_UNDERSTOOD = ("", "INVALID", "MEDIA_TYPE")


def may_be_sealed(path: str) -> bool:
    """True for a path between nodes whose requests are sealed if the route says so."""
    is_control = path.startswith(f"{ROOT}/") and not path.startswith(CHANNEL)
    return is_control and path not in _NEVER_SEALED


def is_sealed(request: Request) -> bool:
    """True if a control request has a seal, valid or not."""
    return SEAL_KEY in request.headers


# ---------------------------------------------------------------- calling


def seal_for(
    seals: Seals | None,
    route: Route,
    signable: Signable,
    headers: Mapping[str, str],
) -> RequestSeal | None:
    """Return the seal of a request; None if the route says that it is sent unsealed.

    ``headers`` are the request's so far. Raises `NotAllowed` if the request has to be sealed, and a
    key is missing.
    """
    if not route.seals_control or not may_be_sealed(signable.path):
        return None
    if seals is None or not route.sealing_key:
        text = (
            f"control requests for node {route.node} have to be sealed, and its route has no "
            "sealing_key: accept its present invitation (bfia-gateway partner accept --replace), "
            f"or: bfia-gateway route edit {route.node} --control-sealing off"
        )
        raise NotAllowed(text, reason=SEALING_KEY_MISSING)
    message = seals.begin(route.node, route.sealing_key, SESSION)
    covered = CoveredHeaders(
        method=signable.method,
        path=signable.path,
        query=signable.query,
        source=signable.source,
        target=signable.target,
        nonce=headers["x-nonce"],
        timestamp=headers["x-timestamp"],
        permits=headers.get("x-mprac-token-set", ""),
    )
    return RequestSeal(message.key, message.sequence, covered)


def plain_body(seal: RequestSeal | None, response: Response) -> bytes:
    """Return the body of a response, opened if it is sealed.

    ``seal`` is the request's; None if the request was not sealed. Raises `NotAllowed` for a seal
    that does not fit.
    """
    if seal is None or not is_sealed_response(response):
        return response.body
    return seal.open_response(response.status, response.body)


def check_response(
    seal: RequestSeal | None,
    node: NodeId,
    response: Response,
    envelope: Mapping[str, Any],
    *,
    is_success: bool,
) -> None:
    """Raise `Refused` for an unsealed response that the peer must have sealed.

    ``envelope``: the fields of the response. Without a seal, only a refusal is accepted that says
    why the request was not opened; a peer that knows no sealed requests complains of their form.
    """
    if seal is None or is_sealed_response(response):
        return
    is_understood = str(reason_of(envelope) or "") not in _NOT_UNDERSTOOD
    if is_understood and not is_success:
        return
    words = message_of(envelope) or f"HTTP {response.status}"
    text = (
        f"{node} answers a sealed request unsealed ({words}): its version opens no sealed control "
        "requests, or something on the way answers in its place; until it is updated: "
        f"bfia-gateway route edit {node} --control-sealing off"
    )
    raise Refused(text, reason=ANSWER_NOT_SEALED)


def is_sealed_response(response: Response) -> bool:
    """True if a response has a sealed body."""
    return response.headers.get("content-type", "") == CONTENT_TYPE


# ---------------------------------------------------------------- serving


@dataclass(frozen=True)
class RequestOpener:
    """Opens sealed control requests, and refuses unsealed ones where the route requires seals."""

    node: NodeId  # this node
    seals: Seals | None  # None: this node opens no seals

    def refuse_unsealed(self, request: Request, route: Route) -> None:
        """Raise `NotAllowed` if the requests of a route's node have to be sealed."""
        if route.control_sealing != "required" or not may_be_sealed(request.url.path):
            return
        text = (
            f"control requests of node {route.node} have to be sealed: have its admin run "
            f"bfia-gateway route edit {self.node} --control-sealing required, or here: "
            f"bfia-gateway route edit {route.node} --control-sealing accepted"
        )
        raise NotAllowed(text, reason=CONTROL_SEALING_REQUIRED)

    async def open(
        self,
        request: Request,
        route: Route,
        signable: Signable,
        signature: str,
    ) -> None:
        """Replace the body of a sealed request, which has arrived, by the plain one.

        ``signature`` is the header, which was found valid. Does nothing for an unsealed request
        that is accepted. Raises `NotAllowed` and `Invalid`.
        """
        if not is_sealed(request):
            self.refuse_unsealed(request, route)
            return
        has_path = may_be_sealed(signable.path)
        if self.seals is None or not has_path or not isinstance(request, JsonRequest):
            raise Invalid([Problem(SEAL_KEY, "is not served here: send the request unsealed")])
        seal = self._seal_of(self.seals, request, route, signable)
        if seal.covered.nonce != nonce_of(signature):
            text = "x-nonce is not the nonce of the request's signature"
            raise NotAllowed(text, reason=SEAL_WRONG)
        body = await request.body()
        if len(body) > seal.key.quick_bytes:
            plain = await to_thread.run_sync(seal.open, body)
        else:
            plain = seal.open(body)
        request.replace_body(plain, _JSON)
        request.scope.setdefault("state", {})[_STATE] = seal

    def _seal_of(
        self,
        seals: Seals,
        request: Request,
        route: Route,
        signable: Signable,
    ) -> RequestSeal:
        """Return the seal of a request. Raises `NotAllowed` for a key that does not fit."""
        headers = request.headers
        key = seals.received_key(headers[SEAL_KEY], signable.source, SESSION, route.keys)
        covered = CoveredHeaders(
            method=signable.method,
            path=signable.path,
            query=signable.query,
            source=signable.source,
            target=signable.target,
            nonce=headers.get("x-nonce", ""),
            timestamp=headers.get("x-timestamp", ""),
            permits=headers.get("x-mprac-token-set", ""),
        )
        return RequestSeal(key, read_number(headers.get(SEAL, "")), covered)


def with_sealed_responses(app: ASGIApp) -> ASGIApp:
    """Seal the responses of another application to the sealed requests that were opened."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_sealed(Request(scope)):
            await app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        await app(scope, receive, _SealedResponse(state, send).send)

    return serve


class _SealedResponse:
    """Collects a response, seals it if its request was opened, and sends it."""

    def __init__(self, state: Mapping[str, Any], send: Send) -> None:
        """``state`` is the request's; it has the seal once the request is opened."""
        self._state = state
        self._send = send
        self._start: Message = {}
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        """Take a message of the application; the last one sends the whole response."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._body.extend(message.get("body", b""))
        if message.get("more_body"):
            return
        body = bytes(self._body)
        seal: RequestSeal | None = self._state.get(_STATE)
        if seal is not None:
            body = await _seal_response(seal, self._start["status"], body)
            self._start["headers"] = _headers_of_sealed(self._start["headers"], len(body))
        await self._send(self._start)
        await self._send({"type": "http.response.body", "body": body})


async def _seal_response(
    seal: RequestSeal,
    status: int,
    body: bytes,
) -> bytes:
    """Return the sealed body of a response; a long one is sealed in a thread."""
    if len(body) > seal.key.quick_bytes:
        return await to_thread.run_sync(seal.seal_response, status, body)
    return seal.seal_response(status, body)


def _headers_of_sealed(
    headers: list[tuple[bytes, bytes]],
    size: int,
) -> list[tuple[bytes, bytes]]:
    """Return the headers of a response for its sealed body of ``size`` bytes."""
    replaced = (b"content-type", b"content-length")
    others = [(name, value) for name, value in headers if name.lower() not in replaced]
    return [
        *others,
        (b"content-type", CONTENT_TYPE.encode()),
        (b"content-length", str(size).encode()),
    ]
