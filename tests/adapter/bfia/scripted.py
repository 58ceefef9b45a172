"""A peer on loopback that plays a script of responses and records the requests it receives."""

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

# Writes the response to the request that a handler has read.
Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class Received:
    """One request that the peer has read completely."""

    method: str
    target: str
    # names in lower case
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        """The JSON value of the body."""
        return json.loads(self.raw)


class ScriptedPeer:
    """Plays each response of its script once and repeats the last one."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.script: list[Answer] = [says()]
        # Set at the end of the test, which ends the responses that wait.
        self.over = threading.Event()
        self._lock = threading.Lock()

    @property
    def asked(self) -> list[Received]:
        """The received requests, by the name that tests of other packages use."""
        return self.requests

    def will(self, *script: Answer) -> None:
        """Play a new script from the next request on."""
        self.script = list(script)

    def reset(self) -> None:
        """Forget the received requests and answer with successes again."""
        self.requests.clear()
        self.will(says())

    def take(self, request: Received) -> Answer:
        """Record a request and return the response that the script has for it."""
        with self._lock:
            self.requests.append(request)
            if len(self.script) > 1:
                return self.script.pop(0)
            return self.script[0]


class ScriptedHandler(BaseHTTPRequestHandler):
    """Reads a request, records it at the server's peer, and plays the peer's response."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """Serve one request."""
        length = int(self.headers.get("content-length") or 0)
        content = self.rfile.read(length)
        headers = {name.lower(): value for name, value in self.headers.items()}
        play = peer_of(self).take(Received(self.command, self.path, headers, content))
        play(self)

    do_GET = do_POST = answer

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class ScriptedServer(ThreadingHTTPServer):
    """The server of a scripted peer."""

    daemon_threads = True
    # connections that wait to be accepted; tests open dozens in parallel
    request_queue_size = 64

    def __init__(self, peer: ScriptedPeer) -> None:
        super().__init__(("127.0.0.1", 0), ScriptedHandler)
        self.peer = peer

    def handle_error(self, *_: Any) -> None:
        """Ignore errors of connections: in some tests the client hangs up."""


def peer_of(handler: BaseHTTPRequestHandler) -> ScriptedPeer:
    """Return the scripted peer that a handler serves."""
    assert isinstance(handler.server, ScriptedServer)
    return handler.server.peer


@contextmanager
def scripted(secure: ssl.SSLContext | None = None) -> Iterator[tuple[ScriptedPeer, str]]:
    """Run a scripted peer, over TLS if a context is passed; yield the peer and its address."""
    peer = ScriptedPeer()
    server = ScriptedServer(peer)
    if secure is not None:
        server.socket = secure.wrap_socket(
            server.socket,
            server_side=True,
        )
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
    """This gateway's clients for both interfaces of a peer."""

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
    """Yield clients of the node `PEER` at an address; the deadline is in seconds."""
    file = home / f"routes-{profile}.yml"
    entry = {
        "url": url,
        "profile": profile,
        "deadline": deadline,
    }
    file.write_text(yaml.safe_dump({PEER: entry}))
    connections = Connections()
    peer = Peer(
        ME,
        PEER,
        LiveRoutes(file).resolve,
        connections,
    )
    try:
        yield Clients(peer, SchedulerClient(peer), ParticipantClient(peer))
    finally:
        connections.close()


# ---------------------------------------------------------------- responses of a script


def says(
    body: Any = None,
    status: int = 200,
    **fields: Any,
) -> Answer:
    """Return a response with a JSON body; without a body, a success with these fields."""
    if body is None:
        success = {
            "code": 0,
            "msg": "success",
            "data": {},
        }
        body = success | fields
    return text(
        json.dumps(body).encode(),
        status,
        "application/json",
    )


def refuses(
    code: int,
    reason: str,
    msg: str = "no",
    **data: Any,
) -> Answer:
    """Return a refusal as the gateway words it: HTTP 200 with code, text and reason."""
    return says(
        {
            "code": code,
            "msg": msg,
            "data": {"reason": reason, **data},
        }
    )


def text(
    body: bytes,
    status: int = 200,
    kind: str = "text/html",
) -> Answer:
    """Return a response with these bytes as its body; ``kind`` is the content type."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def raw(
    octets: bytes,
    *,
    reset: bool = False,
) -> Answer:
    """Return a response of exactly these bytes, after which the connection is closed.

    With ``reset`` the connection is reset, as by a process that dies.
    """

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(octets)
        handler.wfile.flush()
        handler.close_connection = True
        if reset:
            # A linger time of 0 s makes close() send a reset.
            no_linger = struct.pack("ii", 1, 0)
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
            handler.connection.close()
        else:
            handler.connection.shutdown(socket.SHUT_WR)

    return answer


def states(*words: str, code: int = 0) -> Answer:
    """Return responses to polls: one task status each, and SUCCESS for ever after the last."""
    remaining = iter(words)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        status = next(remaining, "SUCCESS")
        says({"code": code, "data": {"status": status}})(handler)

    return answer


def silence(handler: BaseHTTPRequestHandler) -> None:
    """Send no response until the test is over."""
    peer_of(handler).over.wait(60)
    handler.close_connection = True


def trickle(handler: BaseHTTPRequestHandler) -> None:
    """Respond so slowly that every single read succeeds and the body never ends."""
    handler.send_response(200)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", "100000")
    handler.end_headers()
    over = peer_of(handler).over
    while not over.wait(0.05):
        handler.wfile.write(b" ")
        handler.wfile.flush()
    handler.close_connection = True
