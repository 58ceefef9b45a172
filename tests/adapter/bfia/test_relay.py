"""A → X → B: X passes on a request for another node if both routes allow it, or refuses by name."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
import yaml

from adapter.bfia import relay
from adapter.bfia.channel.bodies import SLOT_COUNTS
from adapter.bfia.channel.courier import Courier
from adapter.bfia.relay import MOST_HOPS, Relay, RelayRefused, relay_route
from adapter.bfia.relay_wire import RELAY_CODES as CODES
from adapter.bfia.relay_wire import RELAY_LOOP as LOOP
from adapter.bfia.relay_wire import RELAY_NOT_ALLOWED as NOT_ALLOWED
from adapter.bfia.relay_wire import TARGET_UNREACHABLE as UNREACHABLE
from adapter.bfia.relay_wire import WITHIN
from gateway.errors import GatewayError, NotFound, PeerUnreachable
from gateway.identity.keys import Keyring
from route_table.document import RouteTable, parse
from route_table.model import Identity
from tests.inprocess import ME, PEER, Node
from tests.world import World

# The ids of the nodes in the tests with real nodes; A's requests go through X to B.
A = ME
B = PEER
X = "JG0100003300000030"

HELLO = "/v1/interconn/schedule/node/hello"
POLL = "/v1/interconn/schedule/task/poll"
INVOKE = "/v1/interconn/chan/invoke"
PART = "/v1/interconn/chan/part"
TRANSPORT = "/v1/interconn/chan/transport"

# Reasons that only the relay's own code knows.
NO_ROUTE = "RELAY_NO_ROUTE"
TOO_FAR = "RELAY_TOO_FAR"

# An address that refuses connections.
NOWHERE = "http://127.0.0.1:1"

# ---------------------------------------------------------------- the decision

TABLE = (
    "A: {url: 'http://a', relay: true}\nB: {url: 'http://b', relay: true}\nC: {url: 'http://c'}\n"
)
B_DISABLED = TABLE.replace("'http://b'", "'http://b', enabled: no")
B_VIA_A = TABLE.replace("url: 'http://b'", "via: A")
B_VIA_C = TABLE.replace("url: 'http://b'", "via: C")
DEFAULT = TABLE + "default: {via: C}\n"
DEFAULT_RELAY = TABLE + "default: {via: C, relay: true}\n"
LONGEST_PATH = tuple(f"Y{i}" for i in range(MOST_HOPS))

# The table of X, source and target of a request, the nodes it has passed, and the reason.
REFUSED = {
    "X was passed": (
        TABLE,
        "A",
        "B",
        ("Y", "X"),
        LOOP,
    ),
    "from X": (
        TABLE,
        "X",
        "B",
        (),
        LOOP,
    ),
    "too many nodes": (TABLE, "A", "B", LONGEST_PATH, TOO_FAR),
    "no source": (
        TABLE,
        "",
        "B",
        (),
        NOT_ALLOWED,
    ),
    "unknown source": (
        TABLE,
        "Z",
        "B",
        (),
        NOT_ALLOWED,
    ),
    "source without relay": (
        TABLE,
        "C",
        "B",
        (),
        NOT_ALLOWED,
    ),
    "target without relay": (
        TABLE,
        "A",
        "C",
        (),
        NOT_ALLOWED,
    ),
    "unknown target": (
        TABLE,
        "A",
        "Z",
        (),
        NO_ROUTE,
    ),
    "disabled target": (
        B_DISABLED,
        "A",
        "B",
        (),
        NO_ROUTE,
    ),
    "back to the source": (
        B_VIA_A,
        "A",
        "B",
        (),
        LOOP,
    ),
    "back to a passed node": (
        B_VIA_C,
        "A",
        "B",
        ("C",),
        LOOP,
    ),
    "default without relay": (
        DEFAULT,
        "A",
        "Z",
        (),
        NOT_ALLOWED,
    ),
    "source by default": (
        DEFAULT_RELAY,
        "Z",
        "A",
        (),
        NOT_ALLOWED,
    ),
}
ALLOWED = {
    "target was passed": (
        TABLE,
        "A",
        "B",
        ("B",),
    ),
    "by another relay": (
        B_VIA_C,
        "A",
        "B",
        ("Y",),
    ),
    "by default": (
        DEFAULT_RELAY,
        "A",
        "Z",
        (),
    ),
}


@pytest.mark.parametrize(
    ("table", "source", "target", "passed", "reason"),
    REFUSED.values(),
    ids=REFUSED,
)
def test_relaying_is_refused_unless_both_routes_allow_it(table, source, target, passed, reason):
    with pytest.raises(RelayRefused) as refused:
        relay_route(parse(table), "X", source, target, passed)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("table", "source", "target", "passed"),
    ALLOWED.values(),
    ids=ALLOWED,
)
def test_relaying_is_allowed_by_the_routes_of_both_ends(table, source, target, passed):
    assert relay_route(parse(table), "X", source, target, passed).node == target


def test_the_documents_have_every_reason_of_a_relay_with_its_code():
    docs = Path(__file__).resolve().parents[3] / "docs"
    for name in ("routes.md", "routes.zh-CN.md"):
        page = (docs / name).read_text(encoding="utf-8")
        for reason, (_, code) in CODES.items():
            assert f"| `{reason}` | {code} |" in page


# ---------------------------------------------------------------- three nodes


@dataclass(frozen=True)
class Chain:
    """Nodes A and B, which have routes to each other only via X."""

    a: Node
    b: Node
    x: Node

    def allow(self) -> None:
        """Let X pass on requests between A and B."""
        set_route(
            self.x,
            A,
            {
                "url": self.a.addresses()["peer"],
                "relay": True,
            },
        )
        set_route(
            self.x,
            B,
            {
                "url": self.b.addresses()["peer"],
                "relay": True,
            },
        )

    def forbid(self) -> None:
        """Let X reach A and B, but pass on no requests."""
        set_route(
            self.x,
            A,
            {"url": self.a.addresses()["peer"]},
        )
        set_route(
            self.x,
            B,
            {"url": self.b.addresses()["peer"]},
        )


@pytest.fixture(scope="module")
def chain(shared_world: World) -> Chain:
    chain = Chain(
        a=shared_world.node(node_id=A),
        b=shared_world.node(node_id=B),
        x=shared_world.node(node_id=X),
    )
    next_hop = {"url": chain.x.addresses()["peer"]}
    set_route(chain.a, X, next_hop)
    set_route(chain.b, X, next_hop)
    set_route(chain.a, B, {"via": X})
    set_route(chain.b, A, {"via": X})
    return chain


@pytest.fixture
def allowed(chain: Chain) -> Chain:
    """The nodes; X passes on requests between A and B."""
    chain.allow()
    return chain


def set_route(
    node: Node,
    partner: str,
    entry: dict[str, Any],
) -> None:
    """Set a node's route; without keys signatures are not required."""
    if partner != "default" and "keys" not in entry:
        entry = {"signing": "accepted"} | entry
    response = node.request(
        "PUT",
        f"/api/v1/routes/{partner}",
        json={"route": entry},
    )
    assert response.status_code == 200, response.text


