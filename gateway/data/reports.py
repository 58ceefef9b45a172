"""Reports of runs as single values and as tables for plots, and warnings about a run's outputs.

The standard prescribes neither form nor content of a report. So JSON and CSV are read, and numbers
and tables are recognised by their shape: vendors need no form of this gateway's own.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from gateway.data.storage import LARGEST_JSON, METADATA, Storage, number_of
from gateway.domain.dag import group as artefact_group
from gateway.domain.run import Address, Run
from gateway.domain.spec import JobSpec
from gateway.errors import GatewayError, shorten

MOST_POINTS_READ = 10_000  # rows of one table
MOST_CELLS = 500_000  # of all tables of a report
MOST_VALUES = 1_000  # single values of a report
MOST_SERIES = 100  # tables of a report
DEEPEST = 20  # levels of nested objects
MOST_WARNINGS = 20
LONGEST_WARNING = 300  # characters
_LONGEST_TEXT = 1000  # characters of a value, a column's name or a part of a path
_LARGEST_EXACT = 2**53  # integers from here on are not exact in every reader of JSON

Scalar = float | str | bool | None


@dataclass(frozen=True)
class Series:
    """A table of a report."""

    name: str  # its path; empty for the report as a whole
    columns: tuple[str, ...]
    points: tuple[tuple[Scalar, ...], ...]  # its rows, which are points of a plot
    left_out: int = 0  # number of points beyond `MOST_POINTS_READ` or `MOST_CELLS`


@dataclass(frozen=True)
class Report:
    """The readable content of a report."""

    format: str = ""  # json or csv
    values: Mapping[str, Scalar] = field(default_factory=dict)  # by path, as in ``baseline.auc``
    series: tuple[Series, ...] = ()
    problem: str = ""  # why it has no readable content; "" if it has


# ---------------------------------------------------------------- reports


def read_report(storage: Storage, address: Address) -> Report:
    """Read a report as JSON or, if it is not JSON, as CSV.

    A report that cannot be read, or is larger than `LARGEST_JSON` bytes, gives an empty result with
    a ``problem``.
    """
    try:
        size = sum(part.size for part in storage.partitions(address))
    except (GatewayError, OSError) as error:
        return Report(problem=f"cannot be read: {error}")
    if size > LARGEST_JSON:
        return Report(problem=f"has {size} bytes; reports are read up to {LARGEST_JSON}")
    try:
        content = storage.read_json(address, LARGEST_JSON)
    except GatewayError:
        return _read_csv(storage, address)
    collector = _Collector()
    collector.collect(content, "")
    return Report("json", collector.values, tuple(collector.series))


def _read_csv(storage: Storage, address: Address) -> Report:
    """Read a report as CSV; the report then has a single table.

    The table has at most `MOST_POINTS_READ` rows and `MOST_CELLS` cells; further rows are counted.
    A file with one column, or rows of unequal length, counts as plain text, which has no readable
    content.
    """
    points: list[tuple[Scalar, ...]] = []
    left_out = 0
    try:
        columns = storage.columns(address)
        max_points = min(MOST_POINTS_READ, MOST_CELLS // len(columns))
        for row in storage.iter_rows(address):
            if len(row) != len(columns):
                return Report(problem="is neither JSON nor CSV with rows of one length")
            if len(points) < max_points:
                points.append(tuple(map(_parse_cell, row)))
            else:
                left_out += 1
    except (GatewayError, csv.Error, OSError):
        return Report(problem="is neither JSON nor CSV")
    if len(columns) < 2:
        return Report(problem="is neither JSON nor CSV of two columns or more")
    series = Series("", tuple(columns), tuple(points), left_out)
    return Report("csv", series=(series,))


class _Collector:
    """Collects the single values and the tables of a JSON report.

    Paths are keys with dots between them; the path of the report as a whole is "".
    """

    def __init__(self) -> None:
        self.values: dict[str, Scalar] = {}
        self.series: list[Series] = []

    def collect(
        self,
        value: Any,
        path: str,
        depth: int = 0,
    ) -> None:
        """Collect from a value and everything below it.

        - ``path``: the value's path in the report
        - ``depth``: the number of objects around it; an object with `DEEPEST` around is left out
        """
        if isinstance(value, list):
            self._collect_list(value, path)
        elif not isinstance(value, dict):
            self._add_value(path, value)
        elif depth < DEEPEST:
            self._collect_object(value, path, depth)

    def _collect_object(
        self,
        content: dict[str, Any],
        path: str,
        depth: int,
    ) -> None:
        """Collect from each value of an object.

        - ``path``: the object's own path
        - ``depth``: the number of objects around it
        """
        for key, value in content.items():
            inner_path = shorten(key, _LONGEST_TEXT)
            if path:
                inner_path = f"{path}.{inner_path}"
            self.collect(value, inner_path, depth + 1)

    def _collect_list(
        self,
        entries: list[Any],
        path: str,
    ) -> None:
        """Add a list as a table or else as a single value.

        The list is a single value if it does not have the form of a table, or if there are
        `MOST_SERIES` tables already. The value is the text of the list's entries, or their number
        if some are lists or objects.
        """
        series = None
        if len(self.series) < MOST_SERIES:
            cells = sum(len(table.points) * len(table.columns) for table in self.series)
            series = _read_table(entries, path, MOST_CELLS - cells)
        if series is not None:
            self.series.append(series)
        elif any(isinstance(entry, dict | list) for entry in entries):
            self._add_value(path, entries)
        else:
            self._add_value(path, ", ".join(map(str, entries)))

    def _add_value(self, path: str, value: Any) -> None:
        """Add a single value, unless the report has `MOST_VALUES` already.

        If the report as a whole is that value, its path is "value".
        """
        if len(self.values) < MOST_VALUES:
            self.values[path or "value"] = _scalar(value)


def _read_table(
    entries: Sequence[Any],
    name: str,
    max_cells: int,
) -> Series | None:
    """Return a list of a report as a table of at most ``max_cells`` cells.

    None if the list does not have the form of a table, or has no numbers. ``name`` is the table's.
    """
    if not entries:
        return None
    first = entries[:MOST_POINTS_READ]
    table = _columns_and_rows(entries, first)
    if table is None:
        return None
    columns, rows = table
    count = min(
        len(first),
        max_cells // max(1, len(columns)),  # a table of empty objects has no columns
    )
    points = tuple(tuple(map(_scalar, row)) for row in islice(rows, count))
    if not any(map(_is_number, chain.from_iterable(points))):
        return None
    return Series(name, columns, points, len(entries) - count)


def _columns_and_rows(
    entries: Sequence[Any], first: Sequence[Any]
) -> tuple[tuple[str, ...], Iterator[Sequence[Any]]] | None:
    """Return the columns of a table, and the rows of its ``first`` entries.

    All entries must be objects, or all lists of one length, or all numbers; otherwise the result is
    None. The columns of lists are called 0, 1, … Numbers get a column with their index.
    """
    types = set(map(type, entries))  # exact types: true and false are no numbers
    if types == {dict}:
        return _columns_of_objects(first)
    if types <= {int, float}:
        return ("index", "value"), enumerate(first)
    if types == {list}:
        widths = set(map(len, entries))
        if len(widths) == 1:
            return tuple(map(str, range(widths.pop()))), iter(first)
    return None


def _columns_of_objects(
    objects: Sequence[Mapping[str, Any]],
) -> tuple[tuple[str, ...], Iterator[Sequence[Any]]]:
    """Return the keys of all objects as columns, and a row for each object.

    The columns are in the order in which the keys occur first. A key that an object lacks is None
    in its row. Keys are shortened to `_LONGEST_TEXT`.
    """
    keys = tuple(dict.fromkeys(chain.from_iterable(objects)))
    columns = tuple(shorten(key, _LONGEST_TEXT) for key in keys)
    rows = (list(map(entry.get, keys)) for entry in objects)
    return columns, rows


def _is_number(value: Any) -> bool:
    """Return whether a JSON value is a number.

    True and false are not numbers, although Python counts them as integers.
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def _scalar(value: Any) -> Scalar:
    """Return a value of a report as a single value that every reader of JSON accepts.

    Numbers that some readers cannot hold become text: infinite ones, NaN and large integers. So
    does the number of entries of a list or object.
    """
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | float():  # bool before int, because Python counts bool as int
            return value
        case int() if abs(value) >= _LARGEST_EXACT:
            return str(value)
        case int():
            return value
        case str():
            return shorten(value, _LONGEST_TEXT)
        case _:
            return f"({len(value)} entries)"


