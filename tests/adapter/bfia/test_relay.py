"""A → X → B: what is addressed to another node is passed on where both routes allow it, else refused by name."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
import yaml

from adapter.bfia import relay
from adapter.bfia.channel.bodies import AT_ONCE
from adapter.bfia.channel.courier import Courier
from adapter.bfia.peer import RELAY_CODES as CODES
from adapter.bfia.peer import RELAY_LOOP as LOOP
from adapter.bfia.peer import RELAY_NOT_ALLOWED as NOT_ALLOWED
from adapter.bfia.peer import TARGET_UNREACHABLE as UNREACHABLE
from adapter.bfia.peer import WITHIN
from adapter.bfia.relay import MOST_HOPS, Relay, RelayRefused, judge
from gateway.bootstrap.node import Gateway
from gateway.errors import GatewayError, NotFound, PeerUnreachable
from gateway.identity.keys import Keyring
from route_table.document import parse
from route_table.model import Identity
from tests.inprocess import ME, PEER, ask, running

A, B, X = ME, PEER, "JG0100003300000030"
HELLO = "/v1/interconn/schedule/node/hello"
INVOKE = "/v1/interconn/chan/invoke"
NO_ROUTE, TOO_FAR = "RELAY_NO_ROUTE", "RELAY_TOO_FAR"
TABLE = (
    "A: {url: 'http://a', relay: true}\nB: {url: 'http://b', relay: true}\nC: {url: 'http://c'}\n"
)


@pytest.mark.parametrize(
    ("table", "source", "target", "way", "reason"),
    [
        (TABLE, "A", "B", ("Y", "X"), LOOP),
        (TABLE, "X", "B", (), LOOP),
        (TABLE, "A", "B", ("B",), None),
        (TABLE, "A", "B", tuple(f"Y{i}" for i in range(MOST_HOPS)), TOO_FAR),
        (TABLE, "", "B", (), NOT_ALLOWED),
        (TABLE, "Z", "B", (), NOT_ALLOWED),
        (TABLE, "C", "B", (), NOT_ALLOWED),
        (TABLE, "A", "C", (), NOT_ALLOWED),
        (TABLE, "A", "Z", (), NO_ROUTE),
        (TABLE.replace("'http://b'", "'http://b', enabled: no"), "A", "B", (), NO_ROUTE),
        (TABLE.replace("url: 'http://b'", "via: A"), "A", "B", (), LOOP),
        (TABLE.replace("url: 'http://b'", "via: C"), "A", "B", ("C",), LOOP),
        (TABLE.replace("url: 'http://b'", "via: C"), "A", "B", ("Y",), None),
        (TABLE + "default: {via: C}\n", "A", "Z", (), NOT_ALLOWED),
        (TABLE + "default: {via: C, relay: true}\n", "A", "Z", (), None),
        (TABLE + "default: {via: C, relay: true}\n", "Z", "A", (), NOT_ALLOWED),
    ],
)
def test_relaying_needs_the_routes_of_both_ends(
    table: str,
    source: str,
    target: str,
    way: tuple[str, ...],
    reason: str | None,
):
    if reason is None:
        assert judge(parse(table), "X", source, target, way).node == target
        return
    with pytest.raises(RelayRefused) as refused:
        judge(parse(table), "X", source, target, way)
    assert refused.value.reason == reason


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A and B know no address of each other, only that of X."""
    home: Path = tmp_path_factory.mktemp("relay")
    with running(home / "x", X) as x, running(home / "a", A) as a, running(home / "b", B) as b:
        nodes = SimpleNamespace(
            a=a,
            b=b,
            x=x,
        )
        hop = {"url": x.addresses()["peer"]}
        route(a, X, hop)
        route(b, X, hop)
        route(a, B, {"via": X})
        route(b, A, {"via": X})
        yield nodes


@pytest.fixture
def allowed(three: SimpleNamespace) -> SimpleNamespace:
    for node, gateway in ((A, three.a), (B, three.b)):
        route(three.x, node, {"url": gateway.addresses()["peer"], "relay": True})
    return three


def route(
    gateway: Gateway,
    node: str,
    entry: dict[str, Any],
) -> None:
    if node != "default" and "keys" not in entry:
        entry = {"signing": "accepted"} | entry
    answer = ask(gateway, "operator", "PUT", f"/api/v1/routes/{node}", json={"route": entry})
    assert answer.status_code == 200, answer.text


def steps(gateway: Gateway, node: str) -> dict[str, dict[str, Any]]:
    found = ask(gateway, "operator", "POST", f"/api/v1/routes/{node}/test").json()["steps"]
    return {step["name"]: step for step in found}


