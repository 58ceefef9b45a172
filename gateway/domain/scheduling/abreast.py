"""How many tasks of one job are under way at once.

A job of a thousand independent tasks would otherwise fill every lane and engine, and its record would be
written for all of them at once. Tasks begin in the order of the flow, at all their nodes together, so that no
two nodes hold different halves of what waits for each other.
"""

from collections.abc import Iterable, Iterator

from gateway.domain.job import Job, Task
from gateway.domain.states import TASK, ended


def within(job: Job, ready: Iterable[str], most: int) -> Iterator[str]:
    """Yield of the tasks that may run those under way, and as many more as there is room for."""
    names = list(ready)
    room = most - sum(map(_under_way, map(job.tasks.__getitem__, names)))
    for name in names:
        task = job.tasks[name]
        if task.ending is None and not task.begun:
            room -= 1
            if room < 0:
                continue
        yield name


def _under_way(task: Task) -> bool:
    return task.begun and not ended(TASK, task.status)
