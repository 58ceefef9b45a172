"""Attack: large request bodies fill a node's memory.

Few are accepted at a time, and the memory of refused ones is freed.
"""

import http.client
import json
import threading
from collections import Counter
from contextlib import ExitStack, asynccontextmanager, closing
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import anyio
import httpx
import pytest
import yaml
from anyio import CapacityLimiter
from fastapi import APIRouter, Request
from starlette.datastructures import Headers

from adapter.bfia.control_sealing import RequestOpener
from adapter.bfia.requests import signature_check
from adapter.body import LARGE, LARGE_OF_ALL, LARGE_OF_SENDER, JsonRoute
from gateway.auth import ORIGIN, RequestOrigin, origin
from gateway.errors import Busy
from gateway.http.app import Mounted, create_app
from route_table.model import Route
from tests.e2e.nodes import Federation, wait_for
from tests.inprocess import ME, PEER, STRANGER
from tools.bench.upload import resident

MIB = 1024**2
SIZE = 30 * MIB  # of a large body
INVOKE = "/v1/interconn/chan/invoke"
CREATE = "/v1/interconn/schedule/job/create"
JSON = {"content-type": "application/json"}


# ---------------------------------------------------------------- memory of a node process


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Give a node in a process of its own, whose memory can be measured."""
    home = tmp_path_factory.mktemp("nodes")
    federation = Federation(
        home,
        [ME],
        {"kind": "process"},
    )
    routes = {PEER: {"host": "127.0.0.1", "port": 9}}
    (home / ME / "routes.yml").write_text(yaml.safe_dump(routes))
    with federation:
        yield federation[ME]


def connect(node):
    """Open an HTTP connection to the peers' listener."""
    host = node.peer.removeprefix("http://")
    return http.client.HTTPConnection(
        host,
        timeout=120,
    )


def post(connection, path, body, headers):
    """Send a request; return the code of the response."""
    connection.request("POST", path, body, JSON | headers)
    return json.loads(connection.getresponse().read())["code"]


def an_envelope(source):
    """Build a large message that names its sender in the body."""
    metadata = {
        "x-ptp-source-node-id": source,
        "x-ptp-target-node-id": ME,
        "x-ptp-session-id": "s",
        "x-ptp-topic": "t",
        "x-ptp-uri": "/no",
    }
    return json.dumps({"metadata": metadata, "payload": "A" * SIZE}).encode()


def envelope_of_stranger():
    return an_envelope(STRANGER)


def envelope_of_peer():
    return an_envelope(PEER)


def brackets():
    return b"[" * SIZE


def letters():
    return b"x" * SIZE


def job_with_long_id():
    return b'{"job_id": "%s"}' % letters()


FROM_STRANGER = {"x-source-node-id": STRANGER}
FROM_PEER = {"x-source-node-id": PEER}


@pytest.mark.parametrize(
    ("path", "headers", "build_body"),
    [
        (INVOKE, {}, envelope_of_stranger),
        (INVOKE, {}, envelope_of_peer),
        (INVOKE, {}, brackets),
        (CREATE, FROM_STRANGER, letters),
        (CREATE, FROM_PEER, job_with_long_id),
    ],
)
def test_the_memory_of_refused_bodies_is_freed(node, path, headers, build_body):
    body = build_body()
    with ExitStack() as stack:

        def send_on_new_connection():
            """Send a refused body; the connection stays open until the end of the test."""
            connection = stack.enter_context(closing(connect(node)))
            assert post(connection, path, body, headers) not in (0, "E0000000000")

        send_on_new_connection()
        before = resident(node)  # with the memory that the allocator keeps after one body
        for _ in range(4):
            send_on_new_connection()

        wait_for(
            lambda: resident(node) - before < 100 * MIB,
            about="nothing of four bodies is held",
        )


AS_PEER = {
    "x-ptp-version": "1",
    "x-ptp-session-id": "s",
    "x-ptp-topic": "t",
    "x-ptp-target-node-id": ME,
    "x-ptp-source-node-id": PEER,
    "x-source-node-id": PEER,
}
# Headers of senders that prove nothing.
UNPROVEN_SENDERS = [
    {},  # a stranger with an envelope
    AS_PEER,
    AS_PEER | {"x-handed-on": "1"},  # a gateway of this node
    {"x-handed-on": "1"},  # with an envelope
]


def test_few_large_messages_of_unproven_senders_are_in_memory_together(node):
    """There is room for four of them; three arrive in each of four ways."""
    body = an_envelope(PEER)
    codes = []

    def send(headers):
        with closing(connect(node)) as connection:
            codes.append(post(connection, INVOKE, body, headers))

    before = resident(node)
    peak = before
    senders = []
    for headers in UNPROVEN_SENDERS * 3:
        sender = threading.Thread(
            target=send,
            args=(headers,),
        )
        senders.append(sender)
        sender.start()
    while any(sender.is_alive() for sender in senders):
        peak = max(peak, resident(node))

    assert len(codes) == len(senders)
    # Four bodies, and parts of refused ones that are freed late.
    assert peak - before < 6 * SIZE


