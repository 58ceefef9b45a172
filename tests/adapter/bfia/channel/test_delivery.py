"""Messages that the transport channel delivers and stores, between two nodes and on one."""

import asyncio
import os
import socket

import httpx
import pytest

from adapter.bfia.channel import sessions
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import (
    OK,
    SESSION,
    Container,
    push_body,
    until_readers,
)
from tests.adapter.bfia.scripted import says, scripted, text
from tests.plain import NO_TLS

pytestmark = pytest.mark.anyio

ACCEPTED = says({"code": 0, "msg": "ok"})

# Codes of refusals.
CONTRADICTORY = "E0000000520"  # the peer's response is none that the standard allows
UNREACHABLE = "E0000000607"
RELEASED = "E0000000608"
NO_ADDRESS = "E0000000619"
FULL = "E0000000700"


@pytest.fixture
def peer(alpha):
    """A scripted peer of alpha's."""
    with scripted() as (peer, url):
        alpha.routes["peer"] = Route("beta", url)
        yield peer


# ------------------------------------------------------------ between two nodes


async def test_a_push_reaches_the_pop_that_waits_on_the_peer(alpha, beta, client):
    guest = Container(client, alpha)
    host = Container(client, beta)
    pop = asyncio.create_task(host.pop(timeout="60000"))
    await until_readers(beta, 1)

    assert await guest.push("beta", b"hello") == OK

    assert await pop == b"hello"
    assert alpha.broker.usage() == (0, 0, 0)
    assert beta.broker.usage() == (1, 0, 0)


async def test_the_peer_gets_the_container_s_bytes_and_every_header(alpha, client, peer):
    peer.will(ACCEPTED)
    body = b' {"payload" : "aGk", "topic":"t" , "more": 1}'
    guest = Container(client, alpha, "secret")

    response = await guest.post(
        "push",
        body,
        x_ptp_target_node_id="peer",
        x_ptp_trace_id="trace",
        x_ptp_tech_provider_code="acme",
    )

    assert response["code"] == OK
    (request,) = peer.requests
    assert request.raw == body
    headers = {}
    for name, value in request.headers.items():
        if name.startswith(("x-ptp", "content-type")):
            headers[name] = value
    assert len(headers.pop("x-ptp-message-id")) == 32
    token = headers.pop("x-ptp-token")
    assert "secret" not in token
    assert len(token) == 32
    assert headers == {
        "content-type": "application/json",
        "x-ptp-version": "1",
        "x-ptp-tech-provider-code": "acme",
        "x-ptp-trace-id": "trace",
        "x-ptp-session-id": SESSION,
        "x-ptp-target-node-id": "peer",
        "x-ptp-source-node-id": "alpha",
        "x-ptp-source-inst-id": "alpha-inst",
        "x-ptp-uri": "/v1/interconn/chan/push",
    }


async def test_a_push_is_retried_with_the_same_id_until_acknowledged(alpha, client, peer):
    is_full = says({"code": FULL, "message": "full"})
    peer.will(
        text(b"boom", 500),
        text(b"", 503),
        is_full,
        ACCEPTED,
    )

    assert await Container(client, alpha).push("peer", b"x") == OK

    ids = [request.headers["x-ptp-message-id"] for request in peer.requests]
    assert len(ids) == 4
    assert len(set(ids)) == 1


NO_SUCCESS = [
    (says({"code": RELEASED, "message": "released"}), RELEASED),
    (text(b"<html>"), CONTRADICTORY),
    (says({"message": "success"}), CONTRADICTORY),
    (says({"code": 200, "msg": "success"}), CONTRADICTORY),
    (says({"code": 404, "msg": "no such path"}, 404), CONTRADICTORY),
    (text(b"", 302), CONTRADICTORY),
    (text(b"too large", 413), "E0000000413"),
    (text(b"[" * 2_000_000), CONTRADICTORY),
]


@pytest.mark.parametrize(("response", "code"), NO_SUCCESS)
async def test_only_the_peer_s_success_is_success(alpha, client, peer, response, code):
    peer.will(response)

    assert await Container(client, alpha).push("peer", b"x") == code

    assert len(peer.requests) == 1


