"""The channel's bodies and headers, in every spelling and form, well-formed and hostile."""

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
from adapter.bfia.channel.message_forms import Form
from adapter.bfia.channel.pieces import decode_base64, decode_pieces, encode_base64
from adapter.bfia.channel.ptp_pb2 import PushInbound
from adapter.body import MOST_FIELDS, MOST_NUMBERS, read_json
from gateway.errors import Invalid

# Properties with the same examples in every run.
steady = settings(
    derandomize=True,
    deadline=None,
    max_examples=80,
)


def as_json(**fields):
    """Return a JSON object with these fields."""
    return json.dumps(fields).encode()


# ---------------------------------------------------------------- Base64


@steady
@given(
    st.binary(max_size=400),
    st.sampled_from([1, 7001]),
)
def test_every_spelling_of_bytes_is_read_back(chunk, repeats):
    payload = chunk * repeats
    spellings = base64_spellings(payload)
    # lists of bytes, unsigned and signed; not of megabytes, which is slow
    if repeats == 1:
        spellings.append(list(payload))
        spellings.append([int.from_bytes([byte], signed=True) for byte in payload])
    for spelling in spellings:
        for name in ("payload", "content"):
            body = as_json(**{"topic": "t", name: spelling})
            _, content = read_push([body], Form.JSON)
            assert b"".join(content) == payload


def base64_spellings(payload):
    """Return the payload in both alphabets, with and without padding, and in lines."""
    standard = base64.b64encode(payload).decode()
    url_safe = base64.urlsafe_b64encode(payload).decode()
    lines = [standard[start : start + 76] for start in range(0, len(standard), 76)]
    return [
        standard,
        standard.rstrip("="),
        url_safe,
        url_safe.rstrip("="),
        "\n".join(lines) + "\n",
    ]


# Around the size of the slices in which long payloads are encoded: 786 432 bytes.
@pytest.mark.parametrize(
    "size",
    [0, 1, 2, 3, 786431, 786432, 786433, 1572864, 1572865],
)
def test_large_bytes_are_sliced_without_a_seam(size):
    payload = bytes(i * 31 % 251 for i in range(size))
    text = encode_base64(payload)
    assert text == base64.b64encode(payload)
    assert decode_base64(text.decode()) == payload


@pytest.mark.parametrize(
    "text",
    ["A", "AAAA=AAA", "QQ==QU", "AA\0A", "A" * (1 << 20) + "=" * 4, "=" * (1 << 21)],
    ids=["one", "padding inside", "rest", "zero byte", "padding after", "padding only"],
)
def test_text_that_is_no_base64_is_refused_at_any_length(text):
    with pytest.raises(ValueError):
        decode_base64(text)


def test_white_space_may_follow_the_padding_in_any_pieces():
    pieces = (b"QQ=", b"=", b"\n", b" ")
    assert b"".join(decode_pieces(pieces)) == b"A"


def test_content_may_not_follow_the_padding_in_a_later_piece():
    pieces = (b"QQ==", b"\n", b"QUJD")
    with pytest.raises(ValueError, match="padding before the end"):
        list(decode_pieces(pieces))


# ---------------------------------------------------------------- hostile bodies


def decode_push(body):
    """Read the body of a push."""
    return read_push([body], Form.JSON)


def with_payload_start(content):
    """Return a body that begins like a payload."""
    return b'{"payload": ' + content


RANDOM_BODIES = st.binary(max_size=300) | st.builds(
    with_payload_start,
    st.binary(max_size=300),
)


@steady
@given(RANDOM_BODIES, st.sampled_from([b"", b" " * 70_000]))
@pytest.mark.parametrize(
    "decode",
    [decode_push, decode_ask, decode_answer],
)
def test_no_body_is_more_than_refused(decode, body, padding):
    try:
        decode(body + padding)
    except Invalid as error:
        assert error.problems


LONG_HOSTILE_BODIES = {
    "quotes": b'"' * 3_000_000,
    "backslashes": b'{"a":"' + b"\\" * 3_000_000,
    "objects": b'{"a":' * 300_000,
    "lists": b'["",' * 700_000,
}


@pytest.mark.parametrize(
    "body",
    LONG_HOSTILE_BODIES.values(),
    ids=LONG_HOSTILE_BODIES,
)
def test_hostile_long_bodies_end_soon(body):
    with pytest.raises(Invalid):
        decode_push(body)


