"""What the transport channel brings, between nodes and on one, and what it keeps until it has."""

import asyncio
import base64
import os
import socket

import httpx
import pytest

from adapter.bfia.channel import sessions
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import OK, SESSION, Container, until, waiters
from tests.adapter.bfia.scripted import says, scripted, text
from tests.plain import NO_TLS

pytestmark = pytest.mark.anyio


# ------------------------------------------------------------ between two nodes


async def test_a_push_reaches_the_pop_that_waits_on_the_other_node(
    alpha,
    beta,
    client,
):
    guest, host = Container(client, alpha), Container(client, beta)
    pop = asyncio.create_task(host.pop(timeout="60000"))
    await until(lambda: waiters(beta) == 1)
    assert await guest.push("beta", b"hello") == OK
    assert await pop == b"hello"
    assert alpha.broker.usage() == (0, 0, 0)
    assert beta.broker.usage() == (1, 0, 0)


async def test_the_peer_sees_the_container_s_bytes_and_every_header(
    alpha,
    client,
    peer,
):
    peer.will(TAKEN)
    body = b' {"payload" : "aGk", "topic":"t" , "more": 1}'
    guest = Container(client, alpha, "secret")
    answer = await guest.post(
        "push",
        body,
        x_ptp_target_node_id="peer",
        x_ptp_trace_id="trace",
        x_ptp_tech_provider_code="acme",
    )
    assert answer["code"] == OK
    (asked,) = peer.asked
    assert asked.raw == body
    headers = {
        k: v for k, v in asked.headers.items() if k.startswith("x-ptp") or k == "content-type"
    }
    token = headers["x-ptp-token"]
    assert len(headers.pop("x-ptp-message-id")) == 32
    assert "secret" not in token
    assert len(token) == 32
    assert headers == {
        "content-type": "application/json",
        "x-ptp-version": "1",
        "x-ptp-tech-provider-code": "acme",
        "x-ptp-trace-id": "trace",
        "x-ptp-token": token,
        "x-ptp-session-id": SESSION,
        "x-ptp-target-node-id": "peer",
        "x-ptp-source-node-id": "alpha",
        "x-ptp-source-inst-id": "alpha-inst",
        "x-ptp-uri": "/v1/interconn/chan/push",
    }


TAKEN = says({"code": 0, "msg": "ok"})


@pytest.fixture
def peer(alpha):
    """A scripted peer of alpha's."""
    with scripted() as (peer, url):
        alpha.routes["peer"] = Route("beta", url)
        yield peer


async def test_a_push_is_retried_with_the_same_id_until_acknowledged(
    alpha,
    client,
    peer,
):
    peer.will(
        text(b"boom", 500), text(b"", 503), says({"code": "E0000000700", "message": "full"}), TAKEN
    )
    assert await Container(client, alpha).push("peer", b"x") == OK
    assert len(peer.asked) == 4
    assert len({asked.headers["x-ptp-message-id"] for asked in peer.asked}) == 1


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (says({"code": "E0000000608", "message": "released"}), "E0000000608"),
        (text(b"<html>"), "E0000000520"),
        (says({"message": "success"}), "E0000000520"),
        (says({"code": 200, "msg": "success"}), "E0000000520"),
        (says({"code": 404, "msg": "no such path"}, 404), "E0000000520"),
        (text(b"", 302), "E0000000520"),
        (text(b"too large", 413), "E0000000413"),
        (text(b"[" * 2_000_000), "E0000000520"),
    ],
)
async def test_only_the_peer_s_success_is_success(
    alpha,
    client,
    peer,
    answer,
    code,
):
    peer.will(answer)
    assert await Container(client, alpha).push("peer", b"x") == code
    assert len(peer.asked) == 1