async def test_a_peer_that_never_responds_is_unreachable(make_node, client):
    alpha = await make_node("alpha", retry_for=0.2)
    container = Container(client, alpha)

    with socket.socket() as not_listening:
        not_listening.bind(("127.0.0.1", 0))
        port = not_listening.getsockname()[1]
        alpha.routes["beta"] = Route("beta", f"http://127.0.0.1:{port}")
        assert await container.push("beta", b"x") == UNREACHABLE

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        alpha.routes["beta"] = Route(
            "beta",
            f"http://127.0.0.1:{port}",
            deadline=0.1,
        )
        assert await container.push("beta", b"x") == UNREACHABLE

    alpha.routes["beta"] = Route("beta", "ftp://nowhere")
    assert await container.push("beta", b"x") == NO_ADDRESS


async def test_the_reason_of_an_unreachable_peer_is_passed_on(make_node, client):
    alpha = await make_node("alpha", retry_for=0.0)
    container = Container(client, alpha)
    push = push_body(b"")

    with scripted() as (peer, url):
        peer.will(says({"code": "E0000000500", "message": "its disk is full"}, 503))
        alpha.routes["peer"] = Route("peer", url)
        response = await container.post(
            "push",
            push,
            x_ptp_target_node_id="peer",
        )
        assert response["code"] == UNREACHABLE
        assert "HTTP 503: its disk is full" in response["message"]

        alpha.routes["peer"] = Route(
            "peer",
            url.replace("http", "https"),
            ca="/missing",
        )
        response = await container.post(
            "push",
            push,
            x_ptp_target_node_id="peer",
        )
        assert response["code"] == UNREACHABLE
        assert "certificates that the route names" in response["message"]


# ------------------------------------------------------------ on one node


async def test_messages_and_kept_answers_survive_a_restart(alpha, client):
    container = Container(client, alpha)
    for payload in (b"one", b"two", b"three"):
        assert await container.push("alpha", payload) == OK
    assert await container.pop(x_ptp_pop_id="a") == b"one"

    await alpha.stop()
    await alpha.start()

    # A repeated pop gets the same message again.
    assert await container.pop(x_ptp_pop_id="a") == b"one"
    assert await container.pop(x_ptp_pop_id="b") == b"two"
    assert await container.pop() == b"three"

    await alpha.stop()
    await alpha.start()

    assert await container.peek() == b""


async def test_a_reader_that_hangs_up_takes_no_message_with_it(alpha, client):
    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as second_client:
        pop = asyncio.create_task(Container(second_client, alpha).pop(timeout=60_000))
        await until_readers(alpha, 1)
        pop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pop
    await until_readers(alpha, 0)

    container = Container(client, alpha)
    assert await container.push("alpha", b"still there") == OK
    assert await container.pop() == b"still there"


