"""The table in force while its file is edited, broken, removed and restored."""

import asyncio
import os
from datetime import UTC, datetime
from inspect import signature
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from gateway.cli.serve import _follow_routes
from route_table.live import MAX_BYTES, LiveRoutes, MemoryVersions, Version
from route_table.model import RouteTable

GOOD = b"A: {host: h, port: 1}\n"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "routes.yml"


def problems(live):
    return [(problem.path, problem.rule) for problem in live.problems]


def test_a_missing_file_is_an_empty_table_and_a_problem_until_it_appears(file):
    live = LiveRoutes(file)
    assert live.table == RouteTable(0)
    assert problems(live) == [("route_table.file", "does not exist")]
    assert not live.reload()

    file.write_bytes(GOOD)

    assert live.reload()
    assert live.table.version == 1
    assert live.problems == ()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            b"A: {host: h, prot: 2}\n",
            [
                ("A.prot", "line 1: unknown key; did you mean port?"),
                ("A.port", "line 1: is missing; give host and port, or url"),
            ],
        ),
        (b"A: \xff", [("(document)", "must be UTF-8 text")]),
        (
            b"#" * (MAX_BYTES + 1),
            [("route_table.file", f"must not be larger than {MAX_BYTES} bytes")],
        ),
        (b"", [("(document)", "has no entries; write {} for a table without routes")]),
        (None, [("route_table.file", "does not exist")]),
    ],
    ids=["unknown key", "not UTF-8", "too large", "empty", "removed"],
)
def test_an_invalid_file_leaves_the_table_in_force_and_says_why(file, content, expected):
    file.write_bytes(GOOD)
    live = LiveRoutes(file)
    table = live.table

    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    assert not live.reload()
    assert live.table is table
    assert table.knows("A")
    assert problems(live) == expected

    byte_order_mark = b"\xef\xbb\xbf"
    file.write_bytes(byte_order_mark + GOOD)
    live.reload()
    assert live.table.routes == table.routes
    assert live.problems == ()


def test_a_path_that_is_not_a_regular_file_is_reported_and_not_opened(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    for path in (tmp_path, pipe):
        assert problems(LiveRoutes(path)) == [("route_table.file", "is not a file")]


def test_the_file_is_looked_at_every_second():
    """So that an edit is in effect within two seconds."""
    assert signature(_follow_routes).parameters["every"].default == 1.0


@pytest.mark.anyio
async def test_a_failed_reload_is_logged_once_and_retried():
    reloads = []
    succeeded = asyncio.Event()
    loop = asyncio.get_running_loop()

    def reload():
        reloads.append("reload")
        if len(reloads) < 4:
            raise ConnectionError("the database is away")
        loop.call_soon_threadsafe(succeeded.set)

    gateway = SimpleNamespace(routes=SimpleNamespace(reload=reload))
    with capture_logs() as lines:
        following = asyncio.create_task(_follow_routes(gateway, 0))
        waiting = asyncio.create_task(succeeded.wait())
        done, _ = await asyncio.wait(
            [following, waiting],
            return_when=asyncio.FIRST_COMPLETED,
        )
        following.cancel()

    assert done == {waiting}
    assert [line["error"] for line in lines] == ["ConnectionError: the database is away"]


def test_a_former_route_is_found_behind_a_version_that_is_refused_today():
    versions = MemoryVersions()
    texts = [
        "A: {host: h, port: 1}\n",
        "A: {host: h, port: 1, colour: red}\n",  # as if an earlier gateway had accepted this
        "{}\n",
    ]
    for number, text in enumerate(texts, 1):
        versions.add(Version(number, datetime.now(UTC), "ann", "", "api", text))
    live = LiveRoutes(None, versions, in_use=lambda node: node == "A")

    assert live.resolve("A").url == "http://h:1"
    accepted, route = live.look_up("A")
    assert accepted
    assert route == live.former("A")
