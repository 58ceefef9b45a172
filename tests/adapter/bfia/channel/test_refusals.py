"""Requests that the transport channel refuses with a reason, and spellings that it accepts."""

import asyncio
import json

import pytest

from adapter.bfia.channel.codec import decode_answer
from adapter.bfia.channel.message_forms import Form
from adapter.bfia.channel.ptp_pb2 import Inbound, PushInbound
from adapter.bfia.channel.responses import refusal
from gateway.errors import GatewayError
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import (
    CHAN,
    INVOKE_HEADERS,
    OK,
    PUSH_HEADERS,
    SESSION,
    Container,
    Node,
    dashed,
    post_message,
    push_body,
)

pytestmark = pytest.mark.anyio

# Codes of refusals.
INVALID = "E0000000400"
NO_SUCH_PATH = "E0000000404"
WRONG_NODE = "E0000000503"
ENDED = "E0000000608"
UNKNOWN_FORM = "E0000000616"
UNKNOWN_NODE = "E0000000618"

# The content type of each form, as a client writes it.
CONTENT_TYPES = {
    Form.JSON: "application/json",
    Form.PROTOBUF: "application/x-protobuf",
    Form.RAW: "text/plain",
}
PUSH_BODY = push_body(b"hi")
LONG_TOPIC = "t" * (1 << 20)
# A push of a container, a peer's invoke whose body is the message, and one that encapsulates it.
ways = pytest.mark.parametrize(
    "way",
    ["push", "invoke", "encapsulated"],
)


def encapsulated(message, metadata=None):
    """Return the JSON body of an invoke that encapsulates a message."""
    body = push_body(message)
    del body["topic"]
    if metadata:
        body["metadata"] = metadata
    return body


def without_version(headers):
    """Return headers of an invoke without the version: the mark of encapsulation."""
    return {name: value for name, value in headers.items() if name != "x-ptp-version"}


def headers_of(form, way, **headers):
    """Return the headers of a push in a form; ``headers`` are further ones."""
    all_headers = dict(PUSH_HEADERS)
    if way == "invoke":
        all_headers |= INVOKE_HEADERS
    if way == "encapsulated":
        all_headers["x-ptp-source-node-id"] = "beta"
    if form is Form.RAW:
        all_headers["x-ptp-topic"] = "t"
    all_headers["content-type"] = CONTENT_TYPES[form]
    return all_headers | dashed(headers)


def body_of(form, way, topic="t"):
    """Return the body of a push in a form."""
    if form is Form.RAW:
        return b"hello"
    if form is Form.PROTOBUF:
        push = PushInbound(topic=topic, payload=b"hello").SerializeToString()
        if way == "encapsulated":
            return Inbound(payload=push).SerializeToString()
        return push
    push = json.dumps(push_body(b"hi", topic)).encode()
    if way == "encapsulated":
        return json.dumps(encapsulated(push)).encode()
    return push


def path_of(way):
    """Return the path of a push in one of the ways."""
    verb = "push" if way == "push" else "invoke"
    return CHAN + verb


