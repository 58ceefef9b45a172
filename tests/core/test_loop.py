"""The loop wakes at once, whatever its threads are doing."""

import threading
import time
from datetime import UTC, datetime, timedelta

from gateway.runtime.loop import Loop

EVERY = 300.0
"""seconds between two ticks, which would repair a lost wake: far away for as long as any test here waits"""
LONG = 60.0


def advanced(release: threading.Event | None = None) -> tuple[Loop, dict[str, threading.Event]]:
    """Start a loop that notes what it advances; ``slow`` takes until it is released."""
    seen: dict[str, threading.Event] = {}

    def advance(key: str) -> None:
        seen.setdefault(key, threading.Event()).set()
        if release is not None and key == "slow":
            release.wait(LONG)

    loop = Loop("test", advance, lambda now: (), every=EVERY, workers=2)
    loop.start()
    return loop, seen


def test_no_wake_is_swallowed_by_a_thread_that_waits_for_something_else():
    loop, seen = advanced()
    try:
        for i in range(60):
            key = f"k{i}"
            seen[key] = threading.Event()
            loop.wake(key)
            assert seen[key].wait(LONG), f"wake {i} was lost"
            time.sleep(0.002)
    finally:
        loop.stop()


def test_a_busy_worker_leaves_what_is_due_next_to_another():
    release = threading.Event()
    loop, seen = advanced(release)
    seen |= {"slow": threading.Event(), "next": threading.Event()}
    try:
        soon = datetime.now(UTC) + timedelta(seconds=0.2)
        loop.wake("slow", soon)
        loop.wake("next", soon + timedelta(seconds=0.2))
        assert seen["slow"].wait(LONG)
        assert seen["next"].wait(LONG / 2), "it waited for the one that is at work"
    finally:
        release.set()
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

    loop = Loop("test", advance, lambda now: (), every=EVERY, workers=4)
    loop.start()
    try:
        loop.wake("one")
        assert done.wait(LONG)
        assert most == 1
    finally:
        loop.stop()
