"""A proxy between the check and a node, which changes requests and responses."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from typing import Any

import httpx


def json_object(content: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; empty for any other body."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    if isinstance(value, dict):
        return value
    return {}


@dataclass(frozen=True)
class Request:
    """A request on its way."""

    method: str
    target: str
    headers: Mapping[str, str]  # names in lower case
    content: bytes

    @property
    def path(self) -> str:
        """The path without the query."""
        return self.target.partition("?")[0]

    @property
    def body(self) -> dict[str, Any]:
        """The body as a JSON object; empty for any other body."""
        return json_object(self.content)

    def with_body(self, body: Mapping[str, Any]) -> "Request":
        """Return the request with a JSON body in place of its own."""
        return replace(self, content=json.dumps(body).encode())

    def with_headers(self, **headers: str) -> "Request":
        """Return the request with some headers replaced; with underscores in place of hyphens."""
        changes = {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={**self.headers, **changes})


@dataclass(frozen=True)
class Response:
    """A response on its way."""

    status: int
    content: bytes
    content_type: str = "application/json"

    @property
    def body(self) -> dict[str, Any]:
        """The body as a JSON object; empty for any other body."""
        return json_object(self.content)


Forward = Callable[[Request], Response]
# Handles a request; it may forward it, or a changed one, or none.
Mutant = Callable[[Request, Forward], Response]


def unchanged(request: Request, forward: Forward) -> Response:
    """Pass a request on as it is."""
    return forward(request)


def answering(body: Mapping[str, Any], status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(status, json.dumps(body).encode())


def success(**data: Any) -> Response:
    """Return a success in the standard's envelope."""
    return answering({"code": 0, "msg": "success", "data": data})


def refusal(code: int = 400) -> Response:
    """Return a refusal in the standard's envelope."""
    return answering({"code": code, "msg": "refused", "data": {}})


class Proxy:
    """Passes requests to an address, through the mutant in force."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.mutant: Mutant = unchanged
        self._http = httpx.Client(trust_env=False, timeout=60)
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        thread = threading.Thread(
            target=self._server.serve_forever,
            args=(0.02,),
            daemon=True,
        )
        thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._http.close()

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Use a mutant within the block."""
        self.mutant = mutant
        try:
            yield
        finally:
            self.mutant = unchanged

    def forward(self, request: Request) -> Response:
        """Send a request to the target."""
        return self.forward_to(self.target, request)

    def forward_to(self, target: str, request: Request) -> Response:
        """Send a request to an address."""
        headers = dict(request.headers)
        for name in ("host", "content-length", "connection"):
            headers.pop(name, None)
        response = self._http.request(
            request.method,
            target + request.target,
            content=request.content,
            headers=headers,
        )
        content_type = response.headers.get("content-type", "application/json")
        return Response(response.status_code, response.content, content_type)


class AlternatingProxy(Proxy):
    """Passes each request to the next of some addresses, in turn."""

    def __init__(self, targets: Sequence[str]) -> None:
        super().__init__(targets[0])
        self._turns = cycle(targets)

    def forward(self, request: Request) -> Response:
        """Send a request to the address whose turn it is."""
        return self.forward_to(next(self._turns), request)


class _Handler(BaseHTTPRequestHandler):
    """Reads a request, and writes the response of the mutant in force."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """Serve a request."""
        server = self.server
        assert isinstance(server, _Server)
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, content)
        response = server.proxy.mutant(request, server.proxy.forward)
        self.send_response(response.status)
        self.send_header("content-type", response.content_type)
        self.send_header("content-length", str(len(response.content)))
        self.end_headers()
        self.wfile.write(response.content)

    do_GET = do_POST = answer

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    """The server of a proxy."""

    daemon_threads = True

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy

    def handle_error(self, *_: Any) -> None:
        """Ignore failures of connections: a target may hang up."""
