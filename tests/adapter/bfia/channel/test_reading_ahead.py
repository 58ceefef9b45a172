"""A part of a long message comes while the one before is brought on, but for the first: it may be refused."""

from collections.abc import AsyncGenerator

import anyio
import pytest

from adapter.bfia.channel.bodies import ahead


@pytest.mark.anyio
async def test_the_next_item_comes_while_one_is_in_hand_and_no_more_than_one() -> None:
    came = []

    async def items() -> AsyncGenerator[int]:
        for n in range(4):
            came.append(n)
            yield n

    seen = []
    async for item in ahead(items()):
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        seen.append((item, len(came)))
    assert seen == [(0, 1), (1, 3), (2, 4), (3, 4)]


@pytest.mark.anyio
async def test_what_comes_ends_with_who_takes_it() -> None:
    ended = []

    async def items() -> AsyncGenerator[int]:
        try:
            yield 0
            yield 1
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    for most in (1, 2):
        taken = ahead(items())
        assert [await anext(taken) for _ in range(most)] == [0, 1][:most]
        await anyio.lowlevel.checkpoint()
        await taken.aclose()
        assert ended == [True] * most


@pytest.mark.anyio
async def test_an_error_of_what_comes_is_raised_where_it_would_have_come() -> None:
    async def items() -> AsyncGenerator[int]:
        yield 0
        yield 1
        raise ValueError("cut")

    taken = ahead(items())
    assert [await anext(taken), await anext(taken)] == [0, 1]
    with pytest.raises(ValueError, match="cut"):
        await anext(taken)
