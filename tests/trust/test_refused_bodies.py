"""Large bodies cost a node little memory: few are there together, and refused ones leave nothing behind."""

import http.client
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
import yaml
from anyio import CapacityLimiter
from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.types import Message

from adapter.bfia.requests import signature_check
from adapter.body import LARGE, LARGE_OF_ALL, LARGE_OF_SENDER, JsonRoute
from gateway.auth import ORIGIN, RequestOrigin, origin
from gateway.errors import Busy
from gateway.http.app import Mounted, create_app
from tests.e2e.nodes import Federation, Node, wait_for
from tests.inprocess import ME, PEER, STRANGER
from tools.bench.upload import resident

MIB = 1024**2
SIZE = 30 * MIB
INVOKE = "/v1/interconn/chan/invoke"
CREATE = "/v1/interconn/schedule/job/create"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    home = tmp_path_factory.mktemp("nodes")
    federation = Federation(home, [ME], {"kind": "process"})
    (home / ME / "routes.yml").write_text(yaml.safe_dump({PEER: {"host": "127.0.0.1", "port": 9}}))
    with federation:
        yield federation[ME]


def envelope(source: str) -> bytes:
    names = {
        "source-node-id": source,
        "target-node-id": ME,
        "session-id": "s",
        "topic": "t",
        "uri": "/no",
    }
    metadata = {f"x-ptp-{name}": value for name, value in names.items()}
    return json.dumps({"metadata": metadata, "payload": "A" * SIZE}).encode()


@pytest.mark.parametrize(
    ("path", "headers", "made"),
    [
        (INVOKE, JSON, lambda: envelope(STRANGER)),
        (INVOKE, JSON, lambda: envelope(PEER)),
        (INVOKE, JSON, lambda: b"[" * SIZE),
        (CREATE, JSON | {"x-source-node-id": STRANGER}, lambda: b"x" * SIZE),
        (CREATE, JSON | {"x-source-node-id": PEER}, lambda: b'{"job_id": "%s"}' % (b"x" * SIZE)),
    ],
    ids=["unknown peer", "known peer", "brackets", "control of unknown", "long id"],
)
def test_nothing_is_held_after_a_refusal(
    node: Node,
    path: str,
    headers: dict[str, str],
    made: Callable[[], bytes],
) -> None:
    body = made()
    host = node.peer.removeprefix("http://")
    connections = [http.client.HTTPConnection(host, timeout=120) for _ in range(5)]
    try:
        for number, connection in enumerate(connections):  # they stay open
            if number == 1:
                before = resident(node)  # the allocator keeps some of the first
            connection.request("POST", path, body, headers)
            answer = json.loads(connection.getresponse().read())
            assert answer["code"] not in (0, "E0000000000"), answer
        wait_for(
            lambda: resident(node) - before < 100 * MIB, about="nothing of four bodies is held"
        )
    finally:
        for connection in connections:
            connection.close()


CLAIMS = dict.fromkeys(("x-ptp-source-node-id", "x-source-node-id"), PEER)
ABOUT = {
    "x-ptp-version": "1",
    "x-ptp-session-id": "s",
    "x-ptp-topic": "t",
    "x-ptp-target-node-id": ME,
}
OF_ANYBODY = {
    "a stranger's envelope": {},
    "a partner's name": ABOUT | CLAIMS,
    "a gateway of this node": ABOUT | CLAIMS | {"x-handed-on": "1"},
    "an envelope of a gateway of this node": {"x-handed-on": "1"},
}


def test_few_large_messages_of_unproven_senders_are_in_memory_together(node: Node) -> None:
    """However they are said to come: of four there is room, of none of the four ways for more."""
    host = node.peer.removeprefix("http://")
    body = envelope(PEER)
    refusals: list[str] = []
    peak = before = resident(node)

    def send(headers: dict[str, str]) -> None:
        with closing(http.client.HTTPConnection(host, timeout=120)) as connection:
            connection.request("POST", INVOKE, body, JSON | headers)
            refusals.append(json.loads(connection.getresponse().read())["code"])

    senders = [
        threading.Thread(target=send, args=(headers,))
        for headers in OF_ANYBODY.values()
        for _ in range(3)
    ]
    for sender in senders:
        sender.start()
    while any(sender.is_alive() for sender in senders):
        peak = max(peak, resident(node))
    assert len(refusals) == len(senders)
    assert peak - before < 6 * SIZE  # some of a body that is refused is given back late


