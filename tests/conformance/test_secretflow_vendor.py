"""The wrapper of SecretFlow's components, without SecretFlow: its relay loses no message."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing
from queue import Queue
from typing import Any

import pytest
from sfvendor.channel import PASSING_CODES, SUCCESS, Channel, Outbound, decode
from sfvendor.relay import Relay

from adapter.bfia.channel.ptp_pb2 import LegacyOutbound
from tests.cli import call

REGISTRATION = "examples/secretflow_vendor/register.json"
TOPIC = "host.0-guest.0"
HEADERS = {
    "x-ptp-topic": TOPIC,
    "x-ptp-token": "secret",
}
ENDED = Outbound(b"", "E0000000608", "the session has ended")
PATIENCE = 30.0


class Gateway:
    """A gateway that answers pushes and pops in turn, and keeps the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, Queue[Outbound | OSError]] = {"push": Queue(), "pop": Queue()}
        self.requests: list[tuple[str, bytes, dict[str, str]]] = []

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        self.requests.append((path, body, headers))
        operation = path.rpartition("/")[2].partition("?")[0]
        answer = self.answers[operation].get(timeout=PATIENCE)
        if isinstance(answer, OSError):
            raise answer
        return answer.encode()

    def will(self, operation: str, *answers: Outbound | OSError) -> None:
        """Answer the next requests so."""
        for answer in answers:
            self.answers[operation].put(answer)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
def refused() -> threading.Event:
    """Set when the relay ends the task."""
    return threading.Event()


@pytest.fixture
def relay(gateway: Gateway, refused: threading.Event) -> Iterator[Relay]:
    """A relay of a task at the gateway, which waits for nothing."""
    relay = Relay(Channel(gateway.post, sleep=lambda _: None))
    relay.start(on_refusal=refused.set)
    yield relay
    gateway.will("pop", ENDED)


def connect(relay: Relay) -> Any:
    """Return a connection of SecretFlow's client."""
    return closing(http.client.HTTPConnection(relay.address, timeout=PATIENCE))


def ask(
    connection: http.client.HTTPConnection,
    operation: str,
    body: bytes = b"",
) -> http.client.HTTPResponse:
    """Send a request as SecretFlow's client; its response is not read."""
    connection.request("POST", f"/v1/interconn/chan/{operation}", body, HEADERS)
    return connection.getresponse()


def pop(connection: http.client.HTTPConnection) -> bytes:
    """Return the next message of the topic."""
    while True:
        response = decode(ask(connection, "pop?timeout=1").read())
        assert response.code == SUCCESS
        if response.payload:
            return response.payload


def message(payload: bytes) -> Outbound:
    return Outbound(payload, SUCCESS, "success")


def test_a_message_of_a_response_that_was_not_read_is_sent_again(gateway, relay):
    payload = b"x" * 1_000_000
    gateway.will("pop", message(payload))
    with connect(relay) as connection:
        ask(connection, "pop?timeout=1")
    with connect(relay) as connection:
        assert pop(connection) == payload


def test_a_message_is_sent_once_if_the_client_goes_on(gateway, relay):
    gateway.will("pop", message(b"first"))
    gateway.will("push", message(b""))
    with connect(relay) as connection:
        assert pop(connection) == b"first"
        ask(connection, "push", b"thanks").read()
    gateway.will("pop", message(b"second"))
    with connect(relay) as connection:
        assert pop(connection) == b"second"


def test_a_pop_that_the_gateway_did_not_answer_is_repeated(gateway, relay):
    gateway.will("pop", OSError("restarting"), message(b"ids"))
    with connect(relay) as connection:
        assert pop(connection) == b"ids"
    (path, _, headers), repeat, *_ = gateway.requests
    assert path.startswith("/v1/interconn/chan/pop")
    assert headers.items() >= HEADERS.items()
    assert headers["x-ptp-pop-id"]
    assert repeat == (path, b"", headers)


def test_a_push_keeps_its_id_until_the_gateway_takes_it(gateway, relay):
    passing = Outbound(b"", PASSING_CODES[0], "unreachable")
    gateway.will("push", OSError("restarting"), passing, message(b""))
    with connect(relay) as connection:
        response = decode(ask(connection, "push", b"ids").read())
    first, *repeats = gateway.requests
    _, body, headers = first
    assert response.code == SUCCESS
    assert body == b"ids"
    assert headers.items() >= HEADERS.items()
    assert headers["x-ptp-message-id"]
    assert repeats == [first, first]


@pytest.mark.parametrize("operation", ["push", "pop"])
def test_a_refused_message_ends_the_task(operation, gateway, relay, refused, capfd):
    gateway.will(operation, ENDED)
    with connect(relay) as connection:
        connection.request("POST", f"/v1/interconn/chan/{operation}", b"", HEADERS)
        assert refused.wait(PATIENCE)
    out, err = capfd.readouterr()
    assert f"of {TOPIC}: E0000000608 the session has ended" in out
    assert "Traceback" not in err


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300_000])
def test_responses_are_those_of_the_channel(size):
    response = Outbound(b"x" * size, SUCCESS, "done")
    published = LegacyOutbound(payload=response.payload, code=SUCCESS, message="done")
    assert response.encode() == published.SerializeToString()
    assert decode(response.encode()) == response


@pytest.mark.parametrize("content", [b"\x0a", b"\x0a\xff", b"\x0a\x05abc", b"<html>", b"\x22\x01a"])
def test_what_is_not_a_response_of_the_channel(content):
    with pytest.raises(ValueError, match="response of the channel"):
        decode(content)


def test_the_registration_has_no_findings():
    result = call("provider", "check", REGISTRATION)
    assert result.exit_code == 0
    assert "0 errors, 0 warnings" in result.stdout
