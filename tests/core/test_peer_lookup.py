"""Unknown peers are looked up outside the event loop, which a query would block."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from gateway.errors import DatabaseAway
from tests.builders import raising
from tests.inprocess import PEER, STRANGER, ask
from tests.world import UNREACHABLE, NodeSetup

NODE = NodeSetup(routes={PEER: UNREACHABLE})

POLL = "/v1/interconn/schedule/task/poll"
INVOKE = "/v1/interconn/chan/invoke"
PUSH = "/v1/interconn/chan/push"
# The headers that name the sender, in every spelling that is read.
SENDER_HEADERS = (
    "x-source-node-id",
    "x_source_node_id",
    "x-ptp-source-node-id",
    "x_ptp-source_node_id",
)
SUCCESS_CODES = (0, "E0000000000")


@pytest.fixture
def statements(node):
    """The statements to the node's database, each with whether an event loop ran its thread."""
    url = node.settings.database.url
    statements = []

    def note(
        connection,
        _cursor,
        _text,
        values,
        _context,
        _is_many,
    ):
        if str(connection.engine.url) == url:
            statement = SimpleNamespace(
                values=values,
                is_on_event_loop=is_on_event_loop(),
            )
            statements.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    yield statements
    sa.event.remove(sa.Engine, "before_cursor_execute", note)


def is_on_event_loop():
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize(
    ("listener", "path", "headers"),
    [
        ("peer", POLL, {"x-source-node-id": STRANGER}),
        ("peer", POLL, {"x_node_id": STRANGER}),
        ("peer", POLL, {"x-source-node-id": PEER}),
        ("peer", POLL, {}),
        ("peer", "/nowhere", {"x-source-node-id": STRANGER}),
        ("peer", INVOKE, {"x-ptp-session-id": "s", "x-ptp-source-node-id": STRANGER}),
        ("container", PUSH, {"x-ptp-session-id": "s", "x-ptp-target-node-id": STRANGER}),
        ("operator", "/nowhere", {"x-source-node-id": STRANGER}),
        ("operator", "/v1/platform/schedule/job/stop_all", {}),
    ],
)
def test_no_request_uses_the_database_on_the_event_loop(node, statements, listener, path, headers):
    body = {
        "job_id": "job-1",
        "task_id": "t",
    }

    response = node.post(
        path,
        body,
        listener=listener,
        headers=headers,
    )

    assert response.json()["code"] not in SUCCESS_CODES
    for statement in statements:
        assert not statement.is_on_event_loop


def test_a_request_with_many_headers_looks_up_each_read_sender_once(node, statements):
    repeated = []
    for number in range(20):
        for name in SENDER_HEADERS:
            repeated.append((name, f"{name} {number}"))

    # Not `Node.post`, whose headers are a dictionary.
    response = ask(
        node,
        "peer",
        "POST",
        POLL,
        headers=repeated,
        json={"task_id": "t"},
    )

    assert response.json()["code"] != 0
    lookups = Counter()
    for statement in statements:
        for value in statement.values:
            if str(value).startswith('"x'):  # a node id in the spec of a job
                lookups[value] += 1
    assert set(lookups) == {f'"{name} 0"' for name in SENDER_HEADERS}
    # One query each for the jobs that the node schedules and the jobs that it takes part in.
    assert set(lookups.values()) == {2}


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", POLL, {"x-source-node-id": STRANGER}),
        ("GET", "/v1/interconn/node/health", {"x-source-node-id": STRANGER}),
        ("POST", INVOKE, {"x-ptp-session-id": "s", "x-ptp-source-node-id": STRANGER}),
    ],
    ids=["task", "health", "channel"],
)
def test_unknown_nodes_are_told_that_the_database_is_away(node, monkeypatch, method, path, headers):
    monkeypatch.setattr(
        node.routes,
        "look_up",
        raising(DatabaseAway("the database is away")),
    )

    response = node.request(
        method,
        path,
        listener="peer",
        headers=headers,
    )

    assert "the database is away" in response.text


def test_no_route_leads_to_this_node_itself(node, statements):
    assert node.peer_table.route_of(node.settings.node.id) is None
    assert statements == []
