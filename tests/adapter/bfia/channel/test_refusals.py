"""What the transport channel refuses, by name and in each form, and in which spellings it is asked."""

import asyncio
import base64
import json

import pytest

from adapter.bfia.channel.codec import decode_answer
from adapter.bfia.channel.forms import Form
from adapter.bfia.channel.ptp_pb2 import Inbound, PushInbound
from adapter.bfia.channel.responses import refusal
from gateway.errors import GatewayError
from route_table.model import Route
from tests.adapter.bfia.channel.nodes import CHAN, OK, SESSION, Container, Node

pytestmark = pytest.mark.anyio

INVALID, ENDED, UNKNOWN_FORM = "E0000000400", "E0000000608", "E0000000616"
PUSH_HEADERS = {
    "x-ptp-session-id": SESSION,
    "x-ptp-target-node-id": "alpha",
    "x-ptp-token": "writer",
}
PUSH_BODY = {"topic": "t", "payload": "aGk="}
INVOKE_HEADERS = PUSH_HEADERS | {
    "x-ptp-version": "1",
    "x-ptp-source-node-id": "beta",
    "x-ptp-uri": "/v1/interconn/chan/push",
}
KINDS = {
    Form.JSON: "application/json",
    Form.PROTOBUF: "application/x-protobuf",
    Form.RAW: "text/plain",
}
MIB = "t" * (1 << 20)
ways = pytest.mark.parametrize("way", ["push", "invoke", "encapsulated"])


async def ask(
    client,
    node,
    verb,
    body,
    headers,
):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await client.post(node.url + CHAN + verb, content=content, headers=headers)
    return response.status_code, response.json()


def encapsulated(body, metadata=None):
    return {"payload": base64.b64encode(body).decode()} | (
        {"metadata": metadata} if metadata else {}
    )


def headers_of(
    form,
    way,
    **more,
):
    named = dict(INVOKE_HEADERS if way == "invoke" else PUSH_HEADERS) | {
        "content-type": KINDS[form]
    }
    named |= {"x-ptp-source-node-id": "beta"} if way == "encapsulated" else {}
    named |= {"x-ptp-topic": "t"} if form is Form.RAW else {}
    return named | {name.replace("_", "-"): value for name, value in more.items()}


def body_of(
    form,
    way,
    topic="t",
):
    if form is Form.RAW:
        return b"hello"
    if form is Form.PROTOBUF:
        push = PushInbound(topic=topic, payload=b"hello").SerializeToString()
        return push if way != "encapsulated" else Inbound(payload=push).SerializeToString()
    push = json.dumps(PUSH_BODY | {"topic": topic}).encode()
    return push if way != "encapsulated" else json.dumps(encapsulated(push)).encode()


@ways
@pytest.mark.parametrize(
    ("form", "topic", "cut", "headers", "code"),
    [
        *(
            (form, MIB, None, {"x_ptp_topic": MIB} if form is Form.RAW else {}, INVALID)
            for form in Form
        ),
        *((form, "t", -2, {}, INVALID) for form in (Form.JSON, Form.PROTOBUF)),
        (Form.JSON, "t", None, {"content_type": KINDS[Form.PROTOBUF]}, INVALID),
        (Form.PROTOBUF, "t", None, {"content_type": KINDS[Form.JSON]}, INVALID),
        *(
            (Form.JSON, "t", None, {"content_type": kind}, UNKNOWN_FORM)
            for kind in ("application/xml", "text/x")
        ),
        *((form, "t", None, {"x_ptp_session_id": "ended"}, ENDED) for form in Form),
    ],
)
async def test_what_no_transport_can_use(
    desk,
    caller,
    way,
    form,
    topic,
    cut,
    headers,
    code,
):
    """A topic of a mebibyte, a message that ends early, another form than its type says, or an unknown one."""
    desk.sessions["ended"] = False
    url, body = (
        f"{desk.url}{CHAN}{'push' if way == 'push' else 'invoke'}",
        body_of(form, way, topic),
    )
    response = await caller.post(url, content=body[:cut], headers=headers_of(form, way, **headers))
    answer = decode_answer(response.content, response.headers["content-type"])
    assert answer.code == code
    assert answer.message
    assert "Traceback" not in answer.message
    assert desk.broker.usage() == (0, 0, 0)


