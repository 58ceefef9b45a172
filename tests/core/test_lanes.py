"""Lanes are fair between jobs, and whoever hangs hangs alone."""

import threading
from functools import partial

from gateway.runtime.loop import Lanes


def test_a_job_with_much_to_do_delays_another_by_one_call():
    lanes, begun, go, done = Lanes(threads=1), threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        begun.set()
        go.wait(30)

    lanes.submit("peer", first, "large")
    assert begun.wait(30)
    for i in range(100):
        lanes.submit("peer", partial(order.append, f"large {i}"), "large")
    lanes.submit("peer", partial(order.append, "small 0"), "small")
    lanes.submit("peer", partial(order.append, "small 1"), "small")
    lanes.submit("peer", done.set, "large")
    go.set()
    assert done.wait(30)
    lanes.close()
    assert order.index("small 0") <= 1 and order.index("small 1") <= 3
    assert [name for name in order if name.startswith("large")] == [f"large {i}" for i in range(100)]


def test_a_lane_that_hangs_delays_no_other():
    lanes, go, done = Lanes(threads=2), threading.Event(), threading.Event()
    for _ in range(4):
        lanes.submit("hung", partial(go.wait, 30), "job")
    lanes.submit("well", done.set, "job")
    assert done.wait(30)
    go.set()
    lanes.close()


def test_work_that_raises_ends_no_lane():
    lanes, done = Lanes(threads=1), threading.Event()

    def broken() -> None:
        raise RuntimeError

    lanes.submit("peer", broken)
    lanes.submit("peer", done.set)
    assert done.wait(30)
    lanes.close()
    lanes.submit("peer", broken)  # nobody does it any more


def test_no_job_holds_more_than_half_of_a_lane():
    lanes, go, other = Lanes(threads=4), threading.Event(), threading.Event()
    lock, running, most = threading.Lock(), 0, 0
    over = [threading.Event() for _ in range(6)]

    def hang(event: threading.Event) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(30)
        with lock:
            running -= 1
        event.set()

    for event in over:
        lanes.submit("peer", partial(hang, event), "large")
    lanes.submit("peer", other.set, "small")
    assert other.wait(30)
    go.set()
    assert all(event.wait(30) for event in over)
    lanes.close()
    assert most == 2
