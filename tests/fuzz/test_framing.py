"""Requests that hide another one in their body: the hidden one gets no response, however framed."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from tests.inprocess import listening

FIRST = b"POST /first HTTP/1.1\r\nhost: x\r\n"
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

# Headers that do not change where a body ends.
NOISE = [
    b"x-empty:\r\n",
    b"x-empty: \r\n",
    b"te: trailers\r\n",
    b"x-tab:\ta\t\r\n",
    b"expect: 100-continue\r\n",
    *UPGRADES,
]

# Bytes that make a header's name another one, or none.
BREAKS_A_NAME = [b"\0", b"\t", b" ", b"\x0b", b"\r", b"\n", b",", b";", b'"', b"[", b"\x80"]
# Bytes that make a length or a transfer coding another one, or none.
BREAKS_A_VALUE = [*BREAKS_A_NAME, b"+", b"-", b"_", b"x", b"0x", b":", b"=", b"0, "]

NAME, VALUE = 0, 1  # indices of the parts of a header


async def echo(
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Respond with the request's path and body."""
    try:
        body = await Request(scope, receive).body()
    except ClientDisconnect:  # the listener has refused the rest of the body
        return
    response = JSONResponse({"path": scope["path"], "body": body.decode("latin-1")})
    await response(scope, receive, send)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with listening(echo) as port:
        yield port


def exchange(
    port: int,
    pieces: list[bytes],
) -> list[dict[str, str]]:
    """Send pieces on one connection; return the responses' bodies until the listener closes it."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):  # closed after a refusal
            for piece in pieces:
                connection.sendall(piece)
        received = read_to_end(connection).decode()
    starts = [match.start() for match in re.finditer(r'\{"path"', received)]
    return [json.JSONDecoder().raw_decode(received, start)[0] for start in starts]


def read_to_end(connection: socket.socket) -> bytes:
    """Return everything that arrives until the connection is closed or reset."""
    pieces = []
    with suppress(ConnectionError):
        piece = connection.recv(1 << 16)
        while piece:
            pieces.append(piece)
            piece = connection.recv(1 << 16)
    return b"".join(pieces)


def cut(
    text: bytes,
    offsets: list[int],
) -> list[bytes]:
    """Return a text in pieces; offsets behind its end start from its beginning again."""
    bounds = [0, *sorted(offset % len(text) for offset in offsets), len(text)]
    return [text[start:end] for start, end in pairwise(bounds) if start < end]


@st.composite
def framed_bodies(draw: st.DrawFn) -> tuple[list[bytes], bytes]:
    """Draw a body with the hidden request: name and value of its framing header, and the body."""
    content = draw(st.sampled_from([b"", b"{}", b"0\r\n\r\n"])) + HIDDEN
    has_length = draw(st.booleans())
    if has_length:
        return [b"content-length", str(len(content)).encode()], content
    sizes = draw(st.sampled_from([[len(content)], [1, len(content) - 1]]))
    chunks = []
    for size in sizes:
        chunks.append(b"%x\r\n%s\r\n" % (size, content[:size]))
        content = content[size:]
    chunks.append(b"0\r\n\r\n")
    return [b"transfer-encoding", b"chunked"], b"".join(chunks)


@given(
    framed_bodies(),
    st.lists(
        st.sampled_from(NOISE),
        max_size=3,
        unique=True,
    ),
    st.booleans(),
    st.lists(st.integers(0, 1000), max_size=4),
)
def test_a_body_belongs_to_its_request(port, framed, noise, is_framed_first, offsets):
    (name, value), body = framed
    header = b"%s: %s\r\n" % (name, value)
    headers = [*noise, header]
    if is_framed_first:
        headers = [header, *noise]
    request = FIRST + b"".join(headers) + b"\r\n" + body

    responses = exchange(port, cut(request + LAST, offsets))

    assert [response["path"] for response in responses] == ["/first", "/last"]
    assert responses[0]["body"].endswith(HIDDEN.decode())
    assert responses[1]["body"] == ""


@given(
    framed_bodies(),
    st.lists(
        st.sampled_from(NOISE),
        max_size=2,
        unique=True,
    ),
    st.one_of(
        st.tuples(
            st.just(NAME),
            st.sampled_from(BREAKS_A_NAME),
        ),
        st.tuples(
            st.just(VALUE),
            st.sampled_from(BREAKS_A_VALUE),
        ),
    ),
    st.integers(0, 40),
    st.lists(st.integers(0, 1000), max_size=3),
)
def test_a_broken_header_of_a_body_frees_no_request_in_it(
    port, framed, noise, change, position, offsets
):
    header, body = framed
    part, inserted = change
    position %= len(header[part]) + 1
    header[part] = header[part][:position] + inserted + header[part][position:]
    framing = b"%s: %s\r\n" % (header[NAME], header[VALUE])
    request = FIRST + framing + b"".join(noise) + b"\r\n" + body

    responses = exchange(port, cut(request + LAST, offsets))

    assert "/hidden" not in [response["path"] for response in responses]
