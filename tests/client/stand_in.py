"""A node's stand-in on loopback, whose responses are a function of the test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

# Returns the response to a request. The client gets the text of an AssertionError as a refusal.
Respond = Callable[[httpx.Request], httpx.Response]


class Handler(BaseHTTPRequestHandler):
    """Passes a request to the test's function and sends the response."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def handle_request(self) -> None:
        """Serve one request."""
        length = int(self.headers.get("content-length") or 0)
        request = httpx.Request(
            self.command,
            f"{self.server.url}{self.path}",
            headers=list(self.headers.items()),
            content=self.rfile.read(length),
        )
        try:
            response = self.server.respond(request)
        except AssertionError as error:
            response = httpx.Response(
                500,
                json={
                    "code": 500,
                    "msg": str(error),
                },
            )
        self.send_response(response.status_code)
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(response.content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Server(ThreadingHTTPServer):
    """The server of the stand-in."""

    def __init__(self, respond: Respond) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.respond = respond
        self.url = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(respond: Respond) -> Iterator[str]:
    """Answer the requests of clients by a function; yield the address."""
    with Server(respond) as server:
        thread = threading.Thread(
            target=server.serve_forever,
            kwargs={"poll_interval": 0.01},
        )
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()
