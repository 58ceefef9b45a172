"""The connection of a link whose ends write more than they read."""

import asyncio
import gc
import math
import socket
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from gateway.domain.links.frames import Frame, Kind, decode, encode
from gateway.identity.keys import KEY_GENERATORS, KeyPair
from gateway.links import link as link_module
from gateway.links.carrier import Carrier, LinkLost
from gateway.links.dialling import LINKS_PER_ROUTE, Dialler, DialParts
from gateway.links.link import Link, LinkOrigin
from gateway.links.links import Links, NoLink
from gateway.links.opening import Ways
from route_table.model import Route

BUFFER = 16 * 1024  # bytes of the kernel, so that little is under way
STREAMS = 24
SIZE = 100 * 1024  # bytes that pass over each stream
SECONDS = 30
LARGEST_PING = bytes(125)
NODE = "JG0100002200000020"


async def streams_of(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    return await asyncio.open_connection(sock=sock)


@asynccontextmanager
async def carriers():
    """Yield both ends of a WebSocket, first the one that has dialled."""
    dialling, dialled = socket.socketpair()
    dialled_reader, dialled_writer = await streams_of(dialled)
    opening = asyncio.create_task(open_carrier(dialling))
    head = await dialled_reader.readuntil(b"\r\n\r\n")
    accepted = await Carrier.accept(
        dialled_reader,
        dialled_writer,
        head,
    )
    opened = await opening
    try:
        yield opened, accepted
    finally:
        opened.close()
        accepted.close()


async def open_carrier(sock):
    reader, writer = await streams_of(sock)
    return await Carrier.open(
        reader,
        writer,
        "http://node",
    )


def link_on(carrier, serve, *, dials_out):
    origin = LinkOrigin(
        "JG0100002200000020",
        "127.0.0.1:1",
        dials_out=dials_out,
        since=datetime.now(UTC),
        url="",
    )
    return Link(
        carrier,
        origin,
        serve,
    )


class Upload:
    """A socket to whose other end bytes are sent until it is closed."""

    def __init__(self, link):
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        link.adopt(theirs)

    async def send(self):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.sock, bytes(SIZE))


@dataclass
class Receiver:
    """Counts the bytes of the streams that it serves."""

    received: int = 0

    def __post_init__(self):
        self.tasks = []
        self.is_complete = asyncio.Event()

    def serve(self, sock, _):
        sock.setblocking(False)
        self.tasks.append(asyncio.create_task(self.count(sock)))

    async def count(self, sock):
        loop = asyncio.get_running_loop()
        with sock:
            while data := await loop.sock_recv(sock, 65536):
                self.received += len(data)
                if self.received == STREAMS * SIZE:
                    self.is_complete.set()


async def send_both_ways():
    async with carriers() as ends, asyncio.timeout(SECONDS):
        receivers = [Receiver(), Receiver()]
        links = [
            link_on(
                carrier,
                receiver.serve,
                dials_out=dials_out,
            )
            for carrier, receiver, dials_out in zip(
                ends,
                receivers,
                (True, False),
                strict=True,
            )
        ]
        running = [asyncio.create_task(link.run()) for link in links]
        uploads = [Upload(link) for link in links for _ in range(STREAMS)]
        sending = [asyncio.create_task(upload.send()) for upload in uploads]
        await asyncio.gather(*(receiver.is_complete.wait() for receiver in receivers))
        await asyncio.gather(*sending)
        with ExitStack() as stack:
            for upload in uploads:
                stack.enter_context(upload.sock)
        for link in links:
            link.close()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*receivers[0].tasks, *receivers[1].tasks)


def test_both_ends_of_a_link_send_at_once_more_than_the_connection_holds():
    asyncio.run(send_both_ways())


async def send_to_an_end_that_reads_nothing():
    async with carriers() as (opened, _), asyncio.timeout(SECONDS):
        link = link_on(
            opened,
            Receiver().serve,
            dials_out=True,
        )
        running = asyncio.create_task(link.run())
        uploads = [Upload(link) for _ in range(STREAMS)]
        sending = [asyncio.create_task(upload.send()) for upload in uploads]
        with pytest.raises(LinkLost):
            await running
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        for upload in uploads:
            upload.sock.close()


