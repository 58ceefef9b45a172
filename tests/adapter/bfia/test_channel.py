import asyncio
import base64
import contextlib
import json
import os
import socket
import time

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from adapter.bfia.channel import ChannelParts, container_router, peer_router
from adapter.bfia.courier import PeerRoute
from gateway.broker import Broker, BrokerLimits
from tests.plain import NO_TLS

pytestmark = pytest.mark.anyio

OK = "E0000000000"
CHAN = "/v1/interconn/chan/"
SESSION = "session_job-1"


@pytest.fixture
def anyio_backend():
    return "asyncio"


def listening():
    """Returns a listening socket; asyncio sets TCP_NODELAY only where the protocol is named."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


class Node:
    """One node's channel behind real sockets: one port, both routers, as a site with one port has it."""

    def __init__(self, name, root, **parts):
        self.name = name
        self.root = root
        self.routes = {}
        self.tokens = {}
        self.sessions = {}
        self.known = {"alpha", "beta"}
        self.limits = parts.pop("limits", BrokerLimits())
        self.more = {"max_body": 100 << 20, "retry_for": 60.0} | parts
        self.socket = listening()
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def open(self):
        self.broker = Broker(self.root, self.limits)
        self.broker.recover()
        self.parts = ChannelParts(
            node=self.name,
            institution=f"{self.name}-inst",
            broker=self.broker,
            run_of_token=self.tokens.get,
            route_of=self.routes.get,
            known_sender=self.known.__contains__,
            session_open=self.sessions.get,
            **self.more,
        )
        self.app = FastAPI()
        peer_router(self.parts).build(self.app.router, None)
        container_router(self.parts).build(self.app.router, None)

    async def start(self):
        self.open()
        config = uvicorn.Config(self.app, log_level="error", access_log=False, timeout_graceful_shutdown=1)
        self.server = uvicorn.Server(config)
        self.server.capture_signals = contextlib.nullcontext
        self.task = asyncio.create_task(self.server.serve(sockets=[self.socket.dup()]))
        while not self.server.started:
            await asyncio.sleep(0.001)

    async def stop(self):
        self.server.should_exit = True
        await self.task
        self.broker.close()


@pytest.fixture
async def make_node(tmp_path):
    nodes = []

    async def make(name="alpha", start=True, **parts):
        node = Node(name, tmp_path / name, **parts)
        nodes.append(node)
        if start:
            await node.start()
        return node

    yield make
    for node in nodes:
        if hasattr(node, "server") and not node.task.done():
            await node.stop()
        node.socket.close()


@pytest.fixture
async def desk(tmp_path):
    """A node without sockets: its routers are called in the process."""
    node = Node("alpha", tmp_path / "alpha")
    node.open()
    yield node
    node.broker.close()
    node.socket.close()


@pytest.fixture
async def caller(desk):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(desk.app)) as caller:
        yield caller


@pytest.fixture
async def alpha(make_node):
    return await make_node("alpha")


@pytest.fixture
async def beta(make_node, alpha):
    node = await make_node("beta")
    alpha.routes["beta"] = PeerRoute(node.url)
    node.routes["alpha"] = PeerRoute(alpha.url)
    return node


@pytest.fixture
async def client():
    async with httpx.AsyncClient(timeout=60, trust_env=False, verify=NO_TLS) as client:
        yield client


