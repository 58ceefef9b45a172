"""Prepares the randomness of ciphertexts while a party waits for its peer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from gmpy2 import mpz  # type: ignore[import-untyped]

from refvendor.crypto.paillier import PublicKey


class RandomnessPool:
    """A stock of at most ``limit`` random values for one key, to be used as a context manager.

    A thread fills it inside ``with pool.filling():`` only. Outside, the thread would compete with
    the party's own work for the interpreter.
    """

    def __init__(self, key: PublicKey, limit: int) -> None:
        self._key = key
        self._limit = limit
        self._stock: deque[mpz] = deque()
        self._may_fill = threading.Event()
        self._closed = False
        self._thread = threading.Thread(
            target=self._fill,
            name="randomness",
            daemon=True,
        )
        self._thread.start()

    def __enter__(self) -> RandomnessPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        self._may_fill.set()
        self._thread.join()

    def __len__(self) -> int:
        return len(self._stock)

    def take(self, count: int) -> list[mpz]:
        """Return ``count`` values, each of them only once: from the stock, or computed now if it is
        empty.
        """
        values: list[mpz] = []
        while len(values) < count:
            try:
                values.append(self._stock.popleft())
            except IndexError:
                return values + self._key.randomness(count - len(values))
        return values

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Let the thread work for the duration of the block, at most until the stock is full."""
        self._may_fill.set()
        try:
            yield
        finally:
            if not self._closed:
                self._may_fill.clear()

    def _fill(self) -> None:
        """Add values whenever filling is allowed, until the pool is closed."""
        self._may_fill.wait()
        while not self._closed:
            if len(self._stock) < self._limit:
                self._stock.extend(self._key.randomness(1))
            else:
                self._may_fill.clear()
                if self._closed:  # closing may have set the event just before it was cleared
                    return
            self._may_fill.wait()
