"""Rows for the tasks or runs of a job's record.

Each task and run has a row by which it is found by its ids. Of a large record, the rows also hold
the tasks or runs themselves, as JSON in the column ``state``, in place of the record: a change then
writes only what has changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import compress
from operator import is_not
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy import bindparam

from gateway.domain.job import Job, Task
from gateway.domain.run import LocalJob, Run
from gateway.domain.states import TaskStatus
from gateway.store.database import Prepared
from gateway.store.serialization import dumps_sparse, loads

R = TypeVar("R", Job, LocalJob)

# Largest number of tasks or runs that are stored in the record itself. One statement writes all of
# them with the record, which is cheaper for few: their text takes two pages of the database.
MAX_IN_RECORD = 20
_CHARACTERS_OF_PART = 400  # of the text of a task or run, on average


@dataclass(frozen=True)
class Rows(Generic[R]):
    """The table with rows for the tasks or runs of the records."""

    table: sa.Table
    field: str  # name of the record's field with the tasks or runs
    part_class: type[Any]  # of a task or run
    # takes tasks or runs in their order; returns the value of the record's field
    collect: Callable[[Sequence[Any]], Any]
    # takes a job's id and one of its tasks or runs; yields the rows of that task or run, first the
    # one of its present attempt
    rows_of: Callable[[str, Any], Iterator[dict[str, Any]]]

    def hold_parts_of(self, value: R) -> bool:
        """Return whether the tasks or runs of a record are stored in their rows."""
        return len(getattr(value, self.field)) > MAX_IN_RECORD

    def size_of(self, value: R) -> int:
        """Return about how many characters the rows hold of a record; 0 if they hold none."""
        if not self.hold_parts_of(value):
            return 0
        return len(getattr(value, self.field)) * _CHARACTERS_OF_PART

    def load(self, texts: Sequence[str]) -> Any:
        """Return the record's field from the texts of its tasks or runs, in their order."""
        return self.collect([loads(self.part_class, text) for text in texts])

    def write(
        self,
        connection: sa.Connection,
        old: R | None,
        new: R,
        *,
        were_in_rows: bool,
    ) -> None:
        """Write the rows of the new and the changed tasks or runs; no row is deleted.

        A task or run is unchanged if both records contain the identical object at its position.
        ``were_in_rows``: the rows hold the tasks or runs of the old record.
        """
        before = self._parts(old)
        after = self._parts(new)
        are_in_rows = self.hold_parts_of(new)
        positions: Sequence[int] = range(len(after))
        if were_in_rows or not are_in_rows:
            positions = _changed_positions(before, after)
        if not positions:
            return
        old_rows = self._rows_at(new.id, before, positions)
        if were_in_rows:
            self._add_states(old_rows, before, positions, _written_before)
        new_rows = self._rows_at(new.id, after, positions)
        if are_in_rows:
            self._add_states(new_rows, after, positions, dumps_sparse)
        self._write_changes(connection, old_rows, new_rows)

    def _write_changes(
        self,
        connection: sa.Connection,
        old_rows: Sequence[Mapping[str, Any]],
        new_rows: Sequence[Mapping[str, Any]],
    ) -> None:
        """Insert the new rows, and update the old ones that differ.

        The row of an earlier attempt loses its state, which the row of the present one has.
        """
        key = self._key
        old_by_key = {row[key]: row for row in old_rows}
        added = []
        changed = []
        for row in new_rows:
            old_row = old_by_key.get(row[key])
            if old_row is None:
                added.append(row)
            elif old_row != row:
                changed.append({**row, "old_key": row[key]})
        insert, update = statements(self.table)
        if added:
            insert.run(connection, added)
        if changed:
            update.run(connection, changed)

    @property
    def _key(self) -> str:
        """The name of the key of the rows, which tasks and runs have as well."""
        return str(self.table.primary_key.columns[0].name)

    def _parts(self, value: R | None) -> list[Any]:
        """Return the tasks or runs of a record; empty without a record."""
        if value is None:
            return []
        parts = getattr(value, self.field)
        if isinstance(parts, Mapping):
            return list(parts.values())
        return list(parts)

    def _rows_at(
        self,
        job_id: str,
        parts: Sequence[Any],
        positions: Sequence[int],
    ) -> list[dict[str, Any]]:
        """Return the rows of the tasks or runs at these positions, without their states."""
        rows: list[dict[str, Any]] = []
        for position in positions:
            if position < len(parts):
                for row in self.rows_of(job_id, parts[position]):
                    rows.append({**row, "state": None, "position": None})
        return rows

    def _add_states(
        self,
        rows: Sequence[dict[str, Any]],
        parts: Sequence[Any],
        positions: Sequence[int],
        text_of: Callable[[Any], str],
    ) -> None:
        """Add the texts and positions of tasks or runs to the rows of their present attempts."""
        rows_by_key = {row[self._key]: row for row in rows}
        for position in positions:
            if position < len(parts):
                part = parts[position]
                row = rows_by_key[getattr(part, self._key)]
                row["state"] = text_of(part)
                row["position"] = position


def _written_before(_: Any) -> str:
    """Return a text that differs from any state, in place of the one that a row has."""
    return ""


def _changed_positions(before: Sequence[Any], after: Sequence[Any]) -> list[int]:
    """Return the positions at which two lists do not have the identical object."""
    common = range(min(len(before), len(after)))
    changed = compress(common, map(is_not, before, after))
    return [*changed, *range(len(common), len(after))]


@cache
def statements(table: sa.Table) -> tuple[Prepared, Prepared]:
    """Return the statement that inserts a row, and the one that updates the row of ``old_key``."""
    names = table.c.keys()
    update = table.update().where(table.primary_key.columns[0] == bindparam("old_key"))
    return Prepared(table.insert(), names), Prepared(update, names)


def tasks_by_name(tasks: Sequence[Task]) -> dict[str, Task]:
    """Return tasks by their names."""
    return {task.name: task for task in tasks}


def task_rows(
    job_id: str,
    task: Task,
) -> Iterator[dict[str, Any]]:
    """Yield the row of a task and the rows of its earlier attempts, which had other ids."""
    common = {
        "job_id": job_id,
        "name": task.name,
    }
    yield {
        "task_id": task.task_id,
        "status": str(task.status),
        "attempt": task.attempt,
        **common,
    }
    for past in task.attempts:
        yield {
            "task_id": past.task_id,
            "status": str(TaskStatus.FAILED),
            "attempt": past.number,
            **common,
        }


def run_rows(
    job_id: str,
    run: Run,
) -> Iterator[dict[str, Any]]:
    """Yield the row of a run, to find it by its id, name, token or task."""
    yield {
        "run_id": run.run_id,
        "name": run.name,
        "token": run.token,
        "job_id": job_id,
        "task_id": run.task_id,
        "role": run.party.role,
        "idx": run.party.index,
        "attempt": run.attempt,
        "status": str(run.status),
        "owner": run.owner,
    }
