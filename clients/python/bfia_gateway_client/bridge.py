"""Each call is written once, as a coroutine, and becomes a method of both clients.

Over an `AsyncWire` (httpx.AsyncClient) the method is that coroutine, which callers await. A
`BlockingWire` (httpx.Client) blocks inside its coroutines and never suspends them, so one `send`
runs a call to its end and no event loop is needed. `call` decorates coroutines, `stream`
asynchronous generators.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from functools import update_wrapper, wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

if TYPE_CHECKING:
    from bfia_gateway_client.calls import Group
    from bfia_gateway_client.wire import AsyncWire, BlockingWire

P = ParamSpec("P")
T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends and return its result.

    Raises `RuntimeError` for a coroutine that waits for an event loop.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a call over a BlockingWire must not wait for an event loop")


def iterate_blocking(values: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the values of an asynchronous generator that never suspends.

    The generator is closed afterwards, also if the caller stops early.
    """
    try:
        while True:
            try:
                value = run_blocking(values.__anext__())
            except StopAsyncIteration:
                return
            yield value
    finally:
        run_blocking(values.aclose())


class call(Generic[P, T]):
    """Decorate a coroutine function.

    The function becomes a method: that of a blocking client returns the coroutine's result, that of
    an asynchronous client returns the coroutine.
    """

    def __init__(
        self,
        function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    ) -> None:
        self._function = function
        update_wrapper(cast(Any, self), function)

    @overload
    def __get__(self, group: None, owner: Any) -> "call[P, T]": ...
    @overload
    def __get__(self, group: "Group[BlockingWire]", owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, group: "Group[AsyncWire]", owner: Any
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, group: Any, owner: Any) -> Any:
        if group is None:
            return self
        return _bind(self._function, group, run_blocking)


class stream(Generic[P, T]):
    """Decorate an asynchronous generator.

    The generator function becomes a method: that of a blocking client returns an iterator, that of
    an asynchronous client returns the generator.
    """

    def __init__(
        self,
        function: Callable[Concatenate[Any, P], AsyncIterator[T]],
    ) -> None:
        self._function = function
        update_wrapper(cast(Any, self), function)

    @overload
    def __get__(self, group: None, owner: Any) -> "stream[P, T]": ...
    @overload
    def __get__(
        self,
        group: "Group[BlockingWire]",
        owner: Any,
    ) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(
        self,
        group: "Group[AsyncWire]",
        owner: Any,
    ) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, group: Any, owner: Any) -> Any:
        if group is None:
            return self
        return _bind(self._function, group, iterate_blocking)


def _bind(
    function: Callable[..., Any],
    group: Any,
    run: Callable[[Any], Any],
) -> Callable[..., Any]:
    """Return a function as a method of a group of calls.

    Over a wire that blocks, the method passes its coroutine or generator to ``run``.
    """
    method: Callable[..., Any] = MethodType(function, group)
    if not group._wire.blocks:
        return method

    @wraps(method)
    def blocking(*args: Any, **kwargs: Any) -> Any:
        return run(method(*args, **kwargs))

    return blocking