def failed(found: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, step in found.items() if step["result"] == "failed"]


def hello(gateway: Gateway, node: str) -> Any:
    return gateway.protocol.peer(node).post("/node/hello", {"node_id": A})


def push(
    gateway: Gateway,
    path: str = INVOKE,
    **headers: str,
) -> dict[str, Any]:
    said = {
        "x-ptp-session-id": "s1",
        "x-ptp-target-node-id": B,
        "x-ptp-source-node-id": A,
        "x-ptp-version": "1",
        "x-ptp-topic": "t",
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"topic": "t", "payload": base64.b64encode(b"hi").decode()}
    return dict(ask(gateway, "peer", "POST", path, json=body, headers=said).json())


def test_both_ways_through_a_node_that_allows_it(allowed: SimpleNamespace):
    assert hello(allowed.a, B)["node_id"] == B and allowed.a.protocol.reaches(B)
    found = steps(allowed.a, B)
    assert failed(found) == [] and found["relay"]["result"] == "ok", found
    assert f"passed on by {X}" in found["route"]["found"]
    assert push(allowed.x)["code"] == "E0000000000"
    assert allowed.b.broker.holds("s1")
    assert (
        "of no job here"
        in push(allowed.x, INVOKE.replace("invoke", "part"), x_ptp_message_id="m")["message"]
    )


def test_signatures_hold_through_a_relay(allowed: SimpleNamespace):
    of_a, of_b = (
        Keyring(node.settings.state_dir).make("ed25519").public for node in (allowed.a, allowed.b)
    )
    route(allowed.b, A, {"via": X, "keys": of_a})
    route(allowed.a, B, {"via": X, "keys": of_b})
    try:
        assert hello(allowed.a, B)["node_id"] == B
        with pytest.raises(NotFound):
            allowed.a.protocol.scheduler(B).job_status("job-none", A)
        about = {"x-source-node-id": A, "x-target-node-id": B}
        path = "/v1/interconn/schedule/task/poll"
        said = ask(
            allowed.x, "peer", "POST", path, json={"task_id": "t", "role": "guest"}, headers=about
        ).json()
        assert said["data"]["reason"] == "SIGNATURE_REFUSED"
        route(allowed.x, B, {"url": allowed.b.addresses()["peer"]})
        with pytest.raises(PeerUnreachable) as unproven:
            hello(allowed.a, B)
        assert (
            unproven.value.reason == NOT_ALLOWED and "passes on nothing" in unproven.value.message
        )
        assert failed(steps(allowed.a, B)) == ["relay"]
    finally:
        route(allowed.b, A, {"via": X})
        route(allowed.a, B, {"via": X})
        route(allowed.x, B, {"url": allowed.b.addresses()["peer"], "relay": True})


def test_a_relay_refuses_by_name_and_writes_it_down(three: SimpleNamespace):
    for node, gateway in ((A, three.a), (B, three.b)):
        route(three.x, node, {"url": gateway.addresses()["peer"]})
    with pytest.raises(GatewayError) as refused:
        hello(three.a, B)
    assert refused.value.reason == NOT_ALLOWED
    assert f"{X}, which answers in the place of {B}" in refused.value.message
    assert failed(steps(three.a, B)) == ["relay"]
    answer = push(three.x)
    assert answer["code"] == "E0000000403" and answer["message"].startswith(
        f"relay {X}: {NOT_ALLOWED}"
    )
    entries = ask(three.x, "operator", "GET", "/api/v1/audit", params={"who": f"node {A}"}).json()[
        "audit"
    ]
    assert [(e["action"], e["detail"]["reason"], e["detail"]["target"]) for e in entries] == [
        ("relay", NOT_ALLOWED, B)
    ]  # once, however often it is asked


def test_what_comes_back_or_goes_too_far_is_refused(allowed: SimpleNamespace):
    route(allowed.x, B, {"via": A, "relay": True})
    with pytest.raises(GatewayError) as refused:
        hello(allowed.a, B)
    assert refused.value.reason == LOOP
    headers = {
        "x-source-node-id": A,
        "x-target-node-id": B,
        "x-relay-path": f"Y,{X}",
    }
    answer = ask(allowed.x, "peer", "POST", HELLO, json={}, headers=headers).json()
    assert (
        answer["data"] == {"reason": LOOP, "relay": X}
        and f"{A} via Y via {X} via {X}" in answer["msg"]
    )
    assert push(allowed.x, x_relay_path=f"Y,{X}")["code"] == "E0000000503"
    headers["x-relay-path"] = ",".join(f"Y{i}" for i in range(MOST_HOPS))
    answer = ask(allowed.x, "peer", "POST", HELLO, json={}, headers=headers).json()
    assert answer["data"]["reason"] == TOO_FAR


