"""Health checks as load balancers make them: by HEAD, by HTTP/1.0, at the paths that README names."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.bootstrap.node import Gateway
from tests.fuzz.nodes import LISTENERS, operations
from tests.inprocess import ask, running


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("node")) as gateway:
        yield gateway


def raw(node: Gateway, request: bytes) -> bytes:
    """Return all that the operators' listener answers on one connection."""
    host, _, port = node.addresses()["operator"].removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as answer:
            return answer.read()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 307),
        ("/health", 200),
        ("/health/live", 200),
        ("/health/ready", 200),
        ("/metrics", 200),
        ("/console", 307),
        ("/console/", 200),
        ("/console/nothing.js", 404),
        ("/docs", 200),
        ("/openapi.json", 200),
        ("/nothing", 404),
        ("/api/v1/events", 200),
    ],
)
def test_head_is_answered_as_get_without_a_body(
    node: Gateway,
    path: str,
    status: int,
):
    answer = ask(node, "operator", "HEAD", path)
    assert (answer.status_code, answer.content) == (status, b"")
    request = b"HEAD %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path.encode()
    assert raw(node, request).endswith(b"\r\n\r\n")


def test_head_is_served_wherever_get_is(node: Gateway):
    for listener in LISTENERS:
        for _, path, _ in operations(node, listener, "get"):
            if "{" not in path and "/events" not in path:
                statuses = [
                    ask(node, listener, method, path).status_code for method in ("GET", "HEAD")
                ]
                assert statuses[0] == statuses[1], (listener, path)


def test_a_path_without_get_has_no_head(node: Gateway):
    assert ask(node, "operator", "HEAD", "/v1/platform/schedule/job/create_all").status_code == 405


def test_a_check_by_http_1_0_needs_no_host(node: Gateway):
    assert raw(node, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert raw(node, b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n").startswith(
        b"HTTP/1.1 403 "
    )


def test_checks_need_no_token(tmp_path: Path):
    with running(tmp_path, auth={"mode": "on"}) as node:
        for path in ("/health", "/health/live", "/health/ready"):
            assert ask(node, "operator", "HEAD", path).status_code == 200
        assert ask(node, "operator", "HEAD", "/metrics").status_code == 401
