"""Requests to peers: injected headers, incomplete responses, connections that are reused."""

import asyncio
import contextlib
import ssl

import pytest

from adapter.bfia.channel.http_client import BadAddress, HttpConnections
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import OK, Container, until
from tests.adapter.bfia.scripted import raw, says, scripted
from tests.certificates import Authority

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
TWO_BYTES = b"content-length: 2\r\n\r\nhi"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
HEADER_LINE = b"x: y\r\n"


@pytest.fixture
async def connections():
    connections = HttpConnections(ssl.create_default_context())
    yield connections
    connections.close()


async def post_to(connections, url):
    """Post one byte to a path of a peer; return the response."""
    return await connections.post(
        url + "/p",
        [b"x"],
        [(b"x-a", b"b")],
        30.0,
    )


@pytest.mark.parametrize(
    "topic",
    ["t\r\nx-ptp-source-node-id: other", "t\n", "\0"],
)
async def test_a_topic_cannot_inject_a_header(alpha, client, topic):
    """Attack: a container names its topic so that the peer reads it as another node's message."""
    with scripted() as (peer, url):
        peer.will(says({"code": OK}))
        alpha.routes["peer"] = Route(
            "peer",
            url,
            profile="kuscia",
        )

        assert await Container(client, alpha).push("peer", b"hi", topic=topic) == "E0000000400"

        assert peer.requests == []


COMPLETE = {
    "content length": HEAD + TWO_BYTES,
    "chunks": HEAD + CHUNKED + b"1\r\nh\r\n1\r\ni\r\n0\r\n\r\n",
    "until the connection ends": HEAD + b"\r\nhi",
    "after 100": b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + TWO_BYTES,
    "after 103": b"HTTP/1.1 103 Early Hints\r\ncontent-length: 9\r\n\r\n" + HEAD + b"\r\nhi",
    "encoding of text": HEAD + b"content-encoding: UTF-8\r\n" + TWO_BYTES,
    "empty encoding": HEAD + b"content-encoding:\r\n" + TWO_BYTES,
    "followed by a second": (HEAD + TWO_BYTES + b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\nno"),
}


@pytest.mark.parametrize(
    "octets",
    COMPLETE.values(),
    ids=COMPLETE,
)
async def test_a_complete_response_is_read_in_every_framing(connections, octets):
    with scripted() as (peer, url):
        peer.will(raw(octets))

        assert await post_to(connections, url) == (200, "text/plain", b"hi")

        assert peer.requests[0].headers["x-a"] == "b"
        assert peer.requests[0].raw == b"x"


INCOMPLETE = {
    "empty": b"",
    "only 100": b"HTTP/1.1 100 Continue\r\n\r\n",
    "head ends early": HEAD,
    "body ends early": HEAD + b"content-length: 3\r\n\r\nhi",
    "chunks end early": HEAD + CHUNKED + b"2\r\nhi\r\n",
    "compressed": HEAD + b"content-encoding: utf-8, X-GZip\r\n" + TWO_BYTES,
    "another protocol": b"SSH-2.0-OpenSSH\r\n\r\n",
    "endless head": HEAD + HEADER_LINE * 50_000,
    "endless trailer": HEAD + CHUNKED + b"0\r\n" + HEADER_LINE * 1_000_000 + b"\r\n",
}


@pytest.mark.parametrize(
    "octets",
    INCOMPLETE.values(),
    ids=INCOMPLETE,
)
async def test_an_incomplete_response_is_an_error(connections, octets):
    with scripted() as (peer, url):
        peer.will(raw(octets))

        with pytest.raises(ConnectionError):
            await post_to(connections, url)


class TwoRequestServer:
    """Responds to two requests of each connection and then closes it."""

    def __init__(self):
        self.opened = []
        self.closed = []

    async def __call__(self, reader, writer):
        self.opened.append(writer)
        # The client closes the last connection after one request.
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for _ in range(2):
                await reader.readuntil(b"\r\n\r\nx")
                writer.write(HEAD + TWO_BYTES)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        self.closed.append(writer)


async def test_a_connection_is_reused_until_the_peer_closes_it(connections):
    peer = TwoRequestServer()
    async with await asyncio.start_server(peer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

        for _ in range(2):
            assert (await post_to(connections, url)).content == b"hi"
        assert len(peer.opened) == 1

        (idle,) = connections._idle.values()
        await until(idle[0]._reader.at_eof)
        assert (await post_to(connections, url)).content == b"hi"
        assert len(peer.opened) == 2

        connections.close()
        await until(lambda: len(peer.closed) == 2)
        peer.opened[1].close()


@pytest.mark.parametrize(
    "url", ["ftp://x/", "http://", "http://[::1", "http://x:99999/", "http://ä/"]
)
async def test_an_unusable_address_is_refused(connections, url):
    with pytest.raises(BadAddress):
        await connections.post(url, [], [], 1.0)


async def test_a_long_body_is_sent_by_tls_only_to_a_peer_with_the_right_name(tmp_path):
    authority = Authority(tmp_path)
    peer_pair = authority.sign("node", "node-of-the-route")
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(peer_pair.certificate, peer_pair.key)
    connections = HttpConnections(ssl.create_default_context(cafile=authority.file))
    body = bytes(range(256)) * (3 << 12)
    with scripted(secure) as (peer, url):
        url = url.replace("http:", "https:") + "/p"

        response = await connections.post(
            url,
            [body],
            [],
            30.0,
            "node-of-the-route",
        )
        assert response.status == 200

        # The certificate does not have the host of the address.
        with pytest.raises(ssl.SSLError):
            await connections.post(url, [body], [], 30.0)

        assert [request.raw for request in peer.requests] == [body]
    connections.close()