class Container:
    """What an algorithm's container does: it knows its own transport and nothing else."""

    def __init__(self, client, node, token="", **headers):
        self.client = client
        self.node = node
        self.headers = {"x-ptp-session-id": SESSION, "x-ptp-token": token} | headers

    async def post(self, verb, body, **headers):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {"content-type": "application/json"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = await self.client.post(
            self.node.url + CHAN + verb, content=content, headers=kind | self.headers | named
        )
        return response.json()

    async def push(self, target, payload, topic="t", **more):
        headers = more.pop("headers", {})
        body = {"topic": topic, "payload": base64.b64encode(payload).decode()} | more
        return (await self.post("push", body, x_ptp_target_node_id=target, **headers))["code"]

    async def pop(self, topic="t", timeout=1000, **headers):
        answer = await self.post("pop", {"topic": topic, "timeout": timeout}, **headers)
        assert answer["code"] == OK, answer
        assert answer["content"] == answer["payload"]
        return base64.b64decode(answer["content"])

    async def peek(self, topic="t", **headers):
        answer = await self.post("peek", {"topic": topic}, **headers)
        assert answer["code"] == OK, answer
        return base64.b64decode(answer["content"])


async def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


def waiters(node):
    return sum(len(arrivals) for topics in node.broker._readers.values() for arrivals in topics.values())


# ------------------------------------------------------------ between two nodes


async def test_a_push_reaches_the_pop_that_waits_on_the_other_node(alpha, beta, client):
    guest, host = Container(client, alpha), Container(client, beta)
    pop = asyncio.create_task(host.pop(timeout="60000"))
    await until(lambda: waiters(beta) == 1)
    assert await guest.push("beta", b"hello") == OK
    assert await pop == b"hello"
    assert alpha.broker.usage() == (0, 0, 0)
    assert beta.broker.usage() == (1, 0, 0)


async def test_an_answer_names_its_source_and_a_pop_can_ask_for_one_source(alpha, beta, client):
    guest, host = Container(client, alpha), Container(client, beta)
    await host.push("beta", b"from beta itself")
    await guest.push("beta", b"from alpha")
    answer = await host.post("peek", {"topic": "t"}, x_ptp_target_node_id="alpha")
    assert base64.b64decode(answer["content"]) == b"from alpha"
    assert answer["metadata"] == {"x-ptp-source-node-id": "alpha", "x-ptp-topic": "t"}
    assert await host.peek(x_ptp_target_node_id="beta") == b"from beta itself"
    empty = await host.post("peek", {"topic": "t"})
    assert empty == {"code": OK, "message": "success", "metadata": {}, "content": "", "payload": ""}


async def test_64_mib_pass_between_two_nodes(alpha, beta, client):
    guest, host = Container(client, alpha), Container(client, beta)
    payload = os.urandom(64 << 20)
    assert await guest.push("beta", payload, metadata={"sequence": "1"}) == OK
    one_field = {"x_ptp_content_field": "content"}
    for _ in range(2):
        answer = await host.post("pop", {"topic": "t"}, x_ptp_pop_id="a", **one_field)
        assert set(answer) == {"code", "message", "metadata", "content"}
        assert base64.b64decode(answer["content"]) == payload


async def test_many_messages_keep_their_order(alpha, beta, client):
    guest, host = Container(client, alpha), Container(client, beta)

    async def send():
        for number in range(40):
            assert await guest.push("beta", b"%d " % number * (number * 20)) == OK

    sending = asyncio.create_task(send())
    got = [await host.pop(timeout=30_000) for _ in range(40)]
    await sending
    assert got == [b"%d " % number * (number * 20) for number in range(40)]


async def test_the_peer_sees_the_container_s_bytes_and_every_header(make_node, alpha, client):
    seen = {}
    peer = await peer_double(make_node, alpha, seen, profile="fate")
    body = b' {"payload" : "aGk", "topic":"t" , "more": 1}'
    guest = Container(client, alpha, "secret")
    answer = await guest.post(
        "push", body, x_ptp_target_node_id="peer", x_ptp_trace_id="trace", x_ptp_tech_provider_code="acme"
    )
    assert answer["code"] == OK
    assert seen["body"] == body
    message_id = seen["headers"].pop("x-ptp-message-id")
    assert len(message_id) == 32
    assert {k: v for k, v in seen["headers"].items() if k.startswith("x-ptp") or k == "content-type"} == {
        "content-type": "application/json",
        "x-ptp-version": "1",
        "x-ptp-tech-provider-code": "acme",
        "x-ptp-trace-id": "trace",
        "x-ptp-token": "secret",
        "x-ptp-session-id": SESSION,
        "x-ptp-target-node-id": "peer",
        "x-ptp-source-node-id": "alpha",
        "x-ptp-source-inst-id": "alpha-inst",
        "x-ptp-from-node-id": "alpha",
        "x-ptp-from-inst-id": "alpha-inst",
        "x-ptp-uri": "/v1/interconn/chan/push",
    }
    await peer()


async def peer_double(make_node, alpha, seen, *, replies=(), **route):
    """Serves a peer that notes what it gets and answers from a list; returns how to stop it."""
    left = list(replies)
    seen["tries"] = []

    async def app(scope, receive, send):
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        seen["headers"] = {k.decode(): v.decode() for k, v in scope["headers"]}
        seen["tries"].append(seen["headers"].get("x-ptp-message-id"))
        seen["body"] = body
        status, text = left.pop(0) if left else (200, b'{"code": "E0000000000", "message": "success"}')
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": text})

    sock = listening()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    server.capture_signals = contextlib.nullcontext
    task = asyncio.create_task(server.serve(sockets=[sock]))
    while not server.started:
        await asyncio.sleep(0.001)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    alpha.routes["peer"] = PeerRoute(url, **route)

    async def stop():
        server.should_exit = True
        await task
        sock.close()

    return stop


async def test_a_push_is_retried_with_the_same_id_until_the_peer_says_so(make_node, alpha, client):
    seen = {}
    full = json.dumps({"code": "E0000000700", "message": "full"}).encode()
    stop = await peer_double(
        make_node,
        alpha,
        seen,
        replies=[(500, b"boom"), (503, b""), (200, full), (200, b'{"code": 0, "msg": "ok"}')],
    )
    assert await Container(client, alpha).push("peer", b"x") == OK
    assert len(seen["tries"]) == 4
    assert len(set(seen["tries"])) == 1
    await stop()


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        (200, b'{"code": "E0000000608", "message": "released"}', "E0000000608"),
        (200, b"<html>", "E0000000520"),
        (200, b"", "E0000000520"),
        (200, b'{"message": "success"}', "E0000000520"),
        (200, b'{"code": 200, "msg": "success"}', "E0000000520"),
        (404, b'{"code": 404, "msg": "no such path"}', "E0000000520"),
        (400, b"illegal request", "E0000000520"),
        (302, b"", "E0000000520"),
        (413, b"too large", "E0000000413"),
        (200, b"[" * 2_000_000, "E0000000520"),
    ],
)
async def test_only_the_peer_s_success_is_success(make_node, alpha, client, status, text, code):
    seen = {}
    stop = await peer_double(make_node, alpha, seen, replies=[(status, text)])
    assert await Container(client, alpha).push("peer", b"x") == code
    assert len(seen["tries"]) == 1
    await stop()


