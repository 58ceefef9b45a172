"""Idle connections are kept as long as the peer promises."""

import pytest

from adapter.bfia.connections import Client, Request, context
from adapter.bfia.kept import UNPROMISED, idle_seconds
from route_table.model import NO_IDENTITY
from tests.adapter.bfia.scripted import says, scripted

_REQUEST = Request("GET", "/health/live", {}, b"")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("timeout=75", 65.0),
        ("max=100, timeout=60", 50.0),
        ("Timeout=20;max=3", 10.0),
        ("timeout=5", UNPROMISED),
        ("timeout=0", UNPROMISED),
        ("timeout=999999", 290.0),
        ("timeout=7.5", UNPROMISED),
        ("timeout=-1", UNPROMISED),
        ("xtimeout=75", UNPROMISED),
        ("", UNPROMISED),
    ],
)
def test_a_promise_less_a_margin_counts(header, seconds):
    assert idle_seconds({"keep-alive": header}) == seconds


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def promising(value):
    """Return a response with the header Keep-Alive."""

    def answer(handler):
        handler.send_response(200)
        handler.send_header("keep-alive", value)
        handler.send_header("content-length", "2")
        handler.end_headers()
        handler.wfile.write(b"{}")

    return answer


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def connections_of(clock):
    """Open clients of addresses, and count the connections that the peer gets."""
    clients = []

    def open_client(url):
        client = Client(url, context(NO_IDENTITY), monotonic=clock)
        clients.append(client)
        return client

    yield open_client
    for client in clients:
        client.close()


def idle_of(client):
    """Return the idle connections of a client."""
    return client.idle_sockets()


@pytest.mark.parametrize(
    ("answer", "kept_for"),
    [
        (promising("timeout=75"), 60.0),
        (says({}), 3.0),
    ],
)
def test_a_connection_is_used_again_within_the_promised_time(
    connections_of, clock, answer, kept_for
):
    with scripted() as (peer, url):
        client = connections_of(url)
        peer.will(answer)
        client.send(_REQUEST, 10)
        first = idle_of(client)

        clock.now += kept_for
        client.send(_REQUEST, 10)
        assert idle_of(client) == first

        clock.now += kept_for + 10
        client.send(_REQUEST, 10)
        assert idle_of(client) != first


def test_connections_to_peers_in_use_are_kept_by_small_requests(connections_of, clock):
    with scripted() as (peer, url):
        client = connections_of(url)
        peer.will(promising("timeout=75"))
        client.send(_REQUEST, 10)
        first = idle_of(client)
        for _ in range(10):
            clock.now += 30
            client.keep()
        assert idle_of(client) == first
        assert peer.requests[-1].target == "/health/live"


def test_an_ended_connection_to_a_peer_in_use_is_replaced_ahead_of_need(connections_of, clock):
    with scripted() as (peer, url):
        client = connections_of(url)
        peer.will(promising("timeout=75"))
        client.send(_REQUEST, 10)
        (first,) = idle_of(client)
        first.close()
        client.keep()
        assert len(idle_of(client)) == 1
        assert idle_of(client) != [first]


def test_connections_to_peers_without_work_are_not_kept(connections_of, clock):
    with scripted() as (peer, url):
        client = connections_of(url)
        client.keep()
        peer.will(promising("timeout=75"))
        client.send(_REQUEST, 10)
        clock.now += 26 * 3600 + 1
        client.keep()
        assert len(peer.requests) == 1


def test_a_peer_that_promises_nothing_gets_no_requests_to_keep_connections(connections_of, clock):
    with scripted() as (peer, url):
        client = connections_of(url)
        client.send(_REQUEST, 10)
        clock.now += 30
        client.keep()
        assert len(peer.requests) == 1


def test_a_peer_that_is_away_does_not_stop_the_keeping(connections_of, clock):
    with scripted() as (peer, url):
        client = connections_of(url)
        peer.will(promising("timeout=75"))
        client.send(_REQUEST, 10)
        (connection,) = idle_of(client)
        connection.close()
    client.keep()
    assert idle_of(client) == []


def test_a_connection_to_a_partner_is_opened_ahead_once(connections_of):
    with scripted() as (peer, url):
        client = connections_of(url)
        peer.will(promising("timeout=75"))
        client.open_ahead()
        client.open_ahead()
        assert [request.target for request in peer.requests] == ["/health/live"]
        assert len(idle_of(client)) == 1


def test_an_idle_connection_is_kept_for_the_next_day(connections_of, clock):
    with scripted() as (peer, url):
        client = connections_of(url)
        peer.will(promising("timeout=75"))
        client.send(_REQUEST, 10)
        clock.now += 25 * 3600
        client.keep()
        assert len(peer.requests) == 2
