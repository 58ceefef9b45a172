"""Messages over a real loopback server that refuses, resets, loses answers and is busy."""

import json
import socket
import threading

import pytest
from refvendor.channel import (
    CALL_PAUSES,
    Caller,
    ChannelRefused,
    Deadline,
    parse_address,
    payload_of,
)
from refvendor.contract import BadParameters, PeerTimeout, Task, VendorError
from refvendor.forms import FORMS
from refvendor.transport import ChannelNet


class Lines(list):
    def __call__(
        self,
        level,
        message,
        **fields,
    ):
        self.append((level, message, fields))


OPENED: list[ChannelNet] = []


@pytest.fixture(autouse=True)
def close_connections():
    """What a test opens is closed after it; a socket left open is an error in this suite."""
    yield
    while OPENED:
        caller = OPENED.pop()
        caller._pusher.close()
        caller._popper.close()


def net(
    server,
    me,
    *,
    seconds=20.0,
    chunk=4 * 2**20,
    task_id="task_1",
    log=None,
):
    role, _, index = me.partition(".")
    parties = {"guest": ("node-1",), "host": ("node-1", "node-2")}
    opened = ChannelNet(
        Task("Intersection", task_id, role, int(index), parties),
        server.address,
        session="session_1",
        token="token",
        trace="trace",
        institutions={"guest.0": "inst-1"},
        deadline=Deadline(seconds),
        log=Lines() if log is None else log,
        chunk=chunk,
    )
    OPENED.append(opened)
    return opened


def pushes(server):
    return [request for request in server.requests if request.verb == "push"]


def fail_first(
    times,
    fault,
    verb=None,
):
    """A fault for the first requests of a verb; with a very large ``times`` for all of them."""
    left = [times]

    def decide(request):
        if (verb is None or request.verb == verb) and left[0] > 0:
            left[0] -= 1
            return fault
        return None

    return decide


