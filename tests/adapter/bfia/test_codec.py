import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.bfia.channel import codec
from adapter.bfia.channel.codec import (
    SUCCESS,
    decode_answer,
    decode_ask,
    frame,
    read_ends,
    read_ptp,
    read_push,
    wait_seconds,
)
from adapter.bfia.channel.forms import Form
from adapter.bfia.channel.pieces import decode_base64, decode_pieces, encode_base64
from adapter.bfia.channel.ptp_pb2 import PushInbound
from adapter.body import MOST_FIELDS, MOST_NUMBERS, read_json
from gateway.errors import Invalid

steady = settings(
    derandomize=True,
    deadline=None,
    max_examples=80,
)


@steady
@given(st.binary(max_size=400), st.sampled_from([1, 7001]))
def test_every_spelling_of_bytes_is_read_back(some, times):
    payload = some * times
    standard = base64.b64encode(payload).decode()
    spellings = [
        standard,
        standard.rstrip("="),
        base64.urlsafe_b64encode(payload).decode(),
        base64.urlsafe_b64encode(payload).decode().rstrip("="),
        "\n".join(standard[i : i + 76] for i in range(0, len(standard), 76)) + "\n",
    ]
    if times == 1:
        spellings += [list(payload), [b - 256 if b > 127 else b for b in payload]]
    for spelling in spellings:
        for name in ("payload", "content"):
            body = json.dumps({"topic": "t", name: spelling}).encode()
            assert b"".join(read_push([body], Form.JSON)[1]) == payload


@pytest.mark.parametrize("size", [0, 1, 2, 3, 786431, 786432, 786433, 1572864, 1572865])
def test_large_bytes_are_sliced_without_a_seam(size):
    payload = bytes(i * 31 % 251 for i in range(size))
    text = encode_base64(payload)
    assert text == base64.b64encode(payload)
    assert decode_base64(text.decode()) == payload


@pytest.mark.parametrize(
    "text", ["A", "AAAA=AAA", "QQ==QU", "AA\0A", "A" * (1 << 20) + "=" * 4, "=" * (1 << 21)]
)
def test_what_is_no_base64_is_refused_at_any_length(text):
    with pytest.raises(ValueError):
        decode_base64(text)


@pytest.mark.parametrize(
    ("pieces", "found"), [((b"QQ=", b"=", b"\n", b" "), b"A"), ((b"QQ==", b"\n", b"QUJD"), None)]
)
def test_after_its_padding_base64_has_white_space_alone_in_any_pieces(pieces, found):
    if found is not None:
        assert b"".join(decode_pieces(pieces)) == found
        return
    with pytest.raises(ValueError, match="padding before the end"):
        list(decode_pieces(pieces))


@steady
@given(
    st.binary(max_size=300) | st.builds(lambda b: b'{"payload": ' + b, st.binary(max_size=300)),
    st.booleans(),
)
def test_no_body_is_more_than_refused(body, padded):
    body = body + b" " * 70_000 if padded else body
    for decode in (lambda body: read_push([body], Form.JSON), decode_ask, decode_answer):
        try:
            decode(body)
        except Invalid as error:
            assert error.problems


def test_hostile_long_bodies_end_soon():
    for body in (
        b'"' * 3_000_000,
        b'{"a":"' + b"\\" * 3_000_000,
        b'{"a":' * 300_000,
        b'["",' * 700_000,
    ):
        with pytest.raises(Invalid):
            read_push([body], Form.JSON)


@steady
@given(
    st.binary(max_size=100),
    st.text(),
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
)
def test_an_answer_is_json_with_the_bytes_under_both_names(
    content,
    message,
    metadata,
):
    pieces = frame(SUCCESS, message, len(content), metadata, Form.JSON)
    said = json.loads(
        b"".join(base64.b64encode(content) if piece is None else piece for piece in pieces)
    )
    assert set(said) == {"code", "message", "metadata", "content", "payload"}
    assert {base64.b64decode(said[field]) for field in ("content", "payload")} == {content}
    assert (said["code"], said["message"], said["metadata"]) == (SUCCESS, message, metadata)
    assert decode_answer(json.dumps(said).encode()).content == content


LONG = bytes(range(256))
TEXT = base64.b64encode(LONG).decode()


def as_json(**fields):
    return json.dumps(fields).encode()