def _parse_cell(text: str) -> Scalar:
    """Return the number in a cell of CSV, or else the text.

    Infinite numbers and NaN stay text, as JSON has none.
    """
    try:
        number = float(text)
    except ValueError:
        return shorten(text, _LONGEST_TEXT)
    return number if math.isfinite(number) else text


# ---------------------------------------------------------------- warnings


def output_warnings(
    storage: Storage,
    spec: JobSpec,
    run: Run,
) -> tuple[str, ...]:
    """Return warnings about missing, malformed or undeclared outputs of a successful run.

    There are at most `MOST_WARNINGS`, followed by "and more" if some are left out. If the storage
    fails during the check, the failure is the last warning.
    """
    warnings: list[str] = []
    try:
        for warning in _find_warnings(storage, spec, run):
            if len(warnings) == MOST_WARNINGS:
                warnings.append("and more")
                break
            warnings.append(shorten(warning, LONGEST_WARNING))
    except (GatewayError, OSError) as error:
        text = f"the outputs cannot be checked: {error}"
        warnings.append(shorten(text, LONGEST_WARNING))
    return tuple(warnings)


def _find_warnings(
    storage: Storage,
    spec: JobSpec,
    run: Run,
) -> Iterator[str]:
    """Yield all warnings of `output_warnings`, first about each declared output.

    Raises `GatewayError`, `OSError`.
    """
    types: dict[str, str] = {}
    node = spec.dag.get(run.task_name)
    if node is not None:
        types = {output.key: output.type for output in node.outputs}
    for key, address in run.data.outputs_by_key().items():
        category = artefact_group(types.get(key, ""))
        yield from _warnings_of_output(storage, address, key, category)
    yield from _undeclared_outputs(storage, run)


