"""Compressed request bodies: decoded up to the size limit, or refused with the coding's name."""

import gzip
import json
import zlib
from typing import Any

import httpx
import pytest

from adapter.bfia.examples import A_JOB
from tests.inprocess import ME, PEER, Node, containers
from tests.world import UNREACHABLE, NodeSetup

CREATE_ALL = "/v1/platform/schedule/job/create_all"
CREATE = "/v1/interconn/schedule/job/create"
HELLO = "/v1/interconn/schedule/node/hello"
CHANNEL = "/v1/interconn/chan"
MIB = 1024**2

NODE = NodeSetup(
    routes={PEER: UNREACHABLE},
    settings={"limits": {"body_bytes": MIB}},
)


def raw_deflate(content: bytes) -> bytes:
    """Return deflate without the header of RFC 1950, as many clients send it."""
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(content) + compressor.flush()


CODINGS = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("GZIP, identity", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("identity", bytes),
    ("", bytes),
]


def post_encoded(
    node: Node,
    listener: str,
    path: str,
    coding: str,
    content: bytes,
    **headers: str,
) -> httpx.Response:
    """Post content that is said to have a coding."""
    all_headers = {
        "content-type": "application/json",
        "content-encoding": coding,
        **headers,
    }
    return node.request(
        "POST",
        path,
        listener=listener,
        content=content,
        headers=all_headers,
    )


def problems_of(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the problems of a refusal."""
    return list(response.json()["data"]["problems"])


@pytest.mark.parametrize(("coding", "encode"), CODINGS)
def test_a_compressed_body_is_read_like_its_content(node, coding, encode):
    # The problems of an invalid job show that its body was read.
    job = json.dumps(A_JOB | {"dag": 5}).encode()
    plain = node.request(
        "POST",
        CREATE_ALL,
        content=job,
        headers={"content-type": "application/json"},
    )
    encoded = post_encoded(
        node,
        "operator",
        CREATE_ALL,
        coding,
        encode(job),
    )
    assert problems_of(plain) != []
    assert problems_of(encoded) == problems_of(plain)

    greeting = encode(b'{"profile": "x"}')
    headers = {"x-source-node-id": PEER}
    response = post_encoded(node, "peer", HELLO, coding, greeting, **headers)
    assert response.json()["code"] == 0


@pytest.mark.parametrize(
    ("listener", "path"),
    [
        ("operator", CREATE_ALL),
        ("operator", "/api/v1/templates/x"),
        ("peer", HELLO),
        ("container", f"{CHANNEL}/push"),
    ],
)
@pytest.mark.parametrize(
    "coding",
    ["br", "zstd", "compress", "gzip, gzip", "gzip, br", "no;coding"],
)
def test_an_unsupported_coding_is_refused_by_its_name(node, coding, listener, path):
    response = post_encoded(node, listener, path, coding, b"{}")
    assert response.status_code == 415
    assert coding in response.text
    assert "content-encoding" in response.text


EMPTY = gzip.compress(b"{}")
# Content that gzip cannot decode, and the cause that the refusal names.
BROKEN_GZIP = {
    "plain": (b"{}", "incorrect header"),
    "short": (EMPTY[:-3], "its end is missing"),
    "two": (EMPTY + EMPTY, "something follows its end"),
    "a rest": (EMPTY + b"GET / HTTP/1.1\r\n\r\n", "something follows its end"),
    "a wrong checksum": (EMPTY[:-8] + b"\0" * 8, "incorrect data check"),
}


@pytest.mark.parametrize(
    ("listener", "path"),
    [
        ("operator", CREATE_ALL),
        ("operator", "/api/v1/providers"),
        ("peer", HELLO),
    ],
)
@pytest.mark.parametrize(
    ("content", "cause"),
    BROKEN_GZIP.values(),
    ids=BROKEN_GZIP,
)
def test_content_that_cannot_be_decoded_is_refused(node, content, cause, listener, path):
    response = post_encoded(node, listener, path, "gzip", content)
    assert "content-encoding" in response.text
    assert cause in response.text


@pytest.mark.parametrize(
    ("listener", "path"),
    [
        ("operator", CREATE_ALL),
        ("peer", CREATE),
    ],
)
def test_a_body_that_expands_beyond_its_limit_is_refused(node, listener, path):
    bomb = gzip.compress(b" " * 200 * MIB)
    assert len(bomb) < MIB

    response = post_encoded(node, listener, path, "gzip", bomb, **{"x-source-node-id": PEER})

    assert response.json()["data"]["reason"] == "TOO_LARGE"


@pytest.mark.parametrize("size", [5, 3 * MIB])
def test_a_popped_message_equals_the_pushed_one(node, size):
    parties = containers(
        node,
        f"job-of-{size}",
        {
            "guest": (ME,),
            "host": (ME,),
        },
    )
    about_message = {
        "x-ptp-topic": "t",
        "x-ptp-target-node-id": ME,
        "content-type": "text/plain",
    }
    message = b"hello" * (size // 5)

    push_headers = parties["guest.0"] | about_message
    push = post_encoded(
        node,
        "container",
        f"{CHANNEL}/push",
        "gzip",
        gzip.compress(message),
        **push_headers,
    )
    assert push.status_code == 200, push.text

    pop_headers = parties["host.0"] | about_message
    pop = node.post(
        f"{CHANNEL}/pop?timeout=5",
        listener="container",
        headers=pop_headers,
    )
    assert message in pop.content
    assert "content-encoding" not in pop.headers
