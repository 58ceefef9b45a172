"""Messages to and from a partner whose bandwidth is limited, between real nodes."""

import asyncio

import pytest

from adapter.bfia.channel.bodies import UNPACED
from adapter.bfia.channel.courier import Courier
from adapter.bfia.relay import Relay
from gateway.runtime.pacing import PartnerLimit, PartnerPacing
from route_table.document import parse
from tests.adapter.bfia.channel.nodes import (
    INVOKE_HEADERS,
    OK,
    SESSION,
    Container,
    Node,
    served,
    until,
)

pytestmark = pytest.mark.anyio

KIB = 1024
RATE = 640 * KIB
SLICE = 10 * KIB
BURST = RATE // 4
LONG = bytes(3 << 20)
SHORT = bytes(SLICE // 2)


class Clock:
    """A clock that a test sets, or that goes on by itself as far as somebody sleeps."""

    def __init__(self, *, is_stopped=False):
        self.now = 0.0
        self.is_stopped = is_stopped
        self._moved = asyncio.Event()

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        end = self.now + seconds
        await asyncio.sleep(0)
        while self.is_stopped and self.now < end:
            await self._moved.wait()
        self.now = max(self.now, end)

    def advance(self, seconds):
        """Let time pass for those who sleep."""
        self.now += seconds
        self._moved.set()
        self._moved = asyncio.Event()


def limited(clock, partner):
    """Return the pacing of a single partner with the limit `RATE`."""
    limits = {partner: PartnerLimit(partner, RATE)}
    return PartnerPacing(limits.get, clock, clock.sleep)


def spent(size):
    """Return the seconds that ``size`` bytes need after an idle time."""
    return pytest.approx((size - BURST) / RATE, rel=0.02)


@pytest.fixture
def make_node(make_node):
    """A function that starts a node, which knows the jobs of the sessions here."""

    async def make(name, **options):
        node = await make_node(name, **options)
        node.sessions[SESSION] = True
        node.sessions["other"] = True
        return node

    return make


async def push_all(container, count, payload, topic="t"):
    """Push messages together; raise an error unless all succeed."""
    pushes = [container.push("beta", payload, f"{topic}{number}") for number in range(count)]
    assert await asyncio.gather(*pushes) == [OK] * count


async def two_nodes(make_node, **options):
    """Return alpha, with options, and beta, with routes to each other."""
    alpha = await make_node("alpha", **options)
    beta = await make_node("beta")
    connect(alpha, beta)
    return alpha, beta


def connect(alpha, beta):
    """Give two nodes routes to each other."""
    for node, other in ((alpha, beta), (beta, alpha)):
        [route] = parse(f"{other.name}: {{url: '{other.url}'}}").routes.values()
        node.routes[other.name] = route


async def test_messages_leave_at_the_rate_of_the_partner(make_node, client):
    clock = Clock()
    pacing = limited(clock, "beta")
    alpha, beta = await two_nodes(make_node, courier=Courier(pacing=pacing))

    await push_all(Container(client, alpha), 2, LONG)

    assert clock.now == spent(2 * len(LONG))
    assert await Container(client, beta).pop("t1") == LONG
    state = pacing.state("beta")
    assert state.waiting == 0
    assert state.waited_seconds > clock.now / 2


async def test_small_messages_leave_at_the_rate_as_well(make_node, client):
    clock = Clock()
    alpha, _ = await two_nodes(make_node, courier=Courier(pacing=limited(clock, "beta")))
    container = Container(client, alpha)
    message = bytes(8 * KIB)  # 11 KiB in the body of a push, as JSON

    await push_all(container, 40, message)

    assert clock.now > (40 * len(message) - BURST) / RATE


async def test_a_message_passes_long_ones_of_another_session(make_node, client):
    clock = Clock(is_stopped=True)
    pacing = limited(clock, "beta")
    alpha, _ = await two_nodes(make_node, courier=Courier(pacing=pacing))
    long_pushes = asyncio.create_task(push_all(Container(client, alpha), 3, LONG))
    await until(lambda: pacing.state("beta").waiting >= 3)
    other = Container(client, alpha, **{"x-ptp-session-id": "other"})
    push = asyncio.create_task(other.push("beta", SHORT))
    await until(lambda: pacing.state("beta").waiting >= 4)

    clock.advance(0.05)  # 32 KiB, of which the message has its part

    assert await push == OK
    assert not long_pushes.done()
    clock.is_stopped = False
    clock.advance(0.05)
    await long_pushes


async def test_messages_arrive_at_the_rate_of_the_partner(make_node, client):
    clock = Clock()
    alpha = await make_node("alpha")
    beta = await make_node("beta", incoming=limited(clock, "alpha"))
    connect(alpha, beta)

    await push_all(Container(client, alpha), 2, LONG)

    assert clock.now == spent(2 * len(LONG))


async def test_short_messages_that_arrive_count_without_waiting(make_node, client):
    clock = Clock(is_stopped=True)
    pacing = limited(clock, "alpha")
    alpha = await make_node("alpha")
    beta = await make_node("beta", incoming=pacing)
    connect(alpha, beta)

    await push_all(Container(client, alpha), 8, bytes(64 * KIB))

    assert pacing.state("alpha").bytes_per_second > 8 * 64 * KIB // 10


async def test_announced_bytes_count_only_once_they_arrive(make_node):
    pacing = limited(Clock(is_stopped=True), "beta")
    alpha = await make_node("alpha", incoming=pacing)
    _, _, address = alpha.url.rpartition("/")
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = ["POST /v1/interconn/chan/invoke HTTP/1.1", "host: alpha", "expect: 100-continue"]
    head += [f"{name}: {value}" for name, value in INVOKE_HEADERS.items()]
    head += ["content-type: application/json", f"content-length: {UNPACED}", "", ""]

    writer.write("\r\n".join(head).encode())
    await reader.readuntil(b"100 Continue")

    assert pacing.state("beta").bytes_per_second == 0
    writer.transport.abort()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_a_relay_keeps_the_pace_of_both_nodes(make_node, client, tmp_path):
    sending = Clock()
    receiving = Clock()
    alpha, beta = await two_nodes(make_node)
    hub = Node("hub", tmp_path / "hub")
    lines = [f"{node.name}: {{url: '{node.url}', relay: true}}" for node in (alpha, beta)]
    table = parse("\n".join(lines))
    courier = Courier(pacing=limited(sending, "beta"))

    def relay(app):
        return Relay(
            app,
            node="hub",
            institution="hub-inst",
            table=lambda: table,
            courier=courier,
            control_limit=1 << 20,
            channel_limit=1 << 24,
            record_refusal=lambda *_: None,
            incoming=limited(receiving, "alpha"),
        )

    hub.wrap_app = relay
    async with served(hub):
        [route] = parse(f"beta: {{url: '{hub.url}'}}").routes.values()
        alpha.routes["beta"] = route
        await push_all(Container(client, alpha), 1, LONG)
        await courier.close()

    assert sending.now == spent(len(LONG))
    assert receiving.now == spent(len(LONG))


async def test_a_push_that_is_given_up_leaves_its_place(make_node):
    clock = Clock(is_stopped=True)
    pacing = limited(clock, "beta")
    pacing.charge("beta", RATE)
    pace = pacing.of("beta", "session")
    waiting = asyncio.create_task(pace.take(3 * SLICE))
    await until(lambda: pacing.state("beta").waiting == 1)

    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert pacing.state("beta").waiting == 0