def _warnings_of_output(
    storage: Storage,
    address: Address,
    key: str,
    category: str,
) -> Iterator[str]:
    """Yield the warnings about one output.

    - ``key``: the output's name in the flow
    - ``category``: the group of its type; an output of the group metric is a report
    """
    if not storage.exists(address):
        yield f"output {key} was not written"
    elif category == "metric":
        problem = read_report(storage, address).problem
        if problem:
            yield f"report {key} {problem}"
    try:
        storage.metadata(address)
    except GatewayError as error:
        yield f"metadata of output {key}: {error.message}"
    for name in sorted(storage.files(address)):
        if not _belongs_to_output(name):
            yield f"output {key} holds {name!r}, which is not part of it"


def _belongs_to_output(name: str) -> bool:
    """Return whether a file of this name is a partition, the metadata, or hidden."""
    return name.startswith(".") or name == METADATA or number_of(name) is not None


def _undeclared_outputs(storage: Storage, run: Run) -> Iterator[str]:
    """Yield a warning for each output that a run wrote without declaring it.

    The name of such an output begins with the task's id, and its namespace is that of a declared
    one.
    """
    prefix = f"{run.task_id}-"
    namespaces: dict[tuple[str, str], None] = {}  # each with its storage, once, in order
    declared = set()
    for address in run.data.outputs.values():
        namespaces[address.namespace, address.storage] = None
        declared.add(address.name)
    for namespace, storage_name in namespaces:
        undeclared = set(storage.names(namespace, storage_name)) - declared
        for name in sorted(undeclared):
            if name.startswith(prefix):
                yield f"undeclared output {name.removeprefix(prefix)!r}"