UNUSABLE = {
    # form, topic, end of the body, changed headers, code
    "json: long topic": (
        Form.JSON,
        LONG_TOPIC,
        None,
        {},
        INVALID,
    ),
    "protobuf: long topic": (
        Form.PROTOBUF,
        LONG_TOPIC,
        None,
        {},
        INVALID,
    ),
    "raw: long topic": (
        Form.RAW,
        "t",
        None,
        {"x_ptp_topic": LONG_TOPIC},
        INVALID,
    ),
    "json: ends early": (
        Form.JSON,
        "t",
        -2,
        {},
        INVALID,
    ),
    "protobuf: ends early": (
        Form.PROTOBUF,
        "t",
        -2,
        {},
        INVALID,
    ),
    "json as protobuf": (
        Form.JSON,
        "t",
        None,
        {"content_type": CONTENT_TYPES[Form.PROTOBUF]},
        INVALID,
    ),
    "protobuf as json": (
        Form.PROTOBUF,
        "t",
        None,
        {"content_type": CONTENT_TYPES[Form.JSON]},
        INVALID,
    ),
    "xml": (
        Form.JSON,
        "t",
        None,
        {"content_type": "application/xml"},
        UNKNOWN_FORM,
    ),
    "unknown text": (
        Form.JSON,
        "t",
        None,
        {"content_type": "text/x"},
        UNKNOWN_FORM,
    ),
    "json: ended session": (
        Form.JSON,
        "t",
        None,
        {"x_ptp_session_id": "ended"},
        ENDED,
    ),
    "protobuf: ended session": (
        Form.PROTOBUF,
        "t",
        None,
        {"x_ptp_session_id": "ended"},
        ENDED,
    ),
    "raw: ended session": (
        Form.RAW,
        "t",
        None,
        {"x_ptp_session_id": "ended"},
        ENDED,
    ),
}


@ways
@pytest.mark.parametrize(
    ("form", "topic", "end", "headers", "code"), UNUSABLE.values(), ids=UNUSABLE
)
async def test_unusable_messages_are_refused_in_every_form(
    local_node, local_client, way, form, topic, end, headers, code
):
    local_node.sessions["ended"] = False

    response = await local_client.post(
        local_node.url + path_of(way),
        content=body_of(form, way, topic)[:end],
        headers=headers_of(form, way, **headers),
    )

    refused = decode_answer(response.content, response.headers["content-type"])
    assert refused.code == code
    assert refused.message
    assert "Traceback" not in refused.message
    assert local_node.broker.usage() == (0, 0, 0)


