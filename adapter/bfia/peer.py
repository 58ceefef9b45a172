"""One request to a peer over HTTP, and what its answer means.

A call is made once. Who repeats it, and when, is the scheduler's to decide, by whether repeating is safe; here
a failure only becomes an exception that says whether the request can have arrived.
"""

import functools
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from adapter.bfia import headers
from adapter.bfia.extensions import Command
from adapter.bfia.profiles import SUCCESS_CODES, Profile, profile_named
from adapter.bfia.relay_protocol import NEXT_HOP_UNREACHABLE, WITHIN, told_by_relay
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
    shown,
)
from gateway.ports import as_mapping
from gateway.runtime.context import Exchange, exchanged
from route_table.live import LiveRoutes
from route_table.model import NO_IDENTITY, Identity, Route, UnknownNode

Stamp = tuple[tuple[int, int], ...]
"""what tells that a file is the one that was read: its time and size"""


def stamp(identity: Identity) -> Stamp:
    """Return what changes when a file of an identity does; a renewed certificate needs no restart."""
    files = (identity.ca, identity.certificate, identity.key)
    return tuple(_seen(Path(file)) for file in files if file is not None)


def context(identity: Identity) -> ssl.SSLContext:
    """Return the context of an identity. Raises `PeerUnreachable`, undelivered, where a file cannot be used."""
    if identity == NO_IDENTITY:
        return _usual()
    try:
        if identity.ca is None:
            made = httpx.create_ssl_context(trust_env=False)
        else:
            made = ssl.create_default_context(cafile=identity.ca)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        if identity.certificate is not None and identity.key is not None:
            made.load_cert_chain(identity.certificate, identity.key, password=lambda: "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        text = f"the certificates that the route names cannot be used: {getattr(error, 'reason', None) or error}"
        raise PeerUnreachable(text, delivered=False) from error
    return made


@functools.cache
def _usual() -> ssl.SSLContext:
    """The machine's certificate authorities; reading them takes some 20 ms of a processor, so once is enough."""
    return httpx.create_ssl_context(trust_env=False)


def asked_name(identity: Identity) -> dict[str, str]:
    """Return the extensions of a request that ask for the certificate's name where that is not the host's."""
    return {} if identity.server_name is None else {"sni_hostname": identity.server_name}


def _seen(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


INTERCONN = "/v1/interconn/schedule"

_LARGEST_ANSWER = 32 * 1024**2
"""bytes; what is longer is no answer of this protocol"""

_LONGEST_WORDS = 2000
"""characters of a peer's message that the timeline keeps"""

_LONGEST_SAID = 4000
"""characters of a peer's refusal that are read; the rest is nowhere kept, shown or searched"""

_LONGEST_REASON = 200

LONGEST_CALL = 10.0
"""Seconds of one control request, whatever the route says: the scheduler counts on it before it asks again."""


class Connections:
    """One kept-open HTTP client per peer address and TLS identity."""

    def __init__(self, observe: Callable[[Exchange], None] = lambda _: None) -> None:
        """``observe`` is told of every request, whoever makes it."""
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, Identity], tuple[Stamp, httpx.Client]] = {}
        self._former: list[httpx.Client] = []
        self.observe = observe

    def to(self, url: str, identity: Identity = NO_IDENTITY) -> httpx.Client:
        """Return the client for an address. Raises `PeerUnreachable` where the identity's files cannot be used."""
        stamp_here = stamp(identity)
        with self._lock:
            known = self._clients.get((url, identity))
            if known is not None and known[0] == stamp_here:
                return known[1]
            limits = httpx.Limits(max_connections=32, max_keepalive_connections=8, keepalive_expiry=4)
            verify = context(identity if url.startswith("https") else NO_IDENTITY)
            client = httpx.Client(base_url=url, limits=limits, trust_env=False, verify=verify)
            if known is not None:
                self._former.append(known[1])  # calls may be under way in it
            self._clients[url, identity] = (stamp_here, client)
            return client

    def close(self) -> None:
        """Close every client, those of former certificates too; calls under way in them fail."""
        with self._lock:
            for client in (*(client for _, client in self._clients.values()), *self._former):
                client.close()
            self._clients.clear()
            self._former.clear()


