"""A transport module and a callback endpoint on loopback, small enough to read, with faults on
demand.
"""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# The fault of a request: None lets it pass, else "reset", "lose answer", or an HTTP status or
# E-code as text.
Fault = Callable[["Request"], str | None]


class Request:
    def __init__(
        self,
        path: str,
        headers: dict[str, str],
        body: Any,
    ) -> None:
        self.path = path
        self.verb = path.rsplit("/", 1)[-1]
        self.headers = headers
        self.body = body


class Loopback:
    """Holds queues by (session, topic); a pop with an id it has seen gets the same message
    again.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.callbacks: list[dict[str, Any]] = []
        self.fault: Fault = lambda request: None
        self.callback_answer: tuple[int, Any] = (
            200,
            {
                "code": 0,
                "msg": "success",
                "data": {},
            },
        )
        self.listening = False
        self._changed = threading.Condition()
        self._queues: dict[tuple[str, str], deque[bytes]] = defaultdict(deque)
        self._taken: dict[tuple[str, str, str], bytes] = {}
        self._seen: set[tuple[str, str, str, str]] = set()
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._server: ThreadingHTTPServer | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def callback(self) -> str:
        return f"http://{self.address}/callback?run=r1"

    def listen(self) -> Loopback:
        """Until now connections were refused."""
        loopback = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(
                    self.path.partition("?")[0],
                    headers,
                    json.loads(data),
                )
                loopback._serve(self, request)

            def log_message(self, *arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *arguments: Any) -> None:
                """A client that went away is part of these tests."""

        self._server = Server(
            ("127.0.0.1", self.port),
            Handler,
            bind_and_activate=False,
        )
        self._server.daemon_threads = True
        self._server.socket.close()
        self._server.socket = self._socket
        self._server.server_activate()
        threading.Thread(
            target=self._server.serve_forever,
            args=(0.02,),
            daemon=True,
        ).start()
        return self

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._socket.close()

    def wait_for(
        self,
        condition: Callable[[], bool],
        seconds: float = 20,
    ) -> None:
        """Wait until something that arrived makes the condition true."""
        with self._changed:
            assert self._changed.wait_for(condition, seconds), (
                "what the test waits for did not happen"
            )

    def held(self) -> int:
        """Messages that the transport still keeps, read or not."""
        return sum(len(queue) for queue in self._queues.values()) + len(self._taken)

    def _serve(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        with self._changed:
            self.requests.append(request)
            fault = self.fault(request)
            self._changed.notify_all()
        if fault == "reset":
            handler.connection.setsockopt(
                socket.SOL_SOCKET,
                socket.SO_LINGER,
                struct.pack(
                    "ii",
                    1,
                    0,
                ),
            )
            handler.close_connection = True
            handler.connection.close()
            return
        if fault is not None and fault.isdecimal():
            self._reply(
                handler,
                int(fault),
                {"error": "as the test wants"},
            )
            return
        if fault is not None and fault.startswith("E"):
            self._reply(
                handler,
                200,
                {"code": fault, "message": "as the test wants"},
            )
            return
        status, body = self._answer(request)
        if fault == "lose answer":
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        self._reply(handler, status, body)

    def _answer(
        self,
        request: Request,
    ) -> tuple[int, Any]:
        if request.path == "/callback":
            with self._changed:
                self.callbacks.append(request.body)
                self._changed.notify_all()
            return self.callback_answer
        session, topic = request.headers["x-ptp-session-id"], request.body["topic"]
        with self._changed:
            if request.verb == "push":
                source = request.headers["x-ptp-source-node-id"]
                key = (session, topic, source, request.body["metadata"]["sequence"])
                if key not in self._seen:
                    self._seen.add(key)
                    self._queues[session, topic].append(
                        base64.b64decode(
                            request.body["payload"],
                            validate=True,
                        )
                    )
                    self._changed.notify_all()
            if request.verb == "release":
                self._queues.pop((session, topic), None)
                for key in [key for key in self._taken if key[:2] == (session, topic)]:
                    del self._taken[key]
            if request.verb == "pop":
                return 200, {
                    "code": "E0000000000",
                    "message": "",
                    **self._pop(session, topic, request),
                }
        return 200, {
            "code": "E0000000000",
            "message": "",
        }

    def _pop(
        self,
        session: str,
        topic: str,
        request: Request,
    ) -> dict[str, str]:
        pop_id = request.headers.get("x-ptp-pop-id", "")
        queue = self._queues[session, topic]
        if (session, topic, pop_id) not in self._taken:
            if not self._changed.wait_for(
                lambda: bool(queue), min(0.3, request.body["timeout"] / 1000)
            ):
                return {}
            message = queue.popleft()
            if not pop_id:
                return {"content": base64.b64encode(message).decode()}
            self._taken[session, topic, pop_id] = message
        return {"content": base64.b64encode(self._taken[session, topic, pop_id]).decode()}

    @staticmethod
    def _reply(
        handler: BaseHTTPRequestHandler,
        status: int,
        body: Any,
    ) -> None:
        data = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
