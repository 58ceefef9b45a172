"""Requests whose end two readers see in different places, to pass one request inside another, or a late header."""

import socket
from collections.abc import Iterator

import pytest

from gateway.bootstrap.node import Gateway
from tests.inprocess import PEER, running

HELLO = b"POST /v1/interconn/schedule/node/hello HTTP/1.1\r\nhost: localhost\r\n"
HIDDEN = HELLO + b"content-length: 2\r\nconnection: close\r\n\r\n{}"
EMPTY = b"0\r\n\r\n"
AMBIGUOUS = {
    "length, then chunks": (b"content-length: 4\r\ntransfer-encoding: chunked", EMPTY),
    "chunks, then a length": (b"transfer-encoding: chunked\r\ncontent-length: 4", EMPTY),
    "two lengths": (b"content-length: 0\r\ncontent-length: 5", b""),
    "a length with a sign": (b"content-length: +2", b"{}"),
    "a length in hexadecimal": (b"content-length: 0x2", b"{}"),
    "another coding": (b"transfer-encoding: xchunked", EMPTY),
    "a coding after the chunks": (b"transfer-encoding: chunked, identity", EMPTY),
    "a blank before the colon": (b"transfer-encoding : chunked", EMPTY),
    "a folded header": (b"x-a: b\r\n transfer-encoding: chunked\r\ncontent-length: 2", b"{}"),
    "line feeds alone": (b"x-a: b\ntransfer-encoding: chunked", EMPTY),
    "line feeds in chunks": (b"transfer-encoding: chunked", b"2\n{}\n0\n\n"),
    "a negative chunk": (b"transfer-encoding: chunked", b"-2\r\n{}\r\n0\r\n\r\n"),
    "a chunk without end": (b"transfer-encoding: chunked", b"FFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n"),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home = tmp_path_factory.mktemp("node")
    (home / "routes.yml").write_text(f"{PEER}: {{host: 127.0.0.1, port: 1}}\n")
    with running(home) as gateway:
        yield gateway


def answers(node: Gateway, listener: str, request: bytes) -> bytes:
    """Return all that a listener answers before it closes the connection."""
    port = int(node.addresses()[listener].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as answer:
            return answer.read()


@pytest.mark.parametrize("listener", ["peer", "container", "operator"])
@pytest.mark.parametrize(("headers", "body"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_what_two_readers_may_end_in_different_places_is_refused(
    node: Gateway, listener: str, headers: bytes, body: bytes
):
    found = answers(node, listener, HELLO + headers + b"\r\n\r\n" + body + HIDDEN)
    assert found.startswith(b"HTTP/1.1 400 ") or found.count(b"HTTP/1.1 ") == 0, found
    assert found.count(b"HTTP/1.1 ") <= 1


def test_a_trailer_names_no_sender(node: Gateway):
    head = HELLO + b"connection: close\r\n"
    named = b"x-source-node-id: " + PEER.encode() + b"\r\n"
    body = b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    assert b'"knows_you":true' in answers(node, "peer", head + named + body + b"\r\n")
    assert b'"knows_you":false' in answers(node, "peer", head + body + named + b"\r\n")
