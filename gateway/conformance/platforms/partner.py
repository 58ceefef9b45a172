"""The partner that the check plays for the node: it records requests and answers as told."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from adapter.bfia.channel.codec import INVOKE, NOT_FOUND, TRANSPORT
from gateway.conformance.platforms.findings import Evidence, Exchange
from gateway.identity.keys import KeyPair
from gateway.identity.signatures import (
    Signable,
    SignableResponse,
    digest,
    headers,
    nonce_of,
    sign,
)

LARGEST_REQUEST = 8 << 20  # bytes of a request's body that are read
_SUCCESS = {"code": 0, "msg": "success", "data": {}}


@dataclass(frozen=True)
class Received:
    """One request of the node."""

    method: str
    path: str
    query_text: str  # as sent
    headers: Mapping[str, str]  # names in lower case
    content: bytes
    at: float  # when it came, by time.monotonic

    @property
    def query(self) -> dict[str, str]:
        """The values of the query by name."""
        return dict(parse_qsl(self.query_text))

    @property
    def target(self) -> str:
        """The path and the query, as sent."""
        if self.query_text:
            return f"{self.path}?{self.query_text}"
        return self.path

    @property
    def body(self) -> dict[str, Any]:
        """The body as a JSON object; empty for any other body."""
        try:
            value = json.loads(self.content or b"{}")
        except (ValueError, RecursionError):
            return {}
        if isinstance(value, dict):
            return value
        return {}

    def names(self, field_name: str, value: str) -> bool:
        """Return whether the request names a value, in its body or in its query."""
        return value in (self.body.get(field_name), self.query.get(field_name))


@dataclass(frozen=True)
class Reply:
    """A response of the partner."""

    body: Mapping[str, Any] = field(default_factory=lambda: _SUCCESS)
    status: int = 200
    # Seconds before the response is written.
    delay: float = 0.0
    # Whether the connection is closed without a response.
    hangs_up: bool = False


Answering = Callable[[Received], Reply]


def refusal(text: str, code: int = 400) -> Reply:
    """Return a refusal in the standard's envelope."""
    return Reply({"code": code, "msg": text, "data": {}})


def success(**data: Any) -> Reply:
    """Return a success with some data."""
    return Reply(_SUCCESS | {"data": data})


def _refuse_message(_: Received) -> Reply:
    """Refuse a message of a container."""
    return Reply({"code": NOT_FOUND, "message": "the check takes no message now"})


# The check's transport takes messages only while a clause waits for some.
_REFUSED: Mapping[str, Answering] = dict.fromkeys((INVOKE, TRANSPORT), _refuse_message)


class Partner:
    """Records the node's requests; answers each path as a scenario says, else with a success."""

    def __init__(
        self,
        address: tuple[str, int],
        evidence: Evidence,
        key: KeyPair | None = None,
    ) -> None:
        """Listen at an address; port 0 takes any free port. Raises `OSError`.

        ``key`` signs the responses to signed requests.
        """
        self.key = key
        self.requests: list[Received] = []
        self._evidence = evidence
        self._answers: dict[str, Answering] = dict(_REFUSED)
        self._news = threading.Condition()
        self._server = _Server(address, self)
        thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            daemon=True,
        )
        thread.start()

    @property
    def port(self) -> int:
        """The port at which the partner listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, answering: Answering) -> None:
        """Answer the requests to a path by a function, from now on."""
        with self._news:
            self._answers[path] = answering

    def reset(self) -> None:
        """Answer as at first: messages of containers with a refusal, the rest with a success.

        The recorded requests stay.
        """
        with self._news:
            self._answers = dict(_REFUSED)

    def matching(self, path: str, **fields: str) -> list[Received]:
        """Return the requests to a path that name all these values."""
        with self._news:
            requests = [request for request in self.requests if request.path == path]
        return [
            request
            for request in requests
            if all(request.names(name, value) for name, value in fields.items())
        ]

    def wait_for(
        self,
        path: str,
        seconds: float,
        count: int = 1,
        **fields: str,
    ) -> list[Received]:
        """Wait until ``count`` requests to a path name these values; return the requests so far."""
        deadline = time.monotonic() + seconds
        while True:
            requests = self.matching(path, **fields)
            remaining = deadline - time.monotonic()
            if len(requests) >= count or remaining <= 0:
                return requests
            with self._news:
                self._news.wait(min(remaining, 0.2))

    def wait_for_request(self, seconds: float) -> None:
        """Wait for any request, at most some seconds."""
        with self._news:
            self._news.wait(min(seconds, 0.2))

    def receive(self, request: Received) -> Reply:
        """Record a request; return the reply that it gets."""
        with self._news:
            self.requests.append(request)
            answering = self._answers.get(request.path)
            self._news.notify_all()
        if answering is None:
            return Reply()
        return answering(request)

    def record(self, request: Received, reply: Reply) -> None:
        """Record a request and its reply, for the report."""
        content = json.dumps(reply.body).encode()
        exchange = Exchange(
            to_node=False,
            method=request.method,
            target=request.target,
            sent_headers=request.headers,
            sent=request.content,
            status=None if reply.hangs_up else reply.status,
            received=b"" if reply.hangs_up else content,
            failure="the check closed the connection" if reply.hangs_up else "",
        )
        self._evidence.add(exchange)


class _Handler(BaseHTTPRequestHandler):
    """Reads one request and writes the partner's reply."""

    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds for a silent connection

    def answer(self) -> None:
        """Serve a request."""
        length = min(int(self.headers.get("content-length") or 0), LARGEST_REQUEST)
        parts = urlsplit(self.path)
        request = Received(
            method=self.command,
            path=parts.path,
            query_text=parts.query,
            headers={name.lower(): value for name, value in self.headers.items()},
            content=self.rfile.read(length),
            at=time.monotonic(),
        )
        server = self.server
        assert isinstance(server, _Server)
        partner = server.partner
        reply = partner.receive(request)
        partner.record(request, reply)
        if reply.delay:
            time.sleep(reply.delay)
        if reply.hangs_up:
            self.close_connection = True
            return
        content = json.dumps(reply.body).encode()
        self._write(
            reply.status,
            content,
            _signature_headers(partner.key, request, reply.status, content),
        )

    do_GET = do_POST = answer

    def _write(
        self,
        status: int,
        content: bytes,
        signature: Mapping[str, str],
    ) -> None:
        """Write a response; ``signature``: its headers with a signature."""
        headers = {
            "content-type": "application/json",
            "content-length": str(len(content)),
            **signature,
        }
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the report holds the exchanges."""


def _signature_headers(
    key: KeyPair | None,
    request: Received,
    status: int,
    content: bytes,
) -> dict[str, str]:
    """Return the headers that sign a response; none for an unsigned request, or without a key."""
    nonce = nonce_of(request.headers.get("x-auth-sign", ""))
    if key is None or not nonce:
        return {}
    signed_request = Signable(
        method=request.method,
        path=request.path,
        query=request.query_text,
        digest=digest(request.content),
        source=request.headers.get("x-source-node-id", ""),
        target=request.headers.get("x-target-node-id", ""),
    )
    response = SignableResponse(status, digest(content), signed_request)
    signature = sign(
        key,
        response,
        nonce,
        int(time.time()),
    )
    return headers(response, signature)


class _Server(ThreadingHTTPServer):
    """The server of a partner."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], partner: Partner) -> None:
        super().__init__(address, _Handler)
        self.partner = partner

    def handle_error(self, *_: Any) -> None:
        """Ignore failures of connections: a checked node may hang up."""
