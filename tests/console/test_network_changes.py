"""The browser of the tests, while networks of the machine are made and removed."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest

from tests.services.browser import chromium

BRIDGE = "bfia-changes"
SCRIPTS = 40
SCRIPT = "<script type=module src=/{number}.js></script>"
PAGE = "".join(SCRIPT.format(number=number) for number in range(SCRIPTS))


class Scripts(BaseHTTPRequestHandler):
    """Answers with a page of many scripts, and with the scripts."""

    def do_GET(self) -> None:
        content_type = "text/html"
        body = PAGE
        if self.path != "/":
            content_type = "text/javascript"
            body = "document.loaded = (document.loaded ?? 0) + 1"
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@contextmanager
def server_of_scripts() -> Iterator[str]:
    """Yield the address of the page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Scripts) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def changing_networks() -> Iterator[None]:
    """Make and remove a network repeatedly, until the context is left."""
    end = Event()

    def change() -> None:
        while not end.is_set():
            ip("link", "add", BRIDGE, "type", "bridge")
            ip("addr", "add", "192.0.2.1/24", "dev", BRIDGE)
            ip("link", "set", BRIDGE, "up")
            ip("link", "delete", BRIDGE)

    thread = Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.browser
def test_pages_load_while_networks_of_the_machine_change():
    with server_of_scripts() as address, chromium() as browser:
        page = browser.new_page()
        failures: list[str | None] = []
        page.on("requestfailed", lambda request: failures.append(request.failure))
        with changing_networks():
            for _ in range(10):
                page.goto(address)
                assert page.evaluate("document.loaded") == SCRIPTS
    assert not failures
