"""Serves SecretFlow's client on loopback and passes its messages on to the node's channel.

A message counts as read when the client sends its next request on the connection of the response.
If the connection ends first, the client has discarded the message: the next pop gets it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from sfvendor.channel import POP_SECONDS, SUCCESS, Channel, Outbound, Post, Refused

WAIT_SECONDS = 1.0  # as the client asks for; it gives up after two
READ_AHEAD = 8  # messages of a topic that are taken before the client asks for them
THREADS = 16  # that send messages to the gateway; an engine limits a container's threads
# The client opens many connections together; one that does not fit tries again after a second.
BACKLOG = 128


def http_post(transport: str) -> Post:
    """Return a function that posts to the node's channel at an address, host:port.

    Its connections are shared by all threads, as the client opens a new one for most messages.
    """
    idle: list[http.client.HTTPConnection] = []

    def post(
        path: str,
        body: bytes,
        headers: Mapping[str, str],
    ) -> bytes:
        try:
            connection = idle.pop()
        except IndexError:
            connection = http.client.HTTPConnection(transport, timeout=2 * POP_SECONDS)
        try:
            connection.request("POST", path, body, dict(headers))
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise OSError(str(error)) from error
        idle.append(connection)
        if response.status >= 500:
            raise OSError(f"HTTP {response.status}")
        return content

    return post


class Mailbox:
    """Messages of a topic that the client has not read."""

    def __init__(self) -> None:
        self._new: asyncio.Queue[bytes] = asyncio.Queue(READ_AHEAD)
        self._returned: deque[bytes] = deque()

    async def put(self, message: bytes) -> None:
        """Add a message, once there is room for it."""
        await self._new.put(message)

    async def take(self) -> bytes:
        """Take a message; empty if none arrives in time."""
        if self._returned:
            return self._returned.popleft()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                return await self._new.get()
        return b""

    def put_back(self, message: bytes) -> None:
        """Keep a message that was not read. Its order does not matter: the client numbers them."""
        self._returned.append(message)


class Relay:
    """A server for SecretFlow's client, which runs in another process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._on_refusal: Callable[[], None]  # set by `start`
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._threads = ThreadPoolExecutor(THREADS)
        self._mailboxes: dict[str, Mailbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """The value of ``system.transport`` for the client."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def start(self, on_refusal: Callable[[], None]) -> None:
        """Serve the client in a thread; its connections have waited until now.

        ``on_refusal``: called when the gateway has refused a message
        """
        self._on_refusal = on_refusal
        thread = threading.Thread(
            target=asyncio.run,
            args=[self._serve()],
            daemon=True,
        )
        thread.start()

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._serve_connection,
            sock=self._socket,
        )
        await server.serve_forever()

    async def _serve_connection(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        mailbox = Mailbox()
        delivered = b""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                delivered = b""
                path, headers, length = parse_head(head)
                body = await reader.readexactly(length)
                if "/pop" in path:
                    mailbox = self._mailbox(headers)
                    delivered = await mailbox.take()
                    content = Outbound(delivered, SUCCESS, "").encode()
                else:
                    content = await self._push(body, headers)
                head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content)
                # In one piece: the system would send a second one only after a pause.
                writer.write(head + content)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has closed the connection
        except Refused as error:
            self._refuse(error)
        finally:
            if delivered:
                mailbox.put_back(delivered)
            writer.close()

    def _mailbox(self, headers: Mapping[str, str]) -> Mailbox:
        """Return the mailbox of a topic, which is filled from its first use on."""
        topic = headers["x-ptp-topic"]
        mailbox = self._mailboxes.get(topic)
        if mailbox is None:
            mailbox = self._mailboxes[topic] = Mailbox()
            task = asyncio.create_task(self._fill(mailbox, headers))
            self._tasks.add(task)
        return mailbox

    async def _fill(
        self,
        mailbox: Mailbox,
        headers: Mapping[str, str],
    ) -> None:
        try:
            while True:
                message = await asyncio.to_thread(self._channel.pop, headers)
                if message:
                    await mailbox.put(message)
        except Refused as error:
            self._refuse(error)

    async def _push(
        self,
        body: bytes,
        headers: Mapping[str, str],
    ) -> bytes:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads,
            self._channel.push,
            body,
            headers,
        )

    def _refuse(self, error: Refused) -> None:
        """End the task, which cannot continue without the message."""
        print("error", error, flush=True)
        self._on_refusal()


def parse_head(head: bytes) -> tuple[str, dict[str, str], int]:
    """Return a request's path, its headers of the channel and the length of its body."""
    request_line, *lines = head.decode("latin-1").rstrip().split("\r\n")
    pairs = [line.partition(":") for line in lines]
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    length = int(headers.get("content-length", 0))
    channel_headers = {name: value for name, value in headers.items() if name.startswith("x-ptp-")}
    return request_line.split(" ")[1], channel_headers, length
