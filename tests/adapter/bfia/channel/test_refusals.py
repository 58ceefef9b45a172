"""What the transport channel refuses, by name, and in which spellings it is asked."""

import base64
import json

import pytest

from route_table.model import Route
from tests.adapter.bfia.channel.nodes import CHAN, OK, SESSION, Container, Node

pytestmark = pytest.mark.anyio


PUSH_HEADERS = {"x-ptp-session-id": SESSION, "x-ptp-target-node-id": "alpha", "x-ptp-token": "writer"}
PUSH_BODY = {"topic": "t", "payload": "aGk="}


async def ask(client, node, verb, body, headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await client.post(node.url + CHAN + verb, content=content, headers=headers)
    return response.status_code, response.json()


@pytest.mark.parametrize(
    ("verb", "headers", "body", "code", "named"),
    [
        ("push", {"x-ptp-session-id": ""}, PUSH_BODY, "E0000000400", "x-ptp-session-id"),
        ("push", {"x-ptp-session-id": "s" * 600}, PUSH_BODY, "E0000000400", "x-ptp-session-id"),
        ("push", {"x-ptp-target-node-id": ""}, PUSH_BODY, "E0000000400", "x-ptp-target-node-id"),
        ("push", {"x-ptp-target-node-id": "stranger"}, PUSH_BODY, "E0000000618", "stranger"),
        ("push", {"x-ptp-target-node-id": "", "x-ptp-target-inst-id": "i"}, PUSH_BODY, "E0000000618", "i"),
        ("push", {"x-ptp-target-node-id": "b", "x-ptp-source-node-id": "c"}, PUSH_BODY, "E0000000503", "node c"),
        ("push", {}, b"", "E0000000400", "body"),
        ("push", {}, b"[" * 200_000, "E0000000400", "body"),
        ("push", {}, b"[1]", "E0000000400", "body"),
        ("push", {}, {"topic": "t"}, "E0000000400", "payload"),
        ("push", {}, {"payload": "a"}, "E0000000400", "payload"),
        ("push", {}, {"payload": "ä==="}, "E0000000400", "payload"),
        ("push", {}, {"payload": [256]}, "E0000000400", "payload"),
        ("push", {}, {"payload": "", "topic": 3}, "E0000000400", "topic"),
        ("push", {}, {"payload": "", "topic": "t" * 5000}, "E0000000400", "topic"),
        ("push", {}, {"payload": "", "metadata": {"a": {}}}, "E0000000400", "metadata.a"),
        ("push", {}, {"payload": "", "metadata": [1]}, "E0000000400", "metadata"),
        ("pop", {}, {"timeout": "soon"}, "E0000000400", "timeout"),
        ("pop", {}, {"timeout": -1}, "E0000000400", "timeout"),
        ("pop", {}, b'{"timeout": NaN}', "E0000000400", "body"),
        ("pop", {"x-ptp-timeout": "soon"}, b"", "E0000000400", "x-ptp-timeout"),
        ("pop?timeout=soon", {}, b"", "E0000000400", "query.timeout"),
        ("push", {"content-type": "application/octet-stream"}, b"x", "E0000000616", "application/x-protobuf"),
        ("pop", {"content-type": "application/xml"}, b"<a/>", "E0000000616", "application/x-protobuf"),
        ("transport", {}, b"", "E0000000614", "invoke"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(desk, caller, verb, headers, body, code, named):
    status, answer = await ask(caller, desk, verb, body, PUSH_HEADERS | headers)
    assert (status, answer["code"]) == (200, code), answer
    assert named in answer["message"]
    assert desk.broker.usage() == (0, 0, 0)


INVOKE_HEADERS = PUSH_HEADERS | {
    "x-ptp-version": "1",
    "x-ptp-source-node-id": "beta",
    "x-ptp-uri": "/v1/interconn/chan/push",
}


@pytest.mark.parametrize(
    ("headers", "code", "named"),
    [
        ({"x-ptp-source-node-id": "stranger"}, "E0000000618", "stranger"),
        ({"x-ptp-source-node-id": ""}, "E0000000618", "none named"),
        ({"x-ptp-target-node-id": "gamma"}, "E0000000503", "gamma"),
        ({"x-ptp-uri": "/v1/interconn/chan/pop"}, "E0000000404", "chan/pop"),
        ({"x-ptp-uri": "/v1/interconn/net/weave"}, "E0000000404", "weave"),
        ({"x-ptp-uri": "http://[oops"}, "E0000000404", "oops"),
        ({"x-ptp-session-id": ""}, "E0000000400", "x-ptp-session-id"),
        ({"content-type": "application/msgpack"}, "E0000000616", "application/x-protobuf"),
        ({"x-ptp-version": "2"}, "E0000000400", "body"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
async def test_what_a_peer_may_not_do_is_refused_by_name(desk, caller, headers, code, named, wrapped):
    body = json.dumps(PUSH_BODY).encode()
    said = INVOKE_HEADERS | headers
    if wrapped and "x-ptp-version" not in headers:
        body = json.dumps({"payload": base64.b64encode(body).decode()}).encode()
        said["x-ptp-version"] = "1.1.0"
    status, answer = await ask(caller, desk, "invoke", body, said)
    assert (status, answer["code"]) == (200, code), answer
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
async def test_spellings_of_an_invoke(desk, caller, headers):
    said = {name: value for name, value in (INVOKE_HEADERS | headers).items() if value}
    _, answer = await ask(caller, desk, "invoke", PUSH_BODY, said)
    assert answer["code"] == OK, answer
    assert await Container(caller, desk).pop(x_ptp_target_node_id="beta") == b"hi"


@pytest.mark.parametrize("inside", [False, True])
async def test_an_encapsulated_invoke_may_repeat_the_headers_inside(desk, caller, inside):
    said = {k: v for k, v in INVOKE_HEADERS.items() if k != "x-ptp-version"}
    inner = base64.b64encode(json.dumps(PUSH_BODY).encode()).decode()
    metadata = {"x-ptp-session-id": "not this one"} | (said if inside else {})
    _, answer = await ask(caller, desk, "invoke", {"payload": inner, "metadata": metadata}, {} if inside else said)
    assert answer["code"] == OK, answer
    assert await Container(caller, desk).pop() == b"hi"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused(make_node, client, chunked):
    alpha = await make_node("alpha", max_body=1000)
    body = json.dumps({"payload": "A" * 10_000_000}).encode()

    async def pieces():
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    for verb, headers in (("push", PUSH_HEADERS), ("invoke", INVOKE_HEADERS), ("pop", PUSH_HEADERS)):
        response = await client.post(
            alpha.url + CHAN + verb, content=pieces() if chunked else body, headers=headers
        )
        assert (response.status_code, response.json()["code"]) == (413, "E0000000413")
    assert await Container(client, alpha).push("alpha", b"small") == OK


async def test_the_openapi_document_tells_the_bodies_and_its_examples_work(desk, caller):
    document = (await caller.get(desk.url + "/openapi.json")).json()
    for verb in ("push", "pop", "peek", "release"):
        about = document["paths"][CHAN + verb]["post"]
        example = about["requestBody"]["content"]["application/json"]["schema"]["example"]
        headers = {p["name"]: p["example"] for p in about["parameters"] if p["required"]}
        if verb == "push":
            headers["x-ptp-target-node-id"] = "alpha"
        headers["x-ptp-token"] = "writer"
        _, answer = await ask(caller, desk, verb, example, headers)
        assert answer["code"] == OK


@pytest.mark.parametrize("encapsulated", [False, True])
async def test_a_message_for_another_gateway_of_this_node_is_forwarded_once(make_node, client, encapsulated):
    where = {}
    home = await make_node(
        "alpha", elsewhere=lambda session: Route("alpha", where["first"])
    )  # each thinks the other has it
    first = Node("alpha", home.root.with_name("first"), elsewhere=lambda session: Route("alpha", home.url))
    await first.start()
    where["first"] = first.url
    try:
        body, headers = PUSH_BODY, INVOKE_HEADERS
        if encapsulated:
            headers = {k: v for k, v in INVOKE_HEADERS.items() if k != "x-ptp-version"}
            inner = base64.b64encode(json.dumps(PUSH_BODY).encode()).decode()
            body, headers = {"payload": inner, "metadata": headers}, {"content-type": "application/json"}
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
