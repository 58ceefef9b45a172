"""Groups of a job's tasks, which the scheduler asks for at each step.

A group is not computed from all tasks at each step: the index of a job's next version is that of
the version before, changed by the task that has changed. Otherwise the cost of a step would grow
with the number of tasks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gateway.domain.dag import Dag, ready
from gateway.domain.states import TASK, TaskStatus, ended

if TYPE_CHECKING:
    from gateway.domain.job import Task


@dataclass(frozen=True)
class TaskIndex:
    """Names of the tasks of one version of a job, in groups."""

    by_id: Mapping[str, str]  # id of a task's present attempt -> the task's name
    # With complete inputs, and not begun at any node nor stopped; in the order of the flow.
    startable: tuple[str, ...]
    # All others with complete inputs that have not succeeded; in the order of the flow.
    begun: tuple[str, ...]
    unsettled: frozenset[str]  # with news that the status of the task does not show yet
    attempted: frozenset[str]  # not ended, with an attempt that has started or failed

    @property
    def open_names(self) -> tuple[str, ...]:
        """The tasks with complete inputs that have not succeeded."""
        return (*self.begun, *self.startable)

    def after(
        self,
        dag: Dag,
        tasks: Mapping[str, "Task"],
        before: "Task",
    ) -> "TaskIndex":
        """Return the index after a change of one task.

        ``tasks`` are all tasks after the change, ``before`` is the changed task as it was.
        """
        task = tasks[before.name]
        name = task.name
        by_id = self.by_id
        if task.task_id != before.task_id:
            by_id = _ids(tasks.values())
        index = replace(
            self,
            by_id=by_id,
            unsettled=_with_name(self.unsettled, name, is_in=not task.is_up_to_date),
            attempted=_with_name(self.attempted, name, is_in=_is_attempted(task)),
        )
        if task.status is TaskStatus.SUCCESS and before.status is not TaskStatus.SUCCESS:
            return index._after_success(dag, tasks, name)
        if _is_new(task) == _is_new(before):
            return index
        return index._regrouped(dag, tasks, index.open_names)

    def _after_success(
        self,
        dag: Dag,
        tasks: Mapping[str, "Task"],
        name: str,
    ) -> "TaskIndex":
        """Return the index after the success of a task, which may complete inputs of others."""
        names = [other for other in self.open_names if other != name]
        for dependent in dag.dependents.get(name, ()):
            is_open = dependent in tasks and tasks[dependent].status is not TaskStatus.SUCCESS
            if is_open and _has_inputs(dag, tasks, dependent):
                names.append(dependent)
        if len(names) < len(self.open_names):
            return replace(
                self,
                startable=tuple(other for other in self.startable if other != name),
                begun=tuple(other for other in self.begun if other != name),
            )
        return self._regrouped(dag, tasks, names)

    def _regrouped(
        self,
        dag: Dag,
        tasks: Mapping[str, "Task"],
        names: Iterable[str],
    ) -> "TaskIndex":
        """Return the index with these tasks in the groups of tasks with complete inputs."""
        ordered = sorted(names, key=dag.positions.__getitem__)
        startable = tuple(name for name in ordered if _is_new(tasks[name]))
        begun = tuple(name for name in ordered if not _is_new(tasks[name]))
        return replace(
            self,
            startable=startable,
            begun=begun,
        )


def index_of(dag: Dag, tasks: Mapping[str, "Task"]) -> TaskIndex:
    """Return the index of a job's tasks."""
    succeeded = {task.name for task in tasks.values() if task.status is TaskStatus.SUCCESS}
    index = TaskIndex(
        by_id=_ids(tasks.values()),
        startable=(),
        begun=(),
        unsettled=frozenset(task.name for task in tasks.values() if not task.is_up_to_date),
        attempted=frozenset(task.name for task in tasks.values() if _is_attempted(task)),
    )
    return index._regrouped(dag, tasks, ready(dag, succeeded, started=succeeded))


def _ids(tasks: Iterable["Task"]) -> dict[str, str]:
    """Return the tasks' names by the ids of their present attempts."""
    return {task.task_id: task.name for task in tasks}


def _is_new(task: "Task") -> bool:
    """Return whether no node was asked to start a task, and it is not to be stopped."""
    return task.ending is None and not task.begun


def _is_attempted(task: "Task") -> bool:
    """Return whether a task is not over, and its attempt has started or failed."""
    if task.ending is not None or ended(TASK, task.status):
        return False
    return task.started_at is not None or task.failed_at is not None


def _has_inputs(
    dag: Dag,
    tasks: Mapping[str, "Task"],
    name: str,
) -> bool:
    """Return whether all tasks whose outputs a task takes have succeeded."""
    for upstream in dag[name].upstream:
        if upstream not in tasks or tasks[upstream].status is not TaskStatus.SUCCESS:
            return False
    return True


def _with_name(
    names: frozenset[str],
    name: str,
    *,
    is_in: bool,
) -> frozenset[str]:
    """Return the names with one of them added or removed; the same object if nothing changes."""
    if is_in == (name in names):
        return names
    if is_in:
        return names | {name}
    return names - {name}