def test_a_link_ends_though_bytes_wait_for_an_end_that_reads_nothing(monkeypatch):
    monkeypatch.setattr(link_module, "PING_SECONDS", 0.1)
    monkeypatch.setattr(link_module, "SILENCE_SECONDS", 0.5)
    asyncio.run(send_to_an_end_that_reads_nothing())


async def ask_for_a_stream(monkeypatch):
    async with carriers() as (opened, accepted), asyncio.timeout(SECONDS):
        links = [
            link_on(
                opened,
                Receiver().serve,
                dials_out=True,
            ),
            link_on(
                accepted,
                Receiver().serve,
                dials_out=False,
            ),
        ]
        running = [asyncio.create_task(link.run()) for link in links]
        upload = Upload(links[0])
        monkeypatch.setattr(link_module.socket, "socketpair", fail_without_descriptors)
        loop = asyncio.get_running_loop()
        with upload.sock as sock:
            assert await loop.sock_recv(sock, 1) == b""
        assert not any(task.done() for task in running)
        for link in links:
            link.close()
        await asyncio.gather(*running, return_exceptions=True)


def fail_without_descriptors():
    raise OSError("Too many open files")


def test_a_link_outlasts_a_stream_for_which_no_descriptor_is_free(monkeypatch):
    asyncio.run(ask_for_a_stream(monkeypatch))


async def reset_while_bytes_arrive():
    """Let a stream's end and its next bytes arrive at the same time; return unforeseen errors."""
    errors = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    async with carriers() as (opened, accepted), asyncio.timeout(SECONDS):
        link = link_on(
            opened,
            Receiver().serve,
            dials_out=True,
        )
        running = asyncio.create_task(link.run())
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            link.adopt(theirs)
            frame = decode(await accepted.receive())
            reset = Frame(Kind.RESET, frame.stream)
            accepted.post(encode(reset))
            ours.send(b"x")
            with suppress(ConnectionError):  # its last byte was unread
                assert await loop.sock_recv(ours, 1) == b""
        link.close()
        await asyncio.gather(running, return_exceptions=True)
    gc.collect()  # reports the errors of forgotten tasks
    return errors


def test_bytes_of_a_stream_that_ends_at_the_same_time_are_no_fault():
    assert asyncio.run(reset_while_bytes_arrive()) == []


FLOOD = 500  # streams; all of their frames arrive together


async def flood_with_streams():
    """Open and break off many streams; return how many of them had sockets at a time."""
    counts = []
    is_over = asyncio.Event()

    def serve(sock, _):
        sock.close()
        counts.append(link.streams)
        if len(counts) == FLOOD:
            is_over.set()

    async with carriers() as (opened, accepted), asyncio.timeout(SECONDS):
        for number in range(1, 2 * FLOOD, 2):
            opened.post(encode(Frame(Kind.OPEN, number)))
            opened.post(encode(Frame(Kind.RESET, number)))
        link = link_on(
            accepted,
            serve,
            dials_out=False,
        )
        running = asyncio.create_task(link.run())
        await is_over.wait()
        link.close()
        await asyncio.gather(running, return_exceptions=True)
    return max(counts)


def test_a_flood_of_streams_that_are_broken_off_holds_few_sockets():
    assert asyncio.run(flood_with_streams()) < 10


class FaultyConnection:
    """Fails in a way that nobody has foreseen."""

    def __init__(self):
        self.attempts = 0

    def open(self, _):
        self.attempts += 1
        raise LookupError("an unforeseen fault")


