"""The makespan over FATE's partner protocol beside the standard's, in one run."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from tests.e2e.nodes import Node

Pair = Callable[[bool], AbstractContextManager[tuple[Node, Node]]]
"""Two nodes; whether they speak FATE's protocol to each other."""


def rows(
    pair: Pair, run: Callable[[Node, Any], float], chain: Callable[[int], Any], rounds: int
) -> Iterator[list[Any]]:
    """Yield a row for each length of a chain of tasks."""
    found: dict[bool, dict[int, float]] = {}
    for by_fate in (False, True):
        with pair(by_fate) as (node, _):
            run(node, chain(1))  # warm: image known, network there
            found[by_fate] = {
                tasks: statistics.median(run(node, chain(tasks)) for _ in range(rounds)) for tasks in (1, 3, 10)
            }
    for tasks, standard in found[False].items():
        fate = found[True][tasks]
        yield [tasks, f"{standard:.2f} s", f"{fate:.2f} s", f"{fate / standard:.2f}"]
