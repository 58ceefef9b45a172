"""Waits for the ends of many processes in one thread, without asking again and again."""

import logging
import os
import selectors
import threading
from collections.abc import Callable

from engines.process.tracking import collect

log = logging.getLogger(__name__)


class Exits:
    """Calls ``ended(name)`` once for each process added, after it ended."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._ended = ended
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._names: set[str] = set()
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, name: str, descriptor: int) -> None:
        """Wait for the process behind the descriptor, which belongs to this object from now on."""
        with self._lock:
            if self._closed or name in self._names:
                os.close(descriptor)
                return
            self._names.add(name)
            self._selector.register(descriptor, selectors.EVENT_READ, name)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="engine-exits", daemon=True)
                self._thread.start()

    def knows(self, name: str) -> bool:
        """Tell whether a process was added and has not been told of yet."""
        with self._lock:
            return name in self._names

    def close(self) -> None:
        """Wait for no process any more."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
        os.write(self._wake, b"x")
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._lock:
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
            os.close(self._wake)

    def _run(self) -> None:
        while True:
            ready = self._selector.select()
            if self._closed:
                return
            for key, _ in ready:
                with self._lock:
                    self._selector.unregister(key.fd)
                    self._names.discard(key.data)
                collect(key.fd)
                os.close(key.fd)
                try:
                    self._ended(key.data)
                except Exception:
                    log.exception("the end of %s could not be recorded", key.data)
