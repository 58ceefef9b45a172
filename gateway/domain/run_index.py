"""Positions of a job's runs, which the executor asks for at each step.

They are not computed from all runs at each step: the index of a job's next version is that of the
version before, changed by the run that has changed. Otherwise the cost of a step would grow with
the number of runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.domain.run import Run


@dataclass(frozen=True)
class RunIndex:
    """Positions of the runs of one version of a job's record."""

    by_id: Mapping[str, int]  # id of a run -> its position
    by_task: Mapping[str, tuple[int, ...]]  # id of a task's attempt -> positions of its runs
    open: tuple[int, ...]  # of the runs that still need steps of the executor, in order
    first_created_at: datetime | None = None  # when the oldest run was created; None: no run

    def after_change(self, position: int, run: "Run") -> "RunIndex":
        """Return the index after a change of the run at a position, which keeps its ids."""
        if run.done_with is (position not in self.open):
            return self
        if run.done_with:
            open_positions = tuple(other for other in self.open if other != position)
        else:
            open_positions = tuple(sorted((*self.open, position)))
        return replace(self, open=open_positions)

    def extended(self, runs: Sequence["Run"]) -> "RunIndex":
        """Return the index after further runs, which come behind the others."""
        by_id = dict(self.by_id)
        by_task = dict(self.by_task)
        open_positions = list(self.open)
        first_created_at = self.first_created_at
        for position, run in enumerate(runs, start=len(by_id)):
            by_id[run.run_id] = position
            by_task[run.task_id] = (*by_task.get(run.task_id, ()), position)
            if not run.done_with:
                open_positions.append(position)
            if first_created_at is None or run.created_at < first_created_at:
                first_created_at = run.created_at
        return RunIndex(by_id, by_task, tuple(open_positions), first_created_at)


EMPTY_INDEX = RunIndex(by_id={}, by_task={}, open=())