# How a body begins, its repeated part, and the number of parts that is just allowed.
MANY_VALUES = {
    "fields": (b"{", b'"%d":0,', MOST_FIELDS),
    "fields with spaces": (b"{", b'"%d"         :0,', MOST_FIELDS),
    "names that end in a backslash": (b"{", b'"%d\\\\":0,', MOST_FIELDS),
    "lists": (b'{"x":[', b"[],", MOST_FIELDS),
    "objects": (b'{"x":[', b"{},", MOST_FIELDS),
    "nested lists": (b"", b"[", MOST_FIELDS),
    "numbers": (b"[", b"0,", MOST_NUMBERS),
    "texts of a bracket": (b"[", b'"]",', MOST_NUMBERS),
}


@pytest.mark.parametrize(
    ("begin", "part", "limit"),
    MANY_VALUES.values(),
    ids=MANY_VALUES,
)
def test_a_body_of_very_many_values_is_refused_before_they_are_read(begin, part, limit):
    parts = [part] * (limit + 1)
    if b"%" in part:
        parts = [part % number for number in range(limit + 1)]
    refusal = f"more than {MOST_FIELDS} fields and lists, and {MOST_NUMBERS} numbers"
    with pytest.raises(Invalid, match=refusal):
        read_json(begin + b"".join(parts))


def test_brackets_and_colons_in_a_text_are_no_fields_of_a_body():
    texts = ["07:00:00 " * MOST_FIELDS, '"a": [{0}],\\' * MOST_NUMBERS]
    assert read_json(json.dumps(texts).encode()) == texts


def test_utf_8_with_a_byte_order_mark_and_surrogate_pairs_are_read():
    assert read_json(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}


# ---------------------------------------------------------------- extracted payloads

PAYLOAD = bytes(range(256))
TEXT = base64.b64encode(PAYLOAD).decode()
OCTETS = TEXT.encode()

JSON_OBJECTS = [
    as_json(
        topic="t",
        payload=TEXT,
        metadata={"sequence": "1"},
    ),
    as_json(payload=TEXT, topic="after"),
    as_json(content=TEXT, topic="t"),
    as_json(content=TEXT, payload=None),
    as_json(content=TEXT, payload="aGk="),
    as_json(content="aGk=", payload=TEXT),
    as_json(content=TEXT, payload=TEXT),
    as_json(
        payload=TEXT[:-1],
        metadata={"a": TEXT},
    ),
    as_json(
        payload="aGk=",
        metadata={"payload": TEXT},
    ),
    as_json(payload="aGk=", topic=TEXT),
    as_json(payload=TEXT[:-3]),
    as_json(
        payload=TEXT + "\n\n",
        topic="line feeds",
    ),
    as_json(payload=TEXT[:90] + "!" + TEXT[90:]),
    as_json(payload=TEXT[:90] + "=" + TEXT[90:]),
    as_json(payload=list(PAYLOAD)),
    as_json(topic='a "quoted" one', payload=TEXT),
    as_json(topic=5, payload=TEXT),
    as_json(payload={"payload": TEXT}),
    as_json(topic=TEXT),
]
ODD_JSON = [
    b'{"payload": "aGk=", "payload": "%s"}' % OCTETS,
    b'{"payload": "%s", "payload": "aGk="}' % OCTETS,
    b'{"payload": "%s"}' % OCTETS.replace(b"/", b"\\/"),
    b'{"payload": "%s"}' % OCTETS.replace(b"A", b"\\u0041"),
    b'{"pay\\u006coad": "%s"}' % OCTETS,
    b'{"payload": "%s' % OCTETS,
    b'{"payload": "%s"' % OCTETS,
    b'{"payload": "%s"}}' % OCTETS,
    b'["payload", "%s"]' % OCTETS,
    b'"%s"' % OCTETS,
    b'{"payload": "\\"%s"}' % OCTETS,
    b'{"payload": "%s\\"}' % OCTETS,
    b'{"payload"%s: "aGk="}' % (b" " * 400),
    b" " * 400,
]
MESSAGE = PushInbound(payload=PAYLOAD).SerializeToString()
MESSAGE_WITH_METADATA = PushInbound(
    topic="t",
    payload=PAYLOAD,
    metadata={"a": "b"},
)
PROTOBUF = [
    MESSAGE_WITH_METADATA.SerializeToString(),
    # a field twice, in two messages one after the other
    PushInbound(payload=b"x").SerializeToString()
    + PushInbound(payload=PAYLOAD, topic="t").SerializeToString(),
    MESSAGE[:-1],
    # a topic that is no UTF-8
    MESSAGE + b"\x0a\x02\xff\xfe",
    PushInbound(topic=TEXT).SerializeToString(),
    # an unknown field, after and before
    MESSAGE + b"\x7a\x02hi",
    b"\x7a\x02hi" + MESSAGE,
    # in a group
    b"\x0b" + MESSAGE + b"\x0c",
    # the payload's tag in two bytes
    b"\x92\x00\x05hello" + PushInbound(topic="t").SerializeToString(),
    # lengths that are too large
    b"\x12\xff\xff\xff\xff\x7f" + PAYLOAD,
    b"\x12" + b"\xff" * 300,
]
BODIES = [
    *((Form.JSON, body) for body in JSON_OBJECTS),
    *((Form.JSON, body) for body in ODD_JSON),
    *((Form.PROTOBUF, body) for body in PROTOBUF),
]


