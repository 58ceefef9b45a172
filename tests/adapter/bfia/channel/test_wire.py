"""How requests go out to peers: what no header may hold, what counts as a response, connections that are kept."""

import asyncio
import contextlib
import ssl

import pytest

from adapter.bfia.channel.wire import BadAddress, Wires
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import OK, Container, until
from tests.adapter.bfia.scripted import raw, says, scripted
from tests.certificates import Authority

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"


@pytest.fixture
async def wires():
    wires = Wires(ssl.create_default_context())
    yield wires
    wires.close()


async def posted(
    wires,
    peer,
    url,
    *answers,
    body=b"x",
    times=1,
):
    peer.will(*answers)
    return [await wires.post(url + "/p", [body], [(b"x-a", b"b")], 30.0) for _ in range(times)]


async def test_no_topic_becomes_a_header_of_its_own(alpha, client):
    """Attack: a container names its topic so that the peer reads it as another node's message."""
    with scripted() as (peer, url):
        peer.will(says({"code": OK}))
        alpha.routes["peer"] = Route("peer", url, profile="kuscia")
        for topic in ("t\r\nx-ptp-source-node-id: other", "t\n", "\0"):
            assert await Container(client, alpha).push("peer", b"hi", topic=topic) == "E0000000400"
        assert peer.asked == []


@pytest.mark.parametrize(
    ("octets", "content"),
    [
        (HEAD + b"content-length: 2\r\n\r\nhi", b"hi"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n", b"hi"),
        (HEAD + b"\r\nhi", b"hi"),  # until the connection ends
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"content-length: 2\r\n\r\nhi", b"hi"),
        (b"HTTP/1.1 103 Early Hints\r\ncontent-length: 9\r\n\r\n" + HEAD + b"\r\nhi", b"hi"),
        (HEAD + b"content-encoding: UTF-8\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
        (HEAD + b"content-encoding:\r\ncontent-length: 2\r\n\r\nhi", b"hi"),
        (
            HEAD
            + b"content-length: 2\r\n\r\nhi"
            + b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\nno",
            b"hi",
        ),
    ],
)
async def test_a_whole_response(
    wires,
    octets,
    content,
):
    with scripted() as (peer, url):
        assert await posted(wires, peer, url, raw(octets)) == [(200, "text/plain", content)]
        assert peer.asked[0].headers["x-a"] == "b"
        assert peer.asked[0].raw == b"x"


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        HEAD,
        HEAD + b"content-length: 3\r\n\r\nhi",
        HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n",
        HEAD + b"content-encoding: utf-8, X-GZip\r\ncontent-length: 2\r\n\r\nhi",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        HEAD + b"x: y\r\n" * 50_000,
        HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n" * 1_000_000 + b"\r\n",
    ],
)
async def test_what_is_no_whole_response_is_none(wires, octets):
    with scripted() as (peer, url), pytest.raises(ConnectionError):
        await posted(wires, peer, url, raw(octets))


async def test_a_connection_is_kept_until_the_peer_closes_it(wires):
    opened, closed = [], []

    async def twice(reader, writer):
        opened.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for _ in range(2):
                await reader.readuntil(b"\r\n\r\nx")
                writer.write(HEAD + b"content-length: 2\r\n\r\nhi")
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        closed.append(writer)

    server = await asyncio.start_server(twice, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/p"
        for _ in range(2):
            assert (await wires.post(url, [b"x"], [], 30.0)).content == b"hi"
        assert len(opened) == 1
        (idle,) = wires._idle.values()
        await until(idle[0]._reader.at_eof)
        assert (await wires.post(url, [b"x"], [], 30.0)).content == b"hi"
        assert len(opened) == 2
        wires.close()
        await until(lambda: len(closed) == 2)
        opened[1].close()


@pytest.mark.parametrize(
    "url", ["ftp://x/", "http://", "http://[::1", "http://x:99999/", "http://ä/"]
)
async def test_an_address_that_cannot_be_used(wires, url):
    with pytest.raises(BadAddress):
        await wires.post(url, [], [], 1.0)


async def test_a_long_body_is_sent_by_tls_only_to_a_peer_with_the_right_name(tmp_path):
    authority = Authority(tmp_path)
    own = authority.sign("node", "node-of-the-route")
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(own.certificate, own.key)
    wires = Wires(ssl.create_default_context(cafile=authority.file))
    body = bytes(range(256)) * (3 << 12)
    with scripted(secure) as (peer, url):
        url = url.replace("http:", "https:") + "/p"
        assert (await wires.post(url, [body], [], 30.0, "node-of-the-route")).status == 200
        with pytest.raises(ssl.SSLError):
            await wires.post(url, [body], [], 30.0)
        assert [asked.raw for asked in peer.asked] == [body]
    wires.close()
