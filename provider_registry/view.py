"""What one request has read of the registry: asked again by the same request, the answer is the same."""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class View(threading.local):
    """Keeps, per thread, what was read since a view was opened; nothing where none is open.

    It is for the work of one request: whatever another gateway registers meanwhile, the request judges a job by
    one state of each provider. The next request reads anew.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Begin a view; inside another one that one goes on."""
        if self._known is not None:
            yield
            return
        self._known = {}
        try:
            yield
        finally:
            self._known = None

    def of(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return what was read for this key in the open view, or read it."""
        if self._known is None:
            return read()
        if key not in self._known:
            self._known[key] = read()
        found: T = self._known[key]
        return found