def route_test(
    node: Node,
    partner: str,
) -> dict[str, dict[str, Any]]:
    """Test a node's route; return its steps by name."""
    steps = node.post(f"/api/v1/routes/{partner}/test").json()["steps"]
    return {step["name"]: step for step in steps}


def failed_steps(steps: dict[str, dict[str, Any]]) -> list[str]:
    """Return the names of the failed steps."""
    return [name for name, step in steps.items() if step["result"] == "failed"]


def say_hello(node: Node, partner: str) -> Any:
    """Say hello to a node as A; return the greeting."""
    return node.protocol.peer(partner).post("/node/hello", {"node_id": A})


def push(
    node: Node,
    path: str = INVOKE,
    **headers: str,
) -> dict[str, Any]:
    """Send a message of A's for B to the channel of a node; return the response."""
    all_headers = {
        "x-ptp-session-id": "s1",
        "x-ptp-target-node-id": B,
        "x-ptp-source-node-id": A,
        "x-ptp-version": "1",
        "x-ptp-topic": "t",
    }
    for name, value in headers.items():
        all_headers[name.replace("_", "-")] = value
    body = {
        "topic": "t",
        "payload": base64.b64encode(b"hi").decode(),
    }
    return dict(node.post(path, body, listener="peer", headers=all_headers).json())


