"""The files that a run left in its storage, and the faults in their formats."""

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from engines.files import is_folder, walk
from gateway.data.file_storage import FileStorage
from gateway.domain.run import Address
from gateway.errors import GatewayError, counted
from provider_registry.model import DataSpec

BEGINNING_SIZE = 2000  # bytes at the beginning of an output, which a report quotes
MAX_CHECKED_SIZE = 64 << 20  # bytes; the format of a larger output is not checked


def files_in(folder: Path) -> tuple[str, ...]:
    """Return the relative paths of the files below a folder, sorted; none if it does not exist."""
    paths = [os.path.relpath(entry.path, folder) for entry in walk(folder) if entry.is_file()]
    return tuple(sorted(paths))


def stored_files(storage: FileStorage) -> frozenset[Path]:
    """Return the absolute path of every entry of a storage that is not a folder."""
    return frozenset(Path(entry.path) for entry in walk(storage.root) if not is_folder(entry))


def strays(
    storage: FileStorage,
    files_before: Set[Path],
    addresses: Iterable[Address],
) -> tuple[str, ...]:
    """Return the new files of a storage outside of some addresses, by their relative paths."""
    allowed = {storage.path(address) for address in addresses}
    paths = []
    for path in stored_files(storage) - files_before:
        if allowed.isdisjoint((path, *path.parents)):
            paths.append(str(path.relative_to(storage.root)))
    return tuple(sorted(paths))


def checksums(
    storage: FileStorage,
    addresses: Mapping[str, Address],
) -> dict[str, str | None]:
    """Return the checksums of inputs by their names; None for a missing input."""
    sums: dict[str, str | None] = {}
    for name, address in addresses.items():
        sums[name] = None
        if storage.exists(address):
            sums[name] = storage.checksum(address)
    return sums


def beginning(storage: FileStorage, address: Address) -> str:
    """Return the first part of an output as text; "" if it cannot be read.

    The part has at most `BEGINNING_SIZE` bytes. Bytes that are not UTF-8 are replaced.
    """
    try:
        first_bytes = next(iter(storage.stream(address)), b"")
    except GatewayError:
        return ""
    return first_bytes[:BEGINNING_SIZE].decode("utf-8", "replace")


def format_problem(storage: FileStorage, address: Address, described: DataSpec) -> str:
    """Return the fault of an output, as the end of a sentence about it; "" without one.

    An empty or unreadable output is a fault in any format. Beyond that, only JSON and CSV are
    checked. The expected format is the first one that the description lists.
    """
    try:
        size, _ = storage.stamp(address)
        if size == 0:
            return "is empty"
        metadata = storage.metadata(address)
        if size > MAX_CHECKED_SIZE:
            return ""
        content = b"".join(storage.stream(address))
    except GatewayError as error:
        return f"cannot be read: {error.message}"
    expected = next(iter(described.formats), "").lower()
    try:
        if expected == "json":
            json.loads(content)
        if expected == "csv":
            return _csv_problem(
                content,
                metadata,
                is_table=described.group == "data",
            )
    except (ValueError, RecursionError, csv.Error) as error:
        return f"is not valid {expected.upper()}: {error}"
    return ""


def _csv_problem(
    content: bytes,
    metadata: Mapping[str, Any],
    *,
    is_table: bool,
) -> str:
    """Return the fault of a CSV file; "" without one.

    ``is_table``: it is a dataset, for which metadata is required. Raises `ValueError` or
    `csv.Error` for invalid CSV.
    """
    starts_like_json = content.lstrip()[:1] in (b"{", b"[")
    if starts_like_json and _is_json(content):
        return "holds JSON, not CSV"
    text = io.StringIO(
        content.decode("utf-8-sig"),
        newline="",
    )
    rows = list(csv.reader(text))
    if not rows or not any(rows[0]):
        return "has no header line"
    if not is_table:
        return ""
    if not metadata:
        return "has no file metadata beside its data"
    return _table_problem(rows, metadata)


def _is_json(content: bytes) -> bool:
    """Return whether a content is a JSON object or list."""
    try:
        return isinstance(json.loads(content), dict | list)
    except (ValueError, RecursionError):
        return False


def _table_problem(
    lines: list[list[str]],
    metadata: Mapping[str, Any],
) -> str:
    """Return how a table first contradicts its header or metadata; "" if it does not.

    ``lines`` are the parsed lines of all its CSV files, one file after the other. The first line is
    the header. Empty lines and repetitions of the header are ignored: each file of a table begins
    with the header.
    """
    header = lines[0]
    rows = [line for line in lines if line not in ([], header)]
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            values = counted(len(row), "value")
            columns = counted(len(header), "column")
            return f"has {values} in row {number} below a header of {columns}"
    count = metadata.get("count")
    if isinstance(count, int) and count != len(rows):
        return f"has {counted(len(rows), 'row')}, its metadata say count {count}"
    return _columns_problem(header, metadata.get("column_info") or [])


def _columns_problem(header: list[str], info: Any) -> str:
    """Return how a header contradicts ``column_info`` of the metadata; "" if it does not.

    ``info`` must be a list with an object for each column, whose name is ``name``, or else its
    first key. An empty list says nothing about the columns.
    """
    fault = "has metadata whose column_info is not a list of columns"
    if not isinstance(info, list):
        return fault
    names = []
    for column in info:
        if not isinstance(column, dict) or not column:
            return fault
        first_key = next(iter(column))
        names.append(str(column.get("name", first_key)))
    if names in ([], header):
        return ""
    columns = ", ".join(header)
    listed = ", ".join(names)
    return f"has the columns {columns}, but its metadata's column_info says {listed}"
