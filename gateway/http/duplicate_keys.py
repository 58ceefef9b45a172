"""A body in which a key stands twice is refused on the operators' listener: of two values only one would hold.

Peers and containers are not asked for as much: what they send is read as every reader of JSON reads it.
"""

import anyio.to_thread
from fastapi import Request

from gateway.domain.problems import Problem
from gateway.errors import Invalid
from provider_registry.model import counted
from provider_registry.registration import duplicate_keys

AT_ONCE = 64 * 1024
"""bytes of a body that is looked at on the event loop"""
_MOST_SIGNS = 250_000
"""commas and opening brackets of a body that is looked at here: parsing holds every other thread, and no reader of
bodies takes as many"""


async def once_each(request: Request) -> None:
    """Refuse a request whose body was read and has a key twice. Raises `Invalid`."""
    body = getattr(request, "_body", b"")  # only what is at hand: a file that is sent is read piece by piece
    if body and not getattr(request.state, "read_elsewhere", False):
        await keys_once(body)


async def keys_once(body: bytes) -> None:
    """Refuse JSON in which a key stands twice, every such key with its path; what is no JSON passes.

    So does what has more values than anybody takes, whose reader refuses it. Raises `Invalid`.
    """
    found = refused(body) if len(body) <= AT_ONCE else await anyio.to_thread.run_sync(refused, body)
    if found:
        raise Invalid(found)


def refused(body: bytes) -> list[Problem]:
    """Return the keys that stand twice in one object of a body, as `keys_once` does."""
    if counted(body, b",[{", _MOST_SIGNS) > _MOST_SIGNS:
        return []
    return [Problem(*found) for found in duplicate_keys(body)]