def test_a_silent_target_is_distinguished_from_a_silent_relay(allowed: SimpleNamespace):
    route(allowed.x, B, {"url": "http://127.0.0.1:1", "relay": True})
    with pytest.raises(PeerUnreachable) as silent:
        hello(allowed.a, B)
    assert silent.value.reason == "TARGET_UNREACHABLE" and silent.value.delivered is False
    assert silent.value.message.startswith(
        f"next hop {X}: TARGET_UNREACHABLE: node {B} cannot be connected to"
    )
    assert failed(steps(allowed.a, B)) == ["answer"]
    assert not allowed.a.protocol.reaches(B)
    route(allowed.a, X, {"url": "http://127.0.0.1:1"})
    with pytest.raises(PeerUnreachable) as silent:
        hello(allowed.a, B)
    assert silent.value.reason == "NEXT_HOP_UNREACHABLE" and silent.value.delivered is False
    assert failed(steps(allowed.a, B)) == ["tcp"]
    route(allowed.a, X, {"url": allowed.x.addresses()["peer"]})


def test_bodies_over_the_limit_are_not_passed_on(allowed: SimpleNamespace):
    headers = {
        "x-source-node-id": A,
        "x-target-node-id": B,
        "content-length": str(1 << 40),
    }
    caller = HTTPConnection(allowed.x.addresses()["peer"].removeprefix("http://"), timeout=30)
    caller.request("POST", HELLO, headers=headers)  # and no body
    assert caller.getresponse().status == 413
    caller.close()


@pytest.mark.parametrize(
    "path", ["/v1/interconn/../../api/v1/jobs", "/v1/interconn/%2e%2e/x", "/api/v1/jobs"]
)
def test_paths_that_lead_elsewhere_are_not_passed_on(allowed: SimpleNamespace, path: str):
    route(
        allowed.x, B, {"url": "http://127.0.0.1:1", "relay": True}
    )  # so that passing on would fail
    caller = HTTPConnection(allowed.x.addresses()["peer"].removeprefix("http://"), timeout=30)
    caller.request("GET", path, headers={"x-source-node-id": A, "x-target-node-id": B})
    answer = caller.getresponse()
    said = json.loads(answer.read())
    caller.close()
    assert answer.status == 404 and said["data"]["reason"] == "PATH_UNKNOWN"


def test_the_default_route_sends_but_admits_no_node(allowed: SimpleNamespace):
    route(allowed.a, "default", {"via": X})
    ask(allowed.a, "operator", "DELETE", f"/api/v1/routes/{B}")
    assert hello(allowed.a, B)["node_id"] == B
    assert not allowed.a.peer_table.knows(B) and not allowed.a.peer_table.knows("JG404")
    found = steps(allowed.a, B)
    assert found["route"]["result"] == "warning" and failed(found) == []
    route(allowed.a, B, {"via": X})
    assert yaml.safe_load(allowed.a.routes.history()[0].text)["default"] == {"via": X}


def test_the_documents_have_every_reason_of_a_relay_with_its_code():
    for name in ("routes.md", "routes.zh-CN.md"):
        text = (Path(__file__).resolve().parents[3] / "docs" / name).read_text(encoding="utf-8")
        for reason, (_, code) in CODES.items():
            assert f"| `{reason}` | {code} |" in text


def by_relay(
    handler: Callable[..., Any],
    *messages: dict[str, Any],
    unusable: bool = False,
    **headers: str,
) -> httpx.Response:
    """Return the response of a relay alone, whose next hop is a function; the request is ``messages``."""

    class Hop(Courier):
        def client(self, identity: Identity) -> httpx.AsyncClient:
            if unusable:
                raise PeerUnreachable("no certificate")
            return httpx.AsyncClient(transport=httpx.MockTransport(handler))

    coming, sent = iter(messages), list[Any]()
    named = {
        "x-source-node-id": "A",
        "x-target-node-id": "B",
        "transfer-encoding": "chunked",
        **headers,
    }
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": HELLO,
        "http_version": "1.1",
        "headers": raw,
    }

    async def receive() -> Any:
        return next(coming)

    async def send(message: Any) -> None:
        sent.append(message)

    async def served() -> None:
        relay = Relay(send, "X", lambda: parse(TABLE), Hop(), (10, 10), lambda *_: None)  # type: ignore[arg-type]
        await relay(
            {
                **scope,
                "query_string": b"",
                "server": None,
            },
            receive,
            send,
        )

    asyncio.run(served())
    return httpx.Response(sent[0]["status"], content=sent[1]["body"])


