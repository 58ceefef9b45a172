"""A receiver of events on loopback: remembers what it was sent, and says no as often as it is told."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.refuse = 0
        """so many requests still get status 500"""
        self.url = ""

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]

    def of(self, job_id: str) -> list[str]:
        return [e["event"] for e in self.events if e["job_id"] == job_id]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver, lock = Receiver(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with lock:
                no = receiver.refuse > 0
                receiver.refuse -= no
                if not no:
                    receiver.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(500 if no else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/events"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
