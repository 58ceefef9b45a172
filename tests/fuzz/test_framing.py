"""Requests that hide another in their body: it is never answered, however the head says where the body ends."""

import json
import re
import socket
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from tests.inprocess import listening

HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
UPGRADES = [
    b"connection: upgrade\r\nupgrade: h2c\r\n",
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n",
    b"upgrade: websocket\r\nconnection: keep-alive, upgrade\r\nsec-websocket-version: 13\r\n",
    b"connection: upgrade\r\nupgrade: tls/1.0, anything/2\r\n",
    b"connection: upgrade\r\nupgrade: \r\n",
    b"connection: upgrade\r\nconnection: upgrade\r\nupgrade: h2c\r\nupgrade: websocket\r\n",
]
NOISE = [
    b"x-empty:\r\n",
    b"x-empty: \r\n",
    b"te: trailers\r\n",
    b"x-tab:\ta\t\r\n",
    b"expect: 100-continue\r\n",
    *UPGRADES,
]
BREAKS_A_NAME = [b"\0", b"\t", b" ", b"\x0b", b"\r", b"\n", b",", b";", b'"', b"[", b"\x80"]
BREAKS_A_VALUE = [*BREAKS_A_NAME, b"+", b"-", b"_", b"x", b"0x", b":", b"=", b"0, "]
"""what makes a length or a coding something else, or nothing"""


async def echo(
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Answer with the request's path and body."""
    try:
        body = await Request(scope, receive).body()
    except ClientDisconnect:  # what came of it was refused
        return
    answer = JSONResponse({"path": scope["path"], "body": body.decode("latin-1")})
    await answer(scope, receive, send)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with listening(echo) as port:
        yield port


def answers_to(port: int, pieces: list[bytes]) -> list[dict[str, str]]:
    """Return what the application answered on one connection, in order, until the listener closed it."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for piece in pieces:
                connection.sendall(piece)
        except ConnectionError:  # closed already
            pass
        received = b""
        try:
            while more := connection.recv(1 << 16):
                received += more
        except ConnectionError:
            pass
    text = received.decode()
    starts = [found.start() for found in re.finditer(r'\{"path"', text)]
    return [json.JSONDecoder().raw_decode(text, start)[0] for start in starts]


def cut(text: bytes, places: list[int]) -> list[bytes]:
    """Return a text in pieces, cut at these places."""
    bounds = [0, *sorted(place % len(text) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds) if start < end]


@st.composite
def framed_bodies(draw: st.DrawFn) -> tuple[list[bytes], bytes]:
    """Return the header of a body that holds the hidden request, as name and value, and the body as it is sent."""
    content = draw(st.sampled_from([b"", b"{}", b"0\r\n\r\n"])) + HIDDEN
    if draw(st.booleans()):
        return [b"content-length", str(len(content)).encode()], content
    sizes = [len(content)] if draw(st.booleans()) else [1, len(content) - 1]
    chunks = []
    for size in sizes:
        chunks.append(b"%x\r\n%s\r\n" % (size, content[:size]))
        content = content[size:]
    return [b"transfer-encoding", b"chunked"], b"".join([*chunks, b"0\r\n\r\n"])


@given(
    framed_bodies(),
    st.lists(st.sampled_from(NOISE), max_size=3, unique=True),
    st.booleans(),
    st.lists(st.integers(0, 1000), max_size=4),
)
def test_a_body_belongs_to_its_request(port, framed, noise, framed_first, cuts):
    (name, value), body = framed
    header = b"%s: %s\r\n" % (name, value)
    headers = [header, *noise] if framed_first else [*noise, header]
    request = b"POST /first HTTP/1.1\r\nhost: x\r\n" + b"".join(headers) + b"\r\n" + body
    answers = answers_to(port, cut(request + LAST, cuts))
    assert [answer["path"] for answer in answers] == ["/first", "/last"]
    assert answers[0]["body"].endswith(HIDDEN.decode())
    assert answers[1]["body"] == ""


@given(
    framed_bodies(),
    st.lists(st.sampled_from(NOISE), max_size=2, unique=True),
    st.one_of(
        st.tuples(st.just(0), st.sampled_from(BREAKS_A_NAME)),
        st.tuples(st.just(1), st.sampled_from(BREAKS_A_VALUE)),
    ),
    st.integers(0, 40),
    st.lists(st.integers(0, 1000), max_size=3),
)
def test_a_broken_header_of_a_body_frees_no_request_in_it(port, framed, noise, change, place, cuts):
    header, body = framed
    part, text = change
    at = place % (len(header[part]) + 1)
    header[part] = header[part][:at] + text + header[part][at:]
    lines = b"%s: %s\r\n" % (header[0], header[1])
    request = b"POST /first HTTP/1.1\r\nhost: x\r\n" + lines + b"".join(noise) + b"\r\n" + body
    answers = answers_to(port, cut(request + LAST, cuts))
    assert "/hidden" not in [answer["path"] for answer in answers]
