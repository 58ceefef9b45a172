"""A loopback proxy between nodes, as sites put one before their gateways, that records requests."""

import http.client
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

# Headers with the id of the node that a request is for.
TARGET_HEADERS = ("dest-party-id", "x-target-node-id", "x-ptp-target-node-id")
HOP_BY_HOP = {"host", "connection", "transfer-encoding"}


@dataclass(frozen=True)
class Exchange:
    """One request and its response."""

    # the target node's id; empty if the request names none
    to: str
    path: str
    body: Any
    headers: Mapping[str, str]
    status: int
    response: Any


class ProxiedResponse(NamedTuple):
    """A response that is passed on."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass
class Recorder:
    """Passes each request on to the port of its target node. Use as a context."""

    # ports by node; the empty name has the one for requests without a target
    ports: dict[str, int] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)

    def __enter__(self) -> "Recorder":
        self._server = _RecordingServer(self)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        """The port of the proxy."""
        return int(self._server.server_address[1])

    def pass_on(
        self,
        target: str,
        method: str,
        path: str,
        content: bytes,
        headers: Mapping[str, str],
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request to its target; return status, headers and content of the response.

        The status is 502 if there is no response.
        """
        try:
            port = self.ports[target]
            return _send(port, method, path, content, headers)
        except (KeyError, OSError):
            return ProxiedResponse(502, {}, b"{}")


class _RecordingServer(ThreadingHTTPServer):
    daemon_threads = True
    # connections that wait to be accepted
    request_queue_size = 64

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(("127.0.0.1", 0), _RecordingHandler)
        self.recorder = recorder


class _RecordingHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _RecordingServer

    def do_POST(self) -> None:
        recorder = self.server.recorder
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        target = _target_of(headers)
        status, response_headers, response = recorder.pass_on(
            target, self.command, self.path, content, headers
        )
        # Recorded before the sender has the response, so that a test finds it.
        recorder.exchanges.append(
            Exchange(
                target,
                self.path,
                _json(content),
                headers,
                status,
                _json(response),
            )
        )
        self.send_response(status)
        for name, value in response_headers.items():
            if name != "content-length":
                self.send_header(name, value)
        self.send_header("content-length", str(len(response)))
        self.end_headers()
        self.wfile.write(response)

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def _target_of(headers: Mapping[str, str]) -> str:
    """Return the node that a request is for, "" if it names none."""
    for name in TARGET_HEADERS:
        if headers.get(name):
            return headers[name]
    return ""


def _send(
    port: int,
    method: str,
    path: str,
    content: bytes,
    headers: Mapping[str, str],
) -> ProxiedResponse:
    """Send a request to a loopback port. Raises `OSError` without a response."""
    connection = http.client.HTTPConnection(
        "127.0.0.1",
        port,
        timeout=130,
    )
    try:
        connection.request(method, path, content, _end_to_end(headers))
        response = connection.getresponse()
        response_headers = {name.lower(): value for name, value in response.getheaders()}
        return ProxiedResponse(
            response.status,
            _end_to_end(response_headers),
            response.read(),
        )
    finally:
        connection.close()


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a proxy passes on."""
    return {name: value for name, value in headers.items() if name not in HOP_BY_HOP}


def _json(content: bytes) -> Any:
    """Return the JSON value of bytes, their text if they are no JSON."""
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")