@pytest.mark.parametrize("size", [5, 1000])
@pytest.mark.parametrize(("form", "body"), BODIES)
def test_an_extracted_payload_equals_that_of_a_full_parser(monkeypatch, form, body, size):
    pieces = [body[start : start + size] for start in range(0, len(body), size)]

    # 0: every payload is long and so extracted; 1 MiB: none of these is
    monkeypatch.setattr(codec, "LONG_PAYLOAD", 0)
    extracted = read_result(pieces, form)
    monkeypatch.setattr(codec, "LONG_PAYLOAD", 1 << 20)
    parsed = read_result(pieces, form)

    assert extracted == parsed


def read_result(pieces, form):
    """Read a push; return its values, or the problems of an invalid one."""
    try:
        push, payload = read_push(list(pieces), form)
    except Invalid as error:
        return error.problems
    parts = [b"".join(part) for part in payload.parts(100)]
    assert b"".join(payload) == b"".join(parts)
    return push.topic, push.metadata, payload.size, payload.checksum, b"".join(payload.consume())


# ---------------------------------------------------------------- responses


@steady
@given(
    st.binary(max_size=100),
    st.text(),
    st.dictionaries(
        st.text(max_size=8),
        st.text(max_size=8),
        max_size=3,
    ),
)
def test_a_json_response_has_the_bytes_under_both_names(content, message, metadata):
    encoded = base64.b64encode(content)
    pieces = frame(
        SUCCESS,
        message,
        len(content),
        metadata,
        Form.JSON,
    )
    # None is the place of the content
    body = b"".join(encoded if piece is None else piece for piece in pieces)

    assert json.loads(body) == {
        "code": SUCCESS,
        "message": message,
        "metadata": metadata,
        "content": encoded.decode(),
        "payload": encoded.decode(),
    }
    assert decode_answer(body).content == content


# Responses of other transports, with their code, message, content and success.
RESPONSES = {
    "content": (
        {
            "code": "E0000000000",
            "message": "ok",
            "content": "aGk=",
        },
        ("E0000000000", "ok", b"hi", True),
    ),
    "msg and payload": (
        {
            "code": "E0000000000",
            "msg": "ok",
            "payload": "aGk=",
        },
        ("E0000000000", "ok", b"hi", True),
    ),
    "number and null": (
        {"code": 0, "payload": None},
        ("0", "", b"", True),
    ),
    "null message": (
        {"code": "0", "message": None},
        ("0", "", b"", True),
    ),
    "timeout": (
        {"code": "E0000000601", "message": "timeout"},
        ("E0000000601", "timeout", b"", False),
    ),
}


@pytest.mark.parametrize(
    ("body", "expected"),
    RESPONSES.values(),
    ids=RESPONSES,
)
def test_responses_of_other_transports_are_understood(body, expected):
    response = decode_answer(json.dumps(body).encode())

    code, message, content, succeeded = expected
    assert response.code == code
    assert response.message == message
    assert response.content == content
    assert response.succeeded is succeeded


