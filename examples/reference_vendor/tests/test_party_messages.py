"""Messages over a real loopback server that refuses, resets, loses answers and is busy."""

import json
import math
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from refvendor.connections import ChannelRefused, TransportAddress, parse_address
from refvendor.contract import BadParameters, PeerTimeout, Task, VendorError
from refvendor.env import Session
from refvendor.forms import FORMS, Call, Response
from refvendor.party_messages import ChannelNet
from refvendor.transport_calls import FIRST_PAUSE, LONGEST_PAUSE, Caller, Deadline, payload_of
from testing_log import Lines

OPENED: list[ChannelNet] = []


@pytest.fixture(autouse=True)
def close_connections():
    """Close what a test opened: an open socket is an error in this suite."""
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
    part_size=4 * 2**20,
    task_id="task_1",
    log=None,
):
    role, _, index = me.partition(".")
    parties = {
        "guest": ("node-1",),
        "host": ("node-1", "node-2"),
    }
    channel_net = ChannelNet(
        Task("Intersection", task_id, role, int(index), parties),
        server.address,
        Session("session_1", "token", "trace", {"guest.0": "inst-1"}),
        Deadline(seconds),
        Lines() if log is None else log,
        part_size=part_size,
    )
    OPENED.append(channel_net)
    return channel_net


def requests_of(server, verb):
    return [request for request in server.requests if request.verb == verb]


def fail_first(
    times,
    fault,
    verb=None,
):
    """Return a fault for the first requests of a verb, or of all verbs."""
    remaining = times

    def decide(request):
        nonlocal remaining
        is_meant = verb is None or request.verb == verb
        if not is_meant or not remaining:
            return None
        remaining -= 1
        return fault

    return decide


def test_messages_of_one_name_arrive_in_order_and_names_do_not_mix(loopback):
    guest, host = (
        net(loopback, "guest.0"),
        net(
            loopback,
            "host.0",
        ),
    )
    for payload in (b"first", b"", b"third"):
        guest.send("host.0", "a", payload)
    guest.send("host.0", "b", b"other name")
    guest.send("host.1", "a", b"other party")
    assert host.recv("guest.0", "b") == b"other name"
    assert [host.recv("guest.0", "a") for _ in range(3)] == [b"first", b"", b"third"]
    assert net(loopback, "host.1").recv("guest.0", "a") == b"other party"


@pytest.mark.parametrize(
    "size",
    [0, 1, 9, 10, 11, 20, 95],
)
def test_long_messages_travel_in_parts(loopback, size):
    payload = bytes(range(256))[:size]
    guest = net(
        loopback,
        "guest.0",
        part_size=10,
    )
    host = net(loopback, "host.0")
    guest.send("host.0", "x", payload)
    guest.send("host.0", "x", b"next")
    assert host.recv("guest.0", "x") == payload
    assert host.recv("guest.0", "x") == b"next"
    parts = max(1, math.ceil(size / 10))
    assert len(requests_of(loopback, "push")) == parts + 1


