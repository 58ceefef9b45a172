"""Keeps connections open: each is opened again when it ends, after pauses that grow."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.5  # seconds before a connection is opened again; half of it is random
_LONGEST_PAUSE = 3.0  # seconds; a partner is back within 5 s of its network


class Keeper(Generic[K]):
    """Keeps one connection for each key. Belongs to one event loop."""

    def __init__(self, run: Callable[[K, Callable[[], None]], Awaitable[bool]]) -> None:
        """``run`` carries a connection until it ends, and returns whether it was open.

        Its second argument is a function to call as soon as the connection is open.
        """
        self._run = run
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._pauses: dict[K, asyncio.Event] = {}  # set to end the pause of a key

    def follow(
        self,
        due: set[K],
        is_related: Callable[[K, K], bool],
    ) -> None:
        """Begin the connections of new keys, and end the connections of keys that are due no more.

        A connection whose task has failed begins again. ``is_related`` returns whether two keys
        have the same other end: once one of them is open, the other one does not wait either.
        """
        for key in self._tasks.keys() - due:
            self._tasks.pop(key).cancel()
        for key, task in list(self._tasks.items()):
            if task.done():
                log.error("the keeping of a link failed", exc_info=task.exception())
                del self._tasks[key]
        for key in due - self._tasks.keys():
            self._tasks[key] = asyncio.create_task(self._keep(key, is_related))

    def close(self) -> None:
        """End all connections."""
        for task in self._tasks.values():
            task.cancel()

    async def _keep(
        self,
        key: K,
        is_related: Callable[[K, K], bool],
    ) -> None:
        """Open a connection again and again, with growing pauses while it cannot be opened."""

        def wake_others() -> None:
            for paused_key, event in self._pauses.items():
                if is_related(key, paused_key):
                    event.set()

        pause = _FIRST_PAUSE
        while True:
            was_open = await self._run(key, wake_others)
            pause = min(2 * pause, _LONGEST_PAUSE)
            if was_open:
                pause = _FIRST_PAUSE
            jitter = random.uniform(0.5, 1.0)
            if await self._is_woken(key, pause * jitter):
                pause = _FIRST_PAUSE

    async def _is_woken(self, key: K, seconds: float) -> bool:
        """Pause; return whether the pause was ended early."""
        event = asyncio.Event()
        self._pauses[key] = event
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            self._pauses.pop(key, None)
        return True
