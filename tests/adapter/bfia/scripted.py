"""A peer on loopback that answers as a test tells it to, and remembers what it was asked."""

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from adapter.bfia.client import ParticipantClient, SchedulerClient
from adapter.bfia.connections import Connections
from adapter.bfia.peer import Peer
from route_table.live import LiveRoutes
from tests.inprocess import ME, PEER

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class Asked:
    """One request that arrived whole."""

    method: str
    target: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class ScriptedPeer:
    """Answers each request with the next of its answers; the last one stays."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: list[Answer] = [says()]
        self.over = threading.Event()
        """set when the test is over, so that answers that wait can go home"""
        self._lock = threading.Lock()

    def will(self, *answers: Answer) -> None:
        self.answers = list(answers)

    def take(self, asked: Asked) -> Answer:
        with self._lock:
            self.asked.append(asked)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def scripted(secure: ssl.SSLContext | None = None) -> Iterator[tuple[ScriptedPeer, str]]:
    """Run a scripted peer, over TLS where there is a context; yield it and its address."""
    peer = ScriptedPeer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {k.lower(): v for k, v in self.headers.items()}
            peer.take(Asked(self.command, self.path, headers, raw))(self)

        do_GET = do_POST = answer

        def log_message(self, *_: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: Any) -> None:
            """A client that hangs up is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    if secure is not None:
        server.socket = secure.wrap_socket(server.socket, server_side=True)
    server.peer = peer  # type: ignore[attr-defined]
    thread = threading.Thread(
        target=server.serve_forever,
        kwargs={"poll_interval": 0.02},
        daemon=True,
    )
    thread.start()
    try:
        yield peer, f"http://127.0.0.1:{server.server_port}"
    finally:
        peer.over.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


@dataclass(frozen=True)
class Clients:
    """Both interfaces of a peer, as this gateway's client offers them."""

    peer: Peer
    scheduler: SchedulerClient
    participant: ParticipantClient


@contextmanager
def clients(
    home: Path,
    url: str,
    profile: str = "spec",
    deadline: float = 10,
) -> Iterator[Clients]:
    """Yield clients whose route to `PEER` leads to an address."""
    file = home / f"routes-{profile}.yml"
    file.write_text(
        yaml.safe_dump(
            {
                PEER: {
                    "url": url,
                    "profile": profile,
                    "deadline": deadline,
                }
            }
        )
    )
    connections = Connections()
    peer = Peer(ME, PEER, LiveRoutes(file).resolve, connections)
    try:
        yield Clients(peer, SchedulerClient(peer), ParticipantClient(peer))
    finally:
        connections.close()


# ---------------------------------------------------------------- answers


def says(
    body: Any = None,
    status: int = 200,
    **fields: Any,
) -> Answer:
    """Answer with a JSON value; by default a success, with these fields in it."""
    value = (
        {
            "code": 0,
            "msg": "success",
            "data": {},
        }
        | fields
        if body is None
        else body
    )
    return text(json.dumps(value).encode(), status, "application/json")


def text(
    body: bytes,
    status: int = 200,
    kind: str = "text/html",
) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def raw(octets: bytes, *, reset: bool = False) -> Answer:
    """Write these octets and hang up; with ``reset`` as a process that dies does."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(octets)
        handler.wfile.flush()
        handler.close_connection = True
        if reset:
            handler.connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        handler.connection.shutdown(socket.SHUT_WR) if not reset else handler.connection.close()

    return answer


def silence(handler: BaseHTTPRequestHandler) -> None:
    """Never answer."""
    handler.server.peer.over.wait(60)  # type: ignore[attr-defined]
    handler.close_connection = True


def trickle(handler: BaseHTTPRequestHandler) -> None:
    """Answer so slowly that every single read succeeds and the answer never ends."""
    handler.send_response(200)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", "100000")
    handler.end_headers()
    while not handler.server.peer.over.wait(0.05):  # type: ignore[attr-defined]
        handler.wfile.write(b" ")
        handler.wfile.flush()
    handler.close_connection = True