def test_the_wire_form_is_that_of_the_protocol(loopback):
    net(loopback, "guest.0").send("host.1", "x", b"payload")
    net(loopback, "host.1").recv("guest.0", "x")
    push, pop = loopback.requests
    assert push.path == "/v1/interconn/chan/push"
    assert pop.path == "/v1/interconn/chan/pop"
    assert push.headers["content-type"] == "application/json"
    headers = {name: value for name, value in push.headers.items() if name.startswith("x-ptp")}
    assert headers == {
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
    assert pop.headers["x-ptp-source-node-id"] == "node-2"
    assert pop.headers["x-ptp-target-node-id"] == "node-2", "a pop goes to its own node"
    assert 1000 <= pop.body["timeout"] <= 30_000


def test_no_two_pushes_have_one_sequence_not_even_in_the_next_attempt(loopback):
    for _ in range(2):
        sender = net(loopback, "guest.0")
        sender.send("host.0", "x", b"1")
        sender.send("host.0", "x", b"2")
    pushes = requests_of(loopback, "push")
    assert len({push.body["metadata"]["sequence"] for push in pushes}) == 4


def test_refused_connections_are_tried_until_somebody_listens(deaf):
    log = Lines()
    sender = net(
        deaf,
        "guest.0",
        log=log,
    )
    refused = threading.Event()

    def sleep(seconds):
        refused.set()
        threading.Event().wait(seconds)

    sender._pusher._sleep = sleep
    sending = threading.Thread(
        target=sender.send,
        args=("host.0", "x", b"late"),
    )
    sending.start()
    assert refused.wait(10)
    deaf.listen()
    assert net(deaf, "host.0").recv("guest.0", "x") == b"late"
    sending.join(10)
    assert not sending.is_alive()
    assert any("ConnectionRefusedError" in fields["cause"] for _, _, fields in log)


@pytest.mark.parametrize(
    ("verb", "fault"),
    [
        ("push", "reset"),
        ("push", "lose answer"),
        ("push", "502"),
        ("push", "E0000000700"),
        ("push", "E0000000607"),
        ("pop", "reset"),
        ("pop", "lose answer"),
        ("pop", "502"),
        ("pop", "E0000000700"),
        ("pop", "E0000000601"),
    ],
)
def test_a_call_is_repeated_and_nothing_is_lost_or_doubled(
    loopback,
    fault,
    verb,
):
    loopback.fault = fail_first(3, fault, verb)
    guest, host = (
        net(loopback, "guest.0"),
        net(
            loopback,
            "host.0",
        ),
    )
    for payload in (b"1", b"2", b"3"):
        guest.send("host.0", "x", payload)
    assert [host.recv("guest.0", "x") for _ in range(3)] == [b"1", b"2", b"3"]
    assert len(requests_of(loopback, verb)) == 6


def test_a_repeated_pop_carries_the_same_id_and_the_next_message_another(loopback):
    loopback.fault = fail_first(2, "lose answer", "pop")
    guest, host = (
        net(loopback, "guest.0"),
        net(
            loopback,
            "host.0",
        ),
    )
    guest.send("host.0", "x", b"1")
    guest.send("host.0", "x", b"2")
    host.recv("guest.0", "x")
    host.recv("guest.0", "x")
    ids = [request.headers["x-ptp-pop-id"] for request in requests_of(loopback, "pop")]
    assert ids[0] == ids[1] == ids[2] != ids[3]


def test_a_kept_connection_that_the_server_closed_costs_nothing(loopback):
    log = Lines()
    pauses = []
    guest = net(
        loopback,
        "guest.0",
        log=log,
    )
    guest._pusher._sleep = pauses.append
    guest.send("host.0", "x", b"1")
    guest._pusher._connection._http.sock.shutdown(socket.SHUT_RDWR)
    guest.send("host.0", "x", b"2")
    assert log == pauses == []
    host = net(loopback, "host.0")
    assert [host.recv("guest.0", "x") for _ in range(2)] == [b"1", b"2"]


def test_empty_pops_are_repeated_until_the_message_comes(loopback):
    host = net(loopback, "host.0")
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(host.recv, "guest.0", "x")
        loopback.wait_for(lambda: len(requests_of(loopback, "pop")) >= 3)
        net(loopback, "guest.0").send("host.0", "x", b"at last")
        assert received.result(10) == b"at last"


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
    guest, host = (
        net(loopback, "guest.0"),
        net(
            loopback,
            "host.0",
        ),
    )
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

    def clock():
        return sum(pauses)

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        caller = Caller(
            address,
            Deadline(30, clock),
            Lines(),
            sleep=pauses.append,
        )
        with pytest.raises(PeerTimeout):
            caller.call("push", {}, Call("topic"))
    assert 0.8 * FIRST_PAUSE <= pauses[0] <= 1.2 * FIRST_PAUSE
    assert 0.8 * LONGEST_PAUSE <= max(pauses) <= 1.2 * LONGEST_PAUSE
    assert sum(pauses) == pytest.approx(30)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:7304", TransportAddress("10.0.0.1", 7304, "")),
        ("[::1]:7304", TransportAddress("::1", 7304, "")),
        ("http://gateway/prefix/", TransportAddress("gateway", 80, "/prefix")),
    ],
)
def test_addresses_of_the_transport(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "gateway", "gateway:x", ":80", "https://gateway:1", "[::1", "gateway:1?x"]
)
def test_an_invalid_address_of_the_transport_is_refused(text):
    with pytest.raises(BadParameters, match=r"system\.transport"):
        parse_address(text)


PUSH = Call(
    "t",
    payload=b"\x00\xff",
    sequence="7",
)
POP = Call("t", timeout=1500)


def test_a_call_in_json():
    request = FORMS["json"].request(PUSH)
    assert json.loads(request.body) == {
        "topic": "t",
        "payload": "AP8=",
        "metadata": {"sequence": "7"},
    }
    assert json.loads(FORMS["json"].request(POP).body) == {
        "topic": "t",
        "timeout": 1500,
    }


def test_a_call_in_protobuf():
    push = FORMS["protobuf"].request(PUSH).body
    assert push == b"\x0a\x01t\x12\x02\x00\xff\x1a\x0d\x0a\x08sequence\x12\x017"
    assert FORMS["protobuf"].request(POP).body == b"\x0a\x01t\x10\xdc\x0b"


def test_a_bare_call():
    push = FORMS["bare"].request(PUSH)
    assert push.query == ""
    assert push.body == b"\x00\xff"
    assert push.headers["x-ptp-topic"] == "t"
    assert push.headers["x-ptp-message-id"] == "7"
    pop = FORMS["bare"].request(POP)
    assert pop.query == "?timeout=1.5"
    assert pop.body == b""


@pytest.mark.parametrize(
    ("form", "content_tag", "code_tag", "message_tag"),
    [
        ("protobuf", b"\x12", b"\x1a", b"\x22"),
        ("bare", b"\x0a", b"\x12", b"\x1a"),
    ],
)
def test_a_response_in_protobuf(
    form,
    content_tag,
    code_tag,
    message_tag,
):
    content = content_tag + b"\xc8\x01" + b"x" * 200
    code = code_tag + b"\x0bE0000000000"
    message = message_tag + b"\x02ok"
    response = FORMS[form].parse_response(content + code + message)
    assert response == Response("E0000000000", "ok", b"x" * 200)


@pytest.mark.parametrize(
    "body",
    [b"{}", b"\x12\x05x", b"\x12\xff", b"\x08\x01", b""],
)
def test_a_broken_response_in_protobuf_is_refused(body):
    with pytest.raises(ValueError):
        FORMS["protobuf"].parse_response(body)


@pytest.mark.parametrize(
    ("content", "payload"),
    [
        ("+/8=", b"\xfb\xff"),
        (b"x", b"x"),
        (None, b""),
        ("", b""),
    ],
)
def test_a_payload_is_base64_or_nothing(content, payload):
    assert payload_of(Response("0", "", content)) == payload


@pytest.mark.parametrize(
    "content",
    [
        "*",
        "A",
        ["x"],
        {"a": 1},
        5,
    ],
)
def test_a_payload_that_is_no_base64_is_refused(content):
    with pytest.raises(ChannelRefused):
        payload_of(Response("0", "", content))