def send_for_b(
    node: Node,
    path: str,
    body: Any,
    relay_path: str = "",
) -> dict[str, Any]:
    """Send a control request of A's for B to a node; return the response."""
    headers = {
        "x-source-node-id": A,
        "x-target-node-id": B,
    }
    if relay_path:
        headers["x-relay-path"] = relay_path
    return dict(node.post(path, body, listener="peer", headers=headers).json())


def test_requests_and_messages_pass_a_node_that_allows_it(allowed):
    assert say_hello(allowed.a, B)["node_id"] == B
    assert allowed.a.protocol.reaches(B)

    steps = route_test(allowed.a, B)
    assert failed_steps(steps) == []
    assert steps["relay"]["result"] == "ok"
    assert f"passed on by {X}" in steps["route"]["found"]

    assert push(allowed.x)["code"] == "E0000000000"
    assert allowed.b.broker.holds("s1")
    part_of_message = push(
        allowed.x,
        PART,
        x_ptp_message_id="m",
    )
    assert "of no job here" in part_of_message["message"]


@pytest.mark.parametrize("path", [INVOKE, TRANSPORT])
def test_a_message_that_names_an_institution_only_passes_too(allowed, path):
    session = path.rpartition("/")[2]

    response = push(
        allowed.x,
        path,
        x_ptp_session_id=session,
        x_ptp_target_node_id="",
        x_ptp_target_inst_id=B,
    )

    assert response["code"] == "E0000000000"
    assert allowed.b.broker.holds(session)


@pytest.fixture
def signed(allowed: Chain) -> Chain:
    """The nodes; during the test A and B have each other's keys."""

    def keys_of(node: Node) -> str:
        return Keyring(node.settings.state_dir).make("ed25519").public

    set_route(
        allowed.b,
        A,
        {
            "via": X,
            "keys": keys_of(allowed.a),
        },
    )
    set_route(
        allowed.a,
        B,
        {
            "via": X,
            "keys": keys_of(allowed.b),
        },
    )
    yield allowed
    set_route(allowed.b, A, {"via": X})
    set_route(allowed.a, B, {"via": X})


def test_signatures_hold_through_a_relay(signed):
    assert say_hello(signed.a, B)["node_id"] == B
    with pytest.raises(NotFound):
        signed.a.protocol.scheduler(B).job_status("job-none", A)

    unsigned = send_for_b(
        signed.x,
        POLL,
        {"task_id": "t", "role": "guest"},
    )
    assert unsigned["data"]["reason"] == "SIGNATURE_REFUSED"


def test_a_relays_unproven_refusal_leaves_its_target_unreachable(signed):
    set_route(
        signed.x,
        B,
        {"url": signed.b.addresses()["peer"]},
    )

    with pytest.raises(PeerUnreachable) as refused:
        say_hello(signed.a, B)

    assert refused.value.reason == NOT_ALLOWED
    assert "passes on nothing" in refused.value.message
    assert failed_steps(route_test(signed.a, B)) == ["relay"]


def test_a_relay_refuses_by_name_and_records_it(chain):
    chain.forbid()

    with pytest.raises(GatewayError) as refused:
        say_hello(chain.a, B)
    assert refused.value.reason == NOT_ALLOWED
    assert f"{X}, which answers in the place of {B}" in refused.value.message
    assert failed_steps(route_test(chain.a, B)) == ["relay"]

    response = push(chain.x)
    assert response["code"] == "E0000000403"
    assert response["message"].startswith(f"relay {X}: {NOT_ALLOWED}")

    # one entry for all refusals
    [entry] = chain.x.get("/api/v1/audit", params={"who": f"node {A}"}).json()["audit"]
    assert entry["action"] == "relay"
    assert entry["detail"]["reason"] == NOT_ALLOWED
    assert entry["detail"]["target"] == B