class Peer:
    """One peer, as its route describes it at the moment of the call. Raises `Refused` and `PeerUnreachable`."""

    def __init__(
        self,
        me: NodeId,
        node: NodeId,
        routes: LiveRoutes,
        connections: Connections,
        sign: Callable[[NodeId], Mapping[str, str]] = lambda node: {},
    ) -> None:
        """``sign`` returns further headers for a request to a node, made anew for each."""
        self._me = me
        self._sign = sign
        self._node = node
        self._routes = routes
        self._connections = connections

    @property
    def _route(self) -> Route:
        try:
            return self._routes.resolve(self._node)
        except UnknownNode as error:
            raise Refused(str(error), reason="NODE_UNKNOWN") from error

    @property
    def profile(self) -> Profile:
        """In which spelling the peer speaks and hears, by its route."""
        return profile_named(self._route.profile)

    def post(self, path: str, body: Mapping[str, Any], patience: float = 1.0) -> Mapping[str, Any]:
        """Post and return ``data``; ``patience`` multiplies the time that the route gives a call."""
        return self.call("POST", path, body, patience=patience)

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *,
        query: Mapping[str, str] | None = None,
        patience: float = 1.0,
        needed: str = "",
    ) -> Mapping[str, Any]:
        """Make a request and return ``data``, with what stands beside it; an empty one where there is none.

        Raises `PeerUnreachable`, and for every answer but success `Refused`, `NotFound`, `NotAllowed` or
        `Invalid`. Where something is ``needed``, named for people, a success that brings no object at all is
        `Refused`, too (NO_ENVELOPE).
        """
        status, answer = self._answer(method, path, body, query, patience)
        data = self._data(status, answer)
        if needed and not data and not isinstance(answer.get("data"), Mapping):
            raise Refused(f"{self._node} answers a success without {needed}", reason="NO_ENVELOPE")
        return data

    def ask(self, command: Command, body: Mapping[str, Any], *, patience: float = 1.0) -> Mapping[str, Any]:
        """Make a request that is an extension of ours. Raises `NotServed` where the peer has no such path."""
        status, answer = self._answer("POST", command.path, body, None, patience)
        if self._knows_no_path(status, answer):
            raise NotServed(f"{self._node} does not serve {command.path}, an extension: {command.without}")
        return self._data(status, answer)

    def raw(self, method: str, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Make a request and return HTTP status and JSON, whatever they say. Raises `PeerUnreachable`."""
        return self._answer(method, path, body, None, 1.0)

    def send(
        self, path: str, body: Mapping[str, Any], more: Mapping[str, str], patience: float
    ) -> tuple[int, Any]:
        """Post to a path of another protocol, with its own headers; return HTTP status and JSON."""
        return self._answer("POST", path, body, None, patience, more)

    def _answer(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        query: Mapping[str, str] | None,
        patience: float,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[int, Any]:
        """Make one request; return HTTP status and what the answer's JSON says. Raises `PeerUnreachable`."""
        route = self._route
        full = path if path.startswith(("/v1/", "/v2/", "/health/")) else INTERCONN + path
        seconds = min(route.deadline, LONGEST_CALL) * patience
        client = self._connections.to(route.url, route.identity)
        within = {WITHIN: str(int(seconds * 1000))} if route.via else {}
        proof = more or self._sign(self._node)
        sent = {"content-type": "application/json", **headers.outgoing(self._me, self._node), **within, **proof}
        request = client.build_request(
            method,
            full,
            content=json.dumps(body, ensure_ascii=False).encode(),
            params=query,
            headers=sent,
            extensions=asked_name(route.identity),
            timeout=httpx.Timeout(seconds, connect=min(3.0, seconds), pool=min(1.0, seconds)),
        )
        began = time.monotonic()

        def tell(http: int | None, code: Any, said: str) -> None:
            lasted = round(time.monotonic() - began, 4)
            trace = request.headers["x-trace-id"]
            made = Exchange(self._node, method, full, lasted, trace, http, code, _short(said))
            exchanged(made)
            self._connections.observe(made)

        try:
            status, content = self._exchange(client, request, seconds)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            tell(None, None, f"cannot connect: {error}")
            raise PeerUnreachable(
                f"cannot connect to {_called(route)} at {route.url}: {error}",
                delivered=False,
                reason=NEXT_HOP_UNREACHABLE if route.via else None,
            ) from error
        except httpx.HTTPError as error:
            what = type(error).__name__
            tell(None, None, f"no answer: {what} {error}")
            raise PeerUnreachable(
                f"no answer from {_called(route)} at {route.url}: {what} {error}",
                reason=NEXT_HOP_UNREACHABLE if route.via else None,
            ) from error
        answer = _json(content)
        envelope = as_mapping(answer)
        tell(status, _shown(envelope.get("code")), str(envelope.get("msg") or envelope.get("message") or ""))
        beyond = told_by_relay(envelope)
        if beyond is not None and beyond.silent:
            raise PeerUnreachable(
                f"next hop {beyond.relay}: {_cut(beyond.message)}",
                delivered=beyond.delivered,
                reason=beyond.reason,
            )
        if status in (429, 502, 503, 504):
            raise PeerUnreachable(f"{_called(route)} at {route.url} answers HTTP {status}")
        return status, answer

    def _exchange(self, client: httpx.Client, request: httpx.Request, seconds: float) -> tuple[int, bytes]:
        """Return status and body of the answer; the client's own timeouts are for one read each, this for all."""
        end = time.monotonic() + seconds
        answer = client.send(request, stream=True)
        content = bytearray()
        try:
            for chunk in answer.iter_bytes():
                content += chunk
                if len(content) > _LARGEST_ANSWER:
                    return answer.status_code, b""
                if time.monotonic() > end:
                    raise httpx.ReadTimeout("the answer does not end", request=request)
        finally:
            answer.close()
        return answer.status_code, bytes(content)

    def _knows_no_path(self, status: int, answer: Any) -> bool:
        """Say whether an answer means that nothing is served there, rather than that something said no.

        Web frameworks answer 404, or 405 where a pattern of other paths fits; what was refused by a path of the
        protocol has a reason of its own, or HTTP 200.
        """
        body = as_mapping(answer)
        reason = as_mapping(body.get("data")).get("reason")
        if reason:
            return reason in ("PATH_UNKNOWN", "METHOD_NOT_ALLOWED")
        code = self.profile.unknown_path_code
        return status in (404, 405, 501) or (code is not None and _number(body.get("code")) == code)

    def _data(self, status: int, body: Any) -> Mapping[str, Any]:
        """Read an answer: success code 0 or 200, error text ``msg`` or ``message``, missing data as empty."""
        if not isinstance(body, Mapping):
            text = f"{self._node} answers HTTP {status} without a JSON object"
            raise Refused(text, reason="NO_ENVELOPE")
        code = body.get("code")
        number = _number(code)
        data = body.get("data")
        if number in SUCCESS_CODES and 200 <= status < 300:
            beside = {k: v for k, v in body.items() if k not in ("code", "msg", "message", "data")}
            return {**beside, **as_mapping(data)}
        said = _cut(body.get("msg") or body.get("message") or f"code {code}")
        beyond = told_by_relay(body)
        speaker = f"{beyond.relay}, which answers in the place of {self._node}" if beyond else self._node
        hint = self.profile.without_paths
        if hint and number == self.profile.unknown_path_code and "404" in said:
            raise Refused(f"{speaker} does not serve this path ({said}): {hint}", reason="NOT_SERVED_THERE")
        raise _refusal(f"{speaker}: {said}", number, as_mapping(data))


def _called(route: Route) -> str:
    """Say who is called for a node."""
    return f"next hop {route.via} of {route.node}" if route.via else route.node


def _short(text: str, longest: int = _LONGEST_WORDS) -> str:
    """Return a peer's words, cut where they have no end."""
    return text[:longest] + ("…" if len(text) > longest else "")


def _cut(said: Any) -> str:
    """Return a text of a refusal as far as it is read."""
    return _short(said if isinstance(said, str) else str(said), _LONGEST_SAID)


def _shown(code: Any) -> Any:
    """Return a code as it was given; what is no number or text, or an endless one, as a short text."""
    small = isinstance(code, int) and abs(code) < 2**53
    return code if code is None or small else _short(str(code)[:100])


def _json(content: bytes) -> Any:
    """Read JSON; None for what is none. Halves of surrogate pairs, which no database holds, become ``?``."""
    try:
        return json.loads(json.dumps(json.loads(content), ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _number(code: Any) -> int | None:
    """Read a code, a number or its text; None for what is neither."""
    if isinstance(code, int) and not isinstance(code, bool):
        return code
    return int(code) if isinstance(code, str) and re.fullmatch(r"-?[0-9]{1,9}", code) else None


def _refusal(said: str, code: int | None, data: Mapping[str, Any]) -> GatewayError:
    """Return a refusal as the error that it was at the peer; one that names no reason of its own just refuses."""
    reason = data.get("reason")
    if not isinstance(reason, str) or not reason:
        return Refused(said)
    reason = _short(reason, _LONGEST_REASON)
    problems = _problems(data.get("problems"))
    if code == Invalid.code and problems:
        return Invalid(problems, reason=reason)
    kind = {NotAllowed.code: NotAllowed, NotFound.code: NotFound}.get(code or 0, Refused)
    return kind(said, reason=reason)


def _problems(found: Any) -> list[Problem]:
    entries = found if isinstance(found, list) else []
    return [
        Problem(str(shown(entry.get("path") or "")), str(shown(entry.get("rule") or "")), shown(entry.get("got")))
        for entry in entries[: MOST_PROBLEMS + 1]
        if isinstance(entry, Mapping)
    ]