def test_messages_of_one_name_arrive_in_order_and_names_do_not_mix(loopback):
    guest, host = net(loopback, "guest.0"), net(loopback, "host.0")
    for payload in (b"first", b"", b"third"):
        guest.send("host.0", "a", payload)
    guest.send("host.0", "b", b"other name")
    guest.send("host.1", "a", b"other party")
    assert host.recv("guest.0", "b") == b"other name"
    assert [host.recv("guest.0", "a") for _ in range(3)] == [b"first", b"", b"third"]
    assert net(loopback, "host.1").recv("guest.0", "a") == b"other party"


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 95])
def test_long_messages_travel_in_parts(loopback, size):
    payload = bytes(range(256))[:size]
    guest, host = net(loopback, "guest.0", chunk=10), net(loopback, "host.0")
    guest.send("host.0", "x", payload)
    guest.send("host.0", "x", b"next")
    assert host.recv("guest.0", "x") == payload
    assert host.recv("guest.0", "x") == b"next"
    assert len(pushes(loopback)) == max(1, -(-size // 10)) + 1


def test_the_wire_form_is_that_of_the_protocol(loopback):
    net(loopback, "guest.0").send("host.1", "x", b"payload")
    net(loopback, "host.1").recv("guest.0", "x")
    push, pop = loopback.requests[0], loopback.requests[1]
    assert (push.path, pop.path) == ("/v1/interconn/chan/push", "/v1/interconn/chan/pop")
    assert push.headers["content-type"] == "application/json"
    assert {name: value for name, value in push.headers.items() if name.startswith("x-ptp")} == {
        "x-ptp-session-id": "session_1",
        "x-ptp-token": "token",
        "x-ptp-trace-id": "trace",
        "x-ptp-tech-provider-code": "reference",
        "x-ptp-source-node-id": "node-1",
        "x-ptp-source-inst-id": "inst-1",
        "x-ptp-target-node-id": "node-2",
    }
    assert set(push.body) == {"topic", "payload", "metadata"}
    assert push.body["topic"] == pop.body["topic"] == "task_1:guest.0:host.1:x:0:0"
    assert push.body["metadata"]["sequence"].isdecimal()
    assert pop.headers["x-ptp-target-node-id"] == pop.headers["x-ptp-source-node-id"] == "node-2", (
        "its own node"
    )
    assert 1000 <= pop.body["timeout"] <= 30_000


def test_no_two_pushes_have_one_sequence_not_even_in_the_next_attempt(loopback):
    for _ in range(2):
        sender = net(loopback, "guest.0")
        sender.send("host.0", "x", b"1")
        sender.send("host.0", "x", b"2")
    assert len({push.body["metadata"]["sequence"] for push in pushes(loopback)}) == 4


def test_refused_connections_are_tried_until_somebody_listens(deaf):
    log = Lines()
    sender = net(deaf, "guest.0", log=log)
    done = threading.Thread(target=sender.send, args=("host.0", "x", b"late"))
    refused = threading.Event()
    sender._pusher._sleep = lambda seconds: (refused.set(), threading.Event().wait(seconds))
    done.start()
    assert refused.wait(10)
    deaf.listen()
    assert net(deaf, "host.0").recv("guest.0", "x") == b"late"
    done.join(10)
    assert not done.is_alive()
    assert any("ConnectionRefusedError" in fields["cause"] for _, _, fields in log)


@pytest.mark.parametrize(
    ("verb", "fault"),
    [
        *(
            (verb, fault)
            for verb in ("push", "pop")
            for fault in ("reset", "lose answer", "502", "E0000000700")
        ),
        ("push", "E0000000607"),
        ("pop", "E0000000601"),
    ],
)
def test_a_call_is_repeated_and_nothing_is_lost_or_doubled(
    loopback,
    fault,
    verb,
):
    loopback.fault = fail_first(3, fault, verb)
    guest, host = net(loopback, "guest.0"), net(loopback, "host.0")
    for payload in (b"1", b"2", b"3"):
        guest.send("host.0", "x", payload)
    assert [host.recv("guest.0", "x") for _ in range(3)] == [b"1", b"2", b"3"]
    assert sum(request.verb == verb for request in loopback.requests) == 6


def test_a_repeated_pop_carries_the_same_id_and_the_next_message_another(loopback):
    loopback.fault = fail_first(2, "lose answer", "pop")
    guest, host = net(loopback, "guest.0"), net(loopback, "host.0")
    guest.send("host.0", "x", b"1")
    guest.send("host.0", "x", b"2")
    host.recv("guest.0", "x"), host.recv("guest.0", "x")
    ids = [
        request.headers["x-ptp-pop-id"] for request in loopback.requests if request.verb == "pop"
    ]
    assert ids[0] == ids[1] == ids[2] != ids[3]


def test_a_kept_connection_that_the_server_closed_costs_nothing(loopback):
    log, pauses = Lines(), []
    guest = net(loopback, "guest.0", log=log)
    guest._pusher._sleep = pauses.append
    guest.send("host.0", "x", b"1")
    guest._pusher._connection.sock.shutdown(socket.SHUT_RDWR)
    guest.send("host.0", "x", b"2")
    assert log == pauses == []
    host = net(loopback, "host.0")
    assert [host.recv("guest.0", "x") for _ in range(2)] == [b"1", b"2"]


def test_empty_pops_are_repeated_until_the_message_comes(loopback):
    got = []
    host = net(loopback, "host.0")
    waiting = threading.Thread(target=lambda: got.append(host.recv("guest.0", "x")))
    waiting.start()
    loopback.wait_for(lambda: sum(request.verb == "pop" for request in loopback.requests) >= 3)
    net(loopback, "guest.0").send("host.0", "x", b"at last")
    waiting.join(10)
    assert got == [b"at last"]


def test_the_deadline_ends_waiting_for_the_transport(deaf):
    with pytest.raises(
        PeerTimeout, match=r"transport push: no success before the task's deadline.*Refused"
    ):
        net(deaf, "guest.0", seconds=0.3).send("host.0", "x", b"1")


def test_a_code_that_no_repetition_cures_is_named_at_once(loopback):
    loopback.fault = fail_first(99, "E0000000608")
    with pytest.raises(ChannelRefused, match="transport push: E0000000608 as the test wants"):
        net(loopback, "guest.0").send("host.0", "x", b"1")
    assert len(loopback.requests) == 1


def test_an_answer_without_a_code_is_named(loopback):
    loopback.fault = fail_first(99, "404")
    with pytest.raises(ChannelRefused, match="HTTP 404 without a code"):
        net(loopback, "host.0").recv("guest.0", "x")


def test_closing_releases_what_was_received(loopback):
    guest, host = net(loopback, "guest.0"), net(loopback, "host.0")
    guest.send("host.0", "x", b"1")
    guest.send("host.0", "x", bytes(300 * 2**10))
    guest.send("host.0", "y", b"never read")
    host.recv("guest.0", "x")
    assert loopback.held() == 3
    host.recv("guest.0", "x")
    assert loopback.held() == 1, "a large message is freed when it is read"
    host.close()
    guest.close()
    assert loopback.held() == 1, "another party's unread message is not touched"


def test_a_party_that_is_not_in_the_task_is_refused(loopback):
    guest = net(loopback, "guest.0")
    for party in ("host.2", "arbiter.0", "host", "host.-1", ""):
        with pytest.raises(VendorError, match="not a party of this task"):
            guest.send(party, "x", b"")
        with pytest.raises(VendorError, match="not a party of this task"):
            guest.recv(party, "x")
    assert loopback.requests == []


def test_pauses_grow_to_their_limit():
    pauses = []
    clock = [0.0]

    def sleep(seconds):
        pauses.append(seconds)
        clock[0] += seconds

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        caller = Caller(address, Deadline(30, lambda: clock[0]), Lines(), sleep)
        with pytest.raises(PeerTimeout):
            caller.call("push", {}, {})
    first, longest = CALL_PAUSES
    assert 0.8 * first <= pauses[0] <= 1.2 * first
    assert 0.8 * longest <= max(pauses) <= 1.2 * longest
    assert sum(pauses) == pytest.approx(30)


def test_addresses_of_the_transport():
    assert parse_address("10.0.0.1:7304") == ("10.0.0.1", 7304, "")
    assert parse_address("[::1]:7304") == ("::1", 7304, "")
    assert parse_address("http://gateway/prefix/") == ("gateway", 80, "/prefix")
    for text in ("", "gateway", "gateway:x", ":80", "https://gateway:1", "[::1"):
        with pytest.raises(BadParameters, match=r"system\.transport"):
            parse_address(text)


def test_calls_and_answers_in_each_form():
    push = {
        "topic": "t",
        "payload": b"\x00\xff",
        "metadata": {"sequence": "7"},
    }
    pop = {"topic": "t", "timeout": 1500}
    in_json, protobuf, bare = FORMS["json"], FORMS["protobuf"], FORMS["bare"]
    assert json.loads(in_json.request(push)[2]) == push | {"payload": "AP8="}
    assert (
        protobuf.request(push)[2] == b"\x0a\x01t\x12\x02\x00\xff\x1a\x0d\x0a\x08sequence\x12\x017"
    )
    assert protobuf.request(pop)[2] == b"\x0a\x01t\x10\xdc\x0b"
    query, headers, body = bare.request(push)
    assert (query, headers["x-ptp-topic"], headers["x-ptp-message-id"], body) == (
        "",
        "t",
        "7",
        b"\x00\xff",
    )
    assert bare.request(pop)[::2] == ("?timeout=1.5", b"")
    expected = {
        "content": b"x" * 200,
        "code": "E0000000000",
        "message": "ok",
    }
    content, code = b"\xc8\x01" + expected["content"], b"\x0b" + expected["code"].encode()
    assert protobuf.answer(b"\x12" + content + b"\x1a" + code + b"\x22\x02ok") == expected
    assert bare.answer(b"\x0a" + content + b"\x12" + code + b"\x1a\x02ok") == expected
    for broken in (b"{}", b"\x12\x05x", b"\x12\xff", b"\x08\x01"):
        with pytest.raises(ValueError):
            protobuf.answer(broken)


def test_a_payload_is_base64_or_nothing():
    assert [payload_of(answer) for answer in ({"content": "+/8="}, {"content": None}, {})] == [
        b"\xfb\xff",
        b"",
        b"",
    ]
    for content in ("*", "A", ["x"], {"a": 1}, 5):
        with pytest.raises(ChannelRefused):
            payload_of({"content": content})