def test_requests_that_loop_or_pass_too_many_relays_are_refused(allowed):
    set_route(
        allowed.x,
        B,
        {"via": A, "relay": True},
    )
    with pytest.raises(GatewayError) as refused:
        say_hello(allowed.a, B)
    assert refused.value.reason == LOOP

    looping = send_for_b(
        allowed.x,
        HELLO,
        {},
        relay_path=f"Y,{X}",
    )
    assert looping["data"] == {
        "reason": LOOP,
        "relay": X,
    }
    assert f"{A} via Y via {X} via {X}" in looping["msg"]
    assert push(allowed.x, x_relay_path=f"Y,{X}")["code"] == "E0000000503"

    too_far = send_for_b(
        allowed.x,
        HELLO,
        {},
        relay_path=",".join(LONGEST_PATH),
    )
    assert too_far["data"]["reason"] == TOO_FAR


def test_a_silent_target_is_named_by_the_relay(allowed):
    set_route(
        allowed.x,
        B,
        {"url": NOWHERE, "relay": True},
    )

    with pytest.raises(PeerUnreachable) as silent:
        say_hello(allowed.a, B)

    assert silent.value.reason == "TARGET_UNREACHABLE"
    assert silent.value.delivered is False
    cause = f"next hop {X}: TARGET_UNREACHABLE: node {B} cannot be connected to"
    assert silent.value.message.startswith(cause)
    assert failed_steps(route_test(allowed.a, B)) == ["answer"]
    assert not allowed.a.protocol.reaches(B)


def test_a_silent_relay_is_distinguished_from_a_silent_target(allowed):
    set_route(allowed.a, X, {"url": NOWHERE})

    with pytest.raises(PeerUnreachable) as silent:
        say_hello(allowed.a, B)

    assert silent.value.reason == "NEXT_HOP_UNREACHABLE"
    assert silent.value.delivered is False
    assert failed_steps(route_test(allowed.a, B)) == ["tcp"]
    set_route(
        allowed.a,
        X,
        {"url": allowed.x.addresses()["peer"]},
    )


def raw_request(
    node: Node,
    method: str,
    path: str,
    **headers: str,
) -> tuple[int, bytes]:
    """Send a request of A's for B as it is, without a body; return status and body."""
    address = node.addresses()["peer"].removeprefix("http://")
    connection = HTTPConnection(address, timeout=300)
    ends = {
        "x-source-node-id": A,
        "x-target-node-id": B,
    }
    connection.request(
        method,
        path,
        headers=ends | headers,
    )
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


def test_bodies_over_the_limit_are_not_passed_on(allowed):
    # The announced length is enough for the refusal.
    status, _ = raw_request(allowed.x, "POST", HELLO, **{"content-length": str(1 << 40)})
    assert status == 413


@pytest.mark.parametrize(
    "path",
    ["/v1/interconn/../../api/v1/jobs", "/v1/interconn/%2e%2e/x", "/api/v1/jobs"],
)
def test_paths_that_lead_elsewhere_are_not_passed_on(allowed, path):
    # With this route passing on would fail, with another reason.
    set_route(
        allowed.x,
        B,
        {"url": NOWHERE, "relay": True},
    )

    status, content = raw_request(allowed.x, "GET", path)

    assert status == 404
    assert json.loads(content)["data"]["reason"] == "PATH_UNKNOWN"


def test_the_default_route_sends_but_admits_no_node(allowed):
    set_route(allowed.a, "default", {"via": X})
    allowed.a.request("DELETE", f"/api/v1/routes/{B}")

    assert say_hello(allowed.a, B)["node_id"] == B
    assert not allowed.a.peer_table.knows(B)
    assert not allowed.a.peer_table.knows("JG404")
    steps = route_test(allowed.a, B)
    assert steps["route"]["result"] == "warning"
    assert failed_steps(steps) == []

    set_route(allowed.a, B, {"via": X})
    previous_table = yaml.safe_load(allowed.a.routes.history()[0].text)
    assert previous_table["default"] == {"via": X}


# ---------------------------------------------------------------- a relay alone

# A message of an ASGI server or application.
Message = dict[str, Any]
# Answers the request of a relay as its next hop.
NextHop = Callable[[httpx.Request], Any]


