"""What runs report about themselves, as numbers and as tables for plots, and warnings about their outputs.

The standard names neither the form of a report nor its content. Read are JSON and CSV; whatever numbers and tables
are in them is found by its shape, so a vendor need not know of this.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gateway.data.storage import LARGEST_JSON, METADATA, Storage, number_of
from gateway.domain.dag import group
from gateway.domain.run import Address, Run
from gateway.domain.spec import JobSpec
from gateway.errors import GatewayError, shorten

MOST_POINTS_READ = 10_000
MOST_CELLS = 500_000
"""cells of all tables of a report together"""
MOST_VALUES = 1_000
MOST_SERIES = 100
DEEPEST = 20
MOST_WARNINGS = 20
LONGEST_WARNING = 300

Scalar = float | str | bool | None


@dataclass(frozen=True)
class Series:
    """A table of a report: its name is the path to it, empty for the report as a whole."""

    name: str
    columns: tuple[str, ...]
    points: tuple[tuple[Scalar, ...], ...]
    left_out: int = 0
    """points beyond `MOST_POINTS` or `MOST_CELLS`"""


@dataclass(frozen=True)
class Report:
    """A report as it can be shown; ``problem`` says why nothing of it can, empty otherwise."""

    format: str = ""
    """json or csv"""
    values: Mapping[str, Scalar] = field(default_factory=dict)
    """single values by their path, such as ``local_baseline.auc``"""
    series: tuple[Series, ...] = ()
    problem: str = ""


def read_report(storage: Storage, address: Address) -> Report:
    """Read a report, whatever is in it."""
    try:
        size = sum(part.size for part in storage.partitions(address))
    except (GatewayError, OSError) as error:
        return Report(problem=f"cannot be read: {error}")
    if size > LARGEST_JSON:
        return Report(problem=f"has {size} bytes; reports are read up to {LARGEST_JSON}")
    try:
        value = storage.read_json(address, LARGEST_JSON)
    except GatewayError:
        return _csv(storage, address)
    values: dict[str, Scalar] = {}
    series: list[Series] = []
    _gather(value, "", values, series, 0)
    return Report("json", values, tuple(series))


def _csv(storage: Storage, address: Address) -> Report:
    try:
        columns = storage.columns(address)
        points: list[tuple[Scalar, ...]] = []
        left_out = 0
        for row in storage.iter_rows(address):
            if len(row) != len(columns):
                return Report(problem="is neither JSON nor CSV with rows of one length")
            if len(points) < min(MOST_POINTS_READ, MOST_CELLS // len(columns)):
                points.append(tuple(map(_cell, row)))
            else:
                left_out += 1
    except (GatewayError, csv.Error, OSError):
        return Report(problem="is neither JSON nor CSV")
    if len(columns) < 2:
        return Report(problem="is neither JSON nor CSV of two columns or more")
    return Report("csv", {}, (Series("", tuple(columns), tuple(points), left_out),))


def _gather(
    value: Any,
    name: str,
    values: dict[str, Scalar],
    series: list[Series],
    depth: int,
) -> None:
    """Collect the single values and the tables below a value."""
    if isinstance(value, dict) and depth < DEEPEST:
        for key, inner in value.items():
            path = f"{name}.{shorten(key, 1000)}" if name else shorten(key, 1000)
            _gather(inner, path, values, series, depth + 1)
    elif isinstance(value, list):
        room = MOST_CELLS - sum(len(s.points) * len(s.columns) for s in series)
        if len(series) < MOST_SERIES and (found := _table(value, name, room)):
            series.append(found)
        elif len(values) < MOST_VALUES:
            nested = any(isinstance(entry, dict | list) for entry in value)
            values[name or "value"] = _scalar(value if nested else ", ".join(map(str, value)))
    elif len(values) < MOST_VALUES and not isinstance(value, dict):
        values[name or "value"] = _scalar(value)


def _table(
    entries: Sequence[Any],
    name: str,
    room: int,
) -> Series | None:
    """Read up to ``room`` cells of a list of objects, of equally long lists, or of numbers; None for others."""
    shown = entries[:MOST_POINTS_READ]
    columns: tuple[str, ...]
    rows: Iterator[Sequence[Any]]
    if not entries:
        return None
    if all(isinstance(e, dict) for e in entries):
        keys = tuple(dict.fromkeys(key for e in shown for key in e))
        rows = ([e.get(key) for key in keys] for e in shown)
        columns = tuple(shorten(key, 1000) for key in keys)
    elif all(isinstance(e, list) and len(e) == len(entries[0]) for e in entries):
        columns = tuple(str(n) for n in range(len(entries[0])))
        rows = iter(shown)
    elif all(_is_number(e) for e in entries):
        columns = ("index", "value")
        rows = ((i, e) for i, e in enumerate(shown))
    else:
        return None
    most = min(len(shown), room // max(1, len(columns)))
    points = tuple(tuple(map(_scalar, row)) for row in islice(rows, most))
    if not any(_is_number(cell) for point in points for cell in point):
        return None
    return Series(name, columns, points, len(entries) - most)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _scalar(value: Any) -> Scalar:
    """Return a value that every reader of JSON takes; what is nested is named, not shown."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, str):
        return shorten(value, 1000)
    return f"({len(value)} entries)"


def _cell(text: str) -> Scalar:
    try:
        number = float(text)
    except ValueError:
        return shorten(text, 1000)
    return number if math.isfinite(number) else text


def output_warnings(
    storage: Storage,
    spec: JobSpec,
    run: Run,
) -> tuple[str, ...]:
    """Return warnings about the outputs of a run that has succeeded: missing, malformed, or not declared."""
    found: list[str] = []
    try:
        for warning in _warnings(storage, spec, run):
            if len(found) == MOST_WARNINGS:
                found.append("and more")
                break
            found.append(shorten(warning, LONGEST_WARNING))
    except (GatewayError, OSError) as error:
        found.append(shorten(f"the outputs cannot be checked: {error}", LONGEST_WARNING))
    return tuple(found)


def _warnings(
    storage: Storage,
    spec: JobSpec,
    run: Run,
) -> Iterator[str]:
    node = spec.dag.get(run.task_name)
    types = {output.key: output.type for output in node.outputs} if node else {}
    for key, name in run.output_keys.items():
        address = run.outputs[name]
        if not storage.exists(address):
            yield f"output {key} was not written"
        elif group(types.get(key, "")) == "metric" and (
            problem := read_report(storage, address).problem
        ):
            yield f"report {key} {problem}"
        if problem := _metadata_problem(storage, address):
            yield f"metadata of output {key}: {problem}"
        for extra in sorted(storage.files(address)):
            if extra[0] != "." and extra != METADATA and number_of(extra) is None:
                yield f"output {key} holds {extra!r}, which is not part of it"
    declared = {address.name for address in run.outputs.values()}
    for namespace, at in {(address.namespace, address.storage) for address in run.outputs.values()}:
        for entry in storage.names(namespace, at):
            if entry.startswith(f"{run.task_id}-") and entry not in declared:
                yield f"undeclared output {entry.removeprefix(f'{run.task_id}-')!r}"


def _metadata_problem(storage: Storage, address: Address) -> str:
    """Say why the metadata that a task wrote cannot be read; empty where it can, or where there is none."""
    try:
        storage.metadata(address)
    except GatewayError as error:
        return error.message
    return ""
