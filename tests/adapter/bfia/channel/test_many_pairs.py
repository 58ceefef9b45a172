"""Short messages of many pairs of containers over a long line: counted, never timed."""

import asyncio

import anyio
import pytest

from route_table.model import Route
from tests.adapter.bfia.channel.nodes import OK, Container, Node, served
from tests.counted_line import TURN, CountedLine

pytestmark = pytest.mark.anyio

PAIRS = 90  # messages that are under way together


async def push_together(line, container):
    """Push a message of each pair; no response passes the line before all messages have begun."""
    line.gather(PAIRS)
    pushes = [container.push("beta", b"x" * 1024, f"t{pair}") for pair in range(PAIRS)]
    with anyio.fail_after(60):
        return await asyncio.gather(*pushes)


async def test_messages_of_many_pairs_cost_one_round_trip_together(alpha, client, tmp_path):
    # As gateways do, beta promises to keep idle connections for longer than the test takes.
    async with served(Node("beta", tmp_path / "beta")) as beta:
        with CountedLine(beta.url) as line:
            alpha.routes["beta"] = Route("beta", line.url)
            container = Container(client, alpha)
            await push_together(line, container)

            codes = await push_together(line, container)

            assert codes == [OK] * PAIRS
            assert line.round_trips == [TURN] * PAIRS