@pytest.mark.parametrize("trickling", [False, True])
def test_bodies_that_do_not_end_keep_no_other_request_out(
    monkeypatch: pytest.MonkeyPatch, trickling: bool
):
    monkeypatch.setitem(AT_ONCE, "relayed", 3)
    monkeypatch.setitem(AT_ONCE, "relayed of one node", 2)
    if trickling:
        now = count()
        monkeypatch.setattr(anyio, "current_time", lambda: float(next(now)))

    class Hop(Courier):
        def client(self, identity: Identity) -> httpx.AsyncClient:
            return httpx.AsyncClient(
                transport=httpx.MockTransport(lambda _: httpx.Response(200, json={}))
            )

    relay, ended = Relay(None, "X", lambda: parse(TABLE), Hop(), (999, 999), print), list[int]()  # type: ignore

    async def never() -> Any:
        await (anyio.lowlevel.checkpoint() if trickling else anyio.sleep_forever())
        return part(b" ", more=True)

    async def whole() -> Any:
        return part(b"{}")

    async def ask(
        source: str,
        target: str,
        receive: Any,
    ) -> None:
        named = {
            b"x-source-node-id": source.encode(),
            b"x-target-node-id": target.encode(),
            b"content-length": b"9",
        }
        scope = {
            "type": "http",
            "method": "POST",
            "path": HELLO,
            "http_version": "1.1",
            "headers": [*named.items()],
        }

        async def send(message: Any) -> None:
            ended.append(message.get("status", 0))

        await relay(
            {
                **scope,
                "query_string": b"",
                "server": None,
            },
            receive,
            send,
        )

    async def main() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(ask, "A", "B", never)
                await anyio.lowlevel.checkpoint()
                await (ask("A", "B", whole) if trickling else ask("B", "A", whole))
                group.cancel_scope.cancel()

    asyncio.run(main())
    assert ended[-2:] == [200, 0] and set(ended[:-2]) <= {408, 0}


def part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {
        "type": "http.request",
        "body": body,
        "more_body": more,
    }


async def late(_: httpx.Request) -> httpx.Response:
    await asyncio.sleep(60)
    raise AssertionError


async def broken(_: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("reset")


PACKED = {"content-encoding": "gzip"}


class Zeros(httpx.AsyncByteStream):
    """What unpacks to much more; the relay must not even read it."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        raise AssertionError
        yield b""


@pytest.mark.parametrize(
    ("hop", "said", "delivered"),
    [
        (late, "gave no answer within", True),
        (broken, "gave no answer: ReadError reset", True),
        (lambda _: httpx.Response(200, content=b"x" * 11), "answers with more than 10 bytes", True),
        (
            lambda _: httpx.Response(200, stream=Zeros(), headers=PACKED),
            "in the content-encoding gzip",
            True,
        ),
        *(
            (lambda _, body=body: httpx.Response(502, content=body), "answers HTTP 502", True)
            for body in (b"<html>", b"[1]", b"{}")
        ),
        (None, "is not called: no certificate", False),
    ],
)
def test_the_silence_of_a_target_is_told_by_the_relay(
    monkeypatch: pytest.MonkeyPatch,
    hop: Any,
    said: str,
    delivered: bool,
):
    monkeypatch.setattr(relay, "LARGEST_RESPONSE", 10)
    answer = by_relay(hop, part(b"{}"), unusable=hop is None, **{WITHIN: "60"})
    told = answer.json()
    assert answer.status_code == 503 and said in told["msg"]
    assert told["data"] == {
        "reason": UNREACHABLE,
        "relay": "X",
        "delivered": delivered,
    }


def test_what_a_relay_behind_says_is_passed_on():
    told = {
        "code": 1,
        "msg": "x",
        "data": {
            "reason": UNREACHABLE,
            "relay": "Y",
            "delivered": False,
        },
    }
    answer = by_relay(lambda _: httpx.Response(503, json=told), part(b""))
    assert (answer.status_code, answer.json()) == (503, told)
    odd = {**told, "data": {**told["data"], "relay": "not\na node"}}
    assert (
        by_relay(lambda _: httpx.Response(503, json=odd), part(b"")).json()["data"]["relay"] == "X"
    )


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([part(b"x" * 6, more=True), part(b"x" * 6)], 413),
        ([part(b"x", more=True), {"type": "http.disconnect"}], 400),
    ],
)
def test_a_body_of_no_announced_length_is_passed_on_to_a_bound(
    messages: list[dict[str, Any]], status: int
):
    async def whole(request: httpx.Request) -> httpx.Response:
        await request.aread()
        raise AssertionError

    assert by_relay(whole, *messages).status_code == status