async def test_a_peer_that_never_answers_is_unreachable(make_node, client):
    alpha = await make_node("alpha", retry_for=0.2)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        alpha.routes["beta"] = Route("beta", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        assert await Container(client, alpha).push("beta", b"x") == "E0000000607"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        alpha.routes["beta"] = Route(
            "beta", f"http://127.0.0.1:{silent.getsockname()[1]}", deadline=0.1
        )
        assert await Container(client, alpha).push("beta", b"x") == "E0000000607"
    alpha.routes["beta"] = Route("beta", "ftp://nowhere")
    assert await Container(client, alpha).push("beta", b"x") == "E0000000619"


# ------------------------------------------------------------ on one node


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


async def test_a_reader_that_hangs_up_in_a_long_response_loses_no_message(alpha, client):
    payload = os.urandom(8 << 20)
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


async def test_an_unexpected_sequence_number_loses_no_message(desk, caller):
    first, second = Container(caller, desk, "attempt 1"), Container(caller, desk, "attempt 2")
    assert await first.push("alpha", b"a", metadata={"sequence": "0"}) == OK
    assert await first.push("alpha", b"b", metadata={"sequence": "0"}) == OK
    assert await second.push("alpha", b"a", metadata={"sequence": "0"}) == OK
    box = Container(caller, desk)
    assert [await box.peek() for _ in range(4)] == [b"a", b"b", b"a", b""]


@pytest.mark.parametrize(
    ("headers", "body", "dropped"),
    [
        ({}, {"topic": "a"}, {"a"}),
        ({"x-ptp-topic": "b"}, {"topic": "a"}, {"b"}),
        ({"x-ptp-topic": ""}, {"topic": "a"}, {""}),
        ({}, b"", set()),
    ],
)
async def test_a_release_drops_the_topic_that_it_names(
    desk,
    caller,
    headers,
    body,
    dropped,
):
    box = Container(caller, desk)
    for topic in ("a", "b", ""):
        assert await box.push("alpha", b"x", topic) == OK
    assert (await box.post("release", body, **headers))["code"] == OK
    assert {topic for topic in ("a", "b", "") if not await box.peek(topic)} == dropped


async def test_when_the_job_ends_everything_is_freed_and_refused(
    alpha,
    beta,
    client,
):
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


async def test_sessions_of_no_known_job_are_taken_but_few_and_fewer_of_one_peer(make_node, client):
    alpha = await make_node("alpha", unknown_sessions=8)
    alpha.sessions["known"] = True
    alpha.known.update(f"peer{n}" for n in range(9))

    async def push(session, source="peer0"):
        headers = {"x-ptp-version": "1", "x-ptp-source-node-id": source}
        box = Container(client, alpha, **{"x-ptp-session-id": session})
        body = {"topic": "t", "payload": base64.b64encode(b"x").decode()}
        return (await box.post("invoke", body, **headers))["code"]

    assert [await push(s) for s in ("one", "two", "three", "known", "one")] == [
        OK,
        OK,
        "E0000000700",
        OK,
        OK,
    ]
    await alpha.broker.end_session("one")
    assert await push("three") == OK
    assert [await push(f"of {n}", f"peer{n}") for n in range(1, 8)] == [OK] * 6 + ["E0000000700"]


async def test_why_a_peer_gave_no_answer_is_passed_on(make_node, client):
    alpha = await make_node("alpha", retry_for=0.0)
    with scripted() as (peer, url):
        peer.will(says({"code": "E0000000500", "message": "its disk is full"}, 503))
        alpha.routes["peer"] = Route("peer", url)
        pushed = {"topic": "t", "payload": ""}
        answer = await Container(client, alpha).post("push", pushed, x_ptp_target_node_id="peer")
        assert answer["code"] == "E0000000607"
        assert "HTTP 503: its disk is full" in answer["message"]
        alpha.routes["peer"] = Route("peer", url.replace("http", "https"), ca="/missing")
        answer = await Container(client, alpha).post("push", pushed, x_ptp_target_node_id="peer")
        assert answer["code"] == "E0000000607"
        assert "certificates that the route names" in answer["message"]


async def test_cached_answers_are_few(monkeypatch):
    monkeypatch.setattr(sessions, "MAX_ENTRIES", 2)
    asked = []
    cache = sessions.Cache(lambda key: asked.append(key) or key)
    assert [await cache(key) for key in "aabca"] == list("aabca")
    assert asked == list("abca")


async def test_an_unknown_session_that_nobody_uses_makes_room(desk, monkeypatch):
    monkeypatch.setattr(sessions, "IDLE_SECONDS", -1.0)
    known = sessions.UnknownSessions(desk.broker, sessions.Cache(lambda _: None), 1)
    for session in ("one", "two"):
        await known.admit(session, "peer")
        await desk.broker.push(session, "t", "peer", [b"x"])
    assert not desk.broker.holds("one")
    assert desk.broker.holds("two")
