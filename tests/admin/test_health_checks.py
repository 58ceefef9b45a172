"""Health checks as load balancers make them: by HEAD, by HTTP/1.0, at the paths that README
names.
"""

import socket

import pytest

from tests.fuzz.nodes import LISTENERS, operations
from tests.inprocess import Node
from tests.world import NodeSetup

NODE = NodeSetup()

# The status of GET, and so of HEAD, by path of the operators' listener.
STATUSES = {
    "/": 307,
    "/health": 200,
    "/health/live": 200,
    "/health/ready": 200,
    "/metrics": 200,
    "/console": 307,
    "/console/": 200,
    "/console/nothing.js": 404,
    "/docs": 200,
    "/openapi.json": 200,
    "/nothing": 404,
    "/api/v1/events": 200,
}


@pytest.mark.parametrize(
    ("path", "status"),
    STATUSES.items(),
    ids=STATUSES,
)
def test_head_has_the_status_of_get_and_no_body(node, path, status):
    response = node.request("HEAD", path)
    assert response.status_code == status
    assert response.content == b""

    request = f"HEAD {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    assert send_bytes(node, request).endswith(b"\r\n\r\n")


@pytest.mark.parametrize("listener", LISTENERS)
def test_head_is_served_wherever_get_is(node, listener):
    for _, path, _ in operations(node, listener, "get"):
        needs_argument = "{" in path
        never_ends = "/events" in path
        if needs_argument or never_ends:
            continue
        by_get = node.request(
            "GET",
            path,
            listener=listener,
        )
        by_head = node.request(
            "HEAD",
            path,
            listener=listener,
        )
        assert by_head.status_code == by_get.status_code, path


def test_a_path_without_get_has_no_head(node):
    response = node.request("HEAD", "/v1/platform/schedule/job/create_all")
    assert response.status_code == 405


def test_only_http_1_0_may_leave_out_the_host(node):
    old = send_bytes(node, "GET /health HTTP/1.0\r\n\r\n")
    assert old.startswith(b"HTTP/1.1 200 ")

    new = send_bytes(node, "GET /health HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert new.startswith(b"HTTP/1.1 403 ")


def test_health_needs_no_token_but_metrics_do(world):
    node = world.node(settings={"auth": {"mode": "on"}})
    for path in ("/health", "/health/live", "/health/ready"):
        assert node.request("HEAD", path).status_code == 200
    assert node.request("HEAD", "/metrics").status_code == 401


def send_bytes(node: Node, request: str) -> bytes:
    """Send one request to the operators' listener as it is; return the whole response."""
    host, _, port = node.addresses()["operator"].removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=300) as connection:
        connection.sendall(request.encode())
        with connection.makefile("rb") as response:
            return response.read()
