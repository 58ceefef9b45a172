"""A body in which a key stands twice is refused on the operators' listener: of two values only one would hold.

Peers and containers are not asked for as much: what they send is read as every reader of JSON reads it.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import anyio.to_thread
from fastapi import Request

from gateway.domain.problems import Problem
from gateway.errors import Invalid
from gateway.keys_once import KeyTwice, each_once
from provider_registry.limits import join

_MOST = 50
"""problems that are told of one body"""
_AT_ONCE = 64 * 1024
"""bytes of a body that is looked at on the event loop"""
_SLICE = 512 * 1024
"""bytes that are counted at a time"""
_MOST_SIGNS = 250_000
"""commas and opening brackets of a body that is looked at here: parsing holds every other thread, and no reader of
bodies takes as many"""


async def once_each(request: Request) -> None:
    """Refuse a request whose body was read and has a key twice. Raises `Invalid`."""
    body = getattr(request, "_body", b"")  # only what is at hand: a file that is sent is read piece by piece
    if body:
        await keys_once(body)


async def keys_once(body: bytes) -> None:
    """Refuse JSON in which a key stands twice, every such key with its path; what is no JSON passes.

    So does what has more values than anybody takes, whose reader refuses it. Raises `Invalid`.
    """
    signs = 0
    for start in range(0, len(body), _SLICE):  # of a body that is nothing but signs a part is enough
        signs += sum(body.count(sign, start, start + _SLICE) for sign in (b",", b"[", b"{"))
        if signs > _MOST_SIGNS:
            return
    found = twice(body) if len(body) <= _AT_ONCE else await anyio.to_thread.run_sync(twice, body)
    if found:
        raise Invalid(found)


def twice(body: bytes) -> list[Problem]:
    """Return the keys that stand twice in one object; what is no JSON has none, and its reader says so."""
    try:
        try:
            json.loads(body, object_pairs_hook=each_once)
        except KeyTwice:
            return list(islice(_found(body), _MOST))
    except (ValueError, RecursionError):  # also behind the first key that stands twice
        pass
    return []


class _Pairs(list[tuple[str, Any]]):
    """An object as it is written."""


def _found(body: bytes) -> Iterator[Problem]:
    stack: list[tuple[str, Any]] = [("", json.loads(body, object_pairs_hook=_Pairs))]
    while stack:
        path, value = stack.pop()
        if isinstance(value, _Pairs):
            seen: dict[str, Any] = {}
            for key, inner in value:
                if key in seen:
                    yield Problem(join(path, key), "stands twice in one object; keep one of them")
                seen[key] = inner
                stack.append((join(path, key), inner))
        elif isinstance(value, list):
            stack += [(join(path, number), inner) for number, inner in enumerate(value)]
