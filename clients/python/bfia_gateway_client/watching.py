"""A job as it goes on, also through a restart of its node."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from bfia_gateway_client.errors import GatewayError, NoAnswer

SILENT_SECONDS = 300.0
"""seconds for which a node that has responded may be silent, such as while it is upgraded"""
STARTING_SECONDS = 30.0
"""seconds for which a node may be silent at first: it has just been started, or its address is wrong"""
PAUSE = 0.3
"""seconds between two requests"""
OVER = ("FINISHED", "REJECTED")


async def looks(
    fetch: Callable[[], Awaitable[dict[str, Any]]],
    sleep: Callable[[float], Awaitable[None]],
    *,
    now: Callable[[], float] = time.monotonic,
    notice: Callable[[str], None] = lambda _: None,
) -> AsyncGenerator[tuple[dict[str, Any], str], None]:
    """Yield the job until it is over; with a notice where that is its last known state, as the node is silent.

    ``notice`` takes it while nothing is known yet. Raises `GatewayError` for a refusal and a long silence.
    """
    known: dict[str, Any] = {}
    since: float | None = None
    while not known or known["status"] not in OVER:
        try:
            known, since, trouble = await fetch(), None, ""
        except GatewayError as error:
            first, since = since is None, now() if since is None else since
            limit = SILENT_SECONDS if known else STARTING_SECONDS
            silent = isinstance(error, NoAnswer) or error.reason == "DATABASE_AWAY"
            if not silent or now() - since >= limit:
                raise
            trouble = f"{error.message}; retrying for up to {limit:g} s"
            if first and not known:
                notice(trouble)
        if known:
            yield known, trouble
        if known.get("status") not in OVER:
            await sleep(PAUSE)
