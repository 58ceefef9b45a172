"""Bodies that clients compress: decoded within the bounds of a body, or refused by the name of their coding."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from adapter.bfia.examples import A_JOB
from gateway.bootstrap.node import Gateway
from tests.inprocess import ME, PEER, ask, containers, running

CREATE_ALL = "/v1/platform/schedule/job/create_all"
HELLO = "/v1/interconn/schedule/node/hello"
CHANNEL = "/v1/interconn/chan"
JSON = {"content-type": "application/json"}
MIB = 1024**2


def raw_deflate(text: bytes) -> bytes:
    """Return deflate without the header of RFC 1950, as many clients send it."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(text) + packer.flush()


ENCODED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("GZIP, identity", gzip.compress),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("identity", bytes),
    ("", bytes),
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home = tmp_path_factory.mktemp("node")
    home.joinpath("routes.yml").write_text(f"{PEER}: {{url: 'http://127.0.0.1:9'}}\n")
    with running(home, limits={"body_bytes": MIB}) as gateway:
        yield gateway


def post(
    node: Gateway,
    listener: str,
    path: str,
    coding: str,
    content: bytes,
    **headers: str,
) -> httpx.Response:
    return ask(
        node,
        listener,
        "POST",
        path,
        content=content,
        headers=JSON | {"content-encoding": coding} | headers,
    )


def problems(answer: httpx.Response) -> list[dict[str, Any]]:
    return list(answer.json()["data"]["problems"])


@pytest.mark.parametrize(("coding", "encode"), ENCODED)
def test_a_compressed_body_is_read_as_what_it_holds(
    node: Gateway,
    coding: str,
    encode: Callable[[bytes], bytes],
) -> None:
    job = json.dumps(A_JOB | {"dag": 5}).encode()
    plain = ask(node, "operator", "POST", CREATE_ALL, content=job, headers=JSON)
    answer = post(node, "operator", CREATE_ALL, coding, encode(job))
    assert problems(plain) != [] and problems(answer) == problems(plain)
    answer = post(
        node, "peer", HELLO, coding, encode(b'{"profile": "x"}'), **{"x-source-node-id": PEER}
    )
    assert answer.json()["code"] == 0


@pytest.mark.parametrize(
    "coding", ["br", "zstd", "compress", "gzip, gzip", "gzip, br", "no;coding"]
)
def test_another_coding_is_refused_by_its_name(node: Gateway, coding: str):
    for listener, path in (
        ("operator", CREATE_ALL),
        ("operator", "/api/v1/templates/x"),
        ("peer", HELLO),
        ("container", f"{CHANNEL}/push"),
    ):
        answer = post(node, listener, path, coding, b"{}")
        assert (
            answer.status_code == 415
            and f"{coding}" in answer.text
            and "content-encoding" in answer.text
        )


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"{}", "incorrect header"),
        (gzip.compress(b"{}")[:-3], "its end is missing"),
        (gzip.compress(b"{}") + gzip.compress(b"{}"), "something follows its end"),
        (gzip.compress(b"{}") + b"GET / HTTP/1.1\r\n\r\n", "something follows its end"),
        (gzip.compress(b"{}")[:-8] + b"\0" * 8, "incorrect data check"),
    ],
    ids=["plain", "short", "two", "a rest", "a wrong checksum"],
)
def test_what_cannot_be_decoded_is_refused(
    node: Gateway,
    content: bytes,
    cause: str,
):
    for listener, path in (
        ("operator", CREATE_ALL),
        ("operator", "/api/v1/providers"),
        ("peer", HELLO),
    ):
        answer = post(node, listener, path, "gzip", content)
        assert "content-encoding" in answer.text and cause in answer.text, answer.text


def test_a_body_that_expands_beyond_its_bound_is_refused(node: Gateway):
    bomb = gzip.compress(b" " * 200 * MIB)
    assert len(bomb) < MIB
    for listener, path in (("operator", CREATE_ALL), ("peer", "/v1/interconn/schedule/job/create")):
        answer = post(node, listener, path, "gzip", bomb, **{"x-source-node-id": PEER})
        assert answer.json()["data"]["reason"] == "TOO_LARGE"


@pytest.mark.parametrize("size", [5, 3 * MIB])
def test_what_is_popped_is_what_was_pushed(node: Gateway, size: int):
    parties = containers(node, f"job-of-{size}", {"guest": (ME,), "host": (ME,)})
    about = {
        "x-ptp-topic": "t",
        "x-ptp-target-node-id": ME,
        "content-type": "text/plain",
    }
    message = b"hello" * (size // 5)
    sender = parties["guest.0"] | about
    pushed = post(node, "container", f"{CHANNEL}/push", "gzip", gzip.compress(message), **sender)
    assert pushed.status_code == 200, pushed.text
    receiver = parties["host.0"] | about
    popped = ask(node, "container", "POST", f"{CHANNEL}/pop?timeout=5", headers=receiver)
    assert message in popped.content and "content-encoding" not in popped.headers
