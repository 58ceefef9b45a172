"""What the transport channel brings, between nodes and on one, and what it keeps until it has."""

import asyncio
import base64
import contextlib
import json
import os
import socket

import httpx
import pytest
import uvicorn

from adapter.bfia.channel.courier import PeerRoute
from gateway.broker import BrokerLimits
from tests.adapter.bfia.channel.nodes import OK, SESSION, Container, listening, until, waiters
from tests.plain import NO_TLS

pytestmark = pytest.mark.anyio


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
    token = seen["headers"]["x-ptp-token"]
    assert "secret" not in token and len(token) == 32
    assert {k: v for k, v in seen["headers"].items() if k.startswith("x-ptp") or k == "content-type"} == {
        "content-type": "application/json",
        "x-ptp-version": "1",
        "x-ptp-tech-provider-code": "acme",
        "x-ptp-trace-id": "trace",
        "x-ptp-token": token,
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
        b"x-ptp-session-id: session_job-1\r\nx-ptp-token: r\r\n\r\n" + b'{"topic":"t"}'
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
    assert await box.push("alpha", b"more") == "E0000000700"  # one run has its share
    push = asyncio.create_task(Container(client, alpha, "another").push("alpha", b"next"))
    await until(lambda: alpha.broker._writers)
    assert not push.done()
    assert await box.pop() == b"0123456789"
    assert await push == OK


async def test_release(desk, caller):
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


async def test_sessions_of_no_known_job_are_taken_but_few_and_fewer_of_one_peer(make_node, client):
    alpha = await make_node("alpha", unknown_sessions=8)
    alpha.sessions["known"] = True
    alpha.known.update(f"peer{n}" for n in range(9))

    async def push(session, source="peer0"):
        headers = {"x-ptp-version": "1", "x-ptp-source-node-id": source}
        box = Container(client, alpha, **{"x-ptp-session-id": session})
        body = {"topic": "t", "payload": base64.b64encode(b"x").decode()}
        return (await box.post("invoke", body, **headers))["code"]

    assert [await push(s) for s in ("one", "two", "three", "known", "one")] == [OK, OK, "E0000000700", OK, OK]
    await alpha.broker.end_session("one")
    assert await push("three") == OK
    assert [await push(f"of {n}", f"peer{n}") for n in range(1, 8)] == [OK] * 6 + ["E0000000700"]
