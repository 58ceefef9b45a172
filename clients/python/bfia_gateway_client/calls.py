"""Calls are coroutines, each written once; `call` and `stream` make methods of both clients of them.

Over a `wire.AsyncWire` such a method is the coroutine itself. Over a `wire.BlockingWire` nothing in it ever
suspends, so that one step runs it to its end, without an event loop.
"""

import difflib
import re
import shlex
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from functools import update_wrapper, wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload
from urllib.parse import quote

from bfia_gateway_client.errors import Invalid, Problem, Refused, invalid

if TYPE_CHECKING:
    from pydantic import BaseModel

    from bfia_gateway_client.wire import AsyncWire, BlockingWire, Wire

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", bound="Wire")
M = TypeVar("M", bound="BaseModel")
_PAGE = 1000
Entries = list
"""a list, in classes with a method of that name"""


class Group(Generic[W]):
    """Calls about one subject, made over a wire."""

    def __init__(self, wire: W) -> None:
        self._wire: W = wire

    async def _ask(
        self,
        model: type[M],
        method: str,
        path: str,
        body: Any = None,
        **options: Any,
    ) -> M:
        return model.model_validate(await self._wire.call(method, path, body, **options))

    async def _list(
        self,
        model: type[M],
        path: str,
        key: str,
        limit: int,
        query: Mapping[str, Any] | None = None,
    ) -> list[M]:
        """Return up to ``limit`` entries of a list, over all its pages."""
        if limit < 1:
            raise invalid(Problem("limit", "must be 1 or more", limit))
        found: list[M] = []
        after = ""
        while limit > len(found) and after is not None:
            page = {
                **(query or {}),
                "limit": min(limit - len(found), _PAGE),
                "after": after,
            }
            answer = await self._wire.call("GET", path, query=page)
            found += map(model.model_validate, answer[key])
            after = answer.get("next")
        return found


class call(Generic[P, T]):
    """Decorates a coroutine as a method: it returns the result, or over an `AsyncWire` what is awaited for it."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self.function = function
        update_wrapper(cast(Any, self), function)

    @overload
    def __get__(self, obj: None, owner: Any) -> "call[P, T]": ...
    @overload
    def __get__(self, obj: "Group[BlockingWire]", owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, obj: "Group[AsyncWire]", owner: Any
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        return self if obj is None else _bound(self.function, obj, completed)


class stream(Generic[P, T]):
    """Decorates an asynchronous generator as a method: it returns an iterator, or over an `AsyncWire` itself."""

    def __init__(self, function: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> None:
        self.function = function
        update_wrapper(cast(Any, self), function)

    @overload
    def __get__(self, obj: None, owner: Any) -> "stream[P, T]": ...
    @overload
    def __get__(self, obj: "Group[BlockingWire]", owner: Any) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, obj: "Group[AsyncWire]", owner: Any) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, obj: Any, owner: Any) -> Any:
        return self if obj is None else _bound(self.function, obj, each)


def _bound(
    function: Callable[..., Any],
    obj: Any,
    run: Callable[[Any], Any],
) -> Callable[..., Any]:
    """Return a method of a client; where its wire blocks, one that runs to its end."""
    method: Callable[..., Any] = MethodType(function, obj)
    if not obj._wire.blocks:
        return method

    @wraps(method)
    def blocking(*given: Any, **named: Any) -> Any:
        return run(method(*given, **named))

    return blocking


def completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run what never suspends; return its result."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    coroutine.close()
    raise RuntimeError("a call over a BlockingWire must not wait for an event loop")


def each(values: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield what an asynchronous generator that never suspends yields."""
    try:
        while True:
            try:
                value = completed(values.__anext__())
            except StopAsyncIteration:
                return
            yield value
    finally:
        completed(values.aclose())


def path_of(kind: str, *parts: str) -> str:
    """Return a path of the node's API: names are parts of it, whatever characters they have."""
    return "/".join(["/api/v1", kind, *map(segment, parts)])


def segment(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="")


async def provider_named(
    wire: "Wire",
    name: str,
    *,
    retired: bool = False,
) -> str:
    """Return the full name, name:version@device, of the one provider that a name, perhaps in part, stands for.

    Where several have it, those in use count; ``retired``: the others.
    Raises `Invalid` (PROVIDER_AMBIGUOUS) where that is not clear, `Refused` (PROVIDER_UNKNOWN) for an unknown one.
    """
    if ":" in name and "@" in name:
        return name
    found = await wire.call(
        "GET", path_of("providers"), query={"provider_name": name, "limit": 1000}
    )
    every = found["providers"]
    keys = [
        str(one["provider_name"]) for one in every if one["retired"] == retired or len(every) == 1
    ]
    keys = keys or [str(one["provider_name"]) for one in every]
    if len(keys) == 1:
        return keys[0]
    if keys:
        text = f"{name} may be any of {', '.join(keys)}: name version and device, too"
        raise Invalid(
            text,
            reason="PROVIDER_AMBIGUOUS",
            next_step="Name version and device: name:version@device.",
        )
    every = await wire.call("GET", path_of("providers"), query={"limit": 1000})
    meant = near(name.partition(":")[0], (one["name"] for one in every["providers"]))
    text = f"no provider {name} is registered" + (f"; did you mean {meant}?" if meant else "")
    raise Refused(text, reason="PROVIDER_UNKNOWN")


_PLACEHOLDER = re.compile(r"\b(NODE|JOB|[TPN])\b")


def next_step_of(
    step: str,
    job: Mapping[str, Any],
    failure: Mapping[str, Any],
) -> str:
    """Return what to do about a job's failure, with the names of job, task, party and node in their places."""
    at = (failure.get("role"), failure.get("node"))
    parties = [f"{p['role']}.{p['index']}" for p in job["parties"] if (p["role"], p["node"]) == at]
    node = failure.get("node")
    names = {
        "JOB": job["job_id"],
        "T": failure.get("task"),
        "P": parties[0] if parties else "",
        "N": node,
        "NODE": node,
    }

    def name_for(found: re.Match[str]) -> str:
        return shlex.quote(names[found[0]] or found[0])

    return _PLACEHOLDER.sub(name_for, step)


def near(word: str, known: Iterable[str]) -> str:
    """Return which of the known words was meant; empty where that is not clear."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(word[:64].lower(), list(by_lower), n=1)
    return by_lower[found[0]] if found else ""