async def test_a_push_waits_for_a_peer_that_is_not_up_yet(alpha, make_node, client):
    late = await make_node("beta", start=False)
    late.socket.close()
    port = late.socket = socket.socket()
    port.bind(("127.0.0.1", 0))  # bound and not listening: refused
    late.url = f"http://127.0.0.1:{port.getsockname()[1]}"
    alpha.routes["beta"] = PeerRoute(late.url)
    push = asyncio.create_task(Container(client, alpha).push("beta", b"patience"))
    await asyncio.sleep(0.1)
    assert not push.done()
    port.listen()
    await late.start()
    assert await push == OK
    assert await Container(client, late).pop() == b"patience"


async def test_a_peer_that_never_answers_is_unreachable(make_node, client):
    alpha = await make_node("alpha", retry_for=0.2)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        alpha.routes["beta"] = PeerRoute(f"http://127.0.0.1:{nobody.getsockname()[1]}")
        assert await Container(client, alpha).push("beta", b"x") == "E0000000607"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        alpha.routes["beta"] = PeerRoute(f"http://127.0.0.1:{silent.getsockname()[1]}", deadline=0.1)
        assert await Container(client, alpha).push("beta", b"x") == "E0000000607"
    alpha.routes["beta"] = PeerRoute("ftp://nowhere")
    assert await Container(client, alpha).push("beta", b"x") == "E0000000619"


# ------------------------------------------------------------ on one node


async def test_guest_and_host_on_one_node_never_mix(desk, caller):
    desk.tokens.update(G="run-g", H="run-h")
    guest, host = Container(caller, desk, "G"), Container(caller, desk, "H")
    assert await guest.push("alpha", b"from guest") == OK
    assert await host.push("alpha", b"from host") == OK
    assert await guest.pop() == b"from host"
    assert await host.pop() == b"from guest"
    assert await guest.peek() == b""


async def test_messages_and_kept_answers_survive_a_restart(alpha, client):
    box = Container(client, alpha)
    for payload in (b"one", b"two", b"three"):
        assert await box.push("alpha", payload) == OK
    assert await box.pop(x_ptp_pop_id="a") == b"one"
    await alpha.stop()
    await alpha.start()
    assert await box.pop(x_ptp_pop_id="a") == b"one"
    assert await box.pop(x_ptp_pop_id="b") == b"two"
    assert await box.pop() == b"three"
    await alpha.stop()
    await alpha.start()
    assert await box.peek() == b""