class HopCourier(Courier):
    """A courier whose next hop is a function; without one, no client can be made."""

    def __init__(self, next_hop: NextHop | None) -> None:
        super().__init__()
        self._next_hop = next_hop

    def client(self, identity: Identity) -> httpx.AsyncClient:
        """Return a client of the function. Raises PeerUnreachable without one."""
        if self._next_hop is None:
            raise PeerUnreachable("no certificate")
        return httpx.AsyncClient(transport=httpx.MockTransport(self._next_hop))


def a_relay(
    next_hop: NextHop | None,
    largest_body: int = 10,
    routes: str = TABLE,
) -> Relay:
    """Return the relay of X, which passes on requests between A and B; ``routes``: its table."""

    def table() -> RouteTable:
        return parse(routes)

    def ignore(*_: Any) -> None:
        pass

    limits = (largest_body, largest_body)
    return Relay(
        None,
        "X",
        "X-inst",
        table,
        HopCourier(next_hop),
        *limits,
        ignore,
    )  # type: ignore[arg-type]


async def relayed(
    relay: Relay,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
    source: str = "A",
    target: str = "B",
    **headers: str,
) -> None:
    """Let a relay serve a control request between two nodes."""
    all_headers = {
        "x-source-node-id": source,
        "x-target-node-id": target,
        **headers,
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": HELLO,
        "http_version": "1.1",
        "headers": [(name.encode(), value.encode()) for name, value in all_headers.items()],
        "query_string": b"",
        "server": None,
    }
    await relay(scope, receive, send)


def body_part(
    content: bytes,
    *,
    is_last: bool = True,
) -> Message:
    """Return a part of a request's body."""
    return {
        "type": "http.request",
        "body": content,
        "more_body": not is_last,
    }


def response_of_relay(
    next_hop: NextHop | None,
    messages: Iterable[Message],
    routes: str = TABLE,
    **headers: str,
) -> httpx.Response:
    """Send a request, whose body is ``messages``, through a relay; return the response."""
    to_receive = iter(messages)
    sent: list[Message] = []

    async def receive() -> Message:
        return next(to_receive)

    async def send(message: Message) -> None:
        sent.append(message)

    async def serve() -> None:
        chunked = {"transfer-encoding": "chunked"}
        await relayed(a_relay(next_hop, routes=routes), receive, send, **chunked, **headers)

    asyncio.run(serve())
    start, body = sent
    return httpx.Response(
        start["status"],
        content=body["body"],
    )


async def never_respond(_: httpx.Request) -> httpx.Response:
    await asyncio.sleep(60)
    raise AssertionError


