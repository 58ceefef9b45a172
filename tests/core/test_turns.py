"""Changes that come at once are made in one write, each once, and one that fails fails alone."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.runtime.loop import Turns

Record = tuple[str, ...]


class Shelf:
    """Holds one record and counts the writes; a write waits until it may go on."""

    def __init__(self) -> None:
        self.record: Record = ()
        self.writes = 0
        self.writing, self.go = threading.Event(), threading.Event()
        self.decided: list[int] = []

    def store(self, key: str, change: Callable[[Record], tuple[Record, int]]) -> tuple[Record, int]:
        change(self.record)  # as after a lost race: what it returns is thrown away
        self.writing.set()
        assert self.go.wait(30)
        self.record, decided = change(self.record)
        self.writes += 1
        return self.record, decided

    def turns(self) -> Turns[Record, int]:
        return Turns(self.store, lambda record: (record, len(record)), lambda _, n: self.decided.append(n))


def add(word: str) -> Callable[[Record], Record]:
    return lambda record: (*record, word)


def test_what_comes_while_another_writes_is_written_together():
    shelf = Shelf()
    turns = shelf.turns()
    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(turns.change, "job", add("first"))
        assert shelf.writing.wait(30)
        rest = [pool.submit(turns.change, "job", add(str(i))) for i in range(10)]
        while len(turns._queues["job"].entries) < 10:
            pass
        shelf.go.set()
        assert first.result(30) == ("first",)
        assert {result.result(30) for result in rest} == {shelf.record}
    assert shelf.writes == 2 and shelf.decided == [1, 11]
    assert sorted(shelf.record) == sorted(["first", *map(str, range(10))])
    assert not turns._queues


def test_a_change_that_raises_is_left_out_and_told_to_whoever_asked():
    shelf = Shelf()
    turns = shelf.turns()

    def broken(record: Record) -> Record:
        raise ValueError("not so")

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(turns.change, "job", add("first"))
        assert shelf.writing.wait(30)
        bad, good = pool.submit(turns.change, "job", broken), pool.submit(turns.change, "job", add("good"))
        while len(turns._queues["job"].entries) < 2:
            pass
        shelf.go.set()
        assert first.result(30) and good.result(30) == ("first", "good")
        with pytest.raises(ValueError, match="not so"):
            bad.result(30)
