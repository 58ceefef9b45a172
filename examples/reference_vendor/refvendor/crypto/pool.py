"""Prepares the randomness of ciphertexts while the party would only wait for its peer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from gmpy2 import mpz  # type: ignore[import-untyped]

from refvendor.crypto.paillier import PublicKey


class RandomnessPool:
    """A stock of randomness for one key, filled by a thread inside ``with pool.filling():`` only.

    Outside of it the thread sleeps: it would take the interpreter from the party's own work.
    """

    def __init__(self, key: PublicKey, limit: int) -> None:
        self._key = key
        self._limit = limit
        self._stock: deque[mpz] = deque()
        self._wanted = threading.Event()
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
        self._wanted.set()
        self._thread.join()

    def __len__(self) -> int:
        return len(self._stock)

    def take(self, count: int) -> list[mpz]:
        """``count`` values that nobody gets again: from the stock, the rest made on the spot."""
        taken: list[mpz] = []
        while len(taken) < count:
            try:
                taken.append(self._stock.popleft())
            except IndexError:
                return taken + self._key.randomness(count - len(taken))
        return taken

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Let the thread work for as long as the block runs, at most until the stock is full."""
        self._wanted.set()
        try:
            yield
        finally:
            if not self._closed:
                self._wanted.clear()

    def _fill(self) -> None:
        self._wanted.wait()
        while not self._closed:
            if len(self._stock) < self._limit:
                self._stock.extend(self._key.randomness(1))
            else:
                self._wanted.clear()
                if self._closed:  # closing may have woken this thread just before the clear
                    return
            self._wanted.wait()