# ---------------------------------------------------------------- places for large bodies


@asynccontextmanager
async def client_of(app, sender="127.0.0.1"):
    """Give a client of an application, with the address of a sender."""
    transport = httpx.ASGITransport(
        app,
        client=(sender, 1),
    )
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test", timeout=None
    ) as client:
        yield client


def an_app(handler):
    """Return an application that serves one path by a handler."""
    router = APIRouter(route_class=JsonRoute)
    router.post("/")(handler)
    return create_app("test", [Mounted(router, None)])


class Senders:
    """Senders of large bodies, who wait for ``end`` before the last bytes."""

    def __init__(self):
        self.end = anyio.Event()
        self.bytes_sent = Counter()  # by sender and number of the body
        self.responses = []
        self.app = an_app(self._return_length)

    async def _return_length(
        self,
        body: dict[str, str],
    ) -> int:
        return len(body["x"])

    async def _body(self, sender, number):
        yield b'{"x": "'
        for _ in range(8):
            self.bytes_sent[sender, number] += LARGE // 2
            yield b"x" * (LARGE // 2)
        await self.end.wait()
        yield b'"}'

    async def send(self, sender, number):
        async with client_of(self.app, f"10.0.0.{sender}") as client:
            response = await client.post(
                "/",
                content=self._body(sender, number),
            )
        self.responses.append(response.json())

    def count_bodies_in_memory(self):
        """Return the number of bodies in memory, by sender."""
        counts = Counter()
        for (sender, _), size in self.bytes_sent.items():
            if size == 4 * LARGE:
                counts[sender] += 1
        return counts


def test_few_bodies_are_in_memory_together():
    senders = Senders()
    bodies_of_each = 2 * LARGE_OF_SENDER

    async def send_all():
        async with anyio.create_task_group() as group:
            for sender in range(LARGE_OF_ALL):
                for number in range(bodies_of_each):
                    group.start_soon(senders.send, sender, number)
                await anyio.wait_all_tasks_blocked()
                counts = senders.count_bodies_in_memory()
                assert counts.total() == min((sender + 1) * LARGE_OF_SENDER, LARGE_OF_ALL)
                assert max(counts.values()) == LARGE_OF_SENDER
            # A body without a place waits after at most one and a half of LARGE.
            in_place = LARGE_OF_ALL * 4 * LARGE
            waiting = LARGE_OF_ALL * bodies_of_each * 3 * LARGE // 2
            assert senders.bytes_sent.total() <= in_place + waiting
            senders.end.set()

    anyio.run(send_all)
    assert senders.responses == [4 * LARGE] * LARGE_OF_ALL * bodies_of_each


def test_a_large_body_without_a_place_is_refused_after_a_while(monkeypatch):
    end = anyio.Event()
    sizes = []
    large_body = b" " * 2 * LARGE

    async def hold_body(request: Request) -> None:
        sizes.append(len(await request.body()))
        await end.wait()

    async def one_body_too_many():
        yield b" "
        # The time for a place, which must not shorten the arrival of the other bodies.
        monkeypatch.setattr("adapter.body.BODY_SECONDS", 0.01)
        yield large_body

    async def send_all():
        async with client_of(an_app(hold_body)) as client, anyio.create_task_group() as group:
            for _ in range(LARGE_OF_SENDER):
                group.start_soon(partial(client.post, "/", content=large_body))
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(60), pytest.raises(Busy):
                await client.post(
                    "/",
                    content=one_body_too_many(),
                )
            end.set()

    anyio.run(send_all)
    assert sizes == [2 * LARGE] * LARGE_OF_SENDER


def test_the_sender_of_a_long_body_is_proven_before_the_body_has_a_place():
    """Otherwise all partners behind one proxy would share the places of one address."""
    verifier = SimpleNamespace(
        check_headers=Mock(),
        check=Mock(return_value="key"),
    )
    route = Route(PEER, "", signing="required")
    headers = {
        "x-source-node-id": PEER,
        "x-auth-sign": "input=a, signature=b",
        "content-length": "100000",
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": CREATE,
        "raw_path": CREATE.encode(),
        "query_string": b"",
        "headers": Headers(headers).raw,
    }
    proven_senders = []

    async def receive():
        proven_senders.append(origin().node)
        return {"type": "http.request", "body": b" " * 100_000}

    async def check_request():
        ORIGIN.set(RequestOrigin())
        check = signature_check(
            verifier,
            Mock(return_value=route),
            CapacityLimiter(1),
            RequestOpener(ME, seals=None),
        )
        await check(Request(scope, receive))

    anyio.run(check_request)
    assert proven_senders == [PEER]
