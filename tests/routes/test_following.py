"""The route table of a node that serves is looked at again and again, whatever a look ends with."""

import asyncio
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from gateway.cli.serve import _follow_routes

pytestmark = pytest.mark.anyio


async def test_a_look_that_fails_is_told_once_and_is_not_the_last():
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
            [following, waiting := asyncio.create_task(came.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        following.cancel()
    assert done == {waiting}
    assert [line["error"] for line in told] == ["ConnectionError: the database is away"]