async def test_a_reader_that_hangs_up_takes_no_message_with_it(alpha, client):
    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as gone:
        pop = asyncio.create_task(Container(gone, alpha).pop(timeout=60_000))
        await until(lambda: waiters(alpha) == 1)
        pop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pop
    await until(lambda: waiters(alpha) == 0)
    box = Container(client, alpha)
    assert await box.push("alpha", b"still there") == OK
    assert await box.pop() == b"still there"


async def test_a_reader_that_hangs_up_in_the_middle_of_a_long_answer_takes_no_message_with_it(alpha, client):
    payload = os.urandom(24 << 20)
    box = Container(client, alpha)
    assert await box.push("alpha", payload) == OK
    reader, writer = await asyncio.open_connection("127.0.0.1", alpha.socket.getsockname()[1])
    writer.write(
        b"POST /v1/interconn/chan/pop HTTP/1.1\r\nhost: x\r\ncontent-length: 13\r\n"
        b"x-ptp-session-id: session_job-1\r\n\r\n" + b'{"topic":"t"}'
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.transport.abort()
    assert await box.pop(timeout=20_000) == payload


async def test_a_repeated_push_is_stored_once(alpha, beta, client):
    guest, host = Container(client, alpha, "token"), Container(client, beta)
    for _ in range(2):
        assert await guest.push("beta", b"numbered", metadata={"sequence": "1"}) == OK
        assert await guest.push("beta", b"named", headers={"x_ptp_message_id": "m"}) == OK
        assert await guest.push("beta", b"neither") == OK
    got = [await host.peek() for _ in range(5)]
    assert got == [b"numbered", b"named", b"neither", b"neither", b""]


async def test_a_sequence_that_is_not_what_we_think_loses_nothing(desk, caller):
    first, second = Container(caller, desk, "attempt 1"), Container(caller, desk, "attempt 2")
    assert await first.push("alpha", b"a", metadata={"sequence": "0"}) == OK
    assert await first.push("alpha", b"b", metadata={"sequence": "0"}) == OK
    assert await second.push("alpha", b"a", metadata={"sequence": "0"}) == OK
    box = Container(caller, desk)
    assert [await box.peek() for _ in range(4)] == [b"a", b"b", b"a", b""]


async def test_a_full_mailbox_pushes_back_and_a_pop_makes_room(make_node, client):
    alpha = await make_node("alpha", limits=BrokerLimits(session_bytes=10))
    box = Container(client, alpha)
    assert await box.push("alpha", b"0123456789") == OK
    push = asyncio.create_task(box.push("alpha", b"next"))
    await until(lambda: alpha.broker._writers)
    assert not push.done()
    assert await box.pop() == b"0123456789"
    assert await push == OK


async def test_release(desk, caller):
    desk.tokens.update(G="run-g", H="run-h")
    guest, host = Container(caller, desk, "G"), Container(caller, desk, "H")
    await host.push("alpha", b"dropped", "t")
    await guest.push("alpha", b"for the host", "t")
    await host.push("alpha", b"kept", "u")
    assert (await guest.post("release", {"topic": "t", "timeout": 10}))["code"] == OK
    assert await guest.peek("t") == b""
    assert await host.peek("t") == b"for the host"
    assert (await host.post("release", b""))["code"] == OK
    assert await guest.peek("u") == b"kept"


async def test_when_the_job_ends_everything_is_freed_and_refused(alpha, beta, client):
    guest, host = Container(client, alpha), Container(client, beta)
    assert await guest.push("beta", b"unread") == OK
    pop = asyncio.create_task(host.post("pop", {"topic": "other"}))
    await until(lambda: waiters(beta) == 1)
    await beta.broker.end_session(SESSION)
    assert (await pop)["code"] == "E0000000608"
    assert await guest.push("beta", b"late") == "E0000000608"
    assert (await host.post("peek", b""))["code"] == "E0000000608"
    assert (await host.post("release", b""))["code"] == OK
    assert beta.broker.usage() == (0, 0, 0)


async def test_a_session_whose_job_is_known_to_have_ended_is_refused(alpha, beta, client):
    alpha.sessions[SESSION] = False
    guest, host = Container(client, alpha), Container(client, beta)
    assert await guest.push("beta", b"x") == "E0000000608"
    assert await guest.push("alpha", b"x") == "E0000000608"
    assert await host.push("alpha", b"x") == "E0000000608"
    assert (await guest.post("pop", b""))["code"] == "E0000000608"


async def test_sessions_of_no_known_job_are_taken_but_few(make_node, client):
    alpha = await make_node("alpha", unknown_sessions=2)
    alpha.sessions["known"] = True

    async def push(session):
        return await Container(client, alpha, **{"x-ptp-session-id": session}).push("alpha", b"x")

    assert [await push(s) for s in ("one", "two", "three", "known", "one")] == [OK, OK, "E0000000700", OK, OK]
    await alpha.broker.end_session("one")
    assert await push("three") == OK


# ------------------------------------------------------------ what is refused


PUSH_HEADERS = {"x-ptp-session-id": SESSION, "x-ptp-target-node-id": "alpha"}
PUSH_BODY = {"topic": "t", "payload": "aGk="}


async def ask(client, node, verb, body, headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await client.post(node.url + CHAN + verb, content=content, headers=headers)
    return response.status_code, response.json()


@pytest.mark.parametrize(
    ("verb", "headers", "body", "code", "named"),
    [
        ("push", {"x-ptp-session-id": ""}, PUSH_BODY, "E0000000400", "x-ptp-session-id"),
        ("pop", {"x-ptp-session-id": ""}, b"", "E0000000400", "x-ptp-session-id"),
        ("push", {"x-ptp-session-id": "s" * 600}, PUSH_BODY, "E0000000400", "x-ptp-session-id"),
        ("push", {"x-ptp-target-node-id": ""}, PUSH_BODY, "E0000000400", "x-ptp-target-node-id"),
        ("push", {"x-ptp-target-node-id": "stranger"}, PUSH_BODY, "E0000000618", "stranger"),
        ("push", {"x-ptp-target-node-id": "", "x-ptp-target-inst-id": "i"}, PUSH_BODY, "E0000000618", "i"),
        ("push", {"x-ptp-target-node-id": "b", "x-ptp-source-node-id": "c"}, PUSH_BODY, "E0000000503", "node c"),
        ("push", {}, b"", "E0000000400", "body"),
        ("push", {}, b"\xff\xfe", "E0000000400", "body"),
        ("push", {}, b"[" * 200_000, "E0000000400", "body"),
        ("push", {}, b"[1]", "E0000000400", "body"),
        ("push", {}, {"topic": "t"}, "E0000000400", "payload"),
        ("push", {}, {"payload": "a"}, "E0000000400", "payload"),
        ("push", {}, {"payload": "ä==="}, "E0000000400", "payload"),
        ("push", {}, {"payload": [256]}, "E0000000400", "payload"),
        ("push", {}, {"payload": [True]}, "E0000000400", "payload"),
        ("push", {}, {"payload": 7}, "E0000000400", "payload"),
        ("push", {}, {"payload": "", "topic": 3}, "E0000000400", "topic"),
        ("push", {}, {"payload": "", "topic": "t" * 5000}, "E0000000400", "topic"),
        ("push", {}, {"payload": "", "topic": "t" * 500_000}, "E0000000400", "topic"),
        ("push", {}, {"payload": "", "metadata": {"a": {}}}, "E0000000400", "metadata.a"),
        ("push", {}, {"payload": "", "metadata": [1]}, "E0000000400", "metadata"),
        ("pop", {}, {"timeout": "soon"}, "E0000000400", "timeout"),
        ("pop", {}, {"timeout": True}, "E0000000400", "timeout"),
        ("pop", {}, {"timeout": -1}, "E0000000400", "timeout"),
        ("pop", {}, b'{"timeout": NaN}', "E0000000400", "timeout"),
        ("pop", {"x-ptp-timeout": "soon"}, b"", "E0000000400", "x-ptp-timeout"),
        ("pop?timeout=soon", {}, b"", "E0000000400", "query.timeout"),
        ("push", {"content-type": "application/x-protobuf"}, b"\n\x01t", "E0000000616", "application/json"),
        ("push", {"content-type": "application/octet-stream"}, b"x", "E0000000616", "application/json"),
        ("push", {"x-ptp-topic": "t"}, b"raw", "E0000000616", "application/json"),
        ("pop", {"x-ptp-topic": "t"}, b"", "E0000000616", "application/json"),
        ("transport", {}, b"", "E0000000614", "invoke"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(desk, caller, verb, headers, body, code, named):
    status, answer = await ask(caller, desk, verb, body, PUSH_HEADERS | headers)
    assert (status, answer["code"]) == (200, code), answer
    assert named in answer["message"]
    assert desk.broker.usage() == (0, 0, 0)


async def test_every_wrong_field_is_named_at_once(desk, caller):
    body = {"topic": 1, "payload": "*", "metadata": {"a": [], "b": None}}
    _, answer = await ask(caller, desk, "push", body, PUSH_HEADERS)
    assert all(name in answer["message"] for name in ("topic", "payload", "metadata.a"))


INVOKE_HEADERS = PUSH_HEADERS | {
    "x-ptp-version": "1",
    "x-ptp-source-node-id": "beta",
    "x-ptp-uri": "/v1/interconn/chan/push",
}


@pytest.mark.parametrize(
    ("headers", "code", "named"),
    [
        ({"x-ptp-source-node-id": "stranger"}, "E0000000618", "stranger"),
        ({"x-ptp-source-node-id": ""}, "E0000000618", "none named"),
        ({"x-ptp-target-node-id": "gamma"}, "E0000000503", "gamma"),
        ({"x-ptp-uri": "/v1/interconn/chan/pop"}, "E0000000404", "chan/pop"),
        ({"x-ptp-uri": "/v1/interconn/net/weave"}, "E0000000404", "weave"),
        ({"x-ptp-uri": "http://[oops"}, "E0000000404", "oops"),
        ({"x-ptp-session-id": ""}, "E0000000400", "x-ptp-session-id"),
        ({"content-type": "application/x-protobuf"}, "E0000000616", "application/json"),
        ({"x-ptp-version": "2"}, "E0000000400", "body"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
async def test_what_a_peer_may_not_do_is_refused_by_name(desk, caller, headers, code, named, wrapped):
    body = json.dumps(PUSH_BODY).encode()
    said = INVOKE_HEADERS | headers
    if wrapped and "x-ptp-version" not in headers:
        body = json.dumps({"payload": base64.b64encode(body).decode()}).encode()
        said["x-ptp-version"] = "1.1.0"
    status, answer = await ask(caller, desk, "invoke", body, said)
    assert (status, answer["code"]) == (200, code), answer
    assert named in answer["message"]
    assert desk.broker.usage() == (0, 0, 0)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-ptp-uri": "https://ptp.cn/v1/interconn/chan/push"},
        {"x-ptp-uri": "/org.ppc.ptp.PrivateTransferTransport/push"},
        {"x-ptp-uri": "", "x-ptp-target-node-id": ""},
        {"x-ptp-source-node-id": "", "x-ptp-from-node-id": "beta"},
        {"x-ptp-session-id": "", "x_ptp_session_id": SESSION},
        {"content-type": "application/json; charset=utf-8"},
    ],
)
async def test_spellings_of_an_invoke(desk, caller, headers):
    said = {name: value for name, value in (INVOKE_HEADERS | headers).items() if value}
    _, answer = await ask(caller, desk, "invoke", PUSH_BODY, said)
    assert answer["code"] == OK, answer
    assert await Container(caller, desk).pop(x_ptp_target_node_id="beta") == b"hi"


@pytest.mark.parametrize("inside", [False, True])
async def test_an_encapsulated_invoke_may_repeat_the_headers_inside(desk, caller, inside):
    said = {k: v for k, v in INVOKE_HEADERS.items() if k != "x-ptp-version"}
    inner = base64.b64encode(json.dumps(PUSH_BODY).encode()).decode()
    metadata = {"x-ptp-session-id": "not this one"} | (said if inside else {})
    _, answer = await ask(caller, desk, "invoke", {"payload": inner, "metadata": metadata}, {} if inside else said)
    assert answer["code"] == OK, answer
    assert await Container(caller, desk).pop() == b"hi"


async def test_an_encapsulated_body_that_is_no_push_is_refused(desk, caller):
    headers = {k: v for k, v in INVOKE_HEADERS.items() if k != "x-ptp-version"}
    _, answer = await ask(caller, desk, "invoke", {"payload": "AAAA"}, headers)
    assert answer["code"] == "E0000000400"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(make_node, client, chunked):
    alpha = await make_node("alpha", max_body=1000)
    body = json.dumps({"payload": "A" * 10_000_000}).encode()

    async def pieces():
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    for verb, headers in (("push", PUSH_HEADERS), ("invoke", INVOKE_HEADERS), ("pop", PUSH_HEADERS)):
        response = await client.post(
            alpha.url + CHAN + verb, content=pieces() if chunked else body, headers=headers
        )
        assert (response.status_code, response.json()["code"]) == (413, "E0000000413")
    assert await Container(client, alpha).push("alpha", b"small") == OK


async def test_a_message_over_the_broker_s_limit_is_refused(make_node, client):
    alpha = await make_node("alpha", limits=BrokerLimits(message_bytes=3))
    assert await Container(client, alpha).push("alpha", b"1234") == "E0000000413"


@pytest.mark.parametrize("verb", ["push", "pop", "peek", "release", "invoke"])
async def test_only_post_is_served(desk, caller, verb):
    assert (await caller.get(desk.url + CHAN + verb)).status_code == 405


async def test_hostile_session_ids_and_topics_are_only_text(desk, caller, tmp_path):
    for number, name in enumerate(["../../x", "/", "会话".encode().decode("latin-1"), "%2e%2e", "x" * 512]):
        box = Container(caller, desk, **{"x-ptp-session-id": name.encode("latin-1")})
        assert await box.push("alpha", b"%d" % number, topic="../\0\ud800") == OK
        assert await box.pop("../\0\ud800") == b"%d" % number
    assert [path.name for path in tmp_path.iterdir()] == ["alpha"]


async def test_an_uploader_that_hangs_up_leaves_nothing(alpha, client):
    _, writer = await asyncio.open_connection("127.0.0.1", alpha.socket.getsockname()[1])
    writer.write(
        b"POST /v1/interconn/chan/push HTTP/1.1\r\nhost: x\r\ncontent-length: 5000000\r\n"
        b"x-ptp-target-node-id: alpha\r\nx-ptp-session-id: session_job-1\r\n\r\n" + b'{"topic":"t"'
    )
    await writer.drain()
    writer.transport.abort()
    box = Container(client, alpha)
    assert await box.push("alpha", b"next") == OK
    assert await box.pop() == b"next"


async def test_the_openapi_document_tells_the_bodies_and_its_examples_work(desk, caller):
    document = (await caller.get(desk.url + "/openapi.json")).json()
    for verb in ("push", "pop", "peek", "release"):
        about = document["paths"][CHAN + verb]["post"]
        example = about["requestBody"]["content"]["application/json"]["schema"]["example"]
        headers = {p["name"]: p["example"] for p in about["parameters"] if p["required"]}
        if verb == "push":
            headers["x-ptp-target-node-id"] = "alpha"
        _, answer = await ask(caller, desk, verb, example, headers)
        assert answer["code"] == OK


@pytest.mark.parametrize("encapsulated", [False, True])
async def test_a_message_for_a_job_of_another_gateway_of_this_node_is_handed_on_once(
    make_node, client, encapsulated
):
    where = {}
    home = await make_node("alpha", elsewhere=lambda session: where["first"])  # each thinks the other has it
    first = Node("alpha", home.root.with_name("first"), elsewhere=lambda session: home.url)
    await first.start()
    where["first"] = first.url
    try:
        body, headers = PUSH_BODY, INVOKE_HEADERS
        if encapsulated:
            headers = {k: v for k, v in INVOKE_HEADERS.items() if k != "x-ptp-version"}
            inner = base64.b64encode(json.dumps(PUSH_BODY).encode()).decode()
            body, headers = {"payload": inner, "metadata": headers}, {"content-type": "application/json"}
        _, answer = await ask(client, first, "invoke", body, headers)
        assert answer["code"] == OK, answer
        assert not first.broker.sessions()
        assert await Container(client, home).pop(x_ptp_target_node_id="beta") == b"hi"
        headers = INVOKE_HEADERS | {"x-ptp-source-node-id": "stranger"}
        _, answer = await ask(client, first, "invoke", PUSH_BODY, headers)
        assert answer["code"] == "E0000000618"  # checked before it goes on
    finally:
        await first.stop()
        first.socket.close()