# ---------------------------------------------------------------- timeouts and headers

# The timeout in the header (ms), in the body and in the query, and the seconds that result.
TIMEOUTS = [
    ("", None, None, 120),
    ("", 0, "0", 120),
    ("", 5, None, 5),
    ("", 999, None, 999),
    # from 1000 on a body has milliseconds
    ("", 1000, None, 1),
    ("", 30000, None, 30),
    ("2500", 30000, "7", 2.5),
    ("0", None, "7", 7),
    ("", None, "5000", 5000),
]


@pytest.mark.parametrize(
    ("header", "body", "query", "seconds"),
    TIMEOUTS,
)
def test_a_timeout_is_read_in_every_form(header, body, query, seconds):
    assert wait_seconds(header, body, query, 120) == seconds
    if body is not None:
        as_text = decode_ask(as_json(timeout=str(body)))
        assert wait_seconds(header, as_text.timeout, query, 120) == seconds


def test_an_infinite_timeout_is_infinite():
    assert wait_seconds("", float("inf"), None, 120) == float("inf")


HEADERS = [
    (b"x_ptp_token", b"underscore"),
    (b"x-ptp-token", b"hyphen"),
    (b"x-ptp-from-node-id", b"old"),
]


def test_an_exact_header_beats_another_spelling_and_the_body():
    in_body = {
        "x-ptp-session-id": "s",
        "x-ptp-token": "inside",
        "other": "ignored",
    }
    ptp = read_ptp(HEADERS, in_body)
    assert ptp.session == "s"
    assert ptp.token == "hyphen"
    assert ptp.source == "old"


def test_the_current_name_of_a_header_beats_the_old_one():
    ptp = read_ptp([(b"x-ptp-source-node-id", b"new"), *HEADERS, (b"x_ptp_session_id", b" s ")])
    assert ptp.session == "s"
    assert ptp.source == "new"


def test_the_provider_has_a_header_of_its_own():
    ptp = read_ptp([(b"x-ptp-tecn-provider-code", b"acme"), (b"x-ptp-session-id", b"s")])
    assert ptp.provider == "acme"


def test_a_header_with_two_values_is_refused_unless_they_are_equal():
    """A relay and the node behind it might read different ones of two values."""
    twice = [
        (b"x-ptp-session-id", b"s"),
        (b"x-ptp-target-node-id", b"a"),
        (b"X-Ptp-Target-Node-Id", b"a"),
    ]
    assert read_ptp(twice).target == "a"
    assert read_ends(twice) == ("", "a")

    contradicting = [
        *twice,
        (b"x-ptp-target-node-id", b"b"),
        (b"x_ptp_token", b"1"),
        (b"x-ptp_token", b"2"),
        (b"x-other", b"1"),
    ]
    with pytest.raises(Invalid) as refused:
        read_ptp(contradicting)
    paths = {problem.path for problem in refused.value.problems}
    assert paths == {"x-ptp-target-node-id", "x-ptp-token"}
    assert read_ends(contradicting) is None


@pytest.mark.parametrize(
    ("header", "longest"),
    [
        ("session-id", 512),
        ("topic", 4096),
    ],
)
def test_a_header_that_is_too_long_is_refused_with_its_own_limit(header, longest):
    session = (b"x-ptp-session-id", b"s")
    name = f"x-ptp-{header}".encode()
    headers = [entry for entry in (session,) if entry[0] != name]
    read_ptp([*headers, (name, b"x" * longest)])

    with pytest.raises(Invalid) as refused:
        read_ptp([*headers, (name, b"x" * (longest + 1))])
    (problem,) = refused.value.problems
    assert problem.path == f"x-ptp-{header}"
    assert problem.rule == f"must have at most {longest} characters"


def test_an_empty_header_counts_as_absent_except_the_topic():
    headers = [
        (b"x-ptp-session-id", b""),
        (b"x_ptp_session_id", b"s"),
        (b"x-ptp-source-node-id", b""),
        (b"x_ptp_source_node_id", b"a"),
    ]
    ptp = read_ptp([*headers, (b"x-ptp-topic", b"")])
    assert ptp.session == "s"
    assert ptp.source == "a"
    assert ptp.topic == ""
    assert read_ends(headers) == ("a", "")
