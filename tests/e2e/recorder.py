"""A loopback proxy between nodes, as a site puts one before its gateway: it writes down every request."""

import http.client
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAMED_BY = ("dest-party-id", "x-target-node-id", "x-ptp-target-node-id")
"""headers that name the node that a request is for"""
HOP_BY_HOP = {"host", "connection", "transfer-encoding"}


@dataclass(frozen=True)
class Seen:
    """One request, and its answer."""

    to: str
    path: str
    body: Any
    headers: Mapping[str, str]
    status: int
    answer: Any


@dataclass
class Recorder:
    """Passes each request on to the port of the node that it names. Use as a context."""

    ways: dict[str, int] = field(default_factory=dict)
    """ports by node; that of the empty name takes what names none"""
    seen: list[Seen] = field(default_factory=list)

    def __enter__(self) -> "Recorder":
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {k.lower(): v for k, v in self.headers.items()}
                to = next((headers[name] for name in NAMED_BY if headers.get(name)), "")
                status, given, content = recorder.pass_on(to, self.command, self.path, raw, headers)
                recorder.seen.append(
                    Seen(to, self.path, _json(raw), headers, status, _json(content))
                )
                self.send_response(status)
                for name, value in (given | {"content-length": str(len(content))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST

            def log_message(self, *_: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def pass_on(
        self,
        to: str,
        method: str,
        path: str,
        raw: bytes,
        headers: Mapping[str, str],
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and content of the answer; 502 where there is none."""
        sent = {k: v for k, v in headers.items() if k not in HOP_BY_HOP}
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.ways[to], timeout=130)
            try:
                connection.request(method, path, raw, sent)
                answer = connection.getresponse()
                found = {name.lower(): value for name, value in answer.getheaders()}
                given = {name: found[name] for name in found.keys() - HOP_BY_HOP}
                return answer.status, given, answer.read()
            finally:
                connection.close()
        except (KeyError, OSError):
            return 502, {}, b"{}"


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")
