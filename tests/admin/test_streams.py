"""Streams of events and logs: few of each token, and none without a good one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from gateway.admin import streams
from gateway.auth import Role
from gateway.bootstrap.node import Gateway
from gateway.http import guard
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, containers, running, token_of
from tests.plain import NO_TLS

EVENTS = "/api/v1/events"
LOG = "/api/v1/jobs/streamed/runs/guest.0/a/log?follow=1"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    engine = {
        "kind": "process",
        "process": {"images": {"vendor:1.0.0": {"command": ["/bin/sleep", "600"]}}},
    }
    home = tmp_path_factory.mktemp("node")
    with running(home, engine=engine, auth={"mode": "on"}) as gateway:
        containers(gateway, "streamed", {"guest": (ME,)}, launched=True)
        yield gateway


@contextmanager
def streamed(
    node: Gateway,
    path: str,
    token: str,
) -> Iterator[httpx.Response]:
    """Follow a path until the block is left."""
    url = node.addresses()["operator"] + path
    headers = {"authorization": f"Bearer {token}"}
    with (
        httpx.Client(
            timeout=30,
            trust_env=False,
            verify=NO_TLS,
        ) as client,
        client.stream("GET", url, headers=headers) as response,
    ):
        yield response


@pytest.mark.parametrize("path", [EVENTS, LOG], ids=["events", "log"])
def test_a_stream_ends_once_its_token_is_revoked(node, path):
    name = f"platform {path[:20]}"
    with streamed(node, path, token_of(node, Role.PLATFORM, name)) as response:
        assert response.status_code == 200
        node.tokens.revoke(name, node.clock())
        for _ in response.iter_raw():  # and raises after 30 s without anything
            pass


def test_that_is_within_two_seconds():
    assert guard._STREAM_SECONDS + streams.POLL_SECONDS < 2


def test_one_token_has_few_streams_open(node):
    token = token_of(node, Role.VIEWER, "with many")
    with ExitStack() as stack:
        for _ in range(streams.MOST_STREAMS):
            assert stack.enter_context(streamed(node, EVENTS, token)).status_code == 200
        with streamed(node, EVENTS, token) as refused:
            assert refused.status_code == 429
            assert "TOO_MANY_STREAMS" in refused.read().decode()
        with streamed(node, EVENTS, token_of(node, Role.VIEWER, "with one")) as other:
            assert other.status_code == 200

    def is_served() -> bool:
        with streamed(node, EVENTS, token) as response:
            return response.status_code == 200

    wait_for(is_served, about="streams that were left make room")