BODIES = [
    *((Form.JSON, as_json(**fields)) for fields in (
        {"topic": "t", "payload": TEXT, "metadata": {"sequence": "1"},},
        {"payload": TEXT, "topic": "after"},
        {"content": TEXT, "topic": "t"},
        {"content": TEXT, "payload": None},
        {"content": TEXT, "payload": "aGk="},
        {"content": "aGk=", "payload": TEXT},
        {"content": TEXT, "payload": TEXT},
        {"payload": TEXT[:-1], "metadata": {"a": TEXT}},
        {"payload": "aGk=", "metadata": {"payload": TEXT}},
        {"payload": "aGk=", "topic": TEXT},
        {"payload": TEXT[:-3]},
        {"payload": TEXT + "\n\n", "topic": "line feeds"},
        {"payload": TEXT[:90] + "!" + TEXT[90:]},
        {"payload": TEXT[:90] + "=" + TEXT[90:]},
        {"payload": list(LONG)},
        {"topic": 'a "quoted" one', "payload": TEXT},
        {"topic": 5, "payload": TEXT},
        {"payload": {"payload": TEXT}},
        {"topic": TEXT},
    )),
    *((Form.JSON, body) for body in (
        b'{"payload": "aGk=", "payload": "%s"}' % TEXT.encode(),
        b'{"payload": "%s", "payload": "aGk="}' % TEXT.encode(),
        b'{"payload": "%s"}' % TEXT.replace("/", "\\/").encode(),
        b'{"payload": "%s"}' % TEXT.replace("A", "\\u0041").encode(),
        b'{"pay\\u006coad": "%s"}' % TEXT.encode(),
        b'{"payload": "%s' % TEXT.encode(),
        b'{"payload": "%s"' % TEXT.encode(),
        b'{"payload": "%s"}}' % TEXT.encode(),
        b'["payload", "%s"]' % TEXT.encode(),
        b'"%s"' % TEXT.encode(),
        b'{"payload": "\\"%s"}' % TEXT.encode(),
        b'{"payload": "%s\\"}' % TEXT.encode(),
        b'{"payload"%s: "aGk="}' % (b" " * 400),
        b" " * 400,
    )),
    *((Form.PROTOBUF, body) for body in (
        PushInbound(topic="t", payload=LONG, metadata={"a": "b"},).SerializeToString(),
        PushInbound(payload=b"x").SerializeToString() + PushInbound(payload=LONG, topic="t").SerializeToString(),
        PushInbound(payload=LONG).SerializeToString()[:-1],
        PushInbound(payload=LONG).SerializeToString() + b"\x0a\x02\xff\xfe",
        PushInbound(topic=TEXT).SerializeToString(),
        PushInbound(payload=LONG).SerializeToString() + b"\x7a\x02hi",
        b"\x7a\x02hi" + PushInbound(payload=LONG).SerializeToString(),
        b"\x0b" + PushInbound(payload=LONG).SerializeToString() + b"\x0c",
        b"\x92\x00\x05hello" + PushInbound(topic="t").SerializeToString(),
        b"\x12\xff\xff\xff\xff\x7f" + LONG,
        b"\x12" + b"\xff" * 300,
    )),
]  # fmt: skip


@pytest.mark.parametrize("size", [5, 1000])
@pytest.mark.parametrize(("form", "body"), BODIES)
def test_an_extracted_payload_equals_that_of_a_full_parser(
    monkeypatch,
    form,
    body,
    size,
):
    def found(longer_than):
        monkeypatch.setattr(codec, "LONG_PAYLOAD", longer_than)
        try:
            push, payload = read_push(
                [body[at : at + size] for at in range(0, len(body), size)], form
            )
        except Invalid as error:
            return error.problems
        assert b"".join(payload) == b"".join(piece for part in payload.parts(100) for piece in part)
        return (
            push.topic,
            push.metadata,
            payload.size,
            payload.checksum,
            b"".join(payload.consume()),
        )

    assert found(0) == found(1 << 20)


@pytest.mark.parametrize(
    ("body", "code", "message", "content", "good"),
    [
        (
            {
                "code": "E0000000000",
                "message": "ok",
                "content": "aGk=",
            },
            "E0000000000",
            "ok",
            b"hi",
            True,
        ),
        (
            {
                "code": "E0000000000",
                "msg": "ok",
                "payload": "aGk=",
            },
            "E0000000000",
            "ok",
            b"hi",
            True,
        ),
        ({"code": 0, "payload": None}, "0", "", b"", True),
        ({"code": "0", "message": None}, "0", "", b"", True),
        ({"code": "E0000000601", "message": "timeout"}, "E0000000601", "timeout", b"", False),
    ],
)
def test_answers_of_other_transports_are_understood(
    body,
    code,
    message,
    content,
    good,
):
    found = decode_answer(json.dumps(body).encode())
    assert (found.code, found.message, found.content, found.succeeded) == (
        code,
        message,
        content,
        good,
    )