async def dial(connection):
    route = Route(
        "JG0100002200000020",
        "http://127.0.0.1:9",
        dial="out",
    )
    pair = KeyPair(KEY_GENERATORS["ed25519"]())
    parts = DialParts(
        node="JG0100001100000010",
        routes=lambda: [route],
        key=lambda: pair,
        ways=Ways(connection.open, lambda _: None),
        clock=lambda: datetime.now(UTC),
    )
    dialling = asyncio.create_task(Dialler(parts, Links()).run())
    async with asyncio.timeout(SECONDS):
        while connection.attempts <= LINKS_PER_ROUTE:
            await asyncio.sleep(0.05)
    dialling.cancel()
    await asyncio.gather(dialling, return_exceptions=True)


def test_a_link_is_dialled_again_after_an_unforeseen_fault():
    connection = FaultyConnection()
    asyncio.run(dial(connection))
    assert connection.attempts > LINKS_PER_ROUTE


async def answer_pings_before_the_proof():
    """Ping an end that accepts a connection, and read nothing; return its error."""
    async with carriers() as (opened, accepted), asyncio.timeout(SECONDS):
        receiving = asyncio.create_task(accepted.receive())
        while not receiving.done():
            for _ in range(100):
                opened._protocol.send_ping(LARGEST_PING)
            opened._write()
            await asyncio.sleep(0)
        error = receiving.exception()
        transport = accepted._writer.transport
        unsent = transport.get_write_buffer_size()
        return error, unsent


def test_few_answers_wait_for_an_end_that_has_proven_nothing():
    answering = answer_pings_before_the_proof()
    error, unsent = asyncio.run(answering)
    assert "reads nothing" in str(error)
    assert unsent < 1024**2


async def send_empty_frames():
    """Send a message in empty frames, without an end; return the other end's error."""
    async with carriers() as (opened, accepted), asyncio.timeout(SECONDS):
        receiving = asyncio.create_task(accepted.receive())
        opened._protocol.send_binary(b"", fin=False)
        while not receiving.done():
            for _ in range(100):
                opened._protocol.send_continuation(b"", fin=False)
            opened._write()
            await asyncio.sleep(0)
        return receiving.exception()


def test_a_message_of_endless_empty_frames_ends_the_link():
    error = asyncio.run(send_empty_frames())
    assert isinstance(error, LinkLost)
    assert "too many frames" in str(error)


class StandingLink:
    """A link that keeps the sockets of its streams."""

    last_received = math.inf

    def __init__(self):
        self.sockets = []
        self.origin = LinkOrigin(
            NODE,
            "127.0.0.1:1",
            dials_out=False,
            since=datetime.now(UTC),
            url="",
        )

    @property
    def streams(self):
        return len(self.sockets)

    def adopt(self, sock):
        self.sockets.append(sock)

    async def run(self):
        await asyncio.Event().wait()


async def connect_over_two_links(*, is_waiting):
    """Open ten connections; return how many each of two links has got.

    ``is_waiting``: whether the event loop begins their streams in between.
    """
    links = Links()
    links.serve_with(lambda *_: None)
    standing = []
    running = []
    for _ in range(2):
        link = StandingLink()
        standing.append(link)
        task = asyncio.create_task(links.run(link))
        running.append(task)
    await asyncio.sleep(0)
    with ExitStack() as stack:
        for _ in range(10):
            sock = links.connect(f"link://{NODE}")
            stack.enter_context(sock)
            if is_waiting:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        for link in standing:
            for sock in link.sockets:
                stack.enter_context(sock)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert not links._coming
    return [link.streams for link in standing]


@pytest.mark.parametrize("is_waiting", [True, False])
def test_connections_are_spread_over_the_links_of_a_node(is_waiting):
    connecting = connect_over_two_links(is_waiting=is_waiting)
    streams = asyncio.run(connecting)
    assert streams == [5, 5]


async def begin_a_link(links):
    """Begin a link, and leave it as it is when the event loop ends."""
    links.serve_with(lambda *_: None)
    running = links.run(StandingLink())
    running.send(None)
    return running


def test_a_connection_after_the_end_of_the_event_loop_is_refused():
    links = Links()
    beginning = begin_a_link(links)
    running = asyncio.run(beginning)
    with pytest.raises(NoLink):
        links.connect(f"link://{NODE}")
    assert links.count(NODE) == 1
    running.close()
