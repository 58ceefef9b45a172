"""Streams of events and logs: a limit for each token, and an end when the token is revoked."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from gateway.admin import streams
from gateway.auth import Role
from gateway.http import guard
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, Node, containers, token_of
from tests.plain import NO_TLS
from tests.world import NodeSetup

EVENTS = "/api/v1/events"
LOG = "/api/v1/jobs/streamed/runs/guest.0/a/log?follow=1"


def launch_job(node: Node) -> None:
    """Launch the job whose log is streamed."""
    containers(
        node,
        "streamed",
        {"guest": (ME,)},
        launched=True,
    )


NODE = NodeSetup(
    commands={"vendor:1.0.0": ["/bin/sleep", "600"]},
    settings={"auth": {"mode": "on"}},
    prepare=launch_job,
)


@contextmanager
def follow(
    node: Node,
    path: str,
    token: str,
) -> Iterator[httpx.Response]:
    """Follow a path until the block is left."""
    url = node.addresses()["operator"] + path
    headers = {"authorization": f"Bearer {token}"}
    with (
        httpx.Client(timeout=300, trust_env=False, verify=NO_TLS) as client,
        client.stream("GET", url, headers=headers) as response,
    ):
        yield response


@pytest.mark.parametrize(
    "path",
    [EVENTS, LOG],
    ids=["events", "log"],
)
def test_a_stream_ends_once_its_token_is_revoked(node, path):
    name = f"platform {path[:20]}"
    with follow(node, path, token_of(node, Role.PLATFORM, name)) as response:
        assert response.status_code == 200
        node.tokens.revoke(name, node.clock())
        # a stream that stayed open would raise after 30 s without data
        for _ in response.iter_raw():
            pass


def test_a_revoked_token_ends_a_stream_within_two_seconds():
    assert guard._STREAM_SECONDS + streams.POLL_SECONDS < 2


def test_one_token_has_few_streams_open(node):
    token = token_of(node, Role.VIEWER, "with many")
    with ExitStack() as stack:
        for _ in range(streams.MOST_STREAMS):
            assert stack.enter_context(follow(node, EVENTS, token)).status_code == 200
        with follow(node, EVENTS, token) as refused:
            assert refused.status_code == 429
            assert "TOO_MANY_STREAMS" in refused.read().decode()
        with follow(node, EVENTS, token_of(node, Role.VIEWER, "with one")) as allowed:
            assert allowed.status_code == 200

    def is_served() -> bool:
        with follow(node, EVENTS, token) as response:
            return response.status_code == 200

    wait_for(is_served, about="closed streams make room")
