"""The database is never used on the event loop to look up an unknown peer: everybody would wait."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.bootstrap.node import Gateway
from gateway.errors import DatabaseAway
from tests.inprocess import PEER, STRANGER, ask, running

POLL = "/v1/interconn/schedule/task/poll"
PUSH = "/v1/interconn/chan/push"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home = tmp_path_factory.mktemp("node")
    (home / "routes.yml").write_text(f"{PEER}: {{host: 127.0.0.1, port: 9}}\n")
    with running(home) as gateway:
        yield gateway


@pytest.fixture
def statements(node: Gateway) -> Iterator[list[bool]]:
    """Note of each statement whether it was made on an event loop."""
    found: list[bool] = []

    def before(*_: Any) -> None:
        found.append(asyncio._get_running_loop() is not None)

    sa.event.listen(node.store._engine, "before_cursor_execute", before)
    yield found
    sa.event.remove(node.store._engine, "before_cursor_execute", before)


@pytest.mark.parametrize(
    ("listener", "path", "headers"),
    [
        ("peer", POLL, {"x-source-node-id": STRANGER}),
        ("peer", POLL, {"x_node_id": STRANGER}),
        ("peer", POLL, {"x-source-node-id": PEER}),
        ("peer", POLL, {}),
        ("peer", "/nowhere", {"x-source-node-id": STRANGER}),
        (
            "peer",
            "/v1/interconn/chan/invoke",
            {"x-ptp-session-id": "s", "x-ptp-source-node-id": STRANGER},
        ),
        ("container", PUSH, {"x-ptp-session-id": "s", "x-ptp-target-node-id": STRANGER}),
        ("operator", "/nowhere", {"x-source-node-id": STRANGER}),
        ("operator", "/v1/platform/schedule/job/stop_all", {}),
    ],
)
def test_no_request_has_the_database_asked_on_the_event_loop(
    node: Gateway,
    statements: list[bool],
    listener: str,
    path: str,
    headers: dict[str, str],
):
    answer = ask(
        node, listener, "POST", path, headers=headers, json={"job_id": "job-1", "task_id": "t"}
    )
    assert answer.json()["code"] not in (0, "E0000000000")
    assert not any(statements)


def test_a_request_has_few_nodes_asked_about_and_each_once(
    node: Gateway, monkeypatch: pytest.MonkeyPatch
):
    """Those that are read of it, however often it repeats a header."""
    asked: list[str] = []
    monkeypatch.setattr(node.routes, "_in_use", lambda one: asked.append(one) is not None)
    control, channel = (
        ("x-source-node-id", "x_source_node_id"),
        ("x-ptp-source-node-id", "x_ptp-source_node_id"),
    )
    repeated = [(name, f"{name} {n}") for n in range(20) for name in (*control, *channel)]
    answer = ask(node, "peer", "POST", POLL, headers=repeated, json={"task_id": "t"})
    assert answer.json()["code"] != 0
    read = {f"{name} 0" for name in (*control, *channel)}
    assert sorted(asked) == sorted(read)


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", POLL, {"x-source-node-id": STRANGER}),
        ("GET", "/v1/interconn/node/health", {"x-source-node-id": STRANGER}),
        (
            "POST",
            "/v1/interconn/chan/invoke",
            {"x-ptp-session-id": "s", "x-ptp-source-node-id": STRANGER},
        ),
    ],
)
def test_while_the_database_is_away_unknown_nodes_are_told_so(
    node: Gateway,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    headers: dict[str, str],
):
    def away(*_: Any) -> Any:
        raise DatabaseAway("the database is away")

    monkeypatch.setattr(node.routes, "look", away)
    answer = ask(node, "peer", method, path, headers=headers)
    assert "the database is away" in answer.text


def test_no_route_leads_to_this_node_itself(node: Gateway, statements: list[bool]):
    assert node.peer_table.route_of(node.settings.node.id) is None and statements == []
