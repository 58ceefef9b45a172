"""Who follows a daemon's events takes whatever comes: an event that nobody can read is not the last."""

import queue
from typing import Any

from engines.docker.watch import EventWatch


class Stream(list[dict[str, Any]]):
    def close(self) -> None:
        pass


class Daemon:
    """Says one thing that it never should, and goes on as ever."""

    def __init__(self) -> None:
        self._said = iter([[{"Actor": None}], [{"Actor": {"Attributes": {"name": "run"}}}]])

    def __call__(self) -> "Daemon":
        return self

    def info(self) -> dict[str, str]:
        return {"SystemTime": "2026-01-02T03:04:05.678Z"}

    def events(self, **_: Any) -> Stream:
        return Stream(next(self._said, []))


def test_an_event_that_cannot_be_read_does_not_end_the_watch():
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    watch = EventWatch(Daemon(), {}, list, heard.put)  # type: ignore[arg-type]  # as much of a daemon as it takes
    try:
        assert heard.get(timeout=30) == "run"
    finally:
        watch.close()
