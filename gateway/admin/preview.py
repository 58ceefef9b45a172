"""The beginning of an output, within a bound: a table's first rows, a report's value."""

import codecs
import csv
import io
import json
import math
from dataclasses import dataclass, field
from typing import Any

from gateway.data.storage import FileStorage
from gateway.domain.run import Address

MOST_ROWS = 100
MOST_BYTES = 1024 * 1024
"""how much of an output is read for a preview"""
DEEPEST = 100


@dataclass(frozen=True)
class Preview:
    """What can be shown; ``left_out`` says in words what is not, empty when everything is."""

    kind: str
    """table, json, or bytes: neither of them"""
    size: int
    """bytes of all parts together"""
    partitions: int
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    value: Any = None
    left_out: str = ""


def preview(storage: FileStorage, address: Address, most: int, *, table: bool) -> Preview:
    """Look at the beginning of an output. ``table``: the flow calls it data, so it is CSV rather than JSON.

    Raises `NotFound`.
    """
    parts = len(storage.partitions(address))
    heads, size, room = [], 0, MOST_BYTES
    for number in range(parts):
        with storage.open_partition(address, number) as file:
            head = file.read(room)
            room -= len(head)
            length = file.seek(0, io.SEEK_END)
        size += length
        heads.append((head, len(head) == length))
    if not table and (shown := _json(heads, size, parts)):
        return shown
    if shown := _table(heads, size, parts, most, least=1 if table else 2):
        return shown
    return (_json(heads, size, parts) if table else None) or Preview(
        "bytes", size, parts, left_out=f"all {size} bytes: neither CSV in UTF-8 nor JSON; the download has them"
    )


def showable(value: Any, depth: int = 0) -> Any:
    """Return a JSON value that every reader takes: without NaN, broken Unicode and bottomless nesting."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if not isinstance(value, (dict, list)):
        return value
    if depth == DEEPEST:
        return "(nested more deeply than is shown)"
    if isinstance(value, list):
        return [showable(v, depth + 1) for v in value]
    return {showable(k): showable(v, depth + 1) for k, v in value.items()}


def _json(heads: list[tuple[bytes, bool]], size: int, parts: int) -> Preview | None:
    """Return the value of a JSON file; only its kind where it is large. None for what is no JSON."""
    head, whole = heads[0]
    if not whole:
        text = f"all: {size} bytes are more than the {MOST_BYTES} of a preview; the download has them"
        return Preview("json", size, parts, left_out=text) if head.lstrip()[:1] in (b"{", b"[") else None
    try:
        value = json.loads(head)
    except (ValueError, RecursionError):
        return None
    left_out = "" if parts == 1 else f"all but the first of {parts} parts"
    return Preview("json", size, parts, value=showable(value), left_out=left_out)


def _table(heads: list[tuple[bytes, bool]], size: int, parts: int, most: int, least: int) -> Preview | None:
    """Return the first rows of a CSV table of at least so many columns; None for what is none."""
    columns: list[str] = []
    rows: list[list[str]] = []
    whole = True
    for head, complete in heads:
        found, whole = _records(head, complete, most + 2 - len(rows))
        if found is None or (not columns and (not found or len(found[0]) < least)):
            return None
        columns = columns or found[0]
        rows += found[1:] if found[:1] == [columns] else found
        if not whole or len(rows) > most:
            break
    left_out = ""
    if len(rows) > most:
        left_out = f"the rows after the first {most}"
    elif not whole:
        left_out = f"what comes after the first {MOST_BYTES} bytes of {size}"
    return Preview("table", size, parts, columns, rows[:most], left_out=left_out)


def _records(head: bytes, complete: bool, most: int) -> tuple[list[list[str]] | None, bool]:
    """Return the first records, and whether none is missing; None for what is no CSV in UTF-8."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head, final=complete)
    except UnicodeDecodeError:
        return None, False
    found: list[list[str]] = []
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for record in reader:
            if len(found) == most:
                return found, False
            if record:
                found.append(record)
    except csv.Error:
        return (None, False) if complete or not found else (found, False)
    if not complete:
        del found[-1:]  # it may have been cut
    return found, complete
