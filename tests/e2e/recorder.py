"""A loopback proxy that writes down every request on its way between two nodes."""

import http.client
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Seen:
    to: str
    path: str
    body: Any
    headers: dict[str, str]
    raw: bytes
    answer: Any = None


@dataclass
class Recorder:
    """Forwards to one node; ``seen`` is shared by all recorders of a test."""

    name: str
    target: str
    seen: list[Seen] = field(default_factory=list)

    def __enter__(self) -> "Recorder":
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                to = urlsplit(recorder.target)
                connection = http.client.HTTPConnection(to.hostname or "", to.port, timeout=130)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
                try:
                    connection.request(self.command, self.path, raw, headers)
                    answer = connection.getresponse()
                    content = answer.read()
                except OSError:
                    self.close_connection = True
                    return
                finally:
                    connection.close()
                recorder.seen.append(
                    Seen(
                        recorder.name,
                        self.path,
                        _json(raw),
                        {k.lower(): v for k, v in self.headers.items()},
                        raw,
                        _json(content),
                    )
                )
                self.send_response(answer.status)
                self.send_header("content-type", answer.getheader("content-type") or "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None
