"""The partner that the check plays for the node: it records requests and answers as told."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gateway.conformance.platforms.findings import Evidence, Exchange

LARGEST_REQUEST = 8 << 20  # bytes of a request's body that are read
_SUCCESS = {"code": 0, "msg": "success", "data": {}}


@dataclass(frozen=True)
class Received:
    """One request of the node."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    content: bytes
    at: float  # when it came, by time.monotonic

    @property
    def body(self) -> dict[str, Any]:
        """The body as a JSON object; empty for any other body."""
        try:
            value = json.loads(self.content or b"{}")
        except ValueError:
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


class Partner:
    """Records the node's requests; answers each path as a scenario says, else with a success."""

    def __init__(self, address: tuple[str, int], evidence: Evidence) -> None:
        """Listen at an address; port 0 takes any free port. Raises `OSError`."""
        self.requests: list[Received] = []
        self._evidence = evidence
        self._answers: dict[str, Answering] = {}
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
        """Answer every request with a success again; the recorded requests stay."""
        with self._news:
            self._answers.clear()

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
        """Wait until ``count`` requests to a path name these values; return those that came."""
        deadline = time.monotonic() + seconds
        while True:
            requests = self.matching(path, **fields)
            left = deadline - time.monotonic()
            if len(requests) >= count or left <= 0:
                return requests
            with self._news:
                self._news.wait(min(left, 0.2))

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
        """Record what was answered, for the report."""
        content = json.dumps(reply.body).encode()
        target = request.path
        if request.query:
            target += "?" + "&".join(f"{name}={value}" for name, value in request.query.items())
        exchange = Exchange(
            to_node=False,
            method=request.method,
            target=target,
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
            query=dict(parse_qsl(parts.query)),
            headers={name.lower(): value for name, value in self.headers.items()},
            content=self.rfile.read(length),
            at=time.monotonic(),
        )
        server = self.server
        assert isinstance(server, _Server)
        reply = server.partner.receive(request)
        server.partner.record(request, reply)
        if reply.delay:
            time.sleep(reply.delay)
        if reply.hangs_up:
            self.close_connection = True
            return
        self._write(reply)

    do_GET = do_POST = answer

    def _write(self, reply: Reply) -> None:
        """Write a reply."""
        content = json.dumps(reply.body).encode()
        self.send_response(reply.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the report holds the exchanges."""


class _Server(ThreadingHTTPServer):
    """The server of a partner."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], partner: Partner) -> None:
        super().__init__(address, _Handler)
        self.partner = partner

    def handle_error(self, *_: Any) -> None:
        """Ignore failures of connections: a checked node may hang up."""