async def reset_connection(_: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("reset")


class UnreadStream(httpx.AsyncByteStream):
    """A packed body, which might unpack to much more; the relay must not even read it."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        raise AssertionError
        yield b""  # makes the function a generator


def respond(status: int, **content: Any) -> NextHop:
    """Return a next hop with one response; ``content`` is as for `httpx.Response`."""

    def next_hop(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, **content)

    return next_hop


# The next hop, a part of the refusal's text, and whether the target may have got the request.
SILENT_TARGETS: dict[str, tuple[NextHop | None, str, bool]] = {
    "late": (never_respond, "gave no answer within", True),
    "reset": (reset_connection, "gave no answer: ReadError reset", True),
    "large": (respond(200, content=b"x" * 11), "answers with more than 10 bytes", True),
    "packed": (
        respond(
            200,
            stream=UnreadStream(),
            headers={"content-encoding": "gzip"},
        ),
        "in the content-encoding gzip",
        True,
    ),
    "page": (
        respond(502, content=b"<html>"),
        "answers HTTP 502",
        True,
    ),
    "list": (
        respond(502, content=b"[1]"),
        "answers HTTP 502",
        True,
    ),
    "object": (
        respond(502, content=b"{}"),
        "answers HTTP 502",
        True,
    ),
    "no client": (None, "is not called: no certificate", False),
}


@pytest.mark.parametrize(
    ("next_hop", "cause", "delivered"),
    SILENT_TARGETS.values(),
    ids=SILENT_TARGETS,
)
def test_the_relay_reports_the_silence_of_a_target(monkeypatch, next_hop, cause, delivered):
    monkeypatch.setattr(relay, "LARGEST_RESPONSE", 10)

    response = response_of_relay(next_hop, [body_part(b"{}")], **{WITHIN: "60"})

    assert response.status_code == 503
    body = response.json()
    assert cause in body["msg"]
    assert body["data"] == {
        "reason": UNREACHABLE,
        "relay": "X",
        "delivered": delivered,
    }


def refusal_of_relay(name: str) -> dict[str, Any]:
    """Return the refusal of a relay whose target is silent."""
    return {
        "code": 1,
        "msg": "x",
        "data": {
            "reason": UNREACHABLE,
            "relay": name,
            "delivered": False,
        },
    }


def test_the_refusal_of_a_further_relay_is_passed_on():
    refusal = refusal_of_relay("Y")
    response = response_of_relay(
        respond(503, json=refusal),
        [body_part(b"")],
    )
    assert response.status_code == 503
    assert response.json() == refusal


def test_a_refusal_that_names_no_node_becomes_the_relays_own():
    refusal = refusal_of_relay("not\na node")
    response = response_of_relay(
        respond(503, json=refusal),
        [body_part(b"")],
    )
    assert response.json()["data"]["relay"] == "X"


UNANNOUNCED_BODIES = {
    "too large": ([body_part(b"x" * 6, is_last=False), body_part(b"x" * 6)], 413),
    "breaks off": (
        [body_part(b"x", is_last=False), {"type": "http.disconnect"}],
        400,
    ),
}


@pytest.mark.parametrize(
    ("messages", "status"),
    UNANNOUNCED_BODIES.values(),
    ids=UNANNOUNCED_BODIES,
)
def test_a_body_without_a_length_is_passed_on_to_a_bound(messages, status):
    async def read_all(request: httpx.Request) -> httpx.Response:
        await request.aread()
        raise AssertionError("the body is complete")

    assert response_of_relay(read_all, messages).status_code == status


# ---------------------------------------------------------------- endless bodies


async def hang() -> Message:
    """Receive no part of a body."""
    await anyio.sleep_forever()
    raise AssertionError


async def trickle() -> Message:
    """Receive a body without end, byte by byte."""
    await anyio.lowlevel.checkpoint()
    return body_part(b" ", is_last=False)


async def receive_complete() -> Message:
    """Receive a complete body."""
    return body_part(b"{}")


def statuses_among_endless_bodies(
    receive_endless: Callable[[], Awaitable[Message]],
    source: str,
    target: str,
) -> list[int]:
    """Relay one request after three from A to B whose bodies do not end.

    Returns the statuses of the responses in their order, and 0 for each part of a body.
    """
    relay = a_relay(
        respond(200, json={}),
        largest_body=999,
    )
    statuses: list[int] = []

    async def send(message: Message) -> None:
        statuses.append(message.get("status", 0))

    async def relay_endless() -> None:
        await relayed(relay, receive_endless, send, **{"content-length": "9"})

    async def main() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(relay_endless)
                # lets the three begin
                await anyio.lowlevel.checkpoint()
                length = {"content-length": "9"}
                await relayed(relay, receive_complete, send, source, target, **length)
                group.cancel_scope.cancel()

    asyncio.run(main())
    return statuses


@pytest.fixture
def few_places(monkeypatch):
    """A relay with places for three requests, two of them for requests of one node."""
    monkeypatch.setitem(SLOT_COUNTS, "relayed", 3)
    monkeypatch.setitem(SLOT_COUNTS, "relayed of one node", 2)


def test_bodies_that_hang_keep_no_request_of_another_node_out(few_places):
    *earlier, status, body = statuses_among_endless_bodies(hang, "B", "A")
    assert status == 200
    assert body == 0
    assert set(earlier) <= {408, 0}


def test_bodies_that_trickle_keep_no_request_of_the_same_node_out(few_places, monkeypatch):
    # Each look at the clock takes a second; a slow body is refused after some seconds.
    seconds = count()

    def current_time() -> float:
        return float(next(seconds))

    monkeypatch.setattr(anyio, "current_time", current_time)

    *earlier, status, body = statuses_among_endless_bodies(trickle, "A", "B")
    assert status == 200
    assert body == 0
    assert set(earlier) <= {408, 0}
