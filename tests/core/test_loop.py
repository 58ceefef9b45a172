"""The loop wakes at once, whatever its threads are doing."""

import threading
import time
from datetime import UTC, datetime, timedelta

from gateway.loop import Loop


def advanced(loop_every: float = 30.0, workers: int = 2) -> tuple[Loop, dict[str, threading.Event]]:
    seen: dict[str, threading.Event] = {}

    def advance(key: str) -> None:
        seen.setdefault(key, threading.Event()).set()
        if key.startswith("slow"):
            time.sleep(1.5)

    loop = Loop("test", advance, lambda now: (), every=loop_every, workers=workers)
    loop.start()
    return loop, seen


def test_no_wake_is_swallowed_by_a_thread_that_waits_for_something_else():
    loop, seen = advanced()
    try:
        for i in range(60):
            key = f"k{i}"
            seen[key] = threading.Event()
            loop.wake(key)
            assert seen[key].wait(5), f"wake {i} was lost"  # the tick, which would repair it, is far away
            time.sleep(0.002)
    finally:
        loop.stop()


def test_a_busy_worker_leaves_what_is_due_next_to_another():
    loop, seen = advanced()
    seen |= {"slow": threading.Event(), "next": threading.Event()}
    try:
        soon = datetime.now(UTC) + timedelta(seconds=0.2)
        loop.wake("slow", soon)
        loop.wake("next", soon + timedelta(seconds=0.2))
        assert seen["slow"].wait(5)
        began = time.monotonic()
        assert seen["next"].wait(5)
        assert time.monotonic() - began < 1.2  # slow is still at work for 1.5 s
    finally:
        loop.stop()


def test_a_key_is_never_advanced_by_two_workers_and_a_wake_meanwhile_is_kept():
    inside, most, times = 0, 0, 0
    lock = threading.Lock()
    done = threading.Event()

    def advance(key: str) -> None:
        nonlocal inside, most, times
        with lock:
            inside += 1
            most = max(most, inside)
            times += 1
            if times == 2:
                done.set()
        if times == 1:
            loop.wake(key)
            time.sleep(0.1)
        with lock:
            inside -= 1

    loop = Loop("test", advance, lambda now: (), every=30.0, workers=4)
    loop.start()
    try:
        loop.wake("one")
        assert done.wait(5)
        assert most == 1
    finally:
        loop.stop()


def test_an_advance_that_raises_does_not_end_the_loop():
    seen = threading.Event()

    def advance(key: str) -> None:
        if key == "bad":
            raise RuntimeError
        seen.set()

    loop = Loop("test", advance, lambda now: (), every=30.0, workers=1)
    loop.start()
    try:
        loop.wake("bad")
        loop.wake("good")
        assert seen.wait(5)
    finally:
        loop.stop()