async def test_a_reader_that_hangs_up_in_a_long_response_loses_no_message(alpha, client):
    payload = os.urandom(8 << 20)
    container = Container(client, alpha)
    assert await container.push("alpha", payload) == OK

    reader, writer = await asyncio.open_connection(
        "127.0.0.1",
        alpha.socket.getsockname()[1],
    )
    writer.write(
        b"POST /v1/interconn/chan/pop HTTP/1.1\r\nhost: x\r\ncontent-length: 13\r\n"
        b"x-ptp-session-id: session_job-1\r\nx-ptp-token: r\r\n\r\n"
        b'{"topic":"t"}'
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.transport.abort()

    assert await container.pop(timeout=20_000) == payload


async def test_an_unexpected_sequence_number_loses_no_message(local_node, local_client):
    first_run = Container(local_client, local_node, "attempt 1")
    second_run = Container(local_client, local_node, "attempt 2")
    for container, payload in ((first_run, b"a"), (first_run, b"b"), (second_run, b"a")):
        assert await container.push("alpha", payload, metadata={"sequence": "0"}) == OK

    reader = Container(local_client, local_node)
    payloads = [await reader.peek() for _ in range(4)]
    assert payloads == [b"a", b"b", b"a", b""]


RELEASES = [
    # headers and body of the release, and the topics that it empties
    ({}, {"topic": "a"}, {"a"}),
    ({"x-ptp-topic": "b"}, {"topic": "a"}, {"b"}),
    ({"x-ptp-topic": ""}, {"topic": "a"}, {""}),
    ({}, b"", {"a", "b", ""}),
]


@pytest.mark.parametrize(
    ("headers", "body", "emptied"),
    RELEASES,
)
async def test_a_release_drops_the_topic_that_it_names(
    local_node, local_client, headers, body, emptied
):
    topics = ("a", "b", "")
    container = Container(local_client, local_node)
    for topic in topics:
        assert await container.push("alpha", b"x", topic) == OK

    response = await container.post("release", body, **headers)

    assert response["code"] == OK
    for topic in topics:
        payload = await container.peek(topic)
        assert payload == (b"" if topic in emptied else b"x"), topic


async def test_a_release_of_all_topics_leaves_messages_of_the_container(local_node, local_client):
    reader = Container(local_client, local_node)
    writer = Container(local_client, local_node, "writer")
    assert await writer.push("alpha", b"x", "a") == OK

    assert (await writer.post("release", b""))["code"] == OK
    assert local_node.broker.usage().messages == 1

    assert (await reader.post("release", b""))["code"] == OK
    assert local_node.broker.usage() == (1, 0, 0)


async def test_a_release_of_all_topics_takes_nothing_from_other_runs(local_node, local_client):
    local_node.shares_session = True
    reader = Container(local_client, local_node)
    assert await reader.push("alpha", b"1", "a") == OK
    assert await reader.push("alpha", b"2", "a") == OK
    assert await reader.peek("a", x_ptp_pop_id="p1") == b"1"

    assert (await reader.post("release", b""))["code"] == OK

    # The retained message is gone, so the pop with its id is a new one.
    assert await reader.peek("a", x_ptp_pop_id="p1") == b"2"


async def test_when_the_job_ends_everything_is_freed_and_refused(alpha, beta, client):
    guest = Container(client, alpha)
    host = Container(client, beta)
    assert await guest.push("beta", b"unread") == OK
    pop = asyncio.create_task(host.post("pop", {"topic": "empty"}))
    await until_readers(beta, 1)

    await beta.broker.end_session(SESSION)

    assert (await pop)["code"] == RELEASED
    assert await guest.push("beta", b"late") == RELEASED
    assert (await host.post("peek", b""))["code"] == RELEASED
    assert (await host.post("release", b""))["code"] == OK
    assert beta.broker.usage() == (0, 0, 0)


async def test_sessions_of_unknown_jobs_are_limited_in_total_and_per_peer(make_node, client):
    alpha = await make_node("alpha", unknown_sessions=8)
    alpha.sessions["known"] = True
    alpha.senders.update(f"peer{number}" for number in range(9))

    async def push(session, source="peer0"):
        headers = {
            "x-ptp-version": "1",
            "x-ptp-source-node-id": source,
            "x-ptp-session-id": session,
        }
        response = await Container(client, alpha, **headers).post("invoke", push_body(b"x"))
        return response["code"]

    # Two unknown sessions of one peer, of eight in total; the session of a known job is free.
    for session, code in (
        ("one", OK),
        ("two", OK),
        ("three", FULL),
        ("known", OK),
        ("one", OK),
    ):
        assert await push(session) == code, session

    await alpha.broker.end_session("one")
    assert await push("three") == OK

    for number in range(1, 7):
        assert await push(f"session {number}", f"peer{number}") == OK
    assert await push("session 7", "peer7") == FULL


async def test_the_cache_of_sessions_forgets_the_oldest_entry(monkeypatch):
    monkeypatch.setattr(sessions, "MAX_ENTRIES", 2)
    lookups = []

    def look_up(key):
        lookups.append(key)
        return key

    cache = sessions.Cache(look_up)

    assert [await cache(key) for key in "aabca"] == list("aabca")
    assert lookups == list("abca")


async def test_an_idle_unknown_session_makes_room(local_node, monkeypatch):
    monkeypatch.setattr(sessions, "IDLE_SECONDS", -1.0)
    broker = local_node.broker
    no_known_jobs = sessions.Cache(lambda session: None)
    unknown_sessions = sessions.UnknownSessions(broker, no_known_jobs, 1)

    for session in ("one", "two"):
        await unknown_sessions.admit(session, "peer")
        await broker.push(session, "t", "peer", [b"x"])

    assert not broker.holds("one")
    assert broker.holds("two")