@pytest.mark.parametrize("chunked", [False, True])
@ways
async def test_a_body_that_ends_before_its_length(
    alpha,
    client,
    way,
    chunked,
):
    """The sender announces more than it sends and hangs up: nothing is kept."""
    body, headers = body_of(Form.JSON, way), headers_of(Form.JSON, way)
    headers |= (
        {"transfer-encoding": "chunked"} if chunked else {"content-length": str(len(body) + 100)}
    )
    lines = [f"POST {CHAN}{'push' if way == 'push' else 'invoke'} HTTP/1.1", "host: alpha"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    sent = f"{len(body) + 100:x}\r\n".encode() + body if chunked else body
    reader, writer = await asyncio.open_connection(*alpha.url.removeprefix("http://").split(":"))
    writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
    writer.write_eof()
    assert b"Traceback" not in await reader.read()
    writer.close()
    assert alpha.broker.usage() == (0, 0, 0)
    assert await Container(client, alpha).push("alpha", b"next") == OK


@pytest.mark.parametrize(
    ("verb", "headers", "body", "code", "named"),
    [
        ("push", {"x-ptp-session-id": ""}, PUSH_BODY, INVALID, "x-ptp-session-id"),
        ("push", {"x-ptp-session-id": "s" * 600}, PUSH_BODY, INVALID, "x-ptp-session-id"),
        ("push", {"x-ptp-target-node-id": ""}, PUSH_BODY, INVALID, "x-ptp-target-node-id"),
        ("push", {"x-ptp-target-node-id": "stranger"}, PUSH_BODY, "E0000000618", "stranger"),
        (
            "push",
            {"x-ptp-target-node-id": "", "x-ptp-target-inst-id": "i"},
            PUSH_BODY,
            "E0000000618",
            "i",
        ),
        (
            "push",
            {"x-ptp-target-node-id": "b", "x-ptp-source-node-id": "c"},
            PUSH_BODY,
            "E0000000503",
            "node c",
        ),
        ("push", {}, b"", INVALID, "body"),
        ("push", {}, b"[1]", INVALID, "body"),
        ("push", {}, {"topic": "t"}, INVALID, "payload"),
        ("push", {}, {"payload": "a"}, INVALID, "payload"),
        ("push", {}, {"payload": "ä==="}, INVALID, "payload"),
        ("push", {}, {"payload": [256]}, INVALID, "payload"),
        ("push", {}, {"payload": "", "topic": 3}, INVALID, "topic"),
        ("push", {}, {"payload": "", "metadata": {"a": {}}}, INVALID, "metadata.a"),
        ("push", {}, {"payload": "", "metadata": [1]}, INVALID, "metadata"),
        ("pop", {}, {"timeout": "soon"}, INVALID, "timeout"),
        ("pop", {}, {"timeout": -1}, INVALID, "timeout"),
        ("pop", {}, b'{"timeout": NaN}', INVALID, "body"),
        ("pop", {"x-ptp-timeout": "soon"}, b"", INVALID, "x-ptp-timeout"),
        ("pop?timeout=soon", {}, b"", INVALID, "query.timeout"),
        (
            "pop",
            {"content-type": "application/xml"},
            b"<a/>",
            UNKNOWN_FORM,
            "application/x-protobuf",
        ),
        ("transport", {}, b"", "E0000000614", "invoke"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(
    desk,
    caller,
    verb,
    headers,
    body,
    code,
    named,
):
    status, answer = await ask(caller, desk, verb, body, PUSH_HEADERS | headers)
    assert status == 200, answer
    assert answer["code"] == code, answer
    assert named in answer["message"]
    assert desk.broker.usage() == (0, 0, 0)


async def test_the_own_institution_names_this_node(desk, caller):
    named = {"x-ptp-target-node-id": "", "x-ptp-target-inst-id": "alpha-inst"}
    status, answer = await ask(caller, desk, "push", PUSH_BODY, PUSH_HEADERS | named)
    assert status == 200
    assert answer["code"] == OK
    assert desk.broker.holds(SESSION)


def test_a_failure_without_a_code_of_its_own_is_answered_and_logged(caplog):
    answer = json.loads(refusal(GatewayError("the database is away"), Form.JSON).body)
    assert answer["code"] == "E0000000500"
    assert answer["message"] == "the database is away"
    assert "channel request failed" in caplog.text


@pytest.mark.parametrize(
    ("headers", "code", "named"),
    [
        ({"x-ptp-source-node-id": "stranger"}, "E0000000618", "stranger"),
        ({"x-ptp-source-node-id": ""}, "E0000000400", "is required"),
        ({"x-ptp-target-node-id": "gamma"}, "E0000000503", "gamma"),
        ({"x-ptp-uri": "/v1/interconn/net/weave"}, "E0000000404", "weave"),
        ({"x-ptp-uri": "http://[oops"}, "E0000000404", "oops"),
        ({"x-ptp-session-id": ""}, INVALID, "x-ptp-session-id"),
        ({"x-ptp-version": "2"}, INVALID, "body"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
async def test_what_a_peer_may_not_do_is_refused_by_name(
    desk,
    caller,
    headers,
    code,
    named,
    wrapped,
):
    body, said = PUSH_BODY, INVOKE_HEADERS | headers
    if wrapped and "x-ptp-version" not in headers:
        body = encapsulated(json.dumps(PUSH_BODY).encode())
        said["x-ptp-version"] = "1.1.0"
    status, answer = await ask(caller, desk, "invoke", body, said)
    assert status == 200, answer
    assert answer["code"] == code, answer
    assert named in answer["message"]
    assert desk.broker.usage() == (0, 0, 0)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-ptp-uri": "https://ptp.cn/v1/interconn/chan/push"},
        {"x-ptp-uri": "/org.ppc.ptp.PrivateTransferTransport/push"},
        {"x-ptp-uri": "", "x-ptp-target-node-id": ""},
        {"x-ptp-source-node-id": "", "x-ptp-from-node-id": "beta"},
        {"x-ptp-session-id": "", "x_ptp_session_id": SESSION},
        {"content-type": "application/json; charset=utf-8"},
    ],
)
async def test_spellings_of_an_invoke(
    desk,
    caller,
    headers,
):
    said = {name: value for name, value in (INVOKE_HEADERS | headers).items() if value}
    _, answer = await ask(caller, desk, "invoke", PUSH_BODY, said)
    assert answer["code"] == OK, answer
    assert await Container(caller, desk).pop(x_ptp_target_node_id="beta") == b"hi"


@pytest.mark.parametrize("inside", [False, True])
async def test_an_encapsulated_invoke_may_repeat_the_headers_inside(
    desk,
    caller,
    inside,
):
    said = {k: v for k, v in INVOKE_HEADERS.items() if k != "x-ptp-version"}
    body = encapsulated(
        json.dumps(PUSH_BODY).encode(),
        {"x-ptp-session-id": "not this one"} | (said if inside else {}),
    )
    _, answer = await ask(caller, desk, "invoke", body, {} if inside else said)
    assert answer["code"] == OK, answer
    assert await Container(caller, desk).pop() == b"hi"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(
    make_node,
    client,
    chunked,
):
    alpha = await make_node("alpha", max_body=1000)
    body = json.dumps({"payload": "A" * 10_000_000}).encode()

    async def pieces():
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    for verb, headers in (
        ("push", PUSH_HEADERS),
        ("invoke", INVOKE_HEADERS),
        ("pop", PUSH_HEADERS),
    ):
        response = await client.post(
            alpha.url + CHAN + verb, content=pieces() if chunked else body, headers=headers
        )
        assert response.status_code == 413
        assert response.json()["code"] == "E0000000413"
    assert await Container(client, alpha).push("alpha", b"small") == OK


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_message_for_another_gateway_of_this_node_is_forwarded_once(
    make_node,
    client,
    wrapped,
):
    where = {}  # each thinks the other has it
    home = await make_node("alpha", elsewhere=lambda session: Route("alpha", where["first"]))
    first = Node(
        "alpha", home.root.with_name("first"), elsewhere=lambda session: Route("alpha", home.url)
    )
    await first.start()
    where["first"] = first.url
    try:
        body, headers = PUSH_BODY, INVOKE_HEADERS
        if wrapped:
            headers = {k: v for k, v in INVOKE_HEADERS.items() if k != "x-ptp-version"}
            body, headers = encapsulated(json.dumps(PUSH_BODY).encode(), headers), {}
        _, answer = await ask(client, first, "invoke", body, headers)
        assert answer["code"] == OK, answer
        assert not first.broker.sessions()
        assert await Container(client, home).pop(x_ptp_target_node_id="beta") == b"hi"
        headers = INVOKE_HEADERS | {"x-ptp-source-node-id": "stranger"}
        _, answer = await ask(client, first, "invoke", PUSH_BODY, headers)
        assert answer["code"] == "E0000000618"  # checked before it goes on
    finally:
        await first.stop()
        first.socket.close()