def test_few_bodies_are_in_memory_together() -> None:
    router, end, came = APIRouter(route_class=JsonRoute), anyio.Event(), Counter[tuple[int, int]]()
    each, answers = range(2 * LARGE_OF_SENDER), list[int]()

    @router.post("/")
    async def take(body: dict[str, str]) -> int:
        return len(body["x"])

    app = create_app("test", [Mounted(router, None)])

    async def body(sender: int, number: int) -> AsyncIterator[bytes]:
        yield b'{"x": "'
        for _ in range(8):
            came[sender, number] += LARGE // 2
            yield b"x" * (LARGE // 2)
        await end.wait()
        yield b'"}'

    async def send(sender: int, number: int) -> None:
        transport = httpx.ASGITransport(app, client=(f"10.0.0.{sender}", 1))
        async with httpx.AsyncClient(
            transport=transport,
            base_url="http://test",
            timeout=None,
        ) as client:
            answers.append((await client.post("/", content=body(sender, number))).json())

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for sender in range(LARGE_OF_ALL):
                for number in each:
                    group.start_soon(send, sender, number)
                await anyio.wait_all_tasks_blocked()
                whole = Counter(of for (of, _), size in came.items() if size == 4 * LARGE)
                assert (
                    whole.total() == min((sender + 1) * LARGE_OF_SENDER, LARGE_OF_ALL)
                    and max(whole.values()) == LARGE_OF_SENDER
                )
            assert (
                sum(came.values())
                <= LARGE_OF_ALL * 4 * LARGE + LARGE_OF_ALL * len(each) * 3 * LARGE // 2
            )
            end.set()

    anyio.run(main)
    assert answers == [4 * LARGE] * LARGE_OF_ALL * len(each)


def test_a_large_body_without_a_place_is_refused_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router, end, reached = APIRouter(route_class=JsonRoute), anyio.Event(), list[int]()

    @router.post("/")
    async def take(request: Request) -> None:
        reached.append(len(await request.body()))
        await end.wait()

    app = create_app("test", [Mounted(router, None)])

    async def last() -> AsyncIterator[bytes]:
        yield b" "
        monkeypatch.setattr(
            "adapter.body.BODY_SECONDS", 0.01
        )  # to get its place: it has arrived that far
        yield b" " * 2 * LARGE

    async def main() -> None:
        transport = httpx.ASGITransport(app)
        async with (
            httpx.AsyncClient(
                transport=transport,
                base_url="http://test",
                timeout=None,
            ) as client,
            anyio.create_task_group() as group,
        ):
            for _ in range(LARGE_OF_SENDER):
                group.start_soon(partial(client.post, "/", content=b" " * 2 * LARGE))
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(60), pytest.raises(Busy):
                await client.post("/", content=last())
            end.set()

    anyio.run(main)
    assert reached == [2 * LARGE] * LARGE_OF_SENDER


def test_the_sender_of_a_long_body_is_proven_before_that_takes_its_place() -> None:
    """Else all partners behind one proxy would share the places of one address."""
    verifier: Any = SimpleNamespace(check_headers=lambda *_: None, check=lambda *_: "key")
    entry: Any = SimpleNamespace(signing_mode="required", keys=())
    headers = {
        "x-source-node-id": PEER,
        "x-auth-sign": "input=a, signature=b",
        "content-length": "100000",
    }
    path = "/v1/interconn/schedule/job/create"
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
    }
    senders = list[str]()

    async def receive() -> Message:
        senders.append(origin().node)
        return {"type": "http.request", "body": b" " * 100_000}

    async def main() -> None:
        ORIGIN.set(RequestOrigin())
        request = Request(scope | {"headers": Headers(headers).raw}, receive)
        await signature_check(verifier, lambda _: entry, CapacityLimiter(1))(request)

    anyio.run(main)
    assert senders == [PEER]