@pytest.mark.parametrize(
    ("header", "body", "query", "seconds"),
    [
        ("", None, None, 120),
        ("", 0, "0", 120),
        ("", 5, None, 5),
        ("", 999, None, 999),
        ("", 1000, None, 1),
        ("", 30000, None, 30),
        ("2500", 30000, "7", 2.5),
        ("0", None, "7", 7),
        ("", None, "5000", 5000),
        ("", float("inf"), None, float("inf")),
    ],
)
def test_a_timeout_in_every_form(
    header,
    body,
    query,
    seconds,
):
    assert wait_seconds(header, body, query, 120) == seconds
    if body is not None and body < 1e300:
        asked = decode_ask(json.dumps({"timeout": str(body)}).encode())
        assert wait_seconds(header, asked.timeout, query, 120) == seconds


def test_an_exact_header_beats_another_spelling_and_the_body():
    said = [
        (b"x_ptp_token", b"underscore"),
        (b"x-ptp-token", b"hyphen"),
        (b"x-ptp-from-node-id", b"old"),
    ]
    ptp = read_ptp(
        said,
        {
            "x-ptp-session-id": "s",
            "x-ptp-token": "inside",
            "other": "ignored",
        },
    )
    assert (ptp.session, ptp.token, ptp.source) == ("s", "hyphen", "old")
    ptp = read_ptp([(b"x-ptp-source-node-id", b"new"), *said, (b"x_ptp_session_id", b" s ")])
    assert (ptp.session, ptp.source) == ("s", "new")
    ptp = read_ptp([(b"x-ptp-tecn-provider-code", b"acme"), (b"x-ptp-session-id", b"s")])
    assert ptp.provider == "acme"


def test_a_header_with_two_values_is_refused_unless_they_are_equal():
    """Else a relay, and the node behind it, might go by different ones."""
    said = [
        (b"x-ptp-session-id", b"s"),
        (b"x-ptp-target-node-id", b"a"),
        (b"X-Ptp-Target-Node-Id", b"a"),
    ]
    assert read_ptp(said).target == "a" and read_ends(said) == ("", "a")
    more = [
        (b"x-ptp-target-node-id", b"b"),
        (b"x_ptp_token", b"1"),
        (b"x-ptp_token", b"2"),
        (b"x-other", b"1"),
    ]
    with pytest.raises(Invalid) as caught:
        read_ptp([*said, *more])
    assert {problem.path for problem in caught.value.problems} == {
        "x-ptp-target-node-id",
        "x-ptp-token",
    }
    assert read_ends([*said, *more]) is None


def test_what_is_empty_is_not_said_but_for_a_topic():
    said = [(b"x-ptp-session-id", b""), (b"x_ptp_session_id", b"s"), (b"x-ptp-source-node-id", b"")]
    ptp = read_ptp([*said, (b"x_ptp_source_node_id", b"a"), (b"x-ptp-topic", b"")])
    assert (ptp.session, ptp.source, ptp.topic) == ("s", "a", "")
    assert read_ends([*said, (b"x_ptp_source_node_id", b"a")]) == ("a", "")


def test_utf_8_with_a_byte_order_mark_and_whole_surrogate_pairs_are_read():
    assert read_json(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}


@pytest.mark.parametrize(
    ("begin", "piece", "count"),
    [
        (b"{", b'"%d":0,', MOST_FIELDS),
        (b"{", b'"%d"         :0,', MOST_FIELDS),
        (b"{", b'"%d\\\\":0,', MOST_FIELDS),  # each name ends in a backslash
        (b'{"x":[', b"[],", MOST_FIELDS),
        (b'{"x":[', b"{},", MOST_FIELDS),
        (b"", b"[", MOST_FIELDS),
        (b"[", b"0,", MOST_NUMBERS),
        (b"[", b'"]",', MOST_NUMBERS),
    ],
)
def test_a_body_of_very_many_values_is_refused_before_they_are_read(
    begin: bytes,
    piece: bytes,
    count: int,
):
    with pytest.raises(
        Invalid, match=f"more than {MOST_FIELDS} fields and lists, and {MOST_NUMBERS} numbers"
    ):
        read_json(
            begin
            + b"".join(piece % number if b"%" in piece else piece for number in range(count + 1))
        )


def test_what_stands_in_a_text_is_no_field_of_a_body():
    said = "07:00:00 " * MOST_FIELDS, '"a": [{0}],\\' * MOST_NUMBERS
    assert read_json(json.dumps(said).encode()) == list(said)
