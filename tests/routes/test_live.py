"""The table in force while its file is edited, broken, removed and put back, and the node that follows it."""

import asyncio
import os
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from gateway.cli.serve import _follow_routes
from route_table.live import MAX_BYTES, LiveRoutes
from route_table.model import RouteTable

GOOD = b"A: {host: h, port: 1}\n"


def rules(live: LiveRoutes) -> list[tuple[str, str]]:
    return [(p.path, p.rule) for p in live.problems]


def test_a_missing_file_is_an_empty_table_and_a_problem_until_it_appears(tmp_path: Path):
    file = tmp_path / "routes.yml"
    live = LiveRoutes(file)
    assert live.table == RouteTable(0)
    assert rules(live) == [("route_table.file", "does not exist")]
    assert not live.reload()
    file.write_bytes(GOOD)
    assert live.reload()
    assert live.table.version == 1
    assert live.problems == ()


@pytest.mark.parametrize(
    ("content", "problems"),
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
)
def test_an_invalid_file_leaves_the_table_in_force_and_says_why(
    tmp_path: Path,
    content: bytes | None,
    problems: list[tuple[str, str]],
):
    file = tmp_path / "routes.yml"
    file.write_bytes(GOOD)
    live = LiveRoutes(file)
    before = live.table
    file.unlink() if content is None else file.write_bytes(content)
    assert not live.reload()
    assert live.table is before and before.knows("A")
    assert rules(live) == problems
    file.write_bytes(b"\xef\xbb\xbf" + GOOD)
    live.reload()
    assert live.table.routes == before.routes and live.problems == ()


def test_a_path_that_is_not_a_regular_file_is_reported_and_not_opened(tmp_path: Path):
    assert rules(LiveRoutes(tmp_path)) == [("route_table.file", "is not a file")]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert rules(LiveRoutes(pipe)) == [("route_table.file", "is not a file")]


def test_the_file_is_looked_at_every_second():
    assert (
        signature(_follow_routes).parameters["every"].default == 1.0
    )  # an edit is in effect within two


@pytest.mark.anyio
async def test_a_failed_reload_is_logged_once_and_retried():
    looks = 0
    came = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks < 4:
            raise ConnectionError("the database is away")
        loop.call_soon_threadsafe(came.set)

    gateway = SimpleNamespace(routes=SimpleNamespace(reload=look))
    with capture_logs() as told:
        following = asyncio.create_task(_follow_routes(gateway, 0))
        done, _ = await asyncio.wait(
            [following, waiting := asyncio.create_task(came.wait())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        following.cancel()
    assert done == {waiting}
    assert [line["error"] for line in told] == ["ConnectionError: the database is away"]
