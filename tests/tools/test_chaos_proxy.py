"""The proxy does what its faults say: else the trials would show nothing."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.adapter.bfia.scripted import ScriptedPeer, says, scripted
from tests.e2e.nodes import wait_for
from tests.plain import NO_TLS
from tools.chaos.proxy import Proxy


@pytest.fixture
def world() -> Iterator[tuple[ScriptedPeer, Proxy]]:
    with scripted() as (peer, url):
        place = urlsplit(url)
        with Proxy(str(place.hostname), int(place.port or 0)) as proxy:
            peer.will(says(data={"long": "x" * 1000}))
            yield peer, proxy


def ask(proxy: Proxy, path: str = "/a", seconds: float = 60.0) -> httpx.Response:
    return httpx.post(
        f"http://127.0.0.1:{proxy.port}{path}", json={"a": 1}, timeout=seconds, trust_env=False, verify=NO_TLS
    )


@pytest.mark.parametrize("fault", ["", "delay", "duplicate", "reorder"])
def test_what_is_answered_all_the_same(world: tuple[ScriptedPeer, Proxy], fault: str):
    peer, proxy = world
    proxy.turn(fault)
    assert ask(proxy).json()["code"] == 0
    wait_for(lambda: len(peer.asked) == (2 if fault == "duplicate" else 1), 10, 0.01)
    assert all(asked.body == {"a": 1} for asked in peer.asked)


def test_a_cut_request_arrives_or_not_and_is_never_answered(world: tuple[ScriptedPeer, Proxy]):
    peer, proxy = world
    proxy.turn("cut", seed=1)
    for _ in range(10):
        with pytest.raises(httpx.TransportError):
            ask(proxy)
    assert 0 < len(peer.asked) < 10


def test_half_an_answer(world: tuple[ScriptedPeer, Proxy]):
    peer, proxy = world
    proxy.turn("half-close")
    with pytest.raises(httpx.RemoteProtocolError):
        ask(proxy)
    assert len(peer.asked) == 1


def test_a_black_hole_swallows_until_it_is_gone(world: tuple[ScriptedPeer, Proxy]):
    peer, proxy = world
    proxy.turn("blackhole")
    with pytest.raises(httpx.ReadTimeout):
        ask(proxy, seconds=0.5)
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as held:
        held.sendall(b"POST /b HTTP/1.1\r\ncontent-length: 0\r\n\r\n")
        wait_for(lambda: proxy.struck == 2, 10, 0.01)
        proxy.turn("")
        held.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert held.recv(1) == b""  # no answer: the connection is gone
    assert peer.asked == []
    assert ask(proxy).json()["code"] == 0


def test_a_later_request_overtakes(world: tuple[ScriptedPeer, Proxy]):
    peer, proxy = world
    proxy.turn("reorder")
    first = threading.Thread(target=ask, args=(proxy, "/first"))
    first.start()
    wait_for(lambda: proxy.struck == 1, 10, 0.01)
    proxy.turn("")
    ask(proxy, "/second")
    first.join(10)
    assert [asked.target for asked in peer.asked] == ["/second", "/first"]


def test_only_the_asked_share_is_struck(world: tuple[ScriptedPeer, Proxy]):
    _, proxy = world
    proxy.turn("duplicate", share=0.5, seed=3)
    for _ in range(20):
        ask(proxy)
    assert 3 < proxy.struck < 17 and proxy.seen == 20