@pytest.mark.parametrize("chunked", [False, True])
@ways
async def test_a_body_that_ends_before_its_length(alpha, client, way, chunked):
    """The sender announces more than it sends and hangs up: nothing is stored."""
    body = body_of(Form.JSON, way)
    announced = len(body) + 100
    headers = headers_of(Form.JSON, way)
    if chunked:
        headers["transfer-encoding"] = "chunked"
        body = f"{announced:x}\r\n".encode() + body
    else:
        headers["content-length"] = str(announced)
    lines = [f"POST {path_of(way)} HTTP/1.1", "host: alpha"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode()

    reader, writer = await asyncio.open_connection(*alpha.url.removeprefix("http://").split(":"))
    writer.write(head + body)
    writer.write_eof()

    assert b"Traceback" not in await reader.read()
    writer.close()
    assert alpha.broker.usage() == (0, 0, 0)
    assert await Container(client, alpha).push("alpha", b"next") == OK


CONTAINER_REFUSALS = [
    # verb, changed headers, body, code, part of the message
    ("push", {"x-ptp-session-id": ""}, PUSH_BODY, INVALID, "x-ptp-session-id"),
    ("push", {"x-ptp-session-id": "s" * 600}, PUSH_BODY, INVALID, "x-ptp-session-id"),
    ("push", {"x-ptp-target-node-id": ""}, PUSH_BODY, INVALID, "x-ptp-target-node-id"),
    ("push", {"x-ptp-target-node-id": "stranger"}, PUSH_BODY, UNKNOWN_NODE, "stranger"),
    (
        "push",
        {"x-ptp-target-node-id": "", "x-ptp-target-inst-id": "i"},
        PUSH_BODY,
        UNKNOWN_NODE,
        "i",
    ),
    (
        "push",
        {"x-ptp-target-node-id": "b", "x-ptp-source-node-id": "c"},
        PUSH_BODY,
        WRONG_NODE,
        "node c",
    ),
    ("push", {}, b"", INVALID, "body"),
    ("push", {}, b"[1]", INVALID, "body"),
    ("push", {}, {"topic": "t"}, INVALID, "payload"),
    ("push", {}, {"payload": "a"}, INVALID, "payload"),
    ("push", {}, {"payload": "ä==="}, INVALID, "payload"),
    ("push", {}, {"payload": [256]}, INVALID, "payload"),
    (
        "push",
        {},
        {"payload": "", "topic": 3},
        INVALID,
        "topic",
    ),
    (
        "push",
        {},
        {
            "payload": "",
            "metadata": {"a": {}},
        },
        INVALID,
        "metadata.a",
    ),
    (
        "push",
        {},
        {
            "payload": "",
            "metadata": [1],
        },
        INVALID,
        "metadata",
    ),
    ("pop", {}, {"timeout": "soon"}, INVALID, "timeout"),
    ("pop", {}, {"timeout": -1}, INVALID, "timeout"),
    ("pop", {}, b'{"timeout": NaN}', INVALID, "body"),
    ("pop", {"x-ptp-timeout": "soon"}, b"", INVALID, "x-ptp-timeout"),
    ("pop?timeout=soon", {}, b"", INVALID, "query.timeout"),
    ("pop", {"content-type": "application/xml"}, b"<a/>", UNKNOWN_FORM, "application/x-protobuf"),
    ("transport", {}, PUSH_BODY, INVALID, "x-ptp-source-node-id"),
]


@pytest.mark.parametrize(
    ("verb", "headers", "body", "code", "text"),
    CONTAINER_REFUSALS,
)
async def test_a_wrong_request_of_a_container_is_refused_with_its_mistake(
    local_node, local_client, verb, headers, body, code, text
):
    status, response = await post_message(
        local_client, local_node, verb, body, PUSH_HEADERS | headers
    )

    assert status == 200, response
    assert response["code"] == code, response
    assert text in response["message"]
    assert local_node.broker.usage() == (0, 0, 0)


async def test_a_push_to_the_node_s_own_institution_stays_on_the_node(local_node, local_client):
    target = {
        "x-ptp-target-node-id": "",
        "x-ptp-target-inst-id": "alpha-inst",
    }

    status, response = await post_message(
        local_client, local_node, "push", PUSH_BODY, PUSH_HEADERS | target
    )

    assert status == 200
    assert response["code"] == OK
    assert local_node.broker.holds(SESSION)


def test_a_failure_without_a_code_of_its_own_is_answered_and_logged(caplog):
    error = GatewayError("the database is away")

    response = json.loads(refusal(error, Form.JSON).body)

    assert response["code"] == "E0000000500"
    assert response["message"] == "the database is away"
    assert "channel request failed" in caplog.text


PEER_REFUSALS = [
    # changed headers, code, part of the message
    ({"x-ptp-source-node-id": "stranger"}, UNKNOWN_NODE, "stranger"),
    ({"x-ptp-source-node-id": ""}, INVALID, "is required"),
    ({"x-ptp-target-node-id": "gamma"}, WRONG_NODE, "gamma"),
    ({"x-ptp-uri": "/v1/interconn/net/weave"}, NO_SUCH_PATH, "weave"),
    ({"x-ptp-uri": "http://[oops"}, NO_SUCH_PATH, "oops"),
    ({"x-ptp-session-id": ""}, INVALID, "x-ptp-session-id"),
    ({"x-ptp-version": "2"}, INVALID, "body"),
]


@pytest.mark.parametrize(
    ("headers", "code", "text"),
    PEER_REFUSALS,
)
@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_wrong_invoke_of_a_peer_is_refused_with_its_mistake(
    local_node, local_client, headers, code, text, wrapped
):
    body = PUSH_BODY
    all_headers = INVOKE_HEADERS | headers
    if wrapped and "x-ptp-version" not in headers:
        body = encapsulated(json.dumps(PUSH_BODY).encode())
        all_headers["x-ptp-version"] = "1.1.0"

    status, response = await post_message(
        local_client,
        local_node,
        "invoke",
        body,
        all_headers,
    )

    assert status == 200, response
    assert response["code"] == code, response
    assert text in response["message"]
    assert local_node.broker.usage() == (0, 0, 0)


SPELLINGS = [
    {},
    {"x-ptp-uri": "https://ptp.cn/v1/interconn/chan/push"},
    {"x-ptp-uri": "/org.ppc.ptp.PrivateTransferTransport/push"},
    {"x-ptp-uri": "", "x-ptp-target-node-id": ""},
    {"x-ptp-source-node-id": "", "x-ptp-from-node-id": "beta"},
    {"x-ptp-session-id": "", "x_ptp_session_id": SESSION},
    {"content-type": "application/json; charset=utf-8"},
]


@pytest.mark.parametrize("headers", SPELLINGS)
async def test_spellings_of_an_invoke(local_node, local_client, headers):
    all_headers = INVOKE_HEADERS | headers
    sent_headers = {name: value for name, value in all_headers.items() if value}

    _, response = await post_message(
        local_client,
        local_node,
        "invoke",
        PUSH_BODY,
        sent_headers,
    )

    assert response["code"] == OK, response
    reader = Container(local_client, local_node)
    assert await reader.pop(x_ptp_target_node_id="beta") == b"hi"


@pytest.mark.parametrize("inside", [False, True])
async def test_an_encapsulated_invoke_may_repeat_the_headers_inside(
    local_node, local_client, inside
):
    headers = without_version(INVOKE_HEADERS)
    metadata = {"x-ptp-session-id": "not this one"}
    if inside:
        metadata |= headers
        headers = {}
    body = encapsulated(
        json.dumps(PUSH_BODY).encode(),
        metadata,
    )

    _, response = await post_message(
        local_client,
        local_node,
        "invoke",
        body,
        headers,
    )

    assert response["code"] == OK, response
    assert await Container(local_client, local_node).pop() == b"hi"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("verb", "headers"),
    [
        ("push", PUSH_HEADERS),
        ("invoke", INVOKE_HEADERS),
        ("pop", PUSH_HEADERS),
    ],
)
async def test_a_body_over_the_limit_is_refused(make_node, client, verb, headers, chunked):
    alpha = await make_node("alpha", max_body=1000)
    body = json.dumps({"payload": "A" * 10_000_000}).encode()

    async def pieces():
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    content = pieces() if chunked else body
    response = await client.post(
        alpha.url + CHAN + verb,
        content=content,
        headers=headers,
    )

    assert response.status_code == 413
    assert response.json()["code"] == "E0000000413"
    assert await Container(client, alpha).push("alpha", b"small") == OK


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_message_for_another_gateway_of_this_node_is_forwarded_once(
    make_node, client, wrapped
):
    # Each of both gateways believes that the other has the session.
    addresses = {}

    def address_of_first(session):
        return Route("alpha", addresses["first"])

    def address_of_home(session):
        return Route("alpha", addresses["home"])

    home = await make_node("alpha", elsewhere=address_of_first)
    first = Node(
        "alpha",
        home.root.with_name("first"),
        elsewhere=address_of_home,
    )
    await first.start()
    addresses["home"] = home.url
    addresses["first"] = first.url
    body = PUSH_BODY
    headers = INVOKE_HEADERS
    if wrapped:
        body = encapsulated(
            json.dumps(PUSH_BODY).encode(),
            without_version(INVOKE_HEADERS),
        )
        headers = {}
    try:
        _, response = await post_message(
            client,
            first,
            "invoke",
            body,
            headers,
        )
        assert response["code"] == OK, response
        assert not first.broker.sessions()
        assert await Container(client, home).pop(x_ptp_target_node_id="beta") == b"hi"

        # The sender is checked before its message is forwarded.
        headers = INVOKE_HEADERS | {"x-ptp-source-node-id": "stranger"}
        _, response = await post_message(
            client,
            first,
            "invoke",
            PUSH_BODY,
            headers,
        )
        assert response["code"] == UNKNOWN_NODE
    finally:
        await first.stop()
        first.socket.close()
