"""Work in several threads, for tests of races."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_parallel(
    count: int,
    work: Callable[[int], Any],
) -> list[Any]:
    """Call ``work(0)``, ``work(1)`` … in as many threads, which start together; return the results.

    The results are in the order of the arguments.
    """
    gate = threading.Barrier(count)

    def work_with_all(number: int) -> Any:
        gate.wait(60)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work_with_all, range(count)))
